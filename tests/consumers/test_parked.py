"""What consumers gave up on: tried again by the operator or by a newer program, or dropped
(decision 0017).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Never

import pytest
import structlog
from logins import signed_on
from long import IN_MEMORY_FIRST
from msgspec import structs
from program import in_process
from running import working
from until import until

from ayes.consumers import newer
from ayes.consumers import worker as worker_module
from ayes.consumers.effects import Append, Effect
from ayes.consumers.worker import Worker
from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import NEWER, Delivered, EventLog, Mark, Parked, Recorded, TimerFired
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import described, uses
from ayes.ledger.subscriptions import DURABLES, MAX_PARKED, PARKED, PARKED_BYTES
from ayes.ops.broker.accounts import ROLES
from ayes.schemas import codec
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import Fact
from ayes.schemas.errors import LedgerFull
from ayes.schemas.events import VERSION
from ayes.schemas.slots import CallRef, ThreadRef

THREAD = ThreadRef("shop", "t1")
ONE, TWO = THREAD.call("one"), THREAD.call("two")
WISH = e.ToolRequested(tool="refund", arguments="{}", digest="d")


class Mending:
    """A gate that can do nothing until somebody mends it."""

    durables = ("gate", "gate-timers")
    replaces = False

    def __init__(self, *, is_mended: bool = False) -> None:
        self.is_mended = is_mended
        self.handed: list[Delivered] = []

    async def load(self, ledger: Ledger, handed: Delivered) -> CallRef:
        self.handed.append(handed)
        ref = handed.call if isinstance(handed, TimerFired) else handed.slot.call_ref
        assert ref
        return ref

    def decide(self, seen: CallRef, handed: Delivered) -> Sequence[Effect[Never]]:
        if not self.is_mended:
            raise LookupError("out of order")
        return [Append(seen.decided, e.Withdrawn())]

    async def execute(self, ledger: Ledger, work: Never) -> Never:
        raise AssertionError


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker logs while another thread sets logging up anew: its lines go nowhere."""
    nowhere = structlog.wrap_logger(
        structlog.ReturnLogger(), processors=[], wrapper_class=structlog.BoundLogger
    )
    monkeypatch.setattr(worker_module, "_log", nowhere)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RETRIES", Backoff(0))


async def until_parked(port: EventLog, *states: str, consumer: str = "*") -> list[Parked]:
    """Wait until these are the states of all that is parked."""

    async def are_so() -> bool:
        found[:] = await port.parked(consumer, whole=True)
        return sorted(one.state for one in found) == sorted(states)

    found: list[Parked] = []
    await until(are_so)
    return found


async def is_decided(port: EventLog, call: CallRef) -> bool:
    return await port.latest(call.decided.subject) is not None


async def parked_once_more(port: EventLog, before: Parked) -> bool:
    return any(one.tries > before.tries for one in await port.parked())


async def test_what_is_parked_is_tried_again(port: EventLog, ledger: Ledger, at_once: None):
    """Its consumer is handed the fact as it was; what fails again is parked again (D12)."""
    await ledger.append(ONE.requested, WISH)
    gate = Mending()
    async with working(Worker(ledger, gate)):
        [parked] = await until_parked(port, "parked")
        await port.mark(Mark("gate", parked.number, "retry", clock.now()))
        await until(lambda: parked_once_more(port, parked))
        [again] = await until_parked(port, "parked")
        assert (again.seq, again.reason, again.tries) == (
            1,
            parked.reason,
            2 * worker_module.MAX_TRIES,
        )
        gate.is_mended = True
        await port.mark(
            Mark("gate", parked.number, "retry", clock.now())
        )  # of what it was before: not heeded
        await port.mark(Mark("gate", again.number, "retry", clock.now()))
        [settled] = await until_parked(port, "settled")
    assert settled.seq == 1
    assert {one.seq for one in gate.handed} == {1}
    assert [type(fact.event) for fact in await ledger.read(ONE)] == [e.ToolRequested, e.Withdrawn]
    assert await port.parked() == []


async def test_a_mark_on_what_is_settled_changes_nothing(port, ledger, at_once):
    """A second retry that comes late does not have the delivery handled once more (D12)."""
    await ledger.append(ONE.requested, WISH)
    gate = Mending()
    worker = Worker(ledger, gate)
    async with working(worker):
        [parked] = await until_parked(port, "parked")
        gate.is_mended = True
        await port.mark(Mark("gate", parked.number, "retry", clock.now()))
        [settled] = await until_parked(port, "settled")
        await worker._obey(Mark("gate", settled.number, "retry", clock.now()))
        assert await port.parked(whole=True) == [settled]


async def test_a_note_about_another_consumers_fact_is_not_obeyed(port, ledger, at_once):
    """Whoever forges a parked delivery cannot have a worker handle a fact that is not for it."""
    gate = Mending(is_mended=True)
    other = await ledger.append(ONE.escalated(1), e.Escalated(voters=("lea",)))
    assert isinstance(other, Recorded)
    forged = Parked("gate", other.seq, "forged", "forged", 1, clock.now(), state="again")
    await port.park(forged)
    async with working(Worker(ledger, gate)):
        [parked] = await until_parked(port, "parked")
    assert "is not for consumer gate" in parked.reason
    assert gate.handed == []


async def test_a_retry_waits_for_a_worker(port: EventLog, ledger: Ledger):
    """What is said while no worker runs is heeded by the next one; so it is for a deadline's hint,
    which names its call (D12).
    """
    await port.park(Parked("gate-timers", 4, str(TWO), "out of order", 5, clock.now()))
    [parked] = await port.parked()
    await port.mark(Mark("gate-timers", parked.number, "retry", clock.now()))
    gate = Mending(is_mended=True)
    async with working(Worker(ledger, gate)):
        await until_parked(port, "settled")
    [due] = gate.handed
    assert isinstance(due, TimerFired)
    assert due.call == TWO


async def test_what_a_newer_program_wrote_is_tried_again_by_it(port, ledger, monkeypatch):
    """The older program parks it; the newer one tries it again when it starts, nothing else, and
    not what was dropped (D12, I12).
    """
    raw = codec.encode(ledger.with_envelope(WISH))
    newer = raw.replace(b'"ToolRequested"', b'"ToolWished"')
    await port.append(ONE.requested, newer, "x")
    await port.append(TWO.requested, newer, "y")
    await port.append(THREAD.call("junk").requested, b"\xff", "z")
    gate = Mending(is_mended=True)
    async with working(Worker(ledger, gate)):
        found = await until_parked(port, "parked", "parked", "parked")
    found.sort(key=lambda one: one.seq)
    assert [one.newer for one in found] == [True, True, False]
    await port.mark(Mark("gate", found[1].number, "drop", clock.now()))
    # So an upgrade reads it.
    decode = codec.decode
    monkeypatch.setattr(
        codec, "decode", lambda text: decode(text.replace(b'"ToolWished"', b'"ToolRequested"'))
    )
    async with working(Worker(ledger, gate), Worker(ledger, gate)):
        await until_parked(port, "parked", "parked", "settled")
    assert [one.seq for one in gate.handed] == [1]
    assert [one.seq for one in await port.parked()] == [3]


@pytest.mark.log("jetstream")  # the twin decodes a fact when it is recorded, and not again
async def test_what_was_passed_over_is_tried_again_by_a_newer_program(port, ledger, monkeypatch):
    """Of the facts of newer programs some are parked, and one more entry stands for all later
    ones. An upgrade delivers what it reads of them; what is still newer is left standing.
    """
    monkeypatch.setattr(newer, "MAX_NEWER", 2)
    with monkeypatch.context() as older:
        older.setitem(VERSION, "ToolRequested", 0)
        for number in range(5):
            await wish(port, ledger, number)
        made_up = b'{"type":"MadeUp","v":1,"id":"x"}'
        await port.append(THREAD.call("c5").requested, made_up, "x5")
        gate = Mending(is_mended=True)
        for number in 6, 7:  # and again after a restart
            async with working(Worker(ledger, gate)):
                await wish(port, ledger, number)
                await until(lambda: is_acknowledged(port, "gate"))
                found = await until_parked(port, "parked", "parked", "parked")
            found.sort(key=lambda one: one.seq)
            assert [(one.seq, one.newer, bool(one.known)) for one in found] == [
                (1, True, False),
                (2, True, False),
                (3, True, True),
            ]
        # The same program does not try them again, also if an operator has the entry retried.
        await port.mark(Mark("gate", found[2].number, "retry", clock.now()))
        async with working(Worker(ledger, gate)):
            await until(lambda: is_acknowledged(port, "gate"))
            await until(lambda: is_numbered_anew(port, found[2].number))
        assert gate.handed == []
        found = await port.parked(whole=True)
        assert "later ones that are not listed: a ToolRequested" in found[2].reason
    async with working(Worker(ledger, gate), Worker(ledger, gate)):
        await until_parked(port, *["settled"] * 2, "parked", *["settled"] * 4)
    assert {one.seq for one in gate.handed} == {1, 2, 3, 4, 5, 7, 8}
    [left] = await port.parked()
    assert (left.seq, left.known["ToolRequested"]) == (3, 1)
    assert left.reason.endswith(f"a MadeUp of version 1 {NEWER}")
    # Nothing more is read of what it stands for, so the next start does nothing.
    handed = len(gate.handed)
    async with working(Worker(ledger, gate)):
        await wish(port, ledger, 8)
        await until(lambda: is_acknowledged(port, "gate"))
    assert [one.number for one in await port.parked()] == [left.number]
    assert len(gate.handed) == handed + 1


async def test_what_is_newer_still_is_left_as_it_is(port: EventLog, ledger: Ledger):
    """Else each start of a worker would have it delivered, and park it, once more."""
    subject = ONE.requested.subject
    await port.append(ONE.requested, b'{"type":"MadeUp","v":1,"id":"x"}', "x")
    why = f"a MadeUp of version 1 {NEWER}"
    await port.park(Parked("gate", 1, subject, why, 1, clock.now(), newer=True))
    await Worker(ledger, Mending(is_mended=True))._retry_newer_of("gate")
    assert [one.state for one in await port.parked("gate")] == ["parked"]


@pytest.mark.log("jetstream")
async def test_what_another_worker_has_is_not_begun_again(port, ledger, monkeypatch):
    """A program that reads it ran beside the older one and is at work on it. To react to its claim,
    as if it had died, would put a call in doubt that runs.
    """
    monkeypatch.setattr(newer, "MAX_NEWER", 0)
    with monkeypatch.context() as older:
        older.setitem(VERSION, "ToolRequested", 0)
        await wish(port, ledger, 0)
        wished, other = await wish(port, ledger, 1), await wish(port, ledger, 2)
        async with working(Worker(ledger, Mending())):
            await until(lambda: is_acknowledged(port, "gate"))
    taken = e.ToolStarted(digest="d", idempotency_key="x", cause=wished)
    await ledger.append(THREAD.call("c1").claim(1), taken)
    # That a worker of another kind has reacted says nothing about this one.
    told = e.ToolStarted(digest="d", idempotency_key="x", cause=other, by=e.Author("queue", "q"))
    await ledger.append(THREAD.call("c2").claim(1), told)
    gate = Mending(is_mended=True)
    async with working(Worker(ledger, gate)):
        await until_parked(port, "settled", "settled", "settled")
    assert await is_decided(port, THREAD.call("c0"))
    assert await is_decided(port, THREAD.call("c2"))
    assert not await is_decided(port, THREAD.call("c1"))


@pytest.mark.log("jetstream")
async def test_what_is_passed_over_after_a_drop_is_parked_again(port, ledger, monkeypatch):
    """What an operator dropped stands for nothing that comes later."""
    monkeypatch.setattr(newer, "MAX_NEWER", 1)
    monkeypatch.setitem(VERSION, "ToolRequested", 0)
    gate = Mending(is_mended=True)
    async with working(Worker(ledger, gate)):
        for number in range(3):
            await wish(port, ledger, number)
        found = await until_parked(port, "parked", "parked")
        await until(lambda: is_acknowledged(port, "gate"))
        for one in found:
            await port.mark(Mark("gate", one.number, "drop", clock.now()))
        await wish(port, ledger, 3)
        await until(lambda: is_acknowledged(port, "gate"))
    assert [one.seq for one in await port.parked()] == [4]


async def test_each_consumer_is_looked_at_for_itself(port, ledger, monkeypatch):
    """A look at what one has parked says nothing about what was dropped of another's."""
    monkeypatch.setattr(newer, "MAX_NEWER", 0)
    facts = newer.NewerFacts(ledger, port.park)
    fact = Fact(1, clock.now(), ONE.requested, e.Carried("MadeUp", b"{}"))
    await facts.put_aside("gate", fact, 1)
    [one] = await port.parked("gate")
    await port.mark(Mark("gate", one.number, "drop", clock.now()))
    later = structs.replace(fact, seq=2)
    names = ("queue", "queue", "gate")  # the third one comes before the second one's look
    await asyncio.gather(*(facts.put_aside(name, later, 1) for name in names))
    assert [found.seq for found in await port.parked("gate")] == [2]


async def test_what_is_parked_already_is_not_parked_once_more(port, ledger, monkeypatch):
    """A worker died after it parked a fact and before it acknowledged it: delivered again, to a
    worker of another process, the fact needs no entry that would stand for it once more.
    """
    monkeypatch.setattr(newer, "MAX_NEWER", 2)
    facts = [Fact(seq, clock.now(), ONE.requested, e.Carried("MadeUp", b"{}")) for seq in (1, 2, 3)]
    for tries in 1, 2:
        worker = newer.NewerFacts(ledger, port.park)
        for fact in facts:
            await worker.put_aside("gate", fact, tries)
        assert [(one.seq, bool(one.known)) for one in await port.parked("gate")] == [
            (1, False),
            (2, False),
            (3, True),
        ]


async def test_two_entries_of_one_fact_have_places_of_their_own(port):
    """One that stands for later facts is not replaced by one that stands for itself alone."""
    alone = Parked("gate", 7, ONE.requested.subject, f"a X of version 1 {NEWER}", 1, clock.now())
    await port.park(structs.replace(alone, known=VERSION))
    await port.park(alone)
    assert sorted(bool(one.known) for one in await port.parked()) == [False, True]


async def wish(port: EventLog, ledger: Ledger, number: int) -> str:
    """Records a request, as a program does that writes its version 1; returns its id."""
    event = structs.replace(ledger.with_envelope(WISH), v=1)
    await port.append(THREAD.call(f"c{number}").requested, codec.encode(event), f"x{number}")
    return event.id


async def is_acknowledged(port: EventLog, durable: str) -> bool:
    found = await port.progress(durable)
    return found is not None and not found.waiting and not found.in_hand


async def is_numbered_anew(port: EventLog, number: int) -> bool:
    return all((one.number, one.state) != (number, "parked") for one in await port.parked()) and (
        all(one.state == "parked" for one in await port.parked())
    )


async def test_a_failing_part_does_not_end_a_worker(port, ledger, monkeypatch):
    """An error in taking or renewing is told, the part starts again, and all goes on (C2)."""
    deliveries, failures = type(port).deliveries, ["gate", "gate-timers", "gate"]

    @asynccontextmanager
    async def failing(self: Any, durable: str) -> AsyncIterator[Any]:
        if durable in failures:
            failures.remove(durable)
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        async with deliveries(self, durable) as handed_out:
            yield handed_out

    monkeypatch.setattr(type(port), "deliveries", failing)
    monkeypatch.setattr(worker_module.Worker, "_renew", failing)  # not even to be awaited
    gate = Mending(is_mended=True)
    async with working(Worker(ledger, gate, ack_wait_s=0.3)) as running:
        await ledger.append(ONE.requested, WISH)
        await until(lambda: is_decided(port, ONE))
        assert not [task for task in running if task.done()]
    assert failures == []


async def test_the_operator_and_nobody_else(store, monkeypatch, capsys, at_once):
    """`parked ls`, `show`, `retry` and `drop` with the operator's real login, beside a gate with
    its own; no other role can (D12).
    """
    junk = b'{"type":"ToolRequested","tool":"\xff\x1b[2J"}'
    gate = Mending()
    async with (
        Ledger.connect(store, role="gate") as own,
        Ledger.connect(store, role="service") as service,
    ):
        assert isinstance(service.log, JetStream)
        await service.append(ONE.requested, WISH)
        await service.log.append(TWO.requested, junk, "x")
        with in_process(monkeypatch, capsys) as run:

            async def approvals(*arguments: object) -> Any:
                return await asyncio.to_thread(run, "parked", *arguments, store=store)

            async with working(Worker(own, gate)):
                await until_parked(own.log, "parked", "parked", consumer="gate")
                code, _, _ = listed = await approvals("ls", "--json")
                assert code == 0
                two, one = sorted(listed.lines, key=lambda each: -each["seq"])
                assert (one["consumer"], one["seq"], one["subject"]) == (
                    "gate",
                    1,
                    ONE.requested.subject,
                )
                assert (one["reason"], one["tries"]) == (
                    "LookupError: out of order",
                    worker_module.MAX_TRIES,
                )
                plain = await approvals("ls")
                assert "fact 1" in plain.out
                assert "LookupError: out of order" in plain.out
                shown = await approvals("show", two["number"])
                assert r'{"type":"ToolRequested","tool":"\xff\u001b[2J"}' in shown.out
                assert "\x1b" not in shown.out
                told = (await approvals("show", two["number"], "--json")).one
                assert told["fact"].keys() == {"seq", "recorded_at", "subject", "payload_base64"}
                assert "payload" in (await approvals("show", one["number"], "--json")).one["fact"]
                gate.is_mended = True
                asked = await approvals("retry", one["number"], "--json")
                assert (asked.code, asked.one["standing"]) == (0, "to be tried again")
                await until_parked(own.log, "parked", "settled", consumer="gate")
                gone = await approvals("drop", two["number"], "--reason", "seen by ana")
                assert gone.code == 0
                assert (await approvals("ls")).out == ""
                every = await approvals("ls", "--all")
                assert "dropped (seen by ana)" in every.out
                assert "settled" in every.out
                assert len(await own.read(TWO)) == 1
                for number, why in (
                    (two["number"], "is dropped already"),
                    (99, "nothing is parked as number 99"),
                ):
                    refused = await approvals("retry", number)
                    assert (refused.code, refused.out) == (2, "")
                    assert why in refused.err

    class Running:
        def __init__(self) -> None:
            from ayes.ledger.nats.credentials import Store

            self.store = Store(store)

    for role in set(ROLES) - {"operator"}:
        async with signed_on(Running(), role) as who:
            assert await who.ask("parked.operator.gate.7") == "denied", role
    async with signed_on(Running(), "operator") as who:
        assert await who.ask("parked.gate.gate.7") == "denied"
        assert await who.ask("parked.operator.gate.7") != "denied"


async def test_each_worker_reads_what_it_parked(store: Path):
    """With the account of its role, which the operator's retry rests on."""
    for durable in (one for one in DURABLES.values() if one.name == one.origin):
        async with Ledger.connect(store, role=durable.role) as own:
            entry = Parked(durable.name, 7, "ledger.shop.t1.opened", "reason", 3, clock.now())
            assert await own.log.park(entry)
            [found] = await own.log.parked(durable.name)
            assert await own.log.parked_at(found.number) == found, durable.name


async def test_an_entry_counts_under_its_own_roles_name_only(store: Path, at_once: None):
    """Bytes that are no entry are listed with why and can be dropped; none is handled (C2)."""
    async with Ledger.connect(store, role="admin") as ledger:
        port = ledger.log
        assert isinstance(port, JetStream)
        await ledger.append(ONE.requested, WISH)
        valid = (
            b'{"consumer":"gate","seq":1,"subject":"s","reason":"r","tries":1,'
            b'"parked_at":"2026-01-01T00:00:00Z","state":"again"}'
        )
        subjects = (
            b"parked.model.gate.1",
            b"parked.gate.gate.2",
            b"parked.gate.nobody.1",
            b"parked.\xff.gate.1",
        )
        junk = (b"", b"\xff", b"[]", b"[" * 4_000, b'{"consumer":"gate"}')
        frames = [b"PUB %b %d\r\n%b\r\n" % (subject, len(valid), valid) for subject in subjects]
        frames += [
            b"PUB parked.gate.gate.%d %d\r\n%b\r\n" % (n, len(raw), raw)
            for n, raw in enumerate(junk, 10)
        ]
        frames += [b"PUB parked.operator.gate.%d 2\r\n{}\r\n" % 3]
        await port.connection.client._send_command(b"".join(frames))
        await port.connection.client.flush()
        gate = Mending(is_mended=True)
        async with working(Worker(ledger, gate)):
            await until_parked(port, *["parked"] * len(frames))
            await ledger.append(TWO.requested, WISH)
            await until(lambda: is_decided(port, TWO))
        found = await port.parked()
        assert {one.consumer for one in found} == {""}
        assert all(
            one.reason.startswith("this entry is not a valid parked delivery: ") for one in found
        )
        assert any(one.subject.startswith(r"parked.\xff.gate.") for one in found)
        for one in found:
            await port.mark(Mark(one.consumer, one.number, "drop", clock.now()))
        assert await port.parked() == []
        assert [handed.slot for handed in gate.handed if isinstance(handed, Fact)] == [
            ONE.requested,
            TWO.requested,
        ]


def test_each_consumer_has_one_for_what_it_parks():
    """By its own role, for what that role parks and what the operator says of it."""
    working_ones = [one for one in DURABLES.values() if not one.name.endswith("-parked")]
    assert len(DURABLES) == 2 * len(working_ones)
    for one in working_ones:
        again = DURABLES[one.again.name]
        assert (again.role, again.optional) == (one.role, one.optional)
        assert again.subjects == (
            f"parked.{one.role}.{one.name}.*",
            f"parked.operator.{one.name}.*",
        )
    assert "operator" not in {one.role for one in DURABLES.values()}
    assert "operator" in ROLES


async def _full(port: EventLog, consumer: str) -> list[Parked]:
    """Park deliveries until one is refused."""
    try:
        for seq in range(1_000, 1_000 + MAX_PARKED + 1):
            await port.park(Parked(consumer, seq, "ledger.shop.t1.opened", "r", 1, clock.now()))
    except LedgerFull:
        return await port.parked(consumer)
    raise AssertionError("none was refused")


@IN_MEMORY_FIRST
async def test_a_full_part_takes_no_more_and_loses_none(port: EventLog):
    """A consumer whose part is full parks nothing more. Another one does, what is parked stays, and
    what was dropped or settled makes room (I7: what was given up on is never lost).
    """
    found = await _full(port, "model")
    assert 0.8 * MAX_PARKED < len(found) <= MAX_PARKED
    assert [one.seq for one in found] == list(range(1_000, 1_000 + len(found)))
    assert await port.park(Parked("gate", 7, "ledger.shop.t1.opened", "r", 1, clock.now()))
    # What is parked once more replaces itself, as after a lost acknowledgement.
    assert await port.park(structs.replace(found[5], reason="once more", number=0))
    [again] = [one for one in await port.parked("model") if one.seq == found[5].seq]
    assert again.reason == "once more"
    for one in found[10:20]:
        assert await port.park(structs.replace(one, state="settled"))
    for one in found[20:]:
        await port.mark(Mark("model", one.number, "drop", clock.now()))
    assert await port.park(Parked("model", 9_999, "ledger.shop.t1.opened", "r", 1, clock.now()))
    assert {one.seq for one in await port.parked("model")} >= {*range(1_000, 1_010), 9_999}


@pytest.mark.log("memory")  # which is full to the last place
async def test_what_cannot_be_parked_stays_with_the_broker(port, ledger, at_once):
    """A delivery that has no room among the parked ones is not acknowledged: it is tried again, and
    parked once there is room (I7).
    """
    full = await _full(port, "gate")
    refused = asyncio.Event()
    park = port.park

    async def parking(parked: Parked) -> bool:
        try:
            return await park(parked)
        except LedgerFull:
            refused.set()
            raise

    port.park = parking  # type: ignore[method-assign]
    await ledger.append(ONE.requested, WISH)
    async with working(Worker(ledger, Mending())):
        async with asyncio.timeout(60):
            await refused.wait()
        assert not any(one.subject == ONE.requested.subject for one in await port.parked("gate"))
        for one in full:
            await port.mark(Mark("gate", one.number, "drop", clock.now()))

        async def is_parked() -> bool:
            return [one.subject for one in await port.parked("gate")] == [ONE.requested.subject]

        await until(is_parked)


async def test_one_role_cannot_push_out_what_another_parked(store, monkeypatch, capsys):
    """With a model's own login, more than its part has places, and larger than an entry: what the
    gate parked stays, the gate goes on parking, and the operator reads and clears the list (I7).
    """
    async with (
        Ledger.connect(store, role="gate") as gate,
        Ledger.connect(store, role="operator") as operator,
        Ledger.connect(store, role="model") as model,
    ):
        assert isinstance(operator.log, JetStream)
        assert isinstance(model.log, JetStream)
        first = Parked("gate", 7, "ledger.shop.t1.opened", "odd", 3, clock.now())
        assert await gate.log.park(first)
        client = model.log.connection.client
        valid = (
            b'{"consumer":"model","seq":1,"subject":"s","reason":"%b","tries":1,'
            b'"parked_at":"2026-01-01T00:00:00Z"}' % (b"x" * 3_900)
        )
        for number in range(3):
            await client.publish(f"parked.model.model.large-{number}", b"x" * 1_000_000)
        for number in range(3 * MAX_PARKED):
            publish = client.publish if number % 500 else client.request
            # Now and then its answer is awaited: the stream's queue refuses what is over 1,000.
            await publish(f"parked.model.model.{number}", valid)
        await client.flush(240)
        [used] = [
            one
            for one in uses(await described(operator.log.api))
            if (one.stream, one.what) == (PARKED, "bytes")
        ]
        assert used.taken < 2 * MAX_PARKED * PARKED_BYTES
        assert [one.seq for one in await operator.log.parked("gate")] == [7]
        assert await gate.log.park(structs.replace(first, seq=8))
        with in_process(monkeypatch, capsys) as run:
            listed = await asyncio.to_thread(run, "parked", "ls", "--json", store=store)
            assert listed.code == 0
            numbers = [one["number"] for one in listed.lines]
            assert 0.9 * MAX_PARKED < len(numbers) <= MAX_PARKED + 2
            status = await asyncio.to_thread(run, "status", "--json", store=store)
            assert any("no known consumer has" in alarm for alarm in status.one["alarms"])
            dropped = await asyncio.to_thread(
                run, "parked", "drop", *numbers[:50], "--reason", "junk", store=store
            )
            assert dropped.code == 0
            assert len(await operator.log.parked()) == len(numbers) - 50
