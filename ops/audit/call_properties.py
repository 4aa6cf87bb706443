"""What the calls of a tool have: arguments, labels and agents, without what is secret or sealed.

A set of calls is a whole number, in which each call has a bit: so a candidate is tried by a few
operations on numbers, and 10,000 calls by thousands of candidates in a second.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ayes.ops.audit.past_calls import PastCall
from ayes.ops.audit.rule_candidates import (
    Number,
    NumberBound,
    OneOf,
    Property,
    RuleCandidate,
    Value,
    has,
    key_of,
)
from ayes.schemas import strict_json
from ayes.schemas.conditions import literal
from ayes.schemas.ids import is_token
from ayes.schemas.redaction import REDACTED, without
from ayes.schemas.sealed import SEALED
from ayes.schemas.sealed import is_token as is_sealed

#: A set of calls.
type CallSet = int

#: A property with more values than this is a text of its own in each call, or nearly.
MAX_VALUES: Final = 12
_MAX_CHARACTERS: Final = 60
_MAX_DEPTH: Final = 4
#: Whole numbers beyond are not exact to everybody who reads the arguments.
_MOST: Final = 2**53
_DIGITS: Final = bytes.maketrans(b"01", b"\0\1")


def args_of(call: PastCall, hidden: Iterable[str] | None) -> dict[str, Any] | None:
    """The arguments of a call without what is hidden; None: nothing may be shown of them."""
    if hidden is None or call.hidden is None:
        return None
    try:
        found = strict_json.read(call.wished.arguments)
    except strict_json.BadJson:
        return None
    shown = without(found, hidden)
    return shown if isinstance(shown, dict) else None


def _properties(call: PastCall, args: dict[str, Any] | None) -> Iterator[tuple[Property, Any]]:
    """The properties of a call, and what they have."""
    wished = call.wished
    if is_token(wished.agent):
        yield Property("agent"), wished.agent
    for name, value in wished.labels.items():
        yield Property("labels", (name,)), value
    yield from _leaves(args or {}, ())


def _leaves(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[Property, Any]]:
    for name, inner in value.items():
        here = (*path, name)
        if isinstance(inner, dict) and len(here) < _MAX_DEPTH:
            yield from _leaves(inner, here)
        elif inner not in (REDACTED, SEALED) and not is_sealed(inner):
            yield Property("args", here), inner


class Facts:
    """The calls of one tool by their properties.

    Args:
        calls: in the order of their requests.
        older: whether each is one of those by which candidates are chosen.
        against: of each, whether people decided against it. It is read of the older ones only.
        beside: further calls of the tool, which say what its arguments may look like.
    """

    def __init__(
        self,
        calls: Sequence[PastCall],
        older: Sequence[bool],
        against: Sequence[bool],
        beside: Iterable[PastCall] = (),
    ) -> None:
        self.tool = calls[0].wished.tool
        self._length = len(calls)
        self.older = set_of(place for place, one in enumerate(older) if one)
        self.newer = ((1 << len(calls)) - 1) & ~self.older
        self.against = self.older & set_of(place for place, one in enumerate(against) if one)
        hidden = hidden_of((*calls, *beside))
        shown = [args_of(one, hidden) for one in calls]
        self._shapes = _Shapes([*shown, *(args_of(one, hidden) for one in beside)])
        self.values: dict[Property, dict[Value, CallSet]] = defaultdict(dict)
        self.numbers: dict[Property, list[tuple[Number, int]]] = defaultdict(list)
        for place, (call, args) in enumerate(zip(calls, shown, strict=True)):
            for where, value in _properties(call, args):
                if where.source == "args" and not self._shapes.is_plain(where.path):
                    continue
                if isinstance(value, str | bool):
                    sets = self.values[where]
                    sets[value] = sets.get(value, 0) | 1 << place
                elif isinstance(value, int | float):
                    self.numbers[where].append((value, place))
        self.values = {
            where: sets for where, sets in sorted(self.values.items()) if self._are_few(sets)
        }
        self.numbers = {where: sorted(found) for where, found in sorted(self.numbers.items())}

    def _are_few(self, sets: dict[Value, CallSet]) -> bool:
        """Whether the older calls have few values, all of them short."""
        values = [value for value, calls in sets.items() if calls & self.older]
        return len(values) <= MAX_VALUES and all(
            len(value) <= _MAX_CHARACTERS for value in values if isinstance(value, str)
        )

    def flags(self, calls: CallSet) -> bytes:
        """Of each call a 1 if it is in the set, else a 0."""
        return f"{calls:0{self._length}b}".encode()[::-1].translate(_DIGITS)

    def calls_of(self, one: OneOf | NumberBound) -> CallSet:
        """The calls that have the property."""
        if isinstance(one, OneOf):
            sets = self.values[one.where]
            return _union(sets.get(value, 0) for value in one.values)
        return set_of(
            place
            for value, place in self.numbers[one.where]
            if (value <= one.value if one.is_most else value >= one.value)
        )

    def covered(self, candidate: RuleCandidate) -> CallSet:
        """The calls that the candidate allows."""
        bound = () if candidate.bound is None else (candidate.bound,)
        found = self.older | self.newer
        for one in (*candidate.parts, *bound):
            found &= self.calls_of(one)
        return found

    def condition(self, candidate: RuleCandidate) -> str:
        """The candidate as the condition of a rule, without what the rule has keys for. Whatever
        shape of arguments was seen, it can be evaluated.
        """
        parts = [self._part(one) for one in candidate.parts if not key_of(one)]
        if (bound := candidate.bound) is not None:
            where = bound.where
            guard = self._shapes.guards(where.path)
            kinds = (
                [] if self._shapes.is_number(where.path) else [f"type({where}) in [int, double]"]
            )
            compared = f"{where} {'<=' if bound.is_most else '>='} {literal(bound.value)}"
            parts.append(" && ".join((*guard, *kinds, compared)))
        return " && ".join(parts)

    def _part(self, one: OneOf) -> str:
        where, values = one.where, [literal(value) for value in one.values]
        said = (
            f"{where} == {values[0]}" if len(values) == 1 else f"{where} in [{', '.join(values)}]"
        )
        match where.source:
            case "args":
                return " && ".join((*self._shapes.guards(where.path), said))
            case "labels":
                return f"{has('labels', where.path)} && {said}"
            case "agent":
                return said


class _Shapes:
    """What the arguments of a tool looked like."""

    def __init__(self, shown: Sequence[dict[str, Any] | None]) -> None:
        self._calls = len(shown)
        #: In how many calls there is something, and the kinds of it.
        self._present: dict[tuple[str, ...], int] = defaultdict(int)
        self._kinds: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for args in shown:
            self._look(args or {}, ())

    def _look(self, value: dict[str, Any], path: tuple[str, ...]) -> None:
        for name, inner in value.items():
            here = (*path, name)
            self._present[here] += 1
            self._kinds[here].add(_kind(inner))
            if isinstance(inner, dict) and len(here) < _MAX_DEPTH:
                self._look(inner, here)

    def is_plain(self, path: tuple[str, ...]) -> bool:
        """Whether each value around it was always a table, and it never was one, nor a number that
        no condition reads.
        """
        around = (path[:length] for length in range(1, len(path)))
        return self._kinds[path].isdisjoint({"table", "huge"}) and all(
            self._kinds[each] == {"table"} for each in around
        )

    def is_number(self, path: tuple[str, ...]) -> bool:
        return self._kinds[path] == {"number"}

    def guards(self, path: tuple[str, ...]) -> list[str]:
        """What is asked first where a value was not always there."""
        return [
            has("args", path[:length])
            for length in range(1, len(path) + 1)
            if self._present[path[:length]] < (self._present[path[: length - 1]] or self._calls)
        ]


def _kind(value: object) -> str:
    match value:
        case dict():
            return "table"
        case bool():
            return "truth"
        case int() if abs(value) > _MOST:
            return "huge"
        case int() | float():
            return "number"
        case _:
            return type(value).__name__


def hidden_of(calls: Iterable[PastCall]) -> tuple[str, ...]:
    """What any of the calls hides, where that is known."""
    return tuple(sorted({place for one in calls for place in one.hidden or ()}))


def set_of(places: Iterable[int]) -> CallSet:
    """The set of these calls. Bytes are filled one by one, whereas each change of a number is a
    copy.
    """
    found = list(places)
    bits = bytearray(max(found, default=0) // 8 + 1)
    for place in found:
        bits[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(bits, "little")


def _union(sets: Iterable[CallSet]) -> CallSet:
    found = 0
    for one in sets:
        found |= one
    return found
