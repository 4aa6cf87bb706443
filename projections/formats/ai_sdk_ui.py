"""Histories as the Vercel AI SDK shows them: its `UIMessage` list, which a chat on a screen keeps and sends again.

A call and its end are one part here, with one state, and these fields for each:

    state                 input   output   errorText   approval
    input-streaming       may     no       no          no              ┐
    input-available       yes     no       no          no              │ it waits: somebody must
    approval-requested    yes     no       no          open            │ go on with it
    approval-responded    yes     no       no          answered        ┘
    output-available      yes     yes      no          may: approved   ┐
    output-error          may     no       yes         may: approved   │ it has ended
    output-denied         yes     no       no          denied          ┘

What is turned down when the list is sent now. The numbers go on from those of `ai_sdk`, because `--for ai-sdk` judges
either form and a number must mean one thing. Sources are the SDK's own (`packages/ai/src`, version 6) unless named;
the SDK stands before many providers, so rules 25 and 30 to 34 are those of the strictest behind it:

21. There is a message, and each is an object with a text `id`, a role of system, user or assistant, and a list of
    `parts` (`ui/validate-ui-messages.ts`), without the fields of other forms (`content`, `toolInvocations`,
    `tool_calls`, `tool_call_id`), which the SDK drops without a word.
22. An `id` is not empty and stands for one message: the chat looks messages up by it (`ui/chat.ts`).
23. A part is of a type that exists (text, reasoning, file, source-url, source-document, step-start, data-<name>,
    tool-<name>, dynamic-tool) and has its fields (`ui/validate-ui-messages.ts`).
24. A part stands with a role that can say it: text with system; text, file and data-<name> with user; calls and the
    rest only with assistant. The SDK drops others without a word (`ui/convert-to-model-messages.ts`).
25. A message has a part that is sent (text, reasoning, file or a call), and a text has a visible character: the SDK
    drops such messages without a word.
26. A call has a known `state`, and the fields that its state needs and none that it forbids, as in the table
    (`ui/validate-ui-messages.ts`).
27. A call has ended (`MissingToolResultsError` in `prompt/convert-to-language-model-prompt.ts`; the SDK drops one that
    is still streamed, and sends a preliminary output as if it were the last). The SDK would run a call that is
    approved and has no output. Nothing here is run because a payload says so, so such a call waits.
    A provider's own call may go without an output.
28. No approval is left open.
29. An approval's `id` is not empty and stands for one approval (`generate-text/collect-tool-approvals.ts`).
30. A `toolCallId` is not empty and stands for one call of the whole list (the same file).
31. A tool's name is 1 to 64 characters of A-Z a-z 0-9 _ - .
32. A call's `input` is an object; where there is none in output-error, its `rawInput` is what is sent.
33. An `errorText`, or the reason of a denial, has a visible character.
34. System messages open the list (vercel/ai#2384).

What waits is shown too. `messages` gives a whole thread as it stands, each call in the state that its facts bear out:

    its facts                                                  its part
    a wish, requested or not, and nobody was asked about it    input-available
    put to people, and not decided                             approval-requested
    decided, after people were asked, and it has not ended     approval-responded
    it has ended                                               as `write` writes it

*   `approved` is true only for an approval that fits exactly what would run (`Call.flaw`) and was not taken back;
    `input` is then what was approved, edits included. Whatever else was decided is false, and `reason` says what it
    was, since nobody's answer is nobody's no.
*   An approval's id is the call's name, `workspace/thread/call`, by which a person votes.
*   A message's id is the subject of the slot that it shows, so that a thread which grows gives the same messages, and
    more of them at the end. A turn has its message from the moment its model is asked: a `step-start`, as the SDK
    begins each step. That is all there is of a turn whose model failed.
*   Nobody may run a call because of such a list. The SDK would run what is approved in it.

Why two names. A checker and a reader can see which form they were given, so those of `ai-sdk` take both
(`check_either`, `read_either`). A writer cannot, so UIMessages are written for `ai-sdk-ui`; its checker and reader
take nothing else, because whoever keeps UIMessages wants to hear of a ModelMessage among them.

What the form cannot carry, and is lost from entries to steps, besides what `ai_sdk` says of arguments, ids, names,
blank texts, notes and denials (`read` has one word, `is_error`, so a second writing has `output-error` there):

* opaque parts of others, also of `ai-sdk`: they are for models. One of ours (`Opaque.provider == "ai-sdk-ui"`) holds
  the JSON of a `source-url`, `source-document` or `data-<name>` part, which is for people alone.

What is lost from UIMessages to entries: ids and `metadata` of messages, and which turns stood in one message (a
`step-start` ends a turn; each turn is written as a message); the state of texts; `title`, `toolMetadata` and whether
a tool was static or dynamic; approvals of calls that ended, since a payload's word decides nothing here; an output
that was no text comes back as its JSON. `providerMetadata` of texts and calls is not read; a `reasoning` or `file`
part keeps its own, as an opaque part of `ai-sdk`. What a provider ran itself, and files and data of users, are
refused, not skipped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.ledger.lifecycle import NOT_RUN, SETTLED, Call
from ayes.projections import refusal_texts
from ayes.projections.formats import ai_sdk, reading
from ayes.projections.formats.ai_sdk import Json
from ayes.projections.formats.common import (
    BLANK,
    TOOL_NAME,
    FormatProblem,
    Paired,
    Payload,
    input_of,
    messages_of,
    minted,
    parsed,
    tool_name,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Entry, Note, Outcome, System, User, history, outcome
from ayes.projections.thread import Thread, Turn
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Approved, Opaque, Part, Text, Wish

PROVIDER: Final = "ai-sdk-ui"

#: Approved, and not known to have ended.
_FOREIGN: Final = ("content", "toolInvocations", "tool_calls", "tool_call_id")
#: What a reader cannot get past without a guess. The other rules are about sending, not about what was meant.
_UNREADABLE: Final = frozenset({21, 23, 24, 26, 27, 28, 29})


def write(entries: Sequence[Entry]) -> Payload:
    """`{"messages": [...]}`: UIMessages, numbered from m1, in which each call is one part with its state.

    A part's `approval` stands where the SDK asks for one, and only there: in `output-denied`.
    """
    messages: list[Json] = []
    for step, ids in ai_sdk.numbered(entries):
        id_ = f"m{len(messages) + 1}"
        match step:
            case Paired(assistant=assistant, outcomes=outcomes):
                calls = (
                    _ended(wish, tool_call_id, end, f"approval_{end.call}")
                    for tool_call_id, (wish, end) in zip(ids, outcomes, strict=True)
                )
                messages.append({"id": id_, "role": "assistant", "parts": _parts(assistant.parts, calls)})
            case said:
                messages.append(_spoken(id_, said, messages))
    return {"messages": messages}


def messages(thread: Thread) -> list[Json]:
    """The UIMessages of the whole thread as it stands, also of what waits; what is said meanwhile comes after it."""
    said = zip(thread.said, _said(thread), strict=True)
    steps: list[tuple[int, str, System | User | Note | Turn]] = [
        *((fact.seq, fact.slot.subject, entry) for fact, entry in said),
        *(
            (turn.cut, thread.ref.replied(number).subject, turn)
            for number, turn in thread.turns.items()
            if turn.cut is not None
        ),
    ]
    calls = _calls(thread)
    shown: list[Json] = []
    for _seq, id_, step in sorted(steps, key=itemgetter(0)):
        match step:
            case Turn(number=number, reply=reply):
                parts = _parts(reply.parts, iter(calls[number])) if reply else []
                shown.append({"id": id_, "role": "assistant", "parts": [{"type": "step-start"}, *parts]})
            case _:
                shown.append(_spoken(id_, step, shown))
    return shown


def _said(thread: Thread) -> Iterator[System | User | Note]:
    """What was said, as a history tells it."""
    for entry in history(Thread(thread.ref, said=thread.said)).entries:
        assert isinstance(entry, System | User | Note), f"{entry} was not said"
        yield entry


def _calls(thread: Thread) -> dict[int, list[Json]]:
    """The calls of each turn, under the ids that they have when all is settled."""
    used: set[str] = set()
    return {
        number: [
            _call(thread.call(ref), wish, minted(ref.call, wish.provider_id, used, bool))
            for ref, wish in thread.wishes(number)
        ]
        for number in thread.turns
    }


def _spoken(id_: str, said: System | User | Note, before: list[Json]) -> Json:
    role, text = ai_sdk.spoken(said, opening=all(one["role"] == "system" for one in before))
    return {"id": id_, "role": role, "parts": [{"type": "text", "text": text}]}


def _parts(given: Sequence[Part], calls: Iterator[Json]) -> list[Json]:
    parts = [part for one in given if (part := _part(one, calls)) is not None]
    return parts if any(_is_sent(part) for part in parts) else [*parts, {"type": "text", "text": BLANK}]


def _part(part: Part, calls: Iterator[Json]) -> Json | None:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text} if text.strip() else None
        case Wish():
            return next(calls)
        case Opaque(provider="ai-sdk-ui", data=data):
            kept = parsed(data)
            return kept if _kind(kept) in _FOR_PEOPLE and not _lacks(kept) else None
        case Opaque():
            return None


def _call(call: Call, wish: Wish, id_: str) -> Json:
    """A call as it stands."""
    approval = {"id": str(call.ref)}
    if call.status in SETTLED:
        return _ended(wish, id_, outcome(call, wish), approval["id"])
    if call.requested is None:
        return {**_wished(wish.tool, wish.arguments, id_), "state": "input-available"}
    shown = _wished(call.wish.tool, call.arguments, id_)
    if call.gated is None:
        return {**shown, "state": "input-available"}
    if call.decided is None:
        return {**shown, "state": "approval-requested", "approval": approval}
    return {**shown, "state": "approval-responded", "approval": {**approval, **_answer(call)}}


def _answer(call: Call) -> Json:
    """What came of asking people."""
    if call.status in NOT_RUN:
        return {"approved": False, "reason": refusal_texts.tool_not_run(call).text}
    if call.flaw is not None:
        return {"approved": False, "reason": "What is recorded as an approval does not hold for this call."}
    reason = call.decided.event.reason if call.decided and isinstance(call.decided.event, Approved) else ""
    return {"approved": True, "reason": reason} if reason.strip() else {"approved": True}


def _ended(wish: Wish, id_: str, end: Outcome, approval: str) -> Json:
    """A call with its outcome in one part."""
    shown = _wished(wish.tool, wish.arguments, id_)
    match ai_sdk.output_of(end):
        case {"type": "execution-denied", "reason": reason}:
            denial = {"id": approval, "approved": False, "reason": reason}
            return {**shown, "state": "output-denied", "approval": denial}
        case {"type": "error-text", "value": text}:
            return {**shown, "state": "output-error", "errorText": text}
        case output:
            return {**shown, "state": "output-available", "output": output["value"]}


def _wished(tool: str, arguments: str, id_: str) -> Json:
    return {
        "type": "dynamic-tool",
        "toolName": tool_name(tool),
        "toolCallId": id_,
        "input": input_of(arguments),
    }


def _is_sent(part: Json) -> bool:
    """Is it for the model too?"""
    return _kind(part) in ("text", "reasoning", "file", *_CALLS)


# ---------------------------------------------------------------------------------------------------- checking


class _Seen(Struct):
    """What the messages so far hold. Grows while they are checked."""

    messages: set[str] = msgspec.field(default_factory=set)
    calls: set[str] = msgspec.field(default_factory=set)
    approvals: set[str] = msgspec.field(default_factory=set)
    opening: bool = True


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the SDK, or a provider behind it, would turn down, in the order of the messages."""
    messages = messages_of(payload)
    problems: list[FormatProblem] = []
    seen = _Seen()
    if not messages:
        problems.append(FormatProblem(21, 0, "there is no message. Say something first."))
    for at, message in enumerate(messages):
        if wrong := _misshapen(message):
            problems.append(FormatProblem(21, at, wrong))
        else:
            problems += _check_message(at, message, seen)
    return problems


def check_either(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """A list of either form, by the rules of that form."""
    return check(payload) if _is_ui(payload) else ai_sdk.check(payload)


def _is_ui(payload: Payload | Sequence[Any]) -> bool:
    """UIMessages have `parts` where ModelMessages have `content`: the first message with either tells."""
    for message in messages_of(payload):
        if isinstance(message, dict) and ("parts" in message or "content" in message):
            return "parts" in message
    return False


def _misshapen(message: Any) -> str:
    """What keeps it from being a message at all; nothing, if it is one."""
    match message:
        case {"id": str(), "role": "system" | "user" | "assistant", "parts": list()}:
            foreign = [field for field in _FOREIGN if field in message]
            return f"`{foreign[0]}` is a field of another form. Write it as parts." if foreign else ""
        case _:
            return (
                "a message is an object with a text `id`, one of the roles system, user, assistant, and a list of "
                "`parts`. Write it so."
            )


def _check_message(at: int, message: Json, seen: _Seen) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    id_, role, parts = message["id"], message["role"], message["parts"]
    if not id_ or id_ in seen.messages:
        what = f"{id_!r} stands for an earlier message too" if id_ else "a message's id is empty"
        problems.append(FormatProblem(22, at, f"{what}. Mint another."))
    seen.messages.add(id_)
    if role == "system" and not seen.opening:
        problems.append(
            FormatProblem(
                34, at, "a system message comes late. Put it first, or make it a user's that says so."
            )
        )
    seen.opening = seen.opening and role == "system"
    wrong = [problem for part in parts for problem in _check_part(at, role, part, seen)]
    if not wrong and not any(_is_sent(part) for part in parts):
        wrong.append(FormatProblem(25, at, "no part of it is for the model. Leave the message out."))
    return [*problems, *wrong]


def _check_part(at: int, role: str, part: Any, seen: _Seen) -> list[FormatProblem]:
    """One part of a message. Marks the ids it uses."""
    kind = _kind(part)
    if not kind:
        return [
            FormatProblem(23, at, f"the type of a part is one of {', '.join(_FIELDS)}. Write one of these.")
        ]
    if lacking := _lacks(part):
        return [FormatProblem(23, at, f"a {kind} part needs {lacking}. Write it, or leave the part out.")]
    if kind not in _ROLES.get(role, _FIELDS):
        return [FormatProblem(24, at, f"a {kind} part stands with role {role}, which the SDK does not send. Leave it out, or put it where it belongs.")]  # fmt: skip
    if kind == "text" and not part["text"].strip():
        return [FormatProblem(25, at, "a text has no visible character. Leave it out.")]
    return _check_call(at, part, seen) if kind in _CALLS else []


def _check_call(at: int, part: Json, seen: _Seen) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    id_, tool = part["toolCallId"], _tool(part)
    if not id_ or id_ in seen.calls:
        what = f"{id_!r} stands for an earlier call too" if id_ else "a call's id is empty"
        problems.append(FormatProblem(30, at, f"{what}. Mint another."))
    seen.calls.add(id_)
    if not TOOL_NAME.fullmatch(tool):
        problems.append(
            FormatProblem(
                31, at, f"the tool name {tool!r} is not 1 to 64 of A-Z a-z 0-9 _ -. Replace the rest."
            )
        )
    if wrong := _misfit(part):
        return [*problems, FormatProblem(26, at, f"{id_!r} {wrong}")]
    if "approval" in part:
        approval = part["approval"]["id"]
        if not approval or approval in seen.approvals:
            problems.append(FormatProblem(29, at, f"the approval id {approval!r} is empty or used already. Mint another."))  # fmt: skip
        seen.approvals.add(approval)
    return [*problems, *_check_end(at, part)]


def _check_end(at: int, part: Json) -> list[FormatProblem]:
    """How it ended; or that it has not."""
    id_, state = part["toolCallId"], part["state"]
    served = part.get("providerExecuted") is True
    if state == "approval-requested":
        return [
            FormatProblem(
                28, at, f"the approval of {id_!r} is open. Wait for it, and send the message whole."
            )
        ]
    if state == "input-streaming" or (not served and state in ("input-available", "approval-responded")):
        return [FormatProblem(27, at, f"{id_!r} waits in {state}. Wait for its result, and send the message whole.")]  # fmt: skip
    if part.get("preliminary") is True:
        return [FormatProblem(27, at, f"the output of {id_!r} is preliminary. Wait for the last, and send the message whole.")]  # fmt: skip
    problems: list[FormatProblem] = []
    if not isinstance(_input(part), dict):
        problems.append(
            FormatProblem(32, at, f"the input of {id_!r} is no object. Wrap it under a name that says so.")
        )
    match part:
        case {"errorText": said} | {"state": "output-denied", "approval": {"reason": said}} if (
            not said.strip()
        ):
            problems.append(FormatProblem(33, at, f"the end of {id_!r} says nothing. Say what went wrong."))
    return problems


def _misfit(part: Json) -> str:
    """What in a call does not fit its state; nothing, if all does."""
    state = part["state"]
    if not isinstance(state, str) or state not in _STATES:
        return f"is in a state that is none of {', '.join(_STATES)}. Write one of these."
    needs, may = _STATES[state]
    for field in needs:
        if field not in part:
            return f"is in {state} and has no `{field}`. Write it, or the state that it is in."
    for field in ("output", "errorText", "approval"):
        if field in part and field not in (*needs, *may):
            return f"is in {state}, which has no `{field}`. Leave it out, or write the state that it is in."
    for field, fits in _STATE_FIELDS.get(state, {}).items():
        if field in part and not fits(part[field]):
            return f"has a `{field}` that does not fit {state}. Write it so that it does."
    if "approval" in part and not _fits(part["approval"], state):
        return f"has an approval that does not fit {state}. Write its `id`, and what was answered."
    return ""


def _fits(approval: Any, state: str) -> bool:
    match approval:
        case {"id": str(), "signature": signature} if not isinstance(signature, str):
            return False
        case {"id": str()} if state == "approval-requested":
            return "approved" not in approval and "reason" not in approval
        case {"id": str(), "approved": bool(approved)} if isinstance(approval.get("reason", ""), str):
            return state == "approval-responded" or approved is (state != "output-denied")
        case _:
            return False


def _kind(part: Any) -> str:
    """The type as the tables know it; nothing, if they do not."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return ""
    for prefix in ("data-", "tool-"):
        if kind.startswith(prefix):
            return f"{prefix}<name>"
    return kind if kind in _FIELDS else ""


def _lacks(part: Json) -> str:
    """The first field that a part of its type must have and has not, or that is not as it must be."""
    must, may = _FIELDS[_kind(part)]
    for field, fits in must.items():
        if field not in part or not fits(part[field]):
            return f"`{field}`"
    for field, fits in may.items():
        if field in part and not fits(part[field]):
            return f"another `{field}`, or none"
    return ""


def _tool(part: Json) -> str:
    name: str = part["toolName"] if part["type"] == "dynamic-tool" else part["type"].removeprefix("tool-")
    return name


def _input(part: Json) -> Any:
    """What the SDK sends as the call's input."""
    kept = part.get("input")
    return part.get("rawInput") if kept is None and part["state"] == "output-error" else kept


type _Fits = Mapping[str, Callable[[Any], bool]]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_metadata(value: Any) -> bool:
    """Of providers: an object of objects."""
    return isinstance(value, dict) and all(isinstance(inner, dict) for inner in value.values())


def _is_written(value: Any) -> bool:
    return value in ("streaming", "done")


def _is_any(_value: Any) -> bool:
    return True


_CALLS: Final = ("tool-<name>", "dynamic-tool")
_FOR_PEOPLE: Final = ("source-url", "source-document", "data-<name>")
_OF_TEXT: Final[_Fits] = {"state": _is_written, "providerMetadata": _is_metadata}
_OF_CALL: Final[_Fits] = {
    "providerExecuted": _is_flag,
    "toolMetadata": _is_object,
    "callProviderMetadata": _is_metadata,
}
#: By type: the fields that a part must have, and those that are as they should be if it has them.
_FIELDS: Final[dict[str, tuple[_Fits, _Fits]]] = {
    "text": ({"text": _is_text}, _OF_TEXT),
    "reasoning": ({"text": _is_text}, {"id": _is_text, **_OF_TEXT}),
    "file": (
        {"mediaType": _is_text, "url": _is_text},
        {"filename": _is_text, "providerMetadata": _is_metadata},
    ),
    "source-url": (
        {"sourceId": _is_text, "url": _is_text},
        {"title": _is_text, "providerMetadata": _is_metadata},
    ),
    "source-document": (
        {"sourceId": _is_text, "mediaType": _is_text, "title": _is_text},
        {"filename": _is_text, "providerMetadata": _is_metadata},
    ),
    "step-start": ({}, {}),
    "data-<name>": ({"data": _is_any}, {"id": _is_text}),
    "tool-<name>": ({"toolCallId": _is_text, "state": _is_any}, _OF_CALL),
    "dynamic-tool": (
        {"toolName": _is_text, "toolCallId": _is_text, "state": _is_any},
        {"dynamic": lambda value: value is False, **_OF_CALL},
    ),
}
#: Roles that cannot say everything.
_ROLES: Final = {"system": ("text",), "user": ("text", "file", "data-<name>")}
#: By state: the fields that a call needs, and those that it may have.
_STATES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "input-streaming": ((), ()),
    "input-available": (("input",), ()),
    "approval-requested": (("input", "approval"), ()),
    "approval-responded": (("input", "approval"), ()),
    "output-available": (("input", "output"), ("approval",)),
    "output-error": (("errorText",), ("approval",)),
    "output-denied": (("input", "approval"), ()),
}
#: By state: fields that only there must be as they should.
_STATE_FIELDS: Final[dict[str, _Fits]] = {
    "input-streaming": {
        "rawInput": _is_text,
        "inputEncoding": lambda value: value in ("json", "text"),
    },
    "output-available": {"preliminary": _is_flag, "resultProviderMetadata": _is_metadata},
    "output-error": {"errorText": _is_text, "resultProviderMetadata": _is_metadata},
}


# ----------------------------------------------------------------------------------------------------- reading


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The UIMessages in our words: a reply for each turn of a message, its outputs in the order of its calls.

    Raises:
        BadInput: something cannot be read without a guess, or still waits; says at which message.
    """
    messages = reading.listed(payload, "messages")
    for problem in check(messages) if messages else ():
        if problem.rule in _UNREADABLE:
            raise BadInput(str(problem))
    return tuple(step for at, message in enumerate(messages) for step in _read_message(at, message))


def read_either(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """A list of either form.

    Raises:
        BadInput: as `read` of that form.
    """
    return read(payload) if _is_ui(payload) else ai_sdk.read(payload)


def _read_message(at: int, message: Json) -> Iterator[ConversationStep]:
    match message:
        case {"role": "system", "parts": parts}:
            # The SDK sends them as one text, with nothing in between.
            yield Spoken("system", "".join(part["text"] for part in parts))
        case {"role": "user", "parts": parts}:
            yield Spoken("user", ai_sdk.read_texts(at, parts))
        case {"parts": parts}:
            for turn in _turns(parts):
                yield RecordedReply(tuple(_read_part(at, part) for part in turn))
                yield from (_read_output(at, part) for part in turn if _kind(part) in _CALLS)


def _turns(parts: list[Json]) -> list[list[Json]]:
    """The parts between the starts of steps, as the SDK sends them; what is for people alone makes no turn."""
    turns: list[list[Json]] = [[]]
    for part in parts:
        if part["type"] != "step-start":
            turns[-1].append(part)
        elif any(_is_sent(one) for one in turns[-1]):
            turns.append([])
    if len(turns) > 1 and not any(_is_sent(one) for one in turns[-1]):
        rest = turns.pop()
        turns[-1] += rest
    return turns


def _read_part(at: int, part: Json) -> Part:
    match part:
        case {"type": "text", "text": text}:
            return Text(text)
        case {"type": "reasoning", "text": text}:
            return Opaque(
                ai_sdk.PROVIDER,
                reading.raw(at, {"type": "reasoning", "text": text, **_options(part)}),
            )
        case {"type": "file", "url": url, "mediaType": media_type}:
            name = {"filename": part["filename"]} if "filename" in part else {}
            return Opaque(
                ai_sdk.PROVIDER,
                reading.raw(
                    at, {"type": "file", "data": url, "mediaType": media_type, **name, **_options(part)}
                ),
            )
        case _ if _kind(part) not in _CALLS:
            return Opaque(PROVIDER, reading.raw(at, part))
        case {"providerExecuted": True}:
            raise reading.refusal(at, "a call that the provider ran itself cannot be read.")
        case _ if part["state"] == "output-error" and "input" not in part and "rawInput" not in part:
            raise reading.refusal(at, f"nothing says what {part['toolCallId']!r} was called with.")
        case _:
            return Wish(_tool(part), ai_sdk.read_input(at, _input(part)), part["toolCallId"])


def _options(part: Json) -> Json:
    """What the SDK calls them where it sends them."""
    return {"providerOptions": part["providerMetadata"]} if "providerMetadata" in part else {}


def _read_output(at: int, part: Json) -> Output:
    id_, tool = part["toolCallId"], _tool(part)
    match part:
        case {"state": "output-available", "output": str(text)}:
            return Output(id_, tool, text)
        case {"state": "output-available", "output": value}:
            return Output(id_, tool, reading.raw(at, value))
        case {"state": "output-error", "errorText": text}:
            return Output(id_, tool, text, is_error=True)
        case {"approval": {"reason": str(reason)}} if reason.strip():
            return Output(id_, tool, reason, is_error=True)
        case _:
            return Output(id_, tool, f"`{tool}` did not run: it was denied.", is_error=True)
