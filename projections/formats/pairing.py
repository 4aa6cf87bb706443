"""Pairs calls with their outcomes.

A wish and its outcome are two entries of a history, and two messages of most payloads. Providers
refuse half a pair, so each writer takes the pairs that `pair_turns` gives.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.events import Wish


class PairedTurn(Struct, frozen=True):
    """A model's turn, each wish with its outcome."""

    assistant: Assistant
    outcomes: tuple[tuple[Wish, Outcome], ...]
    #: The turn as it was given, also with the wishes that have lost their outcome: an opaque part
    #: before such a wish goes with it.
    given: Assistant


def pair_turns(entries: Sequence[Entry]) -> Iterator[System | User | Note | PairedTurn]:
    """The entries, each turn with its outcomes.

    `history` never separates them, but a program that shortens a history may. Half a pair is never
    sent: a wish without its outcome is left out, and an outcome without its wish becomes a note.
    """
    at = 0
    while at < len(entries):
        entry = entries[at]
        at += 1
        match entry:
            case Assistant(turn=turn, parts=parts):
                wishes = [part for part in parts if isinstance(part, Wish)]
                outcomes: dict[str, Outcome] = {}
                while len(outcomes) < len(wishes) and at < len(entries):
                    following = entries[at]
                    if not isinstance(following, Outcome) or not following.call.startswith(f"{turn}-"):
                        break
                    outcomes[following.call] = following
                    at += 1
                yield _pair_turn(entry, outcomes)
            case Outcome(tool=tool, text=text):
                yield Note(f"An earlier call of `{tool}` ended so: {text}")
            case _:
                yield entry


def _pair_turn(assistant: Assistant, outcomes: dict[str, Outcome]) -> PairedTurn:
    pairs: list[tuple[Wish, Outcome]] = []
    parts = []
    index = 0
    for part in assistant.parts:
        if isinstance(part, Wish):
            outcome = outcomes.get(f"{assistant.turn}-{index}")
            index += 1
            if outcome is None:
                continue
            pairs.append((part, outcome))
        parts.append(part)
    return PairedTurn(Assistant(assistant.turn, tuple(parts)), tuple(pairs), assistant)


def call_id(outcome: Outcome, used: set[str], valid: Callable[[str], bool]) -> str:
    """The id of a call that has its outcome, as `mint_call_id` gives it."""
    return mint_call_id(outcome.call, outcome.provider_id, used, valid)


def mint_call_id(call: str, provider_id: str, used: set[str], valid: Callable[[str], bool]) -> str:
    """The provider's own id if it is valid and not used yet, otherwise one made of the call's.

    Adds it to `used`. Calls that are given in the same order get the same ids.
    """
    chosen = provider_id
    if not valid(chosen) or chosen in used:
        chosen = f"call_{call}"
    while chosen in used:
        chosen += "_"
    used.add(chosen)
    return chosen
