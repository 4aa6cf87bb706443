"""The sets of patterns that some tool matches, held against every short name."""

import itertools
import random
from fnmatch import fnmatchcase

import pytest

from ayes.ops.policy_diff.tools import Region, TooMany, matches, regions
from ayes.schemas.quorums import is_plain

CASES = [
    (["*"], [("a", {"*"})]),
    (["refund"], [("refund", None), ("a", set())]),
    (["a", "*"], [("a", None), ("b", {"*"})]),
    (["book_*", "*_all"], [("a", set()), ("_all", {"*_all"}), ("book_", {"book_*"}),
                           ("book_all", {"book_*", "*_all"})]),
    (["?", "a"], [("a", None), ("b", {"?"}), ("aa", set())]),
]  # fmt: skip


@pytest.mark.parametrize(("patterns", "wanted"), CASES)
def test_each_set_of_patterns_has_its_shortest_tool(patterns, wanted):
    """A name alone; the others by the patterns that they match."""
    found = {(one.example, one.patterns) for one in regions(patterns)}
    assert found == {
        (example, None if matched is None else frozenset(matched)) for example, matched in wanted
    }


def test_every_short_name_is_in_one_region():
    """And each region's example is the shortest that matches its patterns and no others."""
    draw = random.Random(1)
    names = ["".join(one) for size in (1, 2, 3, 4) for one in itertools.product("abc", repeat=size)]
    for _ in range(60):
        patterns = ["".join(draw.choices("ab*?", k=draw.randint(1, 4))) for _ in range(3)]
        found = regions(patterns)
        by_patterns = {one.patterns: one.example for one in found if one.patterns is not None}
        plain = {one for one in patterns if is_plain(one)}
        assert plain == {one.example for one in found if one.patterns is None}
        shortest = {}
        for name in names:
            if name not in plain:
                wild = (one for one in patterns if one not in plain and fnmatchcase(name, one))
                shortest.setdefault(frozenset(wild), name)
        assert shortest.keys() <= by_patterns.keys(), patterns
        for matched, name in shortest.items():
            assert len(by_patterns[matched]) == len(name), (patterns, matched)


def test_a_rule_is_about_a_region_or_not():
    """As the patterns say, or the name alone."""
    named, others = Region("pay", None), Region("pa", frozenset({"p*"}))
    assert matches(named, ["p*"])
    assert not matches(named, ["pay_*"])
    assert matches(others, ["x", "p*"])
    assert not matches(others, ["*"])


def test_too_many_sets_are_refused():
    """Before they take all memory."""
    with pytest.raises(TooMany):
        regions([f"*{one}*{other}*" for one in "abcdefg" for other in "hijklmn"])
