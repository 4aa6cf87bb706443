"""The model providers, through pydantic-ai's direct model interface: one request, one response.

Our types are translated here, in both directions, and nowhere else. Calls are sent under our own
ids, since a provider's may repeat within a conversation. Parts that only the provider understands
(a thinking signature, encrypted reasoning, the id of an item) go back to that provider alone, and
are recorded in its own wire form if there is one (the convention is in
`ayes.projections.formats.common`). So a live conversation can be written in the provider's wire
form, and a conversation that was read from a wire form can go on live.

The library raises for a file that a provider does not take, and downloads a link that a provider
does not fetch. Either may end the turn and each later one, and nothing of ours fetches a link. So a
model is sent only the files that its provider takes (`_taken_by`), and reads the others in words.
A provider that is not known here is sent all files whose bytes we have, and no links.

Some parts are not sent live, since the library has no type for them, and some are lost: see
`ayes.projections.formats.pydantic_ai.write`. The id of an item that holds a call is one of them, as
the call goes under an id of ours. A model that represents several (a `FallbackModel`) is a provider
of its own here: a part that one of them signed is recorded as the whole's, and sent to it alone.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec
from msgspec.structs import replace
from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.models import Model as ProviderModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.tools import ToolDefinition

from ayes.consumers.model import ModelReply, ModelRequest
from ayes.projections.formats.anthropic.media import takes as anthropic_takes
from ayes.projections.formats.common import Takes, fitting, named_tools, tool_name
from ayes.projections.formats.gemini.media import takes as gemini_takes
from ayes.projections.formats.openai_files import responses_takes
from ayes.projections.formats.openai_files import takes as chat_takes
from ayes.projections.formats.pydantic_ai.media import takes
from ayes.projections.formats.pydantic_ai.opaque import recorded, responded
from ayes.projections.formats.pydantic_ai.write import items_of
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas import events as e
from ayes.schemas.content import decoded


class PydanticAI:
    """Any model that pydantic-ai knows: the thread's `model` is its name, as in `openai:gpt-4o`.

    Args:
        model: used instead of the thread's (for tests, and for models that have no name).
    """

    def __init__(self, model: ProviderModel | None = None) -> None:
        self._model = model

    async def reply(self, question: ModelRequest) -> ModelReply:
        model, names, parameters = self._request(question)
        sent = messages(question.history, provider=model.system, taken=_taken_by(model))
        response = await model_request(model, sent, model_request_parameters=parameters)
        return _reply(response, model.system, names)

    async def stream(self, question: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """As `reply`, with each piece of text as it comes, if the model can do so.

        Raises:
            RuntimeError: the stream ended before the reply was complete.
        """
        model, names, parameters = self._request(question)
        sent = messages(question.history, provider=model.system, taken=_taken_by(model))
        streaming = model_request_stream(model, sent, model_request_parameters=parameters)
        async with AsyncExitStack() as stack:
            try:
                streamed = await stack.enter_async_context(streaming)
            except (NotImplementedError, AssertionError):  # the model has no streams
                return await self.reply(question)
            async for event in streamed:
                match event:
                    case pai.PartStartEvent(part=pai.TextPart(content=text)):
                        on_text(text)
                    case pai.PartDeltaEvent(delta=pai.TextPartDelta(content_delta=text)):
                        on_text(text)
                    case _:
                        pass
            response = streamed.get()
        if response.state != "complete":
            raise RuntimeError(f"the provider's stream ended early: the reply is {response.state}")
        return _reply(response, model.system, names)

    def _request(
        self, question: ModelRequest
    ) -> tuple[ProviderModel, Mapping[str, str], ModelRequestParameters]:
        """The model, the names of the tools as it knows them, and the tools."""
        model = self._model or infer_model(question.model)
        names = named_tools(tool.name for tool in question.tools)
        tools = [
            ToolDefinition(
                name=tool_name(tool.name),
                description=tool.declared.description,
                parameters_json_schema=msgspec.json.decode(tool.declared.schema),
            )
            for tool in question.tools
            if tool.name in names.values()
        ]
        return model, names, ModelRequestParameters(function_tools=tools)


def _reply(response: pai.ModelResponse, provider: str, names: Mapping[str, str]) -> ModelReply:
    return ModelReply(
        parts=parts(response, provider=provider, tools=names),
        usage=e.Usage(response.usage.input_tokens, response.usage.output_tokens),
        finish_reason=response.finish_reason or "",
    )


def _taken_by(model: ProviderModel) -> Takes:
    """The files that the provider takes from the library, without the library fetching anything."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    match model.system:
        case "anthropic":
            return anthropic_takes
        case "openai":
            from pydantic_ai.models.openai import OpenAIChatModel  # an extra of the library

            return _chat_takes if isinstance(model, OpenAIChatModel) else _responses_takes
        case "google":
            return _google_takes
        case _:
            return _is_held


def _chat_takes(media: e.Media) -> bool:
    # The library writes a text file into the message, as UTF-8.
    return chat_takes(media) or (media.media_type.startswith("text/") and _is_utf8(media))


def _is_utf8(media: e.Media) -> bool:
    try:
        return isinstance(media.source, e.Inline) and bool((decoded(media.source) or b"").decode())
    except UnicodeDecodeError:
        return False


def _responses_takes(media: e.Media) -> bool:
    # The library does not know every document that the service reads.
    known = pai.BinaryContent(b"", media_type=media.media_type)
    return responses_takes(media) and (not _is_held(media) or known.is_image or known.is_document)


def _google_takes(media: e.Media) -> bool:
    # The library itself downloads all other links (`GoogleModel._resolve_file`).
    match media.source:
        case e.Uploaded(id=id_):
            return gemini_takes(media) and id_.startswith("https://")
        case _:
            return _is_held(media) and gemini_takes(media)


def _is_held(media: e.Media) -> bool:
    return isinstance(media.source, e.Inline)


def messages(
    history: Sequence[Entry], *, provider: str, taken: Takes = takes
) -> list[pai.ModelMessage]:
    """The history as pydantic-ai's requests and responses, with opaque parts for their provider
    only.

    Args:
        taken: the files that are sent, of those that the library's messages can hold; the others
            are described in words.
    """

    def sent(media: e.Media) -> bool:
        return takes(media) and taken(media)

    written: list[pai.ModelMessage] = []
    for entry in fitting(history, in_messages=sent, in_results=sent):
        match entry:
            case System(text):
                _ask(written, pai.SystemPromptPart(text))
            case User(text):
                _ask(written, _part({"content": items_of(text), "part_kind": "user-prompt"}))
            case Note(text):
                _ask(written, pai.UserPromptPart(text))
            case Assistant():
                written.append(_response(entry, provider))
            case Outcome(call, tool, _, kind, text, is_error):
                # A denial by people or policy is not an error; pydantic-ai has a value for it.
                ended = "denied" if kind == "denied" else "failed"
                returned = {
                    "tool_name": tool_name(tool),
                    "content": items_of(text),
                    "tool_call_id": _id(call),
                    "outcome": ended if is_error else "success",
                    "part_kind": "tool-return",
                }
                _ask(written, _part(returned))
    return written


def _ask(written: list[pai.ModelMessage], part: pai.ModelRequestPart) -> None:
    if written and isinstance(written[-1], pai.ModelRequest):
        written[-1] = pai.ModelRequest(parts=[*written[-1].parts, part])
    else:
        written.append(pai.ModelRequest(parts=[part]))


def _part(part: dict[str, Any]) -> pai.ModelRequestPart:
    raw = msgspec.json.encode([{"kind": "request", "parts": [part]}])
    [request] = pai.ModelMessagesTypeAdapter.validate_json(raw)
    [found] = request.parts
    return cast("pai.ModelRequestPart", found)


def _response(turn: Assistant, provider: str) -> pai.ModelMessage:
    wishes = sum(isinstance(part, e.Wish) for part in turn.parts)
    ids = {call: _id(call) for call in (f"{turn.turn}-{index}" for index in range(wishes))}
    said = {"kind": "response", "parts": responded(turn, ids, provider)}
    [response] = pai.ModelMessagesTypeAdapter.validate_json(msgspec.json.encode([said]))
    return response


def parts(
    response: pai.ModelResponse, *, provider: str, tools: Mapping[str, str] | None = None
) -> tuple[e.Part, ...]:
    """The provider's answer as our parts, in its order.

    Args:
        tools: the names of the offered tools, by the names under which the model knows them.
    """
    [dumped] = pai.ModelMessagesTypeAdapter.dump_python([response], mode="json")
    said = [_verbatim(*one) for one in zip(response.parts, dumped["parts"], strict=True)]
    return tuple(
        replace(part, tool=(tools or {}).get(part.tool, part.tool))
        if isinstance(part, e.Wish)
        else part
        for part in recorded(said, provider)
    )


def _verbatim(part: pai.ModelResponsePart, dumped: Mapping[str, Any]) -> dict[str, Any]:
    return (
        {**dumped, "args": _arguments(part.args)}
        if isinstance(part, pai.ToolCallPart)
        else dict(dumped)
    )


def _arguments(args: str | Mapping[str, Any] | None) -> str:
    """The text exactly as the model wrote it. `args_as_json_str` would rewrite it and so hide
    malformed JSON.

    Some providers return an object instead, or nothing for no arguments.
    """
    return (
        args or "{}"
        if isinstance(args, str) or args is None
        else msgspec.json.encode(args).decode()
    )


def _id(call: str) -> str:
    return f"call-{call}"
