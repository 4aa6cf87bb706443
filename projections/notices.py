"""Notices: what people are told about a call, as a subject and a body in plain text.

Pure: the same call gives the same text. The rules of this file:

* A notice leaves the ledger for mail servers and push services. So the arguments that the tool
  declares as secret are replaced, and all of them if they cannot be read while something in them is
  secret, or if the declaration is unknown. Outputs and answers are never in a notice.
* Text from others hides nothing: invisible characters are spelled out, words of mixed scripts are
  marked (`schemas/visible.py`), and no line of it can pass for a line of ours.
* Everything is bounded, and what is omitted is said.

A notice never suffices to decide: it leads to the console or names the command, which show the call
as it is in the log.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from ayes.ledger.call import Call
from ayes.ledger.descriptions import (
    author_of,
    describe_chain,
    describe_on_call,
    describe_undoing,
    mode_words,
)
from ayes.ledger.keys import PersonKey
from ayes.ledger.signing import fingerprint
from ayes.ledger.validity import void_runs, voids
from ayes.projections.recipients import QUESTIONS
from ayes.schemas import events as e
from ayes.schemas import sealed, strict_json
from ayes.schemas.people import person
from ayes.schemas.redaction import without
from ayes.schemas.slots import CallRef
from ayes.schemas.visible import flags, visible, visible_json

#: Of a subject, in characters; mail programs and push services show less.
MAX_SUBJECT: Final = 150
#: Of the arguments in a body.
MAX_LINES: Final = 30
MAX_CHARACTERS: Final = 2000
#: Of a line, and of a reason.
_MAX_LINE: Final = 300
_MAX_REASON: Final = 500
#: The calls that a digest lists.
MAX_LISTED: Final = 50
_MAX_TOOL: Final = 60

#: Stands where the rest of the arguments was cut, and begins a line in place of all of them.
CUT: Final = "(cut here; the whole is in the console)"
NOT_SHOWN: Final = "(not shown here: "


class Notice(NamedTuple):
    """A message. The subject is one line, and the first line of the body says what it is about."""

    subject: str
    body: str
    #: The calls that it is about.
    calls: tuple[CallRef, ...] = ()
    #: Whether somebody is asked to decide one of them.
    asks: bool = False


class DigestEntry(NamedTuple):
    """A call in a digest."""

    call: Call
    occasion: e.Occasion
    #: Leads one person to the call; empty: none.
    link: str = ""
    #: As of `notice`; only needed if it is the only one.
    secret: tuple[str, ...] | None = None
    #: Likewise.
    to: str = ""


def notice(
    call: Call,
    occasion: e.Occasion,
    *,
    secret: Sequence[str] | None = (),
    link: str = "",
    may_break_glass: bool = False,
    to: str = "",
) -> Notice:
    """What a person, or a room, is told about a call.

    Args:
        call: a requested call, and one that people were asked about if the occasion is a question.
        secret: the places that its tool declares as secret; None: they are unknown, so that no
            argument is shown.
        link: leads to the call in the console; empty: the body names the commands instead.
        may_break_glass: whether the reader alone may let the call run.
        to: the reader; only needed of what their key has signed.
    """
    facts = [
        f"call:      {call.ref}",
        f"tool:      {_short(call.wish.tool)}",
        *_asking_lines(call),
        *_outcome_lines(call, occasion, to),
    ]
    body = [_headline(call, occasion), "", *facts]
    if occasion in QUESTIONS or occasion == "in-doubt":
        body += ["", "arguments:", *(f"  {one}" for one in _argument_lines(call, secret))]
        body += ["", _what_to_do(call, occasion, may_break_glass=may_break_glass)]
    body += [link or f"On the command line: {_command(call, occasion)}"]
    asks = occasion in QUESTIONS
    return Notice(subject(call, occasion), "\n".join(body), (call.ref,), asks)


def key_notice(key: PersonKey) -> Notice:
    """What its person, and others who confirmed it, are told of a key that was confirmed."""
    assert key.counts_from, "it was confirmed"
    digits, by = fingerprint(key.public), ", ".join(sorted(key.by | key.others))
    body = (
        f"A key was confirmed with which {key.person} signs.",
        "",
        f"digits:    {digits}",
        f"confirmed: by {by or 'an older key of theirs'}",
        f"counts:    from {_time(key.counts_from)} on",
        "",
        f"If {key.person} has not made it, or you have not confirmed it, revoke it at once:",
        f"ayes key revoke {key.person} {digits}",
    )
    return Notice(f"A key of {key.person} was confirmed", "\n".join(body))


def digest(listed: Sequence[DigestEntry]) -> Notice:
    """One message about several calls, in the given order."""
    if len(listed) == 1:
        (one,) = listed
        return notice(one.call, one.occasion, secret=one.secret, link=one.link, to=one.to)
    waiting = sum(one.occasion in QUESTIONS for one in listed)
    about = f"{waiting} wait for you" if waiting == len(listed) else f"{waiting} of them wait"
    lines = [f"{len(listed)} notices about calls; {about}.", ""]
    for one in listed[:MAX_LISTED]:
        due = one.call.due
        until = f" (until {_time(due)})" if due and one.occasion in QUESTIONS else ""
        lines.append(f"- {subject(one.call, one.occasion)}{until}")
        if one.link:
            lines.append(f"  {one.link}")
    if (more := len(listed) - MAX_LISTED) > 0:
        lines.append(f"- and {more} more")
    lines += ["", "On the command line: ayes pending"]
    title = f"ayes: {len(listed)} notices, {waiting} waiting for approval"
    refs = tuple(one.call.ref for one in listed)
    return Notice(title, "\n".join(lines), refs, asks=waiting > 0)


def subject(call: Call, occasion: e.Occasion) -> str:
    """One line about a call."""
    tool = _cut(_short(call.wish.tool), _MAX_TOOL)
    asking = call.approval_request
    what = f" \N{EN DASH} {_short(asking.title)}" if asking is not None and asking.title else ""
    said = _TITLES[occasion].format(tool=tool, outcome=_outcome(call))
    return _cut(f"{said}: {call.ref}{what}")


def redacted(arguments: str, secret: Sequence[str]) -> Any:
    """The value of the arguments, with `REDACTED` in the place of secrets.

    Args:
        secret: JSON pointers (RFC 6901), in which `*` stands for every key or index; the empty one
            is the whole.

    Raises:
        strict_json.BadJson: the arguments cannot be read.
    """
    return without(strict_json.read(arguments), secret)


#: The occasions on which somebody is asked to decide.

_TITLES: Final[dict[e.Occasion, str]] = {
    "asked": "{tool} needs approval",
    "escalated": "Escalated: {tool} needs approval",
    "handed": "Handed over: {tool} needs approval",
    "reminder": "Reminder: {tool} needs approval",
    "decided": "{tool} was {outcome}",
    "expired": "{tool} expired undecided",
    "broken-glass": "The glass was broken for {tool}",
    "in-doubt": "{tool} is in doubt",
    "void": "A run of {tool} counts for nothing",
    "signed": "Your key has just signed: {tool}",
}


_HEADLINES: Final[dict[e.Occasion, str]] = {
    "asked": "{who} asks to run a tool.",
    "escalated": "Nobody has decided in time, so you are asked as well. {who} waits.",
    "handed": "A colleague hands this call over. {who} waits for a decision.",
    "reminder": "{who} still waits for a decision.",
    "decided": "The call was {outcome}.",
    "expired": "Nobody decided in time, so the call has expired. It did not run.",
    "broken-glass": "One person alone lets this call run in an emergency.",
    "in-doubt": "The tool was started, and nobody knows how it ended. It is not tried again.",
    "void": (
        "A start or a result was recorded that does not count: somebody ran the tool without "
        "leave, or made up what it returned. An operator should look into it."
    ),
    "signed": (
        "Your key has just signed a vote on this call. If this is not what you were shown, a page "
        "was not honest: revoke your key, and the approval."
    ),
}


def _headline(call: Call, occasion: e.Occasion) -> str:
    wish = call.wish
    behalf = f" on behalf of {_short(wish.requester)}" if wish.requester else ""
    who = f"{_short(wish.agent or 'A program')}{behalf}"
    return _HEADLINES[occasion].format(who=who, outcome=_outcome(call))


def _asking_lines(call: Call) -> list[str]:
    wish, asking = call.wish, call.approval_request
    lines = [f"agent:     {_short(wish.agent)}"] if wish.agent else []
    if wish.requester:
        lines.append(f"requester: {_short(wish.requester)}")
    if call.undoing is not None:
        said = describe_undoing(call.undoing, call.undo_until)
        lines.append(f"class:     {_short(said, _MAX_REASON)}")
    if asking is None:
        return lines
    if asking.title:
        lines.insert(0, f"what:      {_short(asking.title)}")
    if asking.chain:
        lines.append(f"in runs of: {_short(describe_chain(asking.chain), _MAX_REASON)}")
    lines.append(f"rule:      {_short(asking.rule)}{mode_words(asking.mode)}")
    if asking.reason:
        lines.append(f"why:       {_short(asking.reason, _MAX_REASON)}")
    lines += [f"escalated: {_short(describe_on_call(one), _MAX_REASON)}" for one in call.on_call]
    for fact in call.handed[-1:]:
        if isinstance(fact.event, e.HandedOver):
            why = f": {fact.event.reason}" if fact.event.reason else ""
            said = f"to {fact.event.to} by {author_of(fact)}{why}"
            lines.append(f"handed:    {_short(said, _MAX_REASON)}")
    return lines


def _outcome_lines(call: Call, occasion: e.Occasion, to: str) -> list[str]:
    match occasion:
        case "decided" | "expired" if call.decided is not None:
            reason = getattr(call.decided.event, "reason", "")
            by = author_of(call.decided)
            return [
                f"decided:   {_time(call.decided.recorded_at)}{f' by {_short(by)}' if by else ''}",
                *([f"reason:    {_short(reason, _MAX_REASON)}"] if reason else []),
            ]
        case "broken-glass" if call.announced and isinstance(call.announced.event, e.GlassBroken):
            broken = call.announced.event
            return [
                f"broken by: {_short(broken.reviewer)}, {_time(call.announced.recorded_at)}",
                f"reason:    {_short(broken.reason, _MAX_REASON)}",
            ]
        case "in-doubt" if call.finished and isinstance(call.finished.event, e.InDoubt):
            return [f"what is known: {_short(call.finished.event.text, _MAX_REASON)}"]
        case "void":
            return [
                f"void:      {'.'.join(one.fact.slot.tail[2:])} by "
                f"{_short(author_of(one.fact))}, {_time(one.fact.recorded_at)}: {_short(one.why)}"
                for one in void_runs(call)
            ]
        case "signed":
            return _signed_lines(call, to)
        case "asked" | "escalated" | "handed" | "reminder":
            ends = "more people are asked then" if call.next_stage else "it expires then"
            return [f"until:     {_time(call.due)}; {ends}"] if call.due else ["until:     no end"]
        case _:
            return []


def _signed_lines(call: Call, to: str) -> list[str]:
    """The reader's signed vote, and why it does not count."""
    people = call.approval_request.people if call.approval_request is not None else {}
    whys = {one.fact.seq: one.why for one in voids(call)}
    lines: list[str] = []
    for fact in call.votes:
        vote, who = fact.event, fact.slot.tail[3]
        if not isinstance(vote, e.Voted) or person(who, people) != person(to, people):
            continue
        lines.append(f"signed:    {vote.verdict.replace('_', ' ')}, {_time(fact.recorded_at)}")
        if vote.on_behalf_of:
            lines.append(f"for:       {_short(vote.on_behalf_of)}")
        if vote.arguments is not None:
            lines.append("runs:      with other arguments than were asked for")
        if vote.reason:
            lines.append(f"reason:    {_short(vote.reason, _MAX_REASON)}")
        if fact.seq in whys:
            lines.append(f"void:      {whys[fact.seq]}")
    return lines


def _what_to_do(call: Call, occasion: e.Occasion, *, may_break_glass: bool) -> str:
    if occasion == "in-doubt":
        return "Find out whether the tool had its effect, and record it."
    asking = call.approval_request
    said = "You can approve it, also with changed arguments, deny it, or answer in its place."
    if asking is not None and asking.mode == "requester_confirms":
        said += " If it is your own request, you may confirm it."
    if asking is not None and asking.confirm == "typed":
        said += " To approve it you type the name of the tool."
    if asking is not None and asking.signed:
        said += " Only signed votes let it run: vote with your passkey, or where your key is."
    return f"{said} In an emergency you alone may let it run." if may_break_glass else said


def _command(call: Call, occasion: e.Occasion) -> str:
    if occasion in QUESTIONS:
        return f"ayes approve {call.ref}, or ayes deny {call.ref}"
    return f"ayes reconcile {call.ref}" if occasion == "in-doubt" else f"ayes show {call.ref}"


def _argument_lines(call: Call, secret: Sequence[str] | None) -> list[str]:
    raw = call.arguments
    if secret is None:
        return [f"{NOT_SHOWN}it is not known which of them are secret)"]
    try:
        text = json.dumps(redacted(raw, secret), ensure_ascii=False, indent=2)
    except strict_json.BadJson:
        if secret:
            return [f"{NOT_SHOWN}they cannot be read, and some of them are secret)"]
        text = raw
    text = sealed.shown(text)
    shown = visible_json(text[:MAX_CHARACTERS])
    lines = [_cut(visible(one), _MAX_LINE) for one in shown.split("\n")[:MAX_LINES]]
    left = len(text) - MAX_CHARACTERS
    if left > 0 or shown.count("\n") >= MAX_LINES:
        lines.append(CUT)
    return [*lines, *(f"[{one}]" for one in flags(text))]


def _outcome(call: Call) -> str:
    match call.decided.event if call.decided else None:
        case e.Approved(ground="broken_glass"):
            return "let run by one person, who broke the glass"
        case e.Approved(arguments=None, mode=mode):
            return f"approved{mode_words(mode)}"
        case e.Approved(mode=mode):
            return f"approved with changed arguments{mode_words(mode)}"
        case e.Answered():
            return "answered by a person instead of the tool"
        case e.Event() as event:
            return type(event).__name__.lower()
        case _:
            return "decided"


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC" if at else "no time"


def _short(text: str, most: int = _MAX_LINE) -> str:
    """A text of others on one line, with its warnings."""
    found = flags(text)
    return _cut(visible(text), most) + "".join(f"  [{one}]" for one in found)


def _cut(text: str, most: int = MAX_SUBJECT) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
