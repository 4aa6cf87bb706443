"""Making and removing instances over HTTP, for programs that have the token of a provisioner.

A receiver of webhooks must answer a signed challenge before its instance exists, so that nobody
has events sent to somebody else. A removed instance cannot ask any more, and what it waits for is
withdrawn.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ayes.consumers.supervision import keep_running
from ayes.consumers.webhooks.requests import Sender
from ayes.interfaces.aap import wire
from ayes.interfaces.aap.deliveries import DecisionDeliveries
from ayes.interfaces.aap.instances import (
    LASTS,
    Instance,
    InstancesFile,
    digest_of,
    hash_of,
    instance_id,
    new_token,
    provision,
)
from ayes.interfaces.aap.provider import Conflict, Provider, thread_of
from ayes.interfaces.aap.settings import InstanceSettings, ProviderSettings, ProvisionerSettings
from ayes.ledger.clients.services import Ledger
from ayes.schemas import ids
from ayes.schemas.errors import BadInput, Refused, UnknownCall
from ayes.schemas.slots import ROOT, CallRef, ThreadRef

_WITHDRAWN: Final = "its agent was removed"


class NotVerified(Exception):
    """The receiver of webhooks does not answer as it must."""


class Provisioning:
    """The instances of one provider that are not in its settings."""

    def __init__(
        self,
        settings: ProviderSettings,
        ledger: Ledger,
        file: InstancesFile,
        deliveries: DecisionDeliveries,
    ) -> None:
        self._settings, self._ledger = settings, ledger
        self._file, self._deliveries = file, deliveries

    def provider(self, token: str) -> Provider | None:
        """The requests of the instance with this token; None if there is none."""
        found = self._file.read().holder(token, self._ledger.now())
        if found is None:
            return None
        agent = InstanceSettings(name=found.name, requester=found.requester, token=token)
        within_s = self._settings.outcome_within_s
        return Provider(self._ledger, self._settings.workspace, agent, within_s)

    async def create(self, by: ProvisionerSettings, body: bytes, key: str) -> tuple[bytes, bool]:
        """The instance with this key and its token, and whether it is new.

        Raises:
            BadInput: the request, its name or its webhook is not valid.
            Conflict: `idempotency_conflict`: the key was used for another request.
            NotVerified: the receiver does not answer the challenge.
        """
        asked = provision(body)
        made = instance_id(by.requester, key)
        token, digest = new_token(by.token, made, key), digest_of(asked)
        there = self._file.read().instances.get(made)
        if there is None:
            delivery = None if asked.delivery is UNSET else asked.delivery
            if delivery is not None and (why := await self._deliveries.agrees(made, delivery)):
                raise NotVerified(f"the receiver could not be verified: {why}")
            name = asked.instance_name or f"instance-{made[:8]}"
            now = self._ledger.now()
            instance = Instance(
                id=made,
                name=ids.token("instance", name),
                requester=by.requester,
                token_hash=hash_of(token),
                digest=digest,
                created_at=now,
                expires_at=now + LASTS,
                told=await self._ledger.log.last_seq(),
                delivery=delivery,
            )
            reserved = frozenset(one.name for one in self._settings.instances)
            kept = self._file.add(instance, reserved)
        else:
            kept = there
        if kept.digest != digest or kept.removed:
            used = f"the key {key!r} was used for another instance. Use a new one."
            raise Conflict("idempotency_conflict", used)
        credential = {"token": token, "expires_at": wire.stamp(kept.expires_at)}
        told = {"instance": _shown(kept), "credential": credential}
        return msgspec.json.encode(told), there is None

    def listed(self, by: ProvisionerSettings) -> bytes:
        """The instances of this provisioner, without their tokens and secrets."""
        found = self._file.read().of(by.requester)
        return msgspec.json.encode({"instances": [_shown(one) for one in found]})

    def shown(self, by: ProvisionerSettings, instance: str) -> bytes:
        """One of them.

        Raises:
            UnknownCall: there is none.
        """
        return msgspec.json.encode({"instance": _shown(self._own(by, instance))})

    async def remove(self, by: ProvisionerSettings, instance: str) -> bytes:
        """Remove an instance, and withdraw what it waits for.

        Raises:
            UnknownCall: there is none.
        """
        found = self._own(by, instance)
        # First: a request that comes meanwhile is refused, so none is left waiting.
        self._file.remove(found.id)
        for ref in await self._undecided(thread_of(self._settings.workspace, found.name)):
            with suppress(Refused):
                await self._ledger.withdraw(ref, _WITHDRAWN)
        return msgspec.json.encode({"instance": _shown(found)})

    async def _undecided(self, thread: ThreadRef) -> list[CallRef]:
        """The calls that wait, those too about which nobody was asked yet."""
        every = f"{ROOT}.{thread.workspace}.{thread.thread}.call.*"
        facts = await self._ledger.read(f"{every}.requested", f"{every}.decided")
        decided = {one.slot.call_ref for one in facts if one.slot.tail[-1] == "decided"}
        refs = (one.slot.call_ref for one in facts)
        return [ref for ref in refs if ref is not None and ref not in decided]

    def _own(self, by: ProvisionerSettings, instance: str) -> Instance:
        for one in self._file.read().of(by.requester):
            if one.id == instance:
                return one
        raise UnknownCall(f"there is no instance {instance!r} here.")


def _shown(one: Instance) -> dict[str, Any]:
    return {"id": one.id, "name": one.name}


@asynccontextmanager
async def opened(
    settings: ProviderSettings, ledger: Ledger, file: Path
) -> AsyncGenerator[Provisioning | None]:
    """The instances in this file; receivers are told while the block lasts.
    None if the settings name no provisioner.

    Raises:
        BadInput: an instance of the settings has the name of one that a program has made.
    """
    if not settings.provisioners:
        yield None
        return
    made = InstancesFile(file)
    listed = {one.name for one in settings.instances}
    if taken := sorted(listed & {one.name for one in made.read().instances.values()}):
        raise BadInput(
            f"[aap] lists an instance {taken[0]!r}, and a program has made one of that name. "
            "Choose another name, so that neither sees the other's requests."
        )
    thread = partial(thread_of, settings.workspace)
    deliveries = DecisionDeliveries(
        made, ledger, Sender(), thread, allow_private=settings.allow_private
    )
    telling = asyncio.create_task(keep_running("telling receivers", deliveries.run))
    try:
        yield Provisioning(settings, ledger, made, deliveries)
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
