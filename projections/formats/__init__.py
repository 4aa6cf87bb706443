"""The formats of the model providers: a writer and a checker for each.

A writer is a pure function of the entries. A checker takes the payload of any program, and finds a
broken history before the provider answers 400 and the conversation is stuck.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ayes.projections.formats import (
    ai_sdk,
    anthropic,
    gemini,
    openai_chat,
    openai_responses,
    pydantic_ai,
)
from ayes.projections.formats.ai_sdk import ui as ai_sdk_ui
from ayes.projections.formats.common import FormatProblem, Payload
from ayes.projections.history import Entry
from ayes.schemas.errors import BadInput

__all__ = ["FORMATS", "Format", "FormatProblem", "Payload", "format_named"]


class Format(NamedTuple):
    write: Callable[[Sequence[Entry]], Payload]
    check: Callable[[Payload | Sequence[Any]], list[FormatProblem]]


FORMATS: Final[dict[str, Format]] = {
    "openai-chat": Format(openai_chat.write, openai_chat.check),
    "openai-responses": Format(openai_responses.write, openai_responses.check),
    "anthropic": Format(anthropic.write, anthropic.check),
    "gemini": Format(gemini.write, gemini.check),
    "ai-sdk": Format(ai_sdk.write, ai_sdk_ui.check_either),
    "pydantic-ai": Format(pydantic_ai.write, pydantic_ai.check),
    "ai-sdk-ui": Format(ai_sdk_ui.write, ai_sdk_ui.check),
}


def format_named(name: str) -> Format:
    """The writer and checker of that name.

    Raises:
        BadInput: there is none.
    """
    if name not in FORMATS:
        raise BadInput(f"there is no provider {name!r}. Known are: {', '.join(FORMATS)}.")
    return FORMATS[name]
