"""Counting votes: what the people who were asked have decided, if anything.

A vote counts when it was recorded after the question and before the deadline (on the broker's clock), by somebody
who was asked by then and did not ask for it, about the very bytes that wait, and, if it approves with edited arguments, with
ones that may run. Nobody counts twice: the slot gives each reviewer one vote, and who votes in another's place uses up
both votes.

Approvals and answers need people who say the same and meet every quorum. `denials_needed` people end it with a no, and so
does it when those who are left could no longer agree. Who breaks the glass decides alone.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from msgspec import Struct

from ledger.lifecycle import Call, may_vote
from schemas import events as e
from schemas.codec import Fact
from schemas.digest import call_digest
from schemas.events import Quorum, Stage
from schemas.quorums import filled, is_among, is_plain, lacking, met, needed

#: Sets of quorums; each of them must be met, by the same votes.
type Required = tuple[tuple[Quorum, ...], ...]


class Tally(Struct, frozen=True):
    """How the vote stands. `verdict` is None while it is open."""

    #: Of the set of quorums that lacks the most.
    approvals: int
    needed: int
    verdict: e.Approved | e.Denied | e.Answered | None
    #: Those who say what most say.
    people: tuple[str, ...] = ()


class Ballot(Struct, frozen=True):
    """A vote that counts."""

    reviewer: str
    #: In whose place; mostly the reviewer's own.
    person: str
    vote: e.Voted
    seq: int


def _as_asked(_arguments: str) -> Required:
    return ()


def _nobody(_vote: Fact) -> bool:
    return False


def tally(
    call: Call,
    edited: Callable[[str], Required | None] = _as_asked,
    delegated: Callable[[Fact], bool] = _nobody,
) -> Tally:
    """Count the votes on a pending call. Only for calls that people were asked about.

    Args:
        edited: who else must agree to edited arguments; None: they may not run, so the vote does not count.
        delegated: does the delegation hold by which this vote was cast in another's place?
    """
    asking = call.asking
    assert asking, f"{call.ref} was never put to people"
    agreeing: dict[_Said, list[Ballot]] = {}
    denying: list[Ballot] = []
    spent: set[str] = set()
    most = _stands(asked(asking), (), ())
    ballots = {ballot.seq: ballot for ballot in counted(call, delegated)}
    for fact in _in_time(call):
        ballot = ballots.get(fact.seq)
        spent.add(fact.slot.tail[3])  # a vote that does not count has taken its slot all the same
        match ballot:
            case None:
                pass
            case Ballot(vote=e.Voted(verdict="break_glass")):
                return _closed(most, _approved(call, [ballot], None, ground="broken_glass"))
            case Ballot(vote=e.Voted(verdict="deny")):
                denying.append(ballot)
                if len(denying) == asking.denials_needed:
                    return _closed(most, _denied(asking, denying))
            case Ballot(vote=vote):
                content = vote.answer if vote.verdict == "answer" else _edit(call, vote)
                more = edited(content) if vote.verdict == "approve" and content is not None else ()
                if more is not None:
                    agreed = agreeing.setdefault((vote.verdict, content), [])
                    agreed.append(ballot)
                    people, anywhere = [one.person for one in agreed], _anywhere(call, agreed)
                    required = (*asked(asking), *more)
                    if all(met(quorums, people, anywhere) for quorums in required):
                        verdict = (
                            _answered(asking, agreed, vote.answer)
                            if vote.verdict == "answer"
                            else _approved(call, agreed, content)
                        )
                        return Tally(needed(required[0]), needed(required[0]), verdict, tuple(people))
                    stands = _stands(required, people, anywhere)
                    most = max(stands, most, key=lambda one: one.approvals - one.needed)
        spent |= {ballot.person} if ballot else set()
        if _hopeless(call, agreeing, spent):
            return _closed(most, _denied(asking, denying, _DISAGREE))
    return most


def asked(asking: e.ApprovalRequested) -> Required:
    """Who must agree, as the question says."""
    own = (Quorum(asking.voters, asking.votes_needed), *asking.also)
    return (own, asking.besides) if asking.besides else (own,)


def empty_seats(required: Required, stages: Sequence[Stage], excluded: Collection[str]) -> int:
    """How many votes can never come, without those who do not count: a question that nobody can answer must not be asked."""
    later = [voter for stage in stages for voter in stage.voters]
    if not all(map(is_plain, later)):
        return 0
    for quorums in required:
        named = (voter for quorum in quorums for voter in quorum.voters)
        able = [one for one in (*named, *later) if is_plain(one) and not is_among(one, excluded)]
        if more := lacking(quorums, able, later):
            return more
    return 0


def counted(call: Call, delegated: Callable[[Fact], bool] = _nobody) -> list[Ballot]:
    """The votes that count, in the order in which they were recorded."""
    asking, gated = call.asking, call.gated
    assert asking
    assert gated
    found: list[Ballot] = []
    spent: set[str] = set()
    for fact in _in_time(call):
        reviewer = fact.slot.tail[3]
        if not isinstance(fact.event, e.Voted) or fact.event.digest != asking.digest:
            continue
        person = fact.event.on_behalf_of or reviewer
        if (
            fact.seq < gated.seq
            or not may_vote(call, fact.event, reviewer, fact.seq)
            or (person != reviewer and not delegated(fact))
            or {person, reviewer} & spent
            or (fact.event.verdict == "break_glass" and not _may_be_alone(fact.event))
        ):
            continue
        spent |= {person, reviewer}
        found.append(Ballot(reviewer, person, fact.event, fact.seq))
    return found


def _may_be_alone(vote: e.Voted) -> bool:
    """Breaking the glass takes a reason, and lets run what was asked for, nothing else."""
    return bool(vote.reason.strip()) and vote.arguments is None


#: Verdict, and the answer or the edited arguments.
type _Said = tuple[str, str | None]

_DISAGREE: Final = "Those who were asked do not agree, and too few are left who have not voted."


def _stands(required: Required, people: Sequence[str], anywhere: Collection[str]) -> Tally:
    """How many agree and how many must, of the set of quorums that lacks the most."""
    each = [(filled(quorums, people, anywhere), needed(quorums)) for quorums in required]
    agree, must = max(each, key=lambda one: one[1] - one[0])
    return Tally(agree, must, None, tuple(people))


def _hopeless(call: Call, agreeing: dict[_Said, list[Ballot]], spent: Collection[str]) -> bool:
    """Can nothing be agreed on any more, whatever those say who have not voted?"""
    asking = call.asking
    assert asking
    later = call.asked_as_well()
    if call.next_stage is not None or not all(map(is_plain, later)):
        return False  # somebody may come of whom nobody knows yet, and count wherever a vote is lacking
    left = {
        name
        for name in call.voters()
        if is_plain(name) and name not in spent and not is_among(name, asking.excluded)
    }
    late = {name for name in left if name in later}
    sides: list[tuple[list[str], set[str]]] = [([], set())]
    sides += [([one.person for one in said], _anywhere(call, said)) for said in agreeing.values()]
    return all(
        any(lacking(quorums, [*people, *left], anywhere | late) for quorums in asked(asking))
        for people, anywhere in sides
    )


def _in_time(call: Call) -> tuple[Fact, ...]:
    """The votes that were recorded before the deadline."""
    return tuple(vote for vote in call.votes if call.deadline is None or vote.recorded_at < call.deadline)


def _anywhere(call: Call, ballots: Sequence[Ballot]) -> set[str]:
    """Those who were asked as well when nobody had decided in time."""
    return {one.person for one in ballots if is_among(one.person, call.asked_as_well(one.seq))}


def _edit(call: Call, vote: e.Voted) -> str | None:
    """What the vote would change. Handing back the very bytes that wait is no edit."""
    return None if vote.arguments == call.wish.arguments else vote.arguments


def _closed(stands: Tally, verdict: e.Approved | e.Denied) -> Tally:
    return Tally(stands.approvals, stands.needed, verdict, stands.people)


def _denied(asking: e.ApprovalRequested, ballots: Sequence[Ballot], otherwise: str = "") -> e.Denied:
    reasons = dict.fromkeys(one.vote.reason for one in ballots if one.vote.reason)
    return e.Denied(
        ground="people",
        rule=asking.rule,
        policy_version=asking.policy_version,
        organisation=asking.organisation,
        reason="; ".join(reasons) or otherwise,
        voters=tuple(one.reviewer for one in ballots),
        on_behalf_of=_behalf(ballots),
        halt=any(one.vote.halt for one in ballots),
    )


def _answered(asking: e.ApprovalRequested, ballots: Sequence[Ballot], answer: str) -> e.Answered:
    return e.Answered(
        answer=answer,
        rule=asking.rule,
        policy_version=asking.policy_version,
        organisation=asking.organisation,
        voters=tuple(one.reviewer for one in ballots),
        on_behalf_of=_behalf(ballots),
    )


def _approved(
    call: Call, ballots: Sequence[Ballot], edit: str | None, *, ground: e.Ground = "people"
) -> e.Approved:
    asking, wish = call.asking, call.wish
    assert asking
    return e.Approved(
        digest=call_digest(wish.tool, wish.tool_version, wish.arguments if edit is None else edit),
        ground=ground,
        rule=asking.rule,
        policy_version=asking.policy_version,
        organisation=asking.organisation,
        voters=tuple(one.reviewer for one in ballots),
        on_behalf_of=_behalf(ballots),
        arguments=edit,
        reason=ballots[0].vote.reason,
    )


def _behalf(ballots: Sequence[Ballot]) -> dict[str, str]:
    return {one.reviewer: one.person for one in ballots if one.person != one.reviewer}
