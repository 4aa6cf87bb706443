"""Facts, calls and the queue, for people and as JSON for programs.

The JSON is a promise; the text for people may change. All output goes through these functions,
which make text from facts safe to display (`schemas/visible.py`):

* `print_data`: a line of data on stdout; ASCII only at a terminal, else byte for byte;
* `print_line` on stdout and `print_message` on stderr: a line for people;
* `console`: for columns and styles.
"""

import json
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ayes.ledger.descriptions import describe_chain
from ayes.ledger.grants import Delegation, Grant
from ayes.ledger.lifecycle import Call, call_of, voids
from ayes.ledger.votes import Tally, asked
from ayes.projections.doubt import CallInDoubt
from ayes.projections.pending import Entry
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import described, words
from ayes.schemas.digest import call_digest
from ayes.schemas.people import is_excluded
from ayes.schemas.quorums import is_among, seated
from ayes.schemas.slots import CallRef
from ayes.schemas.times import duration
from ayes.schemas.visible import ascii_json, line, lines, visible, warning

#: Hex digits of a digest that people are shown, and the fewest that they can name one by.
SHORT: Final = 12
#: Arguments longer than this are shown indented, on several lines.
_LONG: Final = 200


def print_data(line: str) -> None:
    """A line of data for programs; at a terminal in ASCII, with JSON's own escapes."""
    sys.stdout.write((ascii_json(line) if sys.stdout.isatty() else line) + "\n")
    sys.stdout.flush()


def print_json(value: object) -> None:
    """A value as one line of JSON."""
    print_data(msgspec.json.encode(value).decode())


def print_line(text: str = "") -> None:
    """One line for people on stdout."""
    sys.stdout.write(line(text) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """A part of a text on stdout. Its line feeds are kept, every other control character is spelled
    out; a warning about the text is printed after its last part.
    """
    sys.stdout.write("\n".join(map(visible, text.split("\n"))))
    sys.stdout.flush()


def print_message(text: str = "") -> None:
    """One line for people on stderr."""
    sys.stderr.write(line(text) + "\n")
    sys.stderr.flush()


def print_error(problem: Exception) -> None:
    """An error on stderr. It may quote a broker or a database, in several lines."""
    sys.stderr.write(lines(f"error: {problem}") + "\n")
    sys.stderr.flush()


def print_error_json(kind: str, message: str, exit_code: int) -> None:
    """An error as one line of JSON on stderr."""
    print_message(json.dumps({"error": kind, "message": message, "exit_code": exit_code}))


def call_json(call: Call, stands: Tally | None = None) -> dict[str, Any]:
    """A call, its status and its decision; while it is open, the state of the vote."""
    wish = call.wish
    decision = call.decided.event if call.decided else None
    found: dict[str, Any] = {
        "call": str(call.ref),
        "status": str(call.status),
        "tool": wish.tool,
        "arguments": call.arguments,
        "digest": call.digest,
        "decision": type(decision).__name__ if decision else None,
        "decided_at": call.decided.recorded_at if call.decided else None,
        "voters": getattr(decision, "voters", ()),
        "on_behalf_of": getattr(decision, "on_behalf_of", {}),
        "ground": getattr(decision, "ground", ""),
        "grants": getattr(decision, "grants", ()),
        "reason": getattr(decision, "reason", ""),
        "valid_until": call.valid_until,
    }
    if is_edited(call):
        found |= {
            "edited": True,
            "requested_arguments": wish.arguments,
            "requested_digest": wish.digest,
        }
    if stands is not None and not decision:
        found |= {
            "votes": stands.approvals,
            "votes_needed": stands.needed,
            "agree": stands.people,
            "missing": [
                {"voters": one.voters, "votes_needed": one.votes_needed}
                for one in missing(call, stands)
            ],
            "edits": stands.edits,
            "expires_at": call.deadline,
        }
    return found


def is_edited(call: Call) -> bool:
    """Whether it was approved with other arguments than those requested."""
    decision = call.decided.event if call.decided else None
    return isinstance(decision, e.Approved) and decision.arguments is not None


def edit_words(call: Call) -> str:
    """How an approval changed the arguments, and the digest of the result; empty if it did not."""
    if not is_edited(call):
        return ""
    return f"edited: {changes(call.wish.arguments, call.arguments)} (digest {call.digest[:SHORT]})"


def changes(before: str, after: str) -> str:
    """The difference of an edit, such as `amount 5 → 4`; all new arguments if that cannot show
    it.
    """
    try:
        old, new = _fields.decode(before), _fields.decode(after)
    except (msgspec.MsgspecError, UnicodeError):
        return after
    changed = [
        f"{name} {_value(old.get(name))} → {_value(new.get(name))}"
        for name in dict.fromkeys((*old, *new))
        if _value(old.get(name)) != _value(new.get(name))
    ]
    return ", ".join(changed) or after


def _value(raw: msgspec.Raw | None) -> str:
    return "(none)" if raw is None else bytes(raw).decode()


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def vote_words(call: Call, stands: Tally) -> str:
    """The state of the vote on an open call: who agrees, and who is missing."""
    agree = f" ({', '.join(stands.people)})" if stands.people else ""
    lacking = " and ".join(_asks(one) for one in missing(call, stands))
    said = f"{stands.approvals} of {stands.needed} approvals{agree}."
    if stands.verdict is not None or call.withdrawn is not None:
        return f"{said} That is decided, but no gate has recorded it yet: see ayes status."
    if lacking:
        edits = (_edit_words(call, *edit) for edit in stands.edits.items())
        return " ".join((f"{said} Missing: {lacking}.", *edits))
    return f"{said} The edited arguments need others too: ayes policy explain {call.ref}"


def _edit_words(call: Call, arguments: str, editor: str) -> str:
    command = f"ayes approve {call.ref} --as NAME --edit {shlex.quote(visible(arguments))}"
    return (
        f"{editor} approved it with other arguments, and an editor's own vote does not count. "
        f"Somebody else must approve the same: {command}"
    )


def missing(call: Call, stands: Tally) -> tuple[e.Quorum, ...]:
    """The quorums that are still incomplete, each with the voters it may be completed by."""
    asking = call.approval_request
    assert asking, "only a call that people were asked about lacks votes"
    people = set(stands.people)
    have_voted = people.union(stands.edits.values())
    anywhere = {
        person
        for vote in call.votes
        if isinstance(vote.event, e.Voted)
        and (person := vote.event.on_behalf_of or vote.slot.tail[3]) in people
        and is_among(person, call.escalated_to(vote.seq))
    }
    lacking: dict[e.Quorum, None] = {}
    for quorums in asked(asking):
        for quorum, seats in zip(quorums, seated(quorums, stands.people, anywhere), strict=True):
            left = quorum.votes_needed - len(seats)
            voters = dict.fromkeys((*quorum.voters, *call.escalated_to()))
            others = tuple(
                voter
                for voter in voters
                if voter not in have_voted
                and not is_excluded(voter, asking.excluded, asking.people)
            )
            if left > 0:
                lacking[e.Quorum(others, left)] = None
    return tuple(lacking)


def grant_json(grant: Grant, now: datetime) -> dict[str, Any]:
    """A grant: what it covers, its status, and the calls that used it."""
    granted = grant.granted
    revoked = grant.revoked.event if grant.revoked else None
    uses = [fact.event.call for fact in grant.used if isinstance(fact.event, e.GrantUsed)]
    return {
        "grant": str(grant.ref),
        "standing": grant.standing(now),
        "tool": granted.tool,
        "arguments": granted.arguments,
        "when": granted.when,
        "agent": granted.agent,
        "thread": granted.thread,
        "uses": granted.uses,
        "left": grant.left,
        "used_by": uses,
        "given_at": grant.given.recorded_at,
        "ends_at": grant.ends_at,
        "reason": granted.reason,
        "revoked_by": revoked.reviewer or revoked.call
        if isinstance(revoked, e.GrantRevoked)
        else "",
    }


def grant_words(grant: Grant, now: datetime) -> str:
    granted = grant.granted
    like = "any arguments"
    if granted.arguments is not None:
        like = granted.arguments
    elif granted.when:
        like = f"any where {granted.when}"
    scope = "" if granted.agent == "*" else f", agent {granted.agent or 'none'}"
    scope += "" if granted.thread == "*" else f", thread {granted.thread}"
    return (
        f"{grant.ref}  {grant.standing(now)}  {granted.tool} {like}{scope}  "
        f"{grant.left} of {granted.uses} uses left, ends {grant.ends_at:%Y-%m-%d %H:%M:%S} UTC"
    )


def delegation_json(delegation: Delegation, now: datetime) -> dict[str, Any]:
    given = delegation.delegated
    return {
        "delegation": str(delegation.ref),
        "standing": _delegation_standing(delegation, now),
        "to": given.to,
        "starts_at": given.starts_at,
        "ends_at": given.ends_at,
        "tools": given.tools,
        "reason": given.reason,
    }


def delegation_words(delegation: Delegation, now: datetime) -> str:
    given = delegation.delegated
    tools = "" if given.tools == ("*",) else f"  {', '.join(given.tools)}"
    period = f"{given.starts_at:%Y-%m-%d %H:%M:%S} to {given.ends_at:%Y-%m-%d %H:%M:%S} UTC"
    return (
        f"{delegation.ref}  {_delegation_standing(delegation, now)}  "
        f"{given.to} for {delegation.ref.giver}, {period}{tools}"
    )


def _delegation_standing(delegation: Delegation, now: datetime) -> str:
    given = delegation.delegated
    if delegation.ended is not None or now >= given.ends_at:
        return "ended"
    return "in force" if now >= given.starts_at else "to come"


type Wishes = Mapping[CallRef, e.ToolRequested]


def wishes_of(facts: Iterable[Fact]) -> dict[CallRef, e.ToolRequested]:
    """The requests among these facts, by call."""
    return {
        ref: fact.event
        for fact in facts
        if isinstance(fact.event, e.ToolRequested) and (ref := fact.slot.call_ref) is not None
    }


def print_facts(
    facts: Sequence[Fact],
    console: Console,
    *,
    full: bool = False,
    wishes: Wishes | None = None,
    voids: Mapping[int, str] | None = None,
) -> None:
    """Print a line for each fact, in aligned columns; a line too long for the terminal wraps.

    Args:
        full: print the whole subject, for facts of different threads.
        wishes: the requests, to show what an edit changed; by default those among the facts.
        voids: why a fact does not count, by sequence; by default derived from the facts.
    """
    why = voids_of(facts) if voids is None else voids
    known = wishes_of(facts) if wishes is None else wishes
    rows = [fact_row(fact, full=full, wishes=known) for fact in facts]
    # Wide enough for most, so that facts printed one by one are aligned too.
    slots = max(22, *(len(row.slot) for row in rows), 0)
    kinds = max(17, *(len(visible(row.kind)) for row in rows), 0)
    for row in rows:
        styled_line(
            console,
            (f"{row.seq:>6}  {row.time}  {row.slot:<{slots}}  ", "dim"),
            (f"{row.kind:<{kinds}}  ", _STYLE.get(row.kind, "bold")),
            (row.what, ""),
            (f"  ({row.by})" if row.by else "", "dim"),
            (f"  VOID: {why[row.seq]}" if row.seq in why else "", "bold red"),
        )


def voids_of(facts: Sequence[Fact]) -> dict[int, str]:
    """Why each of these facts of calls does not count, by sequence, judged by these facts alone."""
    by_call: defaultdict[CallRef, list[Fact]] = defaultdict(list)
    for fact in facts:
        if (ref := fact.slot.call_ref) is not None:
            by_call[ref].append(fact)
    calls = (call_of(ref, tuple(found)) for ref, found in by_call.items())
    return {void.fact.seq: void.why for call in calls for void in voids(call)}


def styled_line(console: Console, *parts: tuple[str, str]) -> None:
    """One line of several styles, with warnings about its characters at the end."""
    whole = Text()
    for text, style in parts:
        whole.append(visible(text), style)
    whole.append(warning("".join(text for text, _ in parts)), "bold red")
    console.print(whole, soft_wrap=True)


class FactRow(NamedTuple):
    """A fact as a person reads it; its texts are not made visible yet."""

    seq: int
    time: str
    slot: str
    kind: str
    by: str
    what: str


def fact_row(fact: Fact, *, full: bool = False, wishes: Wishes | None = None) -> FactRow:
    event = fact.event
    kind = event.type if isinstance(event, e.Carried) else type(event).__name__
    by = event.by if isinstance(event, e.Event) and isinstance(event.by, e.Author) else None
    who = "" if by is None else by.kind if by.name == by.kind else f"{by.kind} {by.name}"
    if isinstance(event, e.Carried):
        what = event.problem or "from a newer program"
    else:
        ref = fact.slot.call_ref
        what = _what(event) + _edit(event, (wishes or {}).get(ref) if ref else None)
    place = fact.slot.subject if full else ".".join(fact.slot.tail)
    time = f"{fact.recorded_at:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return FactRow(fact.seq, time, place, kind or "?", who, what)


def _edit(event: e.Event, wish: e.ToolRequested | None) -> str:
    """How a vote or an approval changes the arguments, and the digest of the result."""
    if not isinstance(event, e.Voted | e.Approved) or event.arguments is None:
        return ""
    if wish is None:
        return f", edited to {event.arguments}"
    digest = call_digest(wish.tool, wish.tool_version, event.arguments)
    return f", edited: {changes(wish.arguments, event.arguments)} (digest {digest[:SHORT]})"


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
    """The most important fields of an event, in a line."""
    match event:
        case e.ThreadOpened(requester=requester, model=model):
            below = f", in the run of {event.parent}" if event.parent else ""
            return f"for {requester}, answered by {model or 'a service'}{below}"
        case e.Said(role=role, text=text):
            return f"{role}: {_short(words(text))}"
        case e.ModelReplied(parts=parts):
            return "; ".join(_part(part) for part in parts)
        case e.ToolRequested(tool=tool, arguments=arguments):
            return f"{tool} {_short(arguments)}"
        case e.ApprovalRequested(rule=rule):
            asks = " and ".join(_asks(one) for one in _quorums(event))
            run = f", in the run of {describe_chain(event.chain)}" if event.chain else ""
            return f"rule {rule!r} asks {asks}{run}"
        case e.Escalated(voters=voters):
            return f"nobody decided in time: asks {', '.join(voters)} as well"
        case e.GlassBroken(reviewer=reviewer, reason=reason):
            return f"{reviewer} alone lets it run: {_short(reason)}"
        case e.Notified(channel=channel, together=together):
            return f"by {channel}{f', in a digest of {together}' if together > 1 else ''}"
        case e.Posted(message=message):
            return f"message {message}"
        case e.Granted(tool=tool, uses=uses, expires_in_s=seconds):
            return f"{tool}, {uses} times within {seconds:g} s"
        case e.GrantUsed(call=call):
            return f"by {call}"
        case e.BudgetUsed(call=call, amount=amount):
            return f"{amount} by {call}"
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
            who = (
                ", ".join(f"{one} for {behalf[one]}" if one in behalf else one for one in voters)
                or ground
            )
            if ground in {"grant", "broken_glass"}:
                who += f" ({ground.replace('_', ' ')})"
            reason = f": {event.reason}" if event.reason else ""
            valid_s = event.valid_for_s if isinstance(event, e.Approved) else None
            valid = "" if valid_s is None else f", valid for {duration(valid_s)}"
            return f"by {who}, rule {rule!r}{valid}{reason}"
        case e.ToolReturned(output=output):
            return _short(words(output))
        case (
            e.ToolFailed(error=text)
            | e.ModelFailed(error=text)
            | e.InDoubt(text=text)
            | e.ToolRefused(text=text)
        ):
            return _short(text)
        case e.Answered(answer=str(answer)) | e.Revoked(answer=str(answer)):
            return f"{'as an error' if event.is_error else 'answer'}: {_short(answer)}"
        case e.Reconciled(happened=happened, output=output):
            return f"{'happened' if happened else 'did not happen'}: {_short(words(output))}"
        case e.Lapsed(after_s=seconds):
            return f"the approval was valid for {duration(seconds)}"
        case e.ToolStarted(digest=digest):
            return f"digest {digest[:12]}…"
        case _:
            fields = ("reason", "answer", "model")
            return _short(
                next((value for name in fields if (value := getattr(event, name, ""))), "")
            )


def _part(part: e.Part) -> str:
    match part:
        case e.Text(text):
            return _short(text)
        case e.Refusal(text):
            return f"refuses: {_short(text)}"
        case e.Media():
            return described(part)
        case e.Wish(tool, arguments):
            return f"wants {tool} {_short(arguments)}"
        case e.Opaque(provider):
            return f"({provider}'s own)"


def _short(text: str, most: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def print_pending(entries: Sequence[Entry], console: Console) -> None:
    """Print a card for each pending call, with its complete arguments: nobody should approve what
    they could not read.
    """
    for entry in entries:
        what = "expires" if entry.expires_at else "asks more people"
        until = f", {what} {entry.due_at:%m-%d %H:%M:%S}" if entry.due_at else ""
        asked = f"  asked {entry.gated_at:%m-%d %H:%M:%S}{until} (UTC)"
        _print_card(console, entry.ref, entry.tool, asked, entry.digest, entry.arguments)
        if problem := entry.flaw:
            styled_line(console, (f"    [{problem}]", "bold red"))
        who = " and ".join(_asks(one) for one in _quorums(entry))
        if entry.asked_as_well:
            who += f", and by now {', '.join(entry.asked_as_well)} as well"
        but = f", but not {', '.join(entry.excluded)}" if entry.excluded else ""
        why = f"{entry.reason} " if entry.reason else ""
        styled_line(console, (f"    {why}(rule {entry.rule!r} asks {who}{but})", "dim"))
        _print_chain(console, entry.chain or ())


def print_in_doubt(found: Sequence[CallInDoubt], console: Console) -> None:
    """Print each call in doubt: since when, who claimed it, and the next command."""
    for one in found:
        ref = CallRef(one.workspace, one.thread, one.call)
        styled_line(console, (str(ref), "bold"), (f"  {one.tool}", ""))
        how = "in doubt" if one.recorded else "no sign of life"
        claimed = (
            f"claimed by {one.claimed_by or 'nobody named'} at {one.claimed_at:%m-%d %H:%M:%S}"
        )
        styled_line(console, (f"    {how} since {one.since:%m-%d %H:%M:%S}, {claimed} (UTC)", ""))
        if one.reason:
            styled_line(console, (f"    {_short(one.reason)}", ""))
        option = ""
        if one.late is not None:
            styled_line(console, (f"    {late_words(one.late)}", "yellow"))
            option = " --late"
        settle = f"ayes reconcile {ref} --as NAME{option}"
        step = settle if one.recorded else f"ayes doubt {ref}, and then {settle}"
        styled_line(console, (f"    Next: {step}", "dim"))


def late_words(result: e.ToolReturned | e.ToolFailed) -> str:
    """What a tool reported when its call was in doubt already."""
    how = "returned" if isinstance(result, e.ToolReturned) else "failed with"
    return f"It {how} later: {_what(result)}"


def print_question(call: Call, console: Console, arguments: str | None = None) -> None:
    """Print what a vote is about, as the log has it; with `arguments`, also how they change it."""
    asking, wish = call.approval_request, call.wish
    assert asking, "only a call that people were asked about is voted on"
    _print_card(console, call.ref, wish.tool, "", asking.digest, wish.arguments)
    _print_chain(console, asking.chain)
    if arguments is not None:
        digest = call_digest(wish.tool, wish.tool_version, arguments)
        styled_line(console, (f"    edited: {arguments}", "bold"))
        changed = changes(wish.arguments, arguments)
        styled_line(console, (f"    which is {changed} (digest {digest[:SHORT]})", "dim"))


def _print_card(
    console: Console, ref: CallRef, tool: str, asked: str, digest: str, arguments: str
) -> None:
    styled_line(
        console,
        (f"{ref}  ", "bold"),
        (tool, "bold yellow"),
        (asked, "dim"),
        (f"  {digest[:SHORT]}", "dim"),
    )
    for one in _readable(arguments):
        styled_line(console, (f"    {one}", ""))


def _print_chain(console: Console, chain: Sequence[e.Link]) -> None:
    if chain:
        styled_line(console, (f"    asked in the run of {describe_chain(chain)}", "dim"))


def _readable(arguments: str) -> list[str]:
    """Arguments on one line, or indented where one line is too long to read."""
    if len(arguments) <= _LONG:
        return [arguments]
    try:
        return msgspec.json.format(arguments).split("\n")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return [arguments]


def _quorums(asking: e.ApprovalRequested | Entry) -> tuple[e.Quorum, ...]:
    return (e.Quorum(asking.voters, asking.votes_needed), *asking.also, *asking.besides)


def _asks(quorum: e.Quorum) -> str:
    needed = "one" if quorum.votes_needed == 1 else str(quorum.votes_needed)
    voters = "anybody" if quorum.voters == ("*",) else ", ".join(quorum.voters) or "nobody"
    return f"{needed} of {voters}"


class _Console(Console):
    """A console that makes every character of every text visible, so that only styles act."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                text = "\n".join(map(visible, segment.text.split("\n")))
                yield Segment(text, segment.style)


def console(*, stderr: bool = False) -> Console:
    # https://no-color.org: rich alone would keep bold and dim.
    plain = bool(os.environ.get("NO_COLOR"))
    # Text from facts is not markup.
    return _Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if plain else "auto",
    )
