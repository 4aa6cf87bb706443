"""The cost of a JSON Schema in steps, counted before it is used.

A schema of a few kilobytes can take 2^40 steps (each level refers to the next one twice), and a
small recursive one can take 2^depth steps for deep arguments. A validator cannot be interrupted, so
both are counted first (docs/decisions/0018). A step is the evaluation of one subschema at one
value; `_weight` has the additional cost of keywords.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote

from ayes.schemas import regex_cost
from ayes.schemas.drafts import Draft, draft_named
from ayes.schemas.strict_json import values_in

#: Of one value, by the subschemas that apply to the value itself.
MAX_STEPS_PER_VALUE: Final = 20_000
#: Of the arguments as a whole: below 100 ms on the machine of the decision.
MAX_STEPS: Final = 500_000
#: To locate the errors in arguments. An error costs as much as 100 steps.
MAX_STEPS_EXPLAINED: Final = 5_000
#: Of a schema: the number of its subschemas, and the weight of its patterns together.
MAX_SUBSCHEMAS: Final = 3_000
MAX_PATTERN_WEIGHT: Final = 50_000
#: Of the counting itself, which is done in Python.
_MAX_COUNTED: Final = 25_000

_SCHEMA: Final = ("not", "if", "then", "else")
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_MAPS: Final = ("dependentSchemas", "dependencies")
#: A level with one of these evaluates the subschemas for the same value again.
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_UNEVALUATED_WEIGHT: Final = 30

type _Node = dict[str, Any]


class TooMuchWork(ValueError):
    """The schema may take too many steps; the message is a sentence."""


class SchemaCost:
    """The cost of a schema.

    Args:
        schema: the parsed schema.
        draft: by whose rules it is checked.

    Raises:
        TooMuchWork: it exceeds a limit, refers to itself at the same value, or refers to another
            document, or it has a word that its draft does not know.
    """

    def __init__(self, schema: _Node, draft: Draft) -> None:
        self._root, self._draft = schema, draft
        #: Every place with the name, since a name may also occur where validators do not look, such
        #: as in a default.
        self._anchors: defaultdict[str, list[Any]] = defaultdict(list)
        for node in _schemas(*values_in(schema)):
            for key in ("$anchor", "$dynamicAnchor", draft.id_word):
                if isinstance(name := node.get(key), str):
                    self._anchors[name.removeprefix("#")].append(node)
        self._in_place: dict[int, dict[int, int]] = {}
        self._nodes: dict[int, _Node] = {}
        self._costs: dict[int, int] = {}
        self._looked_at = 0
        self._reach()
        #: The maximum of steps for a value at any place; infinite if the schema is recursive.
        self._whole = self._expanded()
        self._backtracks = any(regex_cost.backtracks(one) for one in self._patterns())

    def steps(self, value: Any) -> float:
        """The maximum of steps for these arguments; infinite if it exceeds `MAX_STEPS`."""
        most = self._whole * self._size(value)
        return most if most <= MAX_STEPS else self.counted(value)

    # ----------------------------------------------------------------------------------- the schema

    def _reach(self) -> None:
        """Visit every subschema that can be evaluated, and check the limits."""
        weight, waiting = 0, [self._root]
        while waiting:
            node = waiting.pop()
            if id(node) in self._nodes:
                continue
            self._check_words(node)
            self._nodes[id(node)] = node
            self._costs[id(node)] = _weight(node)
            if len(self._nodes) > MAX_SUBSCHEMAS:
                raise TooMuchWork(
                    f"the schema has more than {MAX_SUBSCHEMAS:,} subschemas. Make it smaller, or "
                    "split the tool."
                )
            weight += sum(map(regex_cost.weight, _patterns(node)))
            if weight > MAX_PATTERN_WEIGHT:
                raise TooMuchWork(
                    "the patterns of the schema have too many counted repetitions: their weight is "
                    f"{weight:,}, over the limit of {MAX_PATTERN_WEIGHT:,}. Use maxLength instead "
                    "of {1,1000}."
                )
            waiting += self._applied(node)
            waiting += _children(node)
        for node in list(self._nodes.values()):
            self._closure(node)

    def _check_words(self, node: _Node) -> None:
        if unread := sorted(self._draft.unread & node.keys()):
            raise TooMuchWork(
                f"the schema is one of {self._draft.name}, which does not know the word "
                f"{_cited(unread[0])}. Name the draft that has it in $schema."
            )
        if node is self._root:
            return
        word = self._draft.id_word
        # One that begins with # is an anchor, until draft-07.
        if isinstance(name := node.get(word), str) and not name.startswith("#"):
            raise TooMuchWork(
                f"a subschema has an {word}, {_cited(name)}, and only the schema itself "
                'may have one. Omit it, and refer to the place, such as "#/$defs/address".'
            )
        if isinstance(dialect := node.get("$schema"), str) and draft_named(dialect) != self._draft:
            raise TooMuchWork(
                f"a subschema has another $schema, {_cited(dialect)}, than the schema itself."
            )

    def _applied(self, node: _Node) -> Iterator[_Node]:
        """The subschemas that apply to the same value."""
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(reference := node.get(key), str):
                yield from _schemas(*self._targets(reference))
        yield from _schemas(*map(node.get, _SCHEMA))
        for key in _LISTS:
            yield from _schemas(*_list(node, key))
        for key in _MAPS:
            yield from _schemas(*_table(node, key).values())

    def _targets(self, reference: str) -> Sequence[Any]:
        base = self._root.get(self._draft.id_word)
        fragment = reference
        if isinstance(base, str) and base:
            fragment = reference.removeprefix(base.rstrip("#"))
        if fragment and not fragment.startswith("#"):
            raise TooMuchWork(
                f"the schema refers to {_cited(reference)}, but can only refer to a place in "
                'itself, such as "#/$defs/address".'
            )
        fragment = unquote(fragment[1:])
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment, ())
        found: Any = self._root
        for token in fragment.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(key)
            elif (
                isinstance(found, list)
                and key.isascii()
                and key.isdigit()
                and int(key[:9]) < len(found)
            ):
                found = found[int(key[:9])]
            else:
                return ()
        return (found,)

    def _closure(self, start: _Node) -> dict[int, int]:
        """By subschema that applies to the same value as this one: the number of times."""
        # Without recursion: a chain of references may be as long as the schema.
        under_way: set[int] = set()
        waiting = [(start, False)]
        while waiting:
            node, is_left = waiting.pop()
            if is_left:
                under_way.discard(id(node))
                self._in_place[id(node)] = self._summed(node)
            elif id(node) in under_way:
                raise TooMuchWork(
                    "the schema refers to itself at the same value, so it has no end. Refer to it "
                    "from properties or items."
                )
            elif id(node) not in self._in_place:
                under_way.add(id(node))
                waiting.append((node, True))
                waiting += [
                    (one, False) for one in self._applied(node) if id(one) not in self._in_place
                ]
        return self._in_place[id(start)]

    def _summed(self, node: _Node) -> dict[int, int]:
        times = 2 if any(key in node for key in _UNEVALUATED) else 1
        found = {id(node): 1}
        for one in self._applied(node):
            for place, number in self._in_place[id(one)].items():
                found[place] = found.get(place, 0) + times * number
            self._looked_at += len(self._in_place[id(one)])
            if self._looked_at > _MAX_COUNTED:
                raise TooMuchWork(
                    "the references of the schema lead to too many others at the same value. "
                    "Refer to fewer subschemas from allOf, anyOf, oneOf and $ref."
                )
        steps = sum(number * self._costs[place] for place, number in found.items())
        if steps > MAX_STEPS_PER_VALUE:
            raise TooMuchWork(
                f"the schema takes {steps:,} steps for a single value, with references expanded, "
                f"over the limit of {MAX_STEPS_PER_VALUE:,}. Refer to the same subschema fewer "
                "times."
            )
        return found

    def _expanded(self) -> float:
        """The weight of the schema with all references expanded; infinite if it is recursive."""
        known: dict[int, float] = {}
        looked_at, waiting = 0, [(self._root, False)]
        while waiting:
            node, is_left = waiting.pop()
            if not is_left and id(node) in known:
                continue
            inner = [
                (child, number)
                for place, number in self._in_place[id(node)].items()
                for child in _children(self._nodes[place])
            ]
            if (looked_at := looked_at + len(inner)) > _MAX_COUNTED:
                return math.inf
            if is_left:
                own = sum(
                    self._costs[place] * number
                    for place, number in self._in_place[id(node)].items()
                )
                known[id(node)] = own + sum(number * known[id(child)] for child, number in inner)
            else:
                known[id(node)] = math.inf  # and remains so if the schema refers back to it
                waiting.append((node, True))
                waiting += [(child, False) for child, _ in inner if id(child) not in known]
        return known[id(self._root)]

    def _patterns(self) -> Iterator[str]:
        for node in self._nodes.values():
            yield from _patterns(node)

    # -------------------------------------------------------------------------------- the arguments

    def _size(self, value: Any) -> float:
        values = text = 0
        for one in values_in(value):
            values += 1
            text += len(one) if isinstance(one, str) else 0
            text += sum(map(len, one)) if isinstance(one, dict) else 0
        return values + _of_text(text, backtracks=self._backtracks)

    def counted(self, value: Any) -> float:
        """A closer bound than `steps`, by a count of all evaluations, which takes longer."""
        total, counted = 0.0, 0
        waiting: list[tuple[Any, dict[int, int]]] = [(value, {id(self._root): 1})]
        while waiting:
            one, applied = waiting.pop()
            active: dict[int, int] = {}
            for start, times in applied.items():
                for place, number in self._in_place[start].items():
                    active[place] = active.get(place, 0) + times * number
                counted += len(self._in_place[start])
            text = _of_text(len(one), backtracks=self._backtracks) if isinstance(one, str) else 0
            for place, times in active.items():
                total += times * (
                    self._costs[place] + (text if "pattern" in self._nodes[place] else 0)
                )
            if total > MAX_STEPS or counted > _MAX_COUNTED:
                return math.inf
            if isinstance(one, dict):
                for key, inner in one.items():
                    if (counted := counted + len(active)) > _MAX_COUNTED:
                        return math.inf
                    waiting.append((inner, self._below(active, key)))
                    total += sum(
                        times
                        * len(_table(self._nodes[place], "patternProperties"))
                        * _of_text(len(key), backtracks=self._backtracks)
                        for place, times in active.items()
                    )
                    if named := self._named(active):
                        waiting.append((key, named))
            elif isinstance(one, list):
                for number_of, inner in enumerate(one):
                    if (counted := counted + len(active)) > _MAX_COUNTED:
                        return math.inf
                    waiting.append((inner, self._below(active, number_of)))
        return total

    def _below(self, active: dict[int, int], key: str | int) -> dict[int, int]:
        """The subschemas that apply to the value at this key, or at this place of a list."""
        found: dict[int, int] = {}
        for place, times in active.items():
            node = self._nodes[place]
            for child in _at_key(node, key) if isinstance(key, str) else _at_place(node, key):
                found[id(child)] = found.get(id(child), 0) + times
        return found

    def _named(self, active: dict[int, int]) -> dict[int, int]:
        return {
            id(child): times
            for place, times in active.items()
            for child in _schemas(self._nodes[place].get("propertyNames"))
        }


def _of_text(length: int, *, backtracks: bool) -> float:
    """The steps that a pattern takes for a text."""
    return length / 20 + (length * length / 100 if backtracks else 0)


def _weight(node: _Node) -> int:
    """The steps of a subschema's own keywords, without the subschemas that they apply."""
    weight = 1
    for key in ("const", "enum", "required", "dependentRequired"):
        if key in node:
            weight += _count(node[key])
    needed = _table(node, "dependencies").values()
    weight += sum(_count(one) for one in needed if isinstance(one, list))
    if "multipleOf" in node:
        weight += 15
    if any(key in node for key in _UNEVALUATED):
        weight += _UNEVALUATED_WEIGHT
    return weight + len(_table(node, "properties")) // 10


def _count(value: Any) -> int:
    # Each error cites the texts.
    return sum(1 + (len(one) // 50 if isinstance(one, str) else 0) for one in values_in(value))


def _patterns(node: _Node) -> Iterator[str]:
    if isinstance(pattern := node.get("pattern"), str):
        yield pattern
    yield from _table(node, "patternProperties")


def _children(node: _Node) -> list[_Node]:
    """The subschemas that apply to the values inside a value."""
    named = (_table(node, key).values() for key in ("properties", "patternProperties"))
    keys = ("additionalProperties", "propertyNames", "unevaluatedProperties")
    return [*_at_place(node, None), *_schemas(*chain(*named), *map(node.get, keys))]


def _at_key(node: _Node, key: str) -> Iterator[_Node]:
    properties = _table(node, "properties")
    other = properties[key] if key in properties else node.get("additionalProperties")
    yield from _schemas(
        other, *_table(node, "patternProperties").values(), node.get("unevaluatedProperties")
    )


def _at_place(node: _Node, place: int | None) -> Iterator[_Node]:
    """The subschemas for the value at this place of a list; at any place if it is None."""
    first, rest = _list(node, "prefixItems"), node.get("items")
    if isinstance(rest, list):  # until 2019-09
        first, rest = rest, node.get("additionalItems")
    if place is None:
        yield from _schemas(*first)
    elif place < len(first):
        yield from _schemas(first[place])
    if place is None or place >= len(first):
        yield from _schemas(rest)
    yield from _schemas(node.get("contains"), node.get("unevaluatedItems"))


def _table(node: _Node, key: str) -> _Node:
    """The table under a key; empty if there is none."""
    found = node.get(key)
    return found if isinstance(found, dict) else {}


def _list(node: _Node, key: str) -> list[Any]:
    found = node.get(key)
    return found if isinstance(found, list) else []


def _schemas(*values: Any) -> Iterator[_Node]:
    """Those that are tables; `true` and `false` cost nothing."""
    for value in values:
        if isinstance(value, dict):
            yield value


def _cited(text: str) -> str:
    return json.dumps(text if len(text) <= 100 else f"{text[:100]}...")
