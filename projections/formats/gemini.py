"""Histories for Gemini's `generateContent`.

What it turns down, as ai.google.dev says, as Google's own types (the `google-genai` package) say, or as the issues
named report it:

1.  A content with calls is answered by the very next one, with as many responses as there are calls
    (google-gemini/gemini-cli#4217, continuedev/continue#9562).
2.  Responses follow a content with calls (GoogleCloudPlatform/generative-ai#368).
3.  Each response names its call: the name, and the id where the call has one. Ids are optional and not repeated
    within a content; without them calls and responses pair by name, in order.
4.  A content with responses holds nothing else (vellum-ai/vellum-assistant#39495, anomalyco/opencode#43479).
5.  A content with calls follows a user's (google-gemini/gemini-cli#11814).
6.  The first content is a user's, and there is one.
7.  In the current turn, which begins at the last thing a user said, the first call of each content has a thought
    signature (ai.google.dev, "Thought signatures"; Gemini 3 answers 400, Gemini 2.5 does not ask).
8.  A part has exactly one of the data fields (`DATA`).
9.  A text is not empty, except beside a thought signature (zuisong/gemini-openai-proxy#86).
10. `args`, where it stands, is an object.
11. `response` is an object.
12. A function's name is 1 to 64 characters of A-Z a-z 0-9 _ . : - and begins with a letter or _ . (Reported of
    declarations, google-gemini/gemini-cli#6704; the newest types speak of 128, but 64 is taken everywhere.)
13. A content is an object with role user or model and a list of parts, each an object, at least one.
14. A thought signature is base64, and stands in a model's content, as calls do.
15. `systemInstruction` is a content too, of texts; its role is not asked.

What is not judged: that a request ends with the user's side, which some models ask for and others do not, and
whether a signature is one that the model gave. Both spellings of a field, `functionCall` and `function_call`, are
read; a field that is null is not there.

What the ledger holds and this form cannot: the spelling of arguments (they are sent as an object; those that are no
object are wrapped under `MALFORMED`), a user's name, an empty text (`BLANK`, or left out of a model's turn), and
which of two turns a text belongs to when nothing stands between them. A history that the model opens is begun by
`OPENING`. System texts that open the history are the `systemInstruction`; what the system says later is a text of
the user's side, marked as what it is. An id that repeats is minted again, a made-up tool name spelled otherwise.

What this form holds and `read` cannot keep: a response's object is told as JSON text, unless it is one text under
`output` or `error`. Images and files are refused, as they cannot be told in words.

Opaque parts go to no other provider. Ours (`Opaque.provider == "gemini"`) hold JSON: `{"thoughtSignature": ...}`,
which belongs to the part directly after it, or a whole part that nobody else understands: a thought, or what
Google's own tools did. A call that lacks its signature, since another model made it, gets the one that Google
documents for that, `FOREIGN`.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ayes.projections.formats.common import (
    BLANK,
    MALFORMED,
    OPENING,
    FormatProblem,
    Paired,
    Payload,
    call_id,
    compact,
    input_of,
    noted,
    opening,
    paired,
    parsed,
    put,
    tool_name,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Opaque, Part, Text, Wish

NAME: Final = "gemini"
#: In place of a signature, on calls that another model made (ai.google.dev, "Thought signatures").
FOREIGN: Final = "skip_thought_signature_validator"

#: What a part may be.
DATA: Final = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
#: Whole parts that are kept as they came, beside thoughts.
_KEPT: Final = frozenset({"executableCode", "codeExecutionResult", "toolCall", "toolResponse"})
_SPELLINGS: Final = {
    "inline_data": "inlineData",
    "file_data": "fileData",
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "executable_code": "executableCode",
    "code_execution_result": "codeExecutionResult",
    "tool_call": "toolCall",
    "tool_response": "toolResponse",
    "thought_signature": "thoughtSignature",
}
_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", re.ASCII)

type Piece = dict[str, Any]


def write(entries: Sequence[Entry]) -> Payload:
    """`{"systemInstruction": ..., "contents": [...]}`, without the first where the history opens with none."""
    first = opening(entries)
    system = [{"text": entry.text} for entry in entries[:first] if isinstance(entry, System) and entry.text]
    contents: list[dict[str, Any]] = []
    used: set[str] = set()
    for step in paired(entries[first:]):
        match step:
            case User(text=text):
                _say(contents, text)
            case System(text=text):
                _say(contents, noted(text))
            case Note(text=text, name=name):
                _say(contents, noted(text, name))
            case Paired(outcomes=outcomes, given=given):
                ended = [outcome for _wish, outcome in outcomes]
                ids = {one.call: call_id(one, used, bool) if one.provider_id else "" for one in ended}
                put(contents, {"role": "model", "parts": _turn(given, ids)}, by="role", into="parts")
                if ended:
                    contents.append(
                        {
                            "role": "user",
                            "parts": [_response(ids[one.call], wish, one) for wish, one in outcomes],
                        }
                    )
    if not contents or contents[0]["role"] != "user":
        contents.insert(0, {"role": "user", "parts": [{"text": OPENING}]})
    return (
        {"systemInstruction": {"parts": system}, "contents": contents} if system else {"contents": contents}
    )


def _say(contents: list[dict[str, Any]], text: str) -> None:
    """One more thing said: a part of what was said before it, but never of a content with responses."""
    part = {"text": text or BLANK}
    if contents and contents[-1]["role"] == "user" and "functionResponse" not in contents[-1]["parts"][0]:
        contents[-1]["parts"].append(part)
    else:
        contents.append({"role": "user", "parts": [part]})


def _turn(assistant: Assistant, ids: dict[str, str]) -> list[Piece]:
    """A turn's parts in the model's order. A call that has no outcome is left out, and its signature with it."""
    pieces: list[Piece] = []
    signature: Piece = {}  # which the next part came with
    index = -1
    called = False
    for part in assistant.parts:
        match part:
            case Opaque(provider="gemini", data=data):
                kept = _kept(data)
                if kept and signature:
                    pieces.append({"text": "", **signature})
                    signature = {}
                if "thoughtSignature" in kept and len(kept) == 1:
                    signature = kept
                elif kept:
                    pieces.append(kept)
                continue
            case Opaque():
                continue
            case Text(text=text):
                if text or signature:
                    pieces.append({"text": text, **signature})
            case Wish():
                index += 1
                call = f"{assistant.turn}-{index}"
                if call in ids:
                    pieces.append(_call(ids[call], part, signature or ({} if called else _FOREIGN)))
                    called = True
        signature = {}
    if signature:
        # As the provider does when it has nothing more to say than that.
        pieces.append({"text": "", **signature})
    return pieces or [{"text": BLANK}]


_FOREIGN: Final = {"thoughtSignature": FOREIGN}


def _call(id_: str, wish: Wish, signature: Piece) -> Piece:
    call = {**({"id": id_} if id_ else {}), "name": _name(wish.tool), "args": input_of(wish.arguments)}
    return {"functionCall": call, **signature}


def _response(id_: str, wish: Wish, outcome: Outcome) -> Piece:
    response = {"error" if outcome.is_error else "output": outcome.text}
    return {
        "functionResponse": {
            **({"id": id_} if id_ else {}),
            "name": _name(wish.tool),
            "response": response,
        }
    }


def _name(wished: str) -> str:
    name = tool_name(wished)
    return name if _NAME.fullmatch(name) else f"_{name}"[:64]


def _kept(data: str) -> Piece:
    """A signature, or a whole part that only this provider understands; empty if it is neither."""
    part = parsed(data)
    if not isinstance(part, dict) or (
        "thoughtSignature" in part and not _is_base64(part["thoughtSignature"])
    ):
        return {}
    return part if set(part) == {"thoughtSignature"} or _is_kept(part) else {}


def _is_kept(part: Piece) -> bool:
    """A thought, or what the provider's own tools did: of no use to anyone else."""
    data = [name for name in DATA if name in part]
    if data == ["text"]:
        return part.get("thought") is True and isinstance(part["text"], str) and not _is_empty(part)
    return len(data) == 1 and data[0] in _KEPT and isinstance(part[data[0]], dict)


def _is_empty(part: Piece) -> bool:
    return part["text"] == "" and not part.get("thoughtSignature")


def _is_base64(value: object) -> bool:
    """Base64 in either alphabet; the padding may be missing, as JSON readers of Google's take it."""
    if not isinstance(value, str) or not value or not value.isascii():
        return False
    bare = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except binascii.Error:
        return False
    return True


def _contents(payload: object) -> list[Any]:
    """The contents of a payload; a bare list is taken for them, and a bare text for what a user said."""
    found = payload.get("contents") if isinstance(payload, dict) else payload
    if isinstance(payload, dict) and isinstance(found, str):
        return [{"role": "user", "parts": [{"text": found}]}]
    return list(found) if isinstance(found, list | tuple) else []


def _system(payload: object) -> Any:
    """The system instruction; None if there is none."""
    if not isinstance(payload, dict):
        return None
    found = payload.get("systemInstruction")
    return payload.get("system_instruction") if found is None else found


def _parts(content: Any, roles: Sequence[str | None]) -> list[Piece] | None:
    """The content's parts in one spelling; None if it is of no known shape."""
    if not isinstance(content, dict) or content.get("role") not in roles:
        return None
    parts = content.get("parts")
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        return None
    return [_spelled(part) for part in parts]


def _spelled(part: Piece) -> Piece:
    return {_SPELLINGS.get(name, name): value for name, value in part.items() if value is not None}


# ------------------------------------------------------------------------------------------------------- checking


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """What the provider would turn down, in the order of the contents; nothing, if it would take it."""
    contents = _contents(payload)
    problems = _check_system(_system(payload))
    if not contents:
        problems.append(FormatProblem(6, 0, "there is no content in `contents`. The first must be a user's."))
    shapes = [_parts(content, ("user", "model")) for content in contents]
    current = max((at for at, parts in enumerate(shapes) if _is_said(contents[at], parts)), default=0)
    waiting: list[Piece] = []  # calls of the content before, which this one must answer
    role = ""
    for at, (content, parts) in enumerate(zip(contents, shapes, strict=True)):
        if parts is None:
            problems.append(
                FormatProblem(
                    13, at, "a content is a role, user or model, and a list of parts, at least one."
                )
            )
            continue
        before, role = role, content["role"]
        calls = [_inner(part, "functionCall") for part in parts if "functionCall" in part]
        responses = [_inner(part, "functionResponse") for part in parts if "functionResponse" in part]
        if at == 0 and role != "user":
            problems.append(FormatProblem(6, at, "the first content must be a user's. Put one before it."))
        problems += _check_responses(at, responses, waiting, len(parts))
        problems += _check_calls(at, role, before, calls)
        if calls and at > current and role == "model":
            problems += _check_signature(at, parts)
        for part in parts:
            problems += _check_part(at, role, part)
        waiting = calls
    if waiting:
        problems.append(_unanswered(len(contents) - 1, len(waiting), 0))
    return sorted(problems, key=lambda problem: problem.message)


def _is_said(content: Any, parts: list[Piece] | None) -> bool:
    """Something that a user said, in contrast to what tools gave."""
    return parts is not None and content["role"] == "user" and any("functionResponse" not in p for p in parts)


def _inner(part: Piece, field: str) -> Piece:
    """What stands under the field, in which null stands for nothing too; empty if it is no object."""
    inner = part[field]
    if not isinstance(inner, dict):
        return {}
    return {name: value for name, value in inner.items() if value is not None}


def _check_system(system: Any) -> list[FormatProblem]:
    if system is None or isinstance(system, str):  # the SDKs make a content of a bare text
        return []
    parts = _parts(system, (None, "user", "system", "model"))
    if parts is not None and all(isinstance(part.get("text"), str) and part["text"] for part in parts):
        return []
    return [
        FormatProblem(
            15, 0, "`systemInstruction` is no content of texts. Write {'parts': [{'text': ...}]}, or none."
        )
    ]


def _unanswered(at: int, calls: int, responses: int) -> FormatProblem:
    return FormatProblem(
        1,
        at,
        f"{calls} calls, and {responses} responses in the next content. Wait for all, and send the turn whole.",
    )


def _check_responses(
    at: int, responses: list[Piece], waiting: list[Piece], parts: int
) -> list[FormatProblem]:
    """What a content answers of the calls before it."""
    problems: list[FormatProblem] = []
    if responses and not waiting:
        return [FormatProblem(2, at, "responses do not follow a content with their calls. Put them there.")]
    if len(responses) != len(waiting):
        # Named at the content that holds the calls.
        return [_unanswered(at - 1, len(waiting), len(responses))]
    if len(responses) not in {0, parts}:
        problems.append(
            FormatProblem(4, at, "something stands beside the responses. Give it a content of its own.")
        )
    left = list(waiting)
    for response in responses:
        call = next((one for one in left if _answers(response, one)), None)
        if call is None:
            problems.append(
                FormatProblem(
                    3,
                    at,
                    f"the response of {response.get('name')!r} has another id or name than each call. Copy them.",
                )
            )
        else:
            left = [one for one in left if one is not call]
    return problems


def _answers(response: Piece, call: Piece) -> bool:
    return response.get("name") == call.get("name") and response.get("id") == call.get("id")


def _check_calls(at: int, role: str, before: str, calls: list[Piece]) -> list[FormatProblem]:
    problems: list[FormatProblem] = []
    if calls and role == "model" and before == "model":
        problems.append(FormatProblem(5, at, "calls follow another content of the model. Join the two."))
    ids = [str(call["id"]) for call in calls if call.get("id")]
    if len(set(ids)) != len(ids):
        problems.append(
            FormatProblem(3, at, "two calls of one content have the same id. Mint another for one.")
        )
    return problems


def _check_signature(at: int, parts: list[Piece]) -> list[FormatProblem]:
    first = next(part for part in parts if "functionCall" in part)
    if first.get("thoughtSignature"):
        return []
    return [
        FormatProblem(
            7,
            at,
            f"the first call lacks its thoughtSignature. Send the part as it came, or with {FOREIGN!r}.",
        )
    ]


def _check_part(at: int, role: str, part: Piece) -> list[FormatProblem]:
    """One part by itself."""
    data = [name for name in DATA if name in part]
    problems: list[FormatProblem] = []
    if len(data) != 1:
        problems.append(
            FormatProblem(
                8, at, f"a part has {len(data)} of the fields {', '.join(DATA)}. It needs exactly one."
            )
        )
    if "text" in part and (not isinstance(part["text"], str) or _is_empty(part)):
        problems.append(FormatProblem(9, at, "a text is empty, or no text. Leave the part out."))
    if "functionCall" in part:
        call = _inner(part, "functionCall")
        problems += _check_name(at, call)
        if not isinstance(part["functionCall"], dict) or not isinstance(call.get("args", {}), dict):
            problems.append(
                FormatProblem(
                    10, at, "the args of a call are no object. Wrap them under a name that says so."
                )
            )
    if "functionResponse" in part:
        response = _inner(part, "functionResponse")
        problems += _check_name(at, response)
        if not isinstance(response.get("response"), dict):
            problems.append(FormatProblem(11, at, "a response is no object. Wrap it: {'output': ...}."))
    signed = "thoughtSignature" in part
    if ((signed or "functionCall" in part) and role != "model") or (
        signed and not _is_base64(part["thoughtSignature"])
    ):
        problems.append(
            FormatProblem(
                14, at, "calls and thought signatures (in base64) are the model's. Send them as they came."
            )
        )
    return problems


def _check_name(at: int, named: Piece) -> list[FormatProblem]:
    name = named.get("name")
    if isinstance(name, str) and _NAME.fullmatch(name):
        return []
    return [
        FormatProblem(
            12,
            at,
            f"the name {name!r} is not 1 to 64 of A-Z a-z 0-9 _ . : - after a letter or _. Replace the rest.",
        )
    ]


# -------------------------------------------------------------------------------------------------------- reading


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation in our words, outputs in the order of their calls.

    Raises:
        BadInput: something cannot be read without guessing; with the content.
    """
    steps: list[ConversationStep] = []
    if (system := _system(payload)) is not None:
        if _check_system(system):
            raise BadInput("`systemInstruction`: only texts can be read, {'parts': [{'text': ...}]}.")
        texts = [system] if isinstance(system, str) else [part["text"] for part in system["parts"]]
        steps += [Spoken("system", text) for text in texts]
    contents = _contents(payload)
    if not contents:
        raise BadInput(
            "there is no content in `contents`: a payload is {'contents': [...]}, or the list itself."
        )
    waiting: list[Wish] = []  # calls whose responses must come next
    for at, content in enumerate(contents):
        parts = _readable(at, content)
        if content["role"] == "model":
            if waiting:
                raise _mistake(at, f"a call of {waiting[0].tool!r} has no response before this content.")
            reply = RecordedReply(tuple(part for piece in parts for part in _replied(at, piece)))
            waiting = list(reply.wishes)
            ids = [wish.provider_id for wish in waiting if wish.provider_id]
            if len(set(ids)) != len(ids):
                raise _mistake(at, "two calls of it have the same id.")
            steps.append(reply)
            continue
        steps += [_heard(at, piece, waiting) for piece in parts]
        if waiting:
            raise _mistake(at, f"a call of {waiting[0].tool!r} has no response in this content.")
    if waiting:
        raise _mistake(len(contents) - 1, f"a call of {waiting[0].tool!r} has no response.")
    return tuple(steps)


def _mistake(at: int, sentence: str) -> BadInput:
    return BadInput(f"content {at}: {sentence}")


def _readable(at: int, content: Any) -> list[Piece]:
    parts = _parts(content, ("user", "model"))
    if parts is None:
        raise _mistake(
            at, "it is none of this provider: a role, user or model, and a list of parts, at least one."
        )
    try:
        json.dumps(parts, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise _mistake(at, "it cannot be written as JSON in Unicode.") from None
    return parts


def _replied(at: int, part: Piece) -> Iterator[Part]:
    """A part of the model's: its signature, if it is a real one, and what it says."""
    if _is_kept(part):
        yield _opaque(part)
        return
    if part.get("thoughtSignature", FOREIGN) != FOREIGN:
        yield _opaque({"thoughtSignature": part["thoughtSignature"]})
    match [(name, part[name]) for name in DATA if name in part]:
        case [("text", str(text))] if not part.get("thought"):
            yield Text(text)
        case [("functionCall", dict())]:
            call = _inner(part, "functionCall")
            id_, name, args = call.get("id", ""), call.get("name"), call.get("args", {})
            if not (isinstance(id_, str) and isinstance(name, str) and name and isinstance(args, dict)):
                raise _mistake(at, "a call needs a name and an object `args`, and its id must be text.")
            yield Wish(name, _arguments(args), id_)
        case _:
            raise _mistake(at, "a part of the model's is neither text nor a call, nor kept for the model.")


def _arguments(args: Piece) -> str:
    """The raw text; what was wrapped because it was no object is unwrapped."""
    raw = args.get(MALFORMED)
    return raw if isinstance(raw, str) and input_of(raw) == args else compact(args)


def _heard(at: int, part: Piece, waiting: list[Wish]) -> ConversationStep:
    """A part of the user's side. A response is that of the first call that waits, which then no longer does."""
    match [(name, part[name]) for name in DATA if name in part]:
        case [("text", str(text))] if waiting:
            raise _mistake(
                at, f"a call of {waiting[0].tool!r} has no response before the text {text[:20]!r}."
            )
        case [("text", str(text))]:
            return Spoken("user", text)
        case [("functionResponse", dict())]:
            pass
        case _:
            raise _mistake(at, "a part of the user's side is neither text nor a response.")
    response = _inner(part, "functionResponse")
    if not waiting:
        raise _mistake(at, f"the response of {response.get('name')!r} does not follow its call.")
    wish = waiting[0]
    if response.get("name") != wish.tool or response.get("id", wish.provider_id) != wish.provider_id:
        raise _mistake(
            at,
            f"the response of {response.get('name')!r} stands where that of {wish.tool!r} must stand. "
            "Sort the responses as their calls.",
        )
    del waiting[0]
    match response.get("response"):
        case {"output": str(text), **rest} if not rest:
            return Output(wish.provider_id, wish.tool, text)
        case {"error": str(text), **rest} if not rest:
            return Output(wish.provider_id, wish.tool, text, is_error=True)
        case dict() as told:
            return Output(wish.provider_id, wish.tool, compact(told), is_error="error" in told)
        case _:
            raise _mistake(at, "a response is no object.")


def _opaque(kept: Piece) -> Opaque:
    return Opaque(NAME, compact(kept))
