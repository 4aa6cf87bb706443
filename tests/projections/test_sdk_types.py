"""What the providers' own SDKs can send: each member of their types is read, kept or refused.

A new version of an SDK that brings a member fails here, with the member's name.
"""

import re
import typing
from collections.abc import Iterator
from typing import Any

import anthropic.types as anthropic_types
import anthropic.types.beta as anthropic_beta
import openai.types.chat as chat_types
import openai.types.responses as responses_types
import pytest
from google.genai import types as gemini_types

from ayes.ops.rehearsal.transcripts import entries_of
from ayes.projections.formats import FORMATS
from ayes.projections.formats.conversation import RecordedReply, Spoken
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Opaque


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


READ, KEPT, REFUSED, LEFT_OUT = "read", "kept", "refused", "left out"

#: Blocks of Anthropic, by the role of their message. A result of a provider's tool needs its use.
ANTHROPIC = {
    "text": {"user": READ, "assistant": READ, "system": READ},
    "image": {"user": READ},
    "document": {"user": READ},
    "search_result": {"user": REFUSED},
    "tool_use": {"assistant": READ},
    "tool_result": {"user": READ},
    "container_upload": {"user": REFUSED, "assistant": KEPT},
    "tool_addition": {"system": LEFT_OUT},
    "tool_removal": {"system": LEFT_OUT},
    **{
        kind: {"assistant": KEPT}
        for kind in (
            *("thinking", "redacted_thinking", "server_tool_use", "mcp_tool_use"),
            *("mcp_tool_listing", "compaction", "fallback", "mcp_tool_result"),
            *("web_search_tool_result", "web_fetch_tool_result", "advisor_tool_result"),
            *("code_execution_tool_result", "bash_code_execution_tool_result"),
            *("text_editor_code_execution_tool_result", "tool_search_tool_result"),
        )
    },
}
RESPONSES = {
    "message": READ,
    "function_call": READ,
    "function_call_output": READ,
    "additional_tools": LEFT_OUT,
    **dict.fromkeys(
        [
            *("reasoning", "compaction", "web_search_call", "file_search_call"),
            *("code_interpreter_call", "image_generation_call", "mcp_list_tools", "mcp_call"),
            *("tool_search_call", "tool_search_output"),
        ],
        KEPT,
    ),
    **dict.fromkeys(
        [
            *("computer_call", "computer_call_output", "local_shell_call", "shell_call"),
            *("local_shell_call_output", "shell_call_output", "apply_patch_call"),
            *("apply_patch_call_output", "custom_tool_call", "custom_tool_call_output"),
            *("mcp_approval_request", "mcp_approval_response", "item_reference", "program"),
            *("program_output", "configuration_update", "compaction_trigger"),
        ],
        REFUSED,
    ),
}
CHAT_ROLES = {
    **dict.fromkeys(["developer", "system", "user", "assistant", "tool"], READ),
    "function": REFUSED,
}
CHAT_PARTS = dict.fromkeys(["text", "image_url", "input_audio", "file"], READ)
#: The fields of a part of Gemini. Those that only describe another one are left out.
GEMINI = {
    **dict.fromkeys(
        ["text", "inline_data", "file_data", "function_call", "function_response"], READ
    ),
    **dict.fromkeys(
        ["executable_code", "code_execution_result", "tool_call", "tool_response", "thought"], KEPT
    ),
    "thought_signature": KEPT,
    **dict.fromkeys(
        [
            *("video_metadata", "media_resolution", "media_processing", "part_metadata"),
            *("audio_metadata", "audio_transcription", "speech_metadata", "document_metadata"),
            "spreadsheet_metadata",
        ],
        LEFT_OUT,
    ),
}


@pytest.mark.parametrize(
    ("found", "known"),
    [
        pytest.param(
            named(anthropic_beta.BetaContentBlockParam) | named(anthropic_types.ContentBlockParam),
            set(ANTHROPIC),
            id="anthropic",
        ),
        pytest.param(
            named(anthropic_beta.BetaMessageParam, "role"),
            {role for kinds in ANTHROPIC.values() for role in kinds},
            id="anthropic's roles",
        ),
        pytest.param(
            named(responses_types.ResponseInputItemParam), set(RESPONSES), id="openai-responses"
        ),
        pytest.param(
            named(chat_types.ChatCompletionMessageParam, "role"), set(CHAT_ROLES), id="openai-chat"
        ),
        pytest.param(
            named(chat_types.ChatCompletionContentPartParam), set(CHAT_PARTS), id="openai's parts"
        ),
        pytest.param(set(gemini_types.Part.model_fields), set(GEMINI), id="gemini"),
    ],
)
def test_every_member_of_an_sdks_types_is_known_here(found: set[str], known: set[str]):
    """One that is not in these tables is a new one: read, keep or refuse it (B27)."""
    assert found == known


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


def kept(steps: Any) -> list[str]:
    parts = [part for step in steps if isinstance(step, RecordedReply) for part in step.parts]
    return [part.data for part in parts if isinstance(part, Opaque)]


@pytest.mark.parametrize(
    ("kind", "role", "what"),
    [(kind, role, what) for kind, roles in ANTHROPIC.items() for role, what in roles.items()],
)
def test_each_block_of_anthropic(kind: str, role: str, what: str):
    """The checker is content with each block in its place, and the reader does what is said."""
    messages = anthropic_messages(kind, role)
    assert FORMATS["anthropic"].check(messages) == []
    if what == REFUSED:
        with pytest.raises(BadInput, match=kind):
            FORMATS["anthropic"].read(messages)
        return
    steps = FORMATS["anthropic"].read(messages)
    assert any(f'"{kind}"' in one for one in kept(steps)) is (what == KEPT)
    said = [step for step in steps if isinstance(step, Spoken) and step.role == "system"]
    assert bool(said) is (role == "system" and what == READ)


@pytest.mark.parametrize(("kind", "what"), RESPONSES.items())
def test_each_item_of_openai(kind: str, what: str):
    """The reader reads each item, keeps it as it is, or refuses it by its type."""
    items = [{"role": "user", "content": "hi"}, block(kind)]
    if kind == "function_call":
        items.append(block("function_call_output"))
    if kind == "function_call_output":
        items.insert(1, block("function_call"))
    if what == REFUSED:
        with pytest.raises(BadInput, match=f"an item of type {kind} cannot be read"):
            FORMATS["openai-responses"].read(items)
        return
    steps = FORMATS["openai-responses"].read(items)
    assert any(f'"{kind}"' in one for one in kept(steps)) is (what == KEPT)


@pytest.mark.parametrize("field", [name for name, what in GEMINI.items() if what == LEFT_OUT])
def test_a_field_of_gemini_about_a_part_changes_nothing(field: str):
    """It says how the part was made, or is to be handled."""
    part = {"inline_data": {"mime_type": "image/png", "data": "aGk="}}
    plain, more = ([{"role": "user", "parts": [one]}] for one in (part, part | {field: {"a": 1}}))
    assert FORMATS["gemini"].check(more) == []
    assert FORMATS["gemini"].read(more) == FORMATS["gemini"].read(plain)


# ---------------------------------------------------------------------- what providers took as well


@pytest.mark.parametrize(
    ("form", "conversation"),
    [
        pytest.param(
            "anthropic",
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [block("tool_use")]},
                {"role": "user", "content": [block("tool_result")]},
                {"role": "system", "content": "be quick"},
                {"role": "system", "content": [{"type": "tool_addition", "tool": {}}]},
                {"role": "user", "content": "go on"},
            ],
            id="system messages after results",
        ),
        pytest.param(
            "anthropic",
            [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        block("thinking"),
                        block("mcp_tool_use"),
                        {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": True},
                        block("tool_use"),
                    ],
                },
                {"role": "user", "content": [block("tool_result")]},
            ],
            id="a call of the MCP connector next to one of ours",
        ),
        pytest.param(
            "openai-responses",
            [
                {"role": "user", "content": "hi"},
                {"type": "reasoning", "id": "7-a", "summary": [], "content": [{"text": "hm"}]},
                {"type": "reasoning", "id": "7-b", "summary": [], "content": [{"text": "so"}]},
                block("function_call"),
                block("function_call_output"),
            ],
            id="reasoning of another service",
        ),
        pytest.param(
            "openai-responses",
            [
                {"role": "user", "content": "hi"},
                block("reasoning"),
                {"type": "tool_search_call", "call_id": None, "execution": "server"},
                {"type": "tool_search_output", "call_id": None, "tools": []},
                block("function_call"),
                block("function_call_output"),
                {"type": "additional_tools", "role": "developer", "tools": []},
            ],
            id="a search of tools after reasoning",
        ),
        pytest.param(
            "openai-chat",
            [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": "yes",
                    "reasoning": "hm",
                    "reasoning_content": "a",
                },
            ],
            id="thoughts of another service",
        ),
        pytest.param(
            "gemini",
            [
                {
                    "role": "user",
                    "parts": [{"inlineData": {"mimeType": "image/png", "data": "-_-_aA"}}],
                }
            ],
            id="base64 that is safe in URLs",
        ),
    ],
)
def test_what_a_provider_took_is_taken(form: str, conversation: list[dict[str, Any]]):
    """As in recordings that providers answered: no alarm, and it is read, written in every form
    without a problem, and read again to the same (B27).
    """
    theirs = FORMATS[form]
    assert theirs.check(conversation) == []
    entries = entries_of(theirs.read(conversation))
    for name, other in FORMATS.items():
        written = other.write(entries)
        # A signature of Gemini's is one that no other provider can have.
        assert [one for one in other.check(written) if (name, one.rule) != ("gemini", 7)] == []
        assert other.write(entries_of(other.read(written))) == written


def test_a_search_by_the_client_may_be_answered_by_a_functions_output():
    """Checked only: its output has no call of ours to belong to."""
    search = {"type": "tool_search_call", "call_id": "s1", "execution": "client"}
    items = [search, {"type": "function_call_output", "call_id": "s1", "output": "one"}]
    assert FORMATS["openai-responses"].check(items) == []


def test_a_chat_message_of_a_function_is_refused():
    """It is the deprecated form of a tool's message."""
    with pytest.raises(BadInput, match="role"):
        FORMATS["openai-chat"].read([{"role": "function", "name": "a", "content": "b"}])
