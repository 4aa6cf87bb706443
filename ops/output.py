"""Facts, calls and the queue for people and for programs: rich tables, or JSON.

The JSON is the contract and stays as it is; the tables may change. Data goes to stdout (`out`), words to stderr (`say`).
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from ledger.lifecycle import Call
from ledger.standing import Delegation, Grant
from ledger.votes import Tally, asked
from projections.pending import Entry
from schemas import events as e
from schemas.codec import Fact, encode
from schemas.people import is_excluded
from schemas.quorums import is_among, seated


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


def call_json(call: Call, stands: Tally | None = None) -> str:
    """A call as one line: what it is, how it stands, and who decided; while it is open, how the vote stands."""
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
        "on_behalf_of": getattr(decision.event, "on_behalf_of", {}) if decision else {},
        "ground": getattr(decision.event, "ground", "") if decision else "",
        "grants": getattr(decision.event, "grants", ()) if decision else (),
        "reason": getattr(decision.event, "reason", "") if decision else "",
    }
    if stands is not None and not decision:
        lacking = [{"voters": one.voters, "votes_needed": one.votes_needed} for one in missing(call, stands)]
        standing |= {
            "votes": stands.approvals,
            "votes_needed": stands.needed,
            "agree": stands.people,
            "missing": lacking,
            "edits": stands.edits,
            "expires_at": call.deadline,
        }
    return msgspec.json.encode(standing).decode()


def vote_words(call: Call, stands: Tally) -> str:
    """How the vote on an open call stands: who agrees, and who is missing."""
    agree = f" ({', '.join(stands.people)})" if stands.people else ""
    lacking = " and ".join(_asks(one) for one in missing(call, stands))
    said = f"{stands.approvals} of {stands.needed} approvals{agree}."
    if lacking:
        edits = (_edit_words(call, *edit) for edit in stands.edits.items())
        return " ".join((f"{said} Missing: {lacking}.", *edits))
    return f"{said} The edited arguments need others too: approvals policy explain {call.ref}"


def _edit_words(call: Call, arguments: str, editor: str) -> str:
    return (
        f"{editor} approved it with other arguments, and whoever edits does not count. Somebody else must approve "
        f"the same: approvals approve {call.ref} --edit {shlex.quote(visible(arguments))}"
    )


def missing(call: Call, stands: Tally) -> tuple[e.Quorum, ...]:
    """How many of whom must still agree with those who do, as the question says; an edit may need others too."""
    asking = call.asking
    assert asking, "only a call that people were asked about lacks votes"
    people = set(stands.people)
    have_voted = people.union(stands.edits.values())
    anywhere = {
        person
        for vote in call.votes
        if isinstance(vote.event, e.Voted)
        and (person := vote.event.on_behalf_of or vote.slot.tail[3]) in people
        and is_among(person, call.asked_as_well(vote.seq))
    }
    lacking: dict[e.Quorum, None] = {}
    for quorums in asked(asking):
        for quorum, seats in zip(quorums, seated(quorums, stands.people, anywhere), strict=True):
            left = quorum.votes_needed - len(seats)
            voters = dict.fromkeys((*quorum.voters, *call.asked_as_well()))
            others = tuple(
                voter
                for voter in voters
                if voter not in have_voted and not is_excluded(voter, asking.excluded, asking.people)
            )
            if left > 0:
                lacking[e.Quorum(others, left)] = None
    return tuple(lacking)


def grant_json(grant: Grant, now: datetime) -> str:
    """A standing yes as one line: what it covers, how it stands, and what it let run."""
    granted = grant.granted
    revoked = grant.revoked.event if grant.revoked else None
    return msgspec.json.encode(
        {
            "grant": str(grant.ref),
            "standing": grant.standing(now),
            "tool": granted.tool,
            "arguments": granted.arguments,
            "when": granted.when,
            "agent": granted.agent,
            "thread": granted.thread,
            "uses": granted.uses,
            "left": grant.left,
            "used_by": [fact.event.call for fact in grant.used if isinstance(fact.event, e.GrantUsed)],
            "given_at": grant.given.recorded_at,
            "ends_at": grant.ends_at,
            "reason": granted.reason,
            "revoked_by": revoked.reviewer or revoked.call if isinstance(revoked, e.GrantRevoked) else "",
        }
    ).decode()


def grant_words(grant: Grant, now: datetime) -> str:
    """The same for people."""
    granted = grant.granted
    like = "any arguments"
    if granted.arguments is not None:
        like = visible(granted.arguments)
    elif granted.when:
        like = f"any where {visible(granted.when)}"
    scope = "" if granted.agent == "*" else f", agent {visible(granted.agent) or 'none'}"
    scope += "" if granted.thread == "*" else f", thread {granted.thread}"
    return (
        f"{grant.ref}  {grant.standing(now)}  {granted.tool} {like}{scope}  "
        f"{grant.left} of {granted.uses} uses left, ends {grant.ends_at:%Y-%m-%d %H:%M:%S} UTC"
    )


def delegation_json(delegation: Delegation, now: datetime) -> str:
    """A delegation as one line."""
    given = delegation.delegated
    return msgspec.json.encode(
        {
            "delegation": str(delegation.ref),
            "standing": _delegation_standing(delegation, now),
            "to": given.to,
            "starts_at": given.starts_at,
            "ends_at": given.ends_at,
            "tools": given.tools,
            "reason": given.reason,
        }
    ).decode()


def delegation_words(delegation: Delegation, now: datetime) -> str:
    """The same for people."""
    given = delegation.delegated
    tools = "" if given.tools == ("*",) else f"  {', '.join(given.tools)}"
    return (
        f"{delegation.ref}  {_delegation_standing(delegation, now)}  {given.to} for {delegation.ref.giver}, "
        f"{given.starts_at:%Y-%m-%d %H:%M:%S} to {given.ends_at:%Y-%m-%d %H:%M:%S} UTC{tools}"
    )


def _delegation_standing(delegation: Delegation, now: datetime) -> str:
    given = delegation.delegated
    if delegation.ended is not None or now >= given.ends_at:
        return "ended"
    return "in force" if now >= given.starts_at else "to come"


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
    "Escalated": "yellow",
    "GlassBroken": "red",
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
        case e.ApprovalRequested(rule=rule):
            asks = " and ".join(_asks(one) for one in _quorums(event))
            return f"rule {rule!r} asks {asks}"
        case e.Escalated(voters=voters):
            return f"nobody decided in time: asks {', '.join(voters)} as well"
        case e.GlassBroken(reviewer=reviewer, reason=reason):
            return f"{reviewer} alone says that it shall run: {_short(reason)}"
        case e.Granted(tool=tool, uses=uses, expires_in_s=seconds):
            return f"{tool}, {uses} times within {seconds:g} s"
        case e.GrantUsed(call=call):
            return f"by {call}"
        case e.GrantRevoked(reviewer=reviewer, call=call):
            return f"by {reviewer}" if reviewer else f"since {call} was denied"
        case e.Delegated(to=to, starts_at=starts_at, ends_at=ends_at):
            return f"to {to} from {starts_at:%Y-%m-%d %H:%M} to {ends_at:%Y-%m-%d %H:%M} UTC"
        case e.Voted(verdict=verdict, reason=reason, on_behalf_of=person):
            said = f"{verdict}{f' for {person}' if person else ''}"
            return f"{said}: {reason}" if reason else said
        case (
            e.Approved(ground=ground, rule=rule, voters=voters)
            | e.Denied(ground=ground, rule=rule, voters=voters)
        ):
            behalf = event.on_behalf_of
            who = ", ".join(f"{one} for {behalf[one]}" if one in behalf else one for one in voters) or ground
            if ground in {"grant", "broken_glass"}:
                who += f" ({ground.replace('_', ' ')})"
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
        what = "expires" if entry.expires_at else "asks more people"
        until = f", {what} {entry.due_at:%m-%d %H:%M:%S}" if entry.due_at else ""
        head = Text(f"{entry.ref}  ", style="bold")
        head.append(entry.tool, style="bold yellow")
        head.append(f"  asked {entry.gated_at:%m-%d %H:%M:%S}{until} (UTC)", style="dim")
        console.print(head, soft_wrap=True)
        console.print(Text(f"    {visible(entry.arguments)}"), soft_wrap=True)
        who = " and ".join(_asks(one) for one in _quorums(entry))
        if entry.asked_as_well:
            who += f", and by now {', '.join(entry.asked_as_well)} as well"
        but = f", but not {', '.join(entry.excluded)}" if entry.excluded else ""
        why = f"{entry.reason} " if entry.reason else ""
        console.print(Text(f"    {why}(rule {entry.rule!r} asks {who}{but})", style="dim"), soft_wrap=True)


def _quorums(asking: e.ApprovalRequested | Entry) -> tuple[e.Quorum, ...]:
    return (e.Quorum(asking.voters, asking.votes_needed), *asking.also, *asking.besides)


def _asks(quorum: e.Quorum) -> str:
    needed = "one" if quorum.votes_needed == 1 else str(quorum.votes_needed)
    return f"{needed} of {', '.join(quorum.voters) or 'nobody' if quorum.voters != ('*',) else 'anybody'}"


def visible(text: str) -> str:
    """The text with whatever would not be seen, or would reorder the rest, spelled out: control and bidi characters."""
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)


def console(*, stderr: bool = False) -> Console:
    # https://no-color.org speaks of colours only; rich would go on with bold and dim.
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, color_system=None if plain else "auto")
