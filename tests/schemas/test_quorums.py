"""Quorums: whether the people who agree are enough, against every way of seating them."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ayes.schemas.events import Quorum
from ayes.schemas.quorums import everybody, filled, is_among, is_plain, lacking, met, needed, seated

PEOPLE = ["ana", "ben", "cy", "dee", "ops-1"]
VOTERS = st.lists(st.sampled_from([*PEOPLE, "*", "ops-*", "?e?"]), min_size=1, max_size=3).map(
    tuple
)
QUORUMS = st.lists(st.builds(Quorum, VOTERS, st.integers(1, 3)), max_size=3)
NAMES = st.lists(st.sampled_from(PEOPLE), max_size=6)


def most(quorums, people, anywhere=()):
    """How many seats can be filled, by trying every way of giving each person a seat or none."""
    people = list(dict.fromkeys(people))

    def best(index, left):
        if index == len(people):
            return 0
        ways = [best(index + 1, left)]
        for number, quorum in enumerate(quorums):
            may = people[index] in anywhere or any(
                fnmatchcase(people[index], one) for one in quorum.voters
            )
            if may and left[number]:
                fewer = (*left[:number], left[number] - 1, *left[number + 1 :])
                ways.append(1 + best(index + 1, fewer))
        return max(ways)

    return best(0, tuple(quorum.votes_needed for quorum in quorums))


@given(QUORUMS, NAMES, st.sets(st.sampled_from(PEOPLE)))
def test_as_many_seats_are_filled_as_can_be(quorums, people, anywhere):
    """However people and quorums overlap, nobody better could have seated them (B39)."""
    assert filled(quorums, people, anywhere) == most(quorums, people, anywhere)
    assert met(quorums, people, anywhere) == (filled(quorums, people, anywhere) == needed(quorums))


@given(QUORUMS, NAMES, st.sets(st.sampled_from(PEOPLE)))
def test_everybody_sits_once_and_where_they_may(quorums, people, anywhere):
    """Nobody has two seats, and no quorum more people than it asks for (B39)."""
    seats = seated(quorums, people, anywhere)
    sitting = [person for seat in seats for person in seat]
    assert len(sitting) == len(set(sitting))
    assert set(sitting) <= set(people)
    for quorum, seat in zip(quorums, seats, strict=True):
        assert len(seat) <= quorum.votes_needed
        assert all(person in anywhere or is_among(person, quorum.voters) for person in seat)


@given(QUORUMS, NAMES, st.permutations(PEOPLE))
def test_who_comes_first_does_not_matter(quorums, people, order):
    """The same people are as many, in whatever order they came, and however often each is named."""
    ordered = sorted(people, key=order.index)
    assert (
        filled(quorums, people) == filled(quorums, ordered) == filled(quorums, [*people, *people])
    )


@given(QUORUMS, NAMES, st.sampled_from(PEOPLE))
def test_one_more_never_makes_it_fewer(quorums, people, one):
    """Whoever joins takes nobody's seat away for good."""
    assert filled(quorums, people) <= filled(quorums, [*people, one]) <= filled(quorums, people) + 1


PEER = Quorum(("ana", "ben", "sam"))
SECURITY = Quorum(("sam",), name="@security")


@pytest.mark.parametrize(
    ("people", "enough"),
    [
        ([], False),
        (["sam"], False),  # in both, and still one person
        (["sam", "sam"], False),
        (["ana", "ben"], False),
        (["ana", "sam"], True),
        (["sam", "ana"], True),  # sat as a peer first, and moves
        (["eve", "sam"], False),
    ],
)
def test_who_is_in_two_groups_counts_once(people, enough):
    """One peer and one of security are two people, also where somebody is both (B39)."""
    assert met((PEER, SECURITY), people) is enough


def test_who_counts_anywhere_fills_what_is_lacking():
    """Somebody who was asked as well sits on any quorum, once."""
    assert met((PEER, SECURITY), ["ana", "eve"], {"eve"})
    assert met((PEER, SECURITY), ["sam", "eve"], {"eve"})
    assert not met((PEER, SECURITY), ["eve"], {"eve"})
    assert met((PEER, SECURITY), ["eve", "fay"], {"eve", "fay"})
    assert not met((PEER, SECURITY), ["ana"], {"eve"})


def test_nothing_needed_is_met():
    """Without quorums nobody is needed, and nobody has a seat."""
    assert (needed(()), filled((), ["ana"]), met((), ["ana"])) == (0, 0, True)


@pytest.mark.parametrize(
    ("quorums", "people"),
    [
        ((), ()),
        ((PEER, SECURITY), ("ana", "ben", "sam")),
        ((PEER, Quorum(("ops-*",))), None),
        ((Quorum(("an?",)),), None),
    ],
)
def test_everybody_is_known_only_without_patterns(quorums, people):
    """A pattern may mean somebody whom nobody has heard of."""
    assert everybody(quorums) == people


@pytest.mark.parametrize(
    ("quorums", "people", "anywhere", "lacks"),
    [
        ((), [], (), 0),
        ((PEER, SECURITY), ["ana", "sam"], (), 0),
        ((PEER, SECURITY), ["sam"], (), 1),
        ((PEER, SECURITY), [], (), 2),
        # Strangers may come for a pattern, and for nothing else.
        ((Quorum(("*",), 3), SECURITY), [], (), 1),
        ((Quorum(("*",), 3), SECURITY), ["sam"], (), 0),
        ((Quorum(("*",), 3), SECURITY), ["eve"], ("eve",), 0),
        ((Quorum(("ana", "ops-*"), 3),), [], (), 0),
        ((Quorum(("ana", "ben"), 3),), ["ana", "ben"], (), 1),
    ],
)
def test_seats_that_stay_empty_for_ever(quorums, people, anywhere, lacks):
    """What can never be agreed on is known before anybody is asked."""
    assert lacking(quorums, people, anywhere) == lacks


@given(QUORUMS, NAMES)
def test_what_is_met_lacks_nothing(quorums, people):
    """Nothing is called hopeless that these people can settle; lacking is what is not filled."""
    if met(quorums, people):
        assert lacking(quorums, people) == 0
    if everybody(quorums) is not None:
        assert lacking(quorums, people) == needed(quorums) - filled(quorums, people)


@pytest.mark.parametrize(
    ("person", "voters", "among"),
    [
        ("ana", ("ana",), True),
        ("ana", ("Ana",), False),
        ("ana", ("a*",), True),
        ("ana", ("a?",), False),
        ("ana", (), False),
        ("ana", ("ben", "*"), True),
    ],
)
def test_names_and_patterns(person, voters, among):
    """A name is that name, `*` any text, `?` any character; case counts."""
    assert is_among(person, voters) is among
    assert all(is_plain(voter) is not any(sign in voter for sign in "*?") for voter in voters)
