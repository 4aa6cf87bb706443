"""The items of OpenAI Responses: their types, ids and roles."""

from typing import Any, Final

from ayes.projections.formats.common import JsonObject, find_messages

NAME: Final = "openai-responses"
MAX_ID: Final = 64
#: Kept verbatim: reasoning, and the work of the provider's own tools.
KEPT: Final = frozenset(
    {
        "reasoning",
        "compaction",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "tool_search_call",
        "tool_search_output",
        "mcp_list_tools",
        "mcp_call",
    }
)
#: The fields of an item that no fact holds.
FIELDS: Final = {
    "message": ("id", "status", "phase"),
    "function_call": ("id", "status", "namespace", "caller"),
}
#: The type of output for each type of call.
OUTPUT_TYPES: Final = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
KINDS: Final = frozenset(
    {
        "message",
        *KEPT,
        *OUTPUT_TYPES,
        *OUTPUT_TYPES.values(),
        "local_shell_call",
        "local_shell_call_output",
        "additional_tools",
        "configuration_update",
        "compaction_trigger",
        "program",
        "program_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "item_reference",
    }
)
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
ID_PREFIXES: Final = {"function_call": "fc", "reasoning": "rs", "message": "msg"}


def message_item(role: str, text: str) -> JsonObject:
    return {"type": "message", "role": role, "content": text}


def takes(item: JsonObject, item_ids: set[str]) -> bool:
    """Whether the item has no id, or a valid and unused one, which is added to `item_ids`."""
    id_ = item.get("id")
    if id_ is None:
        return True
    if (
        not isinstance(id_, str)
        or id_ in item_ids
        or not id_.startswith(ID_PREFIXES.get(item["type"], ""))
    ):
        return False
    item_ids.add(id_)
    return True


def is_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ID


def items_of(payload: object) -> list[Any]:
    """The items of a payload, or of a bare list; a text there is a user's message."""
    return find_messages(payload, "input", lambda text: message_item("user", text))


def kind_of(item: Any) -> str | None:
    """The item's type; None if it is not known."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type", "message")
    if not isinstance(kind, str) or kind not in KINDS:
        return None
    if kind == "message" and not (isinstance(item.get("role"), str) and item["role"] in _ROLES):
        return None
    return kind


def is_continued(payload: object) -> bool:
    """Whether the provider keeps a part of the conversation."""
    return isinstance(payload, dict) and bool(
        payload.get("previous_response_id") or payload.get("conversation")
    )


def is_of_others(item: JsonObject) -> bool:
    """Whether it is reasoning of another service with this interface: it shows its thoughts."""
    return bool(item.get("content")) and not item.get("encrypted_content")


def reasoning_problem(item: JsonObject) -> str:
    """The field that a reasoning item lacks, in a sentence; empty if it lacks none."""
    if not isinstance(item.get("id"), str):
        return "the reasoning has no id."
    if not isinstance(item.get("summary"), list):
        return "the reasoning has no list `summary`."
    return ""
