"""The JSON of MCP that the gateway itself writes or reads; everything else it passes on as it is.

Results, declarations, the status of a task, and how a server's result is kept in the ledger, so
that the model's history reads well and a second client gets exactly what the first one got:

    one text alone                      this text
    texts, images and sounds alone      these parts, in their order
    anything else                       JSON with one key, and then the files that were in it

In the JSON the place of a file among the parts stands for its bytes: `"data": {"file": 1}`. Files
are images, sounds, and embedded resources with bytes. A `resource_link` is none: its URI is for
`resources/read` of its server, and no model's provider could fetch it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ayes.adapters.kernel import spec_from_schema
from ayes.adapters.next_step import Answer, Run, Say, Wait, next_step
from ayes.interfaces.mcp.names import tool_name
from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.ledger.tool_runner import MAX_ERROR
from ayes.projections.formats.common import UNKNOWN_TYPE
from ayes.projections.refusal_texts import (
    arguments_changed,
    failed_in_silence,
    started_elsewhere,
    tool_not_run,
)
from ayes.schemas import events as e
from ayes.schemas.content import content_of, described, parts_of, problem_of, words
from ayes.schemas.tools import ToolSpec

type Json = dict[str, Any]

TASKS: Final = "io.modelcontextprotocol/tasks"
VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
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
_FILE: Final = "file"
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
    """The declaration of a server's tool: its own schema, and all that it says of the tool. Of an
    `outputSchema` it has a digest, so that a change of any of it is a new version.

    Raises:
        BadInput: its schema cannot be checked.
    """
    name = tool_name(server, str(tool["name"]))
    told = {key: tool[key] for key in ("title", "annotations") if tool.get(key)}
    if output := tool.get("outputSchema"):
        text = json.dumps(output, sort_keys=True)
        told["outputSchema"] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    description = str(tool.get("description") or "")
    if told:
        description += f"\n\nThe server also says: {json.dumps(told, sort_keys=True)}"
    schema = _compact(tool.get("inputSchema") or {"type": "object"})
    return spec_from_schema(name, description, schema)


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
    if len(results) < 2:
        return dict(results[0]) if results else {}
    first, *others = results
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
    waits = f"`{tool}` has not run yet: it waits for a person's approval."
    said = started_elsewhere(tool) if call.status is Status.RUNNING else waits
    text = (
        f"{said} Call `{WAIT}` with the id {json.dumps(given_id)} to go on. Do not call `{tool}` "
        "again for this."
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


def recorded(result: Json) -> e.Content:
    """A server's result as the output that the ledger keeps."""
    kept = _kept(result)
    match kept:
        case {"content": [*blocks], **others} if not set(others) - {"isError"}:
            parts = _plain_parts(blocks)
        case _:
            parts = ()
    if parts:
        return parts
    files: list[e.Media] = []
    match kept:
        case {"content": [*blocks]}:
            kept["content"] = [_without_bytes(block, files) for block in blocks]
    return content_of((e.Text(_text(kept)), *files))


def recorded_failure(result: Json) -> str:
    """A server's error result as the text that the ledger keeps. The files of one that would be cut
    are told in words, so that the rest of it can be read.
    """
    kept = _kept(result)
    text = _text(kept)
    match kept:
        case {"content": [*blocks]} if len(text) > MAX_ERROR:
            files: list[e.Media] = []
            emptied = [_without_bytes(block, files) for block in blocks]
            told = (e.Text(""), *(e.Text(described(media)) for media in files))
            return _text({**kept, "content": [_with_bytes(block, told) for block in emptied]})
        case _:
            return text


def recorded_error(error: Json) -> str:
    """An error of JSON-RPC, `code`, `message` and `data`, as the text that the ledger keeps."""
    return _compact({_ERROR: error})


def _kept(result: Json) -> Json:
    return {key: value for key, value in result.items() if key not in ("_meta", "resultType")}


def _text(kept: Json) -> str:
    match kept:
        case {"content": [{"type": "text", "text": str(text), **rest}], **others} if (
            not rest and not set(others) - {"isError"} and not _is_json(text)
        ):
            return text
        case _:
            return _compact({_RESULT: kept})


def _is_json(text: str) -> bool:
    """Whether a recorded text is read as JSON of a result."""
    return text.startswith((f'{{"{_RESULT}"', f'{{"{_ERROR}"'))


def _plain_parts(blocks: Sequence[Any]) -> tuple[e.Text | e.Media, ...]:
    """These blocks as parts; empty if none of them is a file, or if parts would lose a field."""
    parts = [part for part in map(_plain_part, blocks) if part is not None]
    if len(parts) < len(blocks) or not any(isinstance(part, e.Media) for part in parts):
        return ()
    return () if isinstance(parts[0], e.Text) and _is_json(parts[0].text) else tuple(parts)


def _plain_part(block: Any) -> e.Text | e.Media | None:
    match block:
        case {"type": "text", "text": str(text), **rest} if not rest:
            return e.Text(text)
        case {
            "type": "image" | "audio" as kind,
            "data": str(data),
            "mimeType": str(media_type),
            **rest,
        } if not rest and media_type.startswith(f"{kind}/"):
            media = e.Media(media_type, e.Inline(data))
            return None if problem_of(media) else media
        case _:
            return None


def _without_bytes(block: Any, files: list[e.Media]) -> Any:
    """The block with the place of its file instead of the bytes; the file is added to `files`."""
    match block:
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(media_type)}:
            media = e.Media(media_type, e.Inline(data))
        case {"type": "resource", "resource": {"blob": str(data), "uri": str(uri)} as resource}:
            media_type = resource.get("mimeType") or UNKNOWN_TYPE
            media = e.Media(str(media_type), e.Inline(data), uri.rpartition("/")[2])
        case _:
            return block
    if problem_of(media):
        return block
    files.append(media)
    return _with_data(block, {_FILE: len(files)})


def _with_data(block: Json, data: object) -> Json:
    if block["type"] == "resource":
        return {**block, "resource": {**block["resource"], "blob": data}}
    return {**block, "data": data}


def replayed(call: Call) -> Json:
    """The result of a call that ran, as its first client got it.

    A file whose bytes are not at hand is told in words.

    Args:
        call: with the bytes of its files (`Kernel.with_bytes`).

    Raises:
        ServerError: the server answered with an error of JSON-RPC.
    """
    match call.finished and call.finished.event:
        case e.ToolReturned(output=output):
            parts, is_error = parts_of(output), False
        case e.ToolFailed(error=error):
            parts, is_error = (e.Text(error),), True
        case _:
            return unfinished(f"what `{call.wish.tool}` returned cannot be read.")
    match parts:
        case (e.Text(text=text), *_) if _is_json(text) and (value := _json(text)) is not None:
            return _read(value, parts)
        case (e.Text(text=text),):
            return text_result(text or failed_in_silence(call.wish.tool), is_error=is_error)
        case _:
            return {"content": [_block(part) for part in parts], "isError": is_error}


def _json(text: str) -> Json | None:
    """The JSON of a recorded result or error; None if it is a text that only begins like one."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    match value:
        case {"mcp_result": dict()} | {"mcp_error": dict()}:
            return dict(value)
        case _:
            return None


def _read(value: Json, parts: Sequence[e.Text | e.Media]) -> Json:
    if (error := value.get(_ERROR)) is not None:
        raise ServerError(error)
    result: Json = value[_RESULT]
    match result:
        case {"content": [*blocks]}:
            return {**result, "content": [_with_bytes(block, parts) for block in blocks]}
        case _:
            return result


def _with_bytes(block: Any, parts: Sequence[e.Text | e.Media]) -> Any:
    match block:
        case {"type": "image" | "audio", "data": {"file": int(place)}}:
            pass
        case {"type": "resource", "resource": {"blob": {"file": int(place)}}}:
            pass
        case _:
            return block
    part = parts[place] if 0 < place < len(parts) else e.Text("[a file]")
    if isinstance(part, e.Media) and isinstance(part.source, e.Inline):
        return _with_data(block, part.source.data)
    return _block(part)


def _block(part: e.Text | e.Media) -> Json:
    match part:
        case e.Media(media_type=media_type, source=e.Inline(data=data)) if media_type.startswith(
            ("image/", "audio/")
        ):
            kind = media_type.partition("/")[0]
            return {"type": kind, "data": data, "mimeType": media_type}
        case _:
            return {"type": "text", "text": words((part,))}


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
    match next_step(call):
        case Wait() if call.status is Status.APPROVED:
            return task(call, task_id, "working", "is approved, and stopped for now")
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
