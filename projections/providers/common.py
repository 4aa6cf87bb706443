"""What the providers have in common: payloads, problems, and names and ids that every one of them takes.

Everything is decided from left to right, so that a history which grows is written with the same beginning: the
provider's cache of the earlier part stays good.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from projections.history import Assistant, Entry, Note, Outcome, System, User
from schemas.events import Wish

#: The part of a request's body that the history is: `messages`, and what else the provider keeps it in.
type Payload = dict[str, Any]

#: The one field of arguments that must be an object and were none: their raw text.
MALFORMED: Final = "malformed_arguments"
#: In place of a text without a visible character.
BLANK: Final = "(no text)"
#: The user's side before a history that opens with the model.
OPENING: Final = "(The conversation begins.)"
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


class Problem(Struct, frozen=True):
    """Why a provider would turn a payload down."""

    #: As numbered at the top of the provider's module.
    rule: int
    #: Index into `messages`.
    message: int
    #: What is wrong, and what to do.
    sentence: str

    def __str__(self) -> str:
        return f"message {self.message}: {self.sentence} (rule {self.rule})"


class Paired(Struct, frozen=True):
    """A model's turn with each wish beside its outcome."""

    assistant: Assistant
    outcomes: tuple[tuple[Wish, Outcome], ...]


def paired(entries: Sequence[Entry]) -> Iterator[System | User | Note | Paired]:
    """The entries, each turn with its outcomes.

    `history` never parts them, but whoever shortens a history may. Half a pair is never sent: a wish whose outcome
    is gone is left out, and an outcome whose wish is gone becomes a note.
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
                yield _paired(entry, outcomes)
            case Outcome(tool=tool, text=text):
                yield Note(f"An earlier call of `{tool}` ended so: {text}")
            case _:
                yield entry


def _paired(assistant: Assistant, outcomes: dict[str, Outcome]) -> Paired:
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
    return Paired(Assistant(assistant.turn, tuple(parts)), tuple(pairs))


def call_id(outcome: Outcome, used: set[str], valid: Callable[[str], bool]) -> str:
    """The provider's own id if it can stand, else one made of the call's; then it is used."""
    chosen = outcome.provider_id
    if not valid(chosen) or chosen in used:
        chosen = f"call_{outcome.call}"
    while chosen in used:
        chosen += "_"
    used.add(chosen)
    return chosen


def tool_name(wished: str) -> str:
    """The name as every provider takes it. Models make names up; a bad one must not spoil the whole history."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", wished, flags=re.ASCII)[:64] or "nameless"


def messages_of(payload: Payload | Sequence[Any]) -> list[Any]:
    """The messages of a payload; a bare list is taken for its messages."""
    found = payload.get("messages", []) if isinstance(payload, dict) else payload
    return list(found) if isinstance(found, Sequence) and not isinstance(found, str) else []
