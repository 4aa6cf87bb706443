"""The model providers, through pydantic-ai's direct model interface: one request in, one response out.

Our words are translated at this border, in both directions, and nowhere else. Calls are sent under our own ids: a
provider's may repeat within a conversation. What only the provider understands (a thinking signature, encrypted
reasoning) is kept verbatim and goes back to that provider alone.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request
from pydantic_ai.models import Model as ProviderModel
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.tools import ToolDefinition

from consumers.model import Question, Reply
from projections.history import Assistant, Entry, Note, Outcome, System, User
from schemas import events as e


class PydanticAI:
    """Any model that pydantic-ai knows: the thread's `model` is its name, as in `openai:gpt-4o`.

    Args:
        model: use this one whatever the thread says (for tests, and for models that have no name).
    """

    def __init__(self, model: ProviderModel | None = None) -> None:
        self._model = model

    async def reply(self, question: Question) -> Reply:
        model = self._model or infer_model(question.model)
        tools = [
            ToolDefinition(
                name=tool.name,
                description=tool.declared.description,
                parameters_json_schema=msgspec.json.decode(tool.declared.schema),
            )
            for tool in question.tools
        ]
        response = await model_request(
            model,
            messages(question.history, provider=model.system),
            model_request_parameters=ModelRequestParameters(function_tools=tools),
        )
        return Reply(
            parts=tuple(_part(part, model.system) for part in response.parts),
            usage=e.Usage(response.usage.input_tokens, response.usage.output_tokens),
            finish_reason=response.finish_reason or "",
        )


def messages(history: Sequence[Entry], *, provider: str) -> list[pai.ModelMessage]:
    """The history as pydantic-ai takes it: requests and responses in turn, opaque parts only for their provider."""
    written: list[pai.ModelMessage] = []
    for entry in history:
        match entry:
            case System(text):
                _ask(written, pai.SystemPromptPart(text))
            case User(text) | Note(text):
                _ask(written, pai.UserPromptPart(text))
            case Assistant(turn, parts):
                said = _said(turn, parts, provider)
                written.append(pai.ModelResponse(parts=said))
            case Outcome(call, tool, _, kind, text, is_error):
                # A person's or the policy's no is no error, and pydantic-ai has a word for it.
                outcome: Literal["denied", "failed", "success"] = "success"
                if is_error:
                    outcome = "denied" if kind == "denied" else "failed"
                _ask(written, pai.ToolReturnPart(tool, text, tool_call_id=_id(call), outcome=outcome))
    return written


def _ask(written: list[pai.ModelMessage], part: pai.ModelRequestPart) -> None:
    if written and isinstance(written[-1], pai.ModelRequest):
        written[-1] = pai.ModelRequest(parts=[*written[-1].parts, part])
    else:
        written.append(pai.ModelRequest(parts=[part]))


def _said(turn: int, parts: Sequence[e.Part], provider: str) -> list[pai.ModelResponsePart]:
    said: list[pai.ModelResponsePart] = []
    wishes = 0
    for part in parts:
        match part:
            case e.Text(text):
                said.append(pai.TextPart(text))
            case e.Wish(tool, arguments):
                said.append(pai.ToolCallPart(tool, arguments, tool_call_id=_id(f"{turn}-{wishes}")))
                wishes += 1
            case e.Opaque(whose, data) if whose == provider:
                [response] = pai.ModelMessagesTypeAdapter.validate_json(data)
                said += response.parts  # type: ignore[arg-type]  # a response's parts, as `_part` wrote them
            case e.Opaque():
                pass
    return said


def _part(part: Any, provider: str) -> e.Part:
    match part:
        case pai.TextPart(content=content):
            return e.Text(content)
        case pai.ToolCallPart(tool_name=tool, tool_call_id=given):
            return e.Wish(tool=tool, arguments=_arguments(part.args), provider_id=given)
        case _:
            kept = pai.ModelMessagesTypeAdapter.dump_json([pai.ModelResponse(parts=[part])])
            return e.Opaque(provider=provider, data=kept.decode())


def _arguments(args: str | dict[str, Any] | None) -> str:
    """The very text that the model wrote, malformed or not; `args_as_json_str` would write it anew, and hide that.

    Some providers hand on an object instead, and nothing where nothing was said.
    """
    return args or "{}" if isinstance(args, str) or args is None else msgspec.json.encode(args).decode()


def _id(call: str) -> str:
    return f"call-{call}"
