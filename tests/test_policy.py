"""The policy file and the scripted reviewer's: what they mean, and how their mistakes are told."""

from pathlib import Path

import pytest

from schemas.errors import BadFile
from schemas.files import line_of, read_text
from schemas.policy import NO_RULE, About, Policy, judge, read_policy
from schemas.reviewer import Ballot, read_script, script_for, vote

AIRLINE = Path(__file__).parent.parent / "examples" / "airline.toml"


def rule(name="a", tools='["x"]', then="ask", *more):
    return "\n".join(["[[rule]]", f'name = "{name}"', f"tools = {tools}", f'then = "{then}"', *more, ""])


# ------------------------------------------------------------------------------------------------ judging

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
        (rule("a name like any", '["constructor"]', "allow"), "constructor", "a name like any", "allow"),
    ],
)
def test_strictest_rule_counts(text, tool, name, then):
    """Block beats ask beats allow, wherever they stand; a tool without a rule is asked about (I4, B73)."""
    judged = judge(read_policy(text, "policy.toml"), About(tool))

    assert (judged.rule.name, judged.then) == (name, then)


def test_no_rule_asks_everybody_for_ever():
    """What nobody thought of waits for anybody, without end (I4, B73)."""
    assert judge(Policy(), About("anything")).rule == NO_RULE
    assert (NO_RULE.voters, NO_RULE.votes_needed, NO_RULE.expires_in_s) == (("*",), 1, None)


def test_every_key_of_a_rule_is_read():
    """A rule says who may vote, how many must agree, until when, and why."""
    text = rule(
        "a", '["x", "y*"]', "ask",
        'voters = ["ana", "ops-*"]', "votes_needed = 2", "expires_in_s = 3600", 'reason = "Money."',
    )  # fmt: skip

    (only,) = read_policy(text, "policy.toml").rules

    assert only.tools == ("x", "y*")
    assert only.voters == ("ana", "ops-*")
    assert (only.votes_needed, only.expires_in_s, only.reason) == (2, 3600, "Money.")


@pytest.mark.parametrize("word", ["queue", "supersede", "block"])
def test_while_pending_is_of_the_whole_policy(word):
    """What becomes of a message while a call waits is said once, above the rules; unsaid, the message waits (B58)."""
    assert read_policy(f'while_pending = "{word}"\n' + rule(), "policy.toml").while_pending == word
    assert read_policy(rule(), "policy.toml").while_pending == "queue"
    assert Policy().while_pending == "queue"


def test_airline_example_asks_before_changes():
    """The shipped example asks about the six tools that change something and lets the others run."""
    policy = read_policy(read_text(AIRLINE), str(AIRLINE))
    changing = (
        "book_reservation", "cancel_reservation", "update_reservation_flights",
        "update_reservation_baggages", "update_reservation_passengers", "send_certificate",
    )  # fmt: skip

    assert {judge(policy, About(tool)).then for tool in changing} == {"ask"}
    assert judge(policy, About("get_user_details")).then == "allow"


# ----------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = ", ["line 1:", "no TOML"]),
        ('\nx = """\n\n', ["line 2:", "no TOML", "Unterminated"]),
        ('a = 1\n[[rule]\nname = "x"', ["line 2:", "no TOML"]),
        ("x = " + "[" * 5000, ["nested"]),
        ("x = " + "1" * 5000, ["too many digits"]),
        ("[[rules]]", ["line 1:", "unknown key 'rules'", "The keys are: while_pending, rule."]),
        ("[rule]", ["line 1:", "should be a list", "[[rule]]"]),
        ('\nwhile_pending = "wait"', ["line 2:", "'wait'", "'queue', 'supersede' or 'block'"]),
        ("while_pending = true", ["line 1:", "'while_pending' is True", "'queue', 'supersede' or 'block'"]),
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
        (
            rule(tools='[\n  "x",\n  "a b",\n]'),
            ["line 3, rule 'a'", "item 2", "'a b' is no pattern", "* and ?"],
        ),
        (rule(tools='["[ab]"]'), ["line 3", "'[ab]' is no pattern"]),
        (rule(tools='["a.b"]'), ["line 3", "'a.b' is no pattern"]),
        (rule(tools='["ü"]'), ["line 3", "'ü' is no pattern"]),
        (rule(tools='[""]'), ["line 3", "'' is no pattern"]),
        (rule(tools='["_x"]'), ["line 3", "'_x' cannot be used"]),
        (rule(tools=f'["{"x" * 65}"]'), ["line 3", "cannot be used", "1 to 64"]),
        (rule("a", '["x"]', "ask", 'voters = ["a.b"]'), ["line 5", "'voters'", "'a.b' is no pattern"]),
        (rule("a", '["x"]', "ask", "voters = []"), ["line 5", "'voters' is empty"]),
        (rule("a", '["x"]', "allow", 'voters = ["ana"]'), ["line 5", "'voters'", 'then = "ask"', "'allow'"]),
        (rule("a", '["x"]', "block", "votes_needed = 1"), ["line 5", "'votes_needed'", "'block'"]),
        (rule("a", '["x"]', "allow", "", "expires_in_s = 9"), ["line 6", "'expires_in_s'", "'allow'"]),
        (
            rule("a", '["x"]', "ask", "votes_needed = 0"),
            ["line 5", "'votes_needed' should be greater than or"],
        ),
        (rule("a", '["x"]', "ask", "votes_needed = 1.0"), ["line 5", "should be a valid integer"]),
        (rule("a", '["x"]', "ask", "votes_needed = true"), ["line 5", "should be a valid integer"]),
        (rule("a", '["x"]', "ask", f"votes_needed = {10**30}"), ["line 5", "less than or equal to 1000"]),
        (rule("a", '["x"]', "ask", "expires_in_s = 0"), ["line 5", "should be greater than 0"]),
        (rule("a", '["x"]', "ask", "expires_in_s = -1"), ["line 5", "should be greater than 0"]),
        (rule("a", '["x"]', "ask", "expires_in_s = nan"), ["line 5", "finite"]),
        (rule("a", '["x"]', "ask", "expires_in_s = inf"), ["line 5"]),
        (rule("a", '["x"]', "ask", "expires_in_s = 1e12"), ["line 5", "less than or equal to 3155760000"]),
        (rule("a", '["x"]', "ask", 'expires_in_s = "60"'), ["line 5", "should be a valid number"]),
        (
            rule("a", '["x"]', "ask", 'voters = ["ana", "ana"]', "votes_needed = 2"),
            ["line 6, rule 'a'", "2 votes are needed, but only ana may vote"],
        ),
        (
            rule("a", '["x"]', "ask", "votes_needed = 3", 'voters = ["ben", "ana"]'),
            ["line 5, rule 'a'", "3 votes are needed, but only ana, ben may vote"],
        ),
        (
            rule("a", '["x"]', "allow", "votes_needed = 1", "tool = 1", "voters = 3"),
            ["line 6, rule 'a'", "unknown key 'tool'"],
        ),
        (
            rule("a", '["x"]', "allow", "votes_needed = 1") + rule("b", "[]", "perhaps"),
            ["line 5, rule 'a'", "Also, line 8, rule 'b'", "Also, line 9, rule 'b'"],
        ),
    ],
)
def test_mistake_is_told_with_its_line(text, expected):
    """A mistake in a policy names the line, the rule and what is allowed; no policy comes of it (I4)."""
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
    """Lines are found through comments, multi-line strings and lists, and both kinds of line end."""
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


# --------------------------------------------------------------------------------------- the scripted reviewer

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
        (SCRIPT, "book_reservation", Ballot("approve", "Within the budget.", "", '{"seats": 1}')),
        (SCRIPT, "cancel_reservation", Ballot("answer", "", "Ask again tomorrow.", None)),
        (SCRIPT, "send_certificate", Ballot("deny")),
        ("", "book_reservation", None),
        ('otherwise = "approve"', "book_reservation", Ballot("approve")),
    ],
)
def test_first_matching_vote_is_given(text, tool, ballot):
    """The first vote that matches is given, then what holds otherwise, then none: nothing defaults to yes (B73)."""
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
        ('[[vote]]\ntools = ["*"]\nverdict = "yes"', ["line 3, vote 1:", "'approve', 'deny' or 'answer'"]),
        ('[[vote]]\nverdict = "deny"', ["line 1, vote 1:", "'tools' is missing"]),
        ('[[vote]]\ntools = ["*"]\nverdict = "answer"', ["line 1, vote 1:", "needs an answer"]),
        (
            '[[vote]]\ntools = ["*"]\nverdict = "deny"\nanswer = "x"',
            ["line 4, vote 1:", "'answer'", "'deny'"],
        ),
        ('[[vote]]\ntools = ["*"]\nverdict = "deny"\narguments = "{}"', ["line 4, vote 1:", "'arguments'"]),
        (
            '[[vote]]\ntools = ["*"]\nverdict = "approve"\narguments = "{"',
            ["line 4", "no JSON", "character 2"],
        ),
    ],
)
def test_mistake_in_a_reviewer_file_is_told_with_its_line(text, expected):
    """A vote that could not be cast as written is a mistake, with its line."""
    with pytest.raises(BadFile) as raised:
        read_script(text, "reviewer.toml")

    for words in expected:
        assert words in str(raised.value)
