"""Webhooks that wake paused agents: a request was decided. Each says so at least once.

    {"id": ..., "type": "request.resolved", "instance_id": ..., "request_id": ..., ...}

They are signed as Standard Webhooks says, and do not have the decision: whoever is woken reads it.
The id of an event is made of its fact, so a repetition has the same one. What a receiver was told
of last is in the file of instances; after a restart the provider goes on there.
"""

import asyncio
import uuid
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec

from ayes.consumers.supervision import keep_running
from ayes.consumers.webhooks.endpoints import Endpoint, check
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.interfaces.aap.instances import Instance, InstancesFile, Receiver
from ayes.interfaces.aap.wire import stamp
from ayes.ledger.clients.services import Ledger
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import Fact
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import ROOT, ThreadRef

_log: Final = get_logger("ayes.interfaces.aap.deliveries")

_JSON: Final = "application/json"
#: For one request.
_TIMEOUT_S: Final = 10.0
_PAUSES: Final = Backoff(1.0, 300.0, jitter=0.25)
#: After so long, a receiver is told of a decision no more.
_GIVEN_UP: Final = timedelta(days=7)
#: How often the file of instances is looked at.
_LOOK_S: Final = 1.0
_NAMESPACE: Final = uuid.UUID("5b2b1a3e-6a52-4b0e-9d0c-3c7f0f6f5d11")


class DecisionDeliveries:
    """Tells receivers of decisions.

    Args:
        thread: of the calls of an instance.
        allow_private: whether receivers may be on this machine or in its network.
    """

    def __init__(
        self,
        file: InstancesFile,
        ledger: Ledger,
        sender: Sender,
        thread: Callable[[str], ThreadRef],
        *,
        allow_private: bool = False,
    ) -> None:
        self._file, self._ledger, self._sender = file, ledger, sender
        self._thread, self._allow_private = thread, allow_private

    async def agrees(self, instance: str, delivery: Receiver) -> str:
        """Why the receiver at a URL may not be sent to; empty if it answers for its registration.

        Raises:
            BadInput: the URL or the secret is not valid.
        """
        check(self._endpoint(instance, delivery))
        challenge, message_id = str(uuid.uuid4()), str(uuid.uuid4())
        message = {
            "id": message_id,
            "type": "webhook.verification",
            "registration_id": delivery.registration_id,
            "instance_id": instance,
            "created_at": stamp(self._ledger.now()),
            "challenge": challenge,
        }
        answer = await self._post(instance, delivery, message_id, message)
        if answer.why:
            return answer.why
        try:
            answered = msgspec.json.decode(answer.text)
        except msgspec.MsgspecError:
            answered = None
        return "" if answered == {"challenge": challenge} else "it did not repeat the challenge"

    async def run(self) -> None:
        """Tell all receivers, for ever."""
        telling: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                every = self._file.read().instances
                for one in every.values():
                    if one.delivery is not None and one.id not in telling:
                        told = partial(self._tell, one.id)
                        kept = keep_running(f"telling the receiver of {one.name}", told)
                        telling[one.id] = asyncio.create_task(kept)
                for name in [name for name, task in telling.items() if task.done()]:
                    telling.pop(name).result()
                for name in [name for name in telling if every[name].delivery is None]:
                    telling[name].cancel()
                    await asyncio.gather(telling.pop(name), return_exceptions=True)
                await asyncio.sleep(_LOOK_S)
        finally:
            for task in telling.values():
                task.cancel()
            await asyncio.gather(*telling.values(), return_exceptions=True)

    async def _tell(self, instance: str) -> None:
        """Tell the receiver of one instance, in the order of the log, until it is removed."""
        known = self._file.read().instances[instance]
        thread = self._thread(known.name)
        decided = f"{ROOT}.{thread.workspace}.{thread.thread}.call.*.decided"
        async with aclosing(self._ledger.watch(known.told + 1, decided)) as facts:
            async for fact in facts:
                ref = fact.slot.call_ref
                if ref is not None and not await self._told(instance, ref.call, fact):
                    return

    async def _told(self, instance: str, request: str, fact: Fact) -> bool:
        """Tell of one decision until the receiver takes it; False if there is no receiver more."""
        for pause_s in _PAUSES.pauses():
            known = self._file.read().instances[instance]
            if known.delivery is None:
                return False
            message = event(known, request, fact)
            answer = await self._post(instance, known.delivery, message["id"], message)
            late = self._ledger.now() - fact.recorded_at > _GIVEN_UP
            if not answer.why or late:
                if answer.why:
                    _log.error("a receiver is not told", instance=known.name, problem=answer.why)
                self._file.note_told(instance, fact.seq)
                return True
            _log.warning("a receiver did not answer", instance=known.name, problem=answer.why)
            await asyncio.sleep(max(pause_s, answer.retry_after_s))
        raise AssertionError("the pauses have no end")

    async def _post(
        self, instance: str, delivery: Receiver, message_id: str, message: dict[str, str]
    ) -> HttpAnswer:
        endpoint = self._endpoint(instance, delivery)
        body = msgspec.json.encode(message).decode()
        return await self._sender.post(endpoint, message_id, body, _JSON)

    def _endpoint(self, instance: str, delivery: Receiver) -> Endpoint:
        return Endpoint(
            name=instance,
            url=delivery.url,
            secret=delivery.signing_secret,
            origin="localhost",
            allow_private=self._allow_private,
            timeout_s=_TIMEOUT_S,
        )


def event(instance: Instance, request: str, fact: Fact) -> dict[str, str]:
    """The event about a decision: the same one however often it is made."""
    return {
        "id": str(uuid.uuid5(_NAMESPACE, f"{instance.id} {fact.seq}")),
        "type": "request.resolved",
        "instance_id": instance.id,
        "request_id": request,
        "created_at": stamp(fact.recorded_at),
    }
