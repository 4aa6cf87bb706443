"""Why a vote does not count, and who may vote, revoke and reconcile.

The same rules hold for a fact that is recorded (`validity.void`, `votes.py`) and for one that is
about to be (`validity.refusal`).
"""

from collections.abc import Collection
from datetime import datetime
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ayes.ledger.call import Call
from ayes.ledger.descriptions import describe
from ayes.ledger.people import readings_for
from ayes.ledger.signing import Signature, is_fresh, vote_digest
from ayes.schemas import events as e
from ayes.schemas.errors import AlreadyFilled, DeadlinePassed, NotAllowed, NotOpen, Refused
from ayes.schemas.ids import is_token
from ayes.schemas.people import is_excluded, person
from ayes.schemas.quorums import is_among, is_group
from ayes.schemas.slots import REMOVALS

type VoteFlaw = Literal[
    "not_asked",
    "decided",
    "deadline",
    "excluded",
    "removed",
    "elsewhere",
    "stranger",
    "glass_for_another",
    "unused",
    "glass_without_reason",
    "not_delegated",
    "voted",
    "other_bytes",
    "may_not_run",
    "unsigned",
    "bad_signature",
    "counter_fell",
]

#: Why a recorded vote is void; the other flaws concern the voter.
VOID_VOTE: Final[dict[VoteFlaw, str]] = {
    "not_asked": "people were not asked before it",
    "decided": "the call was decided before it",
    "deadline": "the deadline had passed",
    "unused": "it holds an instruction that its verdict does not use",
    "glass_without_reason": "breaking the glass takes a reason",
    "other_bytes": "it is about other bytes than those that people were asked about",
    "unsigned": "it is not signed",
    "bad_signature": "it is not signed with a key of its voter that was in force",
    "counter_fell": "the counter of its passkey was as high before: there may be a copy of the key",
}

#: The verdicts that use an instruction of a vote. All use the reason and the digest.
_USED_BY: Final[dict[str, tuple[e.Verdict, ...]]] = {
    "arguments": ("approve",),
    "answer": ("answer",),
    "is_error": ("answer",),
    "halt": ("deny", "answer"),
}


class Objection(Struct, frozen=True):
    """Why a vote does not count."""

    flaw: VoteFlaw
    #: The person who is excluded, removed or of other workspaces; for other flaws the person whose
    #: vote it would be.
    person: str


def objection(
    call: Call,
    vote: e.Voted,
    reviewer: str,
    at: datetime,
    *,
    seq: int | None = None,
    spent: Collection[str] = (),
    delegated: bool = True,
) -> Objection | None:
    """Return the first reason why a vote does not count; None if it counts.

    1. people were not asked before it, the call was decided before it, or the deadline had passed;
    2. the reviewer, or the person in whose place they vote, is excluded, was removed before it, is
       of other workspaces, or was not asked;
    3. it would let the call run and holds an instruction that its verdict does not use, or breaks
       the glass without a reason;
    4. that person did not delegate the vote to the reviewer;
    5. one of the two has voted, in their own place or in another's;
    6. it is about other bytes than those that people were asked about;
    7. it is not a denial, signed votes are wanted, and it is not signed by the reviewer. (Whether
       a vote that is not recorded yet will be signed is not asked here.)

    Args:
        at: when it was recorded, or now, on the broker's clock.
        seq: its number in the log; only earlier facts matter. None: it is not recorded yet.
        spent: the people who have voted before it, as `people.person` names them.
        delegated: whether the delegation holds by which it is cast in another's place.
    """
    call = call if seq is None else _as_escalated_before(call, seq)
    asking, principal = call.approval_request, vote.on_behalf_of or reviewer
    rests_on = (call.requested, call.gated)
    if asking is None or (seq is not None and not all(one and one.seq < seq for one in rests_on)):
        return Objection("not_asked", principal)
    if call.decided is not None and (seq is None or call.decided.seq < seq):
        return Objection("decided", principal)
    if call.deadline is not None and at >= call.deadline:
        return Objection("deadline", principal)
    if (found := objection_to_voter(call, vote, reviewer, at, seq)) is not None:
        return found
    # Nothing runs on a denial or an answer: it counts, whatever else it holds.
    if vote.verdict in ("approve", "break_glass") and unused(vote):
        return Objection("unused", principal)
    if vote.verdict == "break_glass" and not vote.reason.strip():
        return Objection("glass_without_reason", principal)
    if principal != reviewer and not delegated:
        return Objection("not_delegated", principal)
    if not {person(principal, asking.people), person(reviewer, asking.people)}.isdisjoint(spent):
        return Objection("voted", principal)
    if vote.digest != asking.digest:
        return Objection("other_bytes", principal)
    if seq is not None and vote.verdict != "deny" and call.wants_signed:
        flaw = flaw_of_signature(call, vote, reviewer, at, seq)
        return Objection(flaw, reviewer) if flaw is not None else None
    return None


def flaw_of_signature(
    call: Call, vote: e.Voted, reviewer: str, at: datetime, seq: int
) -> VoteFlaw | None:
    """What is wrong with the signature of a recorded vote."""
    if not vote.signature:
        return "unsigned"
    if (known := call.signatures) is None:
        return None  # the gate says whether it counts
    signature = Signature.parse(vote.signature)
    key = known.keys.get(reviewer, signature.key) if signature is not None else None
    assert call.gated, "there is a question"
    if signature is None or key is None or not key.counts(call.gated, known.until):
        return "bad_signature"
    digest = vote_digest(known.bound, call.ref, call.wish, reviewer, vote, signature.until)
    if not (is_fresh(signature.until, at) and key.voted(signature, digest)):
        return "bad_signature"
    return "counter_fell" if seq in known.fallen else None


def asks_groups(call: Call) -> bool:
    """Whether groups of a provider are among those who may vote or break the glass."""
    return any(map(is_group, may_ever_vote(call)))


def may_ever_vote(call: Call) -> tuple[str, ...]:
    """Everybody who was asked, or may break the glass: names, patterns and groups."""
    asking = call.approval_request
    return (*call.voters(), *asking.may_break_glass) if asking is not None else ()


def votes_rest_on(call: Call) -> tuple[str, ...]:
    """What to read about people to count the votes."""
    votes = [
        (name, vote.recorded_at)
        for vote in call.votes
        for name in (vote.slot.tail[3], getattr(vote.event, "on_behalf_of", ""))
        if is_token(name)
    ]
    return readings_for(may_ever_vote(call), votes) or (REMOVALS,)


def unused(vote: e.Voted) -> str:
    """A clause about the first instruction of a vote that its verdict does not use; else empty.

    Such a vote says two things, and nobody can know which of them is meant.
    """
    for name, verdicts in _USED_BY.items():
        if vote.verdict not in verdicts and getattr(vote, name) not in (None, "", False):
            return f"{name} goes with {' or '.join(verdicts)}, and the verdict is {vote.verdict}"
    return ""


def objection_to_voter(
    call: Call, vote: e.Voted, reviewer: str, at: datetime, before: int | None = None
) -> Objection | None:
    """Return why this person may not cast such a vote. Being excluded beats being asked.

    Args:
        at: when it was recorded, or now.
        before: judge it as of just before that number of the log.
    """
    asking, principal = call.approval_request, vote.on_behalf_of or reviewer
    if asking is None:
        return Objection("not_asked", principal)
    # Who confirms their own request does so in person, and alone in no emergency.
    in_person = principal == reviewer and vote.verdict != "break_glass"
    excluded = asking.excluded if in_person else (*asking.excluded, *asking.own)
    for name in dict.fromkeys((reviewer, principal)):
        if is_excluded(name, excluded, asking.people):
            return Objection("excluded", name)
        if (bar := call.people.bar(name, call.ref.workspace, before)) is not None:
            is_removal = isinstance(bar.event, e.PersonRemoved)
            return Objection("removed" if is_removal else "elsewhere", name)
    if vote.verdict != "break_glass":
        is_asked = call.people.is_among(principal, call.voters(before), at, before)
    elif principal != reviewer:
        return Objection("glass_for_another", principal)
    else:
        is_asked = call.people.is_among(reviewer, asking.may_break_glass, at, before)
    return None if is_asked else Objection("stranger", principal)


def _as_escalated_before(call: Call, seq: int) -> Call:
    """The call without later escalations: they move the deadline of later votes only."""
    if not call.escalated or call.escalated[-1].seq < seq:
        return call
    asked_by_then = tuple(one for one in call.escalated if one.seq < seq)
    return msgspec.structs.replace(call, escalated=asked_by_then)


def refused_vote(call: Call, vote: e.Voted, reviewer: str, now: datetime) -> Refused | None:
    """The objection to a vote that is about to be recorded, as the error for the reviewer."""
    asking, principal = call.approval_request, vote.on_behalf_of
    spent: tuple[str, ...] = ()
    if asking and principal and call.fact_at(call.ref.vote(principal)) is not None:
        spent = (person(principal, asking.people),)
    found = objection(call, vote, reviewer, now, spent=spent)
    if found is None:
        return None
    assert asking, "the table allows votes only while PENDING"
    who = found.person
    match found.flaw:
        case "deadline":
            expired = f"{call.ref} expired at {call.deadline:%Y-%m-%d %H:%M:%S} UTC"
            return DeadlinePassed(f"{expired}. Nothing was recorded.")
        case "excluded":
            how = " by delegation or by breaking the glass" if asking.own else ""
            return NotAllowed(_excluded_text(call, who, f"does not count{how}"))
        case "removed":
            return NotAllowed(f"{who} was removed, so no vote of theirs counts.")
        case "elsewhere":
            return NotAllowed(f"{who} is not of {call.ref.workspace}, so no vote of theirs counts.")
        case "glass_for_another":
            never = "nobody may break the glass in another's place"
            return NotAllowed(f"{never}. {reviewer} may do it only in their own.")
        case "unused":
            return NotAllowed(f"{unused(vote)}. Nothing was recorded.")
        case "glass_without_reason":
            return NotAllowed(f"who breaks the glass for {call.ref} must say why. Give a reason.")
        case "voted":
            own = call.fact_at(call.ref.vote(who))
            assert own, "only a vote in person is looked up before a vote is recorded"
            voted = f"{who} has voted on {call.ref}: {describe(own)}"
            return AlreadyFilled(f"{voted}. Nothing was recorded.")
        case "other_bytes":
            other = f"this vote is about other arguments than those that {call.ref} waits with"
            return NotOpen(f"{other}. Look at it again.")
        case _:
            is_glass = vote.verdict == "break_glass"
            named = "may break the glass for" if is_glass else "may vote on"
            voters = asking.may_break_glass if is_glass else call.voters()
            asked = ", ".join(voters) or "nobody"
            why = f" {call.people.groups_words(who, now)}" if any(map(is_group, voters)) else ""
            return NotAllowed(
                f"{who} is none of those who {named} {call.ref}. Rule {asking.rule!r} asks {asked}."
                f"{why}"
            )


def refused_settlement(
    call: Call, reviewer: str, event: e.Revoked | e.Reconciled
) -> NotAllowed | None:
    """Why this person may not revoke or reconcile, as the error for the reviewer."""
    may, what = (
        (may_revoke, "revoke") if isinstance(event, e.Revoked) else (may_reconcile, "reconcile")
    )
    if may(call, reviewer):
        return None
    if is_excluded(reviewer, _excluded(call), _people(call)):
        return NotAllowed(_excluded_text(call, reviewer, f"may not {what} it"))
    return NotAllowed(
        f"{reviewer} may not {what} {call.ref}. Ask somebody who may decide about it, or whom the "
        f"policy names in may_{what}."
    )


def _excluded_text(call: Call, who: str, consequence: str) -> str:
    return (
        f"{who} asked for {call.ref}, or is behind the agent that did, and {consequence}. "
        "Somebody else must."
    )


def may_revoke(call: Call, reviewer: str) -> bool:
    """Whether this person was asked, has decided, or is named by the policy for it."""
    asking, decided = call.approval_request, call.approval
    named = (asking or decided).may_revoke
    if asking is not None:
        asked = (*call.voters(), *asking.may_break_glass)
    else:
        asked = () if named else ("*",)
    who = (*named, *asked, *decided.voters, *decided.on_behalf_of.values())
    people = _people(call)
    return not is_excluded(reviewer, _excluded(call), people) and (
        is_among(reviewer, who) or is_among(person(reviewer, people), who)
    )


def may_reconcile(call: Call, reviewer: str) -> bool:
    """Whether the policy names this person for it, or names nobody and they were asked. By their
    own name alone: a second name of theirs may be a workspace's word.
    """
    asking = call.approval_request
    named = (asking or call.approval).may_reconcile
    who = named or (call.voters() if asking else ("*",))
    if any(map(is_group, who)):  # of a group those whose votes counted
        who = (*who, *call.approval.voters, *call.approval.on_behalf_of.values())
    return is_among(reviewer, who) and not is_excluded(reviewer, _excluded(call), _people(call))


def _excluded(call: Call) -> tuple[str, ...]:
    """The people who asked for the call, or are behind the agent that did."""
    if call.approval_request is not None:
        return call.approval_request.excluded
    return (*filter(None, (call.wish.requester,)), *call.approval.excluded)


def _people(call: Call) -> dict[str, str]:
    return call.approval_request.people if call.approval_request else {}
