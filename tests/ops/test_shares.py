"""Bounds of shares, and whether numbers rise, beside SciPy's."""

import math
import random

import pytest
from scipy.stats import binomtest, kendalltau

from ayes.ops.audit.shares import fewest, rising, upper_bound

NUMBERS = (1, 2, 3, 10, 59, 100, 412, 2_000, 50_000)


@pytest.mark.parametrize("of", NUMBERS)
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99, 0.9975])
def test_the_bound_is_that_of_clopper_and_pearson(of, confidence):
    """One-sided; and of half the doubt, the upper end of the two-sided interval."""
    for cases in {0, 1, 2, 5, of // 100, of // 10, of // 2, of - 1, of}:
        if cases > of:
            continue
        test = binomtest(cases, of, alternative="less")
        wanted = test.proportion_ci(confidence, method="exact").high
        assert upper_bound(cases, of, confidence) == pytest.approx(wanted, rel=1e-9)
        both = binomtest(cases, of).proportion_ci(confidence, method="exact").high
        assert upper_bound(cases, of, (1 + confidence) / 2) == pytest.approx(both, rel=1e-9)


def test_the_example_of_the_docs():
    """Of 412 none: at most 0.73 %, and with half the doubt 0.9 %."""
    assert upper_bound(0, 412, 0.95) == pytest.approx(1 - 0.05 ** (1 / 412))
    assert round(upper_bound(0, 412, 0.975), 3) == 0.009


def test_a_higher_confidence_and_more_cases_have_a_higher_bound():
    """And more that are good a lower one."""
    assert upper_bound(2, 100, 0.95) < upper_bound(2, 100, 0.99) < upper_bound(3, 100, 0.99)
    assert upper_bound(2, 200, 0.95) < upper_bound(2, 100, 0.95)


@pytest.mark.parametrize("share", [0.001, 0.009, 0.01, 0.05, 0.3, 0.5])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99, 0.9999])
def test_the_fewest_cases_are_enough_and_one_less_is_not(share, confidence):
    """With none bad among them."""
    found = fewest(share, confidence)
    assert upper_bound(0, found, confidence) <= share
    assert found == 1 or upper_bound(0, found - 1, confidence) > share


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 12, 26])
def test_rising_is_kendalls_test_of_numbers_that_differ(length):
    """Exact, however few they are."""
    chance = random.Random(length)
    series = [[chance.random() for _ in range(length)] for _ in range(20)]
    for values in (*series, sorted(series[0]), sorted(series[0], reverse=True)):
        wanted = kendalltau(range(length), values, alternative="greater", method="exact").pvalue
        assert rising(values) == pytest.approx(wanted, rel=1e-9)


def test_numbers_that_stay_do_not_rise():
    """Equal ones count as if they fell."""
    assert rising([5, 5, 5, 5, 5]) == 1
    assert rising([1, 2, 3, 4]) == pytest.approx(1 / math.factorial(4))
    assert rising([1, 2, 2, 3]) > 1 / math.factorial(4)
