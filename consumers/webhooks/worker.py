"""Webhooks: sends each fact to the endpoints that want it, at least once.

Each endpoint has a reader of the log, which sends it the facts from its place on. Those that come
together are sent at the same time; after a failure they are sent one after another, with growing
pauses, until one is taken. A fact that fails as often as the endpoint allows is parked, and the
next one follows. So an endpoint that was away for a weekend costs one parked fact for each round of
tries, receives the rest by itself once it is back, and delays no other endpoint.

One process sends from a file; others wait to take over. It notes the places each second, so a
process that is killed sends again what it sent since, with the same `webhook-id`, by which a
receiver can drop it. Nothing is recorded, so no webhook causes another one.

The durable consumer `webhooks` is for facts that are to be tried again, and for those of a newer
program, which are parked (docs/decisions/0060).
"""

import asyncio
import fcntl
import itertools
import os
import random
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.consumers.effects import Effect, GivenUp, Perform
from ayes.consumers.supervision import keep_running
from ayes.consumers.webhooks.endpoints import Endpoint, EndpointFile, Standing, Standings
from ayes.consumers.webhooks.requests import HttpAnswer, Sender
from ayes.consumers.worker import DRAIN_S
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Delivered, Parked
from ayes.ledger.nats.credentials import open_own
from ayes.ledger.replica import ReadReplica
from ayes.ledger.validity import may_be_void, voids
from ayes.projections.cloud_events import cloud_event, kind_of, webhook_id
from ayes.schemas.codec import Fact
from ayes.schemas.events import Carried
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.consumers.webhooks.worker")

DURABLE: Final = "webhooks"
#: Requests to one endpoint at a time.
_AT_ONCE: Final = 16
#: The longest pause between two tries.
_MAX_PAUSE_S: Final = 300.0
#: How often files are looked at, and places noted.
_LOOK_S: Final = 1.0
#: Parked facts of one endpoint that are known to be its own.
_MAX_PARKED: Final = 1_000
#: From which age on its next fact shows that an endpoint is behind.
_LATE: Final = timedelta(seconds=10)


class Outgoing(Struct, frozen=True):
    """A fact that is tried again, why it is void, and the endpoints that lack it."""

    fact: Fact
    void: str
    endpoints: tuple[Endpoint, ...]


class _Place(Struct, frozen=True):
    """How far an endpoint is: the number of the next fact that it may lack, and when it came."""

    seq: int
    since: datetime | None = None


class _SentNoMore(Exception):
    """The endpoint is gone or was removed, or this process ends."""


class Webhooks:
    """The worker's reaction to facts that are tried again; `send` runs beside it."""

    durables = (DURABLE,)
    replaces = False

    def __init__(self, file: EndpointFile, sender: Sender, drain_s: float = DRAIN_S) -> None:
        self._file, self._sender, self._drain_s = file, sender, drain_s
        self._is_ending = False
        #: By endpoint: its place, and when it last took a fact; noted each second.
        self._places: dict[str, _Place] = {}
        self._took: dict[str, datetime] = {}

    async def load(self, ledger: Ledger, handed: Delivered) -> Outgoing:
        assert isinstance(handed, Fact), "the webhooks receive facts only"
        standings = self._file.standings.read()
        agreeing = [one for one in self._file.read().endpoints.values() if one.verified_at]
        parked = [one for one in agreeing if handed.seq in standings.of(one.name).parked]
        # Also that of an endpoint which was removed meanwhile, and whose name is another one's.
        lacking = [one for one in parked if one.wants(handed)]
        # It is nobody's alone if a newer program wrote it, or it was parked long ago.
        lacking = lacking or [one for one in agreeing if one.receives(handed)]
        return Outgoing(handed, await why_void(ledger, handed), tuple(lacking))

    def decide(self, seen: Outgoing, handed: Delivered) -> Sequence[Effect[Outgoing]]:
        return [Perform(None, seen)] if seen.endpoints else ()

    async def execute(self, ledger: Ledger, work: Outgoing) -> None:
        """Send a fact that was parked to the endpoints that lack it, at the same time.

        Raises:
            GivenUp: an endpoint still does not take it.
        """
        sending = (self._send_again(ledger, one, work) for one in work.endpoints)
        if failed := [why for why in await asyncio.gather(*sending) if why]:
            raise GivenUp("; ".join(failed))

    async def _send_again(self, ledger: Ledger, endpoint: Endpoint, work: Outgoing) -> str:
        """Send a fact that was parked. Returns why the endpoint did not take it."""
        name, seq = endpoint.name, work.fact.seq
        if why := await _send_patiently(self._sender, endpoint, work.fact, work.void):
            self._file.note(name, partial(_parked, seq=seq, why=why))
            return f"{name}: {why}"
        self._file.note(name, partial(_unparked, seq=seq, now=ledger.now()))
        return ""

    # ------------------------------------------------------------------------ each in its own place

    async def send(self, ledger: Ledger, replica: ReadReplica | None = None) -> None:
        """Send all endpoints what they lack, for ever. One process does it for each file.

        Args:
            replica: where the calls of new facts are read. None: from the broker.
        """
        async with _alone(self._file):
            running: dict[tuple[str, datetime], asyncio.Task[None]] = {}
            try:
                while True:
                    served = self._served()
                    for key in running.keys() - served:
                        running[key].cancel()
                        self._places.pop(key[0], None)
                        self._took.pop(key[0], None)
                    for key in [key for key, task in running.items() if task.done()]:
                        if not (task := running.pop(key)).cancelled():
                            task.result()
                    for name, since in served - running.keys():
                        sending = partial(self._send_all, ledger, replica, name)
                        kept = keep_running(f"webhook {name}", sending)
                        running[name, since] = asyncio.create_task(kept)
                    await asyncio.sleep(_LOOK_S)
                    self._note_places(ledger.now())
            finally:
                await self._drain(running)
                self._note_places(ledger.now())

    async def _drain(self, running: dict[tuple[str, datetime], asyncio.Task[None]]) -> None:
        """Let the requests in progress end, and send no more."""
        self._is_ending = True
        for (name, _), task in running.items():
            if name not in self._places or self._places[name].since is None:
                task.cancel()
        if running:
            await asyncio.wait(running.values(), timeout=self._drain_s)
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)

    def _served(self) -> set[tuple[str, datetime]]:
        """The endpoints that are sent facts, and since when they agree to it."""
        standings = self._file.standings.read()
        return {
            (name, one.verified_at)
            for name, one in self._file.read().endpoints.items()
            if one.verified_at is not None and not standings.of(name).gone
        }

    async def _send_all(self, ledger: Ledger, replica: ReadReplica | None, name: str) -> None:
        """Send an endpoint the facts from its place on, until it is to be sent nothing more."""
        endpoint = self._file.read().endpoints.get(name)
        if endpoint is None or endpoint.verified_at is None:
            return
        at = self._places.get(name, _Place(self._file.standings.read().of(name).next)).seq
        # A place after the end is one in the log before this one.
        is_here = 0 < at <= await ledger.log.last_seq() + 1
        start = at if is_here else endpoint.verified_at
        async with aclosing(ledger.log.follow(endpoint.subjects, start, until_end=False)) as read:
            async for facts in read:
                # What this program cannot read is parked by its worker, for all endpoints.
                readable = [one for one in facts if not isinstance(one.event, Carried)]
                rest = [fact for fact in readable if endpoint.receives(fact)]
                try:
                    while rest and not self._is_ending:
                        self._places[name] = _Place(rest[0].seq, rest[0].recorded_at)
                        as_of = replica and ledger.reading_from(replica.as_of(rest[0].seq))
                        rest = await self._send_some(as_of or ledger, endpoint, rest)
                except _SentNoMore:
                    return
                self._places[name] = _Place(rest[0].seq if rest else facts[-1].seq + 1)
                if self._is_ending:
                    return

    async def _send_some(self, ledger: Ledger, endpoint: Endpoint, facts: list[Fact]) -> list[Fact]:
        """Send an endpoint the first of these facts, and return those that it lacks still.

        While it fails, one request shows whether it is back.
        """
        is_failing = self._file.standings.read().of(endpoint.name).failing_since
        together = facts[: 1 if is_failing else _AT_ONCE]
        failed = together
        if len(together) > 1:
            answers = await asyncio.gather(*(self._post(ledger, endpoint, one) for one in together))
            failed = [one for one, answer in zip(together, answers, strict=True) if answer.why]
            if len(failed) < len(together):
                self._note_success(endpoint.name, ledger.now())
        if failed:
            await self._insist(ledger, endpoint, failed[0])
        return failed[1:] + facts[len(together) :]

    async def _insist(self, ledger: Ledger, endpoint: Endpoint, fact: Fact) -> None:
        """Send a fact until the endpoint takes it, or it is parked.

        Raises:
            _SentNoMore: it is sent nothing more by this process.
        """
        name = endpoint.name
        for tries in range(1, endpoint.tries + 1):
            if self._is_ending:
                raise _SentNoMore
            answer = await self._post(ledger, endpoint, fact)
            if not answer.why:
                self._note_success(name, ledger.now())
                return
            standing = self._note_failure(name, fact, answer, ledger.now())
            if answer.is_gone:
                raise _SentNoMore
            if tries == endpoint.tries:
                await self._park(ledger, name, fact, answer.why, tries)
            await self._pause(name, standing, _pause_s(endpoint, tries, answer))

    async def _post(self, ledger: Ledger, endpoint: Endpoint, fact: Fact) -> HttpAnswer:
        """Send a fact once, signed with the secret of now."""
        known = self._file.read().endpoints.get(endpoint.name)
        if known is None or known.verified_at != endpoint.verified_at:
            return HttpAnswer(HTTPStatus.GONE, "it was removed")
        event = cloud_event(fact, known.origin, await why_void(ledger, fact))
        return await self._sender.post(known, webhook_id(known.name, fact), event)

    def _note_failure(self, name: str, fact: Fact, answer: HttpAnswer, now: datetime) -> Standing:
        before = self._file.standings.read().of(name)
        after = self._file.note(name, partial(_failed, at=fact.seq, answer=answer, now=now))
        if after.gone:
            hint = f"ayes webhooks test {name}"
            _log.error("a webhook is sent nothing more", webhook=name, why=after.gone, next=hint)
        elif not before.failing_since:
            _log.warning("a webhook fell behind", webhook=name, fact=fact.seq, why=answer.why)
        return after

    def _note_success(self, name: str, now: datetime) -> None:
        """Note that it took something: at once after a failure, else with its place."""
        self._took[name] = now
        if self._file.standings.read().of(name).failing_since:
            self._file.note(name, partial(_succeeded, now=now))

    def _note_places(self, now: datetime) -> None:
        """Note how far each endpoint is, in one write for all."""

        def moved(name: str, at: _Place, there: Standing) -> Standing:
            late = at.since is not None and now - at.since > _LATE
            took = self._took.get(name, there.last_success)
            return replace(there, next=at.seq, late=late, last_success=took)

        def noted(there: Standings) -> Standings:
            known = self._file.read().endpoints
            places = ((name, at) for name, at in self._places.items() if name in known)
            found = {name: moved(name, at, there.of(name)) for name, at in places}
            return Standings(there.endpoints | found)

        self._file.standings.change(noted)

    async def _park(self, ledger: Ledger, name: str, fact: Fact, why: str, tries: int) -> None:
        """Park a fact that has failed as often as it is tried."""
        self._file.note(name, partial(_parked, seq=fact.seq, why=why))
        whose = self._file.standings.read().endpoints.items()
        reasons = (f"{one}: {of.parked[fact.seq]}" for one, of in whose if fact.seq in of.parked)
        parked = Parked(
            DURABLE, fact.seq, fact.slot.subject, "; ".join(reasons), tries, ledger.now()
        )
        _log.error("parked", webhook=name, subject=parked.subject, reason=parked.reason)
        await ledger.log.park(parked)

    async def _pause(self, name: str, standing: Standing, pause_s: float) -> None:
        """Wait, unless the endpoint answers again meanwhile, as `ayes webhooks test` notes."""
        clock = asyncio.get_running_loop()
        until = clock.time() + pause_s
        while (left_s := until - clock.time()) > 0 and not self._is_ending:
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
        async with aclosing(ledger.replay(at)) as facts:
            async for fact in facts:
                if fact.seq > last:
                    return
                at = fact.seq + 1
                # The delivery of a fact that this program cannot read is parked, for all endpoints.
                if isinstance(fact.event, Carried) or not is_wanted(fact):
                    continue
                why = await _send_patiently(sender, endpoint, fact, await why_void(ledger, fact))
                yield Replayed(fact, why)
                if why:
                    return
        if at <= last:
            await asyncio.sleep(_LOOK_S)  # a replica answered that is behind


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


async def why_void(ledger: Ledger, fact: Fact) -> str:
    """Why a fact of a call does not count; empty if it does."""
    ref = fact.slot.call_ref
    if ref is None or not may_be_void(fact):
        return ""
    call = await ledger.call(ref, must_include=fact.slot)
    return next((one.why for one in voids(call) if one.fact.seq == fact.seq), "")


# ---------------------------------------------------------------------- what becomes of a standing


def _failed(there: Standing, *, at: int, answer: HttpAnswer, now: datetime) -> Standing:
    """It has not taken the fact `at`, and lacks those that follow."""
    if answer.is_gone:
        why = f"{answer.why} at {now:%Y-%m-%d %H:%M:%S} UTC; it lacks facts from {at} on"
        return Standing(last_success=there.last_success, gone=why, parked=there.parked)
    since = there.failing_since or now
    return replace(there, next=at, why=answer.why, failing_since=since)


def _succeeded(there: Standing, *, now: datetime) -> Standing:
    return replace(there, why="", failing_since=None, last_success=now)


def _parked(there: Standing, *, seq: int, why: str) -> Standing:
    kept = [*there.parked.items()][-_MAX_PARKED + 1 :]
    return replace(there, parked=dict(kept) | {seq: why})


def _unparked(there: Standing, *, seq: int, now: datetime) -> Standing:
    parked = {one: why for one, why in there.parked.items() if one != seq}
    return replace(_succeeded(there, now=now), parked=parked)


@asynccontextmanager
async def _alone(file: EndpointFile) -> AsyncGenerator[None]:
    """Wait until no other process sends from this file; then be that one."""
    while not file.path.exists():  # noqa: ASYNC110 - a command in another process creates it
        await asyncio.sleep(_LOOK_S)
    lock = open_own(file.sending, os.O_RDWR | os.O_CREAT)
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
