"""The pauses between tries."""

from itertools import islice

import pytest

from ayes.schemas.backoff import Backoff


@pytest.mark.parametrize(
    ("backoff", "pauses"),
    [
        (Backoff(1, 5), [1, 2, 4, 5, 5]),
        (Backoff(0.5), [0.5] * 5),
        (Backoff(0), [0] * 5),
        (Backoff(4, 1000, growth=1.5), [4, 6, 9, 13.5, 20.25]),
    ],
)
def test_pauses_grow_up_to_the_longest(backoff: Backoff, pauses: list[float]):
    """Each is longer than the one before by the same factor; without a longest, all are alike."""
    assert list(islice(backoff.pauses(), 5)) == pauses
    assert [backoff.pause_s(tries) for tries in range(1, 6)] == pauses


def test_no_number_of_tries_is_too_high():
    """The power does not overflow (it would after a thousand tries)."""
    assert Backoff(0.1, 30).pause_s(10**6) == 30


def test_pauses_vary_by_their_share_only():
    """Not all programs try again at the same moment, and none before the shortest pause."""
    found = list(islice(Backoff(8, jitter=0.25).pauses(), 100))
    assert len(set(found)) > 1
    assert min(found) >= 6
    assert max(found) <= 8
