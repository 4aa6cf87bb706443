"""Quorums: whether the people who agree are enough.

Several quorums must all be met, and nobody counts in two of them: one peer and one of security are
two people, also where somebody is both. So it is not enough to count each by itself. People are
given seats, each person at most one, and as many as can be given (a maximum bipartite matching, by
augmenting paths).
"""

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from ayes.schemas.events import Quorum


def seated(
    quorums: Sequence[Quorum], people: Iterable[str], anywhere: Collection[str] = ()
) -> list[list[str]]:
    """Who sits on which quorum, as many as can; those who count `anywhere` may sit on any."""
    seats: list[list[str]] = [[] for _ in quorums]

    def seat(person: str, tried: set[int]) -> bool:
        for index, quorum in enumerate(quorums):
            if index in tried or not (person in anywhere or is_among(person, quorum.voters)):
                continue
            tried.add(index)
            if len(seats[index]) < quorum.votes_needed:
                seats[index].append(person)
                return True
            for other in tuple(seats[index]):
                if seat(other, tried):  # who sat here sits elsewhere now
                    seats[index].remove(other)
                    seats[index].append(person)
                    return True
        return False

    for person in dict.fromkeys(people):
        seat(person, set())
    return seats


def filled(quorums: Sequence[Quorum], people: Iterable[str], anywhere: Collection[str] = ()) -> int:
    """How many seats these people can fill."""
    return sum(map(len, seated(quorums, people, anywhere)))


def lacking(
    quorums: Sequence[Quorum], people: Iterable[str], anywhere: Collection[str] = ()
) -> int:
    """The seats that stay empty if only these people vote, and those whom a pattern may match."""
    closed = [quorum for quorum in quorums if everybody((quorum,)) is not None]
    return needed(closed) - filled(closed, people, anywhere)


def needed(quorums: Iterable[Quorum]) -> int:
    """How many people it takes."""
    return sum(quorum.votes_needed for quorum in quorums)


def met(quorums: Sequence[Quorum], people: Iterable[str], anywhere: Collection[str] = ()) -> bool:
    """Are these people enough?"""
    return filled(quorums, people, anywhere) == needed(quorums)


def everybody(quorums: Iterable[Quorum]) -> tuple[str, ...] | None:
    """All voters by name; None if there is a pattern, which may match unknown people."""
    names = dict.fromkeys(voter for quorum in quorums for voter in quorum.voters)
    return tuple(names) if all(map(is_plain, names)) else None


def is_among(person: str, voters: Iterable[str]) -> bool:
    """Is this person one of these names, or do their patterns match?"""
    return any(person == voter or fnmatchcase(person, voter) for voter in voters)


#: How voters begin that are groups of the provider at which people sign in.
GROUP: Final = "group:"
#: How voters begin of which a stage, when it begins, asks who is on call then.
ON_CALL: Final = "oncall:"


def is_plain(pattern: str) -> bool:
    """Is it one name: without wildcards, and not of those that stand for others?"""
    return "*" not in pattern and "?" not in pattern and not is_open(pattern)


def is_open(voter: str) -> bool:
    """Does it stand for people whom nobody can name beforehand: a group, or who is on call?"""
    return voter.startswith((GROUP, ON_CALL))


def is_group(voter: str) -> bool:
    """Is it a group of the provider?"""
    return voter.startswith(GROUP)
