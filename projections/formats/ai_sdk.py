"""Histories for the Vercel AI SDK: its `ModelMessage` list.

Its other form, `UIMessage`, is in `ai_sdk_ui`, which also says how `--for ai-sdk` comes to take both.

What is turned down. The SDK stands before many providers, so rules 5, 8, 9 and 10 are those of the strictest behind it.
Sources are the SDK's own (`packages/ai/src`, version 6) unless named:

1.  Every call has its result in the tool messages directly after it; consecutive ones count as one message
    (`MissingToolResultsError` in `prompt/convert-to-language-model-prompt.ts`). The SDK would run a call that is
    approved and has no result. Nothing here is run because a payload says so, so such a call lacks its result.
2.  A result answers a call of the assistant message before it.
3.  A call is answered once.
4.  A `toolCallId` is text, not empty, and stands for one call of the whole list: the SDK looks calls up by it
    (`generate-text/collect-tool-approvals.ts`).
5.  A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - .
6.  A result has the name of its call's tool (`@ai-sdk/google` sends only the name).
7.  Content is of the shape for its role: text for system; text or parts for user and assistant; parts for tool
    (`prompt/message.ts`). Each part is of a type that may stand there, with its fields (`prompt/content-part.ts`).
8.  A text has a visible character, and a list of parts has a part: the SDK drops empty parts without a word.
9.  System messages open the list: later ones are refused by `@ai-sdk/google` (vercel/ai#2384) and others.
10. A call's `input` is an object, whatever the schema allows: Anthropic takes no other.
11. An output is text, json, execution-denied, error-text, error-json or content, with its fields, and an error text
    says something.
12. An approval is asked for a call that stands before it in the same message, under an id that is not used yet
    (`ToolCallNotFoundForApprovalError`; the SDK would take any order).
13. An approval is answered once, and only where it was asked (`InvalidToolApprovalError`).
14. No approval is left open.
15. There is a message (`prompt/standardize-prompt.ts`), and each is an object with a role that exists and without
    the fields of other forms (`tool_calls`, `tool_call_id`, `parts`), which the SDK drops without a word.

A settled call is written as call and result, without approval parts. A denial is `execution-denied`; every other
ending without a result is an `error-text`, so that a person's no and nobody's answer stay two things.

What the form cannot carry, and is lost from entries to steps:

* the arguments' text: their value is kept, and texts that are no object or could be read in two ways (a key twice)
  are wrapped whole (`MALFORMED`); blank ones become `{}`;
* ids that are empty or stand for two calls, and tool names that rule 5 refuses;
* texts without a visible character, in a turn with something else; alone they say so (`BLANK`);
* who speaks (`name`), and that a note, or a system text after the opening, is not the user's: it is a user message
  that says so in words;
* opaque parts of other providers. One of ours (`Opaque.provider == "ai-sdk"`) holds the JSON of a `reasoning` or
  `file` part;
* that an outcome was a denial: `read` has one word, `is_error`, so a second writing has `error-text` there.

Not read at all: `providerOptions` of messages, texts, calls and results. What a provider ran itself
(`providerExecuted`), pictures and files of users are refused, not skipped.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.projections.formats import reading
from ayes.projections.formats.common import (
    BLANK,
    TOOL_NAME,
    FormatProblem,
    Paired,
    Payload,
    call_id,
    input_of,
    messages_of,
    noted,
    paired,
    parsed,
    tool_name,
    visible,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Opaque, Part, Text, Wish

PROVIDER: Final = "ai-sdk"

type Json = dict[str, Any]

_OPAQUE: Final = ("reasoning", "file")
_FOREIGN: Final = ("tool_calls", "tool_call_id", "parts")
#: What a reader cannot get past without a guess. The other rules are about sending, not about what was meant.
_UNREADABLE: Final = frozenset({1, 2, 3, 6, 7, 11, 12, 13, 14, 15})


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`: ModelMessages."""
    messages: list[Json] = []
    for step, ids in numbered(entries):
        match step:
            case Paired(assistant=assistant, outcomes=outcomes):
                messages.append({"role": "assistant", "content": _said(assistant, ids)})
                if outcomes:
                    results = [_result(id_, *pair) for id_, pair in zip(ids, outcomes, strict=True)]
                    messages.append({"role": "tool", "content": results})
            case said:
                role, text = spoken(said, opening=all(one["role"] == "system" for one in messages))
                messages.append({"role": role, "content": text})
    return {"messages": messages}


def numbered(entries: Sequence[Entry]) -> Iterator[tuple[System | User | Note | Paired, list[str]]]:
    """The entries in pairs, each turn with the ids of its calls."""
    used: set[str] = set()
    for step in paired(entries):
        outcomes = step.outcomes if isinstance(step, Paired) else ()
        yield step, [call_id(outcome, used, _is_id) for _wish, outcome in outcomes]


def spoken(step: System | User | Note, *, opening: bool) -> tuple[str, str]:
    """Role and text."""
    match step:
        case System(text=text) if opening:
            return "system", visible(text)
        case System(text=text):
            return "user", noted(text)
        case Note(text=text, name=name):
            return "user", noted(text, name)
        case User(text=text):
            return "user", visible(text)


def _said(assistant: Assistant, ids: Iterable[str]) -> list[Json]:
    minted = iter(ids)
    parts = [part for one in assistant.parts if (part := _part(one, minted)) is not None]
    return parts or [{"type": "text", "text": BLANK}]


def _part(part: Part, ids: Iterator[str]) -> Json | None:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case Wish(tool=tool, arguments=arguments):
            return {
                "type": "tool-call",
                "toolCallId": next(ids),
                "toolName": tool_name(tool),
                "input": input_of(arguments),
            }
        case Opaque(provider="ai-sdk", data=data):
            kept = parsed(data)
            fits = isinstance(kept, dict) and kept.get("type") in _OPAQUE and not _lacks(kept)
            return kept if fits else None
        case Opaque():
            return None


def _result(id_: str, wish: Wish, outcome: Outcome) -> Json:
    return {
        "type": "tool-result",
        "toolCallId": id_,
        "toolName": tool_name(wish.tool),
        "output": output_of(outcome),
    }


def output_of(outcome: Outcome) -> Json:
    """A person's no, any other ending without a result, or the result."""
    if outcome.kind == "denied":
        return {"type": "execution-denied", "reason": visible(outcome.text)}
    if outcome.is_error:
        return {"type": "error-text", "value": visible(outcome.text)}
    return {"type": "text", "value": outcome.text}


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""


# ---------------------------------------------------------------------------------------------------- checking


class _Seen(Struct):
    """What the messages so far hold. Grows while they are checked."""

    used: set[str] = msgspec.field(default_factory=set)
    #: Of the last assistant message: each call's tool.
    tools: dict[str, str] = msgspec.field(default_factory=dict)
    answered: set[str] = msgspec.field(default_factory=set)
    asked_at: int = 0
    #: By approval id: the message that asks.
    approvals: dict[str, int] = msgspec.field(default_factory=dict)
    responded: set[str] = msgspec.field(default_factory=set)
    #: Calls that the provider runs itself: their results are the assistant's.
    served: set[str] = msgspec.field(default_factory=set)


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the SDK, or a provider behind it, would turn down, in the order of the messages."""
    messages = messages_of(payload)
    problems: list[FormatProblem] = []
    seen = _Seen()
    opening = True
    if not messages:
        problems.append(FormatProblem(15, 0, "there is no message. Say something first."))
    for at, message in enumerate(messages):
        wrong = _foreign(message)
        if wrong:
            problems.append(FormatProblem(15, at, wrong))
            continue
        role, content = message["role"], message.get("content")
        if role != "tool":
            problems += _unanswered(seen)
            seen.tools, seen.answered, seen.asked_at = {}, set(), at
        if role == "system" and not opening:
            problems.append(
                FormatProblem(
                    9, at, "a system message comes late. Put it first, or make it a user's that says so."
                )
            )
        opening = opening and role == "system"
        if isinstance(content, str) and role != "tool":
            problems += _check_text(at, content)
        elif isinstance(content, list) and role != "system":
            if not content:
                problems.append(FormatProblem(8, at, "the content is an empty list. Leave the message out."))
            for part in content:
                problems += _check_part(at, role, part, seen)
        else:
            shape = {"system": "text", "tool": "a list of parts"}.get(role, "text or a list of parts")
            problems.append(FormatProblem(7, at, f"the content of a {role} message is {shape}. Write it so."))
    problems += _unanswered(seen)
    problems += [
        FormatProblem(14, asked_at, f"the approval {id_!r} is open. Wait for it, and send the turn whole.")
        for id_, asked_at in seen.approvals.items()
        if id_ not in seen.responded
    ]
    return sorted(problems, key=lambda problem: problem.message)


def _foreign(message: Any) -> str:
    """What keeps it from being a message at all; nothing, if it is one."""
    if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant", "tool"):
        return "a message is an object with one of the roles system, user, assistant, tool."
    foreign = [field for field in _FOREIGN if field in message]
    return f"`{foreign[0]}` is a field of another form. Write it as parts of the content." if foreign else ""


def _unanswered(seen: _Seen) -> list[FormatProblem]:
    return [
        FormatProblem(
            1,
            seen.asked_at,
            f"{id_!r} has no result directly after it. Wait for it, and send the turn whole.",
        )
        for id_ in seen.tools
        if id_ not in seen.answered
    ]


def _check_text(at: int, text: str) -> list[FormatProblem]:
    return [] if text.strip() else [FormatProblem(8, at, "a text has no visible character. Leave it out.")]


def _check_part(at: int, role: str, part: Any, seen: _Seen) -> list[FormatProblem]:
    """One part of a message. Marks what it asks and answers."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _PARTS[role]:
        other = f"is {kind!r}" if isinstance(kind, str) else "has none"
        known = ", ".join(_PARTS[role])
        return [
            FormatProblem(7, at, f"the type of a part is one of {known} for role {role}; this one {other}.")
        ]
    if lacking := _lacks(part):
        return [FormatProblem(7, at, f"a {kind} part needs {lacking}. Write it, or leave the part out.")]
    match kind:
        case "text":
            return _check_text(at, part["text"])
        case "tool-call":
            return _check_call(at, part, seen)
        case "tool-result" if role == "assistant":
            return _check_served(at, part, seen)
        case "tool-result":
            return _check_result(at, part, seen)
        case "tool-approval-request":
            return _check_request(at, part, seen)
        case "tool-approval-response":
            return _check_response(at, part, seen)
        case _:
            return []


def _check_call(at: int, call: Json, seen: _Seen) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    id_, tool = call["toolCallId"], call["toolName"]
    if not id_ or id_ in seen.used:
        what = f"{id_!r} stands for an earlier call too" if id_ else "a call's id is empty"
        problems.append(FormatProblem(4, at, f"{what}. Mint another."))
    if not TOOL_NAME.fullmatch(tool):
        problems.append(
            FormatProblem(
                5, at, f"the tool name {tool!r} is not 1 to 64 of A-Z a-z 0-9 _ -. Replace the rest."
            )
        )
    if not isinstance(call.get("input"), dict):
        problems.append(
            FormatProblem(10, at, f"the input of {id_!r} is no object. Wrap it under a name that says so.")
        )
    seen.used.add(id_)
    if call.get("providerExecuted") is True:
        seen.served.add(id_)
    else:
        seen.tools[id_] = tool
    return problems


def _check_served(at: int, result: Json, seen: _Seen) -> list[FormatProblem]:
    """A result in the assistant's own message: of a tool that the provider ran."""
    id_ = result["toolCallId"]
    if id_ not in seen.served:
        return [FormatProblem(2, at, f"the result of {id_!r} stands with the assistant, which did not run it. Put it into a tool message.")]  # fmt: skip
    return _check_output(at, result["output"])


def _check_result(at: int, result: Json, seen: _Seen) -> list[FormatProblem]:
    id_, tool = result["toolCallId"], result["toolName"]
    problems = _check_output(at, result["output"])
    if id_ not in seen.tools:
        return [
            *problems,
            FormatProblem(
                2,
                at,
                f"the result of {id_!r} does not follow an assistant message with that call. Put it there, or drop it.",
            ),
        ]
    if id_ in seen.answered:
        problems.append(FormatProblem(3, at, f"{id_!r} is answered twice. Keep one result."))
    if tool != seen.tools[id_]:
        problems.append(
            FormatProblem(
                6, at, f"{id_!r} calls {seen.tools[id_]!r} and is answered as {tool!r}. Use one name."
            )
        )
    seen.answered.add(id_)
    return problems


def _check_output(at: int, output: Any) -> list[FormatProblem]:
    match output:
        case {"type": "text", "value": str()} | {"type": "json" | "error-json", "value": _}:
            return []
        case {"type": "error-text", "value": str(text)} if text.strip():
            return []
        case {"type": "error-text", "value": str()}:
            return [FormatProblem(11, at, "an error says nothing. Say what went wrong.")]
        case {"type": "execution-denied", **rest} if isinstance(rest.get("reason", ""), str):
            return []
        case {"type": "content", "value": list(items)} if all(_is_item(item) for item in items):
            return []
        case _:
            return [
                FormatProblem(
                    11,
                    at,
                    "an output is an object of type text, json, execution-denied, error-text, error-json or content, "
                    "with its value. Write one of these.",
                )
            ]


def _is_item(item: Any) -> bool:
    match item:
        case {"type": "text", "text": str()} | {"type": "custom"}:
            return True
        case {"type": "media" | "file-data" | "image-data", "data": str(), "mediaType": str()}:
            return True
        case {"type": "file-url" | "image-url", "url": str()}:
            return True
        case {"type": "file-id" | "image-file-id", "fileId": str() | dict()}:
            return True
        case _:
            return False


def _check_request(at: int, request: Json, seen: _Seen) -> list[FormatProblem]:
    id_, call = request["approvalId"], request["toolCallId"]
    if call not in seen.tools and call not in seen.served:
        return [
            FormatProblem(
                12, at, f"the approval {id_!r} is for {call!r}, no call before it here. Put it after."
            )
        ]
    if not id_ or id_ in seen.approvals:
        return [FormatProblem(12, at, f"the approval id {id_!r} is empty or used already. Mint another.")]
    seen.approvals[id_] = at
    return []


def _check_response(at: int, response: Json, seen: _Seen) -> list[FormatProblem]:
    id_ = response["approvalId"]
    if id_ not in seen.approvals:
        return [FormatProblem(13, at, f"nobody asked for the approval {id_!r}. Put the request before, or drop it.")]  # fmt: skip
    if id_ in seen.responded:
        return [FormatProblem(13, at, f"the approval {id_!r} is answered twice. Keep one answer.")]
    seen.responded.add(id_)
    return []


_PARTS: Final[dict[str, tuple[str, ...]]] = {
    "user": ("text", "image", "file"),
    "assistant": ("text", "file", "reasoning", "tool-call", "tool-result", "tool-approval-request"),
    "tool": ("tool-result", "tool-approval-response"),
}

_is_text: Final[Callable[[Any], bool]] = lambda value: isinstance(value, str)  # noqa: E731
_FIELDS: Final[dict[str, dict[str, Callable[[Any], bool]]]] = {
    "text": {"text": _is_text},
    "reasoning": {"text": _is_text},
    "image": {"image": _is_text},
    "file": {"data": _is_text, "mediaType": _is_text},
    "tool-call": {"toolCallId": _is_text, "toolName": _is_text},
    "tool-result": {"toolCallId": _is_text, "toolName": _is_text, "output": lambda _: True},
    "tool-approval-request": {"approvalId": _is_text, "toolCallId": _is_text},
    "tool-approval-response": {"approvalId": _is_text, "approved": lambda value: isinstance(value, bool)},
}


def _lacks(part: Json) -> str:
    """The first field that a part of its type must have and has not."""
    for field, fits in _FIELDS[part["type"]].items():
        if field not in part or not fits(part[field]):
            return f"`{field}`"
    return ""


# ----------------------------------------------------------------------------------------------------- reading


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The ModelMessages in our words: the outputs of a reply directly after it, in the order of its calls.

    Raises:
        BadInput: something cannot be read without a guess; says at which message.
    """
    messages = reading.listed(payload, "messages")
    for problem in check(messages) if messages else ():
        if problem.rule in _UNREADABLE:
            raise BadInput(str(problem))
    steps: list[ConversationStep] = []
    outputs: dict[str, Output] = {}
    waiting: tuple[Wish, ...] = ()
    for at, message in enumerate(messages):
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "tool":
            outputs |= {
                part["toolCallId"]: _read_output(at, part) for part in parts if part["type"] == "tool-result"
            }
            continue
        steps += [outputs[wish.provider_id] for wish in waiting]
        outputs, waiting = {}, ()
        if message["role"] == "assistant":
            reply = RecordedReply(tuple(_read_part(at, part) for part in parts if part["type"] != "tool-approval-request"))  # fmt: skip
            waiting = reply.wishes
            if len({wish.provider_id for wish in waiting}) < len(waiting):
                raise reading.refusal(at, "two calls have one id. Whose result is whose is not said.")
            steps.append(reply)
        else:
            steps.append(Spoken(message["role"], read_texts(at, parts)))
    return (*steps, *(outputs[wish.provider_id] for wish in waiting))


def read_texts(at: int, parts: list[Json]) -> str:
    """Several texts of one speaker are paragraphs of one."""
    for part in parts:
        if part["type"] != "text":
            raise BadInput(
                f"message {at}: a part of type {part['type']!r} is no text, and only texts are read."
            )
    return "\n\n".join(part["text"] for part in parts)


def _read_part(at: int, part: Json) -> Part:
    match part:
        case {"type": "text", "text": text}:
            return Text(text)
        case {"type": "tool-call", "toolCallId": id_, "toolName": tool} if not part.get("providerExecuted"):
            return Wish(tool, read_input(at, part.get("input", {})), id_)
        case {"type": "reasoning" | "file"}:
            return Opaque(PROVIDER, reading.raw(at, part))
        case _:
            raise reading.refusal(at, f"a {part['type']} that the provider ran itself cannot be read.")


def read_input(at: int, value: Any) -> str:
    match value:
        case {"malformed_arguments": str(raw)} if len(value) == 1 and input_of(raw) == value:
            return raw
        case str(raw):
            # What the SDK keeps of a call whose arguments it could not parse.
            return raw
        case _:
            return reading.raw(at, value)


def _read_output(at: int, part: Json) -> Output:
    id_, tool = part["toolCallId"], part["toolName"]
    match part["output"]:
        case {"type": "text", "value": text}:
            return Output(id_, tool, text)
        case {"type": "error-text", "value": text}:
            return Output(id_, tool, text, is_error=True)
        case {"type": "json", "value": value}:
            return Output(id_, tool, reading.raw(at, value))
        case {"type": "error-json", "value": value}:
            return Output(id_, tool, reading.raw(at, value), is_error=True)
        case {"type": "content", "value": items}:
            return Output(id_, tool, read_texts(at, items))
        case {"reason": str(reason)} if reason.strip():
            return Output(id_, tool, reason, is_error=True)
        case _:
            return Output(id_, tool, f"`{tool}` did not run: it was denied.", is_error=True)
