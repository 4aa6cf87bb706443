"""The JSON of MCP that the gateway itself writes or reads; everything else it passes on as it is.

Results, declarations, the status of a task, and how a server's result is kept in the ledger: text
alone as this text, anything else as JSON with one key, so that the model's history reads well and
a second client gets exactly what the first one got.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from ayes.adapters.mcp_gateway.names import tool_name
from ayes.adapters.verdicts import Answer, Run, Say, Wait, verdict
from ayes.ledger.lifecycle import Call, Status
from ayes.projections.refusal_texts import arguments_changed, failed_in_silence, tool_not_run
from ayes.schemas import events as e
from ayes.schemas.content import words
from ayes.schemas.tools import ToolSpec

type Json = dict[str, Any]

TASKS: Final = "io.modelcontextprotocol/tasks"
CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
#: The tool with which a model goes on with a call that waits.
WAIT: Final = "approvals_wait"
#: In the labels of a call: the server behind the gateway, and its own name for the tool.
SERVER_LABEL: Final = "mcp_server"
TOOL_LABEL: Final = "mcp_tool"
#: How often a client is asked to look at a task.
POLL_MS: Final = 2000
_RESULT: Final = "mcp_result"
_ERROR: Final = "mcp_error"
_OPEN_SCHEMA: Final = '{"type":"object"}'
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")

WAIT_TOOL: Final[Json] = {
    "name": WAIT,
    "description": "Go on with a call that waits for a person's approval. Give the id that came "
    "with its pending result. The result is that of the tool, once it was approved and has run.",
    "inputSchema": {
        "type": "object",
        "properties": {"id": {"type": "string"}},
        "required": ["id"],
    },
}


# ------------------------------------------------------------------------------------- declarations


def spec_of_tool(server: str, tool: Mapping[str, Any]) -> ToolSpec:
    """The declaration of a server's tool: its own description and schema.

    A schema that the ledger cannot check, such as one of another dialect, is declared as one that
    takes any object; it is kept in the description, so that a change of it is a new version too.
    """
    name = tool_name(server, str(tool["name"]))
    description = str(tool.get("description") or "")
    schema = _compact(tool.get("inputSchema") or {"type": "object"})
    try:
        return ToolSpec(name=name, description=description, schema=schema)
    except ValidationError:
        kept = f"{description}\n\nThe server's schema, which is not checked here: {schema}"
        return ToolSpec(name=name, description=kept, schema=_OPEN_SCHEMA)


def labels_of(server: str, tool: Mapping[str, Any]) -> dict[str, str]:
    """What rules can match about a call. Hints are the server's own claims."""
    hints = tool.get("annotations")
    given = hints if isinstance(hints, Mapping) else {}
    told = {hint: str(given[hint]).lower() for hint in _HINTS if isinstance(given.get(hint), bool)}
    return {SERVER_LABEL: server, TOOL_LABEL: str(tool["name"]), **told}


def declares_tasks(meta: Mapping[str, Any] | None) -> bool:
    """Whether the request says that its client understands tasks."""
    match (meta or {}).get(CAPABILITIES):
        case {"extensions": Mapping() as extensions}:
            return TASKS in extensions
        case _:
            return False


def without_tasks(meta: Json) -> Json:
    """The `_meta` of a request for a server: tasks are the gateway's own affair."""
    if not declares_tasks(meta):
        return meta
    capabilities = dict(meta[CAPABILITIES])
    others = {key: one for key, one in capabilities.pop("extensions").items() if key != TASKS}
    return meta | {CAPABILITIES: capabilities | ({"extensions": others} if others else {})}


def with_tasks(capabilities: Json) -> Json:
    """The capabilities of the servers, with tools and the extension that the gateway adds."""
    extensions = dict(capabilities.get("extensions") or {}) | {TASKS: {}}
    return {"tools": {}, **capabilities, "extensions": extensions}


def merged(results: Sequence[Json]) -> Json:
    """What several servers say of themselves (`server/discover`, `initialize`) as one.

    A capability of one is one of the gateway. Of one server alone it is what that one said.
    """
    first, *others = results
    if not others:
        return dict(first)
    capabilities: Json = {}
    for one in results:
        for name, value in (one.get("capabilities") or {}).items():
            match capabilities.get(name), value:
                case dict(before), dict(also):
                    capabilities[name] = {**before, **also}
                case _:
                    capabilities[name] = value
    told = [str(one["instructions"]) for one in results if one.get("instructions")]
    joined = {**first, "capabilities": capabilities}
    if told:
        joined["instructions"] = "\n\n".join(told)
    if "supportedVersions" in first:
        joined["supportedVersions"] = [
            version
            for version in first["supportedVersions"]
            if all(version in one.get("supportedVersions", ()) for one in others)
        ]
    return joined


# ------------------------------------------------------------------------------------------ results


def text_result(text: str, *, is_error: bool = False, structured: Json | None = None) -> Json:
    result: Json = {"content": [{"type": "text", "text": text}], "isError": is_error}
    return result if structured is None else {**result, "structuredContent": structured}


def complete(result: Json, *, modern: bool) -> Json:
    """A result in the era of its client: since 2026-07-28 each says what kind it is."""
    return {"resultType": "complete", **result} if modern else result


def pending_result(call: Call, given_id: str, *, has_schema: bool) -> Json:
    """The finished result that says how to come back.

    Clients check a result against the schema that a tool declares for it, unless it is an error.
    """
    tool = call.wish.labels.get(TOOL_LABEL, call.wish.tool)
    text = (
        f"`{tool}` has not run yet: it waits for a person's approval. Call `{WAIT}` with the id "
        f"{json.dumps(given_id)} to go on. Do not call `{tool}` again for this."
    )
    pending = {"status": "pending", "id": given_id, "call": str(call.ref)}
    if has_schema:
        return text_result(text, is_error=True) | {"_meta": {"ayes/pending": pending}}
    return text_result(text, structured=pending)


def unfinished(text: str) -> Json:
    return text_result(text, is_error=True)


def ended_result(call: Call, read: Say | Answer, *, has_schema: bool = False) -> Json:
    """The result of a call that has ended, or will not run: what its first client got, or why.

    Args:
        read: the verdict on it.

    Raises:
        ServerError: the server answered with an error of JSON-RPC.
    """
    match call.status, read:
        case ((Status.RETURNED | Status.FAILED), _):
            return with_changes(call, replayed(call))
        case Status.ANSWERED, Answer(text=text) if has_schema:
            return _answer_with_schema(text)
        case _, Answer(text=text):
            return text_result(text)
        case _, Say(text=text):
            return unfinished(text)


def _answer_with_schema(answer: str) -> Json:
    try:
        value = json.loads(answer)
    except ValueError:
        value = None
    # Without a value of the tool's schema a client would refuse it, unless it is an error.
    if isinstance(value, dict):
        return text_result(answer, structured=value)
    return text_result(answer, is_error=True)


# -------------------------------------------------------------------------- results in the ledger


class ServerError(Exception):
    """A server answered a call with an error of JSON-RPC; its first argument is that error."""


def recorded(result: Json) -> str:
    """A server's result as the text that the ledger keeps."""
    kept = {key: value for key, value in result.items() if key not in ("_meta", "resultType")}
    match kept:
        case {"content": [{"type": "text", "text": str(text), **rest}], **others} if (
            not rest
            and not set(others) - {"isError"}
            and not text.startswith(f'{{"{_RESULT}"')
            and not text.startswith(f'{{"{_ERROR}"')
        ):
            return text
        case _:
            return _compact({_RESULT: kept})


def recorded_error(error: Json) -> str:
    """An error of JSON-RPC, `code`, `message` and `data`, as the text that the ledger keeps."""
    return _compact({_ERROR: error})


def replayed(call: Call) -> Json:
    """The result of a call that ran, as its first client got it.

    Raises:
        ServerError: the server answered with an error of JSON-RPC.
    """
    match call.finished and call.finished.event:
        case e.ToolReturned(output=output):
            text, is_error = words(output), False
        case e.ToolFailed(error=text):
            is_error = True
        case _:
            return unfinished(f"what `{call.wish.tool}` returned cannot be read.")
    if text.startswith((f'{{"{_RESULT}"', f'{{"{_ERROR}"')):
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        match value:
            case {"mcp_result": dict(result)}:
                return result
            case {"mcp_error": dict(error)}:
                raise ServerError(error)
    return text_result(text or failed_in_silence(call.wish.tool), is_error=is_error)


def with_changes(call: Call, result: Json) -> Json:
    """The result, after a sentence about the arguments that a reviewer changed."""
    changed = call.decided.event if call.decided else None
    if not (isinstance(changed, e.Approved) and changed.arguments is not None):
        return result
    note = {"type": "text", "text": arguments_changed(call.arguments)}
    return {**result, "content": [note, *(result.get("content") or [])]}


# -------------------------------------------------------------------------------------------- tasks


def task(call: Call, task_id: str, status: str, message: str = "") -> Json:
    """The fields that a task has in each answer (SEP-2663)."""
    facts = call.facts
    told = {"statusMessage": message} if message else {}
    return {
        "taskId": task_id,
        "status": status,
        **told,
        "createdAt": _time(facts[0].recorded_at),
        "lastUpdatedAt": _time(facts[-1].recorded_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def detailed_task(call: Call, task_id: str, *, has_schema: bool, asked: Json | None) -> Json:
    """The answer to `tasks/get`.

    Args:
        asked: what the server asks the client for before it goes on; None: nothing.
    """
    match call.status:
        case Status.RUNNING if asked:
            return task(call, task_id, "input_required") | {"inputRequests": asked}
        case Status.RUNNING:
            return task(call, task_id, "working", "runs")
        case Status.IN_DOUBT:
            return task(call, task_id, "working", "is in doubt: a person finds out if it ran")
        case Status.WITHDRAWN | Status.SUPERSEDED:
            return task(call, task_id, "cancelled", tool_not_run(call).text)
    match verdict(call):
        case Wait():
            return task(call, task_id, "working", "waits for a person's approval")
        case Run():
            return task(call, task_id, "working", "is approved")
        case read:
            pass
    try:
        result = ended_result(call, read, has_schema=has_schema)
    except ServerError as problem:
        return task(call, task_id, "failed") | {"error": problem.args[0]}
    return task(call, task_id, "completed") | {"result": complete(result, modern=True)}


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
