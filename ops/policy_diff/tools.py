"""The tools of which two policies may say different things: one for each set of patterns."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ayes.schemas.quorums import is_among, is_plain
from ayes.schemas.tool_names import MAX_CHARACTERS, is_tool_name

_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./"
_MAX_STATES: Final = 20_000
#: Where no name goes on.
_NO_NAME: Final = "*"


class TooMany(Exception):
    """The patterns can be combined in more ways than are tried."""


class Region(NamedTuple):
    """The tools that match these patterns and no others."""

    #: The shortest of them.
    example: str
    #: None: `example` is the only one.
    patterns: frozenset[str] | None


def regions(patterns: Iterable[str]) -> list[Region]:
    """Every tool is in one of these: each that is named alone, and the others by their patterns.

    Raises:
        TooMany: they cannot all be found.
    """
    patterns = tuple(dict.fromkeys(patterns))
    names = sorted(one for one in patterns if is_plain(one))
    wild = tuple(one for one in patterns if not is_plain(one))
    found = [Region(name, None) for name in names if is_tool_name(name)]
    return found + [Region(one, matched) for one, matched in _others(wild, frozenset(names))]


def _others(
    patterns: tuple[str, ...], names: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """The sets of patterns that something else than these names matches, the shortest first.

    The patterns are read together, character by character. After the same places in all of them,
    and the same beginning of a name, everything goes on in the same way.
    """
    known = {one for pattern in patterns for one in pattern} & set(_CHARACTERS)
    known |= {one for name in names for one in name}
    alphabet = [one for one in _CHARACTERS if one in known]
    alphabet += [one for one in _CHARACTERS if one not in known][:1]
    beginnings = {name[:end] for name in names for end in range(len(name) + 1)}
    start = tuple(_skipped(pattern, frozenset({0})) for pattern in patterns)
    seen, given = {(start, "")}, set()
    waiting = deque([(start, "")])
    while waiting:
        places, text = waiting.popleft()
        matched = frozenset(one for one, at in zip(patterns, places, strict=True) if len(one) in at)
        if text and text not in names and matched not in given:
            given.add(matched)
            yield text, matched
        if len(text) >= MAX_CHARACTERS:
            continue
        for one in sorted(alphabet, key=_plainest):
            after = tuple(_after(*each, one) for each in zip(patterns, places, strict=True))
            longer = text + one
            state = after, longer if longer in beginnings else _NO_NAME
            if state in seen:
                continue
            if len(seen) >= _MAX_STATES + len(beginnings):
                raise TooMany
            seen.add(state)
            waiting.append((after, longer))


def _plainest(character: str) -> tuple[bool, str]:
    return not character.isalpha(), character.swapcase()


def _after(pattern: str, places: frozenset[int], character: str) -> frozenset[int]:
    found = set()
    for at in places:
        if at < len(pattern) and pattern[at] == "*":
            found.add(at)
        elif at < len(pattern) and pattern[at] in ("?", character):
            found.add(at + 1)
    return _skipped(pattern, frozenset(found))


def _skipped(pattern: str, places: frozenset[int]) -> frozenset[int]:
    """The places, and those after a `*` that stands for nothing."""
    found = set(places)
    for at in sorted(places):
        end = at
        while end < len(pattern) and pattern[end] == "*":
            end += 1
            found.add(end)
    return frozenset(found)


def matches(region: Region, tools: Iterable[str]) -> bool:
    """Whether a rule about these tools is about those of the region."""
    if region.patterns is None:
        return is_among(region.example, tools)
    return any(one in region.patterns for one in tools)
