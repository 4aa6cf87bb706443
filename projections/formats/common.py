"""What the providers have in common: payloads, problems, and names and ids that every one of them takes.

Everything is decided from left to right, so that a history which grows is written with the same beginning: the
provider's cache of the earlier part stays good.

An opaque part (`ayes.schemas.events.Opaque`) says whose it is in `provider` and what it is in `data`, by one convention:

* `provider` is the wire form whose service takes it back: `anthropic`, `openai-responses`, `gemini`. A service that
  has no form of its own here is named as pydantic-ai names it (`groq`, `bedrock`); `pydantic-ai` and `ai-sdk` stand
  for what does not say whose it is. One name for each service, so that it finds home by every way: a form's writer
  and a live model of the same service ask for the same name.
* `data` is JSON as that form has it. It is the service's own word, which the service compares byte for byte, and
  which outlives any library. A part that pydantic-ai gave is therefore translated, but only where translating it back
  gives that very part. Else it is kept as pydantic-ai's part, which is known by its `part_kind`: only pydantic-ai
  can say it again, and the form's own writer leaves it out.
* What belongs to a text or a wish (a thought signature, an item's id) stands directly before it.

The one translation between the two is in `pydantic_ai` (`recorded`, `responded`).
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas import strict_json
from ayes.schemas.events import Wish

#: The part of a request's body that the history is: `messages`, and what else the provider keeps it in.
type Payload = dict[str, Any]

#: The one field of arguments that must be an object and were none: their raw text.
MALFORMED: Final = "malformed_arguments"
#: In place of a text without a visible character.
BLANK: Final = "(no text)"
#: The user's side before a history that opens with the model.
OPENING: Final = "(The conversation begins.)"
TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


class FormatProblem(Struct, frozen=True):
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
    #: The turn as it was given, with the wishes whose outcome is gone: what stands before one of these goes with it.
    given: Assistant


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
    return Paired(Assistant(assistant.turn, tuple(parts)), tuple(pairs), assistant)


def opening(entries: Sequence[Entry]) -> int:
    """How many system texts open the history."""
    return next((at for at, entry in enumerate(entries) if not isinstance(entry, System)), len(entries))


def noted(text: str, name: str = "") -> str:
    """What a note says, where only the user's side can say it: marked as what it is."""
    return f"[Note from {name or 'the system'}] {text}"


def put(messages: list[dict[str, Any]], message: dict[str, Any], *, by: str, into: str) -> None:
    """One more message. What one of the same side as the last holds goes into the last instead."""
    if messages and messages[-1][by] == message[by]:
        messages[-1][into] += message[into]
    else:
        messages.append(message)


def call_id(outcome: Outcome, used: set[str], valid: Callable[[str], bool]) -> str:
    """The provider's own id if it can stand, else one made of the call's; then it is used."""
    return minted(outcome.call, outcome.provider_id, used, valid)


def minted(call: str, provider_id: str, used: set[str], valid: Callable[[str], bool]) -> str:
    """The same for a call that has no outcome yet. Given in the same order, the ids are the same."""
    chosen = provider_id
    if not valid(chosen) or chosen in used:
        chosen = f"call_{call}"
    while chosen in used:
        chosen += "_"
    used.add(chosen)
    return chosen


def tool_name(wished: str) -> str:
    """The name as every provider takes it. Models make names up; a bad one must not spoil the whole history."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", wished, flags=re.ASCII)[:64] or "nameless"


def visible(text: str) -> str:
    """The text, if there is anything to see in it."""
    return text if text.strip() else BLANK


def input_of(arguments: str) -> dict[str, Any]:
    """The arguments as an object; what is none, or could be read in two ways, is wrapped whole."""
    if not arguments.strip():
        return {}
    value = parsed(arguments)
    return value if isinstance(value, dict) else {MALFORMED: arguments}


def parsed(text: str) -> Any:
    """The JSON value; None if it is none, or one that two readers could take differently."""
    try:
        return strict_json.read(text)
    except strict_json.BadJson:
        return None


def parsed_object(text: str) -> dict[str, Any]:
    """The JSON object; an empty one if it is none."""
    value = parsed(text)
    return value if isinstance(value, dict) else {}


def compact(value: Any) -> str:
    """The JSON text of a value, without blanks, its keys in their order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def messages_of(payload: Payload | Sequence[Any]) -> list[Any]:
    """The messages of a payload; a bare list is taken for its messages."""
    found = payload.get("messages", []) if isinstance(payload, dict) else payload
    return list(found) if isinstance(found, Sequence) and not isinstance(found, str) else []
