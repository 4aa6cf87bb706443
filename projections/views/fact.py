"""A fact as everybody outside sees it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from ayes.ledger.descriptions import (
    author_of,
    describe_chain,
    describe_lapse,
    describe_on_call,
    describe_undoing,
    membership_words,
    mode_words,
)
from ayes.ledger.signing import Signature
from ayes.ledger.validity import call_of, voids
from ayes.projections.views.call import SHORT, changes, quorum_words, quorums_of
from ayes.projections.views.secrets import Secrets
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import described, words
from ayes.schemas.digest import call_digest
from ayes.schemas.policy import NO_RULE_NAME
from ayes.schemas.sealed import shown
from ayes.schemas.slots import STOP, CallRef
from ayes.schemas.times import duration

type Wishes = Mapping[CallRef, e.ToolRequested]


def wishes_of(facts: Iterable[Fact]) -> dict[CallRef, e.ToolRequested]:
    """The requests among these facts, by call."""
    return {
        ref: fact.event
        for fact in facts
        if isinstance(fact.event, e.ToolRequested) and (ref := fact.slot.call_ref) is not None
    }


def own(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Without the facts about stops, which are read with each call and each thread."""
    return tuple(fact for fact in facts if fact.slot.tail[0] != STOP)


def voids_of(facts: Sequence[Fact]) -> dict[int, str]:
    """Why each of these facts of calls does not count, by sequence, judged by these facts alone."""
    by_call: defaultdict[CallRef, list[Fact]] = defaultdict(list)
    stops = [fact for fact in facts if fact.slot.tail[0] == STOP]
    for fact in facts:
        if (ref := fact.slot.call_ref) is not None:
            by_call[ref].append(fact)
    calls = (call_of(ref, (*found, *stops)) for ref, found in by_call.items())
    return {void.fact.seq: void.why for call in calls for void in voids(call)}


class FactRow(NamedTuple):
    """A fact as a person reads it; its texts are not made visible yet."""

    seq: int
    time: str
    slot: str
    kind: str
    by: str
    what: str


def fact_row(
    fact: Fact, secrets: Secrets, *, full: bool = False, wishes: Wishes | None = None
) -> FactRow:
    event = fact.event
    kind = event.type if isinstance(event, e.Carried) else type(event).__name__
    by = event.by if isinstance(event, e.Event) and isinstance(event.by, e.Author) else None
    who = "" if by is None else by.kind if by.name == by.kind else f"{by.kind} {by.name}"
    if isinstance(event, e.Carried):
        what = event.problem or "from a newer program"
    else:
        ref = fact.slot.call_ref
        wish = (wishes or {}).get(ref) if ref else None
        workspace = fact.slot.workspace
        shown = secrets.event(event, workspace, wish)
        asked = secrets.event(wish, workspace).arguments if wish else ""
        what = _what(shown) + _edit(event, shown, wish, asked)
    place = fact.slot.subject if full else ".".join(fact.slot.tail)
    time = f"{fact.recorded_at:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return FactRow(fact.seq, time, place, kind or "?", who, what)


#: What happened, before the fields of the fact. What is not here begins with its kind.
_OPENINGS: Final = {
    "ThreadOpened": "Opened",
    "Keyed": "The key under which values are sealed:",
    "ForgettingBegan": "What was sealed is being forgotten",
    "Forgotten": "What was sealed is forgotten",
    "Packed": "Settled facts were packed:",
    "Said": "",
    "ModelAsked": "The model is asked:",
    "ModelReplied": "The model:",
    "ModelFailed": "The model failed:",
    "ToolRequested": "Asked for",
    "ApprovalRequested": "People are asked:",
    "Escalated": "",
    "GlassBroken": "The glass was broken:",
    "Voted": "Vote of {by}:",
    "Approved": "Approved",
    "Denied": "Denied",
    "Answered": "Answered by {by}:",
    "Expired": "Expired: nobody decided in time",
    "Withdrawn": "Withdrawn:",
    "Superseded": "Superseded by a later message",
    "ToolStarted": "Started:",
    "Revoked": "The approval was taken back by {by}:",
    "Lapsed": "The approval lapsed:",
    "Declined": "It cannot start:",
    "ToolReturned": "Returned:",
    "ToolFailed": "Failed:",
    "ToolRefused": "The model is told:",
    "InDoubt": "In doubt:",
    "Notified": "A notice was sent",
    "Posted": "Asked in a chat:",
    "Commented": "Comment of {by}:",
    "HandedOver": "Handed over by {by}:",
    "Reconciled": "Reconciled by {by}:",
}


def fact_sentence(fact: Fact, secrets: Secrets, wishes: Wishes | None = None) -> str:
    """A fact of a conversation as a person would tell it, without the name of its kind."""
    return _sentence(fact, fact_row(fact, secrets, wishes=wishes))


def _sentence(fact: Fact, row: FactRow) -> str:
    opening = _OPENINGS.get(row.kind, f"{row.kind}:").format(by=author_of(fact))
    return f"{opening} {row.what}".strip(": ")


class RecordedFact(Struct, frozen=True, kw_only=True):
    """A fact as it stands in the log."""

    seq: int
    recorded_at: datetime
    subject: str
    #: The event, with its kind in `type`; of one that this program cannot read, the kind alone.
    event: dict[str, Any] | None = None
    #: The bytes of an event that this program cannot read, as text; empty if its tool declares
    #: anything as secret.
    raw: str = ""
    #: Why it cannot read them.
    problem: str = ""
    void: str = ""
    #: Its author, by its own account: kind and name.
    by: str
    #: Its most important fields in a line; long ones are shortened here, and whole in `event`.
    what: str
    #: The same as a person would tell it.
    sentence: str


def recorded(facts: Sequence[Fact], secrets: Secrets) -> list[RecordedFact]:
    """The facts of a call as they stand in the log but for what is secret, in words too, with the
    reason of each that does not count. Surplus comments and handovers are left out.
    """
    facts = [fact for fact in facts if not fact.slot.is_surplus]
    voids, wishes = voids_of(facts), wishes_of(facts)
    return [_recorded(fact, voids.get(fact.seq, ""), wishes, secrets) for fact in own(facts)]


def _recorded(fact: Fact, void: str, wishes: Wishes, secrets: Secrets) -> RecordedFact:
    row, event = fact_row(fact, secrets, wishes=wishes), fact.event
    wish = wishes.get(ref) if (ref := fact.slot.call_ref) is not None else None
    more: dict[str, Any]
    if isinstance(event, e.Carried):  # it may have any form, and be nested as deeply as it likes
        more = {
            "event": {"type": event.type} if event.type else None,
            "raw": "" if secrets.hides else event.raw.decode(errors="replace"),
            "problem": event.problem or "it is of a newer program",
        }
    else:
        more = {"event": msgspec.to_builtins(secrets.event(event, fact.slot.workspace, wish))}
    return RecordedFact(
        seq=fact.seq,
        recorded_at=fact.recorded_at,
        subject=fact.slot.subject,
        void=void,
        by=row.by,
        what=row.what,
        sentence=_sentence(fact, row),
        **more,
    )


def late_words(result: e.ToolReturned | e.ToolFailed) -> str:
    """What a tool reported when its call was in doubt already."""
    how = "returned" if isinstance(result, e.ToolReturned) else "failed with"
    return f"It {how} later: {_what(result)}"


def _edit(event: e.Event, shown: e.Event, wish: e.ToolRequested | None, asked: str) -> str:
    """How a vote or an approval changes the arguments, and the digest of the result.

    Args:
        shown: the event as people see it.
        asked: the arguments of the request, likewise.
    """
    if not isinstance(event, e.Voted | e.Approved) or event.arguments is None:
        return ""
    assert isinstance(shown, e.Voted | e.Approved)
    assert shown.arguments is not None
    if wish is None:
        return f", edited to {shown.arguments}"
    digest = call_digest(wish.tool, wish.tool_version, event.arguments)
    return f", edited: {changes(asked, shown.arguments)} (digest {digest[:SHORT]})"


def _class(event: e.ApprovalRequested | e.Approved | e.Denied) -> str:
    undoing = None if isinstance(event, e.Denied) else event.undoing
    return f", class: {describe_undoing(undoing)}" if undoing is not None else ""


def _what(event: e.Event) -> str:
    """The most important fields of an event, in a line."""
    match event:
        case e.ThreadOpened(requester=requester, model=model):
            below = f", in the run of {event.parent}" if event.parent else ""
            return f"for {requester}, answered by {model or 'a service'}{below}"
        case e.Packed(size=size):
            return f"{size:,} facts"
        case e.Said(role=role, text=text):
            return f"{role}: {_short(words(text))}"
        case e.ModelReplied(parts=parts):
            return "; ".join(_part(part) for part in parts)
        case e.ToolRequested(tool=tool, arguments=arguments):
            return f"{tool} {_short(arguments)}"
        case e.ApprovalRequested(rule=rule):
            asks = ", and ".join(quorum_words(one) for one in quorums_of(event))
            run = f", in the run of {describe_chain(event.chain)}" if event.chain else ""
            rules = "no rule fits: it asks" if rule == NO_RULE_NAME else f"rule {rule!r} asks"
            only = ", signed votes only" if event.signed else ""
            return f"{rules} {asks}{mode_words(event.mode)}{only}{run}{_class(event)}"
        case e.Escalated(voters=voters, on_call=on_call):
            said = "".join(f"; {describe_on_call(one)}" for one in on_call)
            return f"nobody decided in time: asks {', '.join(voters) or 'nobody'} as well{said}"
        case e.GlassBroken(reviewer=reviewer, reason=reason):
            return f"{reviewer} alone lets it run: {_short(reason)}"
        case e.Notified(channel=channel, together=together):
            return f"by {channel}{f', in a digest of {together}' if together > 1 else ''}"
        case e.Posted(message=message):
            return f"message {message}"
        case e.Commented(text=text):
            return text
        case e.HandedOver(to=to, reason=reason):
            return f"to {to}{f': {reason}' if reason else ''}"
        case e.Granted(tool=tool, uses=uses, expires_in_s=seconds):
            return f"{tool}, {uses} times within {seconds:g} s"
        case e.GrantUsed(call=call):
            return f"by {call}"
        case e.BudgetUsed(call=call):  # the amount may be that of a secret argument
            return f"by {call}"
        case e.GrantRevoked(reviewer=reviewer, call=call):
            return f"by {reviewer}" if reviewer else f"since {call} was denied"
        case e.Stopped(tools=tools, agents=agents, requesters=requesters, reason=reason):
            covered = f"{', '.join(tools)} of {', '.join(agents)} for {', '.join(requesters)}"
            return f"{_short(covered)}: {_short(reason)}"
        case e.StopEnded(resumed_by=people) if people:
            return f"resumed by {', '.join(people)}"
        case e.Keyed(commitment=commitment):
            return f"commitment {commitment[:12]}…"
        case e.KeyAdded(key=key):
            return key
        case e.KeyConfirmed(signatures=signatures):
            return f"with {', '.join(one.split('.')[2] for one in signatures if '.' in one)}"
        case e.Delegated(to=to, starts_at=starts_at, ends_at=ends_at):
            return f"to {to} from {starts_at:%Y-%m-%d %H:%M} to {ends_at:%Y-%m-%d %H:%M} UTC"
        case e.Voted(verdict=verdict, reason=reason, on_behalf_of=person):
            said = f"{verdict}{f' for {person}' if person else ''}"
            if (signature := Signature.parse(event.signature)) is not None:
                said += f", signed with the key {signature.key}"
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
            who += mode_words(getattr(event, "mode", None))
            who += "".join(map(membership_words, getattr(event, "memberships", ())))
            reason = f": {event.reason}" if event.reason else ""
            valid_s = event.valid_for_s if isinstance(event, e.Approved) else None
            valid = "" if valid_s is None else f", valid for {duration(valid_s)}"
            return f"by {who}, rule {rule!r}{valid}{_class(event)}{reason}"
        case e.GroupsRead(issuer=issuer, groups=groups, until=until, problem=problem):
            said = problem or f"{issuer} named {', '.join(groups) or 'no group'}"
            return f"{_short(said)}, until {until:%Y-%m-%d %H:%M:%S} UTC"
        case e.OnCallRead(shifts=shifts, until=until):
            who = ", ".join(dict.fromkeys(one.person for one in shifts)) or "nobody"
            return f"{_short(who)}, until {until:%Y-%m-%d %H:%M:%S} UTC"
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
        case e.Lapsed():
            return _short(describe_lapse(event))
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
    line = " ".join(shown(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
