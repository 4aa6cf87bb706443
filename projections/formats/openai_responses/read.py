"""Reads conversations of OpenAI Responses.

`developer` and `instructions` become `system`, the parts of a message become messages, a refusal
becomes text; annotations, and everything but the text of an output, are left out. Images, files and
calls of tools that are not functions are refused: a history cannot hold them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    checked_json_text,
    json_text,
    unreadable,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.formats.openai_responses.items import (
    FIELDS,
    KEPT,
    NAME,
    is_continued,
    items_of,
    kind_of,
)
from ayes.projections.formats.pairing import PairedSteps
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Opaque, Part, Text, Wish
from ayes.schemas.limits import cited


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation of the items.

    Raises:
        BadInput: something cannot be read unambiguously; names the item.
    """
    if is_continued(payload):
        raise BadInput(
            "a part of the conversation is with the provider. Read an input that holds all of it."
        )
    items = items_of(payload)
    steps = PairedSteps(_instructions(payload), unit="item")
    if not items:
        raise BadInput(
            "there is no item in `input`: a payload is {'input': [...]}, or the list itself."
        )
    parts: list[Part] = []  # of the reply that is being read
    for at, item in enumerate(items):
        kind = _readable(at, item)
        if kind == "function_call_output":
            _end_reply(at, parts, steps)
            steps.add_output(_output(at, item, steps.waiting))
            continue
        _all_answered(at, steps, " before this item")
        if kind == "function_call":
            parts += _wished(at, item)
        elif kind in KEPT:
            parts.append(_opaque(item))
        elif item["role"] == "assistant":
            parts += _replied(at, item)
        else:
            _end_reply(at, parts, steps)
            _all_answered(at, steps, " before this item")
            role: Literal["user", "system"] = "user" if item["role"] == "user" else "system"
            for text in _texts(at, item):
                steps.add_said(Spoken(role, text))
    _end_reply(len(items), parts, steps)
    _all_answered(len(items) - 1, steps)
    return steps.finish()


def _mistake(at: int, sentence: str) -> BadInput:
    return unreadable(at, sentence, "item")


def _readable(at: int, item: Any) -> str:
    """The kind of an item that has a meaning here."""
    kind = kind_of(item)
    if kind is None:
        wrong = "it is not an item of this provider: an object of a known `type`, or a message."
        raise _mistake(at, wrong)
    if kind not in {"message", "function_call", "function_call_output", *KEPT}:
        wrong = f"an item of type {kind} cannot be read."
        raise _mistake(at, f"{wrong} Leave it out, with the items that belong to it.")
    checked_json_text(at, item, "item")
    return kind


def _instructions(payload: object) -> list[ConversationStep]:
    found = payload.get("instructions") if isinstance(payload, dict) else None
    if not isinstance(found, str | None):
        raise BadInput("`instructions` are not text. Put them into the input as messages.")
    return [] if found is None else [Spoken("system", found)]


def _end_reply(at: int, parts: list[Part], steps: PairedSteps) -> None:
    """Add the parts as a reply that ends before that item, if there are any, and empty them."""
    if parts:
        steps.add_reply(at - 1, RecordedReply(tuple(parts)))
        parts.clear()


def _all_answered(at: int, steps: PairedSteps, where: str = "") -> None:
    if waiting := steps.waiting:
        raise _mistake(at, f"the call {waiting[0].provider_id!r} has no output{where}.")


def _output(at: int, item: JsonObject, waiting: Sequence[Wish]) -> Output:
    """An output, which must be that of the first open call."""
    id_, output = item.get("call_id"), item.get("output")
    if all(wish.provider_id != id_ for wish in waiting):
        wrong = f"the output of {cited(id_)} does not follow its call"
        raise _mistake(at, f"{wrong}, or is its second.")
    wish = waiting[0]
    if wish.provider_id != id_:
        wrong = f"{id_!r} is answered before {wish.provider_id!r}."
        raise _mistake(at, f"{wrong} Sort the outputs as their calls.")
    text = output if isinstance(output, str) else "\n\n".join(_part_texts(at, output, "input_text"))
    return Output(wish.provider_id, wish.tool, text)


def _wished(at: int, item: JsonObject) -> Iterator[Part]:
    id_, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments")
    if not (isinstance(id_, str) and id_ and isinstance(name, str) and isinstance(arguments, str)):
        raise _mistake(at, "a call needs a call_id, a name and arguments, each of them text.")
    yield from _fields(item, "function_call")
    yield Wish(name, arguments, id_)


def _replied(at: int, item: JsonObject) -> Iterator[Part]:
    yield from _fields(item, "message")
    yield from (Text(text) for text in _texts(at, item))


def _fields(item: JsonObject, kind: str) -> Iterator[Opaque]:
    if more := {name: item[name] for name in FIELDS[kind] if item.get(name) is not None}:
        yield _opaque(more)


def _opaque(kept: JsonObject) -> Opaque:
    return Opaque(NAME, json_text(kept))


def _texts(at: int, message: JsonObject) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    kinds = ("output_text", "refusal") if message["role"] == "assistant" else ("input_text",)
    return _part_texts(at, content, *kinds)


def _part_texts(at: int, content: Any, *kinds: str) -> list[str]:
    """The texts of a list of parts, of which there is at least one."""
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        text = (
            part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        )
        if kind not in kinds or not isinstance(text, str):
            raise _mistake(at, f"only text can be read: a part of type {' or '.join(kinds)}.")
        texts.append(text)
    if not texts:
        raise _mistake(at, "there is no text in it, and no list of parts with text.")
    return texts
