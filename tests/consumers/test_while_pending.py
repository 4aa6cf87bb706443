"""What a user says while a call waits for people: it waits, makes the call moot, or may not be said
yet.

First the rules as tables and properties, then the same on the log, in memory and on a real broker:
every order in which the gate and the user can come, and what the model reads in the end.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chain import DONE, OTHER, REFUND, SCHEMA, Chain, Script, kinds, talking
from hypothesis import given
from hypothesis import strategies as st
from long import sampled
from running import working as in_this_loop
from stories import REF, START, Story, question, request
from until import recorded

from ayes.consumers.effects import Append, CancelTimer, Effect, SetTimer
from ayes.consumers.gate import Gate, MootCalls, said_since
from ayes.consumers.worker import Worker
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe
from ayes.ledger.in_memory import Memory
from ayes.ledger.judging.policies import Policies
from ayes.ledger.judging.verdict import Case
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import AppendResult, Delivered, EventLog, TimerFired
from ayes.ledger.validity import call_of
from ayes.ops.broker.server import ensure_account
from ayes.ops.workers import working
from ayes.projections.formats import FORMATS
from ayes.projections.history import Assistant, Entry, Outcome, User, history
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, decode, encode
from ayes.schemas.errors import AlreadyDecided, AlreadyFilled, BadId, BadInput, StillPending
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, Slot, ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

# What is tested here is the gate's; what it rests on is the contract of the log, in test_log.py.
pytestmark = pytest.mark.log("memory")

# ---------------------------------------------------------------------------------------- the rules

CALL, OWN = REF.wish(1, 0), REF.call("refund-1")
WISH = e.Wish(tool="refund", arguments='{"order":"A-17"}')
DIGEST = request(WISH).digest
YES = e.Voted(verdict="approve", digest=DIGEST)
NO = e.Voted(verdict="deny", digest=DIGEST)
BACK = e.Withdrawn(reason="changed my mind")
SAID = e.Said(role="user", text="wait, it is B-40")
MOOT = e.Superseded(reason="The user said something new, message 'm2'.")
BY_ANA = e.Approved(digest=DIGEST, ground="people", rule="money", policy_version=1, voters=("ana",))
BY_BEN = e.Denied(ground="people", rule="money", policy_version=1, voters=("ben",))
TOO_LATE = e.Expired(rule="money", policy_version=1, after_s=3)


def asking(
    expires_in_s: float | None = None, while_pending: Any = "supersede"
) -> e.ApprovalRequested:
    return msgspec.structs.replace(question(WISH, expires_in_s), while_pending=while_pending)


def told(*words: str, call: CallRef = CALL, expires_in_s: float | None = None) -> tuple[Fact, ...]:
    """A story in words, each a second after the one before."""
    say = {
        "replied": (REF.replied(1), e.ModelReplied(parts=(WISH,))),
        "requested": (call.requested, request(WISH)),
        "gated": (call.gated, asking(expires_in_s)),
        "yes": (call.vote("ana"), YES),
        "no": (call.vote("ben"), NO),
        "excluded": (call.vote("rita"), YES),
        "taken back": (call.withdrawn, BACK),
        "m1": (REF.said("m1"), e.Said(role="user", text="refund A-17")),
        "m2": (REF.said("m2"), SAID),
        "m3": (REF.said("m3"), SAID),
        "note": (REF.said("n1"), e.Said(role="note", text="it rains")),
        "system": (REF.said("s1"), e.Said(role="system", text="be kind")),
        "-": (REF.replied(9), e.ModelFailed(error="a second goes by")),
    }
    story = Story()
    for word in words:
        story.tell(*say[word])
    return tuple(story.facts)


def seen(facts: Sequence[Fact], call: CallRef = CALL) -> Case:
    """What the gate makes of these facts about a call that was put to people."""
    return Case(call_of(call, tuple(facts)), Policies(), None, said_since(call, facts))


def decided(
    facts: Sequence[Fact], handed: Delivered | None = None, call: CallRef = CALL
) -> e.Event | None:
    for step in Gate().decide(seen(facts, call), handed or facts[-1]):
        if isinstance(step, Append):
            return step.event
    return None


#: What stands in the log, in its order, and what the gate decides.
DECISIONS = [
    ("nothing was said", "m1 replied requested gated", None),
    ("after the question", "m1 replied requested gated m2", MOOT),
    ("between request and question", "m1 replied requested m2 gated", MOOT),
    ("between reply and request", "m1 replied m2 requested gated", MOOT),
    ("before the reply: the model's turn had begun, nothing was wished",
     "m2 replied requested gated", None),
    ("a note", "m1 replied requested gated note", None),
    ("the system", "m1 replied requested gated system", None),
    ("a note, and then the user", "m1 replied requested gated note m2", MOOT),
    ("two: the first counts", "m1 replied requested m2 gated m3", MOOT),
    ("a yes before it", "m1 replied requested gated yes m2", BY_ANA),
    ("a no before it", "m1 replied requested gated no m2", BY_BEN),
    ("a yes after it", "m1 replied requested gated m2 yes", MOOT),
    ("a no after it", "m1 replied requested gated m2 no", MOOT),
    ("both", "m1 replied requested gated m2 no yes", MOOT),
    ("a vote that does not count before it", "m1 replied requested gated excluded m2", MOOT),
    ("a yes between message and question", "m1 replied requested m2 yes gated", MOOT),
    ("a yes, though the message came before the question",
     "m1 replied requested m2 gated yes", MOOT),
    ("taken back before it", "m1 replied requested gated taken_back m2", BACK),
    ("taken back after it", "m1 replied requested gated m2 taken_back", MOOT),
    ("taken back before the question, after the message",
     "m1 replied requested m2 taken_back gated", BACK),
    ("in time", "m1 replied requested gated - m2 - - -", MOOT),
    ("too late: it had expired", "m1 replied requested gated - - m2", TOO_LATE),
    ("a late vote and then it", "m1 replied requested gated - - yes m2", TOO_LATE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "decision"), [pytest.param(*row, id=name) for name, *row in DECISIONS]
)
def test_the_first_that_counts_decides(words: str, decision: e.Event | None):
    """Of message, deciding vote, withdrawal and deadline the first in the log wins (B58, I5)."""
    facts = told(*(word.replace("_", " ") for word in words.split()), expires_in_s=3)
    assert decided(facts) == decision
    assert decided(facts) == decision


@pytest.mark.parametrize(
    ("words", "decision"),
    [
        ("requested gated m2", MOOT),
        ("requested m2 gated", MOOT),
        ("m2 requested gated", None),
        ("m2 gated", None),
    ],
)
def test_in_a_loop_of_ones_own_the_request_is_the_wish(words: str, decision: e.Event | None):
    """A service that has no turns wishes when it requests; earlier words do not count (B58)."""
    assert decided(told(*words.split(), call=OWN), call=OWN) == decision


@pytest.mark.parametrize(
    "call", ["1-x", "x-0", "1", "-", "01-0", "1-00", "1-0-0", "2-0", "refund-1", "1_0"]
)
def test_a_name_like_a_wish_is_none(call: str):
    """Only `<turn>-<index>` is a model's wish: no other call there knows a turn (B58)."""
    facts = told("replied", "m2", "requested", "gated", call=REF.call(call))
    assert said_since(REF.call(call), facts) is None


def test_it_is_taken_off_the_clock():
    """A call that a message made moot has no deadline any more; one that waits has."""
    facts = told("replied", "requested", "gated", "m2", expires_in_s=9)
    assert Gate().decide(seen(facts), facts[-1]) == [Append(CALL.decided, MOOT), CancelTimer(CALL)]
    assert Gate().decide(seen(facts[:3]), facts[2]) == [
        SetTimer(CALL, START + timedelta(seconds=12))
    ]


@pytest.mark.parametrize(("words", "seconds"), [("m2", 1), ("- - m2", 1), ("- - - m2", 60)])
def test_nobody_more_is_asked_about_what_is_moot(words: str, seconds: float):
    """A message ends it whenever it comes, also when more people were due to be asked by then and
    were not yet (B58, I5).
    """
    facts = list(told("m1", "replied", "requested", "gated", *words.split()))
    later = (e.Stage(("lea",), expires_in_s=seconds),)
    escalating = msgspec.structs.replace(asking(1), on_timeout="escalate", stages=later)
    facts[3] = msgspec.structs.replace(facts[3], event=escalating)
    assert Gate().decide(seen(facts), facts[-1])[0] == Append(CALL.decided, MOOT)


def test_one_message_ends_every_open_call():
    """All undecided calls of the turn, together; what was decided before stays so (B58)."""
    others = [
        told("replied", "requested", "gated", "m2", call=REF.wish(1, index)) for index in range(3)
    ]
    cases = [seen(facts, REF.wish(1, index)) for index, facts in enumerate(others)]
    approved = msgspec.structs.replace(
        cases[1].call, decided=Fact(9, START, REF.wish(1, 1).decided, BY_ANA)
    )
    cases[1] = msgspec.structs.replace(cases[1], call=approved)
    assert Gate().decide(MootCalls(tuple(cases)), others[0][-1]) == [
        Append(REF.wish(1, 0).decided, MOOT),
        Append(REF.wish(1, 2).decided, MOOT),
    ]


@st.composite
def lives(draw) -> tuple[Fact, ...]:
    """A call that is wished for, asked about, and talked about in any order of a log."""
    words = draw(st.permutations(["yes", "no", "excluded", "m2", "m3", "note", "-", "-"]))
    deadlines = [None, 1, 2, 4, 99]
    if draw(st.booleans()):
        # A withdrawal goes before whatever else is not decided yet, message or none; so it is tried
        # by itself.
        deadlines = [None, 99]
        words = [*(word for word in words if word not in {"yes", "no"}), "taken back"]
        words = draw(st.permutations(words))
    places = sorted(draw(st.lists(st.integers(0, len(words)), min_size=3, max_size=3)))
    for offset, (place, word) in enumerate(
        zip(places, ("replied", "requested", "gated"), strict=True)
    ):
        words.insert(place + offset, word)
    return told("m1", *words, expires_in_s=draw(st.sampled_from(deadlines)))


@given(lives())
def test_whoever_looks_and_whenever_comes_to_the_same(facts: tuple[Fact, ...]):
    """Handed any fact, and reading as much of the log as there then is: nobody decides otherwise
    than the first (B27, B58).
    """
    gated = next(place for place, fact in enumerate(facts) if fact.slot == CALL.gated)
    decisions: list[e.Event | None] = []
    for end in range(gated + 1, len(facts) + 1):
        there = facts[:end]
        latest = decided(there)
        assert all(decided(there, handed) in (None, latest) for handed in there)
        if decisions and decisions[-1] is not None:
            assert latest == decisions[-1]
        decisions.append(latest)


@given(lives())
def test_a_message_always_ends_it(facts: tuple[Fact, ...]):
    """Once a user spoke after the wish, the call is not open any more, however it ends (B58)."""
    if said_since(CALL, facts) is not None:
        assert decided(facts) is not None


OLD = (
    b'{"type":"ApprovalRequested","digest":"c363f27c","rule":"changes a booking",'
    b'"policy_version":3,"reason":"It changes a booking.","voters":["ana","ops-*"],'
    b'"excluded":["carol"],"votes_needed":2,"expires_in_s":3600.0,'
    b'"id":"019cade2-2d90-7007-8a07-5f0c6b1d2e07","at":"2026-03-02T09:30:07.120000Z",'
    b'"by":{"kind":"gate","name":"gate-1"},"cause":"019cade2-2d90-7006-8a06-5f0c6b1d2e06"}'
)


def test_a_question_from_before_there_was_a_choice_lets_messages_wait():
    """Facts that were recorded without this field are read as they were meant, and written with
    their very bytes (I11, I12).
    """
    event = decode(OLD)
    assert isinstance(event, e.ApprovalRequested)
    assert event.while_pending == "queue"
    assert encode(event) == OLD


# --------------------------------------------------------------- what the gate reads, and how often

THREAD = ThreadRef("shop", "t1")
FIRST, SECOND, THIRD = (THREAD.wish(1, index) for index in range(3))
ASK = (
    '[[rule]]\nname = "money"\ntools = ["refund"]\nthen = "ask"\nreason = "It moves money."\n'
    "editor_counts = true\n"
)
TEXT = {word: f'while_pending = "{word}"\n{ASK}' for word in ("queue", "supersede", "block")}


class Counting:
    """A port that notes what was read, and lets a test come in before something is appended."""

    def __init__(self, port: EventLog) -> None:
        self._port = port
        self.reads: list[tuple[str, ...]] = []
        self.before: dict[Slot, Callable[[], Awaitable[object]]] = {}
        #: How far the replicas are that answer next; the ones after them have everything.
        self.behind: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        self.reads.append(subjects)
        facts = await self._port.read(*subjects)
        end = self.behind.pop(0) if self.behind else len(facts) and facts[-1].seq
        return tuple(fact for fact in facts if fact.seq <= end)

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        if first := self.before.pop(slot, None):
            await first()
        return await self._port.append(slot, raw, event_id, after)


class Desk:
    """A service in a workspace with one tool, its reviewers, and as many gates as a test wants."""

    def __init__(self, port: EventLog, policy: str = "supersede", more: str = "") -> None:
        self.log = Counting(port)
        self.ledger = Ledger(self.log, e.Author(kind="service", name="desk"))  # type: ignore[arg-type]
        self._policy = TEXT[policy] + more

    async def open(self) -> None:
        await self.ledger.append(policy_slot("shop", 1), applied(self._policy))
        await self.ledger.declare("shop", ToolSpec(name="refund", schema=SCHEMA))

    async def request(self, ref: CallRef = FIRST) -> None:
        await self.ledger.request(ref, "refund", {"order": "A-17"}, requester="rita")

    async def ask(self, ref: CallRef = FIRST) -> None:
        await self.request(ref)
        await self.handed(ref.requested)

    async def hear(self, message: str = "m2", role: Any = "user") -> None:
        await self.ledger.append(THREAD.said(message), e.Said(role=role, text="wait, it is B-40"))

    async def handed(self, slot: Slot) -> Sequence[Effect]:
        """What the gate does with what stands there, as it stands now; its facts are appended."""
        [fact] = await self.ledger.read(slot)
        self.log.reads.clear()
        gate = Gate()
        steps = gate.decide(await gate.load(self.ledger, fact), fact)
        for step in steps:
            if isinstance(step, Append):
                await self.ledger.append(step.slot, step.event)
        return steps

    @asynccontextmanager
    async def gate(self) -> AsyncIterator[None]:
        worker = Worker(Ledger(self.log, e.Author(kind="gate", name="gate")), Gate())  # type: ignore[arg-type]
        async with in_this_loop(worker):
            yield

    async def ended(self, ref: CallRef = FIRST) -> type:
        return type((await recorded(self.ledger, ref.decided.subject))[0].event)


async def opened(port: EventLog, policy: str = "supersede") -> Desk:
    desk = Desk(port, policy)
    await desk.open()
    return desk


@pytest.fixture
async def desk(port: EventLog) -> Desk:
    return await opened(port)


async def test_a_message_where_nothing_waits_costs_one_request(desk: Desk):
    """However long the thread: only questions and decisions are read, and nothing follows (B58)."""
    for number in range(20):
        await desk.hear(f"old-{number}")
    await desk.hear()
    assert await desk.handed(THREAD.said("m2")) == []
    [subjects] = desk.log.reads
    assert subjects == (
        "ledger.shop.t1.call.*.gated",
        "ledger.shop.t1.call.*.decided",
        "ledger.shop.t1.said.m2",
    )


@pytest.mark.parametrize("role", ["system", "note"])
async def test_what_no_user_said_costs_nothing(desk: Desk, role: str):
    """Notes and the system's words supersede nothing, so nothing is looked for (B58)."""
    await desk.ask()
    await desk.hear(role=role)
    assert await desk.handed(THREAD.said("m2")) == []
    assert desk.log.reads == []


@pytest.mark.parametrize("policy", ["queue", "block"])
async def test_where_messages_wait_nobody_looks_for_them(port: EventLog, policy: str):
    """What was said is not read for a wish or a vote, and a message changes no question (B58)."""
    desk = await opened(port, policy)
    await desk.request()
    await desk.hear()
    await desk.handed(FIRST.requested)
    reads = list(desk.log.reads)
    await desk.ledger.reviewer("ana").approve(FIRST)
    assert await desk.handed(THREAD.said("m2")) == []
    await desk.handed(FIRST.vote("ana"))
    assert not [
        one for one in (*reads, *desk.log.reads) if any("said" in subject for subject in one)
    ]
    assert await desk.ended() is e.Approved


async def test_a_message_beside_an_open_call_of_another_policy(port: EventLog):
    """Each question goes by the policy it was asked under, whatever is in force later (B58)."""
    desk = await opened(port, "queue")
    await desk.ask()
    await desk.ledger.append(policy_slot("shop", 2), applied(TEXT["supersede"]))
    await desk.ask(SECOND)
    await desk.ledger.append(policy_slot("shop", 3), applied(TEXT["queue"]))
    await desk.hear()
    await desk.handed(THREAD.said("m2"))
    assert (await desk.ledger.call(FIRST)).status is Status.PENDING
    assert (await desk.ledger.call(SECOND)).status is Status.SUPERSEDED


# -------------------------------------------------------------------------------------- every order


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["request", "say", "look at request", "look at said"]))
)
async def test_whoever_comes_last_sees_it(order: tuple[str, ...]):
    """Recorded and handed out in any order, and then once more: a message after the wish ends it,
    one before it does not (B58).
    """
    desk = await opened(Memory())
    looks = {"look at request": FIRST.requested, "look at said": THREAD.said("m2")}
    looked_too_early = []
    for step in order:
        if step == "request":
            await desk.request()
        elif step == "say":
            await desk.hear()
        elif await desk.ledger.read(looks[step]):
            await desk.handed(looks[step])
        else:
            looked_too_early.append(looks[step])
    for slot in (*looked_too_early, FIRST.requested):  # the second look that follows a question
        await desk.handed(slot)
    status = (await desk.ledger.call(FIRST)).status
    moot = order.index("request") < order.index("say")
    assert status is (Status.SUPERSEDED if moot else Status.PENDING)


async def test_said_before_the_gate_came_to_the_wish(desk: Desk):
    """A gate that was away asks nobody in earnest: people find nothing to decide (B58)."""
    await desk.request()
    await desk.hear()
    async with desk.gate():
        assert await desk.ended() is e.Superseded
    assert await kinds(desk.ledger, FIRST) == ["ToolRequested", "ApprovalRequested", "Superseded"]


async def test_said_between_the_reading_and_the_question(desk: Desk):
    """The gate read that nothing was said; then it was, before the question stands (B58)."""
    desk.log.before[FIRST.gated] = desk.hear
    async with desk.gate():
        await desk.request()
        assert await desk.ended() is e.Superseded


async def test_said_and_looked_at_before_the_question(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    """The message is handled before a question stands: who records it looks too (B58)."""
    handled = asyncio.Event()
    look = Gate.load

    async def looked(gate: Gate, ledger: Ledger, handed: Delivered) -> object:
        seen = await look(gate, ledger, handed)
        if isinstance(seen, MootCalls):
            assert seen.cases == ()
            handled.set()
        return seen

    async def meanwhile() -> None:
        await desk.hear()
        await asyncio.wait_for(handled.wait(), 60)

    monkeypatch.setattr(Gate, "load", looked)
    desk.log.before[FIRST.gated] = meanwhile
    async with desk.gate():
        await desk.request()
        assert await desk.ended() is e.Superseded


async def test_said_just_before_a_vote_is_counted(desk: Desk):
    """The vote's handler sees the message before the vote, whichever is handed out first (B58)."""
    await desk.ask()
    await desk.hear()
    await desk.ledger.reviewer("ana").approve(FIRST)
    await desk.handed(FIRST.vote("ana"))
    assert await desk.ended() is e.Superseded


async def test_said_just_after_a_vote_is_counted(desk: Desk):
    """The message's handler sees the vote before the message, and lets it stand (B27, B58)."""
    await desk.ask()
    await desk.ledger.reviewer("ana").approve(FIRST)
    await desk.hear()
    await desk.handed(THREAD.said("m2"))
    assert await desk.ended() is e.Approved


async def test_an_edit_before_the_message_is_still_checked(desk: Desk):
    """An edit that breaks the tool's schema is no vote, for the next message too (I4, B61)."""
    for ref, arguments in ((FIRST, '{"order":17}'), (SECOND, '{"order":"A-18"}')):
        await desk.ask(ref)
        asked = (await desk.ledger.call(ref)).approval_request
        edit = e.Voted(verdict="approve", digest=asked.digest, arguments=arguments)
        await desk.ledger.append(ref.vote("ana"), edit)
    await desk.hear()
    await desk.handed(THREAD.said("m2"))
    assert (await desk.ended(FIRST), await desk.ended(SECOND)) == (e.Superseded, e.Approved)


@pytest.mark.parametrize("behind", list(itertools.product(range(5), repeat=2)))
async def test_a_replica_that_is_behind_hides_nothing(behind: tuple[int, int]):
    """However far those are who answer first: neither a message before the question is missed, nor
    a vote before the message (B58).
    """
    desk = await opened(Memory())
    start = await desk.ledger.log.last_seq()
    await desk.request()
    await desk.hear()
    await desk.handed(FIRST.requested)
    asked = (await desk.ledger.call(FIRST)).approval_request
    await desk.ledger.append(FIRST.vote("ana"), e.Voted(verdict="approve", digest=asked.digest))
    decided_by: list[object] = []
    for slot in (FIRST.requested, FIRST.vote("ana"), THREAD.said("m2")):
        [fact] = await desk.ledger.read(slot)
        desk.log.behind[:] = [start + one for one in behind]
        gate = Gate()
        steps = gate.decide(await gate.load(desk.ledger, fact), fact)
        decided_by += [
            step.event for step in steps if isinstance(step, Append) and step.slot == FIRST.decided
        ]
        desk.log.behind.clear()
    # Whoever saw no question yet asks, loses the slot, and looks again.
    assert decided_by
    assert set(map(type, decided_by)) == {e.Superseded}


@pytest.mark.parametrize("behind", range(5))
@pytest.mark.parametrize("at_once", [FIRST.vote("ana"), THREAD.said("m2")])
async def test_a_replica_that_is_behind_loses_nothing(behind: int, at_once: Slot):
    """Whoever is handed a vote or a message decides as of at least that fact, though the second
    answer is an older one (B56, B58).
    """
    desk = await opened(Memory())
    await desk.ask()
    if at_once == FIRST.vote("ana"):
        await desk.ledger.reviewer("ana").approve(FIRST)
    else:
        await desk.hear()
    [fact] = await desk.ledger.read(at_once)
    desk.log.behind[:] = [fact.seq, fact.seq - behind]
    gate = Gate()
    step, *_ = gate.decide(await gate.load(desk.ledger, fact), fact)
    assert isinstance(step, Append)
    assert step.slot == FIRST.decided


async def test_the_gate_dies_after_the_question(desk: Desk):
    """A gate recorded the question and died; the next gate finds the message (B46, B58)."""
    await desk.request()
    [fact] = await desk.ledger.read(FIRST.requested)
    gate = Gate()
    question_, _again = gate.decide(await gate.load(desk.ledger, fact), fact)
    await desk.hear()
    await desk.handed(THREAD.said("m2"))
    assert isinstance(question_, Append)
    await desk.ledger.append(question_.slot, question_.event)
    assert (await desk.ledger.call(FIRST)).status is Status.PENDING
    async with desk.gate():
        assert await desk.ended() is e.Superseded


async def test_a_deadline_that_comes_after_the_message(desk: Desk):
    """The timer's hint finds a call that a message made moot: superseded, not expired (I5)."""
    await desk.ledger.append(
        policy_slot("shop", 2),
        applied(TEXT["supersede"] + "expires_in_s = 60\n"),
    )
    await desk.ask()
    await desk.hear()
    deadline = (await desk.ledger.call(FIRST)).deadline
    assert deadline
    due = TimerFired(FIRST, 1, deadline + timedelta(seconds=1))
    gate = Gate()
    [step, _cancelled] = gate.decide(await gate.load(desk.ledger, due), due)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.Superseded)


async def test_handed_out_again_nothing_more_follows(desk: Desk):
    """Every fact of a thread that ended so, handed out again in any order, adds none (B56, B58)."""
    async with desk.gate():
        await desk.request()
        await desk.request(SECOND)
        await recorded(desk.ledger, FIRST.gated.subject, SECOND.gated.subject, count=2)
        await desk.hear()
        assert await desk.ended(FIRST) is await desk.ended(SECOND) is e.Superseded
    facts = await desk.ledger.read(THREAD)
    for fact in (*facts, *reversed(facts)):
        if fact.slot.tail[-1] in {"requested", "m2"}:
            assert not await desk.handed(fact.slot)
    assert await desk.ledger.read(THREAD) == facts


# ---------------------------------------------------------------------------------------- saying it


async def test_what_is_said_is_a_fact(desk: Desk):
    """It stands under its id, as its role, and is handed back as it was recorded (B4)."""
    fact = await desk.ledger.say("shop/t1", "be kind", message="m1", role="system", name="rules")
    assert fact.slot == THREAD.said("m1")
    assert [fact] == list(await desk.ledger.read(THREAD))
    assert isinstance(fact.event, e.Said)
    assert (fact.event.role, fact.event.text, fact.event.name) == ("system", "be kind", "rules")
    assert fact.event.by == e.Author(kind="service", name="desk")


async def test_said_again_is_said_once(desk: Desk):
    """A service that retries, twenty times at once or after a restart, has said it once (B26)."""
    facts = await asyncio.gather(
        *(desk.ledger.say(THREAD, "hello", message="m1") for _ in range(20))
    )
    assert list(await desk.ledger.read(THREAD)) == [facts[0]]
    assert {fact.seq for fact in facts} == {facts[0].seq}
    assert await desk.ledger.say(THREAD, "hello", message="m1") == facts[0]


@pytest.mark.parametrize(
    ("text", "more"), [("good-bye", {}), ("hello", {"name": "rita"}), ("hello", {"role": "note"})]
)
async def test_an_id_is_of_one_message(desk: Desk, text: str, more: dict[str, Any]):
    """Something else under a used id is refused, naming what stands there; nothing changes (B4)."""
    first = await desk.ledger.say(THREAD, "hello", message="m1")
    with pytest.raises(
        AlreadyFilled, match=r"else was said as 'm1' in shop/t1: Said by desk at 20.* Choose"
    ):
        await desk.ledger.say(THREAD, text, message="m1", **more)
    assert list(await desk.ledger.read(THREAD)) == [first]


@pytest.mark.parametrize(
    ("thread", "message", "role", "kind"),
    [
        (THREAD, "m.1", "user", BadId),
        (THREAD, "*", "user", BadId),
        ("shop/*", "m1", "user", BadId),
        ("shop/t1/c1", "m1", "user", BadInput),
        (THREAD, "m1", "robot", BadInput),
        (THREAD, "m1", "", BadInput),
    ],
)
async def test_what_cannot_be_said_is_not_recorded(desk, thread, message, role, kind):
    """An id, a thread or a role that is none is told in words, and the log gets no broken fact."""
    before = await desk.ledger.log.last_seq()
    with pytest.raises(kind):
        await desk.ledger.say(thread, "hello", message=message, role=role)
    assert await desk.ledger.log.last_seq() == before


async def test_blocked_until_the_call_is_decided(port: EventLog):
    """Refused in words that name the call, and nothing recorded; said once it is decided (B58)."""
    desk = await opened(port, "block")
    await desk.ask()
    before = await port.last_seq()
    with pytest.raises(StillPending) as raised:
        await desk.ledger.say(THREAD, "wait, it is B-40", message="m2")
    assert str(raised.value) == (
        "shop/t1/1-0 waits for people, and the policy lets no user say anything before it is "
        "decided. "
        "Nothing was recorded. Say it again then, or withdraw the call."
    )
    assert (raised.value.exit_code, await port.last_seq()) == (1, before)
    await desk.ledger.reviewer("ana").deny(FIRST)
    await desk.handed(FIRST.vote("ana"))
    assert (await desk.ledger.say(THREAD, "wait, it is B-40", message="m2")).seq == before + 3


async def test_only_users_and_only_new_words_are_blocked(port: EventLog):
    """Notes, another thread, and words before the question are not its business (B4, B58)."""
    desk = await opened(port, "block")
    first = await desk.ledger.say(THREAD, "refund A-17", message="m1")
    await desk.request()
    await desk.ledger.say(THREAD, "hurry", message="m2")  # requested, but nobody is asked yet
    await desk.handed(FIRST.requested)
    await desk.ledger.say(THREAD, "it rains", message="n1", role="note")
    await desk.ledger.say(THREAD, "be kind", message="s1", role="system")
    await desk.ledger.say("shop/t2", "hello", message="m1")
    assert await desk.ledger.say(THREAD, "refund A-17", message="m1") == first


@pytest.mark.parametrize("policy", ["queue", "supersede"])
async def test_nobody_is_blocked_by_another_policy(port: EventLog, policy: str):
    """Where a message may wait, or ends the call, it is recorded at once (B58)."""
    desk = await opened(port, policy)
    await desk.ask()
    await desk.ledger.say(THREAD, "wait, it is B-40", message="m2")


# ---------------------------------------------------------------------------------- the whole chain

NEW = "Stop, I meant B-40."


def check_history(thread: Thread, *, messages: int = 1) -> list[Entry]:
    """What the model goes on from: the message once, after all outcomes, for every provider."""
    entries = history(thread, before_turn=2).entries
    assert [one for one in entries if isinstance(one, User)].count(User(NEW)) == messages
    outcomes = [place for place, one in enumerate(entries) if isinstance(one, Outcome)]
    assert len(outcomes) == len(thread.wishes(1))
    assert list(entries).index(User(NEW)) > max(outcomes)
    assert isinstance(entries[min(outcomes) - 1], Assistant)
    for name, (write, check) in FORMATS.items():
        assert check(write(entries)) == [], name
    return list(entries)


@pytest.mark.parametrize("verdict", ["approve", "deny"])
@pytest.mark.parametrize("policy", ["queue", "supersede", "block"])
async def test_what_the_model_reads_in_the_end(port: EventLog, policy: str, verdict: str):
    """Said while a call waits, under each policy, approved or denied: the call has its outcome and
    the message follows it, once (B4, B10, B58, I5).
    """
    async with talking(port, [e.Text("Let me see."), REFUND], [DONE], policy=TEXT[policy]) as chain:
        await chain.shown()
        if policy == "block":
            with pytest.raises(StillPending, match="shop/t1/1-0 waits for people"):
                await chain.ledger.say(THREAD, NEW, message="m2")
            # Another language says it all the same.
            await chain.say("m2", NEW)
        else:
            await chain.ledger.say(THREAD, NEW, message="m2")
        if policy == "supersede":
            await chain.until(lambda thread: thread.call(FIRST).decided)
            with pytest.raises(AlreadyDecided, match="Superseded at 20"):
                await chain.ledger.reviewer("ana").vote(FIRST, Ballot(verdict))
        else:
            await chain.until(
                lambda thread: THREAD.said("m2") in [fact.slot for fact in thread.said]
            )
            assert (await chain.ledger.call(FIRST)).status is Status.PENDING
            await chain.ledger.reviewer("ana").vote(FIRST, Ballot(verdict))
        thread = await chain.answered(2)
        assert await port.pending.entries() == {}
    entries = check_history(thread)
    assert chain.model.asked[1].history == tuple(entries)
    assert len(chain.model.asked) == 2
    [told_] = chain.model.read(2)
    ending = (
        "superseded"
        if policy == "supersede"
        else {"approve": "returned", "deny": "denied"}[verdict]
    )
    assert told_.kind == ending
    assert chain.ran == (["A-17"] if ending == "returned" else [])
    if policy == "supersede":
        assert told_.text == (
            "`refund` did not run: something newer came before it was decided, and the call no "
            "longer stands. "
            "What came: The user said something new, message 'm2'."
        )


async def test_what_is_approved_goes_on(port: EventLog):
    """Three calls, one approved before the message: it runs; the other two are superseded together;
    then the model goes on (B12, B58).
    """
    third = e.Wish(tool="refund", arguments='{"order":"C-3"}', provider_id="call_a")
    async with talking(port, [REFUND, OTHER, third], [DONE], policy=TEXT["supersede"]) as chain:
        await chain.shown(3)
        await chain.ledger.reviewer("ana").approve(SECOND)
        await chain.until(lambda thread: thread.call(SECOND).decided)
        await chain.ledger.say(THREAD, NEW, message="m2")
        thread = await chain.answered(2)
        assert await port.pending.entries() == {}
    assert [told_.kind for told_ in chain.model.read(2)] == ["superseded", "returned", "superseded"]
    assert chain.ran == ["B-40"]
    check_history(thread)


async def test_the_new_message_gets_a_new_wish(port: EventLog):
    """The model wishes again after the message, and that question stands: a message ends no call
    that was wished after it (B20, B58).
    """
    async with talking(port, [REFUND], [OTHER], [DONE], policy=TEXT["supersede"]) as chain:
        await chain.shown()
        await chain.ledger.say(THREAD, NEW, message="m2")
        await chain.until(lambda thread: thread.call(THREAD.wish(2, 0)).status is Status.PENDING)
        await chain.ledger.reviewer("ana").approve(THREAD.wish(2, 0))
        thread = await chain.answered(3)
    assert chain.ran == ["B-40"]
    assert [told_.kind for told_ in chain.model.read(3)] == ["superseded", "returned"]
    check_history(thread)


@pytest.mark.log("memory", "jetstream")
async def test_two_of_every_worker_and_a_message(port: EventLog):
    """Twenty calls, two of all: each superseded once, the model asked once (B43, B57, B58)."""
    wishes = [e.Wish(tool="refund", arguments=f'{{"order":"A-{number}"}}') for number in range(20)]
    chain = Chain(port, Script(wishes, [DONE]))
    await chain.begin(TEXT["supersede"])
    async with chain.at_work(), chain.at_work():
        await chain.shown(20)
        await asyncio.gather(
            *(chain.ledger.say(THREAD, NEW, message="m2") for _ in range(3)),
            chain.ledger.say(THREAD, NEW, message="m3"),
        )
        thread = await chain.answered(2)
    assert {type(call.decided.event) for call in thread.calls.values() if call.decided} == {
        e.Superseded
    }
    assert (len(thread.calls), len(chain.model.asked), chain.ran) == (20, 2, [])
    check_history(thread, messages=2)


# ------------------------------------------------------------------------- on the real broker alone


@pytest.mark.parametrize("times", sampled((40, 200), 40))
async def test_two_reviewers_and_the_user_at_the_same_moment(store: Path, times: int):
    """Yes, no and a message at once, each under their own credentials: the first in the log wins,
    and everybody is told that (B27, B28, B29, B58, I5, I6).
    """
    for name in ("reviewer-ana", "reviewer-ben"):
        await ensure_account(store, name)
    async with (
        Ledger.connect(store, role="service", name="desk") as service,
        Ledger.connect(store, role="operator") as operator,
        Ledger.connect(store, role="reviewer-ana") as ana,
        Ledger.connect(store, role="reviewer-ben") as ben,
    ):
        await operator.append(policy_slot("shop", 1), applied(TEXT["supersede"]))
        await service.declare("shop", ToolSpec(name="refund", schema=SCHEMA))
        refs = [ThreadRef("shop", f"t{number}").call("refund-1") for number in range(times)]
        some = asyncio.Semaphore(16)

        async def click(ledger: Ledger, ref: CallRef, verdict: str) -> str:
            try:
                await ledger.reviewer(ledger.author.name).vote(ref, Ballot(verdict))
            except AlreadyDecided as late:
                return str(late)
            return ""

        async def all_at_once(number: int, ref: CallRef) -> list[str]:
            clicks = [click(ana, ref, "approve"), click(ben, ref, "deny"), _said(service, ref)]
            luck = random.Random(number)
            async with some:
                if (
                    number % 10 < 3
                ):  # a few are quicker than the others, so that each of them wins somewhere
                    first = await clicks.pop(number % 10)
                    return [first, *await asyncio.gather(*clicks)]
                return await asyncio.gather(
                    *(_after(luck.uniform(0, 0.005), one) for one in clicks)
                )

        async with working([("gate", Gate()), ("gate", Gate())], store=store):
            await asyncio.gather(
                *(service.request(ref, "refund", {"order": ref.thread}) for ref in refs)
            )
            await recorded(service, "ledger.*.*.call.*.gated", count=len(refs))
            heard = await asyncio.gather(
                *(all_at_once(number, ref) for number, ref in enumerate(refs))
            )
            await recorded(service, "ledger.*.*.call.*.decided", count=len(refs))
        winners: set[str] = set()
        for ref, words in zip(refs, heard, strict=True):
            facts = await service.read(ref.thread_ref)
            thread = thread_of(ref.thread_ref, facts)
            call = thread.call(ref)
            first = min((*call.votes, *thread.said), key=lambda fact: fact.seq).slot.tail[-1]
            winner = type(call.decided.event).__name__
            assert winner == {"ana": "Approved", "ben": "Denied", "m2": "Superseded"}[first]
            winners.add(winner)
            assert len(thread.said) == 1
            refused = [one for one in words if one]
            assert len(refused) + len(call.votes) == 2
            verdict = describe(call.decided)
            assert verdict.startswith(f"{winner} ")
            told_ = f"{ref} is already decided: {verdict}. Nothing was recorded."
            assert refused == [told_] * len(refused)
    assert winners == {"Approved", "Denied", "Superseded"}


async def _said(ledger: Ledger, ref: CallRef) -> str:
    await ledger.say(ref.thread_ref, NEW, message="m2")
    return ""


async def _after(wait_s: float, doing: Awaitable[str]) -> str:
    await asyncio.sleep(wait_s)
    return await doing
