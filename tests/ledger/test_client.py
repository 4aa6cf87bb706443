"""The ledger as a service and a reviewer use it: what is refused, in which words, and that nothing
was recorded then.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from brokers import running
from confirming import Confirming
from msgspec.structs import replace

from ayes.ledger import clock, patience
from ayes.ledger.clients import client
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import AlreadyRecorded, AppendResult, EventLog, Recorded, Unconfirmed
from ayes.ledger.nats import ordered_consumer
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import info
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.server import EmbeddedServer, ensure_account
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.codec import Fact
from ayes.schemas.content import attached
from ayes.schemas.digest import call_digest, text_digest
from ayes.schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    ApprovalsError,
    BadArguments,
    BadId,
    BadInput,
    BadSlot,
    BrokerAway,
    BrokerRefused,
    DeadlinePassed,
    Defect,
    LedgerFull,
    LogDamaged,
    LogLost,
    NotAllowed,
    NotOpen,
    OutcomeUnknown,
    Refused,
    StoreHeld,
    Unavailable,
    UnknownCall,
    UnknownTool,
    WaitTimedOut,
)
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, Slot, ThreadRef, file_piece, policy_slot
from ayes.schemas.tools import ToolSpec

THREAD = ThreadRef("shop", "t1")
CALL = THREAD.call("refund-1")
SCHEMA = (
    '{"type":"object","properties":{"order":{"type":"string"}},'
    '"required":["order"],"additionalProperties":false}'
)
REFUND = ToolSpec(name="refund", schema=SCHEMA)
WIRE = ToolSpec(name="wire", schema='{"type":"object"}', run_by="executor")


@pytest.fixture
async def desk(ledger: Ledger) -> Ledger:
    """A service, in a workspace with two tools."""
    await ledger.declare("shop", REFUND)
    await ledger.declare("shop", WIRE)
    return ledger


async def requested(desk: Ledger, ref: CallRef = CALL, tool: str = "refund") -> str:
    """Ask for it; hand back the digest."""
    arguments = {"order": "A-17"} if tool == "refund" else {}
    return (await desk.request(ref, tool, arguments, requester="rita")).wish.digest


async def put_to_people(desk: Ledger, ref: CallRef = CALL, **asking: Any) -> str:
    """Ask for it, and be the gate that asks people."""
    digest = await requested(desk, ref)
    asked = {"voters": ("ana", "ben"), "excluded": ("rita",)} | asking
    await desk.append(
        ref.gated, e.ApprovalRequested(digest=digest, rule="money", policy_version=1, **asked)
    )
    return digest


async def approved(desk: Ledger, ref: CallRef = CALL, tool: str = "refund") -> str:
    """Ask for it, and be the gate that approves."""
    digest = await requested(desk, ref, tool)
    approval = e.Approved(
        digest=digest, ground="people", rule="money", policy_version=1, voters=("ana",)
    )
    await desk.append(ref.decided, approval)
    return digest


@asynccontextmanager
async def nothing_recorded(ledger: Ledger) -> AsyncIterator[None]:
    before = await ledger.log.last_seq()
    yield
    assert await ledger.log.last_seq() == before


async def refused(
    ledger: Ledger, doing: Awaitable[object], kind: type[Exception], sentence: str
) -> None:
    """It raises just this, in just these words, and nothing was recorded."""
    async with nothing_recorded(ledger):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - its type and words are compared below
            await doing
    assert (type(raised.value), str(raised.value)) == (kind, sentence)


async def not_open(desk: Ledger, doing: Awaitable[object], how: str, done: str) -> None:
    await refused(desk, doing, NotOpen, f"shop/t1/{how}, so it cannot be {done}.")


async def unknown(desk: Ledger, doing: Awaitable[object], call: str) -> None:
    sentence = f"shop/t1/{call} was never requested. `ayes pending` lists what waits."
    await refused(desk, doing, UnknownCall, sentence)


# --------------------------------------------------------------------------------------- requesting

NO_ID = (
    "an id is 1 to 64 characters of A-Z a-z 0-9 _ - and does not start with _. "
    "Rename it, without dots, spaces or slashes."
)
REQUESTS = [
    ("an unknown tool", "shop/t1/c1", "cancel", "{}", UnknownTool,
     "no tool 'cancel' is declared in workspace 'shop'. Declared are: refund, wire."),
    ("another workspace", "acme/t1/c1", "refund", "{}", UnknownTool,
     "no tool 'refund' is declared in workspace 'acme'. Declared are: none."),
    ("a name that no tool can have", "shop/t1/c1", "re.fund", "{}", UnknownTool,
     "no tool 're.fund' is declared in workspace 'shop'. Declared are: refund, wire."),
    ("misfit arguments", "shop/t1/c1", "refund", {"order": 17}, BadArguments,
     ('The arguments of refund do not fit its schema: '
      'at /order, the value is not of type "string".')),
    ("malformed arguments", "shop/t1/c1", "refund", '{"order":', BadArguments,
     "The arguments of refund cannot be read: it is no JSON: Expecting value (at character 10)."),
    ("a key twice", "shop/t1/c1", "refund", '{"order":"A","order":"B"}', BadArguments,
     'The arguments of refund cannot be read: the key "order" stands twice in one object.'),
    ("what JSON has not", "shop/t1/c1", "refund", {"order": object}, BadArguments,
     "The arguments cannot be written as JSON: Encoding objects of type type is unsupported."),
    ("what Unicode has not", "shop/t1/c1", "refund", {"order": "\ud800"}, BadArguments,
     ("The arguments cannot be written as JSON: "
      "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed.")),
    ("an id with a dot", "shop/t1/c.1", "refund", {"order": "A-17"}, BadId,
     f"call 'c.1' cannot be used: {NO_ID}"),
    ("an id with a space", "shop/t 1/c1", "refund", {"order": "A-17"}, BadId,
     f"thread 't 1' cannot be used: {NO_ID}"),
    ("an id with a wildcard", "shop/t1/*", "refund", {"order": "A-17"}, BadId,
     f"call '*' cannot be used: {NO_ID}"),
    ("an id of ours", "_policy/t1/c1", "refund", {"order": "A-17"}, BadId,
     f"workspace '_policy' cannot be used: {NO_ID}"),
    ("an empty id", "shop/t1/", "refund", {"order": "A-17"}, BadId,
     f"call '' cannot be used: {NO_ID}"),
    ("no call", "shop/t1", "refund", {"order": "A-17"}, BadSlot,
     "'shop/t1' is not of the form workspace/thread/call: 2 parts instead of 3."),
    ("no thread", "shop", "refund", {"order": "A-17"}, BadSlot,
     "'shop' is not of the form workspace/thread/call: 1 part instead of 3."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "tool", "arguments", "kind", "sentence"),
    [pytest.param(*row, id=name) for name, *row in REQUESTS],
)
@pytest.mark.log("memory")
async def test_a_request_that_could_never_run_is_refused(
    desk: Ledger, call: str, tool: str, arguments: Any, kind: type[Exception], sentence: str
):
    """Before anything is recorded or anybody is asked, with one sentence of why (B25, B66, I4)."""
    await refused(desk, desk.request(call, tool, arguments), kind, sentence)


async def test_raw_arguments_are_kept_byte_for_byte(desk: Ledger):
    """Text stays as it is, and the digest is over it; a dict is written out once (B61)."""
    spaced = '{ "order" : "A-17" }'
    call = await desk.request(CALL, "refund", spaced, requester="rita")
    assert call.status is Status.REQUESTED
    assert call.wish.arguments == spaced
    assert call.wish.digest == call_digest("refund", call.wish.tool_version, spaced)
    assert (call.wish.requester, call.wish.run_by) == ("rita", "client")
    other = await desk.request(str(THREAD.call("other")), "refund", {"order": "Grüße"})
    assert other.wish.arguments == '{"order":"Grüße"}'
    assert other.wish.requester == "tests"


async def test_asking_again_resumes(desk: Ledger):
    """The same request again, also many at once, is the same call, however far it is (B48)."""
    calls = await asyncio.gather(
        *(desk.request(CALL, "refund", {"order": "A-17"}) for _ in range(20))
    )
    assert len(await desk.read(CALL)) == 1
    assert len({call.wish.id for call in calls}) == 1
    await desk.append(CALL.decided, e.Expired(rule="r", policy_version=1, after_s=60))
    async with nothing_recorded(desk):
        assert (await desk.request(CALL, "refund", {"order": "A-17"})).status is Status.EXPIRED


async def test_the_same_id_for_something_else_is_refused(desk: Ledger):
    """Same call id, other arguments, another tool, or other spelling of the same: an error that
    says what stands there (B50).
    """
    call = await desk.request(CALL, "refund", {"order": "A-17"})
    first = f"ToolRequested by tests at {call.requested.recorded_at:%Y-%m-%d %H:%M:%S} UTC"
    sentence = (
        f"shop/t1/refund-1 was already requested with other arguments or another tool: {first}. "
        "Choose another call id."
    )
    for tool, arguments in (
        ("refund", {"order": "B-40"}),
        ("refund", '{"order": "A-17"}'),
        ("wire", {}),
    ):
        await refused(desk, desk.request(CALL, tool, arguments), AlreadyFilled, sentence)


async def test_a_tool_declared_again_is_another_version(desk: Ledger):
    """A request is checked against the newest contract; one that was made keeps its own."""
    first = await desk.request(CALL, "refund", {"order": "A-17"})
    await desk.declare("shop", ToolSpec(name="refund", schema='{"type":"object"}'))
    second = await desk.request(THREAD.call("c2"), "refund", {"anything": 1})
    assert first.wish.tool_version != second.wish.tool_version
    async with nothing_recorded(desk):
        await desk.declare("shop", REFUND)


# ------------------------------------------------------------------------------------------ waiting


async def test_waiting_for_a_decision(desk: Ledger):
    """It returns when it is decided, at once if it was; waiting changes nothing (B51)."""
    await put_to_people(desk)
    async with nothing_recorded(desk):
        await refused(
            desk, desk.decision(CALL, timeout_s=0.05), WaitTimedOut,
            "shop/t1/refund-1 is not decided after 0.05 s. It stays open.",
        )  # fmt: skip
    waiting = [asyncio.create_task(desk.decision(CALL)) for _ in range(3)]
    await asyncio.sleep(0)
    await desk.append(CALL.decided, e.Withdrawn())
    assert {(await one).status for one in waiting} == {Status.WITHDRAWN}
    assert (await desk.decision("shop/t1/refund-1")).status is Status.WITHDRAWN


async def test_waiting_until_something_is_true_of_a_call(desk: Ledger):
    """The call is returned as soon as it is so, or as it is when the time is up."""
    await desk.declare("shop", REFUND)
    call = await desk.request(CALL, "refund", {"order": "A-17"}, requester="rita")
    assert await desk.until(call, lambda one: one.requested is not None, 20) == call
    waiting = asyncio.create_task(desk.until(CALL, lambda one: one.withdrawn is not None, 20))
    await desk.withdraw(CALL)
    withdrawn = await waiting
    assert withdrawn.withdrawn is not None
    assert await desk.until(call, lambda one: one.finished is not None, 0.05) == withdrawn
    with pytest.raises(UnknownCall):
        await desk.until(THREAD.call("nobody"), lambda _: True, 20)


# ------------------------------------------------------------------------------------------- voting


async def test_a_vote_is_recorded_about_what_waits(desk: Ledger):
    """With its reason and the digest of the arguments; pending until the gate decides (B32, I2)."""
    digest = await put_to_people(desk)
    call = await desk.reviewer("ana").deny(CALL, reason="not this one")
    assert call.status is Status.PENDING
    [vote] = call.votes
    assert isinstance(vote.event, e.Voted)
    assert (vote.slot, vote.event.verdict, vote.event.digest, vote.event.reason) == (
        CALL.vote("ana"), "deny", digest, "not this one"
    )  # fmt: skip


VOTES: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ("somebody else", ("cy", "approve"), {}, NotAllowed,
     "cy is none of those who may vote on shop/t1/refund-1. Rule 'money' asks ana, ben."),
    ("the requester", ("rita", "approve"), {}, NotAllowed,
     ("rita asked for shop/t1/refund-1, or is behind the agent that did, and does not count. "
      "Somebody else must.")),
    ("no name", ("a.na", "approve"), {}, BadId, f"reviewer 'a.na' cannot be used: {NO_ID}"),
    ("no verdict", ("ana", "maybe"), {}, BadInput,
     "'maybe' is not a valid verdict. The verdicts are: approve, deny, answer, break_glass."),
    ("a verdict in other letters", ("ana", "Approve"), {}, BadInput,
     "'Approve' is not a valid verdict. The verdicts are: approve, deny, answer, break_glass."),
    ("broken glass, by somebody who may not", ("ana", "break_glass"), {"reason": "fire"},
     NotAllowed,
     ("ana is none of those who may break the glass for shop/t1/refund-1. "
      "Rule 'money' asks nobody.")),
    *((f"{name} with {verdict}", ("ana", verdict), {"reason": "so", name: value}, BadInput,
       f"{name} goes with {rightly}, and the verdict is {verdict}. Nothing was recorded.")
      for name, value, rightly, verdicts in (
          ("arguments", '{"order":"A-18"}', "approve", ("deny", "answer", "break_glass")),
          ("answer", "use 42", "answer", ("approve", "deny", "break_glass")),
          ("is_error", True, "answer", ("approve", "deny", "break_glass")),
          ("halt", True, "deny or answer", ("approve", "break_glass")),
      )
      for verdict in verdicts),
    *((f"the tool's name with {verdict}", ("ana", verdict), {"typed": "refund"}, BadInput,
       ("typed goes with approve or break_glass, and the verdict is "
        f"{verdict}. Nothing was recorded."))
      for verdict in ("deny", "answer")),
    ("the name of another tool", ("ana", "approve"), {"typed": "refunds"}, BadInput,
     "shop/t1/refund-1 runs refund, and not 'refunds'. Nothing was recorded."),
    ("in the place of somebody who gave no word", ("cy", "approve"), {"on_behalf_of": "ana"},
     NotAllowed, "ana gave cy no vote on refund that holds now. Nothing was recorded."),
    ("in the place of somebody who was not asked", ("ana", "approve"), {"on_behalf_of": "cy"},
     NotAllowed,
     "cy is none of those who may vote on shop/t1/refund-1. Rule 'money' asks ana, ben."),
    ("in the place of the requester", ("ana", "approve"), {"on_behalf_of": "rita"}, NotAllowed,
     ("rita asked for shop/t1/refund-1, or is behind the agent that did, and does not count. "
      "Somebody else must.")),
    ("the requester, in another's place", ("rita", "approve"), {"on_behalf_of": "ana"}, NotAllowed,
     ("rita asked for shop/t1/refund-1, or is behind the agent that did, and does not count. "
      "Somebody else must.")),
    ("a misfit edit", ("ana", "approve"), {"arguments": '{"order":17}'}, BadArguments,
     ('The arguments of refund do not fit its schema: '
      'at /order, the value is not of type "string".')),
    ("a malformed edit", ("ana", "approve"), {"arguments": "{"}, BadArguments,
     ("The arguments of refund cannot be read: it is no JSON: "
      "Expecting property name enclosed in double quotes (at character 2).")),
]  # fmt: skip


@pytest.mark.log("memory")
async def test_a_vote_is_bound_to_its_policy_however_many_are_kept(desk, monkeypatch):
    """The client keeps some versions of policies, and reads the others again."""
    monkeypatch.setattr(client, "_MAX_NAMED", 2)
    texts = [f"# {version}\n" for version in range(1, 6)]
    calls = []
    for version, text in enumerate(texts, 1):
        ref = THREAD.call(f"c{version}")
        await desk.append(policy_slot("shop", version), applied(text))
        asked = e.ApprovalRequested(
            digest=await requested(desk, ref), rule="money", policy_version=version
        )
        await desk.append(ref.gated, asked)
        calls.append(await desk.known_call(ref))
    for call, text in zip(calls * 2, texts * 2, strict=True):
        for reader in (desk, desk.reading_from(desk.log)):
            assert (await reader.bound(call, "log")).policy == text_digest(text)
            assert 0 < len(desk._named) <= 2


@pytest.mark.parametrize(
    ("vote", "rest", "kind", "sentence"), [pytest.param(*row, id=name) for name, *row in VOTES]
)
@pytest.mark.log("memory")
async def test_a_vote_that_does_not_count_is_refused(desk, vote, rest, kind, sentence):
    """Not these people, and not like this; the slot stays free (B40, B68, B73). What a verdict
    does not use is not dropped: an approval with an answer let the tool run.
    """
    await put_to_people(desk)
    name, verdict = vote
    voting = desk.reviewer(name).vote(CALL, Ballot(verdict, **rest))
    await refused(desk, voting, kind, sentence)


async def test_each_verdict_is_recorded_as_the_reviewers_vote(desk: Ledger):
    """Approve, deny, answer, break the glass: each is a vote in its reviewer's slot (B26)."""
    people = [desk.reviewer(name) for name in ("ana", "ben")]
    refs = [THREAD.call(f"by-name-{number}") for number in range(3)]
    for ref in refs:
        await put_to_people(desk, ref)
    said = [
        await people[0].approve(refs[0], reason="fine"),
        await people[1].vote(refs[0], Ballot("deny", reason="no", halt=True)),
        await people[0].vote(refs[1], Ballot("answer", answer="by hand")),
    ]
    votes = [call.votes[-1] for call in said]
    assert [(vote.slot.tail[3], vote.event.verdict, vote.event.reason) for vote in votes] == [
        ("ana", "approve", "fine"), ("ben", "deny", "no"), ("ana", "answer", ""),
    ]  # fmt: skip
    assert (votes[1].event.halt, votes[2].event.answer) == (True, "by hand")
    with pytest.raises(NotAllowed, match="glass"):
        await people[0].vote(refs[2], Ballot("break_glass", reason="fire"))


async def test_a_reviewer_gives_nothing_in_the_name_of_another(desk: Ledger):
    """A grant or a delegation is its giver's word; refused before the broker does (B39, B66)."""
    ben, now = desk.reviewer("ben"), desk.now()
    for giving in (
        ben.grant("shop/ana/small", "refund", for_s=60),
        ben.delegate("shop/ana/leave", "cy", starts_at=now, ends_at=now + timedelta(hours=1)),
        ben.end_delegation("shop/ana/leave"),
    ):
        with pytest.raises(NotAllowed, match="only ana can give or end shop/ana/"):
            await giving
    assert (await desk.grants("shop"), await desk.delegations("shop")) == ((), ())


async def test_a_vote_on_what_does_not_wait_is_refused(desk: Ledger):
    """Unknown, not asked about, decided, voted on: each in its own words (B26, B27, B29, B31)."""
    await unknown(desk, desk.reviewer("ana").approve("shop/t1/nobody"), "nobody")
    fresh = THREAD.call("fresh")
    await requested(desk, fresh)
    await refused(
        desk, desk.reviewer("ana").approve(fresh), NotOpen,
        "shop/t1/fresh is requested, so it cannot be voted on. No gate has judged it yet.",
    )  # fmt: skip
    await put_to_people(desk)
    [voted] = (await desk.reviewer("ana").approve(CALL)).votes
    await refused(
        desk, desk.reviewer("ana").deny(CALL), AlreadyFilled,
        f"ana has already voted on shop/t1/refund-1: Voted by ana at {_at(voted)}. Nothing "
        "was recorded.",
    )  # fmt: skip
    no = e.Denied(ground="people", rule="money", policy_version=1, voters=("ben",))
    await desk.append(CALL.decided, no)
    decided = (await desk.call(CALL)).decided
    assert decided
    for reviewer in ("ana", "ben", "cy"):
        await refused(
            desk, desk.reviewer(reviewer).approve(CALL), AlreadyDecided,
            f"shop/t1/refund-1 is already decided: Denied by ben at {_at(decided)}. Nothing was "
            "recorded.",
        )  # fmt: skip


def _at(fact: Fact) -> str:
    return f"{fact.recorded_at:%Y-%m-%d %H:%M:%S} UTC"


async def test_a_vote_after_the_deadline_is_refused(port: EventLog):
    """Also when no gate has recorded yet that it expired (B36, B42)."""
    desk = Ledger(port, e.Author(kind="service", name="tests"))
    await desk.declare("shop", REFUND)
    await put_to_people(desk, expires_in_s=1)
    deadline = (await desk.call(CALL)).deadline
    assert deadline
    while await port.clock() <= deadline:  # noqa: ASYNC110 - the broker tells nobody
        await asyncio.sleep(0.05)
    await refused(
        desk, desk.reviewer("ana").approve(CALL), DeadlinePassed,
        f"shop/t1/refund-1 expired at {deadline:%Y-%m-%d %H:%M:%S} UTC. Nothing was recorded.",
    )  # fmt: skip


async def test_a_deadline_is_a_time_of_the_broker(port: EventLog):
    """A reviewer whose own clock is ahead may vote until the broker's clock says otherwise."""
    ahead = Ledger(
        port, e.Author(kind="service", name="tests"), now=lambda: clock.now() + timedelta(hours=1)
    )
    await ahead.declare("shop", REFUND)
    await put_to_people(ahead, expires_in_s=60)
    assert (await ahead.reviewer("ana").approve(CALL)).votes


async def test_one_person_clicks_twice(desk: Ledger):
    """Twenty clicks of one person at once are one vote; the rest hear that it stands (B57)."""
    await put_to_people(desk)
    clicks = await asyncio.gather(
        *(desk.reviewer("ana").approve(CALL) for _ in range(20)), return_exceptions=True
    )
    assert sum(isinstance(one, AlreadyFilled) for one in clicks) == 19
    assert len((await desk.call(CALL)).votes) == 1


# ------------------------------------------------------------------------------- running it oneself


class Counted:
    """A tool that counts its runs."""

    def __init__(self, says: str = "refunded") -> None:
        self.runs = 0
        self.says = says

    async def __call__(self, order: str) -> str:
        self.runs += 1
        await asyncio.sleep(0)
        return f"{self.says} {order}"


async def test_a_client_runs_its_own_tool_once(desk: Ledger):
    """Claimed, run, written down; a second run is refused, and ten at once are one (I6, B48)."""
    await approved(desk)
    tool = Counted()
    outcomes = await asyncio.gather(
        *(desk.run(CALL, tool) for _ in range(10)), return_exceptions=True
    )
    assert [one for one in outcomes if not isinstance(one, AlreadyFilled)] == [
        e.ToolReturned(output="refunded A-17")
    ]
    assert tool.runs == 1
    call = await desk.call(CALL)
    assert call.status is Status.RETURNED
    await refused(
        desk, desk.run(CALL, tool), AlreadyFilled,
        "shop/t1/refund-1 is already claimed: ToolStarted by tests at "
        f"{_at(call.claims[0])}. Nothing was recorded.",
    )  # fmt: skip
    assert tool.runs == 1


async def test_what_was_not_approved_does_not_run(desk: Ledger):
    """Not asked for, waiting, denied, other bytes, or not its own: refused (I1, B61, B73)."""
    tool = Counted()
    await unknown(desk, desk.run(CALL, tool), "refund-1")
    await put_to_people(desk)
    await not_open(desk, desk.run(CALL, tool), "refund-1 is pending", "started")
    await desk.append(CALL.decided, e.Denied(ground="people", rule="money", policy_version=1))
    await not_open(desk, desk.run(CALL, tool), "refund-1 is denied", "started")
    tampered, wired = THREAD.call("tampered"), THREAD.call("wired")
    await requested(desk, tampered)
    await desk.append(
        tampered.decided,
        e.Approved(digest="0" * 64, ground="people", rule="money", policy_version=1),
    )
    await refused(
        desk, desk.run(tampered, tool), NotOpen,
        "shop/t1/tampered: the arguments are not the ones that were approved. It will not run.",
    )  # fmt: skip
    await approved(desk, wired, tool="wire")
    await refused(
        desk, desk.run(wired, tool), NotOpen,
        "shop/t1/wired is run by 'executor', as its tool is declared, and not here.",
    )  # fmt: skip
    assert tool.runs == 0


async def test_a_tool_whose_output_cannot_be_recorded_has_run(desk: Ledger):
    """It has run, so the call ends, and says why: other bytes are in the place of a file."""
    await approved(desk)
    picture = attached(b"picture" * 20_000, "image/png")
    place = desk.log.file_place(sha256(b"picture" * 20_000).hexdigest())
    await desk.log.keep_piece(file_piece("shop", place, 1), b"something else")

    def chart(order: str) -> e.Media:
        return picture

    outcome = await desk.run(CALL, chart)
    assert isinstance(outcome, e.ToolReturned)
    assert isinstance(outcome.output, str)
    words = "The tool ran, but its output cannot be recorded: the store of"
    assert outcome.output.startswith(words)
    call = await desk.call(CALL)
    assert call.status is Status.RETURNED
    assert client.same_content(call.finished.event, outcome)


async def test_a_tool_that_raises_has_failed(desk: Ledger):
    """Handed back and recorded as a failure, never as a refusal (B34)."""
    await approved(desk)

    def broken(order: str) -> str:
        raise LookupError(f"no order {order}")

    assert await desk.run(CALL, broken) == e.ToolFailed(error="LookupError: no order A-17")
    assert (await desk.call(CALL)).status is Status.FAILED


class Silent(Memory):
    """A log that says nothing about the first results it is handed."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.asked = asyncio.Event()

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        if "finished" in slot.tail and self.times:
            self.times -= 1
            self.asked.set()
            return Unconfirmed("no answer")
        return await super().append(slot, raw, event_id, after)


async def test_a_result_is_written_down_however_long_it_takes(monkeypatch: pytest.MonkeyPatch):
    """The tool has run, so its result is recorded, through silence and cancelling (I7)."""
    monkeypatch.setattr(patience, "PAUSES", Backoff(0.01))
    silent = Silent(times=3)
    desk = Ledger(silent, e.Author(kind="service", name="tests"))
    await desk.declare("shop", REFUND)
    await approved(desk)
    running = asyncio.create_task(desk.run(CALL, Counted()))
    await silent.asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await desk.call(CALL)).status is Status.RETURNED


async def test_what_nobody_can_answer_for_is_said_to_be_unknown(desk: Ledger):
    """An append without an answer is no success, no refusal, and safe to repeat (I4, B28)."""
    silent = Silent(times=1)
    again = Ledger(silent, desk.author)
    with pytest.raises(
        OutcomeUnknown, match=r"nobody can say whether ledger\.shop\.t1\.call\.refund-1\.finished"
    ):
        await again.try_append(CALL.finished, e.ToolReturned(output="done"))
    assert await again.try_append(CALL.finished, e.ToolReturned(output="done")) is None


# ------------------------------------------------------------------------- taking back, finding out


async def test_a_wish_is_taken_back_while_it_is_open(desk: Ledger):
    """Once; and not after it was decided (B29, I5)."""
    await unknown(desk, desk.withdraw(CALL), "refund-1")
    await put_to_people(desk)
    call = await desk.withdraw(CALL, "changed my mind")
    assert call.withdrawn
    assert call.status is Status.PENDING  # until the gate has decided so
    await refused(
        desk, desk.withdraw(CALL), AlreadyFilled,
        "shop/t1/refund-1 is already withdrawn: Withdrawn by tests at "
        f"{_at(call.withdrawn)}. Nothing was recorded.",
    )  # fmt: skip
    other = THREAD.call("other")
    await approved(desk, other)
    decided = (await desk.call(other)).decided
    assert decided
    await refused(
        desk, desk.withdraw(other), AlreadyDecided,
        f"shop/t1/other is already decided: Approved by ana at {_at(decided)}. Nothing was "
        "recorded.",
    )  # fmt: skip


async def test_an_approval_is_taken_back_before_it_runs(desk: Ledger):
    """In the reviewer's own slot, apart from the claims; after the start it is too late (I6)."""
    await put_to_people(desk)
    await not_open(desk, desk.reviewer("ben").revoke(CALL), "refund-1 is pending", "revoked")
    first, second = THREAD.call("first"), THREAD.call("second")
    await approved(desk, first)
    revoked = await desk.reviewer("ben").revoke(first, reason="wrong customer")
    assert revoked.status is Status.REVOKED
    tool = Counted()
    with pytest.raises(NotOpen, match="shop/t1/first is revoked, so it cannot be started"):
        await desk.run(first, tool)
    await approved(desk, second)
    await desk.run(second, tool)
    with pytest.raises(NotOpen, match="shop/t1/second is returned, so it cannot be revoked"):
        await desk.reviewer("ben").revoke(second)
    assert tool.runs == 1


async def test_taking_back_races_with_the_start(desk: Ledger):
    """A hundred times at once: either it ran or it was taken back, never both and never neither
    (I6).

    Start and revocation stand in different slots, so the order of the log decides, and both are
    told of it.
    """
    tool = Counted()
    refs = [THREAD.call(f"c{number}") for number in range(100)]
    for ref in refs:
        await approved(desk, ref)
    pairs = [(desk.run(ref, tool), desk.reviewer("ben").revoke(ref)) for ref in refs]
    both = await asyncio.gather(*(asyncio.gather(*pair, return_exceptions=True) for pair in pairs))
    for ran, revoked in both:
        assert isinstance(ran, Refused) is not isinstance(revoked, Refused)
    assert tool.runs == sum(isinstance(ran, e.ToolReturned) for ran, _ in both)


async def test_a_call_in_doubt_is_found_out_about_once(desk: Ledger):
    """A person says what happened; only of a call in doubt, and once (I7)."""
    await approved(desk)
    await refused(
        desk, desk.reviewer("ana").reconcile(CALL, happened=True, output=""), NotOpen,
        "shop/t1/refund-1 is approved, so it cannot be reconciled.",
    )  # fmt: skip
    await desk.start(CALL)
    await desk.doubt(CALL, "nobody knows")
    call = await desk.reviewer("ana").reconcile(CALL, happened=False, output="It was not refunded.")
    assert call.status is Status.RECONCILED
    assert call.reconciled
    await refused(
        desk, desk.reviewer("ana").reconcile(CALL, happened=True, output=""), AlreadyFilled,
        "shop/t1/refund-1 is already reconciled: Reconciled by ana at "
        f"{_at(call.reconciled)}. Nothing was recorded.",
    )  # fmt: skip
    await refused(
        desk, desk.reviewer("ben").reconcile(CALL, happened=True, output=""), NotOpen,
        "shop/t1/refund-1 is reconciled, so it cannot be reconciled.",
    )  # fmt: skip


async def test_a_call_whose_client_is_gone_can_be_put_in_doubt(desk: Ledger):
    """Its service died while it ran: it is not run again; somebody says so, and what comes late is
    kept apart (I7, I9, B49).
    """
    await approved(desk)
    await not_open(desk, desk.doubt(CALL), "refund-1 is approved", "put in doubt")
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(order: str) -> str:
        begun.set()
        await may_end.wait()
        return f"refunded {order}"

    running_late = asyncio.create_task(desk.run(CALL, slow))
    await begun.wait()
    with pytest.raises(AlreadyFilled, match=r"is already claimed: ToolStarted by tests at "):
        await desk.run(CALL, slow)
    assert (await desk.doubt(CALL, "the service was restarted")).status is Status.IN_DOUBT
    may_end.set()
    await running_late
    call = await desk.call(CALL)
    assert call.status is Status.IN_DOUBT
    assert [fact.event.output for fact in call.late] == ["refunded A-17"]
    found = await desk.reviewer("ana").reconcile(CALL, happened=True, output="It was.")
    assert found.status is Status.RECONCILED


# ------------------------------------------------------------------------- started here, ended here


async def started(desk: Ledger, ref: CallRef = CALL) -> None:
    await approved(desk, ref)
    assert (await desk.start(ref)).status is Status.RUNNING


@pytest.mark.parametrize(
    ("said", "event", "status"),
    [
        ({"output": "refunded A-17"}, e.ToolReturned(output="refunded A-17"), Status.RETURNED),
        ({"output": ""}, e.ToolReturned(output=""), Status.RETURNED),
        ({"error": "no order A-17"}, e.ToolFailed(error="no order A-17"), Status.FAILED),
    ],
)
async def test_a_client_says_how_its_own_tool_ended(desk, said, event, status):
    """Claimed, run wherever it runs, and posted: what it gave, or what it raised, which is no
    refusal (B31, B34, I1, I6).
    """
    digest = (await approved(desk), await desk.start(CALL))[0]
    [claim] = (await desk.call(CALL)).claims
    assert isinstance(claim.event, e.ToolStarted)
    assert (claim.event.digest, claim.event.idempotency_key) == (digest, "shop/t1/refund-1")
    call = await desk.finish(CALL, **said)
    assert call.status is status
    posted = call.finished.event
    assert [getattr(posted, name) for name in (*said, "attempt")] == [*said.values(), 1]
    assert type(posted) is type(event)


async def test_a_start_is_one_start(desk: Ledger):
    """Ten programs at once: one of them runs it (I6, B27)."""
    await approved(desk)
    starts = await asyncio.gather(*(desk.start(CALL) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(one, AlreadyFilled) for one in starts) == 9
    assert len((await desk.call(CALL)).claims) == 1


async def test_a_start_with_an_id_is_the_same_start_again(desk: Ledger):
    """Ten attempts with two ids: those with one of them succeed. None does after the end, when the
    tool must not run again (I6, B27).
    """
    await approved(desk)
    ids = ("4f6ad0ae-7a1b-4b53-9c9a-0f5c4e8a2d11", "b2a0c9d4-55cf-4be7-8d0c-6f1a6a2f9e77") * 5
    starts = await asyncio.gather(
        *(desk.start(CALL, claim_id=one) for one in ids), return_exceptions=True
    )
    failed = [isinstance(one, AlreadyFilled) for one in starts]
    assert failed in ([True, False] * 5, [False, True] * 5)
    [claim] = (await desk.call(CALL)).claims
    await desk.finish(CALL, output="done")
    with pytest.raises(AlreadyFilled):
        await desk.start(CALL, claim_id=claim.event.id)


OTHERS = e.Author(kind="service", name="other")


@pytest.fixture
async def told() -> Confirming:
    """A log on which whoever comes second is told to have been first."""
    log = Confirming()
    await Ledger.on(log, "service").declare("shop", REFUND)
    return log


@pytest.mark.parametrize("claim", ["run", "start", "start with an id"])
async def test_a_claim_that_was_acknowledged_and_is_anothers_is_not_ones_own(
    told: Confirming, claim: str
):
    """It is known by its event and its author, and not by its slot and number: nothing runs, and
    whoever has it is named (B68, I1).
    """
    desk, ran, named = Ledger.on(told, "service"), Counted(), "0198c0de-0000-7000-8000-000000000001"
    digest = await approved(desk)
    started = e.ToolStarted(digest=digest, idempotency_key=str(CALL), by=OTHERS)
    if claim == "start with an id":  # the other one has chosen the same
        started = replace(started, id=named)
    told.first[CALL.client_claim(1)] = desk.with_envelope(started)
    doing: dict[str, Callable[[], Awaitable[object]]] = {
        "run": lambda: desk.run(CALL, ran),
        "start": lambda: desk.start(CALL),
        "start with an id": lambda: desk.start(CALL, claim_id=named),
    }
    with pytest.raises(AlreadyFilled, match="refund-1 is already claimed: ToolStarted by other"):
        await doing[claim]()
    with pytest.raises(AlreadyFilled, match="refund-1 is already claimed: ToolStarted by other"):
        await desk.start(CALL)  # not as the claim whose answer was lost
    assert ran.runs == 0


async def test_what_was_acknowledged_and_is_not_there_was_not_recorded(told: Confirming):
    """A request, a message, a vote, a result: the fact that is read back counts (B68)."""
    desk = Ledger.on(told, "service")
    wish = e.ToolRequested(tool="refund", arguments="{}", digest="other", by=OTHERS)
    told.first[CALL.requested] = desk.with_envelope(wish)
    with pytest.raises(AlreadyFilled, match="was already requested with other arguments"):
        await requested(desk)
    said = e.Said(role="user", text="no", by=OTHERS)
    told.first[THREAD.said("m1")] = desk.with_envelope(said)
    with pytest.raises(AlreadyFilled, match="something else was said as 'm1'"):
        await desk.say(THREAD, "yes", message="m1")
    ref = THREAD.call("refund-2")
    vote = e.Voted(verdict="deny", digest=await put_to_people(desk, ref), by=OTHERS)
    told.first[ref.vote("ana")] = desk.with_envelope(vote)
    with pytest.raises(AlreadyFilled, match="ana has already voted on shop/t1/refund-2"):
        await desk.reviewer("ana").vote(ref, Ballot("approve"))
    ref = THREAD.call("refund-3")
    await started(desk, ref)
    lost = e.ToolFailed(error="lost", attempt=1, by=OTHERS)
    told.first[ref.client_finished] = desk.with_envelope(lost)
    with pytest.raises(AlreadyFilled, match="refund-3 has ended already: ToolFailed by other"):
        await desk.finish(ref, output="refunded")


async def test_what_was_never_started_cannot_have_ended(desk: Ledger):
    """Unasked, waiting, approved, denied, taken back: a result is refused (B31, B62, I1)."""
    await unknown(desk, desk.finish(CALL, output="done"), "refund-1")
    await put_to_people(desk)
    await not_open(desk, desk.finish(CALL, output="done"), "refund-1 is pending", "finished")
    ready, back, never = (THREAD.call(name) for name in ("ready", "back", "never"))
    await approved(desk, ready)
    await not_open(desk, desk.finish(ready, error="oops"), "ready is approved", "finished")
    await approved(desk, back)
    await desk.reviewer("ben").revoke(back)
    await not_open(desk, desk.finish(back, output="done"), "back is revoked", "finished")
    await requested(desk, never)
    await desk.append(never.decided, e.Denied(ground="people", rule="money", policy_version=1))
    await not_open(desk, desk.finish(never, output="done"), "never is denied", "finished")


@pytest.mark.parametrize("said", [{}, {"output": "done", "error": "oops"}])
async def test_a_call_ends_in_one_way(desk: Ledger, said: dict[str, str]):
    """With an output or with an error, and with one of them."""
    await started(desk)
    await refused(
        desk, desk.finish(CALL, **said), BadInput,
        "a call ends with an output or with an error: give one of them.",
    )  # fmt: skip


async def test_an_executors_tool_is_not_started_or_ended_here(desk: Ledger):
    """Who runs it stands in its declaration; no client posts a result in its place (B62)."""
    await approved(desk, tool="wire")
    sentence = "shop/t1/refund-1 is run by 'executor', as its tool is declared, and not here."
    await refused(desk, desk.start(CALL), NotOpen, sentence)
    started_ = e.ToolStarted(digest=(await desk.call(CALL)).digest, idempotency_key=str(CALL))
    await desk.append(CALL.claim(1), started_)
    await refused(desk, desk.finish(CALL, output="done"), NotOpen, sentence)


async def test_a_result_is_posted_once(desk: Ledger):
    """The same again is told so; another one is kept beside it and never shown (B27, B48, I9)."""
    await started(desk)
    finished = (await desk.finish(CALL, output="refunded")).finished
    assert finished
    told = f"ToolReturned by tests at {_at(finished)}"
    await refused(
        desk, desk.finish(CALL, output="refunded"), AlreadyFilled,
        f"shop/t1/refund-1 has ended with this very result: {told}.",
    )  # fmt: skip
    with pytest.raises(AlreadyFilled) as raised:
        await desk.finish(CALL, error="oops")
    assert (
        str(raised.value)
        == f"shop/t1/refund-1 has ended already: {told}. What came now is kept as late."
    )
    call = await desk.call(CALL)
    assert call.status is Status.RETURNED
    assert [fact.event.error for fact in call.late] == ["oops"]


async def test_only_one_late_result_is_kept_and_nobody_is_told_otherwise(desk: Ledger):
    """The second late one has no place left, and whoever posts it hears so."""
    await started(desk)
    await desk.finish(CALL, output="first")
    with pytest.raises(AlreadyFilled, match=r"What came now is kept as late\.$"):
        await desk.finish(CALL, output="second")
    with pytest.raises(AlreadyFilled, match=r"What came now is kept as late\.$"):
        await desk.finish(CALL, output="second")  # the same again
    with pytest.raises(
        AlreadyFilled, match=r"Nothing was recorded: another late result was first\.$"
    ):
        await desk.finish(CALL, output="third")
    late = (await desk.call(CALL)).late
    assert [fact.event.output for fact in late] == ["second"]


async def test_a_result_that_comes_after_a_person_found_out_is_late(desk: Ledger):
    """In doubt, reconciled, then it comes: kept apart, the person's word stands (I7, I9)."""
    await started(desk)
    await desk.doubt(CALL, "the service was restarted")
    await desk.reviewer("ana").reconcile(CALL, happened=False, output="It was not refunded.")
    with pytest.raises(
        AlreadyFilled, match=r"refund-1 has ended already: InDoubt by tests at .* kept as late"
    ):
        await desk.finish(CALL, output="refunded")
    call = await desk.call(CALL)
    assert call.status is Status.RECONCILED
    assert [fact.event.output for fact in call.late] == ["refunded"]


async def test_what_is_answered_is_not_run(desk: Ledger):
    """A person answered in place of the tool: whoever would run it is refused, and no result takes
    the answer's place (B31, B33, I6).
    """
    await put_to_people(desk)
    await desk.reviewer("ana").vote(CALL, Ballot("answer", answer="I did it by hand."))
    answered = e.Answered(
        answer="I did it by hand.", rule="money", policy_version=1, voters=("ana",)
    )
    await desk.append(CALL.decided, answered)
    await not_open(desk, desk.start(CALL), "refund-1 is answered", "started")
    await not_open(desk, desk.finish(CALL, output="done"), "refund-1 is answered", "finished")


# ------------------------------------------------------------------------------------------ reading


class Slowly(Memory):
    """A log that takes its time to read, and for a while does not have the newest fact."""

    def __init__(self, behind: int = 0) -> None:
        super().__init__()
        self.behind = behind

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        await asyncio.sleep(0.03)
        found = await super().read(*subjects)
        self.behind -= 1
        return found[:-1] if self.behind >= 0 else found


async def test_reading_may_take_its_time(monkeypatch: pytest.MonkeyPatch):
    """A slow answer is an answer; only a replica that stays behind is given up on."""
    monkeypatch.setattr(client, "_CATCH_UP_S", 0.01)
    ledger = Ledger(Slowly(), e.Author(kind="service", name="tests"))
    await ledger.append(CALL.decided, e.Withdrawn())
    [fact] = await ledger.read(CALL)
    behind = Ledger(Slowly(behind=1000), ledger.author)
    await behind.append(CALL.decided, e.Withdrawn())
    with pytest.raises(
        Unavailable, match=r"ledger\.shop\.t1\.call\.refund-1\.decided cannot be read yet"
    ):
        await behind.read(CALL, must_include=fact.slot)


async def test_a_replica_that_is_behind_is_asked_again():
    """What was handed out is among what is read, though the first answers did not have it (B46)."""
    ledger = Ledger(Slowly(behind=3), e.Author(kind="service", name="tests"))
    await ledger.append(CALL.decided, e.Withdrawn())
    fact = await ledger.log.latest(CALL.decided.subject)
    assert await ledger.read(CALL, must_include=fact.slot) == (fact,)


# ------------------------------------------------------------------------------- the broker says no


@pytest.mark.parametrize(
    ("role", "slot", "event"),
    [
        ("observer", CALL.decided, e.Withdrawn()),
        ("model", CALL.decided, e.Withdrawn()),
        ("model", CALL.vote("ana"), e.Voted(verdict="approve", digest="d")),
        ("executor", CALL.vote("ana"), e.Voted(verdict="approve", digest="d")),
        ("service", CALL.decided, e.Withdrawn()),
        ("reviewer-ben", CALL.vote("ana"), e.Voted(verdict="approve", digest="d")),
    ],
)
async def test_a_denied_append_is_refused_at_once(store, role, slot, event):
    """With who may not write what, not as an answer that is missing; nothing is recorded (B68)."""
    if role.startswith("reviewer"):
        await ensure_account(store, role)
    async with Ledger.connect(store, role=role) as ledger, nothing_recorded(ledger):
        with pytest.raises(
            BrokerRefused, match=f"the credentials of '{role}' may not write {slot.subject}"
        ):
            await ledger.append(slot, event)


async def test_a_denial_concerns_nobody_else(store: Path):
    """Forty appends at once, two of them denied: these fail, the others stand, in any order."""
    refs = [THREAD.call(f"c{number}") for number in range(38)]
    wishes = [
        (ref.requested, e.ToolRequested(tool="t", arguments="{}", digest="d")) for ref in refs
    ]
    no, nor = ((ref.decided, e.Withdrawn()) for ref in refs[:2])
    all_of_them = [*wishes[:20], no, *wishes[20:], nor]
    async with Ledger.connect(store) as ledger:
        answers = await asyncio.gather(
            *(ledger.append(slot, event) for slot, event in all_of_them), return_exceptions=True
        )
        denied = [place for place, one in enumerate(answers) if isinstance(one, BrokerRefused)]
        assert denied == [20, 39]
        assert sum(isinstance(one, Recorded | AlreadyRecorded) for one in answers) == 38
        assert await ledger.log.last_seq() == 38


async def test_connecting_without_a_broker_fails_soon(unused_tcp_port: int, tmp_path: Path):
    """One sentence that says where it looked and what to do, within seconds: nobody listens, nobody
    answers, no such store.
    """
    with pytest.raises(
        BrokerAway,
        match=rf"no NATS broker answers at nats://127.0.0.1:{unused_tcp_port}\. Start one",
    ):
        async with Ledger.connect(url=f"nats://127.0.0.1:{unused_tcp_port}", timeout_s=1):
            pass
    with pytest.raises(BrokerAway, match=r"no broker runs in .*; start one with `ayes up --store "):
        async with Ledger.connect(tmp_path / "nowhere", timeout_s=1):
            pass


async def test_connecting_to_somebody_who_says_nothing_fails_soon(unused_tcp_port: int):
    """A port that takes connections and then keeps silent is no broker."""
    gone: list[asyncio.StreamWriter] = []

    async def keep_silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone.append(writer)

    async with await asyncio.start_server(keep_silent, "127.0.0.1", unused_tcp_port):
        with pytest.raises(BrokerAway, match="no NATS broker answers"):
            async with Ledger.connect(url=f"nats://127.0.0.1:{unused_tcp_port}", timeout_s=1.0):
                pass
        for writer in gone:
            writer.close()


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_credentials_that_are_not_known_are_refused(store: Path):
    """A role that the broker has not, and a password that is wrong: said so, no outage."""
    with pytest.raises(BrokerRefused, match="has no account 'reviewer-eve'"):
        async with Ledger.connect(store, role="reviewer-eve"):
            pass
    async with Ledger.connect(store) as ledger:
        assert isinstance(ledger.log, JetStream)
        url = ledger.log.connection.login.url.replace("nats://", "nats://gate:wrong@")
    with pytest.raises(BrokerRefused, match="does not accept the credentials of 'gate'"):
        async with Ledger.connect(url=url):
            pass


# ------------------------------------------------------------------------------- the broker is away


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower starts over soon after it has heard nothing."""
    monkeypatch.setattr(ordered_consumer, "HEARTBEAT_S", 0.2)


class Seen:
    """What a watcher has been handed."""

    def __init__(self, ledger: Ledger) -> None:
        self.facts: list[Fact] = []
        self._grown = asyncio.Condition()
        self._task = asyncio.create_task(self._watch(ledger))

    async def _watch(self, ledger: Ledger) -> None:
        async with aclosing(ledger.watch()) as facts:
            async for fact in facts:
                async with self._grown:
                    self.facts.append(fact)
                    self._grown.notify_all()

    async def until(self, count: int) -> Sequence[int]:
        """Wait for so many facts; their numbers."""
        async with asyncio.timeout(60), self._grown:
            await self._grown.wait_for(lambda: len(self.facts) >= count)
        return [fact.seq for fact in self.facts]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def said(ledger: Ledger, number: int) -> AppendResult:
    return await ledger.append(THREAD.said(f"m{number}"), e.Said(role="user", text=str(number)))


async def test_watching_and_appending_survive_a_restart_of_the_broker(tmp_path, impatient):
    """The broker goes and comes back on its store: the watcher misses nothing and sees nothing
    twice, and what was appended meanwhile is recorded or said to be unknown (B53, B48).
    """
    path = tmp_path / "store"
    async with running(path):
        connected = Ledger.connect(path, name="desk")
        ledger = await connected.__aenter__()
        seen = Seen(ledger)
        for number in range(5):
            await said(ledger, number)
        await seen.until(5)
    try:
        meanwhile = [asyncio.create_task(said(ledger, number)) for number in range(5, 30)]
        await asyncio.sleep(0)
        async with EmbeddedServer(path):
            answers = await asyncio.gather(*meanwhile)
            assert {type(answer) for answer in answers} <= {Recorded, AlreadyRecorded, Unconfirmed}
            for number in range(30, 35):
                assert isinstance(await said(ledger, number), Recorded)
            end = await ledger.log.last_seq()
            assert await seen.until(end) == list(range(1, end + 1))
            stand = {fact.slot.tail[1] for fact in seen.facts}
            for number, answer in enumerate(answers, 5):
                assert isinstance(answer, Unconfirmed) or f"m{number}" in stand
            # What is unknown may be appended again, and then it stands.
            for number in range(5, 30):
                await said(ledger, number)
            assert len(await ledger.read(THREAD)) == 35
    finally:
        await seen.stop()
        await connected.__aexit__(None, None, None)


async def test_a_broker_that_stalls_is_not_flooded_with_followers(tmp_path: Path, impatient: None):
    """A follower that heard nothing for a while starts over, once; the old one is given up."""
    async with running(tmp_path / "store") as server, Ledger.connect(server.store.path) as ledger:
        assert isinstance(ledger.log, JetStream)
        seen = Seen(ledger)
        await said(ledger, 0)
        await seen.until(1)
        before = await _consumers(ledger.log)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(1.0)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        for number in range(1, 6):
            await said(ledger, number)
            await asyncio.sleep(0.3)  # so that both have something to say
        assert await seen.until(6) == [1, 2, 3, 4, 5, 6]
        assert await _consumers(ledger.log) <= before + 2
        await seen.stop()


async def _consumers(port: JetStream) -> int:
    stream = await info(port.api, f"STREAM.INFO.{LEDGER}")
    assert stream
    return int(stream["state"]["consumer_count"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerAway("away"), 75),
        (OutcomeUnknown("unknown"), 75),
        (StoreHeld("held"), 75),
        (LedgerFull("no room"), 75),
        (Unavailable("a damaged file"), 1),
        (BrokerRefused("permissions"), 4),
        (LogLost("cut"), 4),
        (LogDamaged("a fact cannot be read"), 1),
        (WaitTimedOut("not decided"), 3),
        (BadInput("malformed"), 2),
        (NotOpen("decided"), 1),
        (Defect("bug"), 1),
    ],
)
def test_an_exit_code_says_whether_to_try_again(error: ApprovalsError, code: int):
    """75, EX_TEMPFAIL: the same again may succeed. All others need somebody (docs/running.md)."""
    assert error.exit_code == code
