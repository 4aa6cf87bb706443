"""Counting votes: what the people who were asked have decided, if anything.

A vote counts when it was recorded after the question and before the deadline (on the broker's clock), by somebody
who was asked and did not ask for it, about the very bytes that wait, and, if it approves with edited arguments, with ones
that fit the tool's schema. Each person has one vote: the slot sees to that. One denial decides; approvals and answers need `votes_needed` people who say the same.
"""

from collections import defaultdict
from collections.abc import Callable

from msgspec import Struct

from ledger.lifecycle import Call, may_vote
from schemas import events as e
from schemas.digest import call_digest


class Tally(Struct, frozen=True):
    """How the vote stands. `verdict` is None while it is open."""

    approvals: int
    needed: int
    verdict: e.Approved | e.Denied | e.Answered | None


def tally(call: Call, fits: Callable[[str], bool] = lambda _arguments: True) -> Tally:
    """Count the votes on a pending call. Only for calls that people were asked about.

    Args:
        fits: whether edited arguments fit the tool's schema; a vote whose edit does not fit does not count.
    """
    asking = call.asking
    assert asking, f"{call.ref} was never put to people"
    agreeing: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    reasons: dict[tuple[str, str | None], str] = {}
    for reviewer, vote in counted(call):
        if vote.verdict == "deny":
            denied = e.Denied(
                ground="people",
                rule=asking.rule,
                policy_version=asking.policy_version,
                reason=vote.reason,
                voters=(reviewer,),
            )
            return Tally(0, asking.votes_needed, denied)
        if vote.verdict == "approve" and vote.arguments is not None and not fits(vote.arguments):
            continue
        said = (vote.verdict, vote.answer if vote.verdict == "answer" else _edit(call, vote))
        agreeing[said].append(reviewer)
        reasons.setdefault(said, vote.reason)
        if len(agreeing[said]) == asking.votes_needed:
            return Tally(
                asking.votes_needed, asking.votes_needed, _verdict(call, said, agreeing[said], reasons[said])
            )
    return Tally(max(map(len, agreeing.values()), default=0), asking.votes_needed, None)


def counted(call: Call) -> list[tuple[str, e.Voted]]:
    """The votes that count, in the order in which they were recorded."""
    asking, gated = call.asking, call.gated
    assert asking
    assert gated
    return [
        (reviewer, fact.event)
        for fact in call.votes
        if isinstance(fact.event, e.Voted)
        and may_vote(asking, reviewer := fact.slot.tail[3])
        and fact.seq > gated.seq
        and (call.deadline is None or fact.recorded_at < call.deadline)
        and fact.event.digest == asking.digest
    ]


def _edit(call: Call, vote: e.Voted) -> str | None:
    """What the vote would change. Handing back the very bytes that wait is no edit."""
    return None if vote.arguments == call.wish.arguments else vote.arguments


def _verdict(
    call: Call, said: tuple[str, str | None], voters: list[str], reason: str
) -> e.Approved | e.Answered:
    asking = call.asking
    assert asking
    verdict, content = said
    if verdict == "answer":
        return e.Answered(
            answer=content or "", rule=asking.rule, policy_version=asking.policy_version, voters=tuple(voters)
        )
    wish = call.wish
    arguments = wish.arguments if content is None else content
    return e.Approved(
        digest=call_digest(wish.tool, wish.tool_version, arguments),
        ground="people",
        rule=asking.rule,
        policy_version=asking.policy_version,
        voters=tuple(voters),
        arguments=content,
        reason=reason,
    )
