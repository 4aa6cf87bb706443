"""Translates opaque parts between Pydantic AI and the services.

Each part names its service, and the library sends it to no other (see `common`). `recorded` and
`responded` translate between the library's parts and the services' own:

    anthropic          thinking with a signature    `thinking`, or `redacted_thinking` by its id
    openai-responses   thinking, one or more parts  `reasoning`, one part for each summary text
                       id, phase, namespace         `{"id": ..., ...}` before the text or the wish
    gemini             thinking                     a part of `thought`
                       thought_signature            `{"thoughtSignature": ...}` before the text or
                                                    the wish

Everything else stays the library's part: thinking without a signature, compactions, files, the
services' own tools; and the further fields of a text or call (citations, log probabilities, a kind
of tool). The wire form's own writer leaves these out.
"""

import base64
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from ayes.projections.formats.common import (
    JsonObject,
    checked_json_text,
    is_taken,
    parse_object,
    tool_name,
)
from ayes.projections.formats.gemini.parts import standard
from ayes.projections.formats.pydantic_ai.check import RESPONSE_PARTS, call_id_of, shape_problem
from ayes.projections.formats.pydantic_ai.media import item_of, read_media, takes
from ayes.projections.history import Assistant
from ayes.schemas.content import spoken
from ayes.schemas.events import Inline, Media, Opaque, Part, Refusal, Text, Wish

PROVIDER: Final = "pydantic-ai"
#: The services whose wire forms we have, under the library's name for them. Google's cloud and
#: Azure are not among them: they refuse what the other of their house has signed.
FORMS: Final = {"anthropic": "anthropic", "openai": "openai-responses", "google": "gemini"}


def recorded(parts: Sequence[JsonObject], service: str) -> tuple[Part, ...]:
    """The parts of a response of this service in our words.

    Raises:
        BadInput: a part is not JSON.
    """
    found: list[Part] = []
    for _item, group in groupby(enumerate(parts), lambda one: _item_of(*one)):
        run = [part for _index, part in group]
        match run:
            case [{"part_kind": "text", "content": text} as part]:
                found += [*_beside(service, part), Text(text)]
            case [{"part_kind": "tool-call", "tool_name": tool} as part]:
                found += [*_beside(service, part), Wish(tool, part["args"], call_id_of(part))]
            case [{"part_kind": "file", "content": {"kind": "binary"} as content, **rest}] if not (
                any(rest.values())
            ):
                found.append(read_media(content))
            case _:
                found += _kept(service, run)
    return tuple(found)


def _takes_of_model(media: Media) -> bool:
    return isinstance(media.source, Inline) and takes(media)


def _item_of(index: int, part: JsonObject) -> int | str:
    """The key of the item that a part belongs to: the id of thinking. Other parts stand alone."""
    id_ = part.get("id") if part["part_kind"] == "thinking" else None
    return id_ if isinstance(id_, str) else index


def _kept(service: str, run: Sequence[JsonObject]) -> list[Part]:
    """The run in its service's form if that can be reversed, otherwise unchanged."""
    own = _own(service, run)
    if own is not None and _same(_parts(FORMS[service], own), run, service):
        return [Opaque(FORMS[service], checked_json_text(own))]
    if len(run) > 1:
        return [one for part in run for one in _kept(service, [part])]
    return [Opaque(FORMS.get(service, service) or PROVIDER, checked_json_text(run[0]))]


def _own(service: str, run: Sequence[JsonObject]) -> JsonObject | None:
    """Thinking in its service's own form, perhaps incomplete; `None` if the service has none."""
    first = run[0]
    if first["part_kind"] != "thinking":
        return None
    signature = first.get("signature")
    match service:
        case "anthropic" if first.get("id") == "redacted_thinking":
            return {"type": "redacted_thinking", "data": signature}
        case "anthropic" if signature:
            return {"type": "thinking", "thinking": first["content"], "signature": signature}
        case "openai":
            summary = [
                {"type": "summary_text", "text": part["content"]} for part in run if part["content"]
            ]
            own = {"id": first.get("id"), "type": "reasoning", "summary": summary}
            raw = _details(first).get("raw_content")
            if isinstance(raw, list):
                own["content"] = [{"type": "reasoning_text", "text": text} for text in raw]
            return {**own, "encrypted_content": signature} if signature else own
        case "google":
            signed = _signature(_details(first))
            return {"text": first["content"], "thought": True, **signed}
        case _:
            return None


def _beside(service: str, part: JsonObject) -> list[Part]:
    """The fields of a text or a call that no fact holds, in its service's form or unchanged."""
    more = {name: part[name] for name in _BESIDE if part.get(name) is not None}
    if not more.keys() - {"provider_name"}:
        return []
    details = _details(part)
    own: JsonObject = {}
    match service:
        case "openai":
            of_its = "phase" if part["part_kind"] == "text" else "namespace"
            own = {"id": part.get("id"), of_its: details.get(of_its)}
        case "google":
            own = _signature(details)
    own = {name: value for name, value in own.items() if value is not None}
    if own and _same([_beside_of(FORMS[service], own)], [more], service):
        return [Opaque(FORMS[service], checked_json_text(own))]
    kept = {**more, "part_kind": part["part_kind"]}
    return [Opaque(FORMS.get(service, service) or PROVIDER, checked_json_text(kept))]


def _signature(details: JsonObject) -> JsonObject:
    signature = details.get("thought_signature")
    return {"thoughtSignature": signature} if isinstance(signature, str) else {}


def _details(part: JsonObject) -> JsonObject:
    details = part.get("provider_details")
    return details if isinstance(details, dict) else {}


def _same(given: Sequence[JsonObject], run: Sequence[JsonObject], service: str) -> bool:
    """Whether they are the same, counting a part without a service as of this one."""
    said = [{name: value for name, value in part.items() if value is not None} for part in run]
    return list(given) == [{"provider_name": service, **part} for part in said]


def responded(
    turn: Assistant, ids: Mapping[str, str], service: str | None = None
) -> list[JsonObject]:
    """The parts of a response.

    A call without an id is left out, with the parts that belong to it.

    Args:
        ids: the ids of the calls, by our own (`<turn>-<index>`).
        service: the service whose opaque parts are kept; None keeps all.
    """
    parts: list[JsonObject] = []
    beside: JsonObject = {}  # further fields of the next text or call
    alone = False  # the next item belongs to reasoning that cannot be sent
    index = -1
    for part in turn.parts:
        match part:
            case Media() if is_taken(part, _takes_of_model):
                parts.append({"content": item_of(part), "part_kind": "file"})
            case Text() | Refusal() | Media():
                text = spoken(part)
                parts.append({"content": text, **_without_id(beside, alone), "part_kind": "text"})
            case Wish(tool=tool, arguments=arguments):
                index += 1
                id_ = ids.get(f"{turn.turn}-{index}")
                if id_ is None:
                    _drop_thought(parts)
                else:
                    call = {"tool_name": tool_name(tool), "args": arguments, "tool_call_id": id_}
                    # By the item's id OpenAI finds its own copy, which has the call's first id.
                    renamed = id_ != part.provider_id
                    parts.append(
                        {**call, **_without_id(beside, alone or renamed), "part_kind": "tool-call"}
                    )
            case Opaque(provider=provider) if service is not None and provider != FORMS.get(
                service, service
            ):
                continue
            case Opaque(provider=provider, data=data):
                own = parse_object(data)
                if beside.get("provider_name") == _SERVICES.get(provider, provider):
                    parts += _unspoken(beside)
                    beside = {}
                if more := _beside_of(provider, own):
                    beside = more
                    continue
                found = _parts(provider, own)
                if provider == "openai-responses" and "type" in own:
                    alone = own["type"] == "reasoning" and not found
                    if own["type"] != "reasoning":
                        _drop_thought(parts)
                parts += found
                continue
        beside, alone = {}, False
    return [*parts, *_unspoken(beside)]


def _unspoken(beside: JsonObject) -> list[JsonObject]:
    """A signature without content, which Google's service puts on an empty text."""
    signed = "thought_signature" in _details(beside)
    return [{"content": "", **beside, "part_kind": "text"}] if signed else []


def _without_id(beside: JsonObject, without: bool) -> JsonObject:
    return {name: value for name, value in beside.items() if not (without and name == "id")}


def _drop_thought(parts: list[JsonObject]) -> None:
    """Remove OpenAI's reasoning whose item is left out."""
    while (
        parts
        and parts[-1]["part_kind"] == "thinking"
        and parts[-1].get("provider_name") == "openai"
    ):
        parts.pop()


#: The fields of a text or a call that no fact holds.
_BESIDE: Final[dict[str, type]] = {
    "id": str,
    "provider_name": str,
    "provider_details": dict,
    "tool_kind": str,
    "citations": list,
}


def _beside_of(provider: str, own: JsonObject) -> JsonObject:
    """The fields that an opaque part holds for the part after it; empty if none."""
    match provider, own:
        case _, {"part_kind": "text" | "tool-call"}:
            more = {
                name: own[name] for name, fits in _BESIDE.items() if isinstance(own.get(name), fits)
            }
            return _named(provider, more) if more else {}
        case _, {"part_kind": _} | {"type": _}:
            return {}
        case "openai-responses", _:
            id_ = {"id": own["id"]} if isinstance(own.get("id"), str) else {}
            details = {
                name: own[name] for name in ("phase", "namespace") if own.get(name) is not None
            }
            found = {**id_, **({"provider_details": details} if details else {})}
            return {**found, "provider_name": "openai"} if found else {}
        case "gemini", {"thoughtSignature": str(signature)} if len(own) == 1:
            return {"provider_details": _signed(signature), "provider_name": "google"}
        case _:
            return {}


def _signed(signature: str) -> JsonObject:
    """The signature in the spelling that the library reads: the standard alphabet, padded."""
    padded = standard(signature)
    try:
        base64.b64decode(padded, validate=True)
    except ValueError:
        return {}
    return {"thought_signature": padded}


def _parts(provider: str, own: JsonObject) -> list[JsonObject]:
    """The library's parts for an opaque one; empty if the library has none."""
    match provider, own:
        case _, {"part_kind": kind}:
            fits = kind not in ("text", "tool-call") and not shape_problem(own, RESPONSE_PARTS)
            return [_named(provider, own)] if fits else []
        case "anthropic", {
            "type": "thinking",
            "thinking": str(text),
            "signature": str(signature),
        } if signature:
            return [_thought("anthropic", text, signature=signature)]
        case "anthropic", {"type": "redacted_thinking", "data": str(data)} if data:
            return [_thought("anthropic", "", id="redacted_thinking", signature=data)]
        case "openai-responses", {"type": "reasoning", "id": str(id_), "summary": list(summary)}:
            return _reasoned(id_, summary, own)
        case "gemini", {"text": str(text), "thought": True}:
            signed = own.get("thoughtSignature")
            details = _signed(signed) if isinstance(signed, str) else {}
            return [_thought("google", text, provider_details=details or None)]
        case _:
            return []


def _reasoned(id_: str, summary: list[Any], item: JsonObject) -> list[JsonObject]:
    """A part for each text of the summary; the first has the fields of the whole item."""
    texts = [
        one["text"] for one in summary if isinstance(one, dict) and isinstance(one.get("text"), str)
    ]
    content = item.get("content")
    given = content if isinstance(content, list) else []
    raw = [one.get("text") for one in given if isinstance(one, dict)]
    is_text = bool(raw) and all(isinstance(text, str) for text in raw)
    signature = item.get("encrypted_content")
    once = {
        "signature": signature if isinstance(signature, str) and signature else None,
        "provider_details": {"raw_content": raw} if is_text else None,
    }
    if len(texts) != len(summary) or not (texts or any(once.values())):
        return []
    first, *others = texts or [""]
    return [
        _thought("openai", first, id=id_, **once),
        *(_thought("openai", text, id=id_) for text in others),
    ]


def _thought(service: str, content: str, **fields: Any) -> JsonObject:
    said = {name: value for name, value in fields.items() if value is not None}
    return {"content": content, **said, "provider_name": service, "part_kind": "thinking"}


def _named(provider: str, part: JsonObject) -> JsonObject:
    """The part with its service: nothing else in a list of messages names it."""
    if provider == PROVIDER or part.get("provider_name") is not None:
        return part
    return {**part, "provider_name": _SERVICES.get(provider, provider)}


_SERVICES: Final = {form: service for service, form in FORMS.items()}
