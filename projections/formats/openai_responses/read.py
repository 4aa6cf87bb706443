"""Reads conversations of OpenAI Responses.

`developer` and `instructions` become `system`, the texts of a message become messages, and texts
with files one message. The status of an output is left out, and so are `additional_tools`, which
belong to the request. Calls of tools that are not functions are refused: a history cannot hold
them.
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
from ayes.projections.formats.openai_files import RESPONSES_FILES as FILES
from ayes.projections.formats.openai_files import read_responses_media
from ayes.projections.formats.openai_responses.items import (
    FIELDS,
    KEPT,
    NAME,
    is_continued,
    items_of,
    kind_of,
)
from ayes.projections.formats.pairing import PairedSteps
from ayes.schemas.content import content_of
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Citation, Content, Media, Opaque, Part, Refusal, Text, Wish
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
        if kind == "additional_tools":
            continue
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
            if role == "user" and _has_files(item.get("content")):
                steps.add_said(Spoken(role, _content(at, item["content"])))
                continue
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
    if kind not in {"message", "function_call", "function_call_output", "additional_tools", *KEPT}:
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
    if isinstance(output, list) and _has_files(output):
        return Output(wish.provider_id, wish.tool, _content(at, output))
    text = output if isinstance(output, str) else "\n\n".join(_part_texts(at, output, "input_text"))
    return Output(wish.provider_id, wish.tool, text)


def _has_files(content: Any) -> bool:
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") in FILES for part in content
    )


def _content(at: int, content: list[Any]) -> Content:
    """Texts and files in their order."""
    parts: list[Text | Media] = []
    for part in content:
        if isinstance(part, dict) and part.get("type") in FILES:
            parts.append(read_responses_media(at, part))
        else:
            parts += [Text(text) for text in _part_texts(at, [part], "input_text")]
    return content_of(parts)


def _wished(at: int, item: JsonObject) -> Iterator[Part]:
    id_, name, arguments = item.get("call_id"), item.get("name"), item.get("arguments")
    if not (isinstance(id_, str) and id_ and isinstance(name, str) and isinstance(arguments, str)):
        raise _mistake(at, "a call needs a call_id, a name and arguments, each of them text.")
    yield from _fields(item, "function_call")
    yield Wish(name, arguments, id_)


def _replied(at: int, item: JsonObject) -> Iterator[Part]:
    yield from _fields(item, "message")
    content = item.get("content")
    if not isinstance(content, list):
        yield from (Text(text) for text in _texts(at, item))
        return
    _texts(at, item)  # refuses what cannot be read
    for part in content:
        if part["type"] == "refusal":
            yield Refusal(part["refusal"])
        else:
            annotations = part.get("annotations") or ()
            yield Text(part["text"], tuple(_citation(at, one) for one in annotations))


def _citation(at: int, annotation: Any) -> Citation:
    if not isinstance(annotation, dict) or not isinstance(annotation.get("type"), str):
        raise _mistake(at, "an annotation is not an object with a type.")
    texts = {
        name: value
        for name, key in (("url", "url"), ("title", "title"), ("title", "filename"))
        if isinstance(value := annotation.get(key), str)
    }
    return Citation(**texts, provider=NAME, data=json_text(annotation))


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
