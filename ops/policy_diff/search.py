"""The smallest call that a formula allows: the fewest arguments, then the least said besides, then
the shortest and smallest values.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any, Final

import z3

from ayes.ops.audit.backtest import CandidateCall
from ayes.ops.policy_diff import values as v
from ayes.ops.policy_diff.terms import TOKEN, AnyCall, ArgumentPlace
from ayes.ops.policy_diff.values import Formula
from ayes.schemas.tools import CLASSES

#: Of the solver, for one question and for all of a comparison: the same on every machine, about one
#: second and twenty.
_STEPS: Final = 2_000_000
_STEPS_TOGETHER: Final = 40_000_000
#: If it counts no steps where it should: nobody waits for it for ever.
_LAST_RESORT_MS: Final = 60_000
#: Calls that are tried after the first turned out not to be one.
_TRIES: Final = 6
#: What a call says of itself if nothing depends on it.
USUAL: Final = {"agent": "", "requester": "anybody", "workspace": "default", "thread": "t"}
_USUAL_CLASS: Final = CLASSES.index("irreversible")
#: A requester who cannot be a reviewer.
_UNMAPPED: Final = "?"
_BEYOND: Final = 2**64
_ESCAPE: Final = re.compile(r"\\u\{([0-9a-fA-F]+)\}")
#: The kinds of values, the plainest first; before them whole numbers that are small.
_IN_ORDER: Final = (*(v.TEXT, v.BOOL, v.NULL, v.DOUBLE, v.INT, v.UINT, v.TABLE, v.LIST),)
_SIMPLE: Final = z3.Star(z3.Range("a", "z"))
_VISIBLE: Final = z3.Star(z3.Range("!", "~"))
_PRINTABLE: Final = z3.Star(z3.Range(" ", "~"))


class GaveUp(Exception):
    """The solver found no answer within its steps."""


class Steps:
    """The steps that the solver may take together."""

    def __init__(self) -> None:
        self._left = _STEPS_TOGETHER
        self._count = 0
        self.check(z3.Solver())
        self._left = _STEPS_TOGETHER

    def check(self, solver: Any) -> bool:
        """Whether what it was told is possible.

        Raises:
            GaveUp: it did not find out.
        """
        if self._left <= 0:
            raise GaveUp
        solver.set("rlimit", min(_STEPS, self._left))
        solver.set("timeout", _LAST_RESORT_MS)
        try:
            found = solver.check()
        except z3.Z3Exception as problem:
            raise GaveUp from problem
        # The solver counts the steps of all that it was ever asked.
        count = int(solver.statistics().get_key_value("rlimit count"))
        self._left -= count - self._count
        self._count = count
        if found == z3.unknown:
            raise GaveUp
        return bool(found == z3.sat)


class Requesters:
    """Who asks, where the two policies differ in whom they know: somebody who could be a reviewer,
    nobody, or one of these accounts.
    """

    def __init__(self, accounts: Iterable[str]) -> None:
        self._accounts = tuple(accounts)
        self.who = z3.Int("who")

    @property
    def fact(self) -> Formula:
        return z3.And(self.who >= 0, self.who < len(self._accounts) + 2)

    def among(self, accounts: Iterable[str]) -> Formula:
        """Whether a policy that lists these accounts knows them."""
        places = [0, *(self._accounts.index(one) + 2 for one in accounts)]
        return v.either(self.who == place for place in places)

    def named(self, who: int) -> str:
        """A name of such a requester."""
        return (USUAL["requester"], _UNMAPPED, *self._accounts)[who]


class Search:
    """The calls of one region that a formula allows."""

    def __init__(
        self, call: AnyCall, example: str, requesters: Requesters | None, steps: Steps
    ) -> None:
        """Args:
        example: the tool, if nothing depends on it.
        """
        self._call, self._example, self._requesters = call, example, requesters
        self._steps = steps
        self._assumed: list[Formula] = []
        self._made: list[Formula] = []

    def assume(self, *formulas: Formula) -> None:
        self._assumed += formulas

    def is_possible(self, *more: Formula) -> bool:
        """Whether there is such a call.

        Raises:
            GaveUp: nobody can say.
        """
        return self._steps.check(self._solver(*more))

    def _solver(self, *more: Formula) -> Any:
        # A new one each time: what is added to one that has answered is worked on when it is added,
        # and that is not counted in steps.
        solver = z3.Solver()
        solver.add(*self._assumed, *more)
        return solver

    def size(self) -> tuple[int, int]:
        """The numbers of its arguments and of what is said besides, the least that are possible,
        which are assumed from now on.
        """
        return self._fewest(self._arguments()), self._fewest(self._besides())

    def calls(self) -> Iterator[CandidateCall]:
        """Calls that it allows, the smallest first. After `size`."""
        for _ in range(_TRIES):
            if not self.is_possible():
                return
            before, self._made = tuple(self._assumed), []
            yield self._smallest()
            self._assumed = [*before, z3.Not(z3.And(*self._made))]

    # ------------------------------------------------------------------------------- what is small

    def _arguments(self) -> list[Formula]:
        """What is in the arguments."""
        places = (one.value.is_said for one in self._call.args.all[1:])
        return [*places, *(v.both(one.when, one.said) for one in self._call.memberships)]

    def _besides(self) -> list[Formula]:
        """What is unusual about the call besides."""
        call = self._call
        found = [one.value.is_said for one in call.labels.all[1:]]
        found += [text != v.text(USUAL[name]) for name, text in call.texts.items()]
        found += [call.tool_class != _USUAL_CLASS, call.is_beyond]
        return found + ([self._requesters.who != 0] if self._requesters else [])

    def _fewest(self, formulas: list[Formula]) -> int:
        low, high = 0, len(formulas)
        while low < high:
            half = (low + high) // 2
            if self.is_possible(z3.AtMost(*formulas, half)):
                high = half
            else:
                low = half + 1
        if formulas:
            self.assume(z3.AtMost(*formulas, low))
        return low

    def _decide(self, formula: Formula) -> None:
        self._made.append(formula)
        self.assume(formula)

    def _prefer(self, *formulas: Formula) -> bool:
        """Decide for the first of these that is possible; False if none is."""
        for one in formulas:
            if self.is_possible(one):
                self._decide(one)
                return True
        return False

    def _smallest(self) -> CandidateCall:
        if self._call.inexact:  # of plain texts more is known, such as their size in bytes
            places = (*self._call.args.all, *self._call.labels.all)
            texts = (one.value.values.get(v.TEXT) for one in places)
            self._prefer(v.both(*(z3.InRe(one, _PRINTABLE) for one in texts if one is not None)))
        for one in (*self._besides(), *self._arguments()):
            self._prefer(v.no(one), one)
        for place in (*self._call.args.all[1:], *self._call.labels.all[1:]):
            if not self.is_possible(v.no(place.value.is_said)):
                self._settle(place)
        for name, text in self._call.texts.items():
            self._settle_text(text, USUAL[name])
        if not z3.is_string_value(self._call.tool):
            self._settle_text(self._call.tool, self._example)
        if not self._prefer(self._call.tool_class == _USUAL_CLASS):
            self._prefer(*(self._call.tool_class == one for one in range(len(CLASSES))))
        if not self._steps.check(solver := self._solver()):
            raise GaveUp
        return _FoundCall(solver.model()).call(self._call, self._example, self._requesters)

    def _settle(self, place: ArgumentPlace) -> None:
        """Decide the kind of a value that is there, and the value."""
        kinds = place.value.kinds
        if v.INT not in kinds or not self._prefer(v.both(kinds[v.INT], _is_small(place.value))):
            self._prefer(*(kinds[kind] for kind in _IN_ORDER if kind in kinds))
        kind = next(one for one in kinds if not self.is_possible(v.no(kinds[one])))
        value = place.value.values[kind]
        match kind:
            case v.BOOL:
                self._prefer(v.no(value), value)
            case v.INT | v.UINT:
                self._settle_number(value)
            case v.TEXT:
                self._settle_text(value, "")
            case v.DOUBLE:
                self._settle_decimal(value)
            case _:
                pass

    def _settle_number(self, number: Formula) -> None:
        size = self._least(partial(_within, number), v.HIGHEST * 2 + 1)
        self._prefer(number == size, number == -size)

    def _settle_decimal(self, number: Formula) -> None:
        """The one with the fewest digits in base 2 behind the point, and of these the smallest."""
        for digits in (0, 1, 2, 3, 4, 6, 8, 16, 32):
            whole, by = z3.FreshInt(), 2**digits
            if self.is_possible(number * by == z3.ToReal(whole), whole < 2**53, -whole < 2**53):
                self.assume(number * by == z3.ToReal(whole))
                size = self._least(partial(_within, whole), 2**53)
                for one in (Fraction(size, by), Fraction(-size, by)):
                    exact = z3.RealVal(f"{one.numerator}/{one.denominator}")
                    if self._prefer(number == exact):
                        return

    def _settle_text(self, text: Formula, usual: str) -> None:
        if self._prefer(text == v.text(usual)):
            return
        length = self._least(lambda most: z3.Length(text) <= most, 2**16)
        self.assume(z3.Length(text) == length)
        for kind in (_SIMPLE, TOKEN, _VISIBLE, _PRINTABLE):
            if self.is_possible(z3.InRe(text, kind)):
                self.assume(z3.InRe(text, kind))
                break
        if self._steps.check(solver := self._solver()):
            self._decide(text == solver.model().eval(text, model_completion=True))

    def _least(self, at_most: Callable[[int], Formula], limit: int) -> int:
        """The least number for which this is possible."""
        high = 0
        while high < limit and not self.is_possible(at_most(high)):
            high = max(1, high * 2)
        low = high // 2 + 1 if high > 1 else high
        while low < high:
            half = (low + high) // 2
            if self.is_possible(at_most(half)):
                high = half
            else:
                low = half + 1
        return high


class _FoundCall:
    """A call as the solver found it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def call(self, call: AnyCall, example: str, requesters: Requesters | None) -> CandidateCall:
        texts = USUAL | {name: self._text(text) for name, text in call.texts.items()}
        if requesters and (who := self._number(requesters.who)):
            texts["requester"] = requesters.named(who)
        arguments = self._json(call, call.args)
        if self._is(call.is_beyond):
            arguments |= {next(one for one in _names() if one not in arguments): _BEYOND}
        tool_class = self._number(call.tool_class)
        return CandidateCall(
            tool=example if z3.is_string_value(call.tool) else self._text(call.tool),
            arguments=json.dumps(arguments, ensure_ascii=False),
            agent=texts["agent"],
            requester=texts["requester"],
            workspace=texts["workspace"],
            thread=texts["thread"],
            labels=self._json(call, call.labels),
            tool_class=CLASSES[tool_class],
        )

    def _is(self, formula: Formula) -> bool:
        return bool(z3.is_true(self._model.eval(formula, model_completion=True)))

    def _number(self, formula: Formula) -> int:
        return int(self._model.eval(formula, model_completion=True).as_long())

    def _text(self, formula: Formula) -> str:
        spelled = self._model.eval(formula, model_completion=True).as_string()
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), spelled)
        return text.encode(errors="replace").decode()

    def _plain(self, kind: str, value: Formula) -> Any:
        match kind:
            case v.NULL:
                return None
            case v.BOOL:
                return self._is(value)
            case v.INT | v.UINT:
                return self._number(value)
            case v.TEXT:
                return self._text(value)
            case _:
                fraction = self._model.eval(value, model_completion=True)
                if z3.is_algebraic_value(fraction):
                    fraction = fraction.approx(20)
                try:
                    return float(fraction.as_fraction())
                except OverflowError:
                    return math.inf  # no JSON, so it is found to be no call

    def _json(self, call: AnyCall, place: ArgumentPlace) -> Any:
        kind = next(one for one in place.value.kinds if self._is(place.value.kinds[one]))
        if kind == v.TABLE:
            return {
                key: self._json(call, one)
                for key, one in place.below.items()
                if isinstance(key, str) and self._is(one.value.is_said)
            }
        if kind == v.LIST:
            inside = [one for key, one in place.below.items() if isinstance(key, int)]
            items = [self._json(call, one) for one in inside if self._is(one.value.is_said)]
            return items + self._members(call, place)
        return self._plain(kind, place.value.values[kind])

    def _members(self, call: AnyCall, place: ArgumentPlace) -> list[Any]:
        """The values that the list has, as far as it was asked."""
        found: dict[str, Any] = {}
        own = place.value.values[v.LIST]
        for one in call.memberships:
            is_own = one.of.eq(own) or self._is(one.of == own)
            if is_own and self._is(v.both(one.when, one.said)):
                value = self._member(one)
                found[json.dumps(value)] = value
        return list(found.values())

    def _member(self, one: v.ListQuestion) -> Any:
        match one.kind:
            case v.LIST:
                return []
            case v.TABLE:
                return {}
            case v.INT | v.UINT:
                return int(self._plain(v.DOUBLE, one.value))
            case _:
                return self._plain(one.kind, one.value)


def _within(number: Formula, most: int) -> Formula:
    return z3.And(number >= -most, number <= most)


def _is_small(value: v.Value) -> Formula:
    """Whether it is a whole number that every reader of JSON has exactly."""
    number = value.values[v.INT]
    return z3.And(number < v.EXACT, number > -v.EXACT)


def _names() -> Iterator[str]:
    number = 0
    while True:
        yield f"n{number or ''}"
        number += 1
