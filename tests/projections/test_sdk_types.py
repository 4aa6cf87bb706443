"""What the providers' own SDKs can send: the checkers know each member of their types.

A new version of an SDK that brings a member fails here, with the member's name.
"""

import importlib
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ayes.projections.formats import FORMATS
from ayes.projections.formats.openai_responses.items import KINDS


def members(union: Any) -> Iterator[Any]:
    if isinstance(union, typing.TypeAliasType):
        yield from members(union.__value__)
    elif typing.get_origin(union) is typing.Annotated:
        yield from members(typing.get_args(union)[0])
    elif typing.get_args(union) and not isinstance(union, type):
        for one in typing.get_args(union):
            yield from members(one)
    else:
        yield union


def named(union: Any, field: str = "type") -> set[str]:
    """The values of the field by which the members of a union are told apart."""
    found: set[str] = set()
    for member in members(union):
        bases = getattr(member, "__mro__", [member])
        hints = (getattr(base, "__annotations__", {}).get(field) for base in bases)
        hint = next((one for one in hints if one is not None), "")
        text = getattr(hint, "__forward_arg__", None) or str(hint)
        values = re.findall(r"['\"]([^'\"]+)['\"]", text)
        assert values, f"{member} does not say what it is"
        found |= set(values)
    return found


#: Blocks of Anthropic, and the roles of their messages. A result of a provider's tool needs its
#: use.
ANTHROPIC = {
    "text": ("user", "assistant", "system"),
    "image": ("user",),
    "document": ("user",),
    "search_result": ("user",),
    "tool_use": ("assistant",),
    "tool_result": ("user",),
    "container_upload": ("user", "assistant"),
    "tool_addition": ("system",),
    "tool_removal": ("system",),
    **dict.fromkeys(
        [
            *("thinking", "redacted_thinking", "server_tool_use", "mcp_tool_use"),
            *("mcp_tool_listing", "compaction", "fallback", "mcp_tool_result"),
            *("web_search_tool_result", "web_fetch_tool_result", "advisor_tool_result"),
            *("code_execution_tool_result", "bash_code_execution_tool_result"),
            *("text_editor_code_execution_tool_result", "tool_search_tool_result"),
        ],
        ("assistant",),
    ),
}
CHAT_ROLES = {"developer", "system", "user", "assistant", "tool", "function"}
CHAT_PARTS = {"text", "image_url", "input_audio", "file"}
#: The fields of a part of Gemini that only describe another one.
DESCRIBING = {
    *("video_metadata", "media_resolution", "media_processing", "part_metadata"),
    *("audio_metadata", "audio_transcription", "speech_metadata", "document_metadata"),
    "spreadsheet_metadata",
}
GEMINI = DESCRIBING | {
    *("text", "inline_data", "file_data", "function_call", "function_response"),
    *("executable_code", "code_execution_result", "tool_call", "tool_response", "thought"),
    "thought_signature",
}


def sdk(name: str) -> Any:
    """A module of an SDK. Each takes a second to import, so only the tests that need one do."""
    return importlib.import_module(name)


def _anthropic_blocks() -> set[str]:
    beta, types = sdk("anthropic.types.beta"), sdk("anthropic.types")
    return named(beta.BetaContentBlockParam) | named(types.ContentBlockParam)


@pytest.mark.parametrize(
    ("found", "known"),
    [
        pytest.param(_anthropic_blocks, set(ANTHROPIC), id="anthropic"),
        pytest.param(
            lambda: named(sdk("anthropic.types.beta").BetaMessageParam, "role"),
            {role for roles in ANTHROPIC.values() for role in roles},
            id="anthropic's roles",
        ),
        pytest.param(
            lambda: named(sdk("openai.types.responses").ResponseInputItemParam),
            set(KINDS),
            id="openai-responses",
        ),
        pytest.param(
            lambda: named(sdk("openai.types.chat").ChatCompletionMessageParam, "role"),
            CHAT_ROLES,
            id="openai-chat",
        ),
        pytest.param(
            lambda: named(sdk("openai.types.chat").ChatCompletionContentPartParam),
            CHAT_PARTS,
            id="openai's parts",
        ),
        pytest.param(lambda: set(sdk("google.genai.types").Part.model_fields), GEMINI, id="gemini"),
    ],
)
def test_every_member_of_an_sdks_types_is_known_here(
    found: Callable[[], set[str]], known: set[str]
):
    """One that is not in these tables is a new one, which the checker must learn (B27)."""
    assert found() == known


IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGk="}
PDF = IMAGE | {"media_type": "application/pdf"}
#: The fields without which a block of Anthropic, or an item of OpenAI, says nothing.
FIELDS: dict[str, dict[str, Any]] = {
    "text": {"text": "hi"},
    "image": {"source": IMAGE},
    "document": {"source": PDF},
    "tool_use": {"id": "a", "name": "b", "input": {}},
    "tool_result": {"tool_use_id": "a", "content": "c"},
    "thinking": {"thinking": "hm", "signature": "aGk="},
    "redacted_thinking": {"data": "aGk="},
    "server_tool_use": {"id": "s", "name": "web_search", "input": {}},
    "mcp_tool_use": {"id": "m", "name": "b", "server_name": "c", "input": {}},
    "function_call": {"call_id": "a", "name": "b", "arguments": "{}"},
    "function_call_output": {"call_id": "a", "output": "c"},
    "message": {"role": "user", "content": "hi"},
    "reasoning": {"id": "rs_1", "summary": []},
}


def block(kind: str) -> dict[str, Any]:
    return {"type": kind, **FIELDS.get(kind, {})}


def anthropic_messages(kind: str, role: str) -> list[dict[str, Any]]:
    """A conversation with this block in a message of this role, and what it needs around it."""
    blocks = [block(kind)]
    if kind.endswith("_tool_result"):
        use = "mcp_tool_use" if kind.startswith("mcp") else "server_tool_use"
        blocks = [block(use), {**block(kind), "tool_use_id": block(use)["id"]}]
    begin = [{"role": "user", "content": "hi"}]
    answer = {"role": "user", "content": [block("tool_result")]}
    match kind, role:
        case "tool_use", _:
            return [*begin, {"role": role, "content": blocks}, answer]
        case "tool_result", _:
            return [*begin, {"role": "assistant", "content": [block("tool_use")]}, answer]
        case _, "user":
            return [{"role": role, "content": blocks}]
        case _:
            return [*begin, {"role": role, "content": blocks}]


@pytest.mark.parametrize(
    ("kind", "role"), [(kind, role) for kind, roles in ANTHROPIC.items() for role in roles]
)
def test_each_block_of_anthropic(kind: str, role: str):
    """The checker accepts each block in its place."""
    assert FORMATS["anthropic"].check(anthropic_messages(kind, role)) == []


@pytest.mark.parametrize("field", sorted(DESCRIBING))
def test_a_field_of_gemini_about_a_part_is_accepted(field: str):
    """It says how the part was made, or is to be handled."""
    part = {"inline_data": {"mime_type": "image/png", "data": "aGk="}}
    described = [{"role": "user", "parts": [part | {field: {"a": 1}}]}]
    assert FORMATS["gemini"].check(described) == []


# ---------------------------------------------------------------------- what providers took as well


@pytest.mark.parametrize(
    ("form", "conversation"),
    [
        pytest.param("anthropic",
                     [{"role": "user", "content": "hi"},
                      {"role": "assistant", "content": [block("tool_use")]},
                      {"role": "user", "content": [block("tool_result")]},
                      {"role": "system", "content": "be quick"},
                      {"role": "system", "content": [{"type": "tool_addition", "tool": {}}]},
                      {"role": "user", "content": "go on"}],
                     id="system messages after results"),
        pytest.param("anthropic",
                     [{"role": "user", "content": "hi"},
                      {"role": "assistant", "content": [
                          block("thinking"),
                          block("mcp_tool_use"),
                          {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": True},
                          block("tool_use"),
                      ]},
                      {"role": "user", "content": [block("tool_result")]}],
                     id="a call of the MCP connector next to one of ours"),
        pytest.param("openai-responses",
                     [{"role": "user", "content": "hi"},
                      {"type": "reasoning", "id": "7-a", "summary": [],
                       "content": [{"text": "hm"}]},
                      {"type": "reasoning", "id": "7-b", "summary": [],
                       "content": [{"text": "so"}]},
                      block("function_call"), block("function_call_output")],
                     id="reasoning of another service"),
        pytest.param("openai-responses",
                     [{"role": "user", "content": "hi"}, block("reasoning"),
                      {"type": "tool_search_call", "call_id": None, "execution": "server"},
                      {"type": "tool_search_output", "call_id": None, "tools": []},
                      block("function_call"), block("function_call_output"),
                      {"type": "additional_tools", "role": "developer", "tools": []}],
                     id="a search of tools after reasoning"),
        pytest.param("openai-chat",
                     [{"role": "user", "content": "hi"},
                      {"role": "assistant", "content": "yes", "reasoning": "hm",
                       "reasoning_content": "a"}],
                     id="thoughts of another service"),
        pytest.param("gemini",
                     [{"role": "user",
                       "parts": [{"inlineData": {"mimeType": "image/png", "data": "-_-_aA"}}]}],
                     id="base64 that is safe in URLs"),
    ],
)  # fmt: skip
def test_what_a_provider_took_is_taken(form: str, conversation: list[dict[str, Any]]):
    """As in recordings that providers answered: the checker finds nothing (B27)."""
    assert FORMATS[form].check(conversation) == []


def test_a_search_by_the_client_may_be_answered_by_a_functions_output():
    """Checked only: its output has no call of ours to belong to."""
    search = {"type": "tool_search_call", "call_id": "s1", "execution": "client"}
    items = [search, {"type": "function_call_output", "call_id": "s1", "output": "one"}]
    assert FORMATS["openai-responses"].check(items) == []
