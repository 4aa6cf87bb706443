"""The candidate that fits the older decisions about a tool best."""

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import Final

from msgspec import Struct

from ayes.ops.audit.call_properties import CallSet, Facts
from ayes.ops.audit.rule_candidates import Number, NumberBound, OneOf, Property, RuleCandidate
from ayes.ops.audit.shares import upper_bound

#: Of the properties and values that are tried together.
_MAX_PARTS: Final = 40
#: Of the bounds of a number that are tried with each of them.
_MAX_BOUNDS: Final = 24
#: A further property must spare as many questions as these many wrong answers would cost.
_PART_COSTS: Final = 2.0


class Demands(Struct, frozen=True):
    """What a candidate must reach on the older calls, and how many it must have of the newer."""

    at_most: float
    confidence: float
    fewest_older: int
    fewest_newer: int


def best(
    facts: Facts,
    fresh: CallSet,
    demands: Demands,
    banned: Collection[RuleCandidate] = (),
) -> tuple[float, RuleCandidate] | None:
    """The candidate that spares the most questions, less what its wrong answers cost; and its
    score. None: none meets the demands.

    A wrong answer costs as many questions as there may be for one wrong answer at most. So it pays
    to go as far as people approved, and no further.

    Args:
        fresh: the calls that no other candidate covers.
        banned: those that are not wanted.
    """
    search = _Search(facts, fresh, demands, banned)
    parts = search.parts()
    contexts = [((), facts.older | facts.newer), *(((one,), calls) for one, calls in parts)]
    bounds = search.bounds(contexts)
    pairs = (
        ((one, other), calls & others)
        for (one, calls), (other, others) in combinations(parts, 2)
        if one.where != other.where
    )
    for context, calls in (*contexts, *pairs):
        search.take(context, calls, bounds)
    if search.best is not None:
        search.refine()
    return None if search.best is None else (search.score, search.best)


class _Search:
    def __init__(
        self, facts: Facts, fresh: CallSet, demands: Demands, banned: Collection[RuleCandidate]
    ) -> None:
        self.facts, self.demands, self._banned = facts, demands, banned
        self._good = facts.older & fresh & ~facts.against
        self._bad = facts.older & fresh & facts.against
        self._cost = 1 / demands.at_most
        self.best: RuleCandidate | None = None
        self.score = 0.0

    def _worth(self, calls: CallSet, parts: int) -> float:
        wrong = (calls & self._bad).bit_count() + _PART_COSTS * parts
        return (calls & self._good).bit_count() - self._cost * wrong

    def take(
        self,
        context: tuple[OneOf, ...],
        calls: CallSet,
        bounds: Sequence[tuple[NumberBound, CallSet]],
    ) -> None:
        """Try a context alone, and with each bound."""
        most = (calls & self._good).bit_count() - self._cost * _PART_COSTS * len(context)
        if most < self.score:
            return
        tool = self.facts.tool
        for bound, within in bounds:
            if bound.is_most:
                self._try(RuleCandidate(tool, context, bound), calls & within)
        self._try(RuleCandidate(tool, context), calls)
        for bound, within in bounds:
            if not bound.is_most:
                self._try(RuleCandidate(tool, context, bound), calls & within)

    def _try(self, candidate: RuleCandidate, calls: CallSet) -> None:
        score = self._worth(calls, len(candidate.parts))
        # Of two that are as good the first counts: one with a highest number reaches less far.
        if score <= self.score or candidate in self._banned:
            return
        demands, facts = self.demands, self.facts
        older = calls & facts.older
        against = (older & facts.against).bit_count()
        if (
            older.bit_count() >= demands.fewest_older
            and (calls & self._good).bit_count() >= demands.fewest_older
            and (calls & facts.newer).bit_count() >= demands.fewest_newer
            and upper_bound(against, older.bit_count(), demands.confidence) <= demands.at_most
        ):
            self.best, self.score = candidate, score

    def parts(self) -> list[tuple[OneOf, CallSet]]:
        """The properties with one value, and with those of several that were denied the least."""
        found = []
        for where, sets in self.facts.values.items():
            values = sorted(
                (value for value, calls in sets.items() if calls & (self._good | self._bad)),
                key=lambda value, sets=sets: (self._denied(sets[value]), str(value)),  # type: ignore[misc]
            )
            each = [(value,) for value in values]
            several = [tuple(values[:length]) for length in range(2, len(values) + 1)]
            found += [OneOf(where, tuple(sorted(one, key=str))) for one in (*each, *several)]
        worth = [
            (one, calls)
            for one in found
            if ((calls := self.facts.calls_of(one)) & self._good).bit_count()
            >= self.demands.fewest_older
            and self.facts.older & ~calls
        ]
        worth.sort(key=lambda one: -self._worth(one[1], 1))
        return worth[:_MAX_PARTS]

    def _denied(self, calls: CallSet) -> float:
        bad, good = (calls & self._bad).bit_count(), (calls & self._good).bit_count()
        return bad / (bad + good)

    def bounds(
        self, contexts: Iterable[tuple[tuple[OneOf, ...], CallSet]]
    ) -> list[tuple[NumberBound, CallSet]]:
        """Bounds that divide the calls of a context best, and some in between."""
        found: dict[NumberBound, None] = {}
        older = self.facts.flags(self.facts.older)
        for where, numbers in self.facts.numbers.items():
            old = [value for value, place in numbers if older[place]]
            if not old:
                continue
            steps = [old[len(old) * step // 8] for step in range(1, 8)]
            for is_most in (True, False):
                edge = old[-1] if is_most else old[0]
                split = (self._split(where, calls, is_most=is_most) for _, calls in contexts)
                values = dict.fromkeys((edge, *(one for one in split if one is not None), *steps))
                for value in list(values)[:_MAX_BOUNDS]:
                    found[NumberBound(where, is_most, value)] = None
        return [(one, self.facts.calls_of(one)) for one in found]

    def _split(self, where: Property, calls: CallSet, *, is_most: bool) -> Number | None:
        """The value up to which, or from which, the decisions are worth the most."""
        numbers = self.facts.numbers[where]
        good, bad = (self.facts.flags(calls & one) for one in (self._good, self._bad))
        worth: dict[Number, float] = {}
        sum_ = 0.0
        for value, place in numbers if is_most else reversed(numbers):
            sum_ += good[place] - self._cost * bad[place]
            worth[value] = sum_
        return max(worth, key=worth.__getitem__, default=None)

    def refine(self) -> None:
        """Look for the best bound of the properties that were found."""
        assert self.best is not None
        context = self.best.parts
        calls = self.facts.covered(RuleCandidate(self.facts.tool, context))
        for where in self.facts.numbers:
            for is_most in (True, False):
                if (value := self._split(where, calls, is_most=is_most)) is not None:
                    bound = NumberBound(where, is_most, value)
                    candidate = RuleCandidate(self.facts.tool, context, bound)
                    self._try(candidate, calls & self.facts.calls_of(bound))
