"""Facts, calls and the queue for people and for programs: rich tables, or JSON.

The JSON is the contract and stays as it is; the tables may change. Data goes to stdout (`out`), words to stderr (`say`).
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from ledger.lifecycle import Call
from ledger.votes import tally
from projections.pending import Entry
from schemas import events as e
from schemas.codec import Fact, encode


def out(line: str) -> None:
    """A line of data."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say(line: str) -> None:
    """A line for people."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def fact_json(fact: Fact) -> str:
    """A fact as one line: its place, and the event as it stands in the log, byte for byte."""
    place = {"seq": fact.seq, "recorded_at": fact.recorded_at, "subject": fact.slot.subject}
    head = msgspec.json.encode(place).decode()
    if isinstance(fact.event, e.Carried) and fact.event.problem:
        rest = f'"problem":{json.dumps(fact.event.problem)}'
    else:
        rest = f'"event":{encode(fact.event).decode()}'
    return f"{head[:-1]},{rest}}}"


def call_json(call: Call) -> str:
    """A call as one line: what it is, how it stands, and who decided."""
    wish = call.wish
    decision = call.decided
    standing: dict[str, Any] = {
        "call": str(call.ref),
        "status": str(call.status),
        "tool": wish.tool,
        "arguments": call.arguments,
        "digest": wish.digest,
        "decision": type(decision.event).__name__ if decision else None,
        "decided_at": decision.recorded_at if decision else None,
        "voters": getattr(decision.event, "voters", ()) if decision else (),
        "reason": getattr(decision.event, "reason", "") if decision else "",
    }
    if call.asking and not decision:
        stands = tally(call)
        standing |= {"votes": stands.approvals, "votes_needed": stands.needed, "expires_at": call.deadline}
    return msgspec.json.encode(standing).decode()


def print_facts(facts: Sequence[Fact], console: Console, *, full: bool = False) -> None:
    """A line for each fact, its columns in line with each other; what is too long for the terminal wraps.

    Args:
        full: with the whole subject, for facts of different threads.
    """
    rows = [fact_row(fact, full=full) for fact in facts]
    # Wide enough for most, so that facts which come one by one stand in line too.
    slots = max(22, *(len(row.slot) for row in rows), 0)
    kinds = max(17, *(len(row.kind) for row in rows), 0)
    for row in rows:
        line = Text()
        line.append(f"{row.seq:>6}  {row.time}  {row.slot:<{slots}}  ", style="dim")
        line.append(f"{row.kind:<{kinds}}  ", style=_STYLE.get(row.kind, "bold"))
        line.append(row.what)
        line.append(f"  ({row.by})" if row.by else "", style="dim")
        console.print(line, soft_wrap=True)


class Row(NamedTuple):
    """A fact as a person reads it."""

    seq: int
    time: str
    slot: str
    kind: str
    by: str
    what: str


def fact_row(fact: Fact, *, full: bool = False) -> Row:
    event = fact.event
    kind = event.type if isinstance(event, e.Carried) else type(event).__name__
    by = event.by if isinstance(event, e.Event) and isinstance(event.by, e.Author) else None
    who = "" if by is None else by.kind if by.name == by.kind else f"{by.kind} {by.name}"
    what = (event.problem or "from a newer program") if isinstance(event, e.Carried) else _what(event)
    place = fact.slot.subject if full else ".".join(fact.slot.tail)
    return Row(fact.seq, f"{fact.recorded_at:%H:%M:%S.%f}"[:-3], place, kind or "?", who, visible(what))


_STYLE = {
    "ApprovalRequested": "yellow",
    "Approved": "green",
    "Answered": "green",
    "ToolReturned": "green",
    "Denied": "red",
    "Expired": "red",
    "ToolFailed": "red",
    "ToolRefused": "red",
    "InDoubt": "red",
}


def _what(event: e.Event) -> str:
    """The fields that a person looks for, in a line."""
    match event:
        case e.ThreadOpened(requester=requester, model=model):
            return f"for {requester}, answered by {model or 'a service'}"
        case e.Said(role=role, text=text):
            return f"{role}: {_short(text)}"
        case e.ModelReplied(parts=parts):
            return "; ".join(_part(part) for part in parts)
        case e.ToolRequested(tool=tool, arguments=arguments):
            return f"{tool} {_short(arguments)}"
        case e.ApprovalRequested(rule=rule, voters=voters, votes_needed=needed):
            return f"rule {rule!r} asks {', '.join(voters)} for {needed}"
        case e.Voted(verdict=verdict, reason=reason):
            return f"{verdict}{f': {reason}' if reason else ''}"
        case (
            e.Approved(ground=ground, rule=rule, voters=voters)
            | e.Denied(ground=ground, rule=rule, voters=voters)
        ):
            who = ", ".join(voters) or ground
            reason = f": {event.reason}" if event.reason else ""
            return f"by {who}, rule {rule!r}{reason}"
        case e.ToolReturned(output=output):
            return _short(output)
        case (
            e.ToolFailed(error=text)
            | e.ModelFailed(error=text)
            | e.InDoubt(text=text)
            | e.ToolRefused(text=text)
        ):
            return _short(text)
        case e.Reconciled(happened=happened, output=output):
            return f"{'happened' if happened else 'did not happen'}: {_short(output)}"
        case e.ToolStarted(digest=digest):
            return f"digest {digest[:12]}…"
        case _:
            fields = ("reason", "answer", "model")
            return _short(next((value for name in fields if (value := getattr(event, name, ""))), ""))


def _part(part: e.Part) -> str:
    match part:
        case e.Text(text):
            return _short(text)
        case e.Wish(tool, arguments):
            return f"wants {tool} {_short(arguments)}"
        case e.Opaque(provider):
            return f"({provider}'s own)"


def _short(text: str, most: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def print_pending(entries: Sequence[Entry], console: Console) -> None:
    """A card for each call that waits. The arguments are always whole: nobody should approve what they did not read."""
    for entry in entries:
        until = f", expires {entry.expires_at:%m-%d %H:%M:%S}" if entry.expires_at else ""
        head = Text(f"{entry.ref}  ", style="bold")
        head.append(entry.tool, style="bold yellow")
        head.append(f"  asked {entry.gated_at:%m-%d %H:%M:%S}{until} (UTC)", style="dim")
        console.print(head, soft_wrap=True)
        console.print(Text(f"    {visible(entry.arguments)}"), soft_wrap=True)
        needed = "one" if entry.votes_needed == 1 else str(entry.votes_needed)
        who = f"{needed} of {', '.join(entry.voters)}" if entry.voters != ("*",) else f"{needed} of anybody"
        but = f", but not {', '.join(entry.excluded)}" if entry.excluded else ""
        why = f"{entry.reason} " if entry.reason else ""
        console.print(Text(f"    {why}(rule {entry.rule!r} asks {who}{but})", style="dim"), soft_wrap=True)


def visible(text: str) -> str:
    """The text with whatever would not be seen, or would reorder the rest, spelled out: control and bidi characters."""
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)


def console(*, stderr: bool = False) -> Console:
    # https://no-color.org speaks of colours only; rich would go on with bold and dim.
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")
