"""The command that suggests rules: what they say, what is known of them, and what is not."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session
from ayes.interfaces.cli.options import WorkspaceOption, option
from ayes.interfaces.cli.terminal.output import (
    print_data,
    print_json,
    print_line,
    print_message,
)
from ayes.ops.audit import backtest as trying
from ayes.ops.audit.counted_decisions import LeftOut
from ayes.ops.audit.past_calls import CHARACTERS_A_SECOND, past_calls
from ayes.ops.audit.suggestions import (
    NoRule,
    SeenProperty,
    Suggestion,
    Suggestions,
    Terms,
    WeeklyDrift,
    Without,
    suggest,
)
from ayes.schemas.conditions import literal
from ayes.schemas.durations import parse_duration
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import token
from ayes.schemas.times import duration
from ayes.schemas.visible import line

#: In percent.
_LEAST_CONFIDENCE: Final = 50.0
_MOST_CONFIDENCE: Final = 99.99
_LEAST_BOUND: Final = 0.1
_MOST_BOUND: Final = 50.0
_LONGEST_LOOK_S: Final = 3600.0

_LEFT_OUT: Final[dict[LeftOut, str]] = {
    "irreversible": "of tools that are irreversible or declare no class",
    "governs": "of tools that can change policies",
    "never_grant": "of tools in never_grant",
    "not_asked_now": "that the policies in force would not ask about",
    "organisation": "that the organisation's policy asks about",
    "schema": "under another schema than their tool has now",
    "quick": "approved sooner than anybody reads them",
    "confirmed": "confirmed by their requester",
    "glass_broken": "let run in an emergency",
    "undecided": "that nobody decided",
    "retry": "repeated in their conversation, which count once",
}
_WITHOUT: Final[dict[NoRule, str]] = {
    "irreversible": "it is irreversible, or declares no class, which counts as that",
    "governs": "it can change policies",
    "never_grant": "no grant may cover it, by never_grant",
    "too_few": "too few to say",
    "no_rule": "no small rule does as people did",
}


async def suggested(
    workspace: WorkspaceOption = "default",
    since: Annotated[
        str | None, option("--since", "SEQ|TIME", "Start there: a number, or an ISO time (UTC).")
    ] = None,
    at_most: Annotated[
        float,
        option("--at-most", "PERCENT", "Suggest no rule of which more could have been denied."),
    ] = 5.0,
    confidence: Annotated[
        float, option("--confidence", "PERCENT", "With which the bounds hold, all together.")
    ] = 95.0,
    looked: Annotated[
        str,
        option(
            "--looked",
            "DURATION",
            "An approval counts from this long after its question on, and no sooner than anybody "
            "reads it (25 characters a second); 0: each counts.",
        ),
    ] = "2s",
    toml: Annotated[bool, option("--toml", "Only the rules, for a policy file.")] = False,
    *,
    session: Session,
) -> None:
    """Suggest rules that would have decided as people did, each with a bound on how often not.
    Chosen on the older decisions, judged by the newer ones. Records nothing.
    """
    if toml and session.json:
        raise BadInput("--toml and --json are two forms of the same: give one of them.")
    token("workspace", workspace)
    terms = Terms(
        confidence=_percent("--confidence", confidence, _LEAST_CONFIDENCE, _MOST_CONFIDENCE),
        at_most=_percent("--at-most", at_most, _LEAST_BOUND, _MOST_BOUND),
    )
    looked_s = parse_duration("--looked", looked, most=_LONGEST_LOOK_S)
    start = trying.since(since)
    async with session.connect("observer") as ledger:
        calls, unreadable = await past_calls(ledger, workspace, since=start, looked_s=looked_s)
        policies = await ledger.policies(workspace)
    found = suggest(calls, policies, terms)
    if session.json:
        print_json(found)
    elif toml:
        for one in found.suggestions:
            _print_toml(one, found)
    else:
        _print(found, workspace, looked_s)
    if not found.suggestions and not session.json:
        print_message("No rule is suggested.")
    if unreadable:
        print_message(
            f"{unreadable:,} requests are not counted, since this program cannot read them. "
            "`ayes watch` shows them."
        )


def _percent(name: str, value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise BadInput(f"{name} {value:g} is not a share: write {least:g} to {most:g}, in percent.")
    return value / 100


# --------------------------------------------------------------------------------------- for people


def _print(found: Suggestions, workspace: str, looked_s: float) -> None:
    for text in _counted(found, workspace, looked_s):
        print_line(text)
    for one in found.suggestions:
        print_line()
        print_line(one.name)
        for text in sentences(one, found):
            print_line(f"  {text}")
        print_line()
        for text in one.toml.splitlines():
            print_line(f"    {text}")
    if found.rejected:
        print_line()
    for each in found.rejected:
        print_line(
            f"Not suggested: {each.name}. Of {each.newer.calls:,} such calls people approved "
            f"{each.newer.approved:,}, so that up to {_up(each.denied_at_most)} could have been "
            "denied."
        )
    if found.without:
        print_line()
    for tool in found.without:
        print_line(f"Nothing about {tool.tool}: {_why(tool, found)}.")
    if found.suggestions:
        print_message()
        print_message(
            "As long as they say shadow = true, these rules have no effect. Next: ayes policy "
            f"suggest -w {workspace} --toml >> FILE.toml, and ayes policy backtest FILE.toml "
            f"-w {workspace}"
        )


def _counted(found: Suggestions, workspace: str, looked_s: float) -> Iterator[str]:
    whole = found.older.calls + found.newer.calls
    approved = found.older.approved + found.newer.approved
    yield (
        f"{found.questions:,} questions in {workspace}: {whole:,} decisions of people count, "
        f"{approved:,} of them approvals."
    )
    if found.newer_from is not None:
        yield (
            f"Rules are chosen by the {found.older.calls:,} before "
            f"{found.newer_from:%Y-%m-%d %H:%M} UTC, and judged by the {found.newer.calls:,} since."
        )
    if found.left_out:
        each = (f"{number:,} {_LEFT_OUT[why]}" for why, number in found.left_out.items())
        yield f"Not counted: {'; '.join(each)}."
    looked = (
        f"if it came {duration(looked_s)} after its question or later, and no sooner than anybody "
        f"reads it ({CHARACTERS_A_SECOND} characters a second)"
        if looked_s
        else "however quick it was"
    )
    yield (
        f"An approval counts {looked}. A denial, an edit, an answer and a revocation count as "
        "denied."
    )


def sentences(one: Suggestion, found: Suggestions) -> Iterator[str]:
    """What is known of a suggestion, and what is not."""
    together = f" for all {found.tried} rules that were judged" if found.tried > 1 else ""
    yield (
        f"Of {one.newer.calls:,} such calls people approved {one.newer.approved:,}; with "
        f"{found.confidence * 100:g} % confidence{together}, at most {_up(one.denied_at_most)} of "
        "them would have been denied."
    )
    yield (
        f"It spares {_down(one.spared_share)} of the questions: {one.spared:,} of "
        f"{found.newer_questions:,}"
        f"{f', of which nobody decided {one.undecided:,}' if one.undecided else ''}. They are of "
        f"{one.threads:,} conversation{'' if one.threads == 1 else 's'}."
    )
    yield (
        f"It was chosen by {one.older.calls:,} older ones, of which people approved "
        f"{one.older.approved:,}."
    )
    if unseen := [text for each in one.seen if (text := _unseen(each))]:
        yield f"It has not seen {'; '.join(unseen)}."
    for drift in one.drifts:
        yield _drift(drift)
    if one.asked_by != ("no rule",):
        yield f"Now {_listed(one.asked_by)} asks about them."
    if one.above:
        yield f"It would stand above {_listed(one.above)}, where both match."


def _unseen(one: SeenProperty) -> str:
    if one.values:
        return f"{one.where} other than {', '.join(map(literal, one.values))}"
    ends = ((one.least, "below"), (one.most, "above"))
    beyond = [f"{side} {end}" for end, side in ends if end is not None]
    return f"{one.where} {' or '.join(beyond)}" if beyond else ""


def _drift(one: WeeklyDrift) -> str:
    extreme, way = ("highest", "rose") if one.rises else ("lowest", "fell")
    return (
        f"Careful: the {extreme} {one.where} that people approved in a week {way} from "
        f"{one.weekly[0]} to {one.weekly[-1]} within {len(one.weekly)} weeks, step by step."
    )


def _listed(rules: Sequence[str]) -> str:
    return ", ".join(map(repr, rules))


def _why(one: Without, found: Suggestions) -> str:
    if one.why != "too_few":
        return _WITHOUT[one.why]
    return (
        f"{_WITHOUT[one.why]}, since {one.older:,} older and {one.newer:,} newer decisions count "
        f"and it takes at least {found.fewest // 2:,} of each"
    )


def _up(share: float) -> str:
    """A share in percent, not below what it is."""
    return f"{math.ceil(share * 1000 - 1e-9) / 10:g} %"


def _down(share: float) -> str:
    return f"{math.floor(share * 1000 + 1e-9) / 10:g} %"


# ------------------------------------------------------------------------------------- for a policy


def _print_toml(one: Suggestion, found: Suggestions) -> None:
    print_data("")
    for text in sentences(one, found):
        print_data(f"# {line(text)}")
    for text in one.toml.splitlines():
        print_data(text)
