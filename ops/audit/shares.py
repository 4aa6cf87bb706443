"""Exact statements about shares, with nothing but the standard library.

The upper bound is that of Clopper and Pearson: if the true share were higher, so few cases would
come with a probability of at most one minus the confidence, whatever the number of cases. It is
one-sided, since nobody is harmed by a share that is lower.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

#: Halvings of an interval, after which its ends differ by less than a double can hold.
_HALVINGS: Final = 60
#: Terms of a sum that are this much smaller than its first one add nothing.
_NEGLIGIBLE: Final = 1e-18


@lru_cache(maxsize=65536)
def upper_bound(cases: int, of: int, confidence: float) -> float:
    """The upper confidence limit of a binomial proportion (Clopper and Pearson, one-sided).

    Args:
        cases: the successes.
        of: the trials.
        confidence: the probability with which the true proportion is not above the limit.
    """
    if cases >= of:
        return 1.0
    low, high = cases / of, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _at_most(cases, of, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(cases: int, of: int, share: float) -> float:
    """The binomial distribution function: the probability of at most `cases` successes."""
    if share >= 1:
        return 0.0
    term = first = math.exp(
        math.lgamma(of + 1)
        - math.lgamma(cases + 1)
        - math.lgamma(of - cases + 1)
        + cases * math.log(share)
        + (of - cases) * math.log1p(-share)
    )
    odds = (1 - share) / share
    total = 0.0
    # The share is above that of the cases, so each term is smaller than the one before.
    for number in range(cases, -1, -1):
        total += term
        term *= number / (of - number + 1) * odds
        if term <= first * _NEGLIGIBLE:
            break
    return min(total, 1.0)


def fewest(share: float, confidence: float) -> int:
    """The fewest cases of which none may be bad for an upper bound of at most this share."""
    found = max(1, math.ceil(math.log(1 - confidence) / math.log1p(-share)))
    return found if upper_bound(0, found, confidence) <= share else found + 1


def rising(values: Sequence[float]) -> float:
    """The probability that values in a random order rise as often as these (Mann and Kendall's
    test). Equal values count as if they fell, so it is never too low.
    """
    pairs = sum(
        later > earlier for place, earlier in enumerate(values) for later in values[place + 1 :]
    )
    return sum(_orders(len(values))[pairs:]) / math.factorial(len(values))


@lru_cache(maxsize=64)
def _orders(length: int) -> tuple[int, ...]:
    """By the number of their rising pairs, how many permutations of this length there are."""
    counts = [1]
    for size in range(2, length + 1):
        grown = [0] * (len(counts) + size - 1)
        for pairs, orders in enumerate(counts):
            for more in range(size):
                grown[pairs + more] += orders
        counts = grown
    return tuple(counts)
