"""Who reads a log from one number to the next finds what left its stream (docs/decisions/0091)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from brokers import running
from cluster import SIZES, sized
from packing import in_stream, let_remove, pack, removed
from stories import CALL, REF, WISH, life
from until import until

from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import EventLog, RawMessage, Recorded, identity_of
from ayes.ledger.nats.credentials import RegisteredLogin
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.replica import ReadReplica
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.actions import logins
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.errors import BrokerAway, LogDamaged
from ayes.schemas.slots import StopRef, ThreadRef, matches

pytestmark = pytest.mark.log("memory", "jetstream", "stream")

OTHER = ThreadRef(REF.workspace, "other")
ELSEWHERE = ThreadRef("elsewhere", REF.thread)
THREADS = (REF, OTHER, ELSEWHERE)
AGAIN = e.Said(role="user", text="again")
A_DAY = timedelta(days=1)
STOP = StopRef("third", "ana", "s1")

PATTERNS = (
    (),
    ("ledger.>",),
    (f"ledger.{REF.workspace}.>",),
    (REF.subjects,),
    (CALL.subjects,),
    ("ledger.*.*.call.*.decided",),
    ("ledger.*.*.said.*", f"ledger.{REF.workspace}.other.>"),
    ("ledger.third._stop.>",),
    ("ledger.*.*.opened",),
)


async def told(ledger: Ledger) -> None:
    """Three threads beside each other, one with an open call; the first fact is a message."""
    each = [
        [(REF.said("m1"), AGAIN), *life(CALL, WISH, "returned"), (REF.opened, OPENED)],
        [(OTHER.opened, OPENED), *life(OTHER.call("c1"), WISH, "denied")],
        [*life(ELSEWHERE.call("c1"), WISH, "approved"), (ELSEWHERE.said("m1"), AGAIN)],
        [(STOP.given, e.Stopped(reason="why")), (STOP.resumed_by("ben"), e.Resumed())],
    ]
    while any(each):
        for one in filter(None, each):
            slot, event = one.pop(0)
            await ledger.append(slot, event)


OPENED = e.ThreadOpened(requester="rita")


@pytest.fixture
async def packable(port: EventLog, ledger: Ledger) -> Ledger:
    await let_remove(port)
    await told(ledger)
    return ledger


async def whole(pages: AsyncGenerator[list[RawMessage]]) -> list[RawMessage]:
    async with aclosing(pages) as each:
        return [one async for page in each for one in page]


async def reading(log: EventLog, since: Sequence[int | datetime]) -> dict[str, list[RawMessage]]:
    """What each way to read the log to its end says, but for packs."""
    found = {}
    for start in since:
        for subjects in PATTERNS:
            where = f"{subjects} from {start}"
            batches = log.follow(subjects, start, until_end=True)
            async with aclosing(batches) as each:
                facts = [fact async for batch in each for fact in batch]
            found[f"follow {where}"] = [
                RawMessage(one.seq, one.recorded_at, one.slot.subject, one.raw) for one in facts
            ]
            if isinstance(start, int):
                found[f"raw {where}"] = await whole(log.raw(start, subjects, until_end=True))
                if len(subjects) == 1:
                    found[f"scan {where}"] = await whole(log.scan(start, *subjects))
        if isinstance(log, JetStream) and isinstance(start, int):
            found[f"leader from {start}"] = await whole(log.scan_leader(start))
    return {
        where: [one for one in each if not packs.number_of(one.subject)]
        for where, each in found.items()
    }


async def test_a_log_is_read_from_one_number_to_the_next_as_before(packable: Ledger):
    """By everyone who reads all of it, or some subjects; before packs, behind them, and without
    what they have; to the nanosecond.
    """
    log = packable.log
    last = await log.last_seq()
    middle = await log.at(last // 2)
    assert middle is not None
    since: list[int | datetime] = [1, 2, last // 2, last, last + 1, middle.recorded_at]
    before, identity = await reading(log, since), await log.identity()
    assert identity == identity_of((await in_stream(log))[0])
    for thread in THREADS:
        await pack(packable, thread)
    assert await reading(log, since) == before
    await removed(packable, *THREADS)
    assert await reading(log, since) == before
    assert await log.identity() == identity
    assert len(await in_stream(log)) < last
    seqs = [one.seq for one in await whole(log.raw(1, until_end=True))]
    assert seqs == [*range(1, await log.last_seq() + 1)]


@pytest.mark.parametrize("subjects", PATTERNS, ids=str)
async def test_who_follows_gets_what_left_before_it_was_delivered(packable: Ledger, subjects):
    """Each fact once and in order, also if nothing of it is in the stream, and of threads that are
    packed and removed while it is read.
    """
    log = packable.log
    before = await whole(log.raw(1, subjects, until_end=True))
    await removed(packable, *THREADS)
    found, has_more = list[RawMessage](), asyncio.Event()

    def is_asked_pack(one: RawMessage) -> bool:
        is_asked = not subjects or any(matches(pattern, one.subject) for pattern in subjects)
        return is_asked and bool(packs.number_of(one.subject))

    async def follow() -> None:
        async with aclosing(log.raw(1, subjects, until_end=False)) as batches:
            async for batch in batches:
                found.extend(one for one in batch if not is_asked_pack(one))
                if before and found and not has_more.is_set():  # it stands still while they leave
                    await told_more()

    async def told_more() -> None:
        for slot, event in (
            *life(OTHER.call("c2"), WISH, "denied"),
            (REF.said("m2"), AGAIN),
            (ELSEWHERE.said("m2"), AGAIN),
        ):
            await packable.append(slot, event)
        await removed(packable, *THREADS)
        more = (STOP.ended, e.StopEnded()), (REF.said("m3"), AGAIN), (OTHER.said("m3"), AGAIN)
        for slot, event in (*more, *life(OTHER.call("c3"), WISH, "denied")):
            await packable.append(slot, event)
        has_more.set()

    following = asyncio.create_task(follow())
    try:
        await until(lambda: len(found) >= len(before) or following.done())
        if not before:
            await told_more()
        await until(lambda: has_more.is_set() or following.done())
        last = await log.last_seq()
        expected = [
            one
            for one in await whole(log.raw(1, subjects, until_end=True))
            if not packs.number_of(one.subject) and one.seq <= last
        ]
        await until(lambda: len(found) >= len(expected) or following.done())
        assert found == expected
        # It goes on with what is recorded now, and with what left the stream before.
        for slot, event in ((STOP.resumed_by("eva"), e.Resumed()), (REF.said("m4"), AGAIN),
                            (OTHER.said("m4"), AGAIN), *life(OTHER.call("c4"), WISH, "denied"),
                            (ELSEWHERE.opened, OPENED)):  # fmt: skip
            await packable.append(slot, event)
        await removed(packable, *THREADS)
        expected = [
            one
            for one in await whole(log.raw(1, subjects, until_end=True))
            if not is_asked_pack(one)
        ]
        await until(lambda: len(found) >= len(expected) or following.done())
        assert found == expected
        assert not following.done()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_replica_answers_as_the_log_does(packable: Ledger):
    """Of threads that were packed before it was asked, and meanwhile. A pack is no fact of its
    thread, and the first fact in a slot counts.
    """
    log = packable.log
    replica = ReadReplica(log)
    running = asyncio.create_task(replica.run())
    try:
        await until(lambda: replica._last is not None)
        before = {ref: await log.read(ref.subjects) for ref in (REF, CALL, OTHER, ELSEWHERE)}
        assert [await replica.read(ref.subjects) for ref in (REF, CALL)] == [
            before[REF],
            before[CALL],
        ]
        await removed(packable, *THREADS)
        await packable.append(STOP.ended, e.StopEnded())
        assert await replica.has(await log.last_seq())
        for ref, facts in before.items():
            assert await replica.read(ref.subjects) == facts
            newest = await replica.latest(ref.subjects)
            assert newest == facts[-1]
        again = packable.with_envelope(e.ToolStarted(digest="d", idempotency_key="k"))
        await log.append(CALL.claim(1), encode(again), again.id, after=0)
        assert await replica.has(await log.last_seq())
        assert await replica.read(CALL.subjects) == before[CALL]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.log("jetstream")
async def test_a_number_that_is_in_no_pack_is_missing(packable: Ledger, monkeypatch):
    """It is not passed over by who looks whether a number is missing."""
    log = packable.log
    await removed(packable, *THREADS)
    found, unpacked = await whole(log.raw(1, until_end=True)), packs.unpacked
    lost = next(one for one in found if one.subject == CALL.decided.subject)
    monkeypatch.setattr(
        "ayes.ledger.packs.unpacked",
        lambda *args: [one for one in unpacked(*args) if one.seq != lost.seq],
    )
    left = [one for one in found if one != lost]
    assert await whole(log.raw(1, until_end=True)) == left
    assert isinstance(log, JetStream)
    assert await whole(log.scan_leader(1)) == left
    replica = ReadReplica(log)
    replica._last = found[0]
    with pytest.raises(LogDamaged, match=f"fact {lost.seq} is not delivered"):
        replica._take(left[1:])


@pytest.mark.log("jetstream")
async def test_the_end_is_found_that_leaves_while_a_leader_is_read(packable: Ledger, monkeypatch):
    """On several replicas each number is read by itself. What was the end when this began is in
    packs behind it by then.
    """
    log = packable.log
    assert isinstance(log, JetStream)
    for thread in (REF, OTHER):
        await packable.append(thread.said("m9"), AGAIN)
    before = await whole(log.raw(1, until_end=True))
    described, read, is_first = log._ledger, log._at, asyncio.Lock()
    has_left = False

    async def of_several() -> dict[str, Any]:
        stream = await described()
        stream["config"]["num_replicas"] = 3
        return stream

    async def after_it_left(seq: int) -> RawMessage | None:
        nonlocal has_left
        async with is_first:
            if not has_left:
                await removed(packable, *THREADS)
            has_left = True
        return await read(seq)

    monkeypatch.setattr(log, "_ledger", of_several)
    monkeypatch.setattr(log, "_at", after_it_left)
    found = await whole(log.scan_leader(1))
    assert found[: len(before)] == before
    assert [one.seq for one in found] == [*range(1, await log.last_seq() + 1)]
    assert before[-1] not in await in_stream(log)


@pytest.mark.log("jetstream")
async def test_who_reads_from_a_time_on_reads_no_packs_of_before(packable: Ledger, monkeypatch):
    """A pack has facts that were recorded before it."""
    log = packable.log
    assert isinstance(log, JetStream)
    await removed(packable, *THREADS)
    for number in range(2):
        await packable.append(REF.said(f"later-{number}"), AGAIN)
        end = await log.at(await log.last_seq())
        await removed(packable, REF)
    assert end is not None
    every = await log.read(REF.packs)
    last = every[-1]
    for since in (*(one.recorded_at for one in (*every, end)), last.recorded_at + A_DAY):
        first = await log.first_since(since, REF.packs)
        assert [one for one in every if one.seq >= first] == [
            one for one in every if one.recorded_at >= since
        ]
    unpacked, read = packs.unpacked, list[int]()

    def noted(raw: RawMessage, is_wanted: Callable[[str], bool]) -> list[RawMessage]:
        read.append(raw.seq)
        return unpacked(raw, is_wanted)

    monkeypatch.setattr(packs, "unpacked", noted)
    async with aclosing(log.follow((REF.subjects,), end.recorded_at, until_end=True)) as batches:
        found = [one.seq async for batch in batches for one in batch]
    assert found == [end.seq, last.seq]
    assert {*read} == {last.seq}


@pytest.mark.log("jetstream")
async def test_a_log_whose_facts_stay_is_asked_for_no_packs(ledger: Ledger, monkeypatch):
    """Whoever follows it asks for nothing more than its facts."""
    await told(ledger)
    asked = list[int]()

    async def up_to(_self: object, last: int) -> list[RawMessage]:
        asked.append(last)
        return []

    monkeypatch.setattr("ayes.ledger.nats.removed.Removed.up_to", up_to)
    last = await ledger.log.last_seq()
    for found in (await reading(ledger.log, [1])).values():
        assert len(found) <= last
    assert asked == []


@pytest.mark.log("jetstream")
async def test_who_follows_or_writes_waits_for_a_broker_that_is_away(ledger: Ledger, monkeypatch):
    """Also with the question whether facts may leave the stream."""
    log = ledger.log
    assert isinstance(log, JetStream)
    await ledger.append(REF.said("m1"), AGAIN)
    asked, found = log._ledger, list[str]()

    async def away() -> dict[str, Any]:
        found.append("asked")
        if len(found) % 3:
            raise BrokerAway("nobody is there")
        return await asked()

    monkeypatch.setattr(log, "_ledger", away)
    log._is_packed = None
    async with aclosing(log.raw(1, (REF.subjects,), until_end=False)) as batches:
        assert [one.subject for one in await anext(batches)] == [REF.said("m1").subject]
    assert len(found) == 3
    log._is_packed = None
    assert isinstance(await ledger.append(REF.said("m2"), AGAIN), Recorded)
    assert len(found) == 6
    log._is_packed = None
    with pytest.raises(BrokerAway):
        await log.read(REF.subjects)


async def followed(log: EventLog, subjects: tuple[str, ...], size: int) -> list[RawMessage]:
    """The first messages that a follower of the log receives; `size` of them or some more."""
    found = list[RawMessage]()
    async with aclosing(log.raw(1, subjects, until_end=False)) as batches:
        while len(found) < size:
            found += await anext(batches)
    return found


@pytest.mark.log("jetstream")
@pytest.mark.parametrize("subjects", [(), (f"ledger.{REF.workspace}.>",)], ids=str)
@pytest.mark.parametrize("question", ["last_seq", "in_stream", "_at"])
async def test_who_follows_waits_for_a_broker_that_is_away_when_packs_are_read(
    packable: Ledger, monkeypatch, question: str, subjects: tuple[str, ...]
):
    """Whatever it asks for: the end of the log, packs, or what is in one of them."""
    log = packable.log
    assert isinstance(log, JetStream)
    await removed(packable, *THREADS)
    expected = await whole(log.raw(1, subjects, until_end=True))
    answer, asked = getattr(log, question), list[str]()

    def away(*where: Any, **which: Any) -> Any:
        asked.append(question)
        if len(asked) < 3:
            raise BrokerAway("nobody is there")
        return answer(*where, **which)

    monkeypatch.setattr(log, question, away)
    monkeypatch.setattr("ayes.ledger.nats.removed._KEPT_BYTES", 0)
    log._known_packs = log._no_packs()
    assert await followed(log, subjects, len(expected)) == expected
    assert len(asked) >= 3


@pytest.mark.log("jetstream")
async def test_who_follows_begins_again_behind_what_it_has(packable: Ledger, monkeypatch):
    """When the broker is away while it reads what is there, before it follows what is new."""
    log, subjects = packable.log, (f"ledger.{REF.workspace}.>",)
    assert isinstance(log, JetStream)
    await removed(packable, *THREADS)
    expected = await whole(log.raw(1, subjects, until_end=True))
    messages, begun = log.messages, list[int]()

    async def cut(
        stream: str, some: tuple[str, ...], start: int, *, until_end: bool
    ) -> AsyncGenerator[list[RawMessage]]:
        begun.append(start)
        async with aclosing(messages(stream, some, start, until_end=until_end)) as pages:
            async for page in pages:
                if len(begun) < 4:
                    yield page[:1]
                    raise BrokerAway("nobody is there")
                yield page

    monkeypatch.setattr(log, "messages", cut)
    assert await followed(log, subjects, len(expected)) == expected
    assert begun[:3] == sorted({*begun[:3]})


@pytest.mark.log("jetstream")
async def test_who_reads_until_the_end_is_done_when_the_rest_is_removed(port: EventLog):
    """While it reads: nothing more is delivered, and nothing tells it so but the heartbeats."""
    await let_remove(port)
    assert isinstance(port, JetStream)
    large = b"x" * 400_000
    subjects = [REF.said(f"m{number}").subject for number in range(20)]
    for one in subjects:
        assert (await port.api.publish(one, large)).error is None
    found, sent = list[str](), list[int]()

    async def waits() -> bool:
        """Unless it is read on, the broker sends some megabytes and waits."""
        [name] = (await port.api.call(f"CONSUMER.NAMES.{LEDGER}"))["consumers"]
        described = await port.api.call(f"CONSUMER.INFO.{LEDGER}.{name}")
        sent.append(described["delivered"]["stream_seq"])
        return sent[-1] > 0 and len(sent) > 20 and len({*sent[-20:]}) == 1

    async with (
        asyncio.timeout(60),
        aclosing(port.messages(LEDGER, (REF.subjects,), 1, until_end=True)) as pages,
    ):
        found += [one.subject for one in await anext(pages)]
        await until(waits)
        left = subjects[: sent[-1]]
        assert len(left) < len(subjects)
        for one in subjects[len(left) :]:
            await port.api.call(f"STREAM.PURGE.{LEDGER}", {"filter": one})
        async for page in pages:
            found += [one.subject for one in page]
    assert found == left


async def test_a_login_of_some_workspaces_finds_what_left_of_theirs(tmp_path: Path):
    """By its number; what is of others is nothing to it, in the stream or not."""
    async with (
        running(tmp_path / "store") as server,
        Ledger.connect(server.store.path, role="admin") as admin,
    ):
        now, file = datetime.now(UTC), tmp_path / "login"
        new = RegisteredLogin("service", "", now + timedelta(hours=1), now, (REF.workspace,))
        file.write_bytes(msgspec.json.encode(await logins.add(server.store, "ours", new, "")))
        await let_remove(admin.log)
        await told(admin)
        before = await whole(admin.log.raw(1, until_end=True))
        await removed(admin, *THREADS)
        async with JetStream.connect(url=str(file)) as log:
            for one in before:
                is_ours = one.subject.split(".")[1] == REF.workspace
                assert await log.at(one.seq) == (one if is_ours else None)


@pytest.mark.parametrize("size", SIZES)
async def test_the_operator_and_the_leader_read_it_whole(size, tmp_path: Path):
    """Without a consumer, and from the leader alone."""
    async with (
        sized(size, tmp_path / "store") as store,
        Ledger.connect(store.path, role="admin") as admin,
    ):
        await let_remove(admin.log)
        await told(admin)
        before = await whole(admin.log.raw(1, until_end=True))
        await removed(admin, *THREADS)
        end = await admin.log.last_seq()
        async with Ledger.connect(store.path, role="operator") as operator:
            assert isinstance(operator.log, JetStream)
            for found in (
                await whole(operator.log.raw(1, until_end=True)),
                await whole(operator.log.scan_leader(1)),
                await whole(admin.log.scan_leader(1)),
            ):
                assert found[: len(before)] == before
                assert [one.seq for one in found] == [*range(1, end + 1)]
