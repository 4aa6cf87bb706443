"""Reads conversations of Gemini's `generateContent`.

A response's object is read as JSON text, unless it is one text under `output` or `error`. Files
beside it come after that text. Fields that say how a part was made or is to be handled, such as
`videoMetadata` and `mediaResolution`, are not read.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ayes.projections.formats.common import (
    JsonObject,
    Payload,
    arguments_text,
    checked_json_text,
    json_text,
    unreadable,
)
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.formats.gemini.check import system_problem
from ayes.projections.formats.gemini.media import read_media
from ayes.projections.formats.gemini.parts import (
    DATA,
    FOREIGN,
    NAME,
    contents_of,
    inner,
    is_kept,
    parts_of,
    system_of,
)
from ayes.projections.formats.pairing import PairedSteps
from ayes.schemas.content import content_of
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Media, Opaque, Part, Text, Wish
from ayes.schemas.limits import cited


def read(payload: Payload | Sequence[Any]) -> tuple[ConversationStep, ...]:
    """The conversation of the contents.

    Raises:
        BadInput: something cannot be read unambiguously; names the content.
    """
    texts: list[str] = []
    if (system := system_of(payload)) is not None:
        if system_problem(system):
            wrong = "`systemInstruction`: only texts can be read, {'parts': [{'text': ...}]}."
            raise BadInput(wrong)
        texts = [system] if isinstance(system, str) else [part["text"] for part in system["parts"]]
    opening = [Spoken("system", text) for text in texts]
    steps = PairedSteps(opening, unit="content", optional_ids=True)
    contents = contents_of(payload)
    if not contents:
        wrong = "there is no content in `contents`: a payload is {'contents': [...]}"
        raise BadInput(f"{wrong}, or the list itself.")
    for at, content in enumerate(contents):
        parts = _readable(at, content)
        if content["role"] == "model":
            _all_answered(at, steps, " before this content")
            replied = tuple(part for piece in parts for part in _replied(at, piece))
            steps.add_reply(at, RecordedReply(replied))
            continue
        for piece in parts:
            match _user_step(at, piece, steps.waiting):
                case Spoken() as said:
                    steps.add_said(said)
                case output:
                    steps.add_output(output)
        _all_answered(at, steps, " in this content")
    _all_answered(len(contents) - 1, steps)
    return steps.finish()


def _all_answered(at: int, steps: PairedSteps, where: str = "") -> None:
    if waiting := steps.waiting:
        raise _mistake(at, f"a call of {waiting[0].tool!r} has no response{where}.")


def _mistake(at: int, sentence: str) -> BadInput:
    return unreadable(at, sentence, "content")


def _readable(at: int, content: Any) -> list[JsonObject]:
    parts = parts_of(content, ("user", "model"))
    if parts is None:
        wrong = "it is not a content: a role, user or model, and a list of parts, at least one."
        raise _mistake(at, wrong)
    checked_json_text(at, parts, "content")
    return parts


def _replied(at: int, part: JsonObject) -> Iterator[Part]:
    """The model's part in our words: its signature, if it is a real one, and its content."""
    if is_kept(part):
        yield _opaque(part)
        return
    if part.get("thoughtSignature", FOREIGN) != FOREIGN:
        yield _opaque({"thoughtSignature": part["thoughtSignature"]})
    match [(name, part[name]) for name in DATA if name in part]:
        case [("text", str(text))] if not part.get("thought"):
            yield Text(text)
        case [("functionCall", dict())]:
            call = inner(part, "functionCall")
            id_, name, args = call.get("id", ""), call.get("name"), call.get("args", {})
            if not (isinstance(id_, str) and isinstance(name, str)) or not name:
                raise _mistake(at, "a call needs a name, and its id must be text.")
            if not isinstance(args, dict):
                raise _mistake(at, "a call needs an object `args`.")
            yield Wish(name, arguments_text(at, args), id_)
        case [("inlineData", dict())]:
            yield read_media(at, part)
        case _:
            wrong = "a part of the model's is neither text nor a call, nor kept for the model."
            raise _mistake(at, wrong)


def _user_step(at: int, part: JsonObject, waiting: Sequence[Wish]) -> Spoken | Output:
    """The user's part in our words. A response must be that of the first open call."""
    match [(name, part[name]) for name in DATA if name in part]:
        case [("text", str(text))] if waiting:
            raise _mistake(
                at, f"a call of {waiting[0].tool!r} has no response before the text {text[:20]!r}."
            )
        case [("text", str(text))]:
            return Spoken("user", text)
        case [("inlineData" | "fileData", dict())] if not waiting:
            return Spoken("user", (read_media(at, part),))
        case [("functionResponse", dict())]:
            pass
        case _:
            raise _mistake(at, "a part of the user's side is neither text nor a response.")
    response = inner(part, "functionResponse")
    if not waiting:
        name = cited(response.get("name"))
        raise _mistake(at, f"the response of {name} does not follow its call.")
    wish = waiting[0]
    if (
        response.get("name") != wish.tool
        or response.get("id", wish.provider_id) != wish.provider_id
    ):
        wrong = f"the response of {cited(response.get('name'))} is in the place of {wish.tool!r}."
        raise _mistake(at, f"{wrong} Sort the responses as their calls.")
    files = _files(at, response.get("parts"))
    match response.get("response"):
        case {"output": str(text), **rest} if not rest:
            said = (Text(text),) if text and files else ()
            return Output(
                wish.provider_id, wish.tool, content_of((*said, *files)) if files else text
            )
        case _ if files:
            raise _mistake(at, "beside files, a response can be read as a text under `output`.")
        case {"error": str(text), **rest} if not rest:
            return Output(wish.provider_id, wish.tool, text, is_error=True)
        case dict() as given:
            return Output(wish.provider_id, wish.tool, json_text(given), is_error="error" in given)
        case _:
            raise _mistake(at, "a response is not an object.")


def _files(at: int, parts: Any) -> list[Media]:
    """The files beside a response's text."""
    if parts is None or parts == []:
        return []
    found = parts_of({"role": "user", "parts": parts}, ("user",))
    if found is None or not all("inlineData" in part for part in found):
        raise _mistake(at, "the parts of a response are not files by their bytes.")
    return [read_media(at, part) for part in found]


def _opaque(kept: JsonObject) -> Opaque:
    return Opaque(NAME, json_text(kept))
