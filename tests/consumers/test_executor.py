"""The executor: what it does with a decided call. Tables over values, and how a Python tool is
run.
"""

import asyncio
import functools
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest
import until
from confirming import Confirming
from msgspec.structs import replace
from running import working
from stories import DECISIONS, EDIT, REF, START, Story, approval, life, request

from ayes.consumers import executor
from ayes.consumers.effects import Append, Effect, HandedOn, HandOn, Perform
from ayes.consumers.executor import (
    HAND_ON_AFTER_S,
    HAND_ON_FOR_S,
    MAX_ATTEMPTS,
    ClaimedRun,
    Executor,
    ExecutorState,
    Registered,
)
from ayes.consumers.worker import MAX_TRIES, Worker
from ayes.ledger import in_memory
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.lifecycle import Status
from ayes.ledger.sealed_values import NOTHING_SEALED, Opened
from ayes.ledger.subscriptions import ACK_WAIT_S
from ayes.ledger.tool_runner import MAX_ERROR, EffectUnknown, ToolError, look_up, run_tool
from ayes.ledger.validity import call_of
from ayes.projections.refusal_texts import tool_not_run
from ayes.schemas import events as e
from ayes.schemas.codec import MAX_BYTES, Fact, encode
from ayes.schemas.content import attached
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import Slot, StopRef, ThreadRef
from ayes.schemas.tools import ToolSpec, declaration

CALL = REF.wish(1, 0)
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')


def refund(order: str) -> str:
    return f"refunded {order}"


def registered(*, repeatable: bool = False, schema: str = '{"type":"object"}') -> Registered:
    spec = ToolSpec(name="refund", schema=schema, run_by="executor", repeatable=repeatable)
    return Registered(spec, refund)


ONCE, REPEATABLE = registered(), registered(repeatable=True)


def story(
    ending: str, tool: Registered = ONCE, run_by: str = "executor"
) -> list[tuple[Slot, e.AnyEvent]]:
    """A call's life, with the tool's real version in it."""
    facts: list[tuple[Slot, e.AnyEvent]] = []
    for slot, told_ in life(CALL, WISH, ending):
        event = told_
        if isinstance(told_, e.ToolRequested):
            event = replace(request(WISH, tool.version), run_by=run_by)
        if isinstance(told_, e.Approved):
            digest = call_digest("refund", tool.version, told_.arguments or WISH.arguments)
        if isinstance(told_, e.Approved | e.ToolStarted):
            event = replace(told_, digest=digest)
        facts.append((slot, event))
    return facts


def call_as(facts: Sequence[tuple[Slot, e.AnyEvent]]) -> Call:
    return call_of(CALL, told(facts))


def told(facts: Sequence[tuple[Slot, e.AnyEvent]]) -> tuple[Fact, ...]:
    return tuple(Story().tell_all(facts).facts)


def reacts(
    facts: Sequence[tuple[Slot, e.AnyEvent]],
    *tools: Registered,
    handed: str = "decided",
    waited_s: float = HAND_ON_FOR_S,
    declared: ToolSpec | Literal["own"] | None = "own",
) -> Sequence[Effect[ClaimedRun]]:
    """What the executor does about a call of which these facts stand, handed that one of them.

    Args:
        waited_s: how long ago that fact was recorded.
        declared: the contract that is recorded for the tool; `own`: the one that the call was
            requested with.
    """
    call = call_as(facts)
    given = next(fact for fact in told(facts) if fact.slot.tail[2] == handed)
    versions = {one.version: one.spec for one in (ONCE, REPEATABLE)}
    requested = versions.get(call.wish.tool_version) if call.requested else None
    recorded = requested if declared == "own" else declared
    seen = ExecutorState(
        call,
        None if recorded is None else declaration(recorded)[1],
        given.recorded_at + timedelta(seconds=waited_s),
    )
    steps = Executor({one.spec.name: one for one in tools}).decide(seen, given)
    return [_unconditional(one, call.last_revocation) for one in steps]


def _unconditional(step: Effect[ClaimedRun], last: int) -> Effect[ClaimedRun]:
    """The step without its condition: each start names the last revocation that was seen."""
    if not isinstance(step, Perform):
        return step
    assert step.claim.after == last
    claim = replace(step.claim, after=None)
    return replace(step, claim=claim)


def run(
    attempt: int, tool: Registered = ONCE, arguments: str = WISH.arguments
) -> Perform[ClaimedRun]:
    digest = call_digest("refund", tool.version, arguments)
    claim = Append(CALL.claim(attempt), e.ToolStarted(digest=digest, idempotency_key="acme/t1/1-0"))
    return Perform(claim, ClaimedRun(CALL, "refund", arguments, attempt))


def claims(count: int, tool: Registered = ONCE) -> list[tuple[Slot, e.AnyEvent]]:
    """So many starts, none of which ever answered."""
    digest = call_digest("refund", tool.version, WISH.arguments)
    started = e.ToolStarted(digest=digest, idempotency_key="acme/t1/1-0")
    return [(CALL.claim(attempt), started) for attempt in range(1, count + 1)]


def doubt(attempt: int) -> Append:
    text = (
        "refund was started, but whoever ran it stopped before it answered. "
        "It may or may not have taken effect; a person has to find out."
    )
    return Append(CALL.finished, e.InDoubt(attempt=attempt, text=text))


def refusal(facts: Sequence[tuple[Slot, e.AnyEvent]]) -> Append:
    return Append(CALL.finished, tool_not_run(call_as(facts)))


def declined(why) -> Append:
    return Append(CALL.claim(1), e.Declined(why=why))


APPROVED = story("approved")
EDITED = story("edited")[:3]
TAMPERED = [
    *APPROVED[:2],
    (CALL.decided, approval(e.Wish(tool="refund", arguments='{"order":"A-99"}'))),
]
EDITED_TAMPERED = [*APPROVED[:2], (CALL.decided, replace(APPROVED[2][1], arguments=EDIT))]
STARTED = [*APPROVED, *claims(1)]
REVOKED = story("revoked")[:-1]
DECLINED = [*APPROVED, (CALL.claim(1), e.Declined(why="unknown_tool"))]
STARTED_REPEATABLE = story("approved", REPEATABLE)

#: What stands, what is registered, and the steps that follow when the decision is handed out
#: (again).
ACTS = [
    ("approved: it runs", APPROVED, [ONCE], [run(1)]),
    ("approved with an edit: the edit runs", EDITED, [ONCE], [run(1, arguments=EDIT)]),
    ("approved were other bytes", TAMPERED, [ONCE], [declined("digest_mismatch")]),
    ("edited, and not what was approved", EDITED_TAMPERED, [ONCE], [declined("digest_mismatch")]),
    ("no such tool any more", APPROVED, [], [declined("unknown_tool")]),
    ("the tool is another by now", APPROVED,
     [registered(schema='{"type":"object","required":["order"]}')], [declined("unknown_tool")]),
    ("declined, and not yet told", DECLINED, [ONCE], [refusal(DECLINED)]),
    ("declined where there are no tools", DECLINED, [], [refusal(DECLINED)]),
    ("taken back before it ran", REVOKED, [ONCE], [refusal(REVOKED)]),
    ("started, and nobody knows", STARTED, [ONCE], [doubt(1)]),
    ("started, and the tool is gone", STARTED, [], [doubt(1)]),
    ("started twice, and nobody knows", [*APPROVED, *claims(2)], [ONCE], [doubt(2)]),
    ("repeatable: the next attempt", [*STARTED_REPEATABLE, *claims(1, REPEATABLE)], [REPEATABLE],
     [run(2, REPEATABLE)]),
    ("repeatable: the last attempt", [*STARTED_REPEATABLE, *claims(MAX_ATTEMPTS - 1, REPEATABLE)],
     [REPEATABLE], [run(MAX_ATTEMPTS, REPEATABLE)]),
    ("repeatable, but not for ever", [*STARTED_REPEATABLE, *claims(MAX_ATTEMPTS, REPEATABLE)],
     [REPEATABLE], [doubt(MAX_ATTEMPTS)]),
    ("what is repeatable now was not when it was asked for", STARTED, [REPEATABLE], [doubt(1)]),
    ("it returned", story("returned"), [ONCE], []),
    ("it failed", story("failed"), [ONCE], []),
    ("in doubt", story("in doubt"), [REPEATABLE], []),
    ("reconciled", story("happened"), [REPEATABLE], []),
    ("refused already", story("denied"), [ONCE], []),
    ("decided, and never asked for", [(CALL.decided, DECISIONS["denied"])], [ONCE], []),
    ("another group's, approved", story("approved", run_by="billing"), [ONCE], []),
    ("another group's, started", [*story("approved", run_by="billing"), *claims(1)], [ONCE], []),
    ("the client's own, approved", story("approved", run_by="client"), [], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "tools", "follows"), [pytest.param(*row, id=name) for name, *row in ACTS]
)
def test_what_follows_from_a_decision(facts, tools: list[Registered], follows: Sequence[Effect]):
    """Only approved bytes run, under a claim; a claim without a result is never run again in
    silence (I1, I6, I7, B8, B9, B49, B61, B77).
    """
    waited_s = ACK_WAIT_S + HAND_ON_FOR_S + 10  # no other executor took it
    assert reacts(facts, *tools, waited_s=waited_s) == follows
    assert reacts(facts, *tools, waited_s=waited_s) == follows


OTHER = registered(schema='{"type":"object","required":["order"]}')
#: What is registered, what is recorded as the tool's contract, how long ago it was decided, and
#: what follows.
HANDED_ON = [
    ("no such tool here", [], None, 0, HAND_ON_AFTER_S),
    ("another version here", [OTHER], ONCE.spec, 0, HAND_ON_AFTER_S),
    ("as long again as it has waited", [], None, 9.5, 9.5),
    ("nobody has declared it", [ONCE], None, 0, HAND_ON_AFTER_S),
    ("another contract is recorded under its version", [ONCE], OTHER.spec, 0, HAND_ON_AFTER_S),
    ("nobody took it", [], None, HAND_ON_FOR_S, None),
    ("nobody took it, and another contract is recorded", [ONCE], OTHER.spec, HAND_ON_FOR_S, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tools", "recorded_spec", "waited_s", "after_s"),
    [pytest.param(*row, id=name) for name, *row in HANDED_ON],
)
def test_what_cannot_run_here_is_handed_on_for_a_while(tools, recorded_spec, waited_s, after_s):
    """Another process may have that version, so it is declined only when nobody took it (D14)."""
    [step] = reacts(APPROVED, *tools, waited_s=waited_s, declared=recorded_spec)
    if after_s is None:
        assert step == declined("unknown_tool")
    else:
        assert isinstance(step, HandOn)
        assert step.after_s == after_s


@pytest.mark.parametrize(("tools", "declared"), [([], REPEATABLE.spec), ([OTHER], REPEATABLE.spec)])
def test_a_repeatable_call_that_was_started_is_handed_on_as_well(tools, declared):
    """Who cannot run it does not put it in doubt while another process may run it again."""
    facts = [*STARTED_REPEATABLE, *claims(1, REPEATABLE)]
    [step] = reacts(facts, *tools, waited_s=ACK_WAIT_S, declared=declared)
    assert isinstance(step, HandOn)
    [step] = reacts(facts, *tools, waited_s=ACK_WAIT_S + HAND_ON_FOR_S + 10, declared=declared)
    assert step == doubt(1)
    [step] = reacts(
        [*STARTED_REPEATABLE, *claims(MAX_ATTEMPTS, REPEATABLE)],
        *tools,
        waited_s=ACK_WAIT_S,
        declared=declared,
    )
    assert step == doubt(MAX_ATTEMPTS)


def test_a_decision_about_a_call_that_nobody_requested_is_for_nobody():
    decided = Fact(1, START, CALL.decided, approval(WISH))
    assert not Executor({"refund": ONCE})._is_ours(Call(CALL), decided)


def test_a_call_with_a_fact_of_a_newer_program_is_left_to_a_newer_program():
    """Nobody here knows what that fact says: the call is not run, declined or closed (I12)."""
    newer = e.Carried(type="Held", raw=b"{}", id="x", v=9)
    for facts in (APPROVED, STARTED, REVOKED, story("denied")[:-1]):
        for place in (CALL.revoked_by("carl"), CALL.claim(7)):
            [step] = reacts([*facts, (place, newer)], ONCE, waited_s=1000)
            assert isinstance(step, HandOn)


@pytest.mark.parametrize("tools", [[], [OTHER]])
def test_a_call_that_was_started_is_left_to_an_executor_that_has_its_tool(tools):
    """Its lookup may know what became of the call. (D14, D15)"""
    [step] = reacts(STARTED, *tools, waited_s=ACK_WAIT_S)
    assert isinstance(step, HandOn)
    [step] = reacts(STARTED, *tools, waited_s=ACK_WAIT_S + HAND_ON_FOR_S + 10)
    assert step == doubt(1)


async def test_a_tool_whose_output_cannot_be_recorded_has_failed():
    """It has run, so the call ends, and says why: its files are more than one fact can name."""

    def pages(order: str) -> list[e.Media]:
        return [attached(b"%d" % number * 1000, "image/png") for number in range(4000)]

    ledger = Ledger(Memory(), e.Author(kind="service", name="tests"))
    await ledger.declare(CALL.workspace, ONCE.spec)
    async with working(Worker(ledger, Executor({"refund": Registered(ONCE.spec, pages)}))):
        for slot, event in APPROVED:
            await ledger.append(slot, event)
        [end] = await until.recorded(ledger, CALL.finished.subject)
    assert isinstance(end.event, e.ToolReturned)
    assert end.event.output.startswith("The tool ran, but its output cannot be recorded:")


async def test_an_older_executor_hands_on_to_the_one_that_can_run_it(monkeypatch):
    """In a rolling upgrade a call runs, whichever executor receives its decision (D14)."""
    monkeypatch.setattr(executor, "HAND_ON_AFTER_S", 0.001)
    log = Memory()
    ledger = Ledger(log, e.Author(kind="service", name="tests"))
    old = Worker(ledger, Executor({"refund": OTHER}))
    await ledger.declare(CALL.workspace, ONCE.spec)
    await ledger.declare(CALL.workspace, OTHER.spec)
    handed_on = asyncio.Event()
    retry = in_memory._MemoryDelivery.retry
    times = 0

    async def noted(delivery: in_memory._MemoryDelivery, after_s: float) -> None:
        nonlocal times
        times += 1
        if times > MAX_TRIES:
            handed_on.set()
        await retry(delivery, min(after_s, 0.001))

    monkeypatch.setattr(in_memory._MemoryDelivery, "retry", noted)
    async with working(old):
        for slot, event in APPROVED:
            await ledger.append(slot, event)
        await handed_on.wait()
        async with working(Worker(ledger, Executor({"refund": ONCE}))):
            [end] = await until.recorded(ledger, CALL.finished.subject)
    assert isinstance(end.event, e.ToolReturned)
    assert [type(one.event) for one in await ledger.read(CALL)][-2:] == [
        e.ToolStarted,
        e.ToolReturned,
    ]
    assert await log.parked() == []


@pytest.mark.parametrize("tool", [ONCE, REPEATABLE])
@pytest.mark.parametrize("place", [CALL.revoked_by("ana"), CALL.lapsed], ids=["revoked", "lapsed"])
def test_what_comes_too_late_to_stop_a_call_leaves_it_to_its_executor(place, tool):
    """A revocation that lost against the start is delivered while the tool runs. It is neither in
    doubt nor started again: its executor is at work (I1, I6).
    """
    revoked = e.Revoked(reason="Wait.", reviewer="ana")
    event = revoked if "revoked" in place.tail else e.Lapsed(after_s=4.0)
    facts = [*story("approved", tool), *claims(1, tool), (place, event)]
    assert reacts(facts, tool, handed=place.tail[2]) == []
    assert reacts(facts, tool) != []  # its decision, delivered again since its executor has died


async def test_what_is_claimed_runs_and_what_waits_can_be_revoked():
    """Of forty approved calls of a slow synchronous tool, each that is claimed is running; the
    others are still approved (R5).
    """
    at_once, ref = 12, ThreadRef("acme", "many")
    begun, release = threading.Semaphore(0), threading.Event()

    def slow(**_named: object) -> str:
        begun.release()
        release.wait(60)
        return "done"

    slow_tool = Registered(ONCE.spec, slow)
    ledger = Ledger(Memory(), e.Author(kind="service", name="tests"))
    await ledger.declare(ref.workspace, ONCE.spec)
    calls = [ref.call(f"c{number}") for number in range(40)]
    for call in calls:
        wish = replace(request(WISH, ONCE.version), run_by="executor")
        await ledger.append(call.requested, wish)
        digest = call_digest("refund", ONCE.version, WISH.arguments)
        await ledger.append(
            call.decided,
            e.Approved(digest=digest, ground="policy", rule="freely", policy_version=1),
        )
    worker = Worker(ledger, Executor({"refund": slow_tool}), concurrency=at_once)
    async with working(worker):
        try:
            for _ in range(at_once):
                begins = asyncio.get_running_loop().run_in_executor(None, begun.acquire, True, 20)
                assert await begins
            seen = [await ledger.call(call) for call in calls]
            claimed = [call for call in seen if call.status is Status.RUNNING]
            waiting = [call.ref for call in seen if call.status is Status.APPROVED]
            assert (len(claimed), len(waiting)) == (at_once, 40 - at_once)
            for call in waiting:
                assert (await ledger.reviewer("ben").revoke(call)).status is Status.REVOKED
        finally:
            release.set()
        ends = await until.recorded(ledger, "ledger.*.*.call.*.finished", count=len(calls))
        kinds = [type(end.event) for end in ends]
    assert (kinds.count(e.ToolReturned), kinds.count(e.ToolRefused)) == (at_once, 40 - at_once)


@pytest.mark.parametrize("run_by", ["executor", "billing", "client"])
@pytest.mark.parametrize("ending", [*DECISIONS, "revoked"])
def test_what_was_not_to_run_is_closed_for_all(ending: str, run_by: str):
    """Each ending is closed with words of its own, whoever would have run it: the model always
    hears (I5, B2, B32, B33, B37, B52, B87).
    """
    facts = story(ending, run_by=run_by)[:-1]
    [step] = reacts(facts)
    assert isinstance(step, Append)
    assert step.slot == CALL.finished
    assert isinstance(step.event, e.ToolRefused)
    assert step.event.ending == {"denied by policy": "denied", "invalid": "denied"}.get(
        ending, ending
    )
    if ending == "denied":
        assert (
            "a person reviewed this call and said no. Their reason: not this one" in step.event.text
        )


@pytest.mark.parametrize("run_by", ["executor", "client"])
def test_it_hears_of_an_approval_that_is_taken_back(run_by: str):
    """Handed the revocation itself, it tells the model, also about a call of a client (B8)."""
    facts = story("revoked", run_by=run_by)[:-1]
    assert reacts(facts, ONCE, handed="revoked") == [refusal(facts)]


def test_what_was_declined_is_told_to_the_model():
    """The executor takes the claim's slot, so nobody starts it, and is handed that (B9, I6)."""
    [step] = reacts(DECLINED, ONCE, handed="claim")
    assert step == refusal(DECLINED)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.ToolRefused)
    assert step.event.ending == "unknown_tool"


def test_a_claim_that_is_handed_out_is_somebody_at_work():
    """That a tool was started is no reason to doubt it: only the decision handed out again is."""
    assert reacts(STARTED, ONCE, handed="claim") == []
    assert reacts([*STARTED_REPEATABLE, *claims(1, REPEATABLE)], REPEATABLE, handed="claim") == []


def test_every_attempt_has_the_same_idempotency_key():
    """`workspace/thread/call`, so that a tool which knows the key does it once (B49)."""
    keys = set()
    for count in range(3):
        [step] = reacts([*STARTED_REPEATABLE, *claims(count)], REPEATABLE)
        assert isinstance(step, Perform)
        assert isinstance(step.claim.event, e.ToolStarted)
        keys.add(step.claim.event.idempotency_key)
    assert keys == {"acme/t1/1-0"}


async def test_the_work_is_the_function_with_the_approved_arguments():
    """What comes of it goes to `finished`, or beside it when the call was closed meanwhile (I9)."""
    ledger = await recorded(story("approved", REPEATABLE) + claims(2, REPEATABLE))
    done = await Executor({"refund": REPEATABLE}).execute(
        ledger, ClaimedRun(CALL, "refund", EDIT, 2)
    )
    assert done == Append(
        CALL.finished,
        e.ToolReturned(output="refunded edited", attempt=2),
        fallback_slot=CALL.late(1),
    )


async def test_a_claim_behind_a_revocation_runs_nothing():
    """The log decides between start and revocation; the executor looks before it runs (I6, B61)."""
    ran: list[str] = []
    tool = Registered(ONCE.spec, ran.append)
    ledger = await recorded([*story("revoked")[:-1], *claims(1)])
    done = await Executor({"refund": tool}).execute(
        ledger, ClaimedRun(CALL, "refund", WISH.arguments, 1)
    )
    assert done == refusal(story("revoked")[:-1])
    assert ran == []


class Omitting(Memory):
    """A log whose first answers leave a revocation out."""

    omits = 2

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        facts = await super().read(*subjects)
        if self.omits and any("revoked" in fact.slot.tail for fact in facts):
            self.omits -= 1
            return tuple(fact for fact in facts if "revoked" not in fact.slot.tail)
        return facts


async def test_an_executor_that_is_not_shown_a_revocation_starts_nothing():
    """The broker refuses its start behind a fact that it has not read, so it reads again, and
    closes the call (I1, I6, B61).
    """
    ran: list[str] = []
    log = Omitting()
    ledger = Ledger(log, e.Author(kind="executor", name="tests"))
    await ledger.declare(CALL.workspace, ONCE.spec)
    for slot, event in story("revoked")[:-1]:
        assert await ledger.try_append(slot, event) is None
    worker = Worker(ledger, Executor({"refund": Registered(ONCE.spec, ran.append)}))
    async with working(worker):
        [ended] = await until.recorded(ledger, CALL.finished.subject)
    assert isinstance(ended.event, e.ToolRefused)
    assert (log.omits, ran, (await ledger.call(CALL)).void) == (0, [], ())


async def test_an_executor_that_is_told_that_anothers_claim_is_its_own_runs_nothing():
    """A claim is known by its event, not by its slot and number: whoever acknowledged it, the fact
    that is read there must be the executor's own (B68, I1).
    """
    ran: list[str] = []
    log = Confirming()
    ledger = Ledger(log, e.Author(kind="executor", name="tests"))
    await ledger.declare(CALL.workspace, ONCE.spec)
    for slot, event in story("approved"):
        assert await ledger.try_append(slot, event) is None
    [(slot, rival)] = claims(1)
    log.first[slot] = ledger.with_envelope(rival)
    worker = Worker(ledger, Executor({"refund": Registered(ONCE.spec, ran.append)}))
    async with working(worker):
        [ended] = await until.recorded(ledger, CALL.finished.subject)
    assert isinstance(ended.event, e.InDoubt)
    assert ran == []


@pytest.mark.parametrize("why", ["too late", "stopped"])
async def test_a_second_claim_that_does_not_count_runs_nothing(why: str):
    """The first start died, and before the next one the approval's time was over, or somebody had
    stopped the workspace. An earlier start of the call is no leave to run it (I1, I6).
    """
    ran: list[str] = []
    tool = Registered(REPEATABLE.spec, lambda **_: ran.append("x"))
    now = [START]
    log = Memory(now=lambda: now[0])
    ledger = Ledger(log, e.Author(kind="executor", name="tests"))
    for slot, event in [*STARTED_REPEATABLE, *claims(1, REPEATABLE)]:
        valid = isinstance(event, e.Approved)
        await ledger.append(slot, replace(event, valid_for_s=4.0) if valid else event)
    if why == "stopped":
        await ledger.append(StopRef(CALL.workspace, "ana", "s1").given, e.Stopped(reason="wait"))
    else:
        now[0] = START + timedelta(seconds=5)
    [_, (slot, second)] = claims(2, REPEATABLE)
    await ledger.append(slot, second)
    work = ClaimedRun(CALL, "refund", WISH.arguments, 2)
    executing = Executor({"refund": tool}).execute(ledger, work)
    if why == "stopped":
        with pytest.raises(HandedOn):
            await executing
    else:
        assert await executing == doubt(1)
    assert ran == []


async def recorded(facts: Sequence[tuple[Slot, e.AnyEvent]]) -> Ledger:
    """A ledger in memory in which these stand."""
    ledger = Ledger(Memory(), e.Author(kind="executor", name="tests"))
    for slot, event in facts:
        assert await ledger.try_append(slot, event) is None
    return ledger


# ----------------------------------------------------------------------------------- running a tool


async def later(**_named: object) -> str:
    await asyncio.sleep(0)
    return "later"


def raises(**_named: object) -> str:
    raise LookupError("no such order")


def raises_nothing_said(**_named: object) -> str:
    raise LookupError


def said_as_it_is() -> str:
    raise ToolError('{"code":7}')


def loses_its_connection() -> str:
    raise EffectUnknown("the bank did not answer")


def exits(**_named: object) -> str:
    sys.exit(3)


RUNS = [
    (refund, '{"order":"A-17"}', e.ToolReturned(output="refunded A-17")),
    (later, "{}", e.ToolReturned(output="later")),
    (functools.partial(later), "{}", e.ToolReturned(output="later")),
    (lambda: None, "{}", e.ToolReturned(output="null")),
    (lambda: "", "{}", e.ToolReturned(output="")),
    (lambda: {"ok": True, "left": 3}, "{}", e.ToolReturned(output='{"ok":true,"left":3}')),
    (lambda amount: f"{amount}", '{"amount":12345678901234567890123}',
     e.ToolReturned(output="12345678901234567890123")),
    (raises, "{}", e.ToolFailed(error="LookupError: no such order")),
    (raises_nothing_said, "{}", e.ToolFailed(error="LookupError")),
    (said_as_it_is, "{}", e.ToolFailed(error='{"code":7}')),
    (loses_its_connection, "{}", e.InDoubt(text="the bank did not answer", attempt=1)),
    (exits, "{}", e.ToolFailed(error="SystemExit: 3")),
    (lambda: "half a pair: \ud800", "{}", e.ToolReturned(output="half a pair: ?")),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "outcome"), RUNS)
async def test_what_a_function_does_becomes_a_fact(function, arguments: str, outcome: e.Event):
    """What it returns is text; whatever it raises, even an exit, is a failure and never a refusal,
    unless it says itself that nobody knows (B34, I7).
    """
    told = await run_tool(function, Opened(arguments), attempt=1)
    assert told == outcome
    assert encode(told)


def cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@dataclass
class Receipt:
    number: int
    lock: Any


#: Values of which JSON has no form, and some text of the reason.
UNRECORDABLE = {
    "an object": (object, "TypeError: Encoding objects of type object is unsupported"),
    "an object in a list": (lambda: [{"receipt": object()}], "object is unsupported"),
    "a class": (lambda: object, "of type type is unsupported"),
    "a cycle": (cycle, "RecursionError"),
    "a dataclass with a lock": (lambda: Receipt(1, threading.Lock()), "lock is unsupported"),
    "an exception": (lambda: ValueError("no"), "ValueError is unsupported"),
    "a generator": (lambda: (one for one in "ab"), "generator is unsupported"),
    "a complex number": (lambda: 1j, "complex is unsupported"),
    "half a pair in a list": (lambda: ["\ud800"], "UnicodeEncodeError"),
    "half a pair in a key": (lambda: {"\ud800": 1}, "UnicodeEncodeError"),
    "too long": (lambda: "x" * MAX_BYTES, "its 524,290 bytes are over the limit of 520,192."),
    "too long as JSON": (lambda: '"' * (MAX_BYTES // 2), "must return less"),
    "a file without bytes": (lambda: [e.Media("image/png", e.Inline("%%"))], "is not sound"),
}


@pytest.mark.parametrize("name", UNRECORDABLE)
async def test_a_tool_that_ran_has_not_failed_whatever_it_returned(name: str):
    """What cannot be recorded is said in words, as its result: neither the model nor whoever counts
    failures may take it for a call that did not run (B34).
    """
    function, why = UNRECORDABLE[name]
    told = await run_tool(function, NOTHING_SEALED, attempt=1)
    assert isinstance(told, e.ToolReturned)
    assert isinstance(told.output, str)
    assert told.output.startswith("The tool ran, but its output cannot be recorded: ")
    assert why in told.output
    assert encode(told)


async def test_a_value_across_the_end_of_a_long_error_leaves_no_beginning():
    """What is sealed is left out before the rest is cut, whoever says it: the tool that failed or
    does not know, its output that cannot be recorded, its lookup (F1).
    """
    card = "4111-2222-3333"
    plain = Opened("{}", {"/card": f'"{card}"'})

    class Odd(list[str]):
        def __iter__(self) -> Iterator[str]:
            raise fails

    def raises() -> None:
        raise fails

    def returns() -> object:
        return Odd()

    for kind in (ToolError, EffectUnknown, ValueError):
        fails = kind("x" * (MAX_ERROR - len(card)) + card * 2)
        for run, function in ((run_tool, raises), (look_up, raises), (run_tool, returns)):
            ended = repr(await run(function, plain, attempt=1))
            assert "4111" not in ended, (kind, function)
            assert len(ended) > MAX_ERROR


async def test_cancelling_gets_through():
    """A cancelled tool has neither returned nor failed: nobody knows how far it came (I7)."""
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(run_tool(endless, NOTHING_SEALED, attempt=1))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_policy_that_came_second_does_not_overtake_people():
    """Where one gate asked people and another, with another version of the policy, let the call
    through later, it does not run: nothing undecided is ever taken for a yes (I3, I4).
    """
    wish, gated, decided = story("approved")[:3]
    allowed = (CALL.decided, replace(decided[1], ground="policy"))
    declined = Append(CALL.claim(1), e.Declined(why="people_were_asked"))
    assert reacts([wish, gated, allowed], ONCE) == [declined]
    assert reacts([wish, allowed, gated], ONCE) == [run(1)]


class Behind:
    """A replica that lacks the claims of a call."""

    def __init__(self, log: Memory) -> None:
        self._log = log
        self.latest = log.latest

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        facts = await self._log.read(*subjects)
        return tuple(fact for fact in facts if "claim" not in fact.slot.tail)


async def test_a_start_just_in_time_is_not_passed_over():
    """The answer to a claim was lost, and when it is delivered again the approval is valid no
    longer: a replica that lacks the claim shows an approval that has lapsed. Nothing else would
    ever be delivered about the call (seed 46f8c67f of the simulator, I7).
    """
    now = [START]
    log = Memory(now=lambda: now[0])
    ledger = Ledger(log, e.Author(kind="executor", name="tests"))
    await ledger.declare(CALL.workspace, REPEATABLE.spec)
    for slot, event in [*STARTED_REPEATABLE, *claims(1, REPEATABLE)]:
        valid = isinstance(event, e.Approved)
        await ledger.append(slot, replace(event, valid_for_s=4.0) if valid else event)
    now[0] = START + timedelta(seconds=5)
    decided = await log.latest(CALL.decided.subject)
    assert decided
    own = Executor({"refund": REPEATABLE})
    seen = await own.load(ledger.reading_from(Behind(log)), decided)
    assert seen.call.status is Status.RUNNING
    [step] = own.decide(seen, decided)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.InDoubt)
