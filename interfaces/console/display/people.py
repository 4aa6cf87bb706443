"""Who decides about a call: the people who were asked, and what became of each."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ayes.projections.views.call import AskedQuorum, Question, RecordedVote
from ayes.schemas.people import is_excluded, plain
from ayes.schemas.quorums import is_among, is_plain

_SAID: Final = {
    "approve": "approved",
    "deny": "denied",
    "answer": "answered",
    "break_glass": "broke the glass",
}


class Voter(NamedTuple):
    """A person, or a pattern of names."""

    name: str
    mark: Literal["voted", "excluded", ""] = ""
    #: What they said, or why they are excluded.
    note: str = ""


class Seats(NamedTuple):
    """People of whom some must agree."""

    votes_needed: int
    voters: tuple[Voter, ...]

    @property
    def is_open_to_all(self) -> bool:
        return any(voter.name == "*" for voter in self.voters)


def seats(question: Question, ballots: Sequence[RecordedVote], requester: str) -> tuple[Seats, ...]:
    """Each quorum, with the people who fill it; then those who were asked as well."""
    own = AskedQuorum(question.voters, question.votes_needed)
    return tuple(
        Seats(one.votes_needed, _voters(one.voters, question, ballots, requester))
        for one in (own, *question.also)
    )


def still_to_vote(seats: Sequence[Seats], visitor: str) -> tuple[str, ...]:
    """The others who may vote, by name."""
    each = (voter for one in seats for voter in one.voters if not voter.mark)
    names = (one.name for one in each if is_plain(one.name) and one.name != visitor)
    return tuple(dict.fromkeys(names))


def _voters(
    names: Sequence[str], question: Question, ballots: Sequence[RecordedVote], requester: str
) -> tuple[Voter, ...]:
    said = {one.on_behalf_of or one.reviewer: one for one in ballots if not one.void}
    # Those who voted through a pattern are named beside it.
    joined = [one for one in said if one not in names and is_among(one, names)]
    return tuple(_voter(name, said.get(name), question, requester) for name in (*names, *joined))


def _voter(name: str, ballot: RecordedVote | None, question: Question, requester: str) -> Voter:
    if ballot is not None:
        proxy = f" by {ballot.reviewer}" if ballot.on_behalf_of else ""
        return Voter(name, "voted", f"{_SAID[ballot.verdict]}{proxy}")
    if is_excluded(name, question.excluded):
        why = "asked for it" if plain(name) == plain(requester) else "stands behind the request"
        return Voter(name, "excluded", why)
    return Voter(name)
