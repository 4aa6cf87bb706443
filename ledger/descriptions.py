"""Recorded facts in words, for error messages and for the command line."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from ayes.ledger.stops import Stop
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import DELEGATION, GRANT, ORGANISATION, Slot
from ayes.schemas.times import duration

#: Why an approval does not let a call run (`Call.flaw`).
FLAWS: Final = {
    "digest_mismatch": "the arguments are not the ones that were approved",
    "people_were_asked": "a policy approved it although people had been asked and had not answered",
}

#: The beginning of why a start does not count that came after a stop.
STOPPED: Final = "stopped"

#: The state of a call whose slot is filled, by the slot's place.
_FILLED: Final = {
    "requested": "requested",
    "gated": "put to people",
    "escalated": "escalated",
    "announced": "announced",
    "withdrawn": "withdrawn",
    "decided": "decided",
    "revoked": "revoked",
    "lapsed": "lapsed",
    "claim": "claimed",
    "finished": "finished",
    "late": "finished",
    "notified": "told",
    "posted": "posted",
    "comment": "commented on",
    "handed": "handed over",
    "reconciled": "reconciled",
}
#: What an event does to a call.
_EFFECTS: Final[dict[type[e.Event], str]] = {
    e.ToolRequested: "requested",
    e.ApprovalRequested: "put to people",
    e.Voted: "voted on",
    e.Escalated: "escalated",
    e.GlassBroken: "announced",
    e.ToolStarted: "started",
    e.Declined: "declined",
    e.Revoked: "revoked",
    e.Lapsed: "lapsed",
    e.ToolReturned: "finished",
    e.ToolFailed: "finished",
    e.ToolRefused: "closed",
    e.InDoubt: "put in doubt",
    e.Notified: "told",
    e.Posted: "posted",
    e.Commented: "commented on",
    e.HandedOver: "handed over",
    e.Reconciled: "reconciled",
    e.Withdrawn: "withdrawn",
}

#: The outcomes (`Call.outcome`) that a call has, where it is others.
_ENDED: Final = frozenset({"returned", "failed", "expired", "lapsed"})


def outcome_words(outcome: str) -> str:
    """What became of a call, after its name: `is denied`, `has returned`."""
    return f"{'has' if outcome in _ENDED else 'is'} {outcome.replace('_', ' ')}"


def describe_chain(chain: Iterable[e.Link]) -> str:
    """The calls in whose runs something is asked: `shop/t1/c1 (delegate, by desk, reads) > ...`."""
    return " > ".join(
        f"{one.call} ({one.tool}{f', by {one.agent}' if one.agent else ''}"
        f"{f', {class_words(one.tool_class)}' if one.tool_class else ''})"
        for one in chain
    )


def mode_words(mode: e.Mode | None) -> str:
    """What stands behind the voters if the requester may vote, or did; else nothing."""
    return " (requester confirms)" if mode == "requester_confirms" else ""


def membership_words(one: e.Membership) -> str:
    """What stands behind the voters about one of them who counted by groups of a provider."""
    groups = ", ".join(one.groups)
    at = f"{one.read_at:%Y-%m-%d %H:%M:%S} UTC"
    return f", {one.person} of {groups} as {one.issuer} said of {one.subject} at {at}"


def describe_undoing(undoing: e.Undoing, until: datetime | None = None) -> str:
    """The class of a call, how it can be undone, and until when:
    `reversible, undone with cancel_order, within 2 hours after it returned`.
    """
    how = f", undone with {undoing.undo}" if undoing.undo else ""
    if until is not None:
        how += f", until {until:%Y-%m-%d %H:%M:%S} UTC"
    elif undoing.undo_within_s is not None:
        how += f", within {duration(undoing.undo_within_s)} after it returned"
    return f"{class_words(undoing.tool_class)}{how}"


def class_words(tool_class: e.JudgedClass) -> str:
    if tool_class == "undeclared":
        return "not declared, which counts as irreversible"
    return tool_class.replace("_", " ")


def describe(fact: Fact) -> str:
    """What was recorded, by whom and when: `Denied by ben at 2026-01-31 12:00:00 UTC`."""
    event, by = fact.event, author_of(fact)
    what = event.type if isinstance(event, e.Carried) else type(event).__name__
    return f"{what}{f' by {by}' if by else ''} at {fact.recorded_at:%Y-%m-%d %H:%M:%S} UTC"


def describe_stop(stop: Stop) -> str:
    """Who stopped what a call is a part of, when, why, and until when."""
    where = (
        "all workspaces"
        if stop.ref.workspace == ORGANISATION
        else f"workspace {stop.ref.workspace}"
    )
    until = f"until {stop.ends_at:%Y-%m-%d %H:%M:%S} UTC" if stop.ends_at else "until it is resumed"
    return (
        f"{STOPPED} in {where} by {stop.ref.giver} at "
        f"{stop.given.recorded_at:%Y-%m-%d %H:%M:%S} UTC, {until} ({stop.ref}): "
        f"{stop.stopped.reason or 'no reason given'}"
    )


def describe_decision(decided: Fact, withdrawn: Fact | None) -> str:
    """The decision on a call, as `describe`; a withdrawal with the name of its author."""
    if withdrawn is not None and type(withdrawn.event) is type(decided.event):
        return describe(withdrawn)
    return describe(decided)


def already_filled(slot: Slot, first: Fact) -> str:
    """Which fact was first in a slot: `ana has already voted on shop/t1/c-1: Voted by ana at …`."""
    match slot.tail:
        case ("call", _, "vote", reviewer):
            state = f"{reviewer} has already voted on {slot.call_ref}"
        case ("call", _, place, *_):
            state = f"{slot.call_ref} is already {_FILLED[place]}"
        case (kind, giver, name, place, *_) if kind in (GRANT, DELEGATION):
            state = f"{slot.workspace}/{giver}/{name} is already {place}"
        case _:
            state = f"{slot.subject} is already filled"
    return f"{state}: {describe(first)}. Nothing was recorded."


def describe_lapse(lapsed: e.Lapsed) -> str:
    """Why an approval is valid no longer: `policy version 3 blocks it, by rule 'frozen': why`."""
    why = f": {lapsed.reason}" if lapsed.reason else ""
    if lapsed.rule:
        whose = "the organisation's policy" if lapsed.organisation else "the policy"
        return f"version {lapsed.policy_version} of {whose} blocks it, by rule {lapsed.rule!r}{why}"
    if lapsed.grants:
        return f"the grant {', '.join(lapsed.grants)} was revoked{why}"
    return f"the approval was valid for {duration(lapsed.after_s)}"


def cannot_be(event: type[e.Event]) -> str:
    """What cannot happen to a call if this event may not follow: `it cannot be started`."""
    return f"it cannot be {_EFFECTS.get(event, 'decided')}"


def author_of(fact: Fact) -> str:
    """The people or the rule behind a fact; for other facts the author of its envelope."""
    event, tail = fact.event, fact.slot.tail
    match event:
        case e.Approved() | e.Denied() | e.Answered() if event.voters:
            behalf = event.on_behalf_of
            who = ", ".join(
                f"{one} for {behalf[one]}" if one in behalf else one for one in event.voters
            )
            if isinstance(event, e.Approved) and event.ground == "broken_glass":
                who += ", who broke the glass"
            if isinstance(event, e.Approved) and event.grants:
                who += f" (grant {', '.join(event.grants)})"
            return who + mode_words(getattr(event, "mode", None))
        case (
            e.Approved(ground="policy", rule=rule) | e.Denied(ground="policy" | "limit", rule=rule)
        ):
            return f"policy rule {rule!r}"
        case e.Expired() | e.Withdrawn() | e.Superseded() if tail[2] == "decided":
            return ""  # the gate only records these
        case e.Lapsed():
            return ""
        case e.Denied(ground="repeated"):
            return "the gate, as it was before"
        case e.GlassBroken(reviewer=reviewer):
            return reviewer
        case e.Commented() | e.HandedOver():
            return tail[3]
        case e.Voted(on_behalf_of=principal):
            return f"{tail[3]} for {principal}" if principal else tail[3]
        case e.Revoked() | e.Reconciled() if tail[2] != "claim" and len(tail) > 3:
            return tail[3]
        case e.Event(by=e.Author(name=name)):
            return name
        case _:
            return ""


def describe_on_call(one: e.OnCall) -> str:
    """Who of a schedule was asked when a stage began."""
    who = ", ".join(one.people) or "nobody"
    read = f", by its calendar as of {one.read_at:%Y-%m-%d %H:%M:%S} UTC" if one.read_at else ""
    return f"on call for {one.schedule}: {who}{read}{f'; {one.problem}' if one.problem else ''}"
