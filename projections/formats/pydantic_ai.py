"""Histories for Pydantic AI: the JSON of its `ModelMessage` list, as `ModelMessagesTypeAdapter` takes it.

The library itself is not needed here. What would be turned down by it, or silently changed on the way to a model
(sources are the library's own, version 2.68, in `messages.py` unless named):

1.  Every tool call has its return in a request before the next response. The library would make one up
    (`_repair_dangling_tool_calls`), or refuse a new prompt ("unprocessed tool calls", `_agent_graph.py`).
2.  A return answers a call of the response before it; others are dropped (`_drop_orphaned_tool_results`).
3.  A call is answered once.
4.  A `tool_call_id` is text, not empty, and stands for one call of the whole list. Where it is left out, the library
    mints a random one; where it repeats, the earlier call can no longer be answered (`_open_tool_calls`).
5.  A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - , as the providers behind it want it.
6.  A return has the name of its call's tool (Gemini is sent only the name).
7.  Arguments are text, an object, or nothing.
8.  A part is of a kind that stands in a request, or in a response, with its fields.
9.  A return's outcome is success, failed, denied, interrupted or retried, and all but success say something.
10. The list does not end with a response that is `suspended`: the provider still works on it (`_agent_graph.py`).
11. There is a message, and each is an object of kind request or response with a list of parts.
12. A timestamp, where it stands, is text.

More than these is left to the adapter: what stands in pictures, citations, usage and provider details.

What is written is as the adapter would dump it, without the fields that have their default. That goes for the
timestamps too: none is made up here, and the adapter fills in the time of loading. No model is sent it.

Requests hold what was said and the returns; what follows directly goes into the same request. A denial has the
outcome `denied`, every other ending without a result `failed`; an answer in place of the tool is a `success`.

What the form cannot carry, and is lost from entries to steps:

* ids that are empty or stand for two calls, and tool names that rule 5 refuses;
* who speaks (`name`), and that a note is not the user's: it is a prompt that says so in words. (The library hoists
  system prompts to the front for some providers, so a note made one would lose its place.)
* opaque parts that this form has no part for: of the services' own tools as their wire forms have them, OpenAI's
  reasoning without a summary and without its encrypted content, any data that is broken. The id of the item that
  came of such reasoning goes with it, and so does reasoning that such a tool's item came of: OpenAI takes neither
  alone;
* the id of an item that holds a call, where the call goes under another id than its own;
* of an item of OpenAI's, `status` and `caller`; the spelling of a thought signature's base64; and a `provider_name`
  of a text or a call that has nothing else to be named for;
* that an outcome was a denial: `read` has one word, `is_error`, so a second writing has `failed` there.

Opaque parts (the convention is in `common`) are those of every service: each part names its own, and the library
sends it to no other. `recorded` and `responded` are the one translation between its parts and the services' own:

    anthropic          thinking with a signature    `thinking`; under the id redacted_thinking, `redacted_thinking`
    openai-responses   thinking, one or more parts  `reasoning`, its summary's texts one part each
                       id, phase, namespace         `{"id": ..., ...}` before the text or the wish
    gemini             thinking                     a part of `thought`
                       thought_signature            `{"thoughtSignature": ...}` before the text or the wish

All else stays the library's part: thinking without a signature, compactions, files, the services' own tools; and of a
text or call that has more beside it (citations, log probabilities, a kind of tool), all of that beside the id. The
wire form's own writer leaves these out.

Not read: timestamps, usage, models, run ids and metadata, which say nothing to a model. `instructions` are read as
a system text where they begin or change. Prompts with pictures and files are refused, not skipped, as is feedback
that answers no call.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.projections.formats import reading
from ayes.projections.formats.common import (
    TOOL_NAME,
    FormatProblem,
    Paired,
    Payload,
    call_id,
    messages_of,
    noted,
    paired,
    parsed_object,
    put,
    tool_name,
    visible,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Opaque, Part, Text, Wish

PROVIDER: Final = "pydantic-ai"
#: The services whose wire forms we have, under the library's name for them. Google's cloud and Azure are not among
#: them: they refuse what the other of their house has signed.
FORMS: Final = {"anthropic": "anthropic", "openai": "openai-responses", "google": "gemini"}

type Json = dict[str, Any]

#: What a part of a kind must have, and of which type.
_REQUEST_PARTS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "system-prompt": {"content": str},
    "user-prompt": {"content": (str, list)},
    "tool-return": {"tool_name": str, "content": object},
    "retry-prompt": {"content": (str, list)},
    "retry-feedback": {"content": (str, list)},
    "speech": {"speaker": str},
    "compaction": {},
    "tool-availability-delta": {},
    "capability-load-delta": {},
    "model-settings-delta": {},
    "instruction-delta": {},
    "instruction-baseline": {},
}
_RESPONSE_PARTS: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {
    "text": {"content": str},
    "tool-call": {"tool_name": str},
    "thinking": {"content": str},
    "compaction": {},
    "file": {"content": dict},
    "speech": {"speaker": str},
    "builtin-tool-call": {"tool_name": str},
    "builtin-tool-return": {"tool_name": str, "content": object},
}
_OUTCOMES: Final = ("success", "failed", "denied", "interrupted", "retried")
#: What a reader cannot get past without a guess. The other rules are about sending, not about what was meant.
_UNREADABLE: Final = frozenset({1, 2, 3, 6, 7, 8, 9, 10, 11})


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`: ModelRequests and ModelResponses. The list alone is what the adapter takes."""
    return {"messages": written(entries, set())}


def written(entries: Sequence[Entry], used: set[str]) -> list[Json]:
    """The messages. The ids of their calls are in `used` then."""
    messages: list[Json] = []
    for step in paired(entries):
        match step:
            case System(text=text):
                _ask(messages, {"content": text, "part_kind": "system-prompt"})
            case User(text=text):
                _ask(messages, {"content": text, "part_kind": "user-prompt"})
            case Note(text=text, name=name):
                _ask(messages, {"content": noted(text, name), "part_kind": "user-prompt"})
            case Paired(outcomes=outcomes, given=given):
                ids = {outcome.call: call_id(outcome, used, is_id) for _wish, outcome in outcomes}
                messages.append({"parts": responded(given, ids), "kind": "response"})
                for wish, outcome in outcomes:
                    _ask(messages, _return(ids[outcome.call], wish, outcome))
    return messages


def _ask(messages: list[Json], part: Json) -> None:
    """One more request, or more of the last one."""
    put(messages, {"parts": [part], "kind": "request"}, by="kind", into="parts")


def _return(id_: str, wish: Wish, outcome: Outcome) -> Json:
    ended, text = "success", outcome.text
    if outcome.is_error:
        ended = "denied" if outcome.kind == "denied" else "failed"
        text = visible(text)
    part = {"tool_name": tool_name(wish.tool), "content": text, "tool_call_id": id_}
    return {**part, "outcome": ended, "part_kind": "tool-return"}


def is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""


# ------------------------------------------------------------------------------------------------ opaque parts


def recorded(parts: Sequence[Json], whose: Callable[[Json], str], at: int = 0) -> tuple[Part, ...]:
    """The parts of a response in our words; `whose` is the library's name of the service that gave a part.

    Raises:
        BadInput: a part is no JSON; with the message, `at`.
    """
    found: list[Part] = []
    for (service, _item), group in groupby(enumerate(parts), lambda one: (whose(one[1]), _item_of(*one))):
        run = [part for _index, part in group]
        match run:
            case [{"part_kind": "text", "content": text} as part]:
                found += [*_beside(at, service, part), Text(text)]
            case [{"part_kind": "tool-call", "tool_name": tool} as part]:
                wish = Wish(tool, _read_arguments(at, part.get("args")), _id(part))
                found += [*_beside(at, service, part), wish]
            case _:
                found += _kept(at, service, run)
    return tuple(found)


def _item_of(index: int, part: Json) -> int | str:
    """What neighbouring parts of one item have in common: thinking has its id. All others stand alone."""
    id_ = part.get("id") if part["part_kind"] == "thinking" else None
    return id_ if isinstance(id_, str) else index


def _kept(at: int, service: str, run: Sequence[Json]) -> list[Part]:
    """The run as its service's own; where that would not give it back, as it is."""
    own = _own(service, run)
    if own is not None and _same(_parts(FORMS[service], own), run, service):
        return [Opaque(FORMS[service], reading.raw(at, own))]
    if len(run) > 1:
        return [one for part in run for one in _kept(at, service, [part])]
    return [Opaque(FORMS.get(service, service) or PROVIDER, reading.raw(at, run[0]))]


def _own(service: str, run: Sequence[Json]) -> Json | None:
    """Thinking as its service would say it, perhaps not all of it; None where the service has no such thing."""
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
            summary = [{"type": "summary_text", "text": part["content"]} for part in run if part["content"]]
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


def _beside(at: int, service: str, part: Json) -> list[Part]:
    """What a text or a call has that no fact of its own says: as its service says it, or all of it as it is."""
    more = {name: part[name] for name in _BESIDE if part.get(name) is not None}
    if not more.keys() - {"provider_name"}:
        return []
    details = _details(part)
    own: Json = {}
    match service:
        case "openai":
            of_its = "phase" if part["part_kind"] == "text" else "namespace"
            own = {"id": part.get("id"), of_its: details.get(of_its)}
        case "google":
            own = _signature(details)
    own = {name: value for name, value in own.items() if value is not None}
    if own and _same([_beside_of(FORMS[service], own)], [more], service):
        return [Opaque(FORMS[service], reading.raw(at, own))]
    kept = {**more, "part_kind": part["part_kind"]}
    return [Opaque(FORMS.get(service, service) or PROVIDER, reading.raw(at, kept))]


def _signature(details: Json) -> Json:
    signature = details.get("thought_signature")
    return {"thoughtSignature": signature} if isinstance(signature, str) else {}


def _details(part: Json) -> Json:
    details = part.get("provider_details")
    return details if isinstance(details, dict) else {}


def _same(given: Sequence[Json], run: Sequence[Json], service: str) -> bool:
    """Do they say the same, if a part that does not say whose it is is its service's?"""
    said = [{name: value for name, value in part.items() if value is not None} for part in run]
    return list(given) == [{"provider_name": service, **part} for part in said]


def responded(turn: Assistant, ids: Mapping[str, str], service: str | None = None) -> list[Json]:
    """The parts of a response, its calls under the ids that they have by our own (`<turn>-<index>`).

    A call without an id is left out, with what belongs to it.

    Args:
        service: only its opaque parts; None for those of all.
    """
    parts: list[Json] = []
    beside: Json = {}  # what the next part has beside its text or its call
    alone = False  # the item that comes next came of reasoning that cannot be sent
    index = -1
    for part in turn.parts:
        match part:
            case Text(text=text):
                parts.append({"content": text, **_without_id(beside, alone), "part_kind": "text"})
            case Wish(tool=tool, arguments=arguments):
                index += 1
                id_ = ids.get(f"{turn.turn}-{index}")
                if id_ is None:
                    _drop_thought(parts)
                else:
                    call = {"tool_name": tool_name(tool), "args": arguments, "tool_call_id": id_}
                    # OpenAI takes its own copy of an item that it is sent by id, and that has the call's first id.
                    renamed = id_ != part.provider_id
                    parts.append({**call, **_without_id(beside, alone or renamed), "part_kind": "tool-call"})
            case Opaque(provider=provider) if service is not None and provider != FORMS.get(service, service):
                continue
            case Opaque(provider=provider, data=data):
                own = parsed_object(data)
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


def _unspoken(beside: Json) -> list[Json]:
    """A signature that nothing was said with: Google's service puts it on an empty text."""
    signed = "thought_signature" in _details(beside)
    return [{"content": "", **beside, "part_kind": "text"}] if signed else []


def _without_id(beside: Json, without: bool) -> Json:
    return {name: value for name, value in beside.items() if not (without and name == "id")}


def _drop_thought(parts: list[Json]) -> None:
    """Take back the reasoning of OpenAI's that nothing came of."""
    while parts and parts[-1]["part_kind"] == "thinking" and parts[-1].get("provider_name") == "openai":
        parts.pop()


#: What a text or a call may have that no fact of its own says.
_BESIDE: Final[dict[str, type]] = {
    "id": str,
    "provider_name": str,
    "provider_details": dict,
    "tool_kind": str,
    "citations": list,
}


def _beside_of(provider: str, own: Json) -> Json:
    """What an opaque part says of the part after it; empty where it says nothing of it."""
    match provider, own:
        case _, {"part_kind": "text" | "tool-call"}:
            more = {name: own[name] for name, fits in _BESIDE.items() if isinstance(own.get(name), fits)}
            return _named(provider, more) if more else {}
        case _, {"part_kind": _} | {"type": _}:
            return {}
        case "openai-responses", _:
            id_ = {"id": own["id"]} if isinstance(own.get("id"), str) else {}
            details = {name: own[name] for name in ("phase", "namespace") if own.get(name) is not None}
            found = {**id_, **({"provider_details": details} if details else {})}
            return {**found, "provider_name": "openai"} if found else {}
        case "gemini", {"thoughtSignature": str(signature)} if len(own) == 1:
            return {"provider_details": _signed(signature), "provider_name": "google"}
        case _:
            return {}


def _signed(signature: str) -> Json:
    """In the one spelling that the library reads: the standard alphabet, padded."""
    bare = signature.rstrip("=").replace("-", "+").replace("_", "/")
    padded = bare + "=" * (-len(bare) % 4)
    try:
        base64.b64decode(padded, validate=True)
    except ValueError:
        return {}
    return {"thought_signature": padded}


def _parts(provider: str, own: Json) -> list[Json]:
    """The parts that an opaque one stands for; none where the library has none for it."""
    match provider, own:
        case _, {"part_kind": kind}:
            fits = kind not in ("text", "tool-call") and not _shape_problem(own, _RESPONSE_PARTS)
            return [_named(provider, own)] if fits else []
        case "anthropic", {"type": "thinking", "thinking": str(text), "signature": str(signature)} if (
            signature
        ):
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


def _reasoned(id_: str, summary: list[Any], item: Json) -> list[Json]:
    """A part for each text of the summary; what there is once stands in the first."""
    texts = [one["text"] for one in summary if isinstance(one, dict) and isinstance(one.get("text"), str)]
    content = item.get("content") or []
    raw = [one.get("text") for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    signature = item.get("encrypted_content")
    once = {
        "signature": signature if isinstance(signature, str) and signature else None,
        "provider_details": {"raw_content": raw} if raw and all(isinstance(text, str) for text in raw) else None,
    }  # fmt: skip
    if len(texts) != len(summary) or not (texts or any(once.values())):
        return []
    first, *others = texts or [""]
    return [_thought("openai", first, id=id_, **once), *(_thought("openai", text, id=id_) for text in others)]


def _thought(service: str, content: str, **fields: Any) -> Json:
    said = {name: value for name, value in fields.items() if value is not None}
    return {"content": content, **said, "provider_name": service, "part_kind": "thinking"}


def _named(provider: str, part: Json) -> Json:
    """The part, saying whose it is: in a list of messages nothing else does."""
    if provider == PROVIDER or part.get("provider_name") is not None:
        return part
    return {**part, "provider_name": _SERVICES.get(provider, provider)}


_SERVICES: Final = {form: service for service, form in FORMS.items()}


# ---------------------------------------------------------------------------------------------------- checking


class _Seen(Struct):
    """What the messages so far hold. Grows while they are checked."""

    used: set[str] = msgspec.field(default_factory=set)
    #: Of the last response: each call's tool.
    tools: dict[str, str] = msgspec.field(default_factory=dict)
    answered: set[str] = msgspec.field(default_factory=set)
    asked_at: int = 0


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the library would turn down or silently change, in the order of the messages."""
    messages = messages_of(payload)
    problems: list[FormatProblem] = []
    seen = _Seen()
    if not messages:
        problems.append(FormatProblem(11, 0, "there is no message. Say something first."))
    for at, message in enumerate(messages):
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind not in ("request", "response") or not isinstance(message.get("parts"), list):
            problems.append(
                FormatProblem(
                    11, at, "a message is an object of kind request or response with a list of parts."
                )
            )
            continue
        if kind == "response":
            problems += _unanswered(seen)
            seen.tools, seen.answered, seen.asked_at = {}, set(), at
            if message.get("state") == "suspended" and at == len(messages) - 1:
                problems.append(
                    FormatProblem(10, at, "the provider still works on it. Wait for the response.")
                )
        problems += _check_time(at, message)
        known = _RESPONSE_PARTS if kind == "response" else _REQUEST_PARTS
        for part in message["parts"]:
            if wrong := _shape_problem(part, known):
                problems.append(FormatProblem(8, at, f"in a {kind}, {wrong}"))
                continue
            problems += _check_time(at, part)
            if part["part_kind"] == "tool-call":
                problems += _check_call(at, part, seen)
            elif _answers(part):
                problems += _check_return(at, part, seen)
    return sorted([*problems, *_unanswered(seen)], key=lambda problem: problem.message)


def _shape_problem(part: Any, known: dict[str, dict[str, type | tuple[type, ...]]]) -> str:
    """What keeps it from being a part there; nothing, if it is one."""
    kind = part.get("part_kind") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in known:
        other = f"is {kind!r}" if isinstance(kind, str) else "has none"
        return f"the kind of a part is one of {', '.join(known)}; this one {other}."
    for field, fits in known[kind].items():
        if field not in part or not isinstance(part[field], fits):
            return f"a {kind} part needs `{field}`. Write it, or leave the part out."
    if (
        kind == "user-prompt"
        and isinstance(part["content"], list)
        and not all(map(_is_item, part["content"]))
    ):
        return "a prompt lists something that is neither text nor an object with a kind. Leave it out."
    return ""


def _is_item(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, dict) and isinstance(item.get("kind"), str))


def _answers(part: Json) -> bool:
    """A return, or the older form of one that asks to try again; without a tool's name that is a prompt."""
    return part["part_kind"] == "tool-return" or (
        part["part_kind"] == "retry-prompt" and part.get("tool_name") is not None
    )


def _id(part: Json) -> str:
    """Empty where there is none, or none that is text."""
    id_ = part.get("tool_call_id")
    return id_ if isinstance(id_, str) else ""


def _check_time(at: int, stamped: Json) -> list[FormatProblem]:
    # A message may say that it has none, a part may not.
    nothing = stamped.get("timestamp") is None and ("timestamp" not in stamped or "kind" in stamped)
    if nothing or isinstance(stamped["timestamp"], str):
        return []
    return [FormatProblem(12, at, "a timestamp is no text. Write it as ISO 8601, or leave it out.")]


def _unanswered(seen: _Seen) -> list[FormatProblem]:
    return [
        FormatProblem(
            1, seen.asked_at, f"{id_!r} has no return before the next response. Wait for it, and send the turn whole."
        )
        for id_ in seen.tools
        if id_ not in seen.answered
    ]  # fmt: skip


def _check_call(at: int, call: Json, seen: _Seen) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    id_, tool = _id(call), call["tool_name"]
    if not id_:
        problems.append(FormatProblem(4, at, "the id of a call is no text, or empty. Mint one."))
    elif id_ in seen.used:
        problems.append(FormatProblem(4, at, f"{id_!r} stands for an earlier call too. Mint another."))
    if not TOOL_NAME.fullmatch(tool):
        problems.append(
            FormatProblem(
                5, at, f"the tool name {tool!r} is not 1 to 64 of A-Z a-z 0-9 _ -. Replace the rest."
            )
        )
    if not isinstance(call.get("args"), str | dict | None):
        problems.append(
            FormatProblem(7, at, f"the arguments of {id_!r} are no text and no object. Send the raw text.")
        )
    seen.used.add(id_)
    seen.tools[id_] = tool
    return problems


def _check_return(at: int, part: Json, seen: _Seen) -> list[FormatProblem]:
    id_, outcome = _id(part), part.get("outcome", "success")
    problems: list[FormatProblem] = []
    if part["part_kind"] == "tool-return":
        content = part["content"]
        if outcome not in _OUTCOMES:
            problems.append(
                FormatProblem(9, at, f"the outcome of {id_!r} is none of {', '.join(_OUTCOMES)}.")
            )
        elif outcome != "success" and isinstance(content, str) and not content.strip():
            problems.append(
                FormatProblem(9, at, f"{id_!r} is {outcome} and says nothing. Say what went wrong.")
            )
    if id_ not in seen.tools:
        drop = "Put it there, or drop it."
        return [*problems, FormatProblem(2, at, f"the return of {id_!r} does not follow a response with that call. {drop}")]  # fmt: skip
    if id_ in seen.answered:
        problems.append(FormatProblem(3, at, f"{id_!r} is answered twice. Keep one return."))
    if part["tool_name"] != seen.tools[id_]:
        names = f"{seen.tools[id_]!r} and is answered as {part['tool_name']!r}"
        problems.append(FormatProblem(6, at, f"{id_!r} calls {names}. Use one name."))
    seen.answered.add(id_)
    return problems


# ----------------------------------------------------------------------------------------------------- reading


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The messages in our words: the outputs of a reply directly after it, in the order of its calls.

    Raises:
        BadInput: something cannot be read without a guess; says at which message.
    """
    messages = reading.listed(payload, "messages")
    for problem in check(messages) if messages else ():
        if problem.rule in _UNREADABLE:
            raise BadInput(str(problem))
    steps: list[ConversationStep] = []
    spoken: list[Spoken] = []
    outputs: dict[str, Output] = {}
    waiting: tuple[Wish, ...] = ()
    instructions: str | None = None
    for at, message in enumerate(messages):
        if message["kind"] == "response":
            steps += [*(outputs[wish.provider_id] for wish in waiting), *spoken]
            spoken, outputs = [], {}
            reply = _read_reply(at, message)
            waiting = reply.wishes
            if len({wish.provider_id for wish in waiting}) < len(waiting):
                raise reading.refusal(at, "two calls have one id. Whose return is whose is not said.")
            steps.append(reply)
            continue
        told = message.get("instructions")
        if isinstance(told, str) and told != instructions:
            instructions = told
            spoken.append(Spoken("system", told))
        for part in message["parts"]:
            if _answers(part):
                output = _read_output(at, part)
                outputs[output.provider_id] = output
            else:
                spoken.append(_read_spoken(at, part))
    return (*steps, *(outputs[wish.provider_id] for wish in waiting), *spoken)


def _read_reply(at: int, message: Json) -> RecordedReply:
    return RecordedReply(
        recorded(message["parts"], lambda part: _whose(part, message.get("provider_name")), at)
    )


def _whose(part: Json, default: Any) -> str:
    """The service that gave the part, if the part or its response says so."""
    return next((name for name in (part.get("provider_name"), default) if isinstance(name, str)), "")


def _read_arguments(at: int, args: Any) -> str:
    if args is None:
        return "{}"
    return args if isinstance(args, str) else reading.raw(at, args)


def _read_spoken(at: int, part: Json) -> Spoken:
    match part:
        case {"part_kind": "system-prompt", "content": text}:
            return Spoken("system", text)
        case {"part_kind": "user-prompt", "content": str(text)}:
            return Spoken("user", text)
        case {"part_kind": "user-prompt", "content": list(items)} if all(
            isinstance(one, str) for one in items
        ):
            return Spoken("user", "\n\n".join(items))
        case {"part_kind": "user-prompt"}:
            raise reading.refusal(at, "a prompt holds more than text, and only texts are read.")
        case _:
            raise reading.refusal(
                at, f"a {part['part_kind']} is no text and answers no call. It cannot be read."
            )


def _read_output(at: int, part: Json) -> Output:
    content = part["content"]
    text = content if isinstance(content, str) else reading.raw(at, content)
    is_error = part["part_kind"] != "tool-return" or part.get("outcome", "success") != "success"
    return Output(_id(part), part["tool_name"], text, is_error=is_error)
