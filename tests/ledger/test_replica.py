"""What was heard of the log, beside the log itself: on the twin in memory and on the broker."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Never

import pytest
from long import sampled
from until import until

from ayes.consumers.effects import Append, Effect, Perform, Reload
from ayes.consumers.worker import Worker
from ayes.ledger import replica as mirror_module
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Delivered, EventLog, RawMessage
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.replica import ReadReplica
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import (
    ORGANISATION,
    CallRef,
    GrantRef,
    Slot,
    StopRef,
    ThreadRef,
    grants,
    policies,
    policy_slot,
    stops,
)

THREADS = [ThreadRef("shop", "t1"), ThreadRef("shop", "t2"), ThreadRef("bank", "t1")]
CALLS = [thread.call(name) for thread in THREADS for name in ("c1", "c2", "claim")]


@asynccontextmanager
async def heard(port: EventLog, **limits: int) -> AsyncIterator[ReadReplica]:
    """A mirror that runs and has heard all that there is."""
    mirror = ReadReplica(port, **limits)
    running = asyncio.create_task(mirror.run())
    try:
        last = await port.last_seq()
        if last:
            await hears(mirror, last)
        yield mirror
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def hears(mirror: ReadReplica, seq: int) -> None:
    await until(lambda: mirror.has(seq))


def somewhere(dice: random.Random) -> tuple[Slot, e.Event]:
    """Any fact in any place."""
    thread, call = dice.choice(THREADS), dice.choice(CALLS)
    number = dice.randint(1, 3)
    grant = GrantRef(thread.workspace, "ana", f"g{number}")
    return dice.choice(
        [
            (thread.opened, e.ThreadOpened(model="m", requester="rita")),
            (thread.said(f"m{dice.randint(1, 30)}"), e.Said(role="user", text="hello")),
            (call.requested, e.ToolRequested(tool="t", arguments="{}", digest="d")),
            (call.gated, e.ApprovalRequested(digest="d", rule="r", policy_version=1)),
            (call.vote(dice.choice("abc")), e.Voted(verdict="deny", digest="d")),
            (call.decided, e.Withdrawn()),
            (call.claim(number), e.ToolStarted(digest="d", idempotency_key="k")),
            (call.finished, e.ToolReturned(output="ok")),
            (policy_slot(thread.workspace, number), e.PolicyApplied(text=f"# {number}", digest="")),
            (policy_slot(ORGANISATION, number), e.PolicyApplied(text=f"# {number}", digest="")),
            (grant.given, e.Granted(tool="t", expires_in_s=60.0, uses=3)),
            (grant.used(number), e.GrantUsed(call=str(call))),
        ]
    )


#: What is asked for in the code, and what might be.
QUESTIONS: list[tuple[str, ...]] = [
    *[(call.subjects,) for call in CALLS],
    *[(thread.subjects,) for thread in THREADS],
    *[(f"ledger.shop.t1.call.*.{place}",) for place in ("requested", "decided", "gated")],
    ("ledger.shop.t1.call.*.vote.*",),
    ("ledger.shop.t1.call.c1.*",),
    ("ledger.shop.t1.call.>",),
    ("ledger.shop.t1.said.*", CALLS[0].subjects),
    (CALLS[0].decided.subject, CALLS[0].requested.subject, grants("shop")),
    (policies("shop"), policies(ORGANISATION), CALLS[0].subjects),
    ("ledger.shop.*.opened",),
    ("ledger.shop.t9.>",),
    ("ledger.>",),
]


@pytest.mark.parametrize("seed", sampled(range(3), 0))
async def test_what_was_heard_is_what_is_recorded(port: EventLog, ledger: Ledger, seed: int):
    """Whenever it has heard the last fact, each question has the same answer, also for parts that
    are first asked for late.
    """
    dice = random.Random(seed)
    for _ in range(dice.randint(0, 20)):
        await ledger.append(*somewhere(dice))
    async with heard(port) as mirror:
        for _ in range(25):
            for _ in range(dice.randint(1, 6)):
                await ledger.append(*somewhere(dice))
            await hears(mirror, await port.last_seq())
            for question in dice.sample(QUESTIONS, 6):
                assert await mirror.read(*question) == await port.read(*question), question
                assert await mirror.latest(question[0]) == await port.latest(question[0]), question


async def test_nothing_that_stands_before_a_fact_is_missing(port: EventLog, ledger: Ledger):
    """While others write on, whoever has heard a fact is shown every fact before it (I11)."""
    dice = random.Random(7)
    writing = True

    async def write() -> None:
        while writing:
            await ledger.append(*somewhere(dice))
            await asyncio.sleep(0)

    writers = [asyncio.create_task(write()) for _ in range(4)]
    try:
        async with heard(port, most_parts=3) as mirror:
            for _ in range(50):
                slot, event = somewhere(dice)
                await ledger.append(slot, event)
                last = await port.last_seq()
                await hears(mirror, last)
                [question] = random.choice(QUESTIONS[:12])
                shown = {fact.seq for fact in await mirror.read(question)}
                there = {fact.seq for fact in await port.read(question) if fact.seq <= last}
                assert there <= shown
    finally:
        writing = False
        await asyncio.gather(*writers)


async def test_it_has_the_log_up_to_one_fact_and_nothing_behind_it(port: EventLog, ledger: Ledger):
    """A part that is read from the broker may be ahead of what was followed. Shown beside other
    parts, a start would lack the stop that was recorded before it (I11).
    """
    held = HeldBack(port)
    call, stop = THREADS[0].call("c1"), StopRef("shop", "ana", "s1")
    await ledger.append(call.requested, e.ToolRequested(tool="t", arguments="{}", digest="d"))
    async with heard(held) as mirror:  # type: ignore[arg-type]  # the rest is of the port
        assert await mirror.read(*stops("shop")) == ()
        held.flowing.clear()
        await ledger.append(stop.given, e.Stopped(reason="r"))
        await ledger.append(call.claim(1), e.ToolStarted(digest="d", idempotency_key="k"))
        question = (call.subjects, *stops("shop"))
        assert [one.seq for one in await mirror.read(*question)] == [1]
        held.flowing.set()
        await hears(mirror, 3)
        assert [one.seq for one in await mirror.read(*question)] == [1, 2, 3]


class HeldBack:
    """A port whose followers receive nothing while `flowing` is not set."""

    def __init__(self, port: EventLog) -> None:
        self._port = port
        self.flowing = asyncio.Event()
        self.flowing.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def raw(self, start: int, *, until_end: bool) -> AsyncIterator[list[RawMessage]]:
        async with aclosing(self._port.raw(start, until_end=until_end)) as batches:
            async for batch in batches:
                await self.flowing.wait()
                yield batch


class Asked:
    """A port that notes what the broker was asked for."""

    def __init__(self, port: EventLog) -> None:
        self._port = port
        self.reads: list[tuple[str, ...]] = []
        self.behind = False
        self.meanwhile: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        self.reads.append(subjects)
        return await self._port.read(*subjects)

    async def read_few(self, *subjects: str) -> Any:
        self.reads.append(subjects)
        found = await self._port.read_few(*subjects)
        self.meanwhile()
        return [] if self.behind else found


async def test_it_has_the_bytes_that_signed_votes_are_bound_to(port: EventLog, ledger: Ledger):
    """Of requests and questions alone, and without asking the broker."""
    asked: Any = Asked(port)
    call = THREADS[0].call("c1")
    wish = e.ToolRequested(tool="t", arguments="{}", digest="d")
    await ledger.append(call.requested, wish)
    async with heard(asked) as mirror:
        await mirror.read(call.thread_ref.subjects)
        asking = e.ApprovalRequested(digest="d", rule="r", policy_version=1)
        await ledger.append(call.gated, asking)
        await ledger.append(call.decided, e.Denied(ground="policy", rule="r", policy_version=1))
        await hears(mirror, 3)
        requested, gated, decided = await mirror.read(call.thread_ref.subjects)
        assert len(asked.reads) == 1
    raws = [await port.at(one.seq) for one in (requested, gated)]
    assert [requested.raw, gated.raw, decided.raw] == [*(raw.data for raw in raws if raw), b""]
    assert [requested.digest, gated.digest] == [sha256(raw.data).hexdigest() for raw in raws if raw]
    assert not decided.digest


async def test_a_part_is_read_once(port: EventLog, ledger: Ledger):
    """Then it is kept up to date by what comes, and nothing more is asked for."""
    asked: Any = Asked(port)
    await ledger.append(THREADS[0].said("m0"), e.Said(role="user", text="0"))
    async with heard(asked) as mirror:
        for number in range(1, 20):
            await ledger.append(
                THREADS[0].said(f"m{number}"), e.Said(role="user", text=str(number))
            )
            await hears(mirror, number + 1)
            assert len(await mirror.read(THREADS[0].subjects)) == number + 1
        assert len(asked.reads) == 1
        await mirror.read(THREADS[1].subjects)
        assert len(asked.reads) == 2


async def test_what_is_too_much_for_one_answer_is_left_to_the_broker(port, ledger):
    """A thread of more than a thousand facts is not kept, yet answered; others are kept."""
    asked: Any = Asked(port)
    long, short = THREADS[0], THREADS[1]
    for some in itertools.batched(range(1050), 350):
        said = [(long.said(f"m{number}"), e.Said(role="user", text=str(number))) for number in some]
        await asyncio.gather(*(ledger.append(*one) for one in said))
    await ledger.append(short.said("m"), e.Said(role="user", text="short"))
    async with heard(asked) as mirror:
        assert len(await mirror.read(long.subjects)) == 1050
        assert len(await mirror.read(long.subjects, short.subjects)) == 1051
        assert asked.reads[1:] == [
            (long.subjects,),
            asked.reads[2],
            (long.subjects, short.subjects),
        ]
        assert mirror._bytes < 1000
        assert len(await mirror.read(short.subjects)) == 1
        assert len(asked.reads) == 4


async def test_the_parts_asked_for_last_are_kept(port: EventLog, ledger: Ledger):
    """So many bytes, and so many parts; who was let go of is read again."""
    asked: Any = Asked(port)
    for thread in THREADS:
        await ledger.append(thread.said("m"), e.Said(role="user", text="x" * 4000))
    async with heard(asked, most_bytes=10_000) as mirror:
        for thread in (THREADS[0], THREADS[1], THREADS[0], THREADS[2], THREADS[0]):
            assert len(await mirror.read(thread.subjects)) == 1
        assert len(asked.reads) == 3
        await mirror.read(THREADS[1].subjects)
        assert len(asked.reads) == 4
        assert 0 < mirror._bytes <= 10_000
    asked.reads.clear()
    async with heard(asked, most_parts=2) as mirror:
        for thread in (THREADS[0], THREADS[1], THREADS[2], THREADS[0]):
            assert len(await mirror.read(thread.subjects)) == 1
        assert len(asked.reads) == 4


async def test_a_replica_that_is_behind_fills_nothing(port: EventLog, ledger: Ledger):
    """What it lacks may have been recorded and heard of: the broker is asked until it has that."""
    asked: Any = Asked(port)
    await ledger.append(THREADS[0].said("m"), e.Said(role="user", text="x"))
    asked.behind = True
    async with heard(asked) as mirror:
        assert len(await mirror.read(THREADS[0].subjects)) == 1
        assert len(asked.reads) == 2
        asked.behind = False
        assert len(await mirror.read(THREADS[0].subjects)) == 1
        assert len(await mirror.read(THREADS[0].subjects)) == 1
        assert len(asked.reads) == 3


async def test_what_is_let_go_of_while_it_is_read_is_not_kept(port: EventLog, ledger: Ledger):
    """It heard nothing any more, so it would lack what came in between."""
    asked: Any = Asked(port)
    for thread in THREADS:
        await ledger.append(thread.said("m"), e.Said(role="user", text="x"))
    async with heard(asked, most_parts=1) as mirror:
        asked.meanwhile = lambda: mirror._drop(next(iter(mirror._parts)))
        assert len(await mirror.read(THREADS[0].subjects)) == 1
        assert not mirror._parts
        assert mirror._bytes == 0


async def test_it_has_heard_nothing_before_it_runs_and_after(port: EventLog, ledger: Ledger):
    """Then the broker is asked, and nobody waits for long."""
    await ledger.append(THREADS[0].said("m"), e.Said(role="user", text="x"))
    mirror = ReadReplica(port)
    assert not await mirror.has(1)
    assert len(await mirror.read(THREADS[0].subjects)) == 1
    async with heard(port) as mirror:
        assert await mirror.has(1)
        assert not await mirror.has(2)
    assert not await mirror.has(1)
    await ledger.append(THREADS[0].said("n"), e.Said(role="user", text="y"))
    assert len(await mirror.read(THREADS[0].subjects)) == 2


async def test_nobody_waits_while_it_catches_up(port, ledger, monkeypatch):
    """One waits in vain; the next ones ask the broker at once, until nothing is missing."""
    async with heard(port) as mirror:
        await ledger.append(THREADS[0].said("m"), e.Said(role="user", text="x"))
        await hears(mirror, 1)
        monkeypatch.setattr(mirror_module, "_BEHIND_S", 0.01)
        assert not await mirror.has(2)
        monkeypatch.setattr(mirror_module, "_BEHIND_S", 20.0)
        assert not await mirror.has(2)
        assert not await mirror.has(3)
        await ledger.append(THREADS[0].said("n"), e.Said(role="user", text="y"))
        await hears(mirror, 2)
        waiting = asyncio.create_task(mirror.has(3))
        await asyncio.sleep(0)
        await ledger.append(THREADS[0].said("o"), e.Said(role="user", text="z"))
        assert await waiting


async def test_who_waits_is_told_when_it_comes(port, ledger, monkeypatch):
    """In whatever order they ask; and who waits for what does not come is told so."""
    monkeypatch.setattr(mirror_module, "_BEHIND_S", 2.0)
    async with heard(port) as mirror:
        await ledger.append(THREADS[0].said("m"), e.Said(role="user", text="x"))
        await hears(mirror, 1)
        waiting = [asyncio.create_task(mirror.has(seq)) for seq in (3, 2, 4)]
        await asyncio.sleep(0)
        for text in "yz":
            await ledger.append(THREADS[0].said(text), e.Said(role="user", text=text))
        assert await asyncio.gather(*waiting) == [True, True, False]


async def test_it_goes_on_where_it_was_when_the_broker_comes_back(tmp_path: Path):
    """Nothing that was recorded meanwhile is missing (B53)."""
    async with EmbeddedServer(tmp_path / "store") as server:
        await declare_streams(tmp_path / "store")
        async with Ledger.connect(tmp_path / "store", role="admin") as ledger:
            assert isinstance(ledger.log, JetStream)
            await ledger.append(THREADS[0].said("m1"), e.Said(role="user", text="x"))
            async with heard(ledger.log) as mirror:
                assert len(await mirror.read(THREADS[0].subjects)) == 1
                await server.__aexit__(None, None, None)
                assert await mirror.has(1)
                await server.__aenter__()
                await until(lambda: ledger.log.connection.client.is_connected)
                await ledger.append(THREADS[0].said("m2"), e.Said(role="user", text="y"))
                await hears(mirror, 2)
                assert len(await mirror.read(THREADS[0].subjects)) == 2


# ---------------------------------------------------------------------------------- the loop and it


class Looking:
    """Notes where it looked: at what was heard, or at the broker."""

    durables = ("gate", "gate-timers")

    def __init__(self, ledger: Ledger, *, replaces: bool, again: bool) -> None:
        self.replaces = replaces
        self.looks: list[str] = []
        self._ledger, self._again = ledger, again

    async def load(self, ledger: Ledger, handed: Delivered) -> CallRef:
        self.looks.append("broker" if ledger.reading is self._ledger.log else "heard")
        if len(self.looks) == 1 and not self._again:
            raise LookupError("the first time")
        assert isinstance(handed, Fact)
        ref = handed.slot.call_ref
        assert ref
        return ref

    def decide(self, seen: CallRef, handed: Delivered) -> Sequence[Effect[Never]]:
        return [Reload()] if self._again and len(self.looks) == 1 else []

    async def execute(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError


@pytest.mark.parametrize(
    ("replaces", "again", "looks"),
    [
        (False, True, ["heard", "broker"]),  # looks again
        (False, False, ["heard", "broker"]),  # is handed it again
        (True, True, ["broker", "broker"]),
    ],
)
async def test_the_first_look_is_at_what_was_heard(port, ledger, replaces, again, looks):
    """Who looks, is handed something or overwrites again must know what is there now."""
    async with heard(port) as mirror:
        await ledger.append(
            THREADS[0].opened, e.ThreadOpened(model="m", requester="rita")
        )  # so that it has heard something
        await hears(mirror, 1)
        reaction = Looking(ledger, replaces=replaces, again=again)
        worker = Worker(ledger, reaction, replica=mirror)
        running = asyncio.create_task(worker.run())
        await ledger.append(
            CALLS[0].requested, e.ToolRequested(tool="t", arguments="{}", digest="d")
        )
        await until(lambda: len(reaction.looks) >= 2)
        worker.stop()
        await running
        assert reaction.looks == looks


class Doing:
    """Claims a call and does its work, for which it reads the conversation."""

    durables = ("gate",)
    replaces = False

    def __init__(self) -> None:
        self.shown: tuple[Fact, ...] = ()

    async def load(self, ledger: Ledger, handed: Delivered) -> CallRef:
        assert isinstance(handed, Fact)
        ref = handed.slot.call_ref
        assert ref
        return ref

    def decide(self, seen: CallRef, handed: Delivered) -> Sequence[Effect[CallRef]]:
        claim = Append(seen.claim(1), e.ToolStarted(digest="d", idempotency_key="k"))
        return [Perform(claim, seen)]

    async def execute(self, ledger: Ledger, work: CallRef) -> Append:
        self.shown = await ledger.read(work.thread_ref, must_include=work.claim(1))
        return Append(work.finished, e.ToolReturned(output="ok"))


async def test_work_is_done_with_what_was_heard_up_to_its_claim(port: EventLog, ledger: Ledger):
    """A model is sent all that was said before the claim of its turn, without the broker."""
    asked: Any = Asked(port)
    thread, call = THREADS[0], THREADS[0].call("c1")
    for number in range(3):
        await ledger.append(thread.said(f"m{number}"), e.Said(role="user", text="x"))
    async with heard(asked) as mirror:
        reaction = Doing()
        worker = Worker(Ledger(asked, ledger.author), reaction, replica=mirror)
        running = asyncio.create_task(worker.run())
        await ledger.append(thread.said("m3"), e.Said(role="user", text="y"))
        await ledger.append(call.requested, e.ToolRequested(tool="t", arguments="{}", digest="d"))
        await until(lambda: port.read(call.finished.subject))
        worker.stop()
        await running
    said = [thread.said(f"m{number}") for number in range(4)]
    assert [fact.slot for fact in reaction.shown] == [*said, call.requested, call.claim(1)]
    # Each once, when it was first asked for.
    assert [subjects[0] for subjects in asked.reads] == [thread.subjects, *stops("shop")]


async def test_a_mirror_that_falls_behind_leaves_it_to_the_broker(port, ledger, monkeypatch):
    """What was not heard in time is read: as of any fact the answer holds that fact."""
    monkeypatch.setattr(mirror_module, "_BEHIND_S", 0.05)
    asked: Any = Asked(port)
    await ledger.append(THREADS[0].said("m0"), e.Said(role="user", text="x"))
    mirror = ReadReplica(asked)  # which nobody lets run
    assert len(await mirror.as_of(1).read(THREADS[0].subjects)) == 1
    assert await mirror.as_of(1).latest(THREADS[0].said("m0").subject)
    assert asked.reads == [(THREADS[0].subjects,)]
