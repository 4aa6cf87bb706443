"""Ends the connections of a login that floods the broker, so that it leaves the others their share.

nats-server has no rates. What a login publishes waits in one queue with what all others publish, so
one that does not wait for answers keeps everybody waiting for as long as it likes. A client that
waits for them, as ours do, sends less when they come late: what is under way is its rate times the
time that an answer takes (Little's law), and it bounds that.

* Twice a second the broker is sent a message that waits as all facts do, and that it refuses, and
  a question that waits as all of the JetStream API do; and the API over NATS is sent a question.
* If an answer takes long, each login is counted for a moment: what its connections send together.
  One that must have more under way than all our programs together loses its connections, and may
  not sign on for a pause that doubles each time. If only the API over NATS is late, what a login
  sends more than it is sent counts, since facts are acknowledged in time then.

Those who serve everybody are left alone, since ending them would do what the flood does. On a
cluster, and a server that lists its users, nobody can keep a login from coming back.
"""

import asyncio
import json
import math
import time
from collections import Counter
from contextlib import suppress
from typing import Final, NamedTuple

import nats.errors

from ayes.ledger.nats.api import Api, NatsReply
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Login
from ayes.ledger.nats.protocol import server_id
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.accounts import API, API_PING, CALLOUT, SYSTEM
from ayes.ops.broker.open_connections import end_connections
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import LOG, ORGANISATION, ROOT

_log: Final = get_logger("ayes.ops.broker.floods")

#: The logins that serve everybody; and none, as of a connection that signs on just now.
_SERVING: Final = frozenset({"", API, "gate", "queue"})
#: The accounts of the site's own logins, which the broker names by their keys.
_OWN: Final = frozenset({LEDGER, SYSTEM, CALLOUT})
#: How often the broker is tried, from when on an answer takes long, and how long it is awaited.
_LOOK_S: Final = 0.5
_LONG_S: Final = 0.05
_LATEST_S: Final = 1.5
#: How long logins are counted; and what one may have under way. A worker has 2,048 deliveries, with
#: some requests for each, and a program that stores files a megabyte.
_COUNT_S: Final = 0.5
MOST_MESSAGES: Final = 15_000
MOST_BYTES: Final = 16_000_000
#: The first pause, the longest, and how long after one a flood is the first again.
PAUSE_S: Final = 30.0
_MAX_PAUSE_S: Final = 600.0
_FORGET_S: Final = 3600.0
_MAX_CONNECTIONS: Final = 1024
#: How long the broker may take until it lets this in.
_SIGN_ON_S: Final = 60.0


class _Sent(NamedTuple):
    """What a connection has sent so far."""

    login: str
    messages: int = 0
    #: Messages that it was sent.
    received: int = 0
    size: int = 0


class Floods:
    """The logins that may not sign on for now, from `open` to `close`.

    Args:
        admin: publishes what is refused.
        system: may ask the server who is connected, and end connections.
    """

    def __init__(self, admin: Login, system: Login) -> None:
        self._admin, self._system = Connection(admin), Connection(system)
        #: By login: until when it may not sign on, and for how long that was.
        self._pauses: dict[str, tuple[float, float]] = {}
        self._opened: list[Connection] = []
        self._watching: asyncio.Task[None] | None = None

    def check(self, login: str) -> None:
        """Refuse a login that has a pause.

        Raises:
            BadInput: it flooded the broker.
        """
        left = self._pauses.get(login, (0.0, 0.0))[0] - time.monotonic()
        if left > 0:
            raise BadInput(
                f"{login} sent so much that the broker was late for all others, and may sign on in "
                f"{math.ceil(left)} s"
            )

    async def open(self) -> None:
        """Begin to watch the broker."""
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        for one in self._opened:
            await one.close()

    async def _watch(self) -> None:
        await asyncio.sleep(_LOOK_S)
        try:
            for one in (self._admin, self._system):
                self._opened.append(one)
                await one.open(name="ayes floods", timeout_s=_SIGN_ON_S)
        except ApprovalsError as problem:
            _log.error("floods are not noticed until the next start", problem=str(problem))
            return
        admin, system = Api(self._admin), Api(self._system)
        await admin.start()
        await system.start()
        while True:
            with suppress(ApprovalsError, nats.errors.Error, TimeoutError):  # it is away
                await self._look(admin, system)
            await asyncio.sleep(_LOOK_S)

    async def _look(self, admin: Api, system: Api) -> None:
        late = await self._late(admin)
        if max(late) < _LONG_S:
            return
        before, begun = await self._sent(system), time.monotonic()
        await asyncio.sleep(_COUNT_S)
        # Twice, since a disk may have been slow once.
        broker_s, api_s = map(min, late, await self._late(admin))
        now, took_s = await self._sent(system), time.monotonic() - begun
        messages, unanswered, size = Counter[str](), Counter[str](), Counter[str]()
        for cid, new in now.items():
            old = before.get(cid, _Sent(new.login))
            messages[new.login] += new.messages - old.messages
            unanswered[new.login] += (new.messages - new.received) - (old.messages - old.received)
            size[new.login] += new.size - old.size
        for login in messages.keys() - _SERVING:
            under_way = round(max(messages[login] * broker_s, unanswered[login] * api_s) / took_s)
            bytes_under_way = round(size[login] * broker_s / took_s)
            if under_way > MOST_MESSAGES or bytes_under_way > MOST_BYTES:
                self._pause(login)
                _log.error(
                    "a login floods the broker, and is ended",
                    login=login, messages=under_way, bytes=bytes_under_way,
                    late_s=round(broker_s, 3), api_late_s=round(api_s, 3),
                )  # fmt: skip
                await end_connections(self._system.login, {login})

    async def _late(self, api: Api) -> tuple[float, float]:
        """How long two things wait, in seconds, `_LATEST_S` at most: a message that goes where
        facts go, or a question to the JetStream API where all go; and a question to the API over
        NATS.
        """
        begun = time.monotonic()
        fact, nowhere = f"{ROOT}.{ORGANISATION}.{LOG}.0", {"Nats-Expected-Stream": "none"}
        of_broker = [
            await api.send(fact, b"", nowhere),
            await api.send(f"$JS.API.STREAM.INFO.{LEDGER}", b""),
        ]
        of_api = [await api.send(API_PING, b"")]

        async def took_s(answers: list[asyncio.Future[NatsReply]]) -> float:
            await asyncio.wait(answers, timeout=_LATEST_S)
            for answer in answers:
                answer.cancel()
            return time.monotonic() - begun

        broker_s, api_s = await asyncio.gather(took_s(of_broker), took_s(of_api))
        return broker_s, api_s

    def _pause(self, login: str) -> None:
        now = time.monotonic()
        until, lasted = self._pauses.get(login, (0.0, 0.0))
        again = until + _FORGET_S > now
        pause_s = min(max(PAUSE_S, 2 * lasted if again else 0.0), _MAX_PAUSE_S)
        self._pauses[login] = now + pause_s, pause_s

    async def _sent(self, api: Api) -> dict[int, _Sent]:
        """By connection, of those that sent most."""
        asked = {"auth": True, "sort": "bytes_from", "limit": _MAX_CONNECTIONS}
        subject = f"$SYS.REQ.SERVER.{server_id(self._system.client)}.CONNZ"
        answer = await api.ask(subject, json.dumps(asked).encode())
        found = (json.loads(answer.data).get("data") or {}).get("connections")
        return {
            one["cid"]: _Sent(
                one.get("authorized_user", ""), one["in_msgs"], one["out_msgs"], one["in_bytes"]
            )
            for one in found or ()
            if one.get("account") not in _OWN
        }
