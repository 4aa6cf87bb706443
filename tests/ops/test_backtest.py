"""`ayes policy test` and `ayes policy backtest`: a policy read, and tried on what was really
called.

The counts are held against a plain loop over the file, and against the gate's own verdict on each
wish. The ledger's side runs on a real broker and in memory; what it should come to is written
beside each call.
"""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import AIRLINE, CHANGING, DATA, SMALL
from program import approvals

from ayes.interfaces.cli import policy as command
from ayes.interfaces.cli.command import Session
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ledger.judging.verdict import Case, verdict
from ayes.ops.audit import backtest as trying
from ayes.ops.audit.backtest import CandidateCall, Counts, backtest, backtest_ledger, wishes_in
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadId, BadInput
from ayes.schemas.policy import applied, read_policy
from ayes.schemas.slots import FILLED_BY, ORGANISATION, CallRef, Slot, ThreadRef, policy_slot
from ayes.schemas.tools import Tool, ToolSpec

ANY = e.ToolDeclared(description="", schema='{"type":"object"}')
AT = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
SCHEMA = '{"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"]}'

MIXED = """
[groups]
leads = ["lea"]

[owners]
"bot-*" = ["ana"]

[[rule]]
name = "small"
tools = ["refund"]
then = "allow"

[[rule]]
name = "large"
tools = ["refund"]
then = "ask"
when = "args.amount > 100"

[[rule]]
name = "of bots"
tools = ["pay*"]
then = "ask"
agents = ["bot-*"]
voters = ["ana", "@leads"]
votes_needed = 1
also = [{voters = ["ana", "ben"]}]

[[rule]]
name = "vips pay freely"
tools = ["pay"]
then = "allow"
labels = {tier = "vip*"}
priority = 1

[[rule]]
name = "only in the shop"
tools = ["close"]
then = "block"
workspaces = ["other"]

[[rule]]
name = "strict one day"
tools = ["*"]
then = "block"
when = "args.amount > 1000"
shadow = true
"""


def policy(text):
    return read_policy(text, "policy.toml")


def counts(asked=0, allowed=0, blocked=0, invalid=0, own=0):
    return Counts(asked + allowed + blocked + invalid, asked, allowed, blocked, invalid, own)


# -------------------------------------------------------------------------- a file of conversations


def plain_count(path):
    """The calls of each tool, by nothing but a JSON reader."""
    found = Counter()
    for line in path.read_text().splitlines():
        for message in json.loads(line)["messages"]:
            found.update(call["function"]["name"] for call in message.get("tool_calls") or ())
    return found


def test_the_real_conversations_are_counted_as_a_plain_loop_counts_them():
    """862 calls of 200 conversations: each tool as often as in the file; 184 are asked about."""
    if not DATA.exists():
        pytest.skip(f"the recorded conversations are not at {DATA}")
    plain = plain_count(DATA)
    told = approvals("policy", "backtest", AIRLINE, "--on", DATA, "--json").one
    assert {tool: one["calls"] for tool, one in told["by_tool"].items()} == plain
    assert {tool: one["asked"] for tool, one in told["by_tool"].items() if one["asked"]} == {
        tool: calls for tool, calls in plain.items() if tool in CHANGING
    }
    assert (told["calls"], told["asked"], told["allowed"]) == (862, 184, 678)
    assert (told["blocked"], told["invalid"], told["uncertain"], told["actual"]) == (0, 0, 0, {})
    assert {rule: one["calls"] for rule, one in told["by_rule"].items()} == {
        "changes a booking": 184,
        "only reads": 678,
    }


def test_arguments_that_no_tool_could_take_are_invalid_and_never_judged():
    """The gate denies arguments that are no JSON before any rule, so no rule has them (B66)."""
    report = backtest(policy(AIRLINE.read_text()), wishes_in(str(SMALL)))
    assert report.by_tool["calculate"] == counts(allowed=1, invalid=1)
    assert (report.calls, report.asked, report.allowed, report.invalid) == (7, 4, 2, 1)
    assert sum(one.calls for one in report.by_rule.values()) == report.calls - report.invalid


def test_a_recording_is_taken_to_be_of_the_workspace_that_is_named():
    """Rules of a workspace match only where the conversations are said to be of it."""
    block = policy(
        '[[rule]]\nname = "here"\ntools = ["*"]\nthen = "block"\nworkspaces = ["desk"]\n'
    )
    assert backtest(block, wishes_in(str(SMALL))).blocked == 0
    assert backtest(block, wishes_in(str(SMALL), workspace="desk")).blocked == 6


# --------------------------------------------------------------------------------------- any wishes

wishes = st.builds(
    CandidateCall,
    tool=st.sampled_from(["refund", "pay", "pay_all", "close"]),
    arguments=st.sampled_from(
        ['{"amount":5}', '{"amount":500}', '{"amount":5000}', "{}", '{"amount":"x"}', "[1]", "{"]
    ),
    agent=st.sampled_from(["", "bot-1", "desk"]),
    requester=st.sampled_from(["", "ana", "ben", "lea"]),
    workspace=st.sampled_from(["shop", "other"]),
    thread=st.just("t1"),
    labels=st.sampled_from([{}, {"tier": "vip1"}, {"tier": "x", "other": "vip1"}]),
    governs=st.booleans(),
    actual=st.sampled_from(["", "approved", "denied"]),
)  # fmt: skip
policies = st.sets(st.sampled_from(MIXED.strip().split("\n\n")[2:]), max_size=6).map(
    lambda rules: policy("\n\n".join((*MIXED.strip().split("\n\n")[:2], *sorted(rules))))
)


def gates_word(rules, wished):
    """What the gate itself says to it, as a word of the report, and the rule it cites."""
    ref = CallRef(wished.workspace, wished.thread, "c1")
    wish = e.ToolRequested(
        tool=wished.tool,
        arguments=wished.arguments,
        digest=call_digest(wished.tool, "v1", wished.arguments),
        tool_version="v1",
        requester=wished.requester or "nobody-else",
        agent=wished.agent,
        labels=wished.labels,
    )
    call = Call(ref, requested=Fact(1, AT, ref.requested, wish))
    tool = Tool(wished.tool, "v1", msgspec.structs.replace(ANY, governs=wished.governs))
    said = verdict(Case(call, Policies(AppliedPolicy(1, rules)), tool), AT)
    match said:
        case e.Approved():
            return "allowed", said.rule
        case e.ApprovalRequested():
            return "asked", said.rule
        case e.Denied(ground="invalid"):
            return "invalid", ""
        case e.Denied():
            return "blocked", said.rule


@given(policies, st.lists(wishes, max_size=30))
@settings(max_examples=examples(300), deadline=None)
def test_each_call_is_counted_as_the_gate_would_have_judged_it(rules, made):
    """By tool, by rule and by what happened: the gate's verdicts on each wish (B64)."""
    report = backtest(rules, made)
    words = [(one, *gates_word(rules, one)) for one in made]
    for name, found in (
        ("by_tool", lambda one, rule: one.tool),
        ("by_rule", lambda one, rule: rule),
    ):
        plain = Counter(
            (found(one, rule), word) for one, word, rule in words if name == "by_tool" or rule
        )
        told = getattr(report, name)
        assert {
            (key, word): getattr(one, word)
            for key, one in told.items()
            for word in ("asked", "allowed", "blocked", "invalid")
            if getattr(one, word)
        } == plain
    happened = Counter((one.actual, word) for one, word, _ in words if one.actual)
    assert {
        (key, word): getattr(one, word)
        for key, one in report.actual.items()
        for word in ("asked", "allowed", "blocked", "invalid")
        if getattr(one, word)
    } == happened


@given(policies, st.lists(wishes, max_size=30))
@settings(max_examples=examples(100), deadline=None)
def test_the_sums_add_up(rules, made):
    """Every call is in exactly one column, and each breakdown comes to the same total."""
    report = backtest(rules, made)
    for one in (
        report,
        *report.by_tool.values(),
        *report.by_rule.values(),
        *report.actual.values(),
    ):
        assert one.calls == one.asked + one.allowed + one.blocked + one.invalid
    assert report.calls == len(made) == sum(one.calls for one in report.by_tool.values())
    assert report.calls - report.invalid == sum(one.calls for one in report.by_rule.values())
    assert sum(one.calls for one in report.actual.values()) == sum(bool(one.actual) for one in made)
    assert report.uncertain <= report.asked


KEPT = """
[owners]
"bot-1" = ["ana"]

[[rule]]
name = "free"
tools = ["pay"]
then = "allow"
agents = ["bot-*", "desk"]
workspaces = ["shop"]
labels = {tier = "vip"}

[[rule]]
name = "two"
tools = ["close"]
then = "ask"
voters = ["ana", "ben"]
votes_needed = 2
"""
PAID = CandidateCall(
    "pay", "{}", agent="bot-1", workspace="shop", thread="t1", labels={"tier": "vip"}
)
CLOSED = CandidateCall("close", "{}", agent="desk", requester="rita", workspace="shop", thread="t1")


@pytest.mark.parametrize(
    ("one", "change"),
    [
        (PAID, {"tool": "payout"}),
        (PAID, {"agent": "other"}),
        (PAID, {"workspace": "other"}),
        (PAID, {"labels": {"tier": "none"}}),
        (PAID, {"labels": {}}),
        (PAID, {"governs": True}),
        (PAID, {"fits": False}),
        (CLOSED, {"requester": "ben"}),
        (CLOSED, {"agent": "bot-1"}),
    ],
)
def test_a_verdict_is_kept_for_calls_like_it_and_for_no_other(one, change):
    """Whatever a rule can look at makes it another call, in whichever order they come."""
    other = msgspec.structs.replace(one, **change)
    apart = [gates_word(policy(KEPT), each)[0] for each in (one, other) if each.fits is not False]
    assert len(set(apart)) == len(apart)
    for made in ([one, other, one, other], [other, one, other, one]):
        report = backtest(policy(KEPT), made)
        words = [
            word for word in ("asked", "allowed", "blocked", "invalid") if getattr(report, word)
        ]
        assert [getattr(report, word) for word in words] == [2, 2]


def test_a_condition_that_cannot_be_evaluated_is_counted_as_asked_and_said_to_be_uncertain():
    """Never as a yes, never as a no (B64, B73)."""
    free = policy(
        '[[rule]]\nname = "small"\ntools = ["*"]\nthen = "allow"\nwhen = "args.amount < 100"\n'
    )
    made = [
        CandidateCall("pay", text)
        for text in ('{"amount":5}', '{"amount":"5"}', "{}", '{"amount":500}')
    ]
    report = backtest(free, made)
    assert (report.allowed, report.asked, report.uncertain) == (1, 3, 2)
    assert report.by_rule == {"small": counts(asked=2, allowed=1), "no rule": counts(asked=1)}


def test_what_the_requester_may_confirm_counts_apart():
    """Among those asked; not what takes four eyes in any case: a call beyond a budget, and one
    whose condition cannot be evaluated.
    """
    own = policy(
        '[[budget]]\nname = "money"\ntools = ["*"]\namount = "/amount"\nlimit = 100\n'
        '[[rule]]\nname = "mine"\ntools = ["*"]\nthen = "ask"\nwhen = "args.amount > 0"\n'
        'mode = "requester_confirms"\n'
    )
    made = [
        CandidateCall("pay", text, requester="rita", workspace="shop", actual="confirmed")
        for text in ('{"amount":30}', '{"amount":60}', '{"amount":60}', '{"amount":"?"}')
    ]
    report = backtest(own, made)
    assert (report.asked, report.requester_confirms, report.changed) == (4, 2, 0)
    assert report.by_rule["mine"].requester_confirms == 2
    assert report.actual == {"confirmed": counts(asked=4, own=2)}


def test_a_rule_without_effect_counts_apart():
    """A shadow rule changes no verdict; what it would have said has rows of its own."""
    report = backtest(
        policy(MIXED),
        [CandidateCall("refund", '{"amount":5000}'), CandidateCall("refund", '{"amount":5}')],
    )
    assert report.by_rule["large"] == counts(asked=1)
    assert report.by_rule["small"] == counts(allowed=1)
    assert report.shadows == {"strict one day": counts(blocked=1)}
    assert "strict one day" not in report.by_rule


def test_a_rule_that_never_matched_is_shown_with_nothing():
    """A dead rule shows."""
    assert backtest(policy(MIXED), []).by_rule == dict.fromkeys(
        ("small", "large", "of bots", "vips pay freely", "only in the shop"), counts()
    )


def test_a_question_that_nobody_could_answer_counts_as_blocked():
    """As the gate denies it at once: neither the requester nor who is behind it counts (B68)."""
    two = policy(
        '[[rule]]\nname = "two"\ntools = ["*"]\nthen = "ask"\nvoters = ["ana", '
        '"ben"]\nvotes_needed = 2\n'
    )
    made = [CandidateCall("pay", "{}", requester=name) for name in ("ana", "rita", "ben", "rita")]
    assert backtest(two, made).by_rule == {"two": counts(asked=2, blocked=2)}


# --------------------------------------------------------------------------------------- the ledger

PAST = ThreadRef("shop", "t1")
POLICY = {"rule": "r", "policy_version": 1}
#: What was decided about a call, and the word for it.
ENDS = {
    "allowed": lambda digest: e.Approved(digest=digest, ground="policy", **POLICY),
    "approved": lambda digest: e.Approved(
        digest=digest, ground="people", voters=("ana",), **POLICY
    ),
    "confirmed": lambda digest: e.Approved(
        digest=digest, ground="people", voters=("rita",), mode="requester_confirms", **POLICY
    ),
    "granted": lambda digest: e.Approved(digest=digest, ground="grant", voters=("ana",), **POLICY),
    "glass_broken": lambda digest: e.Approved(digest=digest, ground="broken_glass", **POLICY),
    "blocked": lambda digest: e.Denied(ground="policy", **POLICY),
    "denied": lambda digest: e.Denied(ground="people", voters=("ana",), **POLICY),
    "invalid": lambda digest: e.Denied(ground="invalid", **POLICY),
    "repeated": lambda digest: e.Denied(ground="repeated", **POLICY),
    "limited": lambda digest: e.Denied(ground="limit", **POLICY),
    "answered": lambda digest: e.Answered(answer="done", **POLICY),
    "expired": lambda digest: e.Expired(after_s=1, **POLICY),
    "withdrawn": lambda digest: e.Withdrawn(),
    "superseded": lambda digest: e.Superseded(),
    "open": None,
}


def wish(tool, version, arguments='{"amount":5}', **more):
    return e.ToolRequested(
        tool=tool, tool_version=version, arguments=arguments,
        digest=call_digest(tool, version, arguments), **more,
    )  # fmt: skip


async def record(ledger, ref, wished, end):
    await ledger.try_append(ref.requested, wished)
    if ENDS[end] is not None:
        await ledger.try_append(ref.decided, ENDS[end](wished.digest))


async def declare(ledger, workspace="shop", name="refund", **more):
    return (await ledger.declare(workspace, ToolSpec(name=name, schema=SCHEMA, **more))).version


def test_every_decision_has_a_word_of_its_own():
    """Whatever may stand in `decided`, on whatever ground, is told apart, never lumped together."""
    kinds = FILLED_BY["call", "*", "decided"]
    grounds = {
        e.Approved: {"policy", "people", "grant", "broken_glass"},
        e.Denied: {"policy", "people", "invalid", "repeated", "limit"},
    }
    assert set().union(*grounds.values()) == set(e.Ground.__value__.__args__)
    wanted = {(kind, ground) for kind in kinds for ground in grounds.get(kind, {""})}
    wanted.add((e.Approved, "requester_confirms"))
    assert set(trying._HAPPENED) == wanted
    assert sorted(trying._HAPPENED.values()) == sorted(set(ENDS) - {"open"})


async def test_the_ledgers_calls_are_tried_beside_what_really_happened(ledger):
    """For each way in which a call ended, what the candidate would have done (B22)."""
    version = await declare(ledger)
    for number, end in enumerate(ENDS):
        for amount in (5, 500):
            ref = PAST.call(f"c{number}-{amount}")
            await record(ledger, ref, wish("refund", version, f'{{"amount":{amount}}}'), end)
    report, unreadable = await backtest_ledger(ledger, policy(MIXED))
    assert unreadable == 0
    assert set(report.actual) == set(ENDS)
    assert report.actual.pop("invalid") == counts(invalid=2)
    assert set(map(str, report.actual.values())) == {str(counts(asked=1, allowed=1))}
    assert (report.calls, report.invalid) == (2 * len(ENDS), 2)


@pytest.mark.parametrize(
    ("end", "changed"),
    [
        ("approved", {"allowed"}),
        ("denied", {"allowed"}),
        ("granted", {"allowed"}),
        ("open", {"allowed"}),
        ("repeated", {"allowed"}),
        ("allowed", {"asked"}),
        ("blocked", {"asked", "allowed"}),
        ("limited", {"asked", "allowed"}),
        ("invalid", set()),
    ],
)
@pytest.mark.log("memory")
async def test_calls_of_which_the_gate_said_something_else_are_listed(ledger, end, changed):
    """Whatever people then decided: the policy had asked them."""
    version = await declare(ledger)
    for amount in (5, 500):
        ref = PAST.call(f"c-{amount}")
        await record(ledger, ref, wish("refund", version, f'{{"amount":{amount}}}'), end)
    report, _ = await backtest_ledger(ledger, policy(MIXED))
    calls = {"allowed": "shop/t1/c-5", "asked": "shop/t1/c-500"}
    assert {(one.call, one.outcome) for one in report.changes} == {
        (calls[outcome], outcome) for outcome in changed
    }
    assert report.changed == len(changed)
    assert all((one.tool, one.actual) == ("refund", end) for one in report.changes)


def test_a_question_over_the_threads_limit_is_a_change(monkeypatch):
    """Only the last changes are listed, and all are counted."""
    monkeypatch.setattr(trying, "MAX_CHANGES", 2)
    asked = [
        trying.CandidateCall("refund", "{}", thread="t1", actual="approved", before=n, call=f"c{n}")
        for n in range(5)
    ]
    limited = policy("questions_per_thread = 1\n")
    report = trying.backtest(limited, asked)
    assert (report.asked, report.blocked, report.changed) == (1, 4, 4)
    assert [one.call for one in report.changes] == ["/t1/c3", "/t1/c4"]
    assert {one.rule for one in report.changes} == {"(limit) questions_per_thread"}


@pytest.mark.parametrize(
    ("arguments", "version", "word"),
    [
        ('{"amount":5}', "declared", "allowed"),
        ('{"amount":"5"}', "declared", "invalid"),
        ('{"amount":', "declared", "invalid"),
        ('{"amount":5}', "", "invalid"),
        ('{"amount":5}', "0000000000000000", "invalid"),
    ],
)
@pytest.mark.log("memory")
async def test_what_no_gate_has_judged_is_held_against_its_schema(ledger, arguments, version, word):
    """An open call whose tool is unknown, or whose arguments do not fit, is invalid (B66)."""
    declared = await declare(ledger)
    if version == "declared":
        version = declared
    await record(ledger, PAST.call("c1"), wish("refund", version, arguments), "open")
    free = policy('[[rule]]\nname = "free"\ntools = ["*"]\nthen = "allow"\n')
    report, _ = await backtest_ledger(ledger, free)
    assert report.actual == {"open": counts(**{word: 1})}


@pytest.mark.parametrize("end", ["withdrawn", "superseded"])
@pytest.mark.log("memory")
async def test_what_ended_before_anybody_judged_it_is_held_against_its_schema_too(ledger, end):
    """Being taken back says nothing about the arguments."""
    version = await declare(ledger)
    await record(ledger, PAST.call("c1"), wish("refund", version, "{}"), end)
    await record(ledger, PAST.call("c2"), wish("refund", version), end)
    report, _ = await backtest_ledger(ledger, policy(""))
    assert report.actual == {end: counts(asked=1, invalid=1)}


async def test_a_request_whose_digest_is_not_that_of_its_arguments_is_invalid(ledger):
    """Nobody could ever approve it."""
    version = await declare(ledger)
    forged = msgspec.structs.replace(wish("refund", version), digest="0" * 64)
    await record(ledger, PAST.call("c1"), forged, "open")
    report, _ = await backtest_ledger(ledger, policy(""))
    assert report.invalid == 1


async def test_a_tool_that_can_change_policy_is_never_counted_as_allowed(ledger):
    """Whatever the candidate says, people would look at it (B69)."""
    version = await declare(ledger, name="apply_policy", governs=True)
    await record(ledger, PAST.call("c1"), wish("apply_policy", version), "approved")
    free = policy('[[rule]]\nname = "free"\ntools = ["*"]\nthen = "allow"\n')
    report, _ = await backtest_ledger(ledger, free)
    assert report.by_rule == {"free": counts(asked=1)}


async def test_each_call_is_tried_by_the_class_of_its_tool_and_of_the_calls_above(ledger):
    """As declared in the version that was called; nothing declared counts as irreversible."""
    lost = '[[rule]]\nname = "lost"\ntools = ["*"]\nthen = "block"\nclass = "irreversible"\n'
    free = '[[rule]]\nname = "free"\ntools = ["*"]\nthen = "allow"\n'
    reads = await declare(ledger, name="look", **{"class": "reads"})
    final = await declare(ledger, name="order", **{"class": "irreversible"})
    unknown = await declare(ledger, name="refund")
    for call, tool, version in (
        ("look", "look", reads),
        ("order", "order", final),
        ("refund", "refund", unknown),
    ):
        ref = PAST.call(call)
        await record(ledger, ref, wish(tool, version, requester="rita"), "open")
        opened = e.ThreadOpened(requester="rita", parent=str(ref))
        await ledger.append(ref.below.opened, opened)
        await record(ledger, ref.below.call("below"), wish("look", reads), "approved")
    report, _ = await backtest_ledger(ledger, policy(lost + free))
    assert report.by_tool == {
        "look": counts(allowed=2, blocked=2),
        "order": counts(blocked=1),
        "refund": counts(blocked=1),
    }
    blocked = [one.call for one in report.changes if (one.tool, one.outcome) == ("look", "blocked")]
    assert blocked == [str(PAST.call(one).below.call("below")) for one in ("order", "refund")]


async def test_only_one_workspace_is_tried_where_one_is_named(ledger):
    """By default all are."""
    for workspace, calls in (("shop", 2), ("other", 3)):
        version = await declare(ledger, workspace)
        for number in range(calls):
            ref = ThreadRef(workspace, "t1").call(f"c{number}")
            await record(ledger, ref, wish("refund", version), "approved")
    for workspace, calls in (("shop", 2), ("other", 3), ("", 5), ("nowhere", 0)):
        report, _ = await backtest_ledger(ledger, policy(""), workspace=workspace)
        assert report.calls == calls


async def test_only_what_was_requested_since_then_is_tried(ledger):
    """From a fact or a time on; a decision alone, about an earlier request, does not count."""
    version = await declare(ledger)
    for number in range(4):
        await record(ledger, PAST.call(f"c{number}"), wish("refund", version), "approved")
    facts = [fact async for fact in ledger.replay()]
    requests = [fact for fact in facts if isinstance(fact.event, e.ToolRequested)]
    third = requests[2]
    for since, calls in (
        (1, 4),
        (third.seq, 2),
        (third.seq + 1, 1),
        (third.recorded_at, 2),
        (facts[-1].seq + 1, 0),
        (facts[-1].recorded_at + timedelta(days=1), 0),
    ):
        report, _ = await backtest_ledger(ledger, policy(""), since=since)
        assert report.calls == calls, since


async def test_what_cannot_be_read_is_told_and_never_hides_the_rest(store):
    """A request of a newer program, bytes that are no fact, a foreign subject: counted apart."""
    async with Ledger.connect(store, role="admin") as ledger:
        version = await declare(ledger)
        await ledger.log.append(
            PAST.call("c1").requested, b'{"type":"ToolRequested","id":"1","v":99}', "1"
        )
        await ledger.log.append(PAST.call("c2").requested, b"no fact", "2")
        await ledger.log.append(Slot("shop", "t1", ("call", "_bad", "requested")), b"{}", "3")
        await record(ledger, PAST.call("c4"), wish("refund", version), "approved")
        await ledger.log.append(PAST.call("c1").decided, b'{"type":"Deferred","id":"4"}', "4")
        report, unreadable = await backtest_ledger(ledger, policy(""))
    assert (report.calls, unreadable) == (1, 3)


async def test_a_decision_of_a_newer_program_is_unknown_and_its_call_is_counted(ledger):
    """Nothing is lost: the candidate is tried on it all the same."""
    version = await declare(ledger)
    await ledger.try_append(PAST.call("c1").requested, wish("refund", version))
    await ledger.log.append(PAST.call("c1").decided, b'{"type":"Deferred","id":"4"}', "4")
    report, _ = await backtest_ledger(ledger, policy(""))
    assert report.actual == {"unknown": counts(asked=1)}


# ------------------------------------------------------------------------------------- the commands


async def test_the_json_is_one_object_with_these_keys(store, capsys, tmp_path):
    """What programs read, from the ledger and from a file."""
    (tmp_path / "mixed.toml").write_text(MIXED)
    for on in (None, str(SMALL)):
        await command.backtest(
            str(tmp_path / "mixed.toml"), on=on, session=Session(store, json=True)
        )
        told = json.loads(capsys.readouterr().out)
        assert list(told) == [
            *("calls", "asked", "allowed", "blocked", "invalid", "requester_confirms", "uncertain"),
            *("by_tool", "by_rule", "actual", "left_out", "changed", "changes", "shadows"),
        ]
        for one in told["by_rule"].values():
            assert list(one) == [
                *("calls", "asked", "allowed", "blocked", "invalid", "requester_confirms"),
            ]


def test_people_read_tables():
    """The total first, then by tool and by rule; without a broker."""
    done = approvals("policy", "backtest", AIRLINE, "--on", SMALL)
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[0] == "7 calls: 4 asked, 2 allowed, 0 blocked, 1 invalid"
    assert any(line.split() == ["calculate", "2", "0", "1", "0", "1"] for line in lines)
    assert any(
        line.split() == ["changes", "a", "booking", "4", "4", "0", "0", "0"] for line in lines
    )


BAD_RULE = '[[rule]]\nname = "a"\ntools = ["*"]\nthen = "maybe"\n'
FINE = '[[rule]]\nname = "a"\ntools = ["*"]\nthen = "ask"\n'
#: The policy, the conversations, the options, and what the sentence must hold.
BAD = [
    ("a mistake in the policy", BAD_RULE, None, ["--on", "talks.jsonl"],
     "policy.toml, line 4, rule 'a'"),
    ("conversations that are none", FINE, "{}\n", ["--on", "talks.jsonl"], "talks.jsonl, line 1"),
    ("no such conversations", FINE, None, ["--on", "nowhere.jsonl"],
     "nowhere.jsonl: cannot be read"),
    ("neither a number nor a time", FINE, None, ["--since", "yesterday"], "--since 'yesterday'"),
    ("times of a file", FINE, "{}\n", ["--on", "talks.jsonl", "--since", "1"], "have no times"),
    ("no workspace", FINE, None, ["-w", "a.b"], "workspace 'a.b'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "talks", "options", "sentence"), BAD, ids=[one[0] for one in BAD]
)
async def test_bad_input_is_told_in_a_sentence(
    name, text, talks, options, sentence, tmp_path, monkeypatch
):
    """Before any broker is asked: none runs here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text(text)
    if talks is not None:
        (tmp_path / "talks.jsonl").write_text(talks)
    given = dict(zip(options[::2], options[1::2], strict=True))
    with pytest.raises(BadInput) as told:
        await command.backtest(
            "policy.toml",
            on=given.get("--on"),
            since=given.get("--since"),
            workspace=given.get("-w", ""),
            session=Session(tmp_path / "no-store", json=True),
        )
    assert sentence in str(told.value)
    assert told.value.exit_code == 2


def test_a_mistake_ends_the_program_with_2_and_its_line(tmp_path):
    """Both `test` and `backtest`, for people and for programs."""
    (tmp_path / "policy.toml").write_text(BAD_RULE)
    for arguments in (("test",), ("backtest", "--on", SMALL)):
        done = approvals("policy", arguments[0], tmp_path / "policy.toml", *arguments[1:], "--json")
        assert (done.code, done.out) == (2, "")
        assert "line 4, rule 'a'" in done.problem["message"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, 1),
        ("17", 17),
        ("2026-11-21T08:50:00", datetime(2026, 11, 21, 8, 50, tzinfo=UTC)),
        ("2026-11-21T08:50:00+00:00", datetime(2026, 11, 21, 8, 50, tzinfo=UTC)),
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC)),
    ],
)
def test_since_is_a_number_or_a_time(text, wanted):
    """A time without a zone is UTC, as every time here."""
    assert trying.since(text) == wanted


@pytest.mark.parametrize("text", ["", "-1", "1.5", "yesterday", "2026-13-01", "²", "9" * 23])
def test_since_is_nothing_else(text):
    """Nothing is guessed."""
    with pytest.raises(BadInput, match="neither a sequence number nor an ISO time"):
        trying.since(text)


# -------------------------------------------------------------------------------------- policy test


def test_a_policy_file_is_read_as_apply_reads_it_without_a_broker(tmp_path):
    """Rules, groups and limits, for people; for programs the whole of it."""
    (tmp_path / "mixed.toml").write_text(f"calls_per_thread = 7\n{MIXED}")
    done = approvals("policy", "test", tmp_path / "mixed.toml")
    assert done.code == 0
    for told in (
        "ask         'of bots': pay*; of agent bot-*; one of ana and lea (ana @leads), and one of",
        "allow       'vips pay freely': pay; with label tier=vip*; priority 1",
        "block       'strict one day': *; only if args.amount > 1000; without effect",
        "leads: lea",
        "calls a thread: 7",
        "args.amount > 100",
    ):
        assert told in done.out, told
    assert "6 rules" in done.err
    told = approvals("policy", "test", tmp_path / "mixed.toml", "--json").one
    assert [rule["name"] for rule in told["rule"]][:2] == ["small", "large"]
    assert told["calls_per_thread"] == 7


#: The options, and what is said.
SAID = [
    (["--tool", "refund", "--arguments", '{"amount":5}'], ("allow", "small")),
    (["--tool", "refund", "--arguments", '{"amount":500}'], ("ask", "large")),
    (["--tool", "refund"], ("ask", "large")),
    (["--tool", "refund", "--arguments", "{"], ("invalid", "large")),
    (["--tool", "close"], ("ask", "no rule")),
    (["--tool", "close", "-w", "other"], ("block", "only in the shop")),
    (["--tool", "pay", "--agent", "bot-1"], ("ask", "of bots")),
    (["--tool", "pay", "--agent", "bot-1", "--label", "tier=vip1", "--label", "a=b"],
     ("allow", "vips pay freely")),
    (["--tool", "pay", "--agent", "bot-1", "--requester", "lea"], ("block", "of bots")),
    (["--tool", "look"], ("block", "lost")),
    (["--tool", "look", "--class", "reads"], ("ask", "no rule")),
]  # fmt: skip


@pytest.mark.parametrize(("options", "wanted"), SAID)
async def test_what_it_would_say_to_a_call_is_what_the_gate_would_say(
    options, wanted, tmp_path, capsys
):
    """Rule and word, for any call that can be described; nothing is recorded anywhere."""
    lost = '[[rule]]\nname = "lost"\ntools = ["look"]\nthen = "block"\nclass = "irreversible"\n'
    told = await tried(tmp_path, capsys, options, MIXED + lost)
    assert wanted == (told["then"], told["rule"])


async def test_it_says_who_must_agree_and_who_does_not_count(tmp_path, capsys):
    """Each quorum with its people, groups resolved; owner and requester never count (B68)."""
    everybody = MIXED.replace('voters = ["ana", "@leads"]', 'voters = ["ana", "@leads", "ops-*"]')
    told = await tried(
        tmp_path, capsys, ["--tool", "pay", "--agent", "bot-1", "--requester", "rita"], everybody
    )
    assert [(one["voters"], one["votes_needed"]) for one in told["asks"]["quorums"]] == [
        (["ana", "lea", "ops-*"], 1),
        (["ana", "ben"], 1),
    ]
    assert told["asks"]["excluded"] == {"rita": "asked for it", "ana": "is behind the agent bot-1"}


async def test_it_says_what_rules_without_effect_would_have_said(tmp_path, capsys):
    """A shadow is shown beside the verdict."""
    told = await tried(tmp_path, capsys, ["--tool", "close", "--arguments", '{"amount":2000}'])
    assert (told["then"], told["shadows"]) == ("ask", [{"rule": "strict one day", "then": "block"}])


async def tried(tmp_path, capsys, options, text=MIXED):
    (tmp_path / "mixed.toml").write_text(text)
    named = list(zip(options[::2], options[1::2], strict=True))
    given = dict(named)
    await command.try_file(
        str(tmp_path / "mixed.toml"),
        tool=given.get("--tool"),
        arguments=given.get("--arguments", "{}"),
        agent=given.get("--agent", ""),
        workspace=given.get("-w", "default"),
        labels=[value for name, value in named if name == "--label"],
        requester=given.get("--requester", ""),
        tool_class=given.get("--class"),
        json=True,
    )
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (["--agent", "a"], BadInput),
        (["--arguments", "[]"], BadInput),
        (["--class", "reads"], BadInput),
        (["--tool", "pay", "--class", "read"], BadInput),
        (["--tool", "a b"], BadId),
        (["--tool", "pay", "-w", "a.b"], BadId),
        (["--tool", "pay", "--label", "vip"], BadInput),
        (["--tool", "pay", "--label", "=vip"], BadInput),
    ],
)
async def test_a_call_that_is_none_is_refused(options, kind, tmp_path, capsys):
    """Half a description, a name that cannot be one."""
    with pytest.raises(kind):
        await tried(tmp_path, capsys, options)


def test_people_read_it_in_lines():
    """Through the program: what it says, who must agree, who does not count."""
    done = approvals("policy", "test", AIRLINE, "--tool", "book_reservation", "--requester", "rita")
    assert done.code == 0
    told = dict(line.split("  ", 1) for line in done.out.splitlines()[1:])
    assert told["rule"].strip().startswith("'changes a booking' of ")
    assert told["must agree"].strip() == "anybody"
    assert told["not"].strip() == "rita, who asked for it"


# -------------------------------------------------------------------------- what it does not forget

LIMITED = '[[rule]]\nname = "free"\ntools = ["*"]\nthen = "allow"\n'


def test_limits_of_a_thread_hold():
    """In the order in which the calls were requested, whichever ended first (R9)."""
    made = [
        CandidateCall("pay", "{}", workspace="shop", thread="t", before=before)
        for before in (4, 0, 3, 1, 2)
    ]
    report = backtest(policy("calls_per_thread = 2\n" + LIMITED), made)
    assert (report.allowed, report.blocked) == (2, 3)
    assert report.by_rule["(limit) calls_per_thread"] == counts(blocked=3)
    asks = "questions_per_thread = 2\n" + LIMITED.replace("allow", "ask")
    trial = trying.Backtest(policy(asks))
    for wished in (*made, CandidateCall("pay", "{}", workspace="shop", thread="other")):
        trial.take(wished)
    for _ in range(2):
        report = trial.report()
        assert (report.asked, report.blocked) == (3, 3)
    assert "grants" in report.left_out


@pytest.mark.parametrize(
    ("then", "outcomes"),
    [("block", {"allowed": 4, "blocked": 3}), ("ask", {"allowed": 3, "asked": 4})],
)
def test_budgets_hold(then: str, outcomes: dict[str, int]):
    """In the order of decisions; an unknown amount does not fit; approved ones count (R9)."""
    text = (
        '[[budget]]\nname = "money"\ntools = ["pay"]\namount = "/amount"\nlimit = 100\n'
        f'per = ["agent", "day"]\nthen = "{then}"\n'
    )
    made = [
        CandidateCall("pay", arguments, agent=agent, day=day, actual=actual, workspace="shop")
        for arguments, agent, day, actual in (
            ('{"amount":60}', "desk", "2026-03-02", "allowed"),
            ('{"amount":60}', "desk", "2026-03-02", "approved"),
            ('{"amount":60}', "desk", "2026-03-03", "allowed"),
            ('{"amount":60}', "other", "2026-03-02", "allowed"),
            ('{"amount":40}', "desk", "2026-03-02", "allowed"),
            ("{}", "desk", "2026-03-04", "denied"),
            ('{"amount":0.1}', "desk", "2026-03-02", "denied"),
        )
    ]
    report = backtest(policy(text + LIMITED), made)
    assert {name: n for name in _OUTCOMES if (n := getattr(report, name))} == outcomes
    assert report.by_rule["(limit) budget money"].calls == 7 - outcomes["allowed"]


@pytest.mark.parametrize(("own", "over"), [("block", "ask"), ("ask", "block")])
def test_budgets_of_both_policies_hold(own: str, over: str):
    """The one that blocks counts, though the other one has its name (R9)."""
    text = '[[budget]]\nname = "money"\ntools = ["pay"]\namount = "/amount"\nlimit = 100\n'
    beside = trying.Beside(policy(f'{text}then = "{over}"\n'))
    made = [
        CandidateCall("pay", '{"amount":60}', workspace="shop", actual="allowed") for _ in range(2)
    ]
    report = backtest(policy(f'{text}then = "{own}"\n{LIMITED}'), made, beside)
    assert (report.allowed, report.asked, report.blocked) == (1, 0, 1)


def test_a_budget_for_each_requester_knows_people():
    """A person's accounts have one sum, as at the gate (R9)."""
    text = (
        '[[budget]]\nname = "money"\ntools = ["pay"]\namount = "/amount"\nlimit = 100\n'
        'per = ["requester"]\nthen = "block"\n[people]\nrita = ["slack:U17"]\n'
    )
    made = [
        CandidateCall("pay", '{"amount":60}', requester=name, workspace="shop", actual="allowed")
        for name in ("rita", "Rita", "slack:u17", "ben")
    ]
    report = backtest(policy(text + LIMITED), made)
    assert (report.allowed, report.blocked) == (2, 2)


@pytest.mark.parametrize(
    ("per", "blocked"),
    [
        ('"thread"', ["t1/c2"]),
        ('"agent", "day"', ["t2/c1", "t1/c2"]),
        ("", ["t2/c1", "t3/c1", "t1/c2"]),
    ],
)
async def test_budgets_of_tokens_hold(ledger, per: str, blocked: list[str]):
    """Each call is judged by what the replies before it have used, its own among them (R9)."""
    version = await declare(ledger)
    agents = {"t1": "desk", "t2": "desk", "t3": "other"}
    for thread, agent in agents.items():
        opened = e.ThreadOpened(requester="rita", agent=agent)
        await ledger.try_append(ThreadRef("shop", thread).opened, opened)
    for turn, thread, tokens in ((1, "t1", 60), (1, "t2", 60), (1, "t3", 90), (2, "t1", 50)):
        ref = ThreadRef("shop", thread)
        usage = e.Usage(input_tokens=tokens - 10, output_tokens=10)
        await ledger.try_append(ref.replied(turn), e.ModelReplied(parts=(), usage=usage))
        wished = wish("refund", version, requester="rita", agent=agents[thread])
        await record(ledger, ref.call(f"c{turn}"), wished, "allowed")
    text = (
        '[[budget]]\nname = "use"\ntools = ["*"]\namount = "tokens"\nlimit = 100\nthen = "block"\n'
    )
    report, _ = await backtest_ledger(ledger, policy(f"{text}per = [{per}]\n{LIMITED}"))
    assert [one.call for one in report.changes] == [f"shop/{one}" for one in blocked]
    assert report.by_rule["(limit) budget use"] == counts(blocked=len(blocked))
    assert report.allowed == 4 - len(blocked)


_OUTCOMES = ("asked", "allowed", "blocked", "invalid")


async def test_the_organisations_policy_is_tried_beside_it(ledger):
    """It allows what the organisation blocks; as the organisation's it meets all of them (R9)."""
    version = await declare(ledger)
    over = '[[rule]]\nname = "never"\ntools = ["*"]\nwhen = "args.amount > 100"\nthen = "block"\n'
    await ledger.try_append(policy_slot(ORGANISATION, 1), applied(over))
    for number, amount in enumerate((5, 500)):
        await record(
            ledger,
            PAST.call(f"c{number}"),
            wish("refund", version, f'{{"amount":{amount}}}'),
            "open",
        )
    report, _ = await backtest_ledger(ledger, policy(LIMITED))
    assert (report.allowed, report.blocked) == (1, 1)
    assert report.by_rule["(organisation) never"] == counts(blocked=1)
    await ledger.try_append(policy_slot("shop", 1), applied(LIMITED))
    report, _ = await backtest_ledger(
        ledger, policy('[[rule]]\nname = "all"\ntools = ["*"]\nthen = "block"\n'), organisation=True
    )
    assert (report.allowed, report.blocked) == (0, 2)


def test_a_requester_whom_the_gate_would_turn_down_is_invalid():
    """By the table of people that the candidate has (C5)."""
    made = [CandidateCall("pay", "{}", requester=name) for name in ("ana", "eve@corp.example")]
    assert backtest(policy(LIMITED), made).invalid == 1
    assert backtest(policy('[people]\neve = ["EVE@corp.example"]\n' + LIMITED), made).invalid == 0
