"""What people see is what they approve: text of others on terminals, in pages and in logs, and what
a vote is about.
"""

import asyncio
import json
import logging
import re
import unicodedata
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from program import approvals, ask, at_a_terminal, entry_of, last_seq, started, up
from stories import START, Story, approval, life, question, request

from ayes.interfaces.cli.outcome import standing
from ayes.interfaces.cli.sql import _csv_cell, unlike_formula
from ayes.interfaces.cli.terminal import cards, logs, output
from ayes.interfaces.cli.terminal.layout import Layout
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.votes import count_votes
from ayes.ledger.nats.credentials import Login
from ayes.ledger.validity import call_of
from ayes.ops.audit.replay import until as read_until
from ayes.ops.broker.setup import apply_policy
from ayes.projections import pending
from ayes.projections.views.call import call_state, changes, decided_call
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadInput
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.tools import ToolSpec
from ayes.schemas.visible import ascii_json, flags, line, lines, visible

FIVE, SIX = '{"amount": 5}', '{"amount": 6}'
#: Clears the screen, goes up, links elsewhere, turns the rest around, hides a word.
HOSTILE = "eve\x1b[2J\x1b[1A\x1b]8;;http://evil\x07\u202eyako\u3164\U000e0041"

# --------------------------------------------------------------------------------------- characters


@pytest.mark.parametrize(
    ("one", "spelled"),
    [
        ("\x1b", "\\u001b"), ("\x07", "\\u0007"), ("\r", "\\u000d"),
        ("\x7f", "\\u007f"), ("\x9b", "\\u009b"),
        ("\u202e", "\\u202e"), ("\u2066", "\\u2066"), ("\u061c", "\\u061c"),
        ("\u200b", "\\u200b"), ("\u200d", "\\u200d"), ("\ufeff", "\\ufeff"),
        ("\xad", "\\u00ad"), ("\u2060", "\\u2060"),
        ("\ufe0f", "\\ufe0f"), ("\U000e0100", "\\U000e0100"), ("\u180e", "\\u180e"),
        ("\u3164", "\\u3164"), ("\u2800", "\\u2800"), ("\u034f", "\\u034f"),
        ("\uffa0", "\\uffa0"), ("\u115f", "\\u115f"),
        ("\U000e0041", "\\U000e0041"), ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"), ("\ue000", "\\ue000"),
    ],
)  # fmt: skip
def test_what_is_not_seen_is_spelled_and_flagged(one, spelled):
    """Controls, bidi, zero-width, fillers, tags, surrogates; five digits are eight (H6, R7)."""
    assert visible(f"a{one}b") == f"a{spelled}b"
    assert line(f"a{one}b") == f"a{spelled}b  [hidden characters]"


@pytest.mark.parametrize(
    ("text", "scripts"),
    [
        ("p\u0430ypal", "CYRILLIC, LATIN"),
        ("refund to \u0440ayee", "CYRILLIC, LATIN"),
        ("\u03bfpen", "GREEK, LATIN"),
        ("\u0585ver", "ARMENIAN, LATIN"),
        ("a\u0301\u0430", "CYRILLIC, LATIN"),
        ("\uff50\u0430y", "CYRILLIC, LATIN"),
        ("\u65e5\u0430", "CJK, CYRILLIC"),
    ],
)
def test_a_word_of_mixed_scripts_is_flagged(text, scripts):
    """It looks like another word, and spelling it out would not show it (H6)."""
    assert line(text) == f"{text}  [mixed scripts: {scripts}]"


@pytest.mark.parametrize(
    "text",
    [
        "", "refund", "na\xefve caf\xe9", "\u041f\u0440\u0438\u0432\u0435\u0442, world",
        "\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8", "T\u30b7\u30e3\u30c4", "API\u30ad\u30fc",
        "\u5fae\u4fe1pay", "K-POP \ud55c\uad6d\uc5b4", "\xb5s", "10 \u2126", "\U0001f44d",
        "\u0645\u0631\u062d\u0628\u0627 hello", "\u0628\u064e",
        "\uff21\uff22\uff23\u65e5\u672c", "\u2192 \u2026",
        '{"text":"\\n\u043f\u0440\u0438\u0432\u0435\u0442\\t\u0434\u0430"}',
    ],
)  # fmt: skip
def test_ordinary_text_is_left_as_it_is(text):
    """Two scripts in one line are no offence, nor is Latin among Chinese, Japanese and Korean; an
    escape of JSON is no Latin letter.
    """
    assert line(text) == text


@pytest.mark.parametrize("text", ["two\nlines", "a\ttab", "no\xa0break", "\u3000wide"])
def test_layout_is_spelled_and_not_flagged(text):
    """A line stays a line, and nobody is warned of what people do every day."""
    assert line(text).isascii() or "wide" in text
    assert "\n" not in line(text)
    assert flags(text) == ()


@given(st.text(st.characters()))
def test_nothing_acts_and_nothing_is_hidden(text):
    """Whatever the text: what is shown is printable, has each character, and is stable."""
    shown = visible(text)
    assert shown.isprintable()
    assert visible(shown) == shown
    assert all(unicodedata.category(one) not in {"Cc", "Cf", "Cs", "Co", "Cn"} for one in shown)
    assert len(lines(text).split("\n")) == len(text.rstrip("\n").split("\n"))


@given(st.text())
def test_json_for_a_terminal_means_the_same(text):
    """ASCII alone, and read back it is the same value."""
    raw = json.dumps({text: [text]}, ensure_ascii=False)
    assert ascii_json(raw).isascii()
    assert ascii_json(raw).isprintable()
    assert json.loads(ascii_json(raw)) == json.loads(raw)


def test_an_error_of_several_lines_poses_as_none_of_ours(capsys):
    """Its first line says error, the others are indented, and nothing in them acts."""
    output.print_error(BadInput("it said:\nok  verified\x1b[2J"))
    assert (
        capsys.readouterr().err
        == "error: it said:\n  ok  verified\\u001b[2J  [hidden characters]\n"
    )


# ---------------------------------------------------------------------------------- facts and cards


def hostile_facts() -> list[Fact]:
    """Everything of a fact that somebody else words."""
    ref = CallRef("acme", "t1", "c")
    by = e.Author(kind="service", name=HOSTILE)
    story = Story()
    wish = e.ToolRequested(
        tool=HOSTILE, arguments=f'"{HOSTILE}"', digest="", requester=HOSTILE, agent=HOSTILE, by=by
    )
    story.tell(ref.requested, wish)
    asking = e.ApprovalRequested(
        digest="0" * 64,
        rule=HOSTILE,
        policy_version=1,
        reason=HOSTILE,
        voters=(HOSTILE,),
        excluded=(HOSTILE,),
        chain=(e.Link(HOSTILE, HOSTILE, HOSTILE), e.Link("acme/t0/c", "delegate", "desk", "reads")),
        undoing=e.Undoing("reversible", HOSTILE, 60),
        title=HOSTILE,
        by=by,
    )
    story.tell(ref.gated, asking)
    story.tell(
        ref.vote("ana"),
        e.Voted(verdict="deny", digest="0" * 64, reason=HOSTILE, on_behalf_of=HOSTILE, by=by),
    )
    story.tell(ref.thread_ref.said("m"), e.Said(role="user", text=HOSTILE, by=by))
    story.tell(ref.thread_ref.said("n"), e.Carried(type=HOSTILE, raw=b"{}", problem=HOSTILE))
    story.tell(ref.finished, e.ToolFailed(error=HOSTILE, by=by))
    return story.facts


def assert_harmless(text: str, mine: str = "") -> None:
    """Nothing of it acts but our own colours, and it says that there was something."""
    assert "[hidden characters]" in text
    for one in ("\x1b[2J", "\x1b[1A", "\x1b]", "\x07", "\u202e", "\u3164", "\U000e0041"):
        assert one not in text.replace(mine, ""), repr(text)


def test_facts_and_cards_are_lines_whatever_they_hold(capsys):
    """Author, unknown type, requester, voters, rule, reason, chain, texts and errors (H6, R7)."""
    facts = hostile_facts()
    output.print_facts(facts, output.console(), WHOLE)
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == len(facts) == shown.count("[hidden characters]")
    assert_harmless(shown)
    entry = pending.entry(call_of(CallRef("acme", "t1", "c"), tuple(facts[:2])))
    assert entry
    cards.print_pending([entry], output.console(stderr=True), WHOLE)
    card = capsys.readouterr().err
    assert len(card.splitlines()) == 7
    assert "class: reversible, undone with " in card.splitlines()[-1]
    assert "within 1 minute after it returned" in card.splitlines()[-1]
    [chain] = [line for line in card.splitlines() if "asked in the run of" in line]
    assert " > acme/t0/c (delegate, by desk, reads)" in chain
    assert_harmless(card)


RICH = {
    "order": "A-17",
    "to\u202e": "x\u200by",
    "patch": "--- a\n+++ b\n-old\n+new\n",
    "lines": [{"sku": f"s{number}", "n": number} for number in range(22)],
    "tags": ["a", None],
    "deep": {"at": {"x": {}}},
    "text": "\n".join(map(str, range(50))),
}
ROWS = "\n".join(f"  {number + 1:>2}  {f'"s{number}"':<5}  {number:>2}" for number in range(20))
LINES = "\n".join(f"  │ {number}" for number in range(40))
LAID_OUT = f"""\
order  "A-17"
"to<U+202E>"  [hidden characters]  "x<U+200B>y"  [hidden characters]
patch  diff
  │ --- a
  │ +++ b
  │ -old
  │ +new
lines  22 rows
   #  sku     n
{ROWS}
  … 2 more rows: ayes show it
tags
  -  "a"
  -  null
deep
  at
    x  {{}}
text
{LINES}
  … 10 more lines, 29 characters: ayes show it
"""


def laid_out(raw: str, width: int = 80, whole: str = "") -> list[str]:
    return [str(line) for line in Layout(output.console(), width, whole).arguments(raw)]


def test_values_are_laid_out():
    """Fields below each other, a table, a patch as lines; hidden characters are marked as on a
    page, and what is folded says how much it is and how to see it.
    """
    shown = laid_out(json.dumps(RICH), whole="ayes show it")
    assert shown == LAID_OUT.splitlines()
    narrow = laid_out(json.dumps(RICH["lines"]), width=10)
    assert narrow[:2] == ['1  sku "s0", n 0', '2  sku "s1", n 1']


VALUES = st.recursive(
    st.text() | st.integers() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_whatever_is_laid_out_is_there_and_does_not_act(value):
    """Each line is printable, and each word of each text is in one."""
    shown = laid_out(json.dumps(value), width=1000)
    assert all(one.isprintable() for one in shown)
    words = (word for text in texts_in(value) for word in re.findall("[A-Za-z0-9]+", text))
    assert all(any(word in one for one in shown) for word in words)


def test_no_line_of_a_text_can_pass_for_a_line_of_ours():
    """A text that is wider than the terminal is broken where its bar can be repeated."""
    note = f"{'x' * 150}{' ' * 40}amount  9"
    shown = laid_out(json.dumps({"note": note, "amount": 5}), width=40)
    assert max(map(len, shown)) == 40
    assert {one for one in shown if not one.startswith("  │ ")} == {"note", "amount  5"}


def texts_in(value):
    if isinstance(value, dict):
        return [*value, *(one for inner in value.values() for one in texts_in(inner))]
    if isinstance(value, list):
        return [one for inner in value for one in texts_in(inner)]
    return [value] if isinstance(value, str) else []


def test_a_confirmation_by_the_requester_is_said_everywhere(capsys):
    """In the queue, in the question of a vote, in the facts, and in what a command reports."""
    story, ref = Story(), CallRef("acme", "t1", "c")
    wish = e.Wish("pay", FIVE)
    own = {"mode": "requester_confirms", "excluded": (), "own": ("rita",)}
    story.tell(ref.requested, request(wish))
    story.tell(ref.gated, msgspec.structs.replace(question(wish), **own))
    call = call_of(ref, tuple(story.facts))
    cards.print_pending([pending.entry(call)], output.console(), WHOLE)
    assert "asks anybody; rita may confirm it)" in capsys.readouterr().out
    cards.print_question(call, output.console(), WHOLE)
    assert "rule 'money' (requester confirms)" in capsys.readouterr().out
    stands = count_votes(call)
    assert "Missing: anybody (requester confirms)." in standing(call, stands, WHOLE)
    assert call_state(call, WHOLE, stands).mode == "requester_confirms"
    story.tell(ref.vote("rita"), e.Voted(verdict="approve", digest=request(wish).digest))
    decided = count_votes(call_of(ref, tuple(story.facts))).verdict
    story.tell(ref.decided, decided)
    call = call_of(ref, tuple(story.facts))
    assert "Approved by rita (requester confirms) at " in standing(call, None, WHOLE)
    assert call_state(call, WHOLE).mode == decided_call(call, WHOLE).mode == "requester_confirms"
    output.print_facts(story.facts, output.console(), WHOLE)
    shown = capsys.readouterr().out
    assert "rule 'money' asks anybody (requester confirms)" in shown
    assert "by rita (requester confirms), rule 'money'" in shown


def test_what_a_console_prints_by_another_way_does_not_act_either(capsys):
    """A table of plain strings, as reports of our own are made: no markup, no escape codes."""
    from rich.table import Table

    table = Table(box=None)
    table.add_column("a\x1b[2J")
    table.add_row("[red]x[/red]\x1b]8;;http://evil\x07")
    output.console().print(table)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[red]x[/red]" in shown


# ------------------------------------------------------------------------------------------- logs


@pytest.fixture
def logging_restored():
    """What `logs.setup` changes is as it was afterwards."""
    root, said = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.configure(**said)


def test_no_local_variable_is_printed(logging_restored, capsys):
    """One bad message is a traceback of a few lines, without what users said (R10)."""
    logs.setup(json=False)

    def handle(what_a_user_said):
        raise ValueError(f"cannot be handled: {HOSTILE}")

    with suppress(ValueError):
        try:
            handle(" ".join(["my card is", *4 * ["4111"]]))
        except ValueError:
            get_logger("x").exception("parked", problem=HOSTILE)
            raise
    text = capsys.readouterr().err
    assert "ValueError: cannot be handled" in text
    assert "4111 4111" not in text
    assert "what_a_user_said =" not in text
    assert len(text.splitlines()) < 20
    assert_harmless(text)


def test_other_libraries_lines_do_not_act_either(logging_restored, capsys):
    """What comes through the standard library's logging goes the same way."""
    logs.setup(json=False)
    logging.getLogger("nats.something").error("from %s", HOSTILE)
    assert_harmless(capsys.readouterr().err)


# ------------------------------------------------------------------------------------------- edits


def test_an_edit_is_told_with_what_it_changed(capsys):
    """The vote and the approval say so and name the digest of what runs; the call's JSON has that
    digest beside the arguments it prints, and what was asked for by itself (A4, A5).
    """
    wish, ref = e.Wish(tool="pay", arguments='{"amount": 5, "to": "x"}'), CallRef("acme", "t1", "c")
    edit = '{"amount": 4, "to": "x"}'
    story = Story()
    story.tell(ref.requested, request(wish))
    story.tell(ref.gated, question(wish))
    story.tell(
        ref.vote("ana"), e.Voted(verdict="approve", digest=request(wish).digest, arguments=edit)
    )
    story.tell(ref.decided, approval(wish, edit))
    digest = call_digest("pay", "v1", edit)
    output.print_facts(story.facts, output.console(), WHOLE)
    voted, approved = capsys.readouterr().out.splitlines()[2:]
    for told in (voted, approved):
        assert f"edited: amount 5 → 4 (digest {digest[:12]})" in told
    output.print_facts(story.facts[3:], output.console(), WHOLE)
    assert f"edited to {edit}" in capsys.readouterr().out
    told = call_state(call_of(ref, tuple(story.facts)), WHOLE)
    assert (told.arguments, told.digest, told.edited) == (edit, digest, True)
    assert told.requested_arguments == wish.arguments
    assert told.requested_digest == request(wish).digest
    plain = call_of(
        ref, tuple(Fact(n, START, *one) for n, one in enumerate(life(ref, wish, "denied"), 1))
    )
    told = call_state(plain, WHOLE)
    assert told.digest == request(wish).digest
    assert not told.edited


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('{"a": 1, "b": 2}', '{"a": 1, "c": 2}', "b 2 → (none), c (none) → 2"),
        ('{"a": 1}', '{"a": 1.0}', "a 1 → 1.0"),
        ('{"a": 1}', '{"a":1}', '{"a":1}'),
        ('{"a": 1}', '{"a": 2, "a": 1}', '{"a": 2, "a": 1}'),
        ('{"a": 1}', "[1]", "[1]"),
        ('{"a": {"b": 1}}', '{"a": {"b": 2}}', 'a {"b": 1} → {"b": 2}'),
    ],
)
def test_changes(before, after, told):
    """Field by field as they stand; the whole of it where that would leave anything out."""
    assert changes(before, after) == told


# ------------------------------------------------------------------------------------- small things


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("=cmd|'/c calc'!A1", "'=cmd|'/c calc'!A1"), ("+1", "'+1"), ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"), ("\t=1", "'\t=1"), ("\r=1", "'\r=1"),
        ("\uff1d1", "'\uff1d1"), ("a=1", "a=1"), ("", ""), ("'=1", "'=1"),
    ],
)  # fmt: skip
def test_text_in_a_csv_is_not_a_formula(text, safe):
    """A spreadsheet takes it for text; --raw leaves it (M7)."""
    assert unlike_formula(text) == safe
    assert _csv_cell(text, exact=False) == safe
    assert _csv_cell(text, exact=True) == text


def test_numbers_in_a_csv_stay_numbers():
    """A minus before a number is its sign (M7)."""
    assert [_csv_cell(one, exact=False) for one in (-1, -1.5, None, True)] == [
        "-1",
        "-1.5",
        "",
        "true",
    ]


def test_odd_input_ends_in_a_sentence():
    """Times at the calendar's edge, a URL with an open bracket, messages that are no list."""
    for call, word in (
        (
            lambda: read_until("9999-12-31T23:59:59-23:59"),
            "--until '9999-12-31T23:59:59-23:59' is neither",
        ),
        (lambda: read_until("9" * 5000), "is neither"),
        (lambda: Login.parse("nats://[::1"), "the broker's URL has no host"),
    ):
        with pytest.raises(BadInput) as raised:
            call()
        assert word in str(raised.value)


# -------------------------------------------------------------------------------------- the program


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The store of a running `ayes up` without a policy, where `pay` is declared."""
    with up(tmp_path_factory.mktemp("terminal") / "store") as ready:
        store = Path(ready["store"])

        async def declare():
            async with Ledger.connect(store) as ledger:
                await ledger.declare("shop", ToolSpec(name="pay", schema='{"type":"object"}'))

        asyncio.run(declare())
        yield store


@pytest.fixture
def thread(request):
    return CallRef("shop", request.node.name.split("[")[0][:60].rstrip("_"), "c").thread_ref


def as_queue(store, change):
    """Write to the bucket with the credentials of the queue's worker, which may record nothing."""

    async def changed():
        async with Ledger.connect(store, role="queue") as ledger:
            await change(ledger.log.pending)

    asyncio.run(changed())


async def put(bucket, key, value):
    while True:
        _, revision = await bucket.get(key)
        if await bucket.put(key, value, revision):
            return


def test_a_terminal_shows_text_of_others_and_does_not_obey_it(shop, within, thread):
    """`pending`, `show`, `thread` and a vote on a real terminal, of a requester, an author and a
    type that write to it; piped, JSON is what it always was. Customers ask here, who never review
    (H6, R7).
    """
    thread = ThreadRef("customers", thread.thread)
    call = thread.call("c")

    policy = 'unmapped_requesters = "exclude_nobody"\n'

    async def customers():
        async with Ledger.connect(shop, role="admin") as ledger:
            await apply_policy(ledger, thread.workspace, policy, "policy.toml")
            await ledger.declare(thread.workspace, ToolSpec(name="pay", schema='{"type":"object"}'))

    asyncio.run(customers())
    ask(
        shop,
        call,
        requester=HOSTILE,
        arguments=f'{{"to": "{HOSTILE[10:].replace(chr(27), "").replace(chr(7), "")}"}}',
    )

    async def others():
        async with Ledger.connect(shop, role="admin") as ledger:
            by = e.Author(kind="service", name=HOSTILE)
            await ledger.log.append(
                thread.said("a"), encode(e.Said(role="user", text="hi", by=by)), "1"
            )
            unknown = json.dumps({"type": HOSTILE, "text": "x"}).encode()
            await ledger.log.append(thread.said("b"), unknown, "2")

    asyncio.run(others())
    for words in (
        ("pending", "-w", "customers"),
        ("show", call),
        ("thread", thread),
        ("show", call, "--json"),
    ):
        with at_a_terminal(*words, store=shop) as terminal:
            assert terminal.ended() == 0
        told = terminal.told
        assert all(
            one not in told for one in ("\x1b[2J", "\x1b[1A", "\x1b]", "\x07", "\u202e", "\u3164")
        ), repr(told)
        if "--json" in words:
            assert told.isascii()
            [first, *_] = map(json.loads, told.splitlines())
            assert first["event"]["requester"] == HOSTILE
        else:
            assert "[hidden characters]" in told
    piped = within("show", call, "--json", store=shop)
    assert "\u202eyako\u3164\U000e0041" in piped.out
    with at_a_terminal("deny", call, "--as", "ana", "--reason", "no", store=shop) as terminal:
        terminal.read_until("Deny it? [y/N]")
        terminal.type("y")
        assert terminal.ended() == 0
    assert "\u202e" not in terminal.told
    assert "[hidden characters]" in terminal.told


def test_what_is_shown_is_what_is_approved(shop, within, thread):
    """With the queue's credentials the bucket shows a smaller amount. The list marks it; `approve
    CALL` shows the log's and asks; a no records nothing, and the digest that the list shows gets no
    vote (H2, R1).
    """
    call = thread.call("c")
    digest = ask(shop, call, arguments='{"amount": 999999}')
    listed = within("pending", "-w", "shop", store=shop)
    assert digest[:12] in next(one for one in listed.out.splitlines() if str(call) in one)
    assert "do not decide by this entry" not in listed.out
    key = f"{call.workspace}.{call.thread}.{call.call}"

    async def doctored(bucket):
        value, _ = await entry_of(bucket, key)
        entry = json.loads(value) | {"arguments": '{"amount": 1}'}
        await put(bucket, key, msgspec.json.encode(entry))

    as_queue(shop, doctored)
    listed = within("pending", "-w", "shop", store=shop).out
    assert (
        "[the digest is not of this tool and these arguments, or an older version wrote the entry: "
        in listed
    )

    async def consistent(bucket):
        value, _ = await entry_of(bucket, key)
        entry = json.loads(value)
        entry["digest"] = call_digest("pay", entry["tool_version"], entry["arguments"])
        await put(bucket, key, msgspec.json.encode(entry))

    as_queue(shop, consistent)
    shown = within("pending", "-w", "shop", "--json", store=shop)
    forged = next(one["digest"] for one in shown.lines if one["call"] == str(call))
    before = last_seq(shop)
    for digits in (forged, forged[:12]):
        refused = within("approve", call, "--as", "ana", "--digest", digits, "--json", store=shop)
        assert (refused.code, refused.problem["error"]) == (1, "NotOpen")
        assert f"waits with the digest {digest}" in refused.problem["message"]
    for typed in ("", "n", "yess"):
        with at_a_terminal("approve", call, "--as", "ana", store=shop, NO_COLOR="1") as terminal:
            terminal.read_until("Approve it? [y/N]")
            assert "amount  999999" in terminal.told
            assert digest[:12] in terminal.told
            assert "amount  1\r" not in terminal.told
            terminal.type(typed)
            assert terminal.ended() == 1
        assert "Nothing was recorded." in terminal.told
    assert last_seq(shop) == before
    done = within(
        "approve", call, "--as", "ana", "--digest", digest[:12].upper(), "--json", store=shop
    )
    assert (done.code, done.one["digest"]) == (0, digest)


def test_scripts_vote_as_before_and_see_what_on_stderr(shop, within, thread):
    """Where nobody can be asked nobody is; at a terminal --yes and --digest spare it (H2)."""
    calls = [thread.call(name) for name in "abcd"]
    digests = [ask(shop, call) for call in calls]
    told = approvals("approve", calls[0], "--as", "ana", store=shop)
    assert (told.code, told.out) == (0, "")
    assert told.err.splitlines()[:2] == [f"{calls[0]}  pay  {digests[0][:12]}", "    amount  5"]
    machine = approvals("deny", calls[1], "--as", "ana", "--json", store=shop)
    assert (machine.code, machine.one["decision"], machine.err) == (0, "Denied", "")
    for call, words in ((calls[2], ("--yes",)), (calls[3], ("--digest", digests[3]))):
        given = ("answer", call, "done", "--as", "ana", *words)
        with at_a_terminal(*given, store=shop, NO_COLOR="1") as terminal:
            assert terminal.ended() == 0
        assert "amount  5" in terminal.told
        assert "[y/N]" not in terminal.told


def test_a_rule_can_want_the_name_of_the_tool_typed(shop, within):
    """Neither a yes nor `--all` stands for it; at the terminal or as `--typed` it counts."""
    policy = '[[rule]]\nname = "payments"\ntools = ["pay"]\nthen = "ask"\nconfirm = "typed"\n'

    async def prepare():
        async with Ledger.connect(shop, role="admin") as ledger:
            await apply_policy(ledger, "bank", policy, "policy.toml")
            await ledger.declare("bank", ToolSpec(name="pay", schema='{"type":"object"}'))

    asyncio.run(prepare())
    first, second = (CallRef("bank", "typed", name) for name in ("a", "b"))
    for call in (first, second):
        ask(shop, call)
    wanted = "wants the name of the tool typed"
    for typed, said in (("--yes",), wanted), (("--typed", "pa"), f"{first} runs pay, and not 'pa'"):
        words = ("approve", first, *typed)
        refused = within(*words, "--as", "ana", "--json", store=shop)
        assert (refused.code, refused.problem["error"]) == (2, "BadInput")
        assert said in refused.problem["message"]
    several = within("approve", "--all", "-w", "bank", "--yes", "--as", "ana", store=shop)
    assert (several.code, several.err.count(wanted)) == (1, 2)
    done = within("approve", first, "--typed", "pay", "--as", "ana", "--json", store=shop)
    assert (done.code, done.one["decision"]) == (0, "Approved")
    for typed, code in (("", 1), ("y", 2), ("pay", 0)):
        with at_a_terminal("approve", second, "--as", "ana", store=shop) as terminal:
            terminal.read_until("Type the name of the tool")
            terminal.type(typed)
            assert terminal.ended() == code


def test_an_edited_call_says_so_everywhere(shop, within, thread):
    """The question, the answer, `show`, `thread`, `watch` and the digests printed (A4, A5)."""
    call = thread.call("c")
    ask(shop, call)
    with at_a_terminal(
        "approve", call, "--as", "ana", "--edit", '{"amount": 4}', store=shop, NO_COLOR="1"
    ) as terminal:
        terminal.read_until("Approve it? [y/N]")
        assert "amount  5\r" in terminal.told
        assert "amount  5 → 4" in terminal.told
        terminal.type("y")
        assert terminal.ended() == 8
    assert "edited:" not in terminal.told.split("[y/N]")[1]
    with at_a_terminal(
        "approve", call, "--as", "ben", "--edit", '{"amount": 4}', store=shop, NO_COLOR="1"
    ) as terminal:
        terminal.read_until("Approve it? [y/N]")
        assert "amount  5 → 4" in terminal.told
        terminal.type("y")
        assert terminal.ended() == 0
    edited = "edited: amount 5 → 4 (digest "
    assert edited in terminal.told.split("[y/N]")[1]
    for words in (
        ("show", call),
        ("thread", thread),
        ("watch", "--from", "1", "--until-now"),
        ("wait", call),
    ):
        ended = within(*words, store=shop)
        assert edited in ended.out + ended.err, words
    for words in (("start", call), ("finish", call, "--output", "paid")):
        told = within(*words, "--json", store=shop).one
        decided = within("show", call, "--json", store=shop).lines
        [approved] = [one["event"] for one in decided if one["event"]["type"] == "Approved"]
        assert (told["digest"], told["arguments"], told["edited"]) == (
            approved["digest"],
            '{"amount": 4}',
            True,
        )
        assert told["requested_arguments"] == FIVE


def test_one_bad_value_in_the_bucket_hinders_nobody(shop, within, thread):
    """Not an entry, not UTF-8, an older program's: each is named with what to do, the others are
    shown and decided, the log's check names it, and --swap mends it (R8).
    """
    calls = [thread.call(name) for name in "abc"]
    for call in calls:
        ask(shop, call)
    keys = [f"shop.{thread.thread}.{name}" for name in ("junk", "bytes", "old", "c")]
    values = (b"junk", b'{"seq":1,"tool":"\xff\xfe"}', b'{"seq":2,"workspace":"shop"}', b"\xff")

    async def spoiled(bucket):
        # An entry that the queue's worker writes later would mend what is spoiled here.
        for call in calls:
            await entry_of(bucket, f"shop.{thread.thread}.{call.call}")
        for key, value in zip(keys, values, strict=True):
            await put(bucket, key, value)

    as_queue(shop, spoiled)
    listed = within("pending", "-w", "shop", store=shop)
    assert listed.code == 0
    assert all(str(call) in listed.out for call in calls[:2])
    for key in keys:
        assert f"warning: entry {key} of the queue cannot be read and is left out" in listed.err
    assert "`ayes replay --projection pending --swap`" in listed.err
    machine = within("pending", "-w", "shop", "--limit", "5", "--json", store=shop)
    assert {one["call"] for one in machine.lines} >= {str(one) for one in calls[:2]}
    assert {json.loads(one)["key"] for one in machine.err.splitlines()} == set(keys)
    with started("pending", "--watch", "-w", "shop", "--store", shop) as process:
        told = {process.stdout.readline().split()[1] for _ in range(2)}
        warned = [process.stderr.readline() for _ in keys]
    assert told == {str(call) for call in calls[:2]}
    assert all("cannot be read" in one for one in warned)
    assert within("hear", f"approve {calls[0]}", "-w", "shop", "--as", "ana", store=shop).code == 0
    every = within(
        "approve", "--all", "--matching", f"thread:{thread}", "--as", "ana", "--yes", store=shop
    )
    assert (every.code, f"{calls[1]}: Approved" in every.err) == (1, True)
    assert within("approve", calls[2], "--as", "ana", "--yes", store=shop).code == 0
    for words in (("--verify",), ("--projection", "pending", "--diff")):
        for form in ((), ("--json",)):
            differs = within("replay", *words, *form, store=shop)
            assert differs.code == 1
            assert "shop." in differs.out
            if form:
                assert all(isinstance(one, dict) for one in differs.lines)
    assert within("replay", "--projection", "pending", "--swap", store=shop).code == 0
    assert within("replay", "--projection", "pending", "--diff", store=shop).code == 0
    assert "warning" not in within("pending", "-w", "shop", store=shop).err
