"""What people decided about past calls, by the facts: which approvals count, and which do not."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from ayes.ops.audit.past_calls import (
    AGAINST,
    CHARACTERS_A_SECOND,
    LOOKED_S,
    PastCalls,
    Said,
    past_calls,
)
from ayes.projections.lake.queries import QUESTIONS
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import Slot, ThreadRef
from ayes.schemas.tools import ToolSpec

AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
THREAD = ThreadRef("shop", "t1")
RULE = {"rule": "r", "policy_version": 1}
TOOL = e.ToolDeclared(
    description="", schema='{"type":"object"}', secret=("/card",), tool_class="reversible"
)


class Log:
    """Facts at the second that each is said to be of."""

    def __init__(self, *declared: e.AnyEvent | e.Carried, looked_s: float = LOOKED_S):
        tools = [
            Fact(number, AT, Slot("shop", "", ("_tool", "refund", f"v{number}")), event)
            for number, event in enumerate(declared or (TOOL,), start=1)
        ]
        opened = e.ThreadOpened(requester="rita", agent="desk-1", labels={"channel": "chat"})
        self.found = PastCalls(tools, [Fact(9, AT, THREAD.opened, opened)], looked_s)
        self.seq = 10

    def tell(self, slot: Slot, event: e.AnyEvent, at_s: float = 0) -> "Log":
        self.seq += 1
        self.found.take(Fact(self.seq, AT + timedelta(seconds=at_s), slot, event))
        return self

    def request(self, name: str = "c1", arguments: str = '{"amount":5}', **more) -> "Log":
        version = more.pop("version", "v1")
        digest = call_digest("refund", version, arguments)
        wish = e.ToolRequested(
            tool="refund", tool_version=version, arguments=arguments, digest=digest, **more
        )
        return self.tell(THREAD.call(name).requested, wish)

    def ask(self, name: str = "c1", at_s: float = 0, **more) -> "Log":
        asking = e.ApprovalRequested(digest="d", **RULE, **more)
        return self.tell(THREAD.call(name).gated, asking, at_s)

    def vote(self, at_s: float, reviewer: str = "ana", name: str = "c1") -> "Log":
        voted = e.Voted(verdict="approve", digest="d")
        return self.tell(THREAD.call(name).vote(reviewer), voted, at_s)

    def approve(self, name: str = "c1", voters=("ana",), **more) -> "Log":
        approved = e.Approved(digest="d", ground="people", voters=voters, **RULE, **more)
        return self.tell(THREAD.call(name).decided, approved)

    def decide(self, event: e.AnyEvent, name: str = "c1") -> "Log":
        return self.tell(THREAD.call(name).decided, event)

    @property
    def said(self) -> list[Said]:
        return [one.said for one in self.found.all()]


def test_an_approval_counts_that_took_longer_than_a_rubber_stamp():
    """By default two seconds."""
    assert Log().request().ask().vote(2.0).approve().said == ["approved"]
    assert Log().request().ask().vote(1.9).approve().said == ["quick"]
    assert Log(looked_s=1).request().ask().vote(1.9).approve().said == ["approved"]
    assert Log(looked_s=5).request().ask().vote(4.9).approve().said == ["quick"]


def test_a_long_question_takes_longer_to_read():
    """25 characters of arguments and question a second, as the saved query has it."""
    long = '{"text":"%s"}' % ("x" * 239)
    assert len(long) == 250
    for after_s, said in ((13.9, "quick"), (14.0, "approved")):
        log = Log().request(arguments=long).ask(reason="y" * 100).vote(after_s).approve()
        assert log.said == [said]
    sql = QUESTIONS["rubber-stamping"].sql
    assert re.search(rf"\* 1000000 // {CHARACTERS_A_SECOND}, {LOOKED_S * 1e6:.0f}\)", sql)


def test_every_vote_of_an_approval_must_have_been_a_look():
    """Of two who must agree one stamped it."""
    log = Log().request().ask().vote(60, "ana").vote(61, "ben")
    assert log.approve(voters=("ana", "ben")).said == ["approved"]
    log = Log().request().ask().vote(60, "ana").vote(1, "ben")
    assert log.approve(voters=("ana", "ben")).said == ["quick"]
    assert Log().request().ask().approve().said == ["quick"]


def test_who_votes_on_many_calls_in_a_row_has_looked_at_the_first():
    """Each look begins after that person's vote before; others look meanwhile."""
    log = Log()
    for name in ("c1", "c2", "c3"):
        log.request(name).ask(name)
    log.vote(100, name="c1").vote(100.5, name="c2").vote(100.6, "ben", name="c3")
    log.approve("c1").approve("c2").approve("c3", voters=("ben",))
    assert log.said == ["approved", "quick", "approved"]


def test_the_time_in_which_a_vote_could_be_undone_is_no_look():
    """The console holds it for so long."""
    assert Log().request().ask(undo_s=5).vote(6).approve().said == ["quick"]
    assert Log().request().ask(undo_s=5).vote(7).approve().said == ["approved"]


def test_without_a_least_time_each_approval_counts():
    """As for reviewers that are programs."""
    assert Log(looked_s=0).request().ask().vote(0).approve().said == ["approved"]


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (e.Denied(ground="people", voters=("ana",), **RULE), "denied"),
        (e.Answered(answer="done", **RULE), "answered"),
        (
            e.Approved(digest="d", ground="people", voters=("ana",), arguments="{}", **RULE),
            "edited",
        ),
        (
            e.Approved(
                digest="d", ground="people", voters=("ana",), mode="requester_confirms", **RULE
            ),
            "confirmed",
        ),
        (e.Approved(digest="d", ground="broken_glass", **RULE), "glass_broken"),
        (e.Approved(digest="d", ground="grant", **RULE), "undecided"),
        (e.Expired(after_s=1, **RULE), "undecided"),
        (e.Withdrawn(), "undecided"),
        (e.Superseded(), "undecided"),
        (e.Denied(ground="limit", **RULE), "undecided"),
    ],
)
def test_each_end_of_a_question_has_its_word(decision, said):
    """A denial counts however quick it was, since it was a no."""
    log = Log().request().ask().vote(0.1).decide(decision)
    assert log.said == [said]
    assert (said in AGAINST) == (said in ("denied", "answered", "edited"))


@pytest.mark.parametrize(
    "decision",
    [
        e.Approved(digest="d", ground="policy", **RULE),
        e.Denied(ground="policy", **RULE),
        e.Denied(ground="invalid", **RULE),
        e.Denied(ground="repeated", **RULE),
    ],
)
def test_what_people_were_not_asked_about_is_unasked(decision):
    """Also a repeat of what they denied."""
    assert Log().request().decide(decision).said == ["unasked"]


def test_what_is_open_is_undecided_if_people_were_asked():
    """Else nobody has judged it yet."""
    log = Log().request("c1").request("c2").ask("c2")
    assert log.said == ["unasked", "undecided"]


def test_who_takes_an_approval_back_did_not_want_the_call():
    """Whoever it is, however quick the approval, and even if it came too late."""
    back = THREAD.call("c1").revoked_by("ben"), e.Revoked(reviewer="ben")
    for after_s in (0.5, 60):
        assert Log().request().ask().vote(after_s).approve().tell(*back).said == ["revoked"]
    log = Log().request().decide(e.Approved(digest="d", ground="policy", **RULE)).tell(*back)
    assert log.said == ["unasked"]


def test_a_call_has_the_agent_and_labels_of_its_thread():
    """If the request leaves them to it, as the gate judges it."""
    (one,) = Log().request().ask().found.all()
    wished = one.wished
    assert (wished.agent, wished.labels, wished.requester) == (
        "desk-1",
        {"channel": "chat"},
        "rita",
    )
    (one,) = Log().request(agent="desk-2", labels={"x": "y"}).ask().found.all()
    assert (one.wished.agent, one.wished.labels) == ("desk-2", {"x": "y"})


def test_what_any_version_of_a_tool_hides_is_hidden():
    """Secret or sealed; everything, if a version cannot be read."""
    other = e.ToolDeclared(description="", schema='{"type":"object"}', sealed=("/pin",))
    (one,) = Log(TOOL, other).request().found.all()
    assert (set(one.hidden), one.schema) == ({"/card", "/pin"}, TOOL.schema)
    (one,) = Log(TOOL).request(version="v7").found.all()
    assert (one.hidden, one.schema) == (None, None)
    (one,) = Log(TOOL, e.Carried(type="New", raw=b"{}")).request().found.all()
    assert one.hidden is None


@pytest.mark.log("memory")
async def test_the_ledgers_calls_are_read(ledger):
    """Those of one workspace, from a place on; with their class."""
    spec = ToolSpec(name="refund", schema='{"type":"object"}', **{"class": "reversible"})
    version = (await ledger.declare("shop", spec)).version
    for workspace, name in (("shop", "c1"), ("shop", "c2"), ("other", "c3")):
        call = ThreadRef(workspace, "t1").call(name)
        wish = e.ToolRequested(
            tool="refund",
            tool_version=version,
            arguments="{}",
            digest=call_digest("refund", version, "{}"),
        )
        await ledger.try_append(call.requested, wish)
        await ledger.try_append(call.gated, e.ApprovalRequested(digest=wish.digest, **RULE))
        await ledger.try_append(call.decided, e.Denied(ground="people", voters=("ana",), **RULE))
    found, unreadable = await past_calls(ledger, "shop")
    assert [(one.wished.call, one.said, one.wished.tool_class) for one in found] == [
        ("c1", "denied", "reversible"),
        ("c2", "denied", "reversible"),
    ]
    assert unreadable == 0
    later, _ = await past_calls(ledger, "shop", since=3)
    assert [one.wished.call for one in later] == ["c2"]
