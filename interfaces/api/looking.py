"""Who looks at which call now, in all consoles of the site.

    a page's stream of events ──► Looking ──► console.looking ──► Looking of the other consoles

Each console publishes all who look in it, when that changes and again and again while anybody does.
So a message that is lost makes no difference, and a console that dies is forgotten by its silence.
Nothing is stored, and only the login of consoles hears the subject (ops/broker/accounts.py).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import Struct

from ayes.ledger.log import LiveMessages
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.accounts import LOOKING
from ayes.schemas.errors import BrokerAway

#: The interval in which a console publishes who looks, and after which silence it is forgotten.
_BEAT_S: Final = 2.0
_SILENCE_S: Final = 5.0


class Told(Struct, frozen=True):
    """What a console publishes."""

    console: str
    #: Calls, each with a person who looks at it.
    pairs: tuple[tuple[str, str], ...]


_decoder: Final = msgspec.json.Decoder(Told)


class Looking:
    """Who looks at which call.

    Args:
        wake: called when that has changed.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._console = str(uuid4())
        self._own: Counter[tuple[str, str]] = Counter()
        #: By console: when it was heard, and who looks there.
        self._others: dict[str, tuple[float, frozenset[tuple[str, str]]]] = {}
        self._changed = asyncio.Event()

    async def during[T](
        self, events: AsyncGenerator[T], call: str, person: str
    ) -> AsyncGenerator[T]:
        """These events, as long as which this person looks at this call."""
        pair = call, person
        self._own[pair] += 1
        self._tell()
        try:
            async with aclosing(events):
                async for one in events:
                    yield one
        finally:
            self._own -= Counter([pair])
            self._tell()

    def people(self, call: str, but: str) -> tuple[str, ...]:
        """The people who look at this call, without this one."""
        since = asyncio.get_running_loop().time() - _SILENCE_S
        heard = (pairs for at, pairs in self._others.values() if at > since)
        every = frozenset(self._own).union(*heard)
        return tuple(sorted(person for one, person in every if one == call and person != but))

    async def share(self, log: JetStream) -> None:
        """Tell other consoles who looks here, and hear who looks there.

        Raises:
            BrokerAway: it cannot be heard. Run it again.
        """
        async with log.subscribe_live(LOOKING) as messages, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish(log))
            tasks.create_task(self._hear(messages))

    async def _publish(self, log: JetStream) -> None:
        while True:
            self._changed.clear()
            with suppress(BrokerAway):
                told = Told(self._console, tuple(self._own))
                await log.publish_live(LOOKING, msgspec.json.encode(told))
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEAT_S if self._own else None):
                    await self._changed.wait()

    async def _hear(self, messages: LiveMessages) -> None:
        while True:
            with suppress(msgspec.MsgspecError):
                told = _decoder.decode(await messages.get())
                if told.console != self._console:
                    self.note(told)

    def note(self, told: Told) -> None:
        """Note what another console has published."""
        now = asyncio.get_running_loop().time()
        _, before = self._others.pop(told.console, (0.0, frozenset()))
        if told.pairs:
            self._others[told.console] = now, frozenset(told.pairs)
        if before != frozenset(told.pairs):
            self._wake()

    def _tell(self) -> None:
        self._changed.set()
        self._wake()
