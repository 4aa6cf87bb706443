"""The console's connections to the broker: one for each role and person, with their credentials.

So the broker, and not the console, keeps ana from voting as ben.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Self
from weakref import WeakKeyDictionary

from fastapi import Depends, Request

from ayes.consumers.pending_view import PendingView
from ayes.consumers.supervision import keep_running
from ayes.interfaces.api.feed import Feed
from ayes.interfaces.api.looking import Looking
from ayes.interfaces.api.scope import ScopedLog, scoped
from ayes.ledger.clients.reviewers import Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.link_key import link_key as key_of_links
from ayes.ledger.people import People, people_of
from ayes.ops.actions.policies import voters_of
from ayes.ops.broker.accounts import API
from ayes.ops.broker.logins import Logins
from ayes.ops.inspection.checks import Look, overview, unlike_witness
from ayes.ops.inspection.witness import place_of
from ayes.ops.lake.sync import default_directory
from ayes.ops.single_flight import Busy, Fresh
from ayes.projections.pending import PendingIndex
from ayes.schemas.errors import ApprovalsError, BrokerAway, NotAllowed
from ayes.schemas.events import PersonAdded, PersonRemoved
from ayes.schemas.slots import PEOPLE

#: Is told of a person who was removed or released, and when.
type OnRemoved = Callable[[str, datetime], None]

#: The author of what the console does by itself.
CONSOLE: Final = "console"
#: Changes of the list within this time are announced together.
_TOGETHER_S: Final = 0.1
#: How long it waits for the list at its start, before it serves without one.
_LOADING_S: Final = 5.0
#: About twice the time in which a client's list is made. Each client reads its list after each
#: announcement, so announcements pause for long enough that half of the console's time is left.
_READING_S: Final = 0.02


class Backend:
    def __init__(
        self, store: Store, reading: Ledger, logins: Logins, lake: Path, link_key: bytes
    ) -> None:
        self.store = store
        #: Of the links in messages.
        self.link_key = link_key
        #: The page of another origin on which votes are signed; empty: the console's own do.
        self.sign_page = ""
        #: Where the lake is, if there is one.
        self.lake = lake
        #: Reads with the credentials of the API, or of `observer` where the store has none of it.
        self.reading = reading
        self.feed = Feed(reading)
        self.looking = Looking(self.feed.wake)
        #: What a visitor may not begin twice at once.
        self.busy = Busy()
        #: The replies that each visitor is following, by the visitor's name.
        self.followed: Counter[str] = Counter()
        #: The state of the broker, as `ayes status` shows it.
        self.status = Fresh(self._status, for_s=3)
        #: The voters whom rules in force name. Reading them reads every version of every policy.
        self.voters = Fresh(partial(voters_of, reading), for_s=60)
        #: How the log differs from its witness. Comparing them reads up to 100,000 facts.
        self._place = place_of(store.path, None)
        self._unlike = Fresh(partial(unlike_witness, jetstream(reading), self._place), for_s=60)
        self._logins = logins
        #: The connections as those see them who may see some workspaces only, by these.
        self._scoped: WeakKeyDictionary[Ledger, dict[tuple[str, ...], Ledger]] = WeakKeyDictionary()
        #: As far as they are known; None: not at all.
        self.people: People | None = None
        self._on_removed: OnRemoved | None = None
        self._waiting: PendingView | None = None
        self._is_listed = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        store: Path | str | None = None,
        *,
        archive: Path | None = None,
        link_key: Path | None = None,
        on_removed: OnRemoved | None = None,
        timeout_s: float | None = 3.0,
    ) -> AsyncGenerator[Self]:
        """Connect to the broker of this store, and load the list of pending calls.

        Args:
            archive: where the lake is; by default `archive` in the store. It need not be there.
            link_key: the file of the key of links, if it is not in the store.
            on_removed: is told of each person who was removed or released, and when; also again.

        Raises:
            BadInput: the key of links cannot be read.
            BrokerAway: none answered within `timeout_s` (None: wait as long as it takes).
        """
        place = Store(store)
        reader = _reader(place)
        opened = Ledger.connect(store, role=reader, name=CONSOLE, timeout_s=timeout_s)
        async with Logins.of(place) as logins, opened as reading:
            lake = (archive or default_directory(place.path)) / "lake"
            backend = cls(place, reading, logins, lake, key_of_links(place, link_key))
            feed, backend._on_removed = backend.feed, on_removed
            with suppress(ApprovalsError):
                backend.people = await reading.people()
            # Also what only an operator can mend is tried again: nobody watches over a console.
            running = (
                keep_running("the console's list", backend._keep_list, ends=()),
                keep_running("the console's people", backend._keep_people, ends=()),
                keep_running("the console's events", feed.run, ends=()),
                keep_running("the console's look at the broker", feed.watch_broker, ends=()),
                *(
                    [keep_running("who looks", backend._share_looking, ends=())]
                    if place.has_login(API)
                    else []
                ),
            )
            keeping = [asyncio.create_task(one) for one in running]
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOADING_S):
                        await backend._is_listed.wait()
                yield backend
            finally:
                feed.close()
                for task in keeping:
                    task.cancel()
                await asyncio.gather(*keeping, return_exceptions=True)

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncGenerator[Ledger]:
        """A connection of its own that reads, for another event loop."""
        async with Ledger.connect(self.store.path, role=_reader(self.store), name=name) as ledger:
            yield ledger

    @property
    def waiting(self) -> PendingIndex:
        """The pending calls, kept up to date.

        Raises:
            Unavailable: they are being loaded, or cannot be followed any more.
        """
        if self._waiting is None:
            raise BrokerAway("the list of pending calls is being loaded. Try again in a moment.")
        return self._waiting.entries

    async def reviewer(self, name: str) -> Reviewer:
        """The methods of this person, with their own credentials."""
        return (await self.as_reviewer(name)).reviewer(name)

    async def as_reviewer(self, name: str) -> Ledger:
        """A connection on this person's own credentials.

        Raises:
            NotAllowed: they were removed.
            BrokerAway: nobody knows yet.
        """
        if self.people is None:
            raise BrokerAway("it is not known yet who was removed. Try again in a moment.")
        if self.people.is_removed(name):
            raise NotAllowed(f"{name} was removed, and can do nothing any more.")
        ledger = await self._logins.as_reviewer(name)
        # Whose login has some workspaces does not read people's keys.
        ledger.trust = None if jetstream(ledger).connection.login.workspaces else self.reading.trust
        return ledger

    async def operator(self, name: str) -> Ledger:
        """A connection that may apply policies, as this author."""
        return await self._logins.connection("operator", name)

    def scoped(self, ledger: Ledger, workspaces: tuple[str, ...]) -> Ledger:
        """As of `scope.scoped`; the same each time, with all that it has cached."""
        if not workspaces:
            return ledger
        known = self._scoped.setdefault(ledger, {})
        if workspaces not in known:
            known[workspaces] = scoped(ledger, workspaces)
        return known[workspaces]

    async def service(self, name: str) -> Ledger:
        """A connection that may request and run calls, as this author."""
        ledger = await self._logins.connection("service", name)
        ledger.trust = self.reading.trust
        return ledger

    async def recording(self) -> Ledger:
        """The console's own connection: it may record what providers say of groups, keep what
        people have saved, and tell other consoles who looks.
        """
        return await self._logins.connection("api", CONSOLE)

    async def _share_looking(self) -> None:
        await self.looking.share(jetstream(await self.recording()))

    async def _status(self) -> Look:
        async def pending() -> int:
            return len(self.waiting)

        log = jetstream(await self.operator(CONSOLE))
        return await overview(log, self.store, self._place, pending=pending, unlike=self._unlike)

    async def _keep_people(self) -> None:
        """Follow who is a person, and end all that somebody has here who was removed."""
        while True:
            seen = await self.reading.log.last_seq()
            facts = await self.reading.read(*PEOPLE)
            self.people = people_of(facts)
            for fact in facts:
                is_end = isinstance(fact.event, PersonAdded | PersonRemoved)
                if is_end and self._on_removed is not None:
                    self._on_removed(fact.slot.tail[1], fact.recorded_at)
            for name in self.people.removed:
                await self._logins.drop(name)
            async with aclosing(self.reading.watch(seen + 1, *PEOPLE)) as news:
                await anext(news)

    async def _keep_list(self) -> None:
        try:
            async with PendingView(self.reading) as view:
                self._waiting = view
                self._is_listed.set()
                revision = -1
                while True:
                    revision = await view.moved(since=revision)
                    await asyncio.sleep(_TOGETHER_S)
                    self.feed.list_changed(len(view.entries))
                    await asyncio.sleep(_READING_S * self.feed.clients)
        finally:
            self._waiting = None


def jetstream(ledger: Ledger) -> JetStream:
    """The connection below one of the console's ledgers."""
    assert isinstance(ledger.log, JetStream), "the console connects to brokers only"
    return ledger.log


def log_of(ledger: Ledger) -> JetStream | ScopedLog:
    """The log of one of the console's ledgers, which can be read in parts."""
    return ledger.log if isinstance(ledger.log, ScopedLog) else jetstream(ledger)


def _backend(request: Request) -> Backend:
    found: Backend = request.app.state.backend
    return found


InBackend = Annotated[Backend, Depends(_backend)]


def _reader(store: Store) -> str:
    """The role that reads for all visitors. Auditors have the login of `observer` too, and it loses
    its connections if one of them floods the broker (decision 0071).
    """
    return API if store.has_login(API) else "observer"
