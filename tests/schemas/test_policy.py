"""The policy file and the scripted reviewer's: what they mean, and how their mistakes are told."""

import json
import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import AIRLINE

from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.judging import policy_rules
from ayes.ledger.judging.policy_rules import NO_RULE, STRICTNESS, About, covers, judge
from ayes.schemas import conditions
from ayes.schemas.errors import BadFile
from ayes.schemas.events import Quorum, Shadow, Stage
from ayes.schemas.policy import MAX_RULES, Policy, read_policy
from ayes.schemas.toml_files import line_of, read_text
from bench.rehearsal.scripted_reviewer import read_script, script_for, vote


def rule(name="a", tools='["x"]', then="ask", *more):
    return "\n".join(
        ["[[rule]]", f'name = "{name}"', f"tools = {tools}", f'then = "{then}"', *more, ""]
    )


# ------------------------------------------------------------------------------------------ judging

ALLOW_ALL = rule("all", '["*"]', "allow")
ASK_X = rule("ask x", '["x"]', "ask")
BLOCK_X = rule("block x", '["x*"]', "block")


@pytest.mark.parametrize(
    ("text", "tool", "name", "then"),
    [
        ("", "x", "no rule", "ask"),
        (ASK_X, "y", "no rule", "ask"),
        (ALLOW_ALL, "x", "all", "allow"),
        (ALLOW_ALL + ASK_X, "x", "ask x", "ask"),
        (ASK_X + ALLOW_ALL, "x", "ask x", "ask"),
        (ALLOW_ALL + ASK_X, "y", "all", "allow"),
        (BLOCK_X + ASK_X + ALLOW_ALL, "x", "block x", "block"),
        (ALLOW_ALL + ASK_X + BLOCK_X, "x", "block x", "block"),
        (ALLOW_ALL + ASK_X + BLOCK_X, "xy", "block x", "block"),
        (rule("first", '["x"]') + rule("second", '["*"]'), "x", "first", "ask"),
        (rule("one character", '["book_?"]'), "book_1", "one character", "ask"),
        (rule("one character", '["book_?"]'), "book_12", "no rule", "ask"),
        (rule("case counts", '["Book"]', "allow"), "book", "no rule", "ask"),
        (rule("case counts", '["B*"]', "allow"), "book", "no rule", "ask"),
        (rule("a name like any", '["constructor"]', "allow"), "constructor", "a name like any",
         "allow"),
    ],
)  # fmt: skip
def test_strictest_rule_counts(text, tool, name, then):
    """Block beats ask beats allow, in any order; a tool without a rule is asked about (I4, B73)."""
    judged = judge(read_policy(text, "policy.toml"), About(tool))
    assert (judged.rule.name, judged.then) == (name, then)


def test_no_rule_asks_everybody_for_ever():
    """What nobody thought of waits for anybody, without end (I4, B73)."""
    assert judge(Policy(), About("anything")).rule == NO_RULE
    assert (NO_RULE.voters, NO_RULE.votes_needed, NO_RULE.expires_in_s) == (("*",), 1, None)


ASK = ("a", '["x"]', "ask")
HIGH = rule("high", '["x"]', "allow", "priority = 1")
LOW = rule("low", '["*"]', "block", "priority = -1")
BIG = rule("big", '["x"]', "block", 'when = "args.amount > 100"')
OF_SHOP = rule("of shop", '["x"]', "allow", 'workspaces = ["shop-*", "acme"]')
OF_DESK = rule("of desk", '["x"]', "allow", 'agents = ["desk-?"]')
OF_CHAT = rule("of chat", '["x"]', "allow", 'labels = {channel = "chat*", "a b" = "[vip]"}')


@pytest.mark.parametrize(
    ("text", "about", "name", "then"),
    [
        # A higher priority overrides what is stricter, and only then strictness and the order of
        # the file count.
        (HIGH + BLOCK_X, {}, "high", "allow"),
        (BLOCK_X + HIGH + ASK_X, {}, "high", "allow"),
        (LOW + ASK_X, {}, "ask x", "ask"),
        (LOW + rule("first", '["x*"]', "allow") + rule("second", '["?"]', "allow"), {},
         "first", "allow"),
        # Conditions: yes, no, and what cannot be said.
        (BIG + ALLOW_ALL, {"args": {"amount": 101}}, "big", "block"),
        (BIG + ALLOW_ALL, {"args": {"amount": 100}}, "all", "allow"),
        (BIG, {"args": {"amount": 100}}, "no rule", "ask"),
        (BIG + ALLOW_ALL, {"args": {}}, "big", "ask"),
        (ALLOW_ALL + BIG, {"args": {"amount": "101"}}, "big", "ask"),
        (BIG + ALLOW_ALL, {"args": None}, "big", "ask"),
        (BIG, {"args": {}}, "big", "ask"),
        (BIG + HIGH, {"args": {}}, "high", "allow"),  # it would have been overridden anyway
        (BIG + ASK_X, {"args": {}}, "ask x", "ask"),
        (BIG + BLOCK_X, {"args": {}}, "block x", "block"),
        # Workspaces, agents, labels.
        (OF_SHOP, {"workspace": "shop-1"}, "of shop", "allow"),
        (OF_SHOP, {"workspace": "acme"}, "of shop", "allow"),
        (OF_SHOP, {"workspace": "shop"}, "no rule", "ask"),
        (OF_SHOP, {}, "no rule", "ask"),
        (OF_DESK, {"agent": "desk-1"}, "of desk", "allow"),
        (OF_DESK, {"agent": "desk-12"}, "no rule", "ask"),
        (OF_DESK, {}, "no rule", "ask"),
        (OF_CHAT, {"labels": {"channel": "chatty", "a b": "[vip]", "more": "x"}},
         "of chat", "allow"),
        # no character class
        (OF_CHAT, {"labels": {"channel": "chat", "a b": "v"}}, "no rule", "ask"),
        (OF_CHAT, {"labels": {"channel": "mail", "a b": "[vip]"}}, "no rule", "ask"),
        (OF_CHAT, {"labels": {"channel": "chat"}}, "no rule", "ask"),
        (OF_CHAT, {}, "no rule", "ask"),
        # A condition is not even looked at where the rule is about something else.
        (BIG.replace("block", "allow") + 'agents = ["desk"]', {"args": {}, "agent": "web"},
         "no rule", "ask"),
    ],
)  # fmt: skip
def test_priority_then_strictness_then_the_order_of_the_file(text, about, name, then):
    """Which rule counts, of those that match workspace, agent, labels and condition (B64, I4)."""
    judged = judge(read_policy(text, "policy.toml"), About("x", **about))
    assert (judged.rule.name, judged.then) == (name, then)


CLASSES = ("reads", "reversible", "reversible_outside", "irreversible")
LOST = rule("lost", '["*"]', "block", 'class = "irreversible"')
OUTSIDE = rule("outside", '["*"]', "ask", 'class = ["reversible_outside", "irreversible"]')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LOST, ("ask", "ask", "ask", "block")),
        (LOST + ALLOW_ALL, ("allow", "allow", "allow", "block")),
        (OUTSIDE + ALLOW_ALL, ("allow", "allow", "ask", "ask")),
        (OUTSIDE + LOST + ALLOW_ALL, ("allow", "allow", "ask", "block")),
        (rule("looks", '["x"]', "allow", 'class = "reads"'), ("allow", "ask", "ask", "ask")),
        (rule("others", '["y"]', "allow", 'class = "reads"'), ("ask",) * 4),
    ],
)
def test_a_rule_matches_the_classes_that_it_names(text, said):
    """A call of which no class is known counts as irreversible (I4)."""
    policy = read_policy(text, "policy.toml")
    judged = [judge(policy, About("x", tool_class=one)).then for one in CLASSES]
    assert tuple(judged) == said
    assert judge(policy, About("x")).then == said[-1]
    assert policy.speaks_of_classes
    assert not read_policy(ALLOW_ALL, "policy.toml").speaks_of_classes


MONEY = rule("money", '["x"]', "ask", 'when = "args.amount > 100"', 'voters = ["sam"]')
ANYBODY = rule("anybody", '["x"]', "ask")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (MONEY + ANYBODY, "money"),
        (ANYBODY + MONEY, "anybody"),
        (ANYBODY + MONEY + "priority = 1", "money"),
        (ANYBODY + "priority = 1\n" + MONEY, "anybody"),
        (BIG + MONEY.replace("100", "10") + ALLOW_ALL, "money"),
        (BIG + ALLOW_ALL, "big"),
    ],
)
def test_who_is_asked_cannot_be_chosen_by_spoiling_a_condition(text, name):
    """With an amount that is no number, those are asked whom the condition names (B64, I4)."""
    judged = judge(read_policy(text, "policy.toml"), About("x", {"amount": "a lot"}))
    assert (judged.rule.name, judged.then) == (name, "ask")


def test_a_condition_that_cannot_be_evaluated_says_why():
    """The reviewer reads which condition it was, and what was the matter (B64)."""
    judged = judge(read_policy(BIG + ALLOW_ALL, "policy.toml"), About("x", {}))
    assert judged.reason == (
        "The condition of this rule cannot be evaluated, so a person must look: "
        "'args.amount > 100' cannot be evaluated: there is no 'amount'."
    )


def test_rules_without_effect_are_only_told():
    """A shadow rule changes no word and says what it would say; where it cannot, that it asks."""
    text = (
        rule("s1", '["x"]', "block", "shadow = true", "priority = 9")
        + rule("s2", '["x"]', "allow", "shadow = true", 'when = "args.amount > 1"')
        + rule("s3", '["x"]', "allow", "shadow = true", 'when = "has(args.amount)"')
        + rule("s4", '["y"]', "block", "shadow = true")
    )
    assert judge(read_policy(text + ALLOW_ALL, "p"), About("x", {})).then == "allow"
    judged = judge(read_policy(text, "p"), About("x", {}))
    assert (judged.rule, judged.then) == (NO_RULE, "ask")
    assert judged.shadows == (Shadow("s1", "block"), Shadow("s2", "ask"))


def test_every_key_of_a_rule_is_read():
    """A rule says whom it is about, who may vote, how many, until when, what then, and why."""
    text = rule(
        "a", '["x", "y*"]', "ask",
        'when = "args.amount > 1"', 'workspaces = ["acme"]', 'agents = ["desk-*"]',
        'labels = {channel = "chat"}',
        "priority = -3", "shadow = true", 'reason = "Money."',
        'voters = ["ana", "ops-*", "@security"]', "votes_needed = 2", "denials_needed = 3",
        'also = [{voters = ["@security", "sam"]}, {voters = ["lea"], votes_needed = 1}]',
        'break_glass = ["@security"]', "expires_in_s = 3600", 'on_timeout = "escalate"',
        'stages = [{voters = ["lea"], expires_in_s = 60.5}, {voters = ["@security"]}]',
        'reasons = ["Duplicate", "Wrong amount"]',
    )  # fmt: skip
    policy = read_policy('[groups]\nsecurity = ["sam", "sec-*"]\n' + text, "policy.toml")
    (only,) = policy.rules
    assert (only.tools, only.workspaces, only.agents) == (("x", "y*"), ("acme",), ("desk-*",))
    assert (only.when, only.labels) == ("args.amount > 1", {"channel": "chat"})
    assert (only.priority, only.shadow, only.reason) == (-3, True, "Money.")
    assert only.reasons == ("Duplicate", "Wrong amount")
    assert (only.denials_needed, only.expires_in_s, only.on_timeout) == (3, 3600, "escalate")
    assert policy.quorums(only) == (
        Quorum(("ana", "ops-*", "sam", "sec-*"), 2, "ana ops-* @security"),
        Quorum(("sam", "sec-*"), 1, "@security sam"),
        Quorum(("lea",), 1, "lea"),
    )
    assert policy.people(only.break_glass) == ("sam", "sec-*")
    assert policy.stages(only) == (Stage(("lea",), 60.5), Stage(("sam", "sec-*"), None))


def test_every_key_above_the_rules_is_read():
    """Limits, groups, owners and what is never granted are of all rules; unsaid, open."""
    text = """
        while_pending = "block"
        deny_repeats = 0
        calls_per_thread = 500
        questions_per_thread = 50
        undo_s = 5
        never_grant = ["payout", "grant_*"]
        [groups]
        desk = ["olga", "otto"]
        [owners]
        "desk-*" = ["@desk"]
        "*-1" = ["lea", "olga"]
    """
    policy = read_policy(text, "policy.toml")
    assert (policy.deny_repeats, policy.calls_per_thread, policy.questions_per_thread) == (
        0,
        500,
        50,
    )
    assert (policy.undo_s, Policy().undo_s) == (5, None)
    assert [policy.never_granted(tool) for tool in ("payout", "grant_x", "pay", "refund")] == [
        True,
        True,
        False,
        False,
    ]
    assert policy.behind("desk-1") == ("olga", "otto", "lea")
    assert policy.behind("desk-2") == ("olga", "otto")
    assert policy.behind("web") == policy.behind("") == ()
    assert (Policy().deny_repeats, Policy().calls_per_thread, Policy().questions_per_thread) == (
        3,
        None,
        None,
    )
    assert not Policy().never_granted("payout")


def test_no_agent_has_no_owner():
    """A call of no agent's is nobody's, even where every agent has an owner."""
    policy = read_policy('[owners]\n"*" = ["lea"]', "policy.toml")
    assert (policy.behind("any"), policy.behind("")) == (("lea",), ())


# -------------------------------------------------------------------------------- the index by tool

NAMES = st.sampled_from(["a", "b", "ab", "abc", "b_1"])
PATTERNS = st.lists(
    st.sampled_from(["a", "b", "ab", "a*", "*b", "?", "*", "b_?"]), min_size=1, max_size=3
)
MANY = st.lists(
    st.fixed_dictionaries(
        {
            "tools": PATTERNS,
            "then": st.sampled_from(["allow", "ask", "block"]),
            "workspaces": PATTERNS,
            "agents": st.just(["*"]) | PATTERNS,
            "when": st.sampled_from(["", "args.n > 1", "has(args.n)"]),
            "shadow": st.booleans(),
        }
    ),
    max_size=8,
)


def scanned(policy, about):
    """The word that counts, by looking at every rule, one priority after the other."""
    counts, shadows, unsaid = [], [], []
    for one in policy.rules:
        if not any(fnmatchcase(about.tool, pattern) for pattern in one.tools) or not covers(
            one, about
        ):
            continue
        try:
            said = one.then if not one.when or conditions.holds(one.when, about.scope) else None
        except conditions.CannotSay:
            said = "ask"
            if not one.shadow:
                unsaid.append(one)
        if said and one.shadow:
            shadows.append(Shadow(one.name, said))
        elif said and one not in unsaid:
            counts.append(one)
    best = max(counts, key=lambda one: (one.priority, STRICTNESS[one.then]), default=None)
    if best is None:
        return "ask", tuple(shadows), None if unsaid else NO_RULE
    if best.then == "allow" and any(one.priority >= best.priority for one in unsaid):
        return "ask", tuple(shadows), None
    return best.then, tuple(shadows), best if not unsaid else None


@given(
    MANY,
    st.lists(st.integers(-1, 1), min_size=8, max_size=8),
    st.lists(
        st.tuples(NAMES, NAMES, NAMES, st.sampled_from([{}, {"n": 1}, {"n": 2}, {"n": "x"}])),
        max_size=6,
    ),
)
def test_the_index_by_tool_changes_nothing(rules, priorities, wishes):
    """Looked up by tool, the rules say what a scan of all says, the first time and again (I11)."""
    said: dict[object, str] = {}
    kept = []
    for number, (one, priority) in enumerate(zip(rules, priorities, strict=False)):
        about = (
            one["when"],
            priority,
            one["shadow"],
            *(frozenset(one[key]) for key in ("tools", "workspaces", "agents")),
        )
        if said.setdefault(about, one["then"]) == one["then"]:
            kept.append({"name": f"r{number}", "priority": priority, **one})
    policy = Policy.model_validate({"rule": kept})
    for tool, agent, workspace, args in [*wishes, *wishes]:
        about = About(tool, args, agent=agent, workspace=workspace)
        judged = judge(policy, about)
        then, shadows, best = scanned(policy, about)
        assert (judged.then, judged.shadows) == (then, shadows)
        assert best is None or judged.rule is best


def test_a_rule_about_all_workspaces_and_agents_compares_no_pattern(monkeypatch):
    """Each rule about a tool is looked at for each call: comparing takes three times as long."""

    def compared(_name, _patterns):
        raise AssertionError("a pattern was compared")

    policy = read_policy(rule("a", '["*"]'), "x.toml")
    policy.about("x")
    monkeypatch.setattr(policy_rules, "is_among", compared)
    assert judge(policy, About(tool="x", workspace="shop", agent="desk")).rule.name == "a"


def test_more_tools_than_are_remembered_are_judged_all_the_same(monkeypatch):
    """The index forgets nothing and grows no further than it may."""
    monkeypatch.setattr("ayes.schemas.policy._MAX_TOOLS", 2)
    policy = read_policy(ALLOW_ALL + BLOCK_X, "policy.toml")
    for _ in range(2):
        for tool, then in (
            ("a", "allow"),
            ("b", "allow"),
            ("x", "block"),
            ("c", "allow"),
            ("xy", "block"),
        ):
            assert judge(policy, About(tool)).then == then
    assert set(policy._by_tool) == {"a", "b"}


@pytest.mark.parametrize("word", ["queue", "supersede", "block"])
def test_while_pending_is_of_the_whole_policy(word):
    """What becomes of a message meanwhile is said above the rules; unsaid, it waits (B58)."""
    assert read_policy(f'while_pending = "{word}"\n' + rule(), "policy.toml").while_pending == word
    assert read_policy(rule(), "policy.toml").while_pending == "queue"
    assert Policy().while_pending == "queue"


def test_airline_example_asks_before_changes():
    """The shipped example asks about the six tools that change something and lets others run."""
    policy = read_policy(read_text(AIRLINE), str(AIRLINE))
    changing = (
        "book_reservation", "cancel_reservation", "update_reservation_flights",
        "update_reservation_baggages", "update_reservation_passengers", "send_certificate",
    )  # fmt: skip
    assert {judge(policy, About(tool)).then for tool in changing} == {"ask"}
    assert judge(policy, About("get_user_details")).then == "allow"


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = ", ["line 1:", "no TOML"]),
        ('\nx = """\n\n', ["line 2:", "no TOML", "Unterminated"]),
        ('a = 1\n[[rule]\nname = "x"', ["line 2:", "no TOML"]),
        ("x = " + "[" * 5000, ["nested"]),
        ("x = " + "1" * 5000, ["too many digits"]),
        ("[[rules]]",
         ["line 1:", "unknown key 'rules'", "The keys are: while_pending,", "budget, rule."]),
        ("[rule]", ["line 1:", "should be a list", "[[rule]]"]),
        ('\nwhile_pending = "wait"', ["line 2:", "'wait'", "'queue', 'supersede' or 'block'"]),
        ("while_pending = true",
         ["line 1:", "'while_pending' is True", "'queue', 'supersede' or 'block'"]),
        ("[while_pending]", ["line 1:", "'while_pending' is {}"]),
        (rule() + 'while_pending = "block"', ["line 5, rule 'a'", "above the first [[rule]]"]),
        (rule(tools="[1, 2, 3, 4, 5, 6, 7]"), ["line 3, rule 'a'", "item 5", "And 2 more."]),
        ("\nrule = 3", ["line 2:", "should be a list"]),
        ("rule = [1]", ["line 1, rule 1:", "should be a table"]),
        (rule() + "tool = 1", ["line 5, rule 'a'", "unknown key 'tool'", "name, tools, then"]),
        ('[[rule]]\nname = "a"', ["line 1, rule 'a'", "'tools' is missing", "'then' is missing"]),
        ('[[rule]]\ntools = ["x"]\nthen = "ask"', ["line 1, rule 1:", "'name' is missing"]),
        (rule(name=""), ["line 2, rule 1:", "needs a name"]),
        (rule(name=" "), ["line 2", "needs a name"]),
        (rule(name="no rule"), ["line 2", "Choose another"]),
        (rule() + rule("b") + rule("a"), ["line 10, rule 'a'", "another rule has the name 'a'"]),
        (rule(then="maybe"), ["line 4, rule 'a'", "'maybe'", "'allow', 'ask' or 'block'"]),
        (rule(tools="[]"), ["line 3, rule 'a'", "'tools' is empty"]),
        (rule(tools='"x"'), ["line 3", "'tools' should be a list"]),
        (rule(tools="[1]"), ["line 3", "'tools', item 1 should be a valid string"]),
        (rule(tools='[\n  "x",\n  "a b",\n]'),
         ["line 3, rule 'a'", "item 2", "'a b' is not a valid pattern", "* and ?"]),
        (rule(tools='["[ab]"]'), ["line 3", "'[ab]' is not a valid pattern of tools"]),
        (rule(tools='["a>b"]'), ["line 3", "'a>b' is not a valid pattern"]),
        (rule(tools='["ü"]'), ["line 3", "'ü' is not a valid pattern"]),
        (rule(tools='[""]'), ["line 3", "'' is not a valid pattern"]),
        (rule(tools=f'["{"x" * 129}"]'), ["line 3", "cannot be used", "1 to 128"]),
        (rule("a", '["x"]', "ask", 'voters = ["a.b"]'),
         ["line 5", "'voters'", "'a.b' is not a valid pattern"]),
        (rule("a", '["x"]', "ask", "voters = []"), ["line 5", "'voters' is empty"]),
        (rule("a", '["x"]', "allow", 'voters = ["ana"]'),
         ["line 5", "'voters'", 'then = "ask"', "'allow'"]),
        (rule("a", '["x"]', "block", "votes_needed = 1"), ["line 5", "'votes_needed'", "'block'"]),
        (rule("a", '["x"]', "block", "valid_for_s = 9"),
         ["line 5", "'valid_for_s'", "approves nothing"]),
        (rule("a", '["x"]', "allow", "valid_for_s = 0"), ["line 5", "greater than 0"]),
        (rule("a", '["x"]', "allow", "", "expires_in_s = 9"),
         ["line 6", "'expires_in_s'", "'allow'"]),
        (rule("a", '["x"]', "ask", "votes_needed = 0"),
         ["line 5", "'votes_needed' should be greater than or"]),
        (rule("a", '["x"]', "ask", "votes_needed = 1.0"), ["line 5", "should be a valid integer"]),
        (rule("a", '["x"]', "ask", "votes_needed = true"), ["line 5", "should be a valid integer"]),
        (rule("a", '["x"]', "ask", f"votes_needed = {10**30}"),
         ["line 5", "less than or equal to 1000"]),
        (rule("a", '["x"]', "ask", "expires_in_s = 0"), ["line 5", "should be greater than 0"]),
        (rule("a", '["x"]', "ask", "expires_in_s = -1"), ["line 5", "should be greater than 0"]),
        (rule("a", '["x"]', "ask", "expires_in_s = nan"), ["line 5", "finite"]),
        (rule("a", '["x"]', "ask", "expires_in_s = inf"), ["line 5"]),
        (rule("a", '["x"]', "ask", "expires_in_s = 1e12"),
         ["line 5", "less than or equal to 3155760000"]),
        (rule("a", '["x"]', "ask", 'expires_in_s = "60"'), ["line 5", "should be a valid number"]),
        # Groups.
        (rule(*ASK, 'voters = ["ana", "@sec"]'),
         ["line 5, rule 'a'", "no group 'sec'. There are none.", "below [groups]"]),
        ('[groups]\nops = ["x"]\ndesk = ["y"]\n' + rule(*ASK, 'also = [{voters = ["@sec"]}]'),
         ["line 8, rule 'a'", "there is no group 'sec'. The groups are: ops, desk."]),
        (rule(*ASK, 'break_glass = ["@sec"]'), ["line 5, rule 'a'", "no group 'sec'"]),
        (rule(*ASK, "expires_in_s = 9", 'on_timeout = "escalate"',
              'stages = [\n {voters = ["@sec"]}]'),
         ["line 7, rule 'a'", "no group 'sec'"]),
        ('[owners]\nx = ["ana"]\ny = ["@sec"]\n', ["line 3", "no group 'sec'"]),
        (rule(*ASK, 'voters = ["@sec*"]'), ["line 5", "no group 'sec*'"]),
        (rule(*ASK, 'voters = ["@"]'), ["line 5", "'voters', item 1: '' is not a valid pattern"]),
        (rule(*ASK, 'voters = ["@a b"]'), ["line 5", "'a b' is not a valid pattern"]),
        (rule(*ASK, 'voters = ["@_x"]'), ["line 5", "'_x' cannot be used"]),
        (rule("a", '["@sec"]'),
         ["line 3", "'@sec' is not a valid pattern", "A group can only be among voters."]),
        ('[groups]\n"a b" = ["x"]', ["line 2", "group 'a b' cannot be used", "Rename it"]),
        ('[groups]\n\n_x = ["x"]', ["line 3", "group '_x' cannot be used"]),
        ('[groups]\n"" = ["x"]', ["line 2", "group '' cannot be used"]),
        *((rule(*ASK, f"voters = ['group:{name}']"), ["line 5", f"'group:{name}' names no group"])
          for name in ("", " finance", "fin*", "?")),
        ('[owners]\nx = ["group:finance"]\n', ["line 2", "'group:finance' may not be here"]),
        ('may_revoke = ["ana", "group:finance"]', ["line 1", "'group:finance' may not be here"]),
        ('may_reconcile = ["group:finance"]', ["line 1", "'group:finance' may not be here"]),
        ('[groups]\nsec = ["group:finance"]', ["line 2", "'group:finance' is not a valid pattern"]),
        ('[groups]\nops = ["x"]\nsec = ["@ops"]',
         ["line 3", "'@ops' is not a valid pattern", "only be among voters"]),
        ("[groups]\nops = []", ["line 2", "'ops' is empty"]),
        ('[groups]\nops = "ana"', ["line 2", "'ops' should be a list"]),
        ("groups = 3", ["line 1", "'groups' should be a table"]),
        ('[owners]\n"a b" = ["x"]', ["line 2, [owners]: 'owners': 'a b' is not a valid pattern"]),
        ("[owners]\ndesk = []", ["line 2", "'desk' is empty"]),
        # What stands above the rules.
        *((
            rule() + f"{key} = {value}",
            ["line 5, rule 'a'", f"'{key}' is not a key of a rule", "above the first [[rule]]"],
        ) for key, value in (
            ("never_grant", '["x"]'), ("deny_repeats", "3"), ("calls_per_thread", "1"),
            ("questions_per_thread", "1"), ("groups", "{}"), ("owners", "{}"), ("undo_s", "5"),
        )),
        ("undo_s = -1", ["line 1", "greater than or equal to 0"]),
        ("undo_s = 31", ["line 1", "less than or equal to 30"]),
        ("undo_s = 0.5", ["line 1", "valid integer"]),
        ("deny_repeats = -1", ["line 1", "greater than or equal to 0"]),
        ("\ncalls_per_thread = 0", ["line 2", "greater than or equal to 1"]),
        ("questions_per_thread = 1.5", ["line 1", "valid integer"]),
        ('never_grant = ["a b"]', ["line 1: 'never_grant', item 1: 'a b' is not a valid pattern"]),
        # Whom a rule is about.
        (rule(*ASK, 'workspaces = ["a.b"]'),
         ["line 5, rule 'a'", "'workspaces', item 1: 'a.b' is not a valid pattern"]),
        (rule(*ASK, "agents = []"), ["line 5", "'agents' is empty"]),
        (rule(*ASK, "labels = 3"), ["line 5", "'labels' should be a table"]),
        (rule(*ASK, "labels = {channel = 3}"), ["line 5", "'channel' should be a valid string"]),
        (rule(*ASK, "priority = 1001"), ["line 5", "less than or equal to 1000"]),
        (rule(*ASK, "priority = 0.5"), ["line 5", "valid integer"]),
        (rule(*ASK, "shadow = 1"), ["line 5", "valid boolean"]),
        (rule(*ASK, 'when = "args.amount >"'),
         ["line 5, rule 'a': 'when'", "not a valid condition: at character 14"]),
        (rule(*ASK, 'when = "amount > 1"'),
         ["line 5, rule 'a'", "unknown names: amount. A condition can use args, tool"]),
        (rule(*ASK, f'when = "{"1" * 2001}"'), ["line 5", "2,000 characters; this one has 2,001"]),
        (rule(*ASK, "when = true"), ["line 5", "'when' should be a valid string"]),
        # Rules that contradict each other.
        (rule("a", '["x", "y"]', "ask") + rule("b", '["y", "x"]', "allow"),
         ["line 8, rule 'b'", "this rule says allow, but 'a' says ask for the same calls",
          "a higher priority"]),
        (rule("a", '["x"]', "block", 'when = "args.n > 1"')
         + rule("b", '["x"]', "ask", "", 'when = "args.n > 1"'),
         ["line 9, rule 'b'", "says ask, but 'a' says block"]),
        # Until when, and what then.
        (rule(*ASK, 'on_timeout = "stay"'),
         ["line 5, rule 'a'", "needs expires_in_s, which is missing. Write it, or omit"]),
        (rule(*ASK, 'on_timeout = "later"'), ["line 5", "'deny', 'escalate' or 'stay'"]),
        (rule(*ASK, "expires_in_s = 9", 'on_timeout = "escalate"'),
         ["line 6, rule 'a'", "needs people to escalate to. Write stages"]),
        (rule(*ASK, 'stages = [{voters = ["lea"]}]'),
         ["line 5, rule 'a'", 'Write on_timeout = "escalate", and expires_in_s.']),
        (rule(*ASK, "expires_in_s = 9", 'on_timeout = "stay"', 'stages = [{voters = ["lea"]}]'),
         ["line 7, rule 'a'", 'Write on_timeout = "escalate"']),
        (rule(*ASK, "expires_in_s = 9", 'on_timeout = "escalate"')
         + '[[rule.stages]]\nvoters = ["lea"]\n[[rule.stages]]\nvoters = ["ben"]\n',
         ["line 7, rule 'a'",
          "this stage never ends, so later stages are never asked. Give it expires_in_s."]),
        (rule(*ASK, "expires_in_s = 9", 'on_timeout = "escalate"')
         + '[[rule.stages]]\nvoters = ["lea"]\nexpires_in_s = 0\n',
         ["line 9, rule 'a'", "greater than 0"]),
        (rule(*ASK, "stages = [3]"), ["line 5", "'stages', item 1 should be a table"]),
        (rule(*ASK, 'stages = {voters = ["lea"]}'), ["line 5", "'stages' should be a list"]),
        (rule(*ASK, "stages = [{}]"), ["line 5", "'voters' is missing"]),
        # What only makes sense where people are asked.
        *((
            rule("a", '["x"]', then, f"{key} = {value}"),
            ["line 5, rule 'a'", f"'{key}'", 'then = "ask"', f"'{then}'"],
        ) for then in ("allow", "block") for key, value in (
            ("denials_needed", "1"), ("also", '[{voters = ["ana"]}]'), ("break_glass", '["ana"]'),
            ("confirm", '"typed"'), ("ask_in", '["slack:C0123"]'), ("mode", '"four_eyes"'),
            ("on_timeout", '"deny"'), ("stages", "[]"), ("expires_in_s", "9"),
            ("reasons", '["Duplicate"]'),
        )),
        *((
            rule(*ASK, f"reasons = [{json.dumps(reason)}]"),
            ["line 5, rule 'a': 'reasons', item 1: ", "cannot be offered. Write 1 to 75 "],
        ) for reason in ("", " Duplicate", "two\nlines", "\u202eetacilpuD", "x" * 76)),
        (rule(*ASK, f"reasons = {[str(number) for number in range(10)]}"),
         ["line 5, rule 'a': 'reasons' has 10 entries. It can have 9 at most."]),
        (rule(*ASK, "also = [{votes_needed = 2}]"), ["line 5", "'voters' is missing"]),
        (rule(*ASK, 'also = [{voters = ["ana"], x = 1}]'),
         ["line 5", "unknown key 'x'", "voters, votes_needed"]),
        (rule(*ASK, 'class = "final"'), ["line 5, rule 'a'", "is 'final'. It can be 'reads', "]),
        (rule(*ASK, 'class = ["reads", 1]'), ["line 5, rule 'a': 'class', item 2 is 1. It can"]),
        (rule(*ASK, "class = []"), ["line 5, rule 'a': 'class': the list is empty."]),
        (rule(*ASK, 'class = "reads"') + rule("b", '["x"]', "allow", 'class = ["reads"]'),
         ["line 9, rule 'b'", "this rule says allow, but 'a' says ask for the same calls"]),
        (rule(*ASK, 'confirm = "twice"'), ["line 5, rule 'a'", "'confirm'", "'typed'"]),
        (rule(*ASK, 'mode = "alone"'), ["line 5, rule 'a'", "'mode'", "'requester_confirms'"]),
        (rule(*ASK, "votes_needed = 2", 'mode = "requester_confirms"'),
         ["line 6, rule 'a': mode", "takes one vote", "Omit mode, or omit votes_needed."]),
        (rule(*ASK, 'mode = "requester_confirms"', 'also = [{voters = ["ana"]}]'),
         ["line 5, rule 'a': mode", "Omit mode, or omit also."]),
        *((
            rule(*ASK, f"ask_in = [{channel!r}]"),
            ["line 5, rule 'a': 'ask_in'", f"{channel!r} is not a channel", '"slack:C0123ABCD"'],
        ) for channel in ("C0123", "slack:#ops", "slack:U0123", "slack:c0123", "teams:C0123")),
        (rule(*ASK, 'break_glass = "ana"'), ["line 5, rule 'a': 'break_glass' should be a list."]),
        (rule(*ASK, 'break_glass = ["ana", "a b"]'),
         ["line 5, rule 'a': 'break_glass', item 2: 'a b' is not a valid pattern"]),
        # Votes that could never come together.
        (rule(*ASK, "denials_needed = 0"), ["line 5", "greater than or equal to 1"]),
        (rule(*ASK, 'voters = ["ben", "ana"]', "denials_needed = 3"),
         ["line 6, rule 'a'", "3 denials are needed, but only ana, ben may vote."]),
        (rule(*ASK, 'voters = ["sam"]', 'also = [{voters = ["sam"]}]'),
         ["line 6, rule 'a'", "2 votes are needed, but only sam may vote. Name more voters."]),
        (
            '[groups]\nsec = ["sam"]\n' + rule(*ASK, 'voters = ["ana", "ben"]',
                                               'also = [{voters = ["sam"]}, {voters = ["@sec"]}]'),
            ["line 8, rule 'a'",
             "3 votes are needed, but only ana, ben, sam may vote, and nobody counts twice."],
        ),
        ('[groups]\nsec = ["sam"]\n' + rule(*ASK, 'also = [{voters = ["@sec"], votes_needed = 2}]'),
         ["line 7, rule 'a'",
          "2 votes are needed of @sec, but only sam may vote. Name more voters."]),
        (rule("a", '["x"]', "ask", 'voters = ["ana", "ana"]', "votes_needed = 2"),
         ["line 6, rule 'a'", "2 votes are needed, but only ana may vote"]),
        (rule("a", '["x"]', "ask", "votes_needed = 3", 'voters = ["ben", "ana"]'),
         ["line 5, rule 'a'", "3 votes are needed, but only ana, ben may vote"]),
        (rule("a", '["x"]', "allow", "votes_needed = 1", "tool = 1", "voters = 3"),
         ["line 6, rule 'a'", "unknown key 'tool'"]),
        (rule("a", '["x"]', "allow", "votes_needed = 1") + rule("b", "[]", "perhaps"),
         ["line 5, rule 'a'", "Also, line 8, rule 'b'", "Also, line 9, rule 'b'"]),
    ],
)  # fmt: skip
def test_mistake_is_told_with_its_line(text, expected):
    """A mistake names the line, the rule and what is allowed; no policy comes of it (I4)."""
    with pytest.raises(BadFile) as raised:
        read_policy(text, "policy.toml")
    message = str(raised.value)
    assert message.startswith("policy.toml")
    for words in expected:
        assert words in message


@pytest.mark.parametrize("voters", ['["ana", "ben"]', '["ops-*"]', '["ana", "o?s"]'])
def test_votes_needed_can_be_met(voters):
    """Enough names, or any pattern, may meet two votes."""
    text = rule("a", '["x"]', "ask", f"voters = {voters}", "votes_needed = 2")
    assert read_policy(text, "policy.toml").rules[0].votes_needed == 2


@pytest.mark.parametrize(
    "more",
    [
        ('voters = ["ana", "sam"]', 'also = [{voters = ["sam"]}]'),
        ('voters = ["*"]', "votes_needed = 3", 'also = [{voters = ["sam"]}]'),
        ('voters = ["sam"]', 'also = [{voters = ["sam", "sec-*"]}]'),
        ('voters = ["ana", "ben"]', "denials_needed = 2"),
        ("denials_needed = 1000",),
        ("break_glass = []", "also = []", "stages = []"),
    ],
)
def test_what_can_be_met_is_read(more):
    """Enough distinct people, or patterns, for all who must agree; lists of nothing say nothing."""
    assert read_policy(rule(*ASK, *more), "policy.toml").rules


@pytest.mark.parametrize(
    "second",
    [
        ("b", '["x"]', "allow", "priority = 1"),
        ("b", '["x"]', "allow", "shadow = true"),
        ("b", '["x", "y"]', "allow"),
        ("b", '["x"]', "allow", 'when = "args.n > 1"'),
        ("b", '["x"]', "allow", 'agents = ["desk"]'),
        ("b", '["x"]', "allow", 'workspaces = ["acme"]'),
        ("b", '["x"]', "allow", 'labels = {a = "b"}'),
        ("b", '["x"]', "allow", 'class = "reads"'),
        ("b", '["x"]', "ask", "votes_needed = 2"),
    ],
)
def test_rules_that_differ_in_what_they_are_about_do_not_contradict(second):
    """Another priority, condition or scope is another question; equal answers agree."""
    assert len(read_policy(rule(*ASK) + rule(*second), "policy.toml").rules) == 2


@pytest.mark.timeout(30)
def test_a_thousand_rules_are_read_and_one_more_is_refused():
    """As many as anybody can review are read in a moment; then a sentence says the limit."""
    text = "".join(
        rule(f"r{n}", f'["t{n}", "u_*"]', "ask", f'when = "args.n > {n}"') for n in range(MAX_RULES)
    )
    start = time.process_time()
    policy = read_policy(text, "policy.toml")
    assert len(policy.rules) == MAX_RULES == 1000
    assert judge(policy, About("t7", {"n": 8})).rule.name == "r7"
    assert time.process_time() - start < 10
    with pytest.raises(BadFile) as raised:
        read_policy(text + rule("one more"), "policy.toml")
    assert (
        str(raised.value)
        == "policy.toml, line 1: 'rule' has 1,001 entries. It can have 1,000 at most."
    )


@pytest.mark.parametrize(
    ("text", "place", "line"),
    [
        ("a = 1\r\n\r\nb = 2\r\n", ("b",), 3),
        ('a = """\nb = 3\n"""\nb = 2', ("b",), 4),
        ("a = [\n 1,\n 2,\n]\nb = 2", ("a", 1), 1),
        ('# [[r]]\n[[r]]\n\n[["r"]]\n  x.y = 1', ("r", 1, "x", "y"), 5),
        ("r = [{x = 1}, {x = 2}]", ("r", 1, "x"), 1),
        ("[[r]]\n[[r]]", ("r", 1, "missing"), 2),
        ("a = 1", ("b", 0), 1),
        ("a = '\u2028'\nb = 1", ("b",), 2),
    ],
)
def test_line_is_where_the_statement_begins(text, place, line):
    """Lines are found through comments, multi-line strings and lists, and both line ends."""
    assert line_of(text, place) == line


@pytest.mark.timeout(10)
def test_line_of_a_mistake_in_a_long_file_is_found_quickly():
    """A mistake at the end of a thousand rules does not take long to place."""
    text = "".join(rule(f"r{number}") for number in range(1000)) + rule("last", '["x"]', "never")
    with pytest.raises(BadFile, match="line 4004, rule 'last'"):
        read_policy(text, "policy.toml")


def test_file_that_cannot_be_read_is_bad_input(tmp_path):
    """A missing file, a folder and a file that is not UTF-8 are told apart."""
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'a = 1\nb = "\xe9"\n')
    with pytest.raises(BadFile, match=r"line 2: not UTF-8: byte 0xe9"):
        read_text(latin)
    with pytest.raises(BadFile, match="No such file"):
        read_text(tmp_path / "none.toml")
    with pytest.raises(BadFile, match=r"cannot be read"):
        read_text(tmp_path)


# ---------------------------------------------------------------------------- the scripted reviewer

SCRIPT = """
name = "ana"
otherwise = "deny"

[[vote]]
tools = ["book_*"]
verdict = "approve"
reason = "Within the budget."
arguments = '{"seats": 1}'

[[vote]]
tools = ["*_reservation"]
verdict = "answer"
answer = "Ask again tomorrow."
"""


@pytest.mark.parametrize(
    ("text", "tool", "ballot"),
    [
        (SCRIPT, "book_reservation", Ballot("approve", "Within the budget.", '{"seats": 1}')),
        (SCRIPT, "cancel_reservation", Ballot("answer", answer="Ask again tomorrow.")),
        (SCRIPT, "send_certificate", Ballot("deny")),
        ("", "book_reservation", None),
        ('otherwise = "approve"', "book_reservation", Ballot("approve")),
    ],
)  # fmt: skip
def test_first_matching_vote_is_given(text, tool, ballot):
    """The first vote that matches, then what holds otherwise, then none: no default yes (B73)."""
    assert vote(read_script(text, "reviewer.toml"), tool) == ballot


def test_built_in_reviewers_say_one_thing():
    """`approve` and `deny` need no file; anything else is a file's name."""
    assert vote(script_for("approve"), "x") == Ballot("approve")
    assert vote(script_for("deny"), "x") == Ballot("deny")
    assert script_for("approve").name == "reviewer"
    with pytest.raises(BadFile, match="aprove: cannot be read"):
        script_for("aprove")


def test_reviewer_file_is_read(tmp_path):
    """A reviewer file says who votes."""
    path = tmp_path / "ana.toml"
    path.write_text(SCRIPT)
    assert script_for(str(path)).name == "ana"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name = "a.b"', ["line 1:", "'a.b' cannot be used"]),
        ('otherwise = "answer"', ["line 1:", "'approve' or 'deny'"]),
        ("[[votes]]", ["unknown key 'votes'", "name, otherwise, vote"]),
        ('[[vote]]\ntools = ["*"]\nverdict = "yes"',
         ["line 3, vote 1:", "'approve', 'deny' or 'answer'"]),
        ('[[vote]]\nverdict = "deny"', ["line 1, vote 1:", "'tools' is missing"]),
        ('[[vote]]\ntools = ["*"]\nverdict = "answer"', ["line 1, vote 1:", "needs an answer"]),
        ('[[vote]]\ntools = ["*"]\nverdict = "deny"\nanswer = "x"',
         ["line 4, vote 1:", "'answer'", "'deny'"]),
        ('[[vote]]\ntools = ["*"]\nverdict = "deny"\narguments = "{}"',
         ["line 4, vote 1:", "'arguments'"]),
        ('[[vote]]\ntools = ["*"]\nverdict = "approve"\narguments = "{"',
         ["line 4", "no JSON", "character 2"]),
    ],
)  # fmt: skip
def test_mistake_in_a_reviewer_file_is_told_with_its_line(text, expected):
    """A vote that could not be cast as written is a mistake, with its line."""
    with pytest.raises(BadFile) as raised:
        read_script(text, "reviewer.toml")
    for words in expected:
        assert words in str(raised.value)
