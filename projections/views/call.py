"""A call as everybody outside sees it."""

import shlex
from typing import Any, Final

import msgspec

from ayes.ledger.call import Call
from ayes.ledger.judging.votes import Tally, asked
from ayes.projections.pending import Entry
from ayes.schemas import events as e
from ayes.schemas.people import is_excluded
from ayes.schemas.quorums import is_among, seated
from ayes.schemas.visible import visible

#: Hex digits of a digest that people are shown, and the fewest that they can name one by.
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
SHORT: Final = 12


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


def _quorums(asking: e.ApprovalRequested | Entry) -> tuple[e.Quorum, ...]:
    return (e.Quorum(asking.voters, asking.votes_needed), *asking.also, *asking.besides)


def _asks(quorum: e.Quorum) -> str:
    needed = "one" if quorum.votes_needed == 1 else str(quorum.votes_needed)
    voters = "anybody" if quorum.voters == ("*",) else ", ".join(quorum.voters) or "nobody"
    return f"{needed} of {voters}"
