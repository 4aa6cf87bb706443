"""Checks payloads by the rules of Gemini's `generateContent`.

Sources are ai.google.dev, Google's own types (the `google-genai` package), and the issues named:

1.  A content with calls is answered by the very next one, with as many responses as there are calls
    (google-gemini/gemini-cli#4217, continuedev/continue#9562).
2.  Responses follow a content with calls (GoogleCloudPlatform/generative-ai#368).
3.  Each response names its call: the name, and the id if the call has one. Ids are optional and
    not repeated within a content; without them calls and responses pair by name, in order.
4.  A content with responses holds nothing else (vellum-ai/vellum-assistant#39495,
    anomalyco/opencode#43479).
5.  A content with calls follows a user's (google-gemini/gemini-cli#11814).
6.  The first content is a user's, and there is one.
7.  In the current turn, which begins at the user's last text, the first call of each content has a
    thought signature (ai.google.dev, "Thought signatures"; Gemini 3 answers 400, Gemini 2.5 does
    not require it).
8.  A part has exactly one of the data fields (`DATA`).
9.  A text is not empty, except next to a thought signature (zuisong/gemini-openai-proxy#86).
10. `args`, if present, is an object.
11. `response` is an object.
12. A function's name is 1 to 64 characters of A-Z a-z 0-9 _ . : - and begins with a letter or _ .
    (Reported of declarations, google-gemini/gemini-cli#6704; the newest types allow 128, but 64 is
    accepted everywhere.)
13. A content is an object with role user or model and a list of one or more parts, each an object.
14. A thought signature is base64 and in a model's content, as calls are.
15. `systemInstruction` is a content too, of texts; its role does not matter.
16. A file is its bytes in base64, of a media type that the provider reads, or has a `fileUri`
    (ai.google.dev, "Document understanding" and its neighbours).

The service takes calls that are split over several contents and answered together; rules 1 and 5
are stricter, since then nobody can say which response is whose.

Not checked: that a request ends with the user's side, which only some models require, and whether
the model gave a signature. Both spellings of a field, `functionCall` and `function_call`, are read;
a field that is null counts as missing.
"""

from collections.abc import Sequence
from typing import Any

from ayes.projections.formats.common import FormatProblem, JsonObject, Payload, Problems, as_text
from ayes.projections.formats.gemini.media import media_problem
from ayes.projections.formats.gemini.parts import (
    DATA,
    FOREIGN,
    FUNCTION_NAME,
    contents_of,
    inner,
    is_base64,
    is_empty_text,
    parts_of,
    system_of,
)
from ayes.schemas.limits import cited


def check(payload: Payload | Sequence[Any]) -> list[FormatProblem]:
    """The problems for which the provider would refuse the payload, by content."""
    contents = contents_of(payload)
    found = Problems()
    if wrong := system_problem(system_of(payload)):
        found.add(15, wrong)
    if not contents:
        found.add(6, "there is no content in `contents`. The first must be a user's.")
    shapes = [parts_of(content, ("user", "model")) for content in contents]
    current = max(
        (at for at, parts in enumerate(shapes) if _is_said(contents[at], parts)), default=0
    )
    waiting: list[JsonObject] = []  # calls of the content before, which this one must answer
    role = ""
    for content, parts in zip(found.each(contents), shapes, strict=True):
        if parts is None:
            found.add(13, "a content is a role, user or model, and a list of parts, at least one.")
            continue
        before, role = role, content["role"]
        calls = [inner(part, "functionCall") for part in parts if "functionCall" in part]
        responses = [
            inner(part, "functionResponse") for part in parts if "functionResponse" in part
        ]
        if found.at == 0 and role != "user":
            found.add(6, "the first content must be a user's. Put one before it.")
        _check_responses(responses, waiting, len(parts), found)
        _check_calls(role, before, calls, found)
        if calls and found.at > current and role == "model":
            _check_signature(parts, found)
        for part in parts:
            _check_part(role, part, found)
        waiting = calls
    if waiting:
        found.add(1, _unanswered(len(waiting), 0))
    return found.in_order()


def _is_said(content: Any, parts: list[JsonObject] | None) -> bool:
    """Whether it is a user's content with more than responses."""
    return (
        parts is not None
        and content["role"] == "user"
        and any("functionResponse" not in p for p in parts)
    )


def system_problem(system: Any) -> str:
    """Why it is not a valid system instruction; empty if it is, or if there is none."""
    if system is None or isinstance(system, str):  # the SDKs make a content of a bare text
        return ""
    parts = parts_of(system, (None, "user", "system", "model"))
    if parts is not None and all(
        isinstance(part.get("text"), str) and part["text"] for part in parts
    ):
        return ""
    return (
        "`systemInstruction` is not a content of texts. Write {'parts': [{'text': ...}]}, or none."
    )


def _unanswered(calls: int, responses: int) -> str:
    counts = f"{calls} calls, and {responses} responses in the next content."
    return f"{counts} Wait for all, and send the turn whole."


def _check_responses(
    responses: list[JsonObject], waiting: list[JsonObject], parts: int, found: Problems
) -> None:
    """Check the responses of a content with `parts` parts against the open calls."""
    if responses and not waiting:
        found.add(2, "responses do not follow a content with their calls. Put them there.")
        return
    if len(responses) != len(waiting):
        # Named at the content that holds the calls.
        found.add(1, _unanswered(len(waiting), len(responses)), found.at - 1)
        return
    if len(responses) not in {0, parts}:
        found.add(4, "a content has more than responses. Give the rest a content of its own.")
    left = list(waiting)
    for response in responses:
        call = next((one for one in left if _answers(response, one)), None)
        if call is None:
            wrong = f"the response of {cited(response.get('name'))}"
            found.add(3, f"no call has the id and the name of {wrong}. Copy them.")
        left = [one for one in left if one is not call]


def _answers(response: JsonObject, call: JsonObject) -> bool:
    return response.get("name") == call.get("name") and response.get("id") == call.get("id")


def _check_calls(role: str, before: str, calls: list[JsonObject], found: Problems) -> None:
    if calls and role == "model" and before == "model":
        found.add(5, "calls follow another content of the model. Join the two.")
    ids = [as_text(call["id"]) for call in calls if call.get("id")]
    if len(set(ids)) != len(ids):
        found.add(3, "two calls of one content have the same id. Mint another for one.")


def _check_signature(parts: list[JsonObject], found: Problems) -> None:
    first = next(part for part in parts if "functionCall" in part)
    if not first.get("thoughtSignature"):
        wrong = "the first call lacks its thoughtSignature."
        found.add(7, f"{wrong} Send the part as it came, or with {FOREIGN!r}.")


def _check_part(role: str, part: JsonObject, found: Problems) -> None:
    """One part by itself."""
    data = [name for name in DATA if name in part]
    if len(data) != 1:
        wrong = f"a part has {len(data)} of the fields {', '.join(DATA)}."
        found.add(8, f"{wrong} It needs exactly one.")
    if "text" in part and (not isinstance(part["text"], str) or is_empty_text(part)):
        found.add(9, "a text is empty, or not text. Leave the part out.")
    if "functionCall" in part:
        call = inner(part, "functionCall")
        _check_name(call, found)
        if not isinstance(part["functionCall"], dict) or not isinstance(call.get("args", {}), dict):
            wrong = "the args of a call are not an object."
            found.add(10, f"{wrong} Wrap them under a name that says so.")
    if "functionResponse" in part:
        response = inner(part, "functionResponse")
        _check_name(response, found)
        for one in response.get("parts") or ():
            if not isinstance(one, dict) or (wrong := _file_problem(one, needed=True)):
                more = wrong if isinstance(one, dict) else "it is not an object."
                found.add(16, f"in a response: {more} Tell the model in words.")
        if not isinstance(response.get("response"), dict):
            found.add(11, "a response is not an object. Wrap it: {'output': ...}.")
    if wrong := _file_problem(part):
        found.add(16, f"{wrong} Send another form of it, or tell it in words.")
    signed = "thoughtSignature" in part
    of_model = signed or "functionCall" in part
    if (of_model and role != "model") or (signed and not is_base64(part["thoughtSignature"])):
        wrong = "calls and thought signatures (in base64) are the model's."
        found.add(14, f"{wrong} Send them as they came.")


def _file_problem(part: JsonObject, *, needed: bool = False) -> str:
    """Why the provider would refuse the file in a part; empty if it would not, or there is none."""
    if "inlineData" in part or "fileData" in part:
        return media_problem(part)
    return "a part of it is no file." if needed else ""


def _check_name(named: JsonObject, found: Problems) -> None:
    name = named.get("name")
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        wrong = f"the name {cited(name)} is not 1 to 64 of A-Z a-z 0-9 _ . : - after a letter or _."
        found.add(12, f"{wrong} Replace the rest.")
