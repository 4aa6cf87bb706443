"""`ayes policy suggest`: the rules that the decisions of a workspace suggest, in three forms."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from made_up_reviewers import CHANNELS, asked, past, policies
from paths import ROOT

from ayes.interfaces.cli.policy_suggest import _print, _print_toml, sentences
from ayes.ops.audit.suggestions import Suggestions, WeeklyDrift, suggest
from ayes.ops.broker.setup import apply_policy
from ayes.schemas import events as e
from ayes.schemas.digest import call_digest
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import ThreadRef
from ayes.schemas.tools import ToolSpec

ASKS = '[[rule]]\nname = "refunds"\ntools = ["refund"]\nthen = "ask"\n'
RULE = {"rule": "refunds", "policy_version": 1}
SCHEMA = '{"type":"object","properties":{"amount":{"type":"number"}}}'


def of(calls, own: str = ASKS) -> Suggestions:
    return suggest(calls, policies(own))


def printed(capsys, found: Suggestions, looked_s: float = 2.0) -> str:
    _print(found, "shop", looked_s)
    return capsys.readouterr().out


# -------------------------------------------------------------------------------------- on a broker


async def decide(ledger, number: int, version: str) -> None:
    """A call that people were asked about and approved, but for large ones."""
    call = ThreadRef("shop", f"t{number}").call("c1")
    amount = number % 20
    wish = e.ToolRequested(
        tool="refund",
        tool_version=version,
        arguments=f'{{"amount":{amount}}}',
        digest=call_digest("refund", version, f'{{"amount":{amount}}}'),
    )
    approved = e.Approved(digest=wish.digest, ground="people", voters=("ana",), **RULE)
    denied = e.Denied(ground="people", voters=("ana",), **RULE)
    for slot, event in (
        (call.requested, wish),
        (call.gated, e.ApprovalRequested(digest=wish.digest, **RULE)),
        (call.vote("ana"), e.Voted(verdict="approve", digest=wish.digest)),
        (call.decided, denied if amount > 14 else approved),
    ):
        await ledger.try_append(slot, event)


@pytest.fixture
async def decided(store, admin) -> Path:
    """A store with 200 decisions about refunds."""
    spec = ToolSpec(name="refund", schema=SCHEMA, **{"class": "reversible"})
    version = (await admin.declare("shop", spec)).version
    await apply_policy(admin, "shop", ASKS, "own")
    for first in range(0, 200, 20):
        await asyncio.gather(*(decide(admin, first + one, version) for one in range(20)))
    return store


async def test_it_suggests_what_the_log_says_in_each_form(decided, within, tmp_path):
    """For people, for programs, and as a rule that the policy takes."""

    def run(*more):
        suggest = ("policy", "suggest", "-w", "shop", "--looked", "0")
        return asyncio.to_thread(within, *suggest, *more, store=decided)

    told = await run()
    assert told.code == 0, told.err
    assert "refund: amount up to 14" in told.out
    assert "An approval counts however quick it was" in told.out
    found = json.loads((await run("--json")).out)
    (one,) = found["suggestions"]
    assert (one["tool"], one["name"], found["questions"]) == (
        "refund",
        "refund: amount up to 14",
        200,
    )
    assert one["denied_at_most"] <= 0.05
    assert one["toml"] in (await run("--toml")).out
    file = tmp_path / "shop.toml"
    file.write_text(ASKS + (await run("--toml")).out)
    tried = await asyncio.to_thread(
        within, "policy", "backtest", file, "-w", "shop", "--json", store=decided
    )
    assert json.loads(tried.out)["shadows"][one["name"]]["allowed"] == 150


async def test_rubber_stamps_suggest_nothing(decided, within):
    """These votes came at once."""
    ended = await asyncio.to_thread(within, "policy", "suggest", "-w", "shop", store=decided)
    assert (ended.code, "No rule is suggested." in ended.err) == (0, True)
    assert "150 approved sooner than anybody reads them" in ended.out
    assert "Nothing about refund: too few to say" in ended.out
    elsewhere = await asyncio.to_thread(within, "policy", "suggest", "--toml", store=decided)
    assert (elsewhere.code, elsewhere.out) == (0, "")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--at-most", "0"), "--at-most 0 is not a share: write 0.1 to 50, in percent."),
        (("--at-most", "nan"), "--at-most nan is not a share: write 0.1 to 50, in percent."),
        (
            ("--confidence", "100"),
            "--confidence 100 is not a share: write 50 to 99.99",
        ),
        (("--looked", "soon"), "--looked 'soon' is not a valid duration."),
        (("--looked", "2h"), "--looked '2h' is too long"),
        (("--since", "yesterday"), "--since 'yesterday'"),
        (("-w", "no.such"), "'no.such'"),
        (("--toml", "--json"), "--toml and --json are two forms of the same: give one of them."),
    ],
)
def test_bad_input_is_one_sentence(within, given, says, tmp_path):
    """Before any broker is asked."""
    ended = within("policy", "suggest", *given, store=tmp_path)
    assert ended.code == 2
    assert says in (json.loads(ended.err)["message"] if "--json" in given else ended.err)


# ---------------------------------------------------------------------------------------- the words


def test_the_example_of_the_docs_is_what_reviewers_with_a_known_rule_suggest(capsys):
    """To the letter: they approve up to 40 but not by phone, and err in one of a hundred votes."""
    text = (ROOT / "docs" / "policies.md").read_text()
    assert printed(capsys, of(past(11))) in text


def test_shares_are_not_made_better_by_rounding(capsys):
    """A bound is rounded up, and what is spared down."""
    found = of(past(11))
    one = msgspec.structs.replace(found.suggestions[0], denied_at_most=0.01201, spared_share=0.3099)
    text = " ".join(sentences(one, found))
    assert "at most 1.3 % of them would have been denied" in text
    assert "It spares 30.9 % of the questions" in text


def test_what_to_be_careful_about_is_said():
    """A drift, what nobody decided, what it stands above, and for how many rules a bound holds."""
    found = of(past(11))
    one = msgspec.structs.replace(
        found.suggestions[0],
        undecided=3,
        threads=1,
        drifts=(WeeklyDrift("args.amount", rises=True, weekly=(10, 20, 30, 40)),),
        above=("large",),
    )
    text = list(sentences(one, msgspec.structs.replace(found, tried=3)))
    assert "with 95 % confidence for all 3 rules that were judged, at most" in text[0]
    assert ", of which nobody decided 3. They are of 1 conversation." in text[1]
    assert text[-3].startswith(
        "Careful: the highest args.amount that people approved in a week rose"
    )
    assert text[-3].endswith(" from 10 to 40 within 4 weeks, step by step.")
    assert text[-2] == "Now 'refunds' asks about them."
    assert text[-1] == "It would stand above 'large', where both match."


def test_why_nothing_is_suggested_is_said(capsys):
    """Of each tool, and of what the newer decisions did not bear out."""
    calls = [
        *past(11, 900, noise=0.0, weeks=4),
        asked(5, tool="close", tool_class="irreversible"),
        asked(5, tool="ship"),
    ]
    found = of(calls)
    text = printed(capsys, found)
    assert "Nothing about close: it is irreversible, or declares no class" in text
    assert "ship: too few to say, since 1 older and 0 newer decisions count" in text
    assert "and it takes at least 59 of each." in text
    assert "Not counted: 1 of tools that are irreversible or declare no class." in text
    turned = [
        msgspec.structs.replace(one, said="denied") if one.at >= found.newer_from else one
        for one in calls
    ]
    text = printed(capsys, of(turned))
    assert "Not suggested: refund: channel chat or mail, amount up to 40. Of " in text
    assert "so that up to 100 % could have been denied." in text


EVIL = 'x"\n[[rule]]\nname = "e"\n# Gr\u00f6\u00dfe \u202e \u0430'


def test_a_line_of_a_call_is_no_line_of_a_policy(capsys):
    """What agents sent stands in one line, spelled out: it adds no rule to a file."""
    ways = dict(zip(CHANNELS, (EVIL, f"{EVIL}2", "phone"), strict=True))
    calls = [
        msgspec.structs.replace(
            one,
            wished=msgspec.structs.replace(
                one.wished, labels={EVIL: ways[one.wished.labels["channel"]]}
            ),
        )
        for one in past(11)
    ]
    found = of(calls)
    for one in found.suggestions:
        _print_toml(one, found)
    out = capsys.readouterr().out
    (added,) = read_policy(out, "printed").rules
    assert (added.tools, added.shadow) == (("refund",), True)
    assert added.name == found.suggestions[0].name
    assert "in labels && labels[" in added.when
