"""The count of the votes on a call, and the decision of the people who were asked.

A vote counts if `objections.objection` has none: it was recorded after the approval request and
before the deadline, the voter had been asked by then and is not the requester (unless the rule lets
them confirm), and it is about exactly the bytes of the call. Edited arguments must be allowed to
run. Nobody counts twice: the slot gives each reviewer one vote, two accounts of one person are one
person, and a delegate's vote uses up the votes of both people.

An approval or an answer needs people who vote the same and meet every quorum. The first person to
approve with edited arguments is their editor, who does not count towards them unless the approval
request allows it: somebody else must approve exactly the same arguments. The call is denied by
`denials_needed` people, or as soon as the remaining people could no longer agree. A person who
breaks the glass decides alone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.grants import Delegation, delegated
from ayes.ledger.judging.policies import Policies, of_edit
from ayes.ledger.objections import Objection, may_ever_vote, objection
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.events import Quorum, Stage
from ayes.schemas.limits import MAX_REASON, MAX_TEXT, cut, fits
from ayes.schemas.people import NO_ACCOUNTS, Accounts, by_person, is_excluded, person
from ayes.schemas.quorums import GROUP, filled, is_among, is_plain, lacking, met, needed
from ayes.schemas.tools import Tool

#: Sets of quorums; each of them must be met, by the same votes.
type Required = tuple[tuple[Quorum, ...], ...]
#: By group of the provider, its members.
type Members = Mapping[str, tuple[str, ...]]
NO_MEMBERS: Final[Members] = MappingProxyType({})
#: The additional quorums for edited arguments; None if they may not run.
type _Edited = Callable[[str], Required | None]
#: Whether the delegation behind a delegate's vote is valid.
type _Delegated = Callable[[Fact], bool]


class Tally(Struct, frozen=True):
    """The count so far. `verdict` is None while the vote is open."""

    #: Of the set of quorums that lacks the most votes.
    approvals: int
    needed: int
    verdict: e.Approved | e.Denied | e.Answered | None
    #: The people who hold the position with the most votes.
    people: tuple[str, ...] = ()
    #: By group of the provider, the people whose votes count as those of its members.
    members: dict[str, tuple[str, ...]] = {}
    #: Edited arguments that only their editor has approved, with the editor.
    edits: dict[str, str] = {}


class CastVote(Struct, frozen=True):
    """A recorded vote, and whether it counts."""

    reviewer: str
    #: The person whose vote it is: the reviewer, or the giver of a delegation.
    person: str
    vote: e.Voted
    seq: int
    #: Why it does not count; None if it does.
    objection: Objection | None = None
    #: If it counts by groups that were asked.
    membership: e.Membership | None = None


def _as_asked(_arguments: str) -> Required:
    return ()


def _nobody(_vote: Fact) -> bool:
    return False


def tally(
    call: Call, policies: Policies, tool: Tool | None, delegations: Collection[Delegation] = ()
) -> Tally:
    """Count the votes on a call that people were asked about.

    Args:
        call: with requester, agent and labels of its thread (`policies.attributed`), and with who
            was removed.
        policies: those in force, by which edits are judged.
        tool: the declaration; if None, no edit may run.
        delegations: those of the workspace.
    """
    edited = _edit_rules(policies, tool, call)
    return count_votes(call, edited, _delegation_holds(delegations, call))


def cast_votes(
    call: Call, policies: Policies, tool: Tool | None, delegations: Collection[Delegation] = ()
) -> list[CastVote]:
    """Every recorded vote in the order of the log, with the objection that `tally` has to it."""
    edited = _edit_rules(policies, tool, call)
    return [
        replace(one, objection=Objection("may_not_run", one.person))
        if one.objection is None and _more(call, one.vote, edited) is None
        else one
        for one in _cast(call, _delegation_holds(delegations, call))
    ]


def _edit_rules(policies: Policies, tool: Tool | None, call: Call) -> _Edited:
    return lambda arguments: of_edit(policies, tool, call, arguments)


def _delegation_holds(delegations: Collection[Delegation], call: Call) -> _Delegated:
    return lambda vote: delegated(delegations, call, vote)


def count_votes(
    call: Call,
    edited: _Edited = _as_asked,
    delegated: _Delegated = _nobody,
) -> Tally:
    """Count the votes on a call that people were asked about.

    Args:
        edited: the additional quorums for edited arguments; None if they may not run, so that the
            vote does not count.
        delegated: whether the delegation behind a delegate's vote is valid.
    """
    assert call.approval_request, f"{call.ref} was never put to people"
    cast = counted(call, delegated)
    members = _members(cast)
    found = _count(with_members(call, members), cast, edited, members)
    return replace(found, members=members)


def _count(call: Call, cast: Sequence[CastVote], edited: _Edited, members: Members) -> Tally:
    asking = call.approval_request
    assert asking
    agreeing: dict[_Position, list[CastVote]] = {}
    denying: list[CastVote] = []
    spent: set[str] = set()
    most = _stands([(one, (), ()) for one in asked(asking)], ())
    ballots = {ballot.seq: ballot for ballot in cast}
    edits: dict[str, str] = {}
    for fact in call.votes:
        if call.deadline is not None and fact.recorded_at >= call.deadline:
            continue
        ballot = ballots.get(fact.seq)
        # A vote that does not count occupies its slot all the same.
        spent.add(person(fact.slot.tail[3], asking.people))
        match ballot:
            case None:
                pass
            case CastVote(vote=e.Voted(verdict="break_glass")):
                return _closed(most, _approved(call, [ballot], None, ground="broken_glass"))
            case CastVote(vote=e.Voted(verdict="deny")):
                denying.append(ballot)
                if len(denying) == asking.denials_needed:
                    return _closed(most, _denied(asking, denying))
            case CastVote(vote=vote):
                position = _position(call, vote)
                more = _more(call, vote, edited)
                if more is not None:
                    agreed = agreeing.setdefault(position, [])
                    agreed.append(ballot)
                    counting = _agreeing(asking, position, agreed)
                    people, anywhere = [one.person for one in counting], _anywhere(call, counting)
                    required = (*asked(asking), *(joined(one, members) for one in more))
                    if not people:
                        assert position.content is not None
                        edits[position.content] = ballot.person
                    else:
                        edits.pop(position.content or "", None)
                    sides = [_by_person(one, people, anywhere, asking) for one in required]
                    if all(met(*side) for side in sides):
                        verdict = (
                            _answered(asking, agreed, position)
                            if vote.verdict == "answer"
                            else _approved(call, agreed, position.content)
                        )
                        return Tally(
                            needed(required[0]), needed(required[0]), verdict, tuple(people)
                        )
                    stands = _stands(sides, people)
                    most = max(stands, most, key=lambda one: one.approvals - one.needed)
        spent |= {person(ballot.person, asking.people)} if ballot else set()
        if _hopeless(call, agreeing, spent):
            return _closed(most, _denied(asking, denying, _DISAGREE))
    return replace(most, edits=edits)


def can_help(
    call: Call, reviewer: str, at: datetime, delegations: Collection[Delegation] = ()
) -> bool:
    """Whether a vote of this person would count now and bring the call nearer to an approval.

    Their own vote, or one in the place of a person who delegated it to them. Not so if the seats
    that they could fill are taken: then nothing is needed of them.
    """
    asking = call.approval_request
    if asking is None or call.decided is not None or call.withdrawn is not None:
        return False
    ballots = counted(call, _delegation_holds(delegations, call))
    accounts = asking.people
    spent = {person(name, accounts) for one in ballots for name in (one.person, one.reviewer)}
    spent |= {person(fact.slot.tail[3], accounts) for fact in call.votes}
    givers = [one.ref.giver for one in delegations if one.holds(reviewer, call.wish.tool, at)]
    for principal in dict.fromkeys((reviewer, *givers)):
        behalf = "" if principal == reviewer else principal
        vote = e.Voted(verdict="approve", digest=asking.digest, on_behalf_of=behalf)
        members = _members(ballots)
        for group in call.people.groups(principal, at):
            members[group] = (*members.get(group, ()), principal)
        if objection(call, vote, reviewer, at, spent=spent) is None and _adds(
            with_members(call, members), principal, ballots
        ):
            return True
    return False


def _adds(call: Call, principal: str, ballots: Sequence[CastVote]) -> bool:
    """Whether a vote of this person would fill a seat that is still empty."""
    asking = call.approval_request
    assert asking
    agreeing: dict[_Position, list[CastVote]] = {}
    for one in ballots:
        if one.vote.verdict in ("approve", "answer"):
            agreeing.setdefault(_position(call, one.vote), []).append(one)
    later = {principal} if is_among(principal, call.escalated_to()) else set()
    for said, cast in (agreeing or {_Position("approve", None): []}).items():
        counting = _agreeing(asking, said, cast)
        names, anywhere = [one.person for one in counting], _anywhere(call, counting)
        for wanted in asked(asking):
            before = filled(*_by_person(wanted, names, anywhere, asking))
            if filled(*_by_person(wanted, [*names, principal], anywhere | later, asking)) > before:
                return True
    return False


def asked(asking: e.ApprovalRequested) -> Required:
    """The quorums of the approval request."""
    own = (Quorum(asking.voters, asking.votes_needed), *asking.also)
    return (own, asking.besides) if asking.besides else (own,)


def _agreeing(
    asking: e.ApprovalRequested, said: "_Position", ballots: Sequence[CastVote]
) -> Sequence[CastVote]:
    """The votes that count for a position; the first one for an edit is its editor's."""
    is_edit = said.verdict == "approve" and said.content is not None
    return ballots[1:] if is_edit and not asking.editor_counts else ballots


def empty_seats(
    required: Required,
    stages: Sequence[Stage],
    excluded: Collection[str],
    accounts: Accounts = NO_ACCOUNTS,
) -> int:
    """The number of needed votes that nobody can cast, given the excluded people."""
    later = [voter for stage in stages for voter in stage.voters]
    if not all(map(is_plain, later)):
        return 0
    for wanted in required:
        named = (voter for quorum in wanted for voter in quorum.voters)
        names = [
            one
            for one in (*named, *later)
            if is_plain(one) and not is_excluded(one, excluded, accounts)
        ]
        quorums, able = by_person(wanted, names, accounts)
        if more := lacking(quorums, able, _people(later, accounts)):
            return more
    return 0


def _people(names: Iterable[str], accounts: Accounts) -> Collection[str]:
    """These names as `by_person` writes them."""
    return {person(name, accounts) for name in names} if accounts else set(names)


def counted(call: Call, delegated: _Delegated = _nobody) -> list[CastVote]:
    """The votes that count, in the order of the log."""
    return [one for one in _cast(call, delegated) if one.objection is None]


def _cast(call: Call, delegated: _Delegated) -> Iterable[CastVote]:
    accounts = call.approval_request.people if call.approval_request else NO_ACCOUNTS
    spent: set[str] = set()
    for fact in call.votes:
        vote, reviewer = fact.event, fact.slot.tail[3]
        if not isinstance(vote, e.Voted):
            continue
        principal = vote.on_behalf_of or reviewer
        why = objection(
            call,
            vote,
            reviewer,
            fact.recorded_at,
            seq=fact.seq,
            spent=spent,
            delegated=principal == reviewer or delegated(fact),
        )
        membership = None
        if why is None:
            spent |= {person(principal, accounts), person(reviewer, accounts)}
            membership = _membership(call, principal, fact)
        yield CastVote(reviewer, principal, vote, fact.seq, why, membership)


def _membership(call: Call, principal: str, vote: Fact) -> e.Membership | None:
    """The groups by which a vote may count; None if none of this person's was asked."""
    own = call.people.groups(principal, vote.recorded_at, vote.seq)
    own = own.intersection(may_ever_vote(call)) if own else own
    read = call.people.reading(principal, vote.seq)
    if not own or read is None:
        return None
    groups = tuple(sorted(one.removeprefix(GROUP) for one in own))
    return e.Membership(principal, groups, read.issuer, read.subject, read.read_at)


def _members(cast: Iterable[CastVote]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in cast:
        for group in one.membership.groups if one.membership is not None else ():
            found[GROUP + group] = (*found.get(GROUP + group, ()), one.person)
    return found


def with_members(call: Call, members: Members) -> Call:
    """The call as if these members of groups had been asked by name, beside their groups."""
    if not members or call.gated is None or call.approval_request is None:
        return call
    asking = call.approval_request
    own, *also = joined((Quorum(asking.voters), *asking.also), members)
    asking = replace(
        asking,
        voters=own.voters,
        also=tuple(also),
        besides=joined(asking.besides, members),
    )
    escalated = [
        replace(one, event=replace(one.event, voters=_joined_voters(one.event.voters, members)))
        if isinstance(one.event, e.Escalated)
        else one
        for one in call.escalated
    ]
    return replace(call, gated=replace(call.gated, event=asking), escalated=tuple(escalated))


def joined(quorums: Iterable[Quorum], members: Members) -> tuple[Quorum, ...]:
    """These quorums with the members of their groups beside the groups."""
    return tuple(replace(one, voters=_joined_voters(one.voters, members)) for one in quorums)


def _joined_voters(voters: Iterable[str], members: Members) -> tuple[str, ...]:
    named = ((voter, *members.get(voter, ())) for voter in voters)
    return tuple(dict.fromkeys(chain.from_iterable(named)))


def _more(call: Call, vote: e.Voted, edited: _Edited) -> Required | None:
    """The additional quorums for the edit of a vote; None if the edit may not run."""
    edit = _edit(call, vote) if vote.verdict == "approve" else None
    if edit is None:
        return ()
    return edited(edit) if fits(edit, MAX_TEXT) else None


#: Quorums, the people who agree, and those of them who count for any quorum.
type _Side = tuple[Sequence[Quorum], Sequence[str], Collection[str]]


class _Position(NamedTuple):
    """What several people can agree on."""

    verdict: str
    #: The answer or the edited arguments.
    content: str | None
    is_error: bool = False


def _position(call: Call, vote: e.Voted) -> _Position:
    if vote.verdict == "answer":
        return _Position("answer", vote.answer, vote.is_error)
    return _Position(vote.verdict, _edit(call, vote))


_DISAGREE: Final = "Those who were asked do not agree, and too few are left who have not voted."


def _by_person(
    quorums: Sequence[Quorum],
    names: Sequence[str],
    anywhere: Collection[str],
    asking: e.ApprovalRequested,
) -> _Side:
    """Each account as its person, who may fill a seat that is named by another account."""
    return *by_person(quorums, names, asking.people), _people(anywhere, asking.people)


def _stands(sides: Sequence[_Side], people: Sequence[str]) -> Tally:
    """The numbers of votes and needed votes, of the set of quorums that lacks the most."""
    each = [(filled(*side), needed(side[0])) for side in sides]
    agree, must = max(each, key=lambda one: one[1] - one[0])
    return Tally(agree, must, None, tuple(people))


def _hopeless(
    call: Call,
    agreeing: dict[_Position, list[CastVote]],
    spent: Collection[str],
) -> bool:
    """Whether no agreement is possible, whatever the remaining people vote."""
    asking = call.approval_request
    assert asking
    later = call.escalated_to()
    if call.next_stage is not None or not all(map(is_plain, later)):
        # A person who is not known yet may still vote, and count for any quorum.
        return False
    left = [
        name
        for name in call.voters()
        if is_plain(name)
        and person(name, asking.people) not in spent
        and not is_excluded(name, asking.excluded, asking.people)
    ]
    late = {name for name in left if name in later}
    sides: list[tuple[list[str], set[str]]] = [([], set())]
    for said, ballots in agreeing.items():
        counting = _agreeing(asking, said, ballots)
        sides.append(([one.person for one in counting], _anywhere(call, counting)))
    return all(
        any(_lack(wanted, [*people, *left], anywhere | late, asking) for wanted in asked(asking))
        for people, anywhere in sides
    )


def _lack(
    wanted: Sequence[Quorum],
    names: Sequence[str],
    anywhere: Collection[str],
    asking: e.ApprovalRequested,
) -> int:
    return lacking(*_by_person(wanted, names, anywhere, asking))


def _anywhere(call: Call, ballots: Sequence[CastVote]) -> set[str]:
    """Voters who were asked in addition, when nobody had decided in time."""
    return {one.person for one in ballots if is_among(one.person, call.escalated_to(one.seq))}


def is_edit(call: Call, vote: Fact) -> bool:
    """Whether this vote approves other arguments than those of the call."""
    event = vote.event
    return (
        isinstance(event, e.Voted) and event.verdict == "approve" and _edit(call, event) is not None
    )


def _edit(call: Call, vote: e.Voted) -> str | None:
    """The edited arguments of a vote; None if they are exactly those of the call."""
    return None if vote.arguments == call.wish.arguments else vote.arguments


def _closed(stands: Tally, verdict: e.Approved | e.Denied) -> Tally:
    return Tally(stands.approvals, stands.needed, verdict, stands.people)


def _denied(
    asking: e.ApprovalRequested,
    ballots: Sequence[CastVote],
    otherwise: str = "",
) -> e.Denied:
    reasons = dict.fromkeys(one.vote.reason for one in ballots if one.vote.reason)
    return e.Denied(
        ground="people",
        rule=asking.rule,
        policy_version=asking.policy_version,
        organisation=asking.organisation,
        reason=cut("; ".join(reasons), MAX_REASON) or otherwise,
        voters=tuple(one.reviewer for one in ballots),
        on_behalf_of=_behalf(ballots),
        halt=any(one.vote.halt for one in ballots),
    )


def _answered(
    asking: e.ApprovalRequested, ballots: Sequence[CastVote], position: _Position
) -> e.Answered:
    return e.Answered(
        answer=cut(position.content or "", MAX_TEXT),
        is_error=position.is_error,
        rule=asking.rule,
        policy_version=asking.policy_version,
        organisation=asking.organisation,
        voters=tuple(one.reviewer for one in ballots),
        on_behalf_of=_behalf(ballots),
        halt=any(one.vote.halt for one in ballots),
    )


def _approved(
    call: Call, ballots: Sequence[CastVote], edit: str | None, *, ground: e.Ground = "people"
) -> e.Approved:
    asking, wish = call.approval_request, call.wish
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
        reason=cut(ballots[0].vote.reason, MAX_REASON),
        valid_for_s=asking.valid_for_s,
        mode="requester_confirms"
        if any(is_excluded(one.reviewer, asking.own, asking.people) for one in ballots)
        else "four_eyes",
        memberships=tuple(one.membership for one in ballots if one.membership is not None),
    )


def _behalf(ballots: Sequence[CastVote]) -> dict[str, str]:
    return {one.reviewer: one.person for one in ballots if one.person != one.reviewer}
