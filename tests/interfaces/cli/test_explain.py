"""`ayes policy explain`: why a call stands as it does, from the ledger alone.

Mostly on a real broker with a real gate; the command's own function is asked, and its JSON read.
What is wrong with votes that do not count is a table over facts.
"""

import asyncio
import json
from datetime import timedelta
from typing import get_args

import msgspec
import pytest
from program import approvals
from shop import rule
from stories import Story, request
from until import recorded

from ayes.interfaces.cli import look
from ayes.interfaces.cli import policy as command
from ayes.interfaces.cli.command import Session
from ayes.interfaces.cli.outcome import standing
from ayes.ledger.judging.chain import thread_below
from ayes.ledger.judging.explanation import Vote, _flaw, explained
from ayes.ledger.judging.policies import Policies
from ayes.ledger.judging.votes import CastVote, counted
from ayes.ledger.objections import Objection, VoteFlaw
from ayes.ledger.validity import call_of
from ayes.ops.workers import reactions, working
from ayes.projections.views.call import vote_words
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import events as e
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import BadSlot, NotAllowed, UnknownCall
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import ORGANISATION, CallRef, account_slot, policies, policy_slot
from ayes.schemas.tools import Tool, ToolSpec

CALL = CallRef.parse("shop/order-17/refund-1")
REFUND = ToolSpec(
    name="refund",
    description="Pays money back.",
    schema='{"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"]}',
)
POLICY = (
    '[groups]\nleads = ["ana", "ben", "cy"]\nsecurity = ["sam", "cy"]\n'
    + rule("money", "ask", 'reason = "It moves money."', 'voters = ["@leads"]', "votes_needed = 2",
           'also = [{voters = ["@security"]}]', "denials_needed = 2", 'break_glass = ["olga"]',
           "expires_in_s = 3600")
    + rule("huge", "block", 'when = "args.amount > 100000"', "shadow = true")
    + rule("looks", "allow", tools="look*")
)  # fmt: skip


@pytest.fixture
async def gate(store):
    """A gate at work."""
    async with working(reactions(["gate"]), store=store):
        yield


@pytest.fixture
def explain(store, capsys):
    """What `ayes policy explain CALL --json` prints."""

    async def told(call=CALL, *, json_=True):
        await command.explain(str(call), session=Session(store, json=json_))
        out = capsys.readouterr().out
        return json.loads(out) if json_ else out

    return told


async def apply(ledger, text, workspace="shop"):
    latest = await ledger.log.latest(policies(workspace))
    version = int(latest.slot.tail[1]) + 1 if latest else 1
    read_policy(text, "policy.toml")
    applied = e.PolicyApplied(text=text, digest=text_digest(text))
    assert await ledger.try_append(policy_slot(workspace, version), applied) is None


async def requested(ledger, call=CALL, tool=REFUND, arguments='{"amount":480}'):
    await ledger.declare(call.workspace, tool)
    await ledger.request(call, tool.name, arguments, requester="rita")


async def until(ledger, place, call=CALL):
    """The call, once this is recorded about it."""
    [fact] = await recorded(ledger, f"{call.subjects.removesuffix('>')}{place}")
    return await ledger.call(call, must_include=fact.slot)


# ------------------------------------------------------------------------------- waiting for people


async def test_it_says_who_agrees_who_is_missing_and_who_does_not_count(admin, gate, explain):
    """Two leads and one of security: one seat a person, the requester on none (B39, B67, B68)."""
    await apply(admin, POLICY)
    await requested(admin)
    await until(admin, "gated")
    told = await explain()
    assert (told["status"], told["judged"]["then"]) == ("pending", "ask")
    assert told["judged"]["rule"] == "money"
    assert (told["judged"]["policy_version"], told["judged"]["organisation"]) == (1, False)
    assert told["judged"]["reason"] == "It moves money."
    assert told["judged"]["shadows"] == []
    asks = told["judged"]["asks"]
    assert asks["excluded"] == {"rita": "asked for it"}
    assert [(one["agree"], one["missing"]) for one in asks["quorums"]] == [([], 2), ([], 1)]
    assert (asks["denials_needed"], asks["may_break_glass"]) == (2, ["olga"])
    await admin.reviewer("cy").approve(CALL)
    await admin.reviewer("ana").approve(CALL)
    await admin.reviewer("sam").deny(CALL, reason="Too much.")
    told = await explain()
    seats = [
        (one["name"], one["agree"], one["missing"]) for one in told["judged"]["asks"]["quorums"]
    ]
    # Both may sit with the leads, and cy with security too; but nobody sits twice.
    assert sum(len(agree) for _, agree, _ in seats) == 2
    assert sum(missing for *_, missing in seats) == 1
    assert [(one["reviewer"], one["verdict"], one["flaw"]) for one in told["votes"]] == [
        ("cy", "approve", ""),
        ("ana", "approve", ""),
        ("sam", "deny", ""),
    ]
    assert told["expires_at"] is not None
    assert (told["decision"], told["by_now"], told["next_stage"]) == (None, None, None)


async def test_who_sits_for_a_group_is_explained_and_who_votes_for_none(admin, gate, explain):
    """The members who voted beside the group; a stranger's vote with what is known of them."""
    policy = rule(
        "money",
        "ask",
        'voters = ["group:finance", "lea"]',
        "votes_needed = 2",
        'also = [{voters = ["group:Board"]}]',
        'break_glass = ["group:oncall"]',
    )
    await apply(admin, f'may_stop = ["group:oncall"]\nmay_resume = ["group:oncall"]\n{policy}')
    await requested(admin)
    known = await until(admin, "gated")
    now = admin.now()
    for name, groups in (("ana", ("finance", "Board")), ("ben", ("finance",)), ("zoe", ("x",))):
        issuer, later = "https://login.example", now + timedelta(minutes=15)
        account = e.AccountBound(account=f"openid:{issuer}#{name}")
        await admin.append(account_slot(name, 1), account)
        read = e.GroupsRead(issuer, name, groups, now, later)
        await admin.record_groups(name, read)
    for name in ("ben", "ana"):
        await admin.reviewer(name).approve(CALL)
    with pytest.raises(NotAllowed, match=r"asks group:finance, lea, group:Board\. https://login"):
        await admin.reviewer("zoe").approve(CALL)
    vote = e.Voted(verdict="approve", digest=known.approval_request.digest)
    await admin.try_append(CALL.vote("zoe"), vote)
    told = await explain()
    seats = [(one["voters"], one["missing"]) for one in told["judged"]["asks"]["quorums"]]
    assert seats == [(["group:finance", "lea"], 0), (["group:Board"], 1)]
    assert [one["flaw"] for one in told["votes"]] == ["", "", "zoe was not asked"]
    assert told["by_now"] is None
    call = await admin.call(CALL)
    words = vote_words(call, await admin.tally(call), WHOLE)
    assert words == "2 of 3 approvals (ben, ana). Missing: one of group:Board."


async def test_a_vote_that_does_not_count_is_shown_with_why(admin, gate, explain):
    """A client in another language votes as it likes; this shows that it is not counted (B40)."""
    await apply(admin, POLICY)
    await requested(admin)
    known = await until(admin, "gated")
    for name in ("rita", "zoe"):
        await admin.try_append(
            CALL.vote(name), e.Voted(verdict="approve", digest=known.approval_request.digest)
        )
    told = await explain()
    assert {one["reviewer"]: one["flaw"] for one in told["votes"]} == {
        "rita": "rita asked for it",
        "zoe": "zoe was not asked",
    }
    assert all(one["agree"] == [] for one in told["judged"]["asks"]["quorums"])


async def test_what_a_sub_agent_asks_is_explained_with_the_calls_above(admin, gate, explain):
    """Who is behind an agent of the chain is excluded, and the policy says nothing else by now."""
    free = rule("freely", "allow", tools="delegate")
    await apply(admin, f'{POLICY}\n{free}[owners]\ndesk = ["dora"]\n')
    root = CallRef.parse("shop/order-17/delegate-1")
    await admin.declare("shop", ToolSpec(name="delegate", schema='{"type":"object"}'))
    await admin.request(root, "delegate", "{}", requester="rita", agent="desk")
    await until(admin, "decided", root)
    below, opened = thread_below(await admin.start(root), agent="helper")
    await admin.append(below.opened, opened)
    asked = below.call("refund-1")
    await requested(admin, asked)
    await until(admin, "gated", asked)
    told = await explain(asked)
    excluded = {"rita": "asked for it", "dora": "is behind the agent helper or desk"}
    assert told["judged"]["asks"]["excluded"] == excluded
    assert told["by_now"] is None
    # Opened for a call that did not run: denied, then and now.
    other = CallRef.parse("shop/order-17/delegate-2").below
    event = e.ThreadOpened(requester="rita", parent="shop/order-17/delegate-2")
    await admin.append(other.opened, event)
    await requested(admin, other.call("refund-1"))
    await until(admin, "decided", other.call("refund-1"))
    told = await explain(other.call("refund-1"))
    assert (told["judged"]["then"], told["by_now"]) == ("invalid", None)


async def test_a_call_is_explained_by_its_class(admin, gate, explain, store, capsys):
    """The class by which it is judged, of its own tool or of one above; and what that says now."""
    free = rule("freely", "allow", tools="*")
    lost = rule("lost", "block", 'class = "irreversible"', tools="look")
    await apply(admin, free)
    spec = {"name": "look", "schema": '{"type":"object"}', "class": "reads"}
    await admin.declare("shop", ToolSpec.model_validate(spec))
    await admin.declare("shop", ToolSpec(name="delegate", schema='{"type":"object"}'))
    root = CallRef.parse("shop/order-17/delegate-1")
    await admin.request(root, "delegate", "{}", requester="rita")
    await until(admin, "decided", root)
    below, opened = thread_below(await admin.start(root), agent="helper")
    await admin.append(below.opened, opened)
    alone, above = CallRef.parse("shop/order-17/look-1"), below.call("look-1")
    for ref in (alone, above):
        await admin.request(ref, "look", "{}", requester="rita")
        await until(admin, "decided", ref)
    assert (await explain(alone))["class"] is None
    await apply(admin, free + lost)
    told = await explain(alone)
    assert (told["class"], told["by_now"]) == ("reads", None)
    told = await explain(above)
    assert (told["class"], told["by_now"]["rule"]) == ("irreversible", "lost")
    await until(admin, "lapsed", above)
    ends = "has lapsed: version 2 of the policy blocks it, by rule 'lost'."
    assert standing(await admin.call(above), None, WHOLE).endswith(ends)
    await look.show(str(above), session=Session(store))
    shown = capsys.readouterr()
    assert f"{above} has lapsed, class: reads" in shown.err
    assert "by policy, rule 'freely', class: reads" in shown.out


async def test_the_next_stage_is_told_and_then_who_was_asked_as_well(admin, gate, explain):
    """First who comes next and when; afterwards their votes sit wherever one is missing."""
    stages = 'stages = [{voters = ["lea"], expires_in_s = 3600}]'
    times = ("expires_in_s = 1.0", 'on_timeout = "escalate"', stages)
    await apply(admin, rule("money", "ask", 'voters = ["ana"]', *times))
    await requested(admin)
    known = await until(admin, "gated")
    told = await explain()
    assert told["next_stage"]["voters"] == ["lea"]
    assert msgspec.convert(told["next_stage"]["at"], type=type(known.due)) == known.due
    assert told["expires_at"] is None
    await until(admin, "escalated.*")
    told = await explain()
    assert (told["asked_as_well"], told["next_stage"]) == (["lea"], None)
    assert told["expires_at"] is not None
    await admin.reviewer("lea").approve(CALL)
    await until(admin, "decided")
    told = await explain()
    assert told["judged"]["asks"]["quorums"][0]["agree"] == ["lea"]
    assert told["decided"].startswith("Approved by lea at ")


async def test_a_vote_in_anothers_place_is_told_as_such(admin, gate, explain):
    """Ben for Ana: the seat is Ana's."""
    await apply(admin, POLICY)
    now = admin.now()
    await admin.reviewer("ana").delegate(
        "shop/ana/holiday",
        "zoe",
        starts_at=now - timedelta(hours=1),
        ends_at=now + timedelta(hours=1),
    )
    await requested(admin)
    await until(admin, "gated")
    await admin.reviewer("zoe").approve(CALL)
    told = await explain()
    assert [(one["reviewer"], one["on_behalf_of"], one["flaw"]) for one in told["votes"]] == [
        ("zoe", "ana", "")
    ]
    assert told["judged"]["asks"]["quorums"][0]["agree"] == ["ana"]
    assert "vote        zoe for ana: approve" in await explain(json_=False)


async def test_where_the_organisation_asks_too_both_are_shown(admin, gate, explain):
    """The organisation's rule judged it, and the workspace's people are asked beside."""
    await apply(admin, POLICY)
    await apply(admin, rule("all", "ask", 'voters = ["max"]', tools="*"), ORGANISATION)
    await requested(admin)
    await until(admin, "gated")
    told = (await explain())["judged"]
    assert (told["rule"], told["organisation"], told["policy_version"]) == ("all", True, 1)
    assert [one["voters"] for one in told["asks"]["quorums"]] == [["max"]]
    assert [one["voters"] for one in told["asks"]["besides"]] == [
        ["ana", "ben", "cy"],
        ["sam", "cy"],
    ]
    assert "of the organisation's policy, version 1, asks people" in await explain(json_=False)


# ------------------------------------------------------------------------------------------ decided


async def test_it_says_how_it_was_decided(admin, gate, explain):
    """By whom, and who sat where."""
    await apply(admin, POLICY)
    await requested(admin)
    await until(admin, "gated")
    for name in ("ana", "ben", "sam"):
        await admin.reviewer(name).approve(CALL)
    await until(admin, "decided")
    told = await explain()
    assert (told["status"], told["decision"]) == ("approved", "Approved")
    assert told["decided"].startswith("Approved by ana, ben, sam at ")
    assert [
        (sorted(one["agree"]), one["missing"]) for one in told["judged"]["asks"]["quorums"]
    ] == [
        (["ana", "ben"], 0),
        (["sam"], 0),
    ]


async def test_the_grants_that_decided_it_are_named(admin, gate, explain):
    """Whose standing yes it was is visible in the decision, and here."""
    await apply(admin, rule("money", "ask", 'voters = ["ana"]'))
    await admin.declare("shop", REFUND)
    await admin.reviewer("ana").grant("shop/ana/week", "refund", for_s=60, uses=3)
    await requested(admin)
    await until(admin, "decided")
    told = await explain()
    assert (told["grants"], told["judged"]["then"]) == (["ana/week"], "ask")
    assert told["judged"]["rule"] == "money"
    assert told["by_now"] is None
    assert "granted     by ana/week" in await explain(json_=False)


@pytest.mark.parametrize(
    ("tool", "arguments", "then"),
    [("look_up", "{}", "allow"), ("refund", '{"amount":480}', "block")],
)
async def test_a_rule_alone_is_named_with_what_rules_without_effect_said(
    admin, gate, explain, tool, arguments, then
):
    """Nobody was asked: the rule, its version, and the shadows recorded with the decision."""
    shadow = rule("one day", "ask", "shadow = true", tools="*")
    await apply(admin, POLICY + rule("never", "block", tools="refund*") + shadow)
    await requested(admin, tool=takes_anything(tool), arguments=arguments)
    await until(admin, "decided")
    told = await explain()
    assert (told["judged"]["then"], told["judged"]["asks"]) == (then, None)
    assert {"rule": "one day", "then": "ask"} in told["judged"]["shadows"]
    assert told["by_now"] is None


def takes_anything(name):
    """A tool that takes any object."""
    return ToolSpec(name=name, schema='{"type":"object"}')


async def test_what_could_never_run_was_not_looked_at(admin, gate, explain):
    """Arguments that break the schema: no rule was reached, and none is blamed (B66)."""
    tool = await admin.declare("shop", REFUND)
    story = request(e.Wish("refund", '{"amount":"much"}'), tool.version)
    await admin.try_append(CALL.requested, story)
    await until(admin, "decided")
    told = await explain()
    assert (told["judged"]["then"], told["decision"], told["by_now"]) == ("invalid", "Denied", None)
    assert "do not fit its schema" in told["judged"]["reason"]
    await apply(admin, POLICY)
    assert (await explain())["by_now"] is None


async def test_a_call_that_no_gate_has_seen_says_so_and_what_would_be_said(admin, explain):
    """Nothing is guessed about the past; what is in force now is told."""
    await apply(admin, POLICY)
    await requested(admin)
    told = await explain()
    assert (told["status"], told["judged"]) == ("requested", None)
    assert (told["by_now"]["then"], told["by_now"]["rule"]) == ("ask", "money")
    assert "judged      not yet, by any gate" in await explain(json_=False)


# ----------------------------------------------------------------------------- what is in force now

MONEY = rule("money", "ask", 'voters = ["ana", "ben"]')
#: What was in force, what is now, and what of it is said.
LATER = [
    ("the same again", MONEY, f"# again\n{MONEY}", None),
    ("other words for the same", MONEY, MONEY + 'reason = "It moves money."\n', None),
    ("other people", MONEY, MONEY.replace('"ben"', '"cy"'), ("ask", "money")),
    ("more of them", MONEY, MONEY + "votes_needed = 2\n", ("ask", "money")),
    ("a time", MONEY, MONEY + "expires_in_s = 60\n", ("ask", "money")),
    ("another rule", MONEY, MONEY + rule("never", "block", tools="*"), ("block", "never")),
    ("no rule", MONEY, "", ("ask", "no rule")),
]  # fmt: skip


async def test_what_would_be_said_now_is_told_where_it_is_something_else(admin, gate, explain):
    """What was asked stays as it was; beside it stands what another version says, if different."""
    for number, (name, before, after, said) in enumerate(LATER):
        call = CallRef(f"shop-{number}", "order-17", "refund-1")
        await apply(admin, before, call.workspace)
        await requested(admin, call)
        await until(admin, "gated", call)
        await apply(admin, after, call.workspace)
        told = await explain(call)
        assert (told["judged"]["rule"], told["judged"]["policy_version"]) == ("money", 1), name
        by_now = told["by_now"]
        assert (by_now and (by_now["then"], by_now["rule"])) == said, name
        assert (by_now or {}).get("policy_version") == (2 if said else None), name


BUDGET = """
[[rule]]
name = "small"
tools = ["refund"]
then = "allow"

[[budget]]
name = "refunds"
tools = ["refund"]
amount = "/amount"
unit = "EUR"
limit = 500
per = ["requester"]
then = "ask"
"""


async def test_budgets_are_told_as_they_stand(admin, gate, explain):
    """A call that people are asked about for want of room; later there is room."""
    first, second = (CallRef.parse(f"shop/order-17/refund-{number}") for number in (1, 2))
    await apply(admin, BUDGET)
    await requested(admin, first)
    await until(admin, "decided", first)
    [stands] = (await explain(first))["budgets"]
    assert (stands["used"], stands["needed"]) == ("0", "480")

    await requested(admin, second, arguments='{"amount":21}')
    await until(admin, "gated", second)
    told = await explain(second)
    [stands] = told["budgets"]
    assert (stands["name"], stands["key"], stands["limit"]) == ("refunds", ["rita"], "500")
    assert (stands["used"], stands["needed"]) == ("480", "21")
    assert (told["judged"]["then"], told["judged"]["rule"]) == ("ask", "small")
    assert told["by_now"] is None
    line = "480 of 500 EUR is used of the budget 'refunds' (rita), and this call needs 21."
    assert f"budget      {line}" in await explain(second, json_=False)

    await admin.reviewer("ana").revoke(first, reason="Not this one.")
    told = await explain(second)
    [stands] = told["budgets"]
    assert stands["used"] == "0"
    assert (told["by_now"]["then"], told["by_now"]["rule"]) == ("allow", "small")


# -------------------------------------------------------------------------------------- the program


async def test_people_read_lines_in_which_nothing_is_hidden(admin, gate, store):
    """Through the program: rule, people, votes; no control character reaches the terminal."""
    await apply(admin, POLICY)
    await requested(admin)
    await until(admin, "gated")
    await admin.reviewer("ana").approve(CALL, reason="fine\x1b[2Jby \u202eme")
    done = await asyncio.to_thread(approvals, "policy", "explain", CALL, store=store)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:2] == [
        'shop/order-17/refund-1 is pending: refund {"amount":480}',
        "rule        'money' of the workspace's policy, version 1, asks people: It moves money.",
    ]
    for line in (
        "must agree  2 of ana, ben and cy: ana; 1 missing",
        "must agree  one of sam and cy (@security): nobody yet; 1 missing",
        "deny        2 must deny it",
        "not         rita, who asked for it",
        "emergency   any of olga alone, with a reason",
        "time        after 3600 s it expires",
        "vote        ana: approve, fine\\u001b[2Jby \\u202eme  [hidden characters]",
    ):
        assert line in done.out.splitlines(), done.out


async def test_an_unknown_call_is_refused_as_elsewhere(admin, store):
    """The same sentence and exit code as `show`."""
    ends = [
        await asyncio.to_thread(approvals, *words, "shop/t1/nothing", "--json", store=store)
        for words in (("policy", "explain"), ("show",))
    ]
    assert ends[0] == ends[1]
    assert ends[0].code == 1
    assert ends[0].problem["error"] == UnknownCall.__name__


async def test_what_is_no_call_is_refused(explain):
    """Three parts it has."""
    with pytest.raises(BadSlot):
        await explain("shop/t1")


def test_a_vote_for_other_arguments_says_so():
    """Not as if it were about the requested ones."""
    said = command._vote(Vote("ana", "", "approve", "too much", '{"amount":48}', ""))
    assert said == 'ana: approve with other arguments, {"amount":48}, too much'


# -------------------------------------------------------------------------------- votes that do not

WISH = e.Wish("refund", '{"amount":480}')
TOOL = Tool("refund", "v1", e.ToolDeclared(description="", schema=REFUND.schema_text))


def question(**more):
    return e.ApprovalRequested(
        digest=request(WISH).digest,
        rule="money",
        policy_version=1,
        voters=("ana", "ben"),
        votes_needed=2,
        may_break_glass=("sam",),
        **{"excluded": ("rita", "olga")} | more,
    )


def vote(verdict="approve", **more):
    return e.Voted(verdict=verdict, **({"digest": request(WISH).digest} | more))


#: The votes after the question, and what is wrong with the last one.
FLAWS = [
    ("it counts", [("ana", vote())], ""),
    ("other bytes", [("ana", vote(digest="0" * 64))],
     "it is about other arguments than those of the call"),
    ("who asked", [("rita", vote())], "rita asked for it"),
    ("who is behind the agent", [("olga", vote())], "olga is behind the agent desk"),
    ("not asked", [("zoe", vote())], "zoe was not asked"),
    ("in a place nobody gave", [("zoe", vote(on_behalf_of="ana"))],
     "ana had not given zoe the vote then"),
    ("in the place of one who asked", [("zoe", vote(on_behalf_of="rita"))], "rita asked for it"),
    ("glass of others", [("ana", vote("break_glass", reason="fire"))],
     "ana may not break the glass"),
    ("glass without a word", [("sam", vote("break_glass", reason=" "))],
     "breaking the glass needs a reason"),
    ("an edit that fits no schema", [("ana", vote(arguments="{}"))],
     "its edited arguments may not run"),
    ("an edit that is none", [("ana", vote(arguments=WISH.arguments))], ""),
]  # fmt: skip


def voted(votes, **asked):
    story = Story()
    ref = story.ref.wish(1, 0)
    story.tell(ref.requested, msgspec.structs.replace(request(WISH), agent="desk"))
    story.tell(ref.gated, question(**asked))
    for name, cast in votes:
        story.tell(ref.vote(name), cast)
    return call_of(ref, tuple(story.facts))


@pytest.mark.parametrize(
    ("votes", "flaw"), [one[1:] for one in FLAWS], ids=[one[0] for one in FLAWS]
)
def test_why_a_vote_does_not_count(votes, flaw):
    """The first thing wrong with it, in the order of counting votes; nothing where it counts. The
    sentences follow `ayes.ledger.judging.votes`, which decides.
    """
    call = voted(votes)
    told = explained(call, Policies(), TOOL)
    assert told.votes[-1].flaw == flaw
    agree = [name for one in told.judged.asks.quorums for name in one.agree]
    assert bool(agree) is (not flaw)
    edits_nothing_valid = {name for name, cast in votes if cast.arguments == "{}"}
    counts = {one.reviewer for one in told.votes if not one.flaw}
    assert counts == {one.reviewer for one in counted(call)} - edits_nothing_valid


def test_it_says_who_may_confirm_their_own_request_and_how():
    """In person: why another vote of theirs does not count is said too."""
    own = {"mode": "requester_confirms", "excluded": (), "own": ("rita",)}
    cast = e.Voted(verdict="approve", digest=request(WISH).digest, on_behalf_of="ana")
    told = explained(voted([("rita", cast)], **own), Policies(), TOOL)
    assert (told.judged.asks.mode, told.judged.asks.own) == (
        "requester_confirms",
        {"rita": "asked for it"},
    )
    assert told.votes[-1].flaw == "rita asked for it, and may vote in person alone"
    lines = command._verdict_lines(told.judged, "policy 1")
    assert ("mode", "requester confirms: a second person need not look") in lines
    assert ("own", "rita, who asked for it, may confirm") in lines


def test_a_vote_after_the_deadline_says_so():
    """Expired means expired (B36)."""
    call = voted([("ana", vote()), ("ben", vote())], expires_in_s=1.5)
    assert [one.flaw for one in explained(call, Policies(), TOOL).votes] == [
        "",
        "it came after the deadline",
    ]


def test_a_vote_after_the_decision_says_so():
    """It came too late to count, whoever cast it."""
    story = Story()
    call = voted([("ana", vote())])
    story.facts = [call.requested, call.gated, *call.votes]
    story.tell(call.ref.decided, e.Denied(ground="people", rule="money", policy_version=1))
    story.tell(call.ref.vote("ben"), vote())
    told = explained(call_of(call.ref, tuple(story.facts)), Policies(), TOOL)
    assert [one.flaw for one in told.votes] == ["", "the call had been decided by then"]


def test_a_second_vote_of_one_person_says_so_also_where_it_edits():
    """Two accounts of one person are one person, and the edit is not what is wrong (B39)."""
    votes = [("ana", vote()), ("ben", vote(arguments='{"amount":100}'))]
    told = explained(voted(votes, people={"ben": "ana"}), Policies(), TOOL)
    assert [one.flaw for one in told.votes] == ["", "ben has voted already"]


@pytest.mark.parametrize("flaw", get_args(VoteFlaw.__value__))
def test_every_objection_to_a_vote_has_words(flaw):
    """A new reason for which a vote does not count is explained, or this fails."""
    cast = CastVote("ana", "ana", vote(), 4, Objection(flaw, "ana"))
    assert _flaw(voted([]), cast)


def test_a_vote_before_the_question_says_so():
    """Nobody had been asked."""
    story = Story()
    ref = story.ref.wish(1, 0)
    story.tell(ref.requested, request(WISH))
    story.tell(ref.vote("ana"), vote())
    before = call_of(ref, tuple(story.facts))
    assert explained(before, Policies(), TOOL).votes[0].flaw == "nobody had been asked by then"
    story.tell(ref.gated, question())
    asked = call_of(ref, tuple(story.facts))
    assert explained(asked, Policies(), TOOL).votes[0].flaw == "nobody had been asked by then"


def test_who_decided_is_shown_also_where_their_edit_could_not_run_by_now():
    """What was decided stays; the tool's schema or the policy may be another one today."""
    story = Story()
    call = voted([("ana", vote(arguments="{}"))])
    story.facts = [call.requested, call.gated, *call.votes]
    approved = e.Approved(
        digest="", ground="people", rule="money", policy_version=1, voters=("ana",), arguments="{}"
    )
    story.tell(call.ref.decided, approved)
    told = explained(call_of(call.ref, tuple(story.facts)), Policies(), TOOL)
    assert [one.agree for one in told.judged.asks.quorums] == [("ana",)]


@pytest.mark.parametrize(("rule", "differs"), [("no rule", False), ("money", True)])
def test_what_a_limit_ended_is_no_other_word_while_the_rule_is_the_same(rule, differs):
    """The rule was not reached, so what it said is not known; only another rule differs."""
    story = Story()
    ref = story.ref.wish(1, 0)
    story.tell(ref.requested, request(WISH))
    story.tell(
        ref.decided, e.Denied(ground="limit", rule=rule, policy_version=1, reason="Too many.")
    )
    told = explained(call_of(ref, tuple(story.facts)), Policies(), TOOL)
    assert (told.judged.then, told.judged.reason) == ("limit", "Too many.")
    assert (told.by_now is not None) is differs
