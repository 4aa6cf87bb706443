"""Webhooks: sends each fact to the endpoints that want it, at least once.

An endpoint that takes what it is sent receives each fact as it is delivered. The first failure puts
it *behind*: its standing names the first fact that it may lack, and deliveries leave it out, so it
delays no other endpoint and holds no delivery. One process then sends what it lacks, in the order
of the log, with growing pauses (`keep_up`). A fact that fails as often as the endpoint allows is
parked, and the next one follows. So an endpoint that was away for a weekend costs one parked fact
for each round of tries, and once it is back it receives the rest by itself.

It is no longer behind once it has all facts up to the last one. A delivery that left it out read
its standing before that was written, so its fact was recorded before too: the facts between the two
(`Standing.rest`) are sent once more.

A repetition has the same `webhook-id`, by which a receiver can drop it. What this process has sent
it does not send again. Nothing is recorded, so no webhook causes another one.
"""

import asyncio
import fcntl
import itertools
import os
import random
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.consumers.effects import Effect, GivenUp, Perform
from ayes.consumers.supervision import keep_running
from ayes.consumers.webhooks.endpoints import Endpoint, EndpointFile, Endpoints, Standing, Standings
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Delivered, Parked
from ayes.ledger.nats.credentials import open_own
from ayes.ledger.validity import may_be_void, voids
from ayes.projections.cloud_events import cloud_event, kind_of, webhook_id
from ayes.schemas.codec import Fact
from ayes.schemas.events import Carried
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.webhooks.worker")

DURABLE: Final = "webhooks"
#: Requests to one endpoint at a time. One that takes longer to answer falls behind.
_AT_ONCE: Final = 16
#: The longest pause between two tries.
_MAX_PAUSE_S: Final = 300.0
#: How often files and endpoints that are behind are looked at.
_LOOK_S: Final = 1.0
#: Facts that are read together for an endpoint that is behind.
_PAGE: Final = 128
#: Sent facts that are remembered, and parked facts of one endpoint that are known to be its own.
_MOST_REMEMBERED: Final = 20_000
_MOST_PARKED: Final = 1_000
#: How old a noted success may be while others follow.
_NOTED_EACH: Final = timedelta(seconds=10)


class Outgoing(Struct, frozen=True):
    """A fact, why it is void, and where it is sent."""

    fact: Fact
    void: str
    endpoints: tuple[Endpoint, ...]
    #: Whether an operator has it tried again.
    again: bool


def recipients(
    endpoints: Endpoints, standings: Standings, fact: Fact
) -> tuple[tuple[Endpoint, ...], bool]:
    """The endpoints that a delivered fact is sent to, and whether it was parked because of them."""
    parked = tuple(
        one
        for one in endpoints.endpoints.values()
        if one.verified_at is not None and fact.seq in standings.of(one.name).parked
    )
    if parked:
        return parked, True
    return tuple(
        one
        for one in endpoints.endpoints.values()
        if one.receives(fact) and not _is_left_out(standings.of(one.name), fact)
    ), False


def _is_left_out(standing: Standing, fact: Fact) -> bool:
    """Whether the fact is sent later, with others that the endpoint lacks; or never."""
    return bool(standing.gone or (standing.behind and fact.seq >= standing.behind))


class Webhooks:
    """The worker's reaction; `keep_up` runs beside it."""

    durables = (DURABLE,)
    replaces = False

    def __init__(self, file: EndpointFile, sender: Sender) -> None:
        self._file, self._sender = file, sender
        #: The requests that each endpoint has at a time: deliveries, and what it had missed.
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )
        self._sent: OrderedDict[str, None] = OrderedDict()
        self._fell = asyncio.Event()

    async def load(self, ledger: Ledger, handed: Delivered) -> Outgoing:
        assert isinstance(handed, Fact), "the webhooks receive facts only"
        found, again = recipients(self._file.read(), self._file.standings.read(), handed)
        void = await why_void(ledger, handed) if found else ""
        return Outgoing(handed, void, found, again)

    def decide(self, seen: Outgoing, handed: Delivered) -> Sequence[Effect[Outgoing]]:
        return [Perform(None, seen)] if seen.endpoints else ()

    async def execute(self, ledger: Ledger, work: Outgoing) -> None:
        """Send a fact to its endpoints, at the same time.

        Raises:
            GivenUp: an operator had it tried again, and an endpoint still does not take it.
        """
        each = self._send_again if work.again else self._send_now
        sending = (each(ledger, one, work) for one in work.endpoints)
        if failed := [why for why in await asyncio.gather(*sending) if why]:
            raise GivenUp("; ".join(failed))

    async def _send_now(self, ledger: Ledger, endpoint: Endpoint, work: Outgoing) -> str:
        """Send a fact once. An endpoint that does not take it, or not yet, falls behind."""
        name, fact = endpoint.name, work.fact
        if self._slots[name].locked():
            self._fall_behind(name, fact, None, ledger.now())
            return ""
        async with self._slots[name]:
            answer = await self._post(endpoint, fact, work.void)
        if answer.why:
            self._fall_behind(name, fact, answer, ledger.now())
        else:
            self._note_success(name, ledger.now())
        return ""

    async def _send_again(self, ledger: Ledger, endpoint: Endpoint, work: Outgoing) -> str:
        """Send a fact that was parked. Returns why the endpoint did not take it."""
        name, seq = endpoint.name, work.fact.seq
        if why := await _send_patiently(self._sender, endpoint, work.fact, work.void):
            self._file.note(name, partial(_parked, seq=seq, why=why))
            return f"{name}: {why}"
        self._note_success(name, ledger.now())
        self._file.note(name, partial(_unparked, seq=seq))
        return ""

    async def _post(self, endpoint: Endpoint, fact: Fact, void: str) -> HttpAnswer:
        """Send a fact to an endpoint, unless this process has."""
        sent = webhook_id(endpoint.name, fact)
        if sent in self._sent:
            return HttpAnswer()
        answer = await self._sender.post(endpoint, sent, cloud_event(fact, endpoint.origin, void))
        if not answer.why:
            self._sent[sent] = None
            if len(self._sent) > _MOST_REMEMBERED:
                self._sent.popitem(last=False)
        return answer

    def _fall_behind(self, name: str, fact: Fact, answer: HttpAnswer | None, now: datetime) -> None:
        """Note that an endpoint lacks a fact: it did not take it, or is slower than facts come."""
        before = self._file.standings.read().of(name)
        after = self._file.note(name, partial(_fallen, seq=fact.seq, answer=answer, now=now))
        if after.gone and not before.gone:
            _report_gone(name, after)
        elif after.behind and not before.behind:
            why = answer.why if answer else "it is slower than the facts come"
            report = _log.warning if answer else _log.info
            report("a webhook fell behind", webhook=name, fact=after.behind, why=why)
        self._fell.set()

    def _note_success(self, name: str, now: datetime) -> None:
        there = self._file.standings.read().of(name)
        if there.failing_since or not there.last_success or now - there.last_success > _NOTED_EACH:
            self._file.note(name, partial(_succeeded, now=now))

    # ------------------------------------------------------------------- endpoints that are behind

    async def keep_up(self, ledger: Ledger) -> None:
        """Send endpoints what they lack, for ever. One process does it for each file."""
        async with _alone(self._file):
            running: dict[str, asyncio.Task[None]] = {}
            try:
                while True:
                    self._fell.clear()
                    for name in [name for name, task in running.items() if task.done()]:
                        running.pop(name).result()
                    for name in _behind(self._file):
                        if name not in running:
                            catching_up = partial(self._catch_up, ledger, name)
                            kept = keep_running(f"catching up {name}", catching_up)
                            running[name] = asyncio.create_task(kept)
                    await _either(self._fell, _LOOK_S)
            finally:
                for task in running.values():
                    task.cancel()
                await asyncio.gather(*running.values(), return_exceptions=True)

    async def _catch_up(self, ledger: Ledger, name: str) -> None:
        """Send an endpoint what it lacks, until it lacks nothing or is sent nothing more."""
        while (endpoint := self._file.read().endpoints.get(name)) is not None:
            standing = self._file.standings.read().of(name)
            if standing.gone or not standing.missing:
                return
            last = await ledger.log.last_seq()
            if await self._send_lacking(ledger, endpoint, standing.missing, last):
                after = self._file.note(name, partial(_caught_up, last=last))
                if not after.missing:
                    _log.info("a webhook has caught up", webhook=name, fact=last)

    async def _send_lacking(self, ledger: Ledger, endpoint: Endpoint, at: int, last: int) -> bool:
        """Send the facts from `at` to `last` that the endpoint is to receive.

        Returns False if that ended early: the endpoint was changed, is sent nothing more, or has
        fallen further behind.
        """
        while at <= last:
            page, following = await _page(ledger, endpoint.receives, at, last)
            while page:
                # While it fails, one request shows whether it is back.
                standing = self._file.standings.read().of(endpoint.name)
                together = page[: 1 if standing.failing_since else _AT_ONCE]
                reached = await self._send_together(ledger, endpoint, at, together)
                if reached is None:
                    return False
                at = reached
                page = [fact for fact in page if fact.seq >= at]
            if not self._advance(endpoint.name, at, following, ledger.now(), sent=False):
                return False
            at = following
        return True

    async def _send_together(
        self, ledger: Ledger, endpoint: Endpoint, at: int, facts: Sequence[Fact]
    ) -> int | None:
        """Send some facts at the same time, the first ones that it lacks from `at` on.

        Returns the number from which on it lacks facts now; after a pause if it did not take one.
        None as of `_send_lacking`.
        """
        name = endpoint.name
        answers = await asyncio.gather(*(self._post_judged(ledger, endpoint, one) for one in facts))
        if self._file.read().endpoints.get(name) != endpoint:
            return None
        taken = next((place for place, one in enumerate(answers) if one.why), len(answers))
        if taken:
            reached = facts[taken - 1].seq + 1
            if not self._advance(name, at, reached, ledger.now(), sent=True):
                return None
            at = reached
        if taken == len(answers):
            return at
        fact, answer = facts[taken], answers[taken]
        failed = partial(_failed, at=at, answer=answer, now=ledger.now())
        standing = self._file.note(name, failed)
        if standing.gone:
            _report_gone(name, standing)
            return None
        if standing.behind != at:
            return None
        if standing.tries >= endpoint.tries:
            await self._give_up(ledger, name, fact, standing)
            if not self._advance(name, at, fact.seq + 1, ledger.now(), sent=False):
                return None
            at = fact.seq + 1
        await self._pause(name, standing, _pause_s(endpoint, standing.tries, answer))
        return at

    async def _post_judged(self, ledger: Ledger, endpoint: Endpoint, fact: Fact) -> HttpAnswer:
        void = await why_void(ledger, fact)
        async with self._slots[endpoint.name]:
            return await self._post(endpoint, fact, void)

    def _advance(self, name: str, at: int, to: int, now: datetime, *, sent: bool) -> bool:
        """Note that an endpoint lacks nothing before `to`; False if it no longer lacks `at`, or
        has fallen further behind.
        """
        after = self._file.note(name, partial(_moved, at=at, to=to, now=now if sent else None))
        return after.missing == to

    async def _give_up(self, ledger: Ledger, name: str, fact: Fact, standing: Standing) -> None:
        """Park a fact that has failed as often as it is tried."""
        self._file.note(name, partial(_parked, seq=fact.seq, why=standing.why))
        whose = self._file.standings.read().endpoints.items()
        reasons = (f"{one}: {why}" for one, of in whose if (why := of.parked.get(fact.seq)))
        parked = Parked(
            DURABLE, fact.seq, fact.slot.subject, "; ".join(reasons), standing.tries, ledger.now()
        )
        _log.error("parked", webhook=name, subject=parked.subject, reason=parked.reason)
        await ledger.log.park(parked)

    async def _pause(self, name: str, standing: Standing, pause_s: float) -> None:
        """Wait, unless the endpoint answers again meanwhile, as `ayes webhooks test` notes."""
        clock = asyncio.get_running_loop()
        until = clock.time() + pause_s
        while (left_s := until - clock.time()) > 0:
            await asyncio.sleep(min(left_s, _LOOK_S))
            if self._file.standings.read().of(name).failing_since != standing.failing_since:
                return


class Replayed(Struct, frozen=True):
    """A fact that was sent again, or why not."""

    fact: Fact
    why: str = ""


async def replay(
    ledger: Ledger,
    sender: Sender,
    endpoint: Endpoint,
    start: int | datetime,
    until: int | datetime | None,
    types: Collection[str],
) -> AsyncGenerator[Replayed]:
    """Send an endpoint facts of the log again, one after another and with the same ids.

    Facts that this program cannot read are left out. It ends with the first fact that was not
    taken, however often it was tried.

    Args:
        types: only these of the types that it wants; none for all.
    """

    def is_wanted(fact: Fact) -> bool:
        is_early = until is None or (
            fact.seq <= until if isinstance(until, int) else fact.recorded_at <= until
        )
        return is_early and endpoint.wants(fact) and (not types or kind_of(fact) in types)

    at, last = await _number(ledger, start), await ledger.log.last_seq()
    while at <= last:
        page, at = await _page(ledger, is_wanted, at, last)
        for fact in page:
            void = await why_void(ledger, fact)
            why = await _send_patiently(sender, endpoint, fact, void)
            yield Replayed(fact, why)
            if why:
                return


async def _send_patiently(sender: Sender, endpoint: Endpoint, fact: Fact, void: str) -> str:
    """Send a fact as often as the endpoint allows. Returns why it was not taken."""
    event = cloud_event(fact, endpoint.origin, void)
    for tries in itertools.count(1):
        answer = await sender.post(endpoint, webhook_id(endpoint.name, fact), event)
        if not answer.why or answer.is_gone or tries >= endpoint.tries:
            return answer.why
        await asyncio.sleep(_pause_s(endpoint, tries, answer))
    raise AssertionError("the numbers have ended")


def _pause_s(endpoint: Endpoint, tries: int, answer: HttpAnswer) -> float:
    """The pause after this many tries: half of it is chance, so that senders spread."""
    pause_s = min(endpoint.backoff_s * 2.0 ** (tries - 1), _MAX_PAUSE_S)
    return max(pause_s * random.uniform(0.5, 1), answer.retry_after_s)  # noqa: S311 - not a secret


async def _number(ledger: Ledger, start: int | datetime) -> int:
    """The number of the first fact from `start` on."""
    if isinstance(start, int):
        return max(1, start)
    async with aclosing(ledger.replay(start)) as facts:
        async for fact in facts:
            return fact.seq
    return await ledger.log.last_seq() + 1


def _behind(file: EndpointFile) -> Iterable[str]:
    """The endpoints that lack something and are to be sent it."""
    standings = file.standings.read()
    for name, endpoint in file.read().endpoints.items():
        standing = standings.of(name)
        if endpoint.verified_at is not None and standing.missing and not standing.gone:
            yield name


async def _page(
    ledger: Ledger, is_wanted: Callable[[Fact], bool], start: int, last: int
) -> tuple[list[Fact], int]:
    """The next facts that are wanted, and the number after those that were looked at.

    A fact that this program cannot read is not among them: its delivery is parked, for all
    endpoints.
    """
    page: list[Fact] = []
    at = start
    async with aclosing(ledger.log.follow((), start, until_end=True)) as batches:
        async for facts in batches:
            for fact in facts:
                if fact.seq > last or len(page) == _PAGE:
                    return page, at
                at = fact.seq + 1
                if is_wanted(fact) and not isinstance(fact.event, Carried):
                    page.append(fact)
    if at == start:
        await asyncio.sleep(_LOOK_S)  # a replica answered that is behind
    return page, at


async def why_void(ledger: Ledger, fact: Fact) -> str:
    """Why a fact of a call does not count; empty if it does."""
    ref = fact.slot.call_ref
    if ref is None or not may_be_void(fact):
        return ""
    call = await ledger.call(ref, must_include=fact.slot)
    return next((one.why for one in voids(call) if one.fact.seq == fact.seq), "")


# ---------------------------------------------------------------------- what becomes of a standing


def _fallen(there: Standing, *, seq: int, answer: HttpAnswer | None, now: datetime) -> Standing:
    """It has not taken a delivered fact. Without an answer it was not sent it yet."""
    if answer is not None and answer.is_gone:
        return _is_gone(there, there.missing or seq, answer, now)
    first = min(there.missing or seq, seq)
    tries = there.tries if first == there.behind else 0
    fallen = replace(there, behind=first, rest=0, tries=tries)
    if answer is None:
        return fallen
    return replace(fallen, why=answer.why, failing_since=there.failing_since or now)


def _failed(there: Standing, *, at: int, answer: HttpAnswer, now: datetime) -> Standing:
    """It has not taken the first fact from `at` on, which it lacks."""
    if there.missing != at:
        return there
    if answer.is_gone:
        return _is_gone(there, at, answer, now)
    since = there.failing_since or now
    return replace(
        there, behind=at, rest=0, tries=there.tries + 1, why=answer.why, failing_since=since
    )


def _moved(there: Standing, *, at: int, to: int, now: datetime | None) -> Standing:
    """It lacks nothing before `to`; with a time it has taken a fact then."""
    if there.missing != at:
        return there
    moved = replace(there, behind=to) if there.behind else replace(there, rest=to)
    if to != at:
        moved = replace(moved, tries=0)
    return moved if now is None else _succeeded(moved, now=now)


def _succeeded(there: Standing, *, now: datetime) -> Standing:
    return replace(there, why="", failing_since=None, last_success=now)


def _caught_up(there: Standing, *, last: int) -> Standing:
    """It has all facts up to `last`; see the beginning of this file."""
    if there.missing <= last:  # it has fallen behind again
        return there
    return replace(there, behind=0, rest=last + 1 if there.behind else 0, tries=0)


def _is_gone(there: Standing, first: int, answer: HttpAnswer, now: datetime) -> Standing:
    why = f"{answer.why} at {now:%Y-%m-%d %H:%M:%S} UTC; it lacks facts from {first} on"
    return Standing(last_success=there.last_success, gone=why, parked=there.parked)


def _parked(there: Standing, *, seq: int, why: str) -> Standing:
    kept = [*there.parked.items()][-_MOST_PARKED + 1 :]
    return replace(there, parked=dict(kept) | {seq: why})


def _unparked(there: Standing, *, seq: int) -> Standing:
    return replace(there, parked={one: why for one, why in there.parked.items() if one != seq})


def _report_gone(name: str, standing: Standing) -> None:
    _log.error(
        "a webhook is sent nothing more",
        webhook=name,
        why=standing.gone,
        next=f"ayes webhooks test {name}",
    )


@asynccontextmanager
async def _alone(file: EndpointFile) -> AsyncGenerator[None]:
    """Wait until no other process sends what the endpoints of this file lack; then be that one."""
    while not file.path.exists():  # noqa: ASYNC110 - a command in another process creates it
        await asyncio.sleep(_LOOK_S)
    lock = open_own(file.catching_up, os.O_RDWR | os.O_CREAT)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOOK_S)
        yield
    finally:
        os.close(lock)


async def _either(event: asyncio.Event, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return
