"""The saved questions: each answer is what plain Python finds in the same facts.

The facts are told here and written by the archivist, so that the way from the log to the answer is
the real one. What is compared with it folds the facts with the ledger's own `call_of` and
`grants_of`, and has no SQL in it.
"""

import json
import re
import tempfile
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import ROOT
from program import approvals, at_a_terminal
from stories import START, life
from town import happened, written

from ayes.interfaces.cli.ask import answer
from ayes.ledger.call import Call
from ayes.ledger.judging.grants import grants_of
from ayes.ledger.lifecycle import SETTLED as ENDED
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import RawMessage
from ayes.ledger.validity import call_of
from ayes.ops.lake.writer import LakeWriter
from ayes.projections.lake.queries import QUESTIONS
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import ORGANISATION, CallRef, GrantRef, ThreadRef, policy_slot

NAMES = tuple(QUESTIONS)

# ---------------------------------------------------------------------------------- without any SQL


class Town:
    """The facts, and what is read off them."""

    def __init__(self, facts: list[Fact]) -> None:
        self.facts = facts
        refs = dict.fromkeys(one.slot.call_ref for one in facts if one.slot.call_ref)
        by_ref = defaultdict(list)
        for one in facts:
            by_ref[one.slot.call_ref].append(one)
        self.calls = [call_of(ref, tuple(by_ref[ref])) for ref in refs]
        self.now = facts[-1].recorded_at if facts else None
        self.asked = [call for call in self.calls if call.gated]
        self.by_people = [call for call in self.asked if by_people(call)]


def by_people(call: Call) -> bool:
    match call.decided and call.decided.event:
        case e.Answered():
            return True
        case e.Approved(ground=ground) | e.Denied(ground=ground):
            return ground in {"people", "broken_glass"}
    return False


def decision(call: Call, *kinds) -> bool:
    return call.decided is not None and isinstance(call.decided.event, kinds)


def ground(call: Call) -> str | None:
    return getattr(call.decided.event, "ground", None) if call.decided else None


def edit(call: Call) -> str | None:
    return call.decided.event.arguments if decision(call, e.Approved) else None


def rule(call: Call) -> str | None:
    named = getattr(call.decided.event, "rule", None) if call.decided else None
    return named if named is not None else call.gated and call.gated.event.rule


def took_s(first: Fact, second: Fact) -> float:
    return (second.recorded_at - first.recorded_at).total_seconds()


def waited_s(call: Call) -> float:
    return took_s(call.gated, call.decided)


def naive(fact: Fact):
    return fact.recorded_at.replace(tzinfo=None)


def started(call: Call) -> Fact | None:
    return next((one for one in call.claims if isinstance(one.event, e.ToolStarted)), None)


def ended(call: Call) -> Fact | None:
    return (call.reconciled or call.finished) if call.status in ENDED else None


def outcome(call: Call) -> str | None:
    match call.finished and call.finished.event:
        case None:
            return None
        case e.ToolRefused(ending=ending):
            return ending
    return str(call.status)


def quantile(values, share: float) -> float | None:
    """The value below which that share of them is, between two of them where it falls so."""
    if not (known := sorted(values)):
        return None
    at = (len(known) - 1) * share
    low = int(at)
    high = min(low + 1, len(known) - 1)
    return known[low] + (known[high] - known[low]) * (at - low)


def grouped(items, *keys):
    found = defaultdict(list)
    for one in items:
        found[tuple(key(one) for key in keys)].append(one)
    return found.items()


def last(value):
    """A key that sorts what is missing behind all else."""
    return value is None, value or ""


def tool(call: Call) -> str:
    return call.wish.tool


def workspace(call: Call) -> str:
    return call.ref.workspace


def thread(call: Call) -> str:
    return call.ref.thread


def time_to_decision(town: Town):
    rows = [
        (name, day, len(found), *(quantile(map(waited_s, found), q) for q in (0.5, 0.9, 0.99)))
        for (name, day), found in grouped(
            town.by_people, tool, lambda call: call.gated.recorded_at.date()
        )
    ]
    return sorted(rows, key=lambda row: (row[1], row[0]))


def who_decides(town: Town):
    votes = [(call, vote) for call in town.calls for vote in call.votes]
    rows = []
    for (name,), found in grouped(votes, lambda one: one[1].slot.tail[3]):
        said = Counter(vote.event.verdict for _, vote in found)
        after = [took_s(call.gated, vote) for call, vote in found]
        verdicts = (said[verdict] for verdict in ("approve", "deny", "answer", "break_glass"))
        edited = sum(vote.event.arguments is not None for _, vote in found)
        behalf = sum(vote.event.on_behalf_of != "" for _, vote in found)
        counted = sum(
            call.decided is not None and name in getattr(call.decided.event, "voters", ())
            for call, _ in found
        )
        sums = (edited, behalf, counted, quantile(after, 0.5), quantile(after, 0.9))
        rows.append((name, len(found), *verdicts, *sums))
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def overrides(town: Town):
    rows = []
    for (name,), found in grouped(town.by_people, tool):
        edited = sum(edit(call) is not None for call in found)
        approved = sum(decision(call, e.Approved) for call in found) - edited
        denied = sum(decision(call, e.Denied) for call in found)
        answered = sum(decision(call, e.Answered) for call in found)
        whole = len(found)
        shares = (denied / whole, (whole - approved) / whole)
        rows.append((name, whole, approved, edited, denied, answered, *shares))
    return sorted(rows, key=lambda row: (-row[7], -row[1], row[0]))


def read_object(text: str):
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def edits(town: Town):
    found = Counter()
    for call in town.calls:
        if (after := edit(call)) is None:
            continue
        was, now = read_object(call.wish.arguments), read_object(after)
        if was is None or now is None:
            if call.wish.arguments != after:
                found[tool(call), None, "changed"] += 1
            continue
        for field in was.keys() | now.keys():
            if field not in was or field not in now:
                found[tool(call), field, "removed" if field in was else "added"] += 1
            elif was[field] != now[field]:
                found[tool(call), field, "changed"] += 1
    rows = []
    for (name, field), kinds in grouped(
        found.items(), lambda one: one[0][0], lambda one: one[0][1]
    ):
        by_kind = {key[2]: count for key, count in kinds}
        counts = [by_kind.get(kind, 0) for kind in ("changed", "added", "removed")]
        rows.append((name, field, sum(counts), *counts))
    return sorted(rows, key=lambda row: (-row[2], row[0], *last(row[1])))


_AGES = (
    (60, "under a minute"),
    (600, "under 10 minutes"),
    (3600, "under an hour"),
    (86_400, "under a day"),
    (604_800, "under a week"),
    (float("inf"), "a week or more"),
)


def pending_age(town: Town):
    waiting = [
        ((town.now - call.gated.recorded_at).total_seconds(), str(call.ref))
        for call in town.calls
        if call.status is Status.PENDING
    ]
    rows = []
    for (age,), found in grouped(
        waiting, lambda one: next(name for most, name in _AGES if one[0] < most)
    ):
        oldest_s, oldest = min(found, key=lambda one: (-one[0], one[1]))
        rows.append((age, len(found), oldest_s, oldest))
    return sorted(rows, key=lambda row: row[2])


def failed_after_approval(town: Town):
    approved = [call for call in town.calls if decision(call, e.Approved)]
    rows = []
    for (name, on), found in grouped(approved, tool, ground):
        ends = Counter(map(outcome, found))
        ran = sum(started(call) is not None for call in found)
        never = sum(outcome(call) is not None and started(call) is None for call in found)
        doubted = ends["in_doubt"] + ends["reconciled"]
        ended = (ends["returned"], ends["failed"], doubted, never, ran)
        rows.append((name, on, len(found), *ended, ends["failed"] / ran if ran else None))
    return sorted(rows, key=lambda row: (-row[4], row[0], row[1]))


def expiries(town: Town):
    rows = []
    for (name, by), found in grouped(town.asked, tool, rule):
        expired = sum(decision(call, e.Expired) for call in found)
        escalated = sum(bool(call.escalated) for call in found)
        if expired:
            rows.append((name, by, len(found), escalated, expired, expired / len(found)))
    return sorted(rows, key=lambda row: (-row[4], row[0], row[1]))


def rubber_stamping(town: Town):
    seen = defaultdict(list)
    for call in town.asked:
        reads_s = max(2.0, (len(call.wish.arguments) + len(call.gated.event.reason)) / 25)
        for vote in call.votes:
            if call.decided is None or vote.seq < call.decided.seq:
                seen[vote.slot.tail[3]].append((took_s(call.gated, vote), reads_s))
    rows = []
    for name, found in seen.items():
        faster = sum(after < reads for after, reads in found)
        medians = (quantile([one[n] for one in found], 0.5) for n in (0, 1))
        rows.append((name, len(found), faster, faster / len(found), *medians))
    return sorted(rows, key=lambda row: (-row[3], -row[1], row[0]))


def cost_of_waiting(town: Town):
    rows = []
    for (name,), found in grouped([call for call in town.calls if ended(call)], tool):
        lived = sum(took_s(call.requested, ended(call)) for call in found)
        waited = sum(max(0, waited_s(call)) for call in found if call.gated)
        asked = sum(call.gated is not None for call in found)
        rows.append((name, len(found), asked, lived, waited, waited / lived if lived else None))
    return sorted(rows, key=lambda row: (-round(row[4], 3), row[0]))


def grants_in_use(town: Town):
    rows = []
    for one in grants_of(town.facts):
        named = (one.ref.workspace, one.ref.giver, one.ref.name, one.granted.tool)
        times = (naive(one.given), one.ends_at.replace(tzinfo=None))
        used = (one.standing(town.now), one.granted.uses, len(one.used))
        rows.append((*named, *used, *times, naive(one.revoked) if one.revoked else None))
    return sorted(rows, key=lambda row: (row[4] != "in force", row[7], *row[:3]))


def rules(town: Town):
    cited = defaultdict(list)
    for fact in town.facts:
        named = getattr(fact.event, "rule", "")
        if fact.slot.tail[-1] in {"gated", "decided"} and named:
            over = ORGANISATION if fact.event.organisation else fact.slot.workspace
            cited[over, named].append(fact)
    rows = []
    for (policy, named), found in cited.items():
        calls = len({fact.slot.call_ref for fact in found})
        asked = sum(isinstance(fact.event, e.ApprovalRequested) for fact in found)
        alone = [fact.event for fact in found if getattr(fact.event, "ground", "") == "policy"]
        words = (sum(isinstance(event, kind) for event in alone) for kind in (e.Approved, e.Denied))
        rows.append((policy, named, "cited", calls, asked, *words, naive(found[-1])))
    rows.sort(key=lambda row: (row[0], -row[3], row[1]))
    latest = {
        one.slot.workspace: one.event.text
        for one in town.facts
        if isinstance(one.event, e.PolicyApplied)
    }
    for policy, text in latest.items():
        rows += [
            (policy, one.name, "shadow" if one.shadow else "never", 0, 0, 0, 0, None)
            for one in read_policy(text, "").rules
            if (policy, one.name) not in cited
        ]
    return sorted(rows, key=lambda row: row[0])


def reused_provider_ids(town: Town):
    named = [call for call in town.calls if call.wish.provider_id]
    rows = []
    for key, found in grouped(named, workspace, thread, lambda call: call.wish.provider_id):
        if len(found) > 1:
            kinds = (len(set(map(tool, found))), len({call.wish.digest for call in found}))
            rows.append((*key, len(found), *kinds, sorted(call.ref.call for call in found)))
    return sorted(rows, key=lambda row: (-row[3], *row[:3]))


def longest_threads(town: Town):
    rows = []
    told = [one for one in town.facts if one.slot.thread]
    for key, found in grouped(told, lambda one: one.slot.workspace, lambda one: one.slot.thread):
        kinds = Counter(type(one.event) for one in found)
        usage = [one.event.usage for one in found if isinstance(one.event, e.ModelReplied)]
        # None of it was counted: that is not to have counted none.
        tokens = [
            sum(counts)
            if (counts := [count for one in usage if (count := getattr(one, name))])
            else None
            for name in ("input_tokens", "output_tokens")
        ]
        counted = (
            kinds[kind] for kind in (e.Said, e.ModelReplied, e.ToolRequested, e.ApprovalRequested)
        )
        rows.append(
            (*key, len(found), *counted, *tokens, took_s(found[0], found[-1]), naive(found[-1]))
        )
    return sorted(rows, key=lambda row: (-row[2], row[0], row[1]))[:20]


def in_doubt(town: Town):
    rows = []
    for call in town.calls:
        if call.status is Status.IN_DOUBT:
            named = (call.ref.workspace, call.ref.thread, call.ref.call, tool(call))
            starts = sum(isinstance(one.event, e.ToolStarted) for one in call.claims)
            times = (naive(started(call)), naive(call.finished))
            age_s = (town.now - call.finished.recorded_at).total_seconds()
            rows.append((*named, call.wish.arguments, starts, *times, age_s))
    return sorted(rows, key=lambda row: (row[7], *row[:3]))


def not_asked(town: Town):
    unasked = [call for call in town.calls if call.gated is None and ground(call)]
    rows = [
        (*key, len(found), len(set(map(tool, found))), max(naive(call.decided) for call in found))
        for key, found in grouped(
            unasked, ground, rule, lambda call: type(call.decided.event).__name__
        )
    ]
    return sorted(rows, key=lambda row: (-row[3], *row[:3]))


def busiest_hours(town: Town):
    rows = []
    for (hour,), found in grouped(town.asked, lambda call: call.gated.recorded_at.hour):
        took = [waited_s(call) for call in found if by_people(call)]
        rows.append((hour, len(found), len(took), quantile(took, 0.5), quantile(took, 0.9)))
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def repeated_denials(town: Town):
    denied = [call for call in town.calls if decision(call, e.Denied)]
    rows = []
    for key, found in grouped(denied, workspace, thread, tool, lambda call: call.wish.digest):
        on = Counter(map(ground, found))
        if len(found) > 1:
            others = len(found) - on["people"] - on["repeated"]
            counts = (on["people"], on["repeated"], others)
            latest = max(naive(call.decided) for call in found)
            rows.append((*key[:3], found[0].wish.arguments, len(found), *counts, latest))
    return sorted(rows, key=lambda row: (-row[4], *row[:4]))


def break_glass(town: Town):
    by_ref = {call.ref: call for call in town.calls}
    rows = []
    for fact in town.facts:
        if isinstance(fact.event, e.GlassBroken):
            ref = fact.slot.call_ref
            call = by_ref[ref]
            kind = type(call.decided.event).__name__ if call.decided else None
            came = (kind, ground(call), outcome(call), started(call) is not None)
            said = (tool(call), fact.event.reviewer, fact.event.reason)
            rows.append((naive(fact), ref.workspace, ref.thread, ref.call, *said, *came))
    return rows


def four_eyes(town: Town):
    approved = [call for call in town.calls if decision(call, e.Approved) and by_people(call)]
    rows = []
    for key, found in grouped(approved, tool, rule):
        own = sum(call.approval.mode == "requester_confirms" for call in found)
        rows.append((*key, len(found), len(found) - own, own, own / len(found)))
    return sorted(rows, key=lambda row: (-row[4], -row[2], *row[:2]))


def agents(town: Town):
    rows = []
    for (agent,), found in grouped(town.calls, lambda call: call.wish.agent or None):
        asked = sum(call.gated is not None for call in found)
        undecided = (e.Expired, e.Withdrawn, e.Superseded)
        kinds = [
            sum(decision(call, *kind) for call in found)
            for kind in ((e.Approved,), (e.Denied,), (e.Answered,), undecided)
        ]
        pending = sum(call.decided is None for call in found)
        assert sum(kinds) + pending == len(found)  # each call is in one of these columns
        failed = sum(outcome(call) == "failed" for call in found)
        tools = len(set(map(tool, found)))
        counts = (len(found), tools, asked, *kinds, pending, failed)
        rows.append((agent, *counts, asked / len(found)))
    return sorted(rows, key=lambda row: (-row[1], *last(row[0])))


EXPECTED = {
    name.replace("_", "-"): one
    for name, one in list(globals().items())
    if name.replace("_", "-") in QUESTIONS and callable(one)
}


def close(value):
    """Seconds are rounded to a thousandth, and shares to a ten-thousandth."""
    return pytest.approx(value, abs=6e-4) if isinstance(value, float) else value


def compare(lake: Path, town: Town, name: str) -> list:
    found = answer(lake, QUESTIONS[name])
    expected = EXPECTED[name](town)
    assert [tuple(row.values()) for row in found] == [tuple(map(close, row)) for row in expected], (
        name
    )
    return expected


# ---------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def town():
    return Town(happened(seed=5, calls=300))


@pytest.fixture(scope="module")
def lake(town, tmp_path_factory):
    return written(tmp_path_factory.mktemp("archive"), town.facts)


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    return written(tmp_path_factory.mktemp("archive"), [])


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_what_the_facts_say(lake, town, name):
    """In a town of 300 calls each question has an answer, as plain Python has it, in order."""
    assert compare(lake, town, name)


def test_the_town_has_of_everything(lake):
    """The answers compared have grants and open calls of each kind, and reviewers of two kinds."""

    def found(name, column):
        return {row[column] for row in answer(lake, QUESTIONS[name])}

    assert found("grants-in-use", "standing") == {"in force", "ended", "used up", "revoked"}
    assert len(answer(lake, QUESTIONS["pending-age"])) >= 2
    assert found("rules", "standing") == {"cited", "never", "shadow"}
    assert any(
        0 < row["faster"] < row["votes"] for row in answer(lake, QUESTIONS["rubber-stamping"])
    )
    assert found("not-asked", "ground") >= {"policy", "grant", "limit", "repeated"}
    assert any(
        0 < row["requester_confirms_share"] < 1 for row in answer(lake, QUESTIONS["four-eyes"])
    )


@given(seed=st.integers(0, 2**32), calls=st.integers(0, 12), batch=st.integers(1, 40))
@settings(max_examples=examples(5), deadline=None)
def test_answers_hold_whatever_happens(seed, calls, batch):
    """Few calls or none, and published after batches of any size: the answers are the facts'."""
    town = Town(happened(seed, calls))
    with tempfile.TemporaryDirectory() as directory:
        lake = written(Path(directory), town.facts, batch)
        for name in NAMES:
            compare(lake, town, name)


def test_an_empty_lake_has_no_answer_and_no_error(empty):
    """A lake of a log without any facts can be asked everything."""
    for name in NAMES:
        assert answer(empty, QUESTIONS[name]) == [], name


@pytest.mark.parametrize("name", NAMES)
def test_a_question_is_one_select_with_an_order(name):
    """Nothing is written, nothing stands behind it, and the rows have an order of their own."""
    (statement,) = duckdb.extract_statements(QUESTIONS[name].sql)
    assert statement.type == duckdb.StatementType.SELECT
    assert (
        "ORDER BY" in QUESTIONS[name].sql.rpartition(")")[2]
        or "ORDER BY" in QUESTIONS[name].sql.splitlines()[-1]
    )


@pytest.mark.long
def test_the_order_is_total(lake, town, tmp_path):
    """The same facts in other files, in other batches, give the same answers to the byte."""
    again = written(tmp_path, town.facts, batch=211)
    for question in QUESTIONS.values():
        assert answer(again, question) == answer(lake, question), question.name


def test_ages_are_counted_to_the_newest_fact(tmp_path):
    """From the question to the newest fact of the log, however long ago that is; each age begins
    where the last one ends.
    """
    waited_s = (604_800, 604_799.999999, 86_400, 3600, 600, 599.999999, 60, 59.999999)
    end = START + timedelta(days=8)
    facts = [
        Fact(2 * number + place, end - timedelta(seconds=waits_s), *one)
        for number, waits_s in enumerate(waited_s)
        for place, one in enumerate(
            life(CallRef("acme", "t", f"c{number}"), e.Wish("pay", "{}"), "approved")[:2], 1
        )
    ]
    facts.append(
        Fact(len(facts) + 1, end, ThreadRef("shop", "t").opened, e.ThreadOpened(requester="rita"))
    )
    found = answer(written(tmp_path, facts), QUESTIONS["pending-age"])
    assert [(row["age"], row["calls"], row["oldest"]) for row in found] == [
        ("under a minute", 1, "acme/t/c7"),
        ("under 10 minutes", 2, "acme/t/c5"),
        ("under an hour", 1, "acme/t/c4"),
        ("under a day", 1, "acme/t/c3"),
        ("under a week", 2, "acme/t/c1"),
        ("a week or more", 1, "acme/t/c0"),
    ]


def test_a_vote_as_fast_as_reading_is_none_too_many(tmp_path):
    """Ten seconds for 250 characters of arguments and reason, and two seconds at least: a question
    that was voted on after that time can have been read.
    """
    facts: list[Fact] = []
    for name, characters, after_s in (
        *(("ana", 250, 9.999999), ("ben", 250, 10)),
        *(("cleo", 13, 1.999999), ("dan", 13, 2)),
    ):
        ref, wish = CallRef("acme", "t", name), e.Wish("pay", "x" * (characters - 11))
        asked = life(ref, wish, "approved")[:2]
        assert len(wish.arguments) + len(asked[1][1].reason) == characters
        vote = (ref.vote(name), e.Voted(verdict="approve", digest="d"))
        for told, waited_s in ((asked[0], 0), (asked[1], 0), (vote, after_s)):
            facts.append(Fact(len(facts) + 1, START + timedelta(seconds=waited_s), *told))
    found = answer(written(tmp_path, facts), QUESTIONS["rubber-stamping"])
    assert {row["reviewer"]: (row["votes"], row["faster"]) for row in found} == {
        "ana": (1, 1),
        "ben": (1, 0),
        "cleo": (1, 1),
        "dan": (1, 0),
    }


def test_a_grant_ends_when_its_time_is_over(tmp_path):
    """A grant for a minute holds until the newest fact is a minute later; unsaid, it is one use."""
    granted = e.Granted(tool="refund", expires_in_s=60)
    later = ThreadRef("shop", "t").opened, e.ThreadOpened(requester="rita")
    facts = [
        Fact(1, START, GrantRef("acme", "ana", "first").given, granted),
        Fact(2, START + timedelta(microseconds=1), GrantRef("acme", "ana", "g").given, granted),
        Fact(3, START + timedelta(seconds=60), *later),
    ]
    found = answer(written(tmp_path, facts), QUESTIONS["grants-in-use"])
    assert [(row["name"], row["standing"], row["uses"], row["used"]) for row in found] == [
        ("g", "in force", 1, 0),
        ("first", "ended", 1, 0),
    ]


def test_questions_have_names_and_sentences():
    """Names are unique and can be typed; titles are a sentence; each has a recomputation above."""
    assert len(QUESTIONS) >= 15
    assert set(EXPECTED) == set(QUESTIONS)
    for name, one in QUESTIONS.items():
        assert name == one.name
        assert name == name.lower().replace(" ", "-")
        assert one.title[-1] in "?."


def test_the_documentation_lists_them():
    """`docs/asking.md` has a row for each question, with its sentence."""
    page = (ROOT / "docs" / "asking.md").read_text()
    listed = re.findall(
        r"^\| `([a-z-]+)` \| (.*) \|$", page.partition("## Saved questions")[2], re.MULTILINE
    )
    assert listed[: len(QUESTIONS)] == [(one.name, one.title) for one in QUESTIONS.values()]


def test_a_rule_is_told_from_what_only_looks_like_one(lake):
    """A group or a comment that says `name`, a quoted quote, an older version: no trap."""
    found = answer(lake, QUESTIONS["rules"])
    silent = {
        (row["policy"], row["rule"], row["standing"]) for row in found if row["standing"] != "cited"
    }
    assert silent == {
        (policy, rule, standing)
        for policy in ("acme", ORGANISATION)
        for rule, standing in (('never "said"', "never"), ("tried", "shadow"))
    }


def test_a_policy_that_cannot_be_read_is_said(tmp_path, capsys):
    """A policy of a newer program leaves the rest of the answer; a sentence says what lacks."""
    applied = e.PolicyApplied(text='[[rule]]\nname = "new"\nfrobnicate = 1\n', digest="d")
    ref = CallRef("acme", "t", "c")
    gated = e.ApprovalRequested(digest="d", rule="money", policy_version=1)
    told = [(policy_slot("acme", 1), applied), (ref.gated, gated)]
    lake = written(tmp_path, [Fact(seq, START, *one) for seq, one in enumerate(told, 1)])
    assert [row["rule"] for row in answer(lake, QUESTIONS["rules"])] == ["money"]
    assert "never cited are unknown: the policy of acme" in capsys.readouterr().err


def test_bytes_that_are_no_facts_disturb_no_question(tmp_path, town):
    """No JSON, and JSON that is no fact, in slots of a call: every question is still answered."""
    ref = CallRef("acme", "t", "c")
    slots = (ref.requested, ref.gated, ref.vote("ana"), ref.decided, ref.claim(1), ref.finished)
    slots += (policy_slot("acme", 1),)
    raws = [
        RawMessage(seq, START, slot.subject, data)
        for seq, (slot, data) in enumerate(
            ((slot, data) for data in (b"\xff", b"[1]", b'{"type":7}') for slot in slots), 1
        )
    ]
    with LakeWriter.open(tmp_path, "a log") as archive:
        archive.take(raws)
        archive.publish()
    for question in QUESTIONS.values():
        answer(archive.lake, question)


# --------------------------------------------------------------------------------- the command line


def test_without_a_name_all_are_listed(within):
    """The list needs no lake: a name and a sentence each, and with --json an object each."""
    for arguments in (("ask",), ("ask", "--list")):
        listed = within(*arguments)
        assert listed.code == 0
        assert all(name in listed.out for name in NAMES)
    assert [one["name"] for one in within("ask", "--json").lines] == list(NAMES)


def test_list_with_a_name_shows_its_sql(within, lake):
    """What is shown can be run as it is by any DuckDB on the catalog."""
    shown = within("ask", "overrides", "--list")
    assert shown.code == 0
    with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:
        rows = db.execute(shown.out).fetchall()
    assert rows == [tuple(row.values()) for row in answer(lake, QUESTIONS["overrides"])]
    assert within("ask", "overrides", "--list", "--json").one["sql"] == QUESTIONS["overrides"].sql


def test_an_unknown_name_is_answered_with_those_that_there_are(within):
    """Exit 2, and every name, whether it is asked or to be shown."""
    for more in ((), ("--list",)):
        refused = within("ask", "overides", *more)
        assert refused.code == 2
        assert "there is no question 'overides'" in refused.err
        assert all(name in refused.err for name in NAMES)


def test_without_a_lake_it_says_how_to_get_one(within, tmp_path):
    """No lake there is bad input, in a sentence; nothing is made."""
    refused = within("ask", "overrides", "--to", tmp_path / "nowhere")
    assert refused.code == 2
    assert "ayes lake sync" in refused.err
    assert not (tmp_path / "nowhere").exists()


def test_a_broken_catalog_is_a_sentence(within, tmp_path):
    """A catalog that is no DuckDB file: exit 1, and what to do."""
    broken = written(tmp_path, [])
    (broken / "catalog.duckdb").write_bytes(b"not a catalog" * 1000)
    refused = within("ask", "overrides", "--to", tmp_path)
    assert refused.code == 1
    assert "cannot be queried" in refused.err


def test_json_is_one_object_a_row(within, lake, town):
    """Names of columns are the keys; times are in UTC and say so."""
    rows = within("ask", "break-glass", "--json", "--to", lake.parent).lines
    assert len(rows) == len(break_glass(town))
    assert rows[0]["broken_at"].endswith("Z")
    assert [row["call"] for row in rows] == [row[3] for row in break_glass(town)]


def test_people_get_a_table_and_nothing_that_hides(within, tmp_path, monkeypatch):
    """Markup and control characters in arguments stand there as they are, or spelled out."""
    monkeypatch.setenv("COLUMNS", "200")
    ref = CallRef("acme", "t", "c")
    wish = e.Wish(tool="pay", arguments='{"a":"[bold]\u202e"}')
    told = life(ref, wish, "in doubt")
    lake = written(tmp_path, [Fact(seq, START, *one) for seq, one in enumerate(told, 1)])
    shown = within("ask", "in-doubt", "--to", lake.parent)
    assert shown.code == 0
    assert '{"a":"[bold]\\u202e"}' in shown.out
    assert "the log up to" in shown.err


def test_a_table_breaks_no_word(within, lake, monkeypatch):
    """In a pipe every cell is whole, however narrow the screen is said to be; at a terminal what
    does not fit is left out, and a sentence says so.
    """
    monkeypatch.setenv("COLUMNS", "40")
    rows = within("ask", "overrides", "--json", "--to", lake.parent).lines
    shown = within("ask", "overrides", "--to", lake.parent)
    head, *lines = shown.out.splitlines()
    assert len(lines) == len(rows)
    assert all(name.replace("_", " ") in head for name in rows[0])
    for row, line in zip(rows, lines, strict=True):
        assert row["tool"] in line.split()
    with at_a_terminal(
        "ask", "overrides", "--to", lake.parent, store=lake, COLUMNS="40"
    ) as terminal:
        assert terminal.ended() == 0
    assert "columns fit. --json gives all of them." in terminal.told
    told = terminal.told.splitlines()[1:]
    assert len(told) == len(rows) + 2


def test_nothing_of_the_kind_is_said(within, empty):
    """An empty answer has no rows and says so on stderr; with --json it is no line at all."""
    told = within("ask", "overrides", "--to", empty.parent)
    assert (told.code, told.out) == (0, "")
    assert "No rows, in a lake that has the log up to fact 0." in told.err
    assert within("ask", "overrides", "--to", empty.parent, "--json").lines == []


def test_the_program_answers_as_people_start_it(lake, town):
    """The real program: rows on stdout, the question on stderr, exit 0."""
    told = approvals("ask", "overrides", "--to", lake.parent, "--json")
    assert told.code == 0
    assert [row["decided"] for row in told.lines] == [row[1] for row in overrides(town)]
