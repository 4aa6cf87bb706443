"""Claude Code: its hooks ask the ledger before a tool runs, and record what became of it.

    PreToolUse           ──► requested, judged, claimed  ──► allow, or deny with the reason
    PostToolUse          ──► the result is recorded
    PostToolUseFailure   ──► the error is recorded; nobody knows how an interrupted call ended

Claude Code runs the tool. So a call is claimed when it is allowed, under an id made of the session
and `tool_use_id`, and whoever has the other hook's event finds the call by that claim.

**The same call asked again is the same call until it starts.** A call that waits is denied, with
words on how to come back, and the model then calls again under a new `tool_use_id`. So a call's
name comes from the session, the tool, its arguments and a number. One that was started, or has
ended, is passed over: the next equal one is a call of its own, which is judged anew.

`defer`, which Claude Code knows too, is not used: in an interactive session it is ignored, and the
tool may run (Claude Code 2.1.330).

The shapes are those of https://code.claude.com/docs/en/hooks.
"""

import json
import uuid
from pathlib import PurePath
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ayes.adapters.kernel import Kernel, spec_from_schema
from ayes.adapters.names import AskedCall, has_ended, numbered, thread_name
from ayes.adapters.next_step import Answer, Run, Say, Wait, next_step
from ayes.adapters.outputs import MAX_OUTPUT, kept, output_of, output_text, recordable
from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.projections import refusal_texts
from ayes.projections.formats.anthropic.media import PDF, read_media
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.errors import AlreadyFilled, BadArguments, BadInput, NotOpen
from ayes.schemas.limits import cut
from ayes.schemas.slots import ThreadRef

#: After this long without a result nobody knows how a call ended. A command may run for 10 minutes.
LEASE_S: Final = 1_800.0
#: How many equal calls back the claim of an event is looked for: as many may run at once.
_MAX_AT_ONCE: Final = 16
_ATTEMPTS: Final = 5
_NOT_STARTED: Final = frozenset({Status.UNKNOWN, Status.REQUESTED, Status.PENDING, Status.APPROVED})
#: The hooks get no schemas.
_SCHEMA: Final = '{"type":"object"}'


class HookEvent(Struct, frozen=True):
    """What a hook reads. Fields that are not needed here are skipped."""

    hook_event_name: Literal["PreToolUse", "PostToolUse", "PostToolUseFailure"]
    session_id: str
    tool_name: str
    tool_input: dict[str, Any]
    tool_use_id: str
    #: Of PostToolUse: the tool's result, as Claude Code has it.
    tool_response: Any = None
    #: Of PostToolUseFailure.
    error: str = ""
    is_interrupt: bool = False


class Allow(Struct, frozen=True):
    """The tool runs, now and once."""

    #: The arguments that a reviewer wants instead, if there are some.
    arguments: dict[str, Any] | None = None


class Deny(Struct, frozen=True):
    """The tool does not run. The model reads why."""

    reason: str


type Decision = Allow | Deny


def read_event(text: str) -> HookEvent:
    """The event that a hook is handed.

    Before a tool runs its JSON must have one meaning only. A result is taken as it comes.

    Raises:
        BadInput: it is not the event of a tool's hook, or has no ids.
    """
    try:
        given = json.loads(text)
        if isinstance(given, dict) and given.get("hook_event_name") == "PreToolUse":
            given = strict_json.read(text)
        return event_of(given)
    except (ValueError, RecursionError) as problem:
        raise BadInput(f"this is not the event of a hook: {problem}") from None


def event_of(given: Any) -> HookEvent:
    """The event as Claude's SDK has it.

    Raises:
        BadInput: as of `read_event`.
    """
    try:
        found = msgspec.convert(given, HookEvent)
    except msgspec.MsgspecError as problem:
        raise BadInput(f"this is not the event of a hook for tools: {problem}") from None
    for name in ("session_id", "tool_name", "tool_use_id"):
        if not getattr(found, name):
            raise BadInput(f"the event of the hook has no {name}, so its call has no name.")
    return found


def decision_json(decision: Decision) -> dict[str, Any]:
    """The decision as Claude Code reads it."""
    said: dict[str, Any] = {"hookEventName": "PreToolUse"}
    match decision:
        case Allow(arguments):
            said |= {"permissionDecision": "allow"}
            if arguments is not None:
                changed = "A reviewer changed the arguments of this call. It runs with: "
                said |= {
                    "updatedInput": arguments,
                    "additionalContext": changed + output_text(arguments),
                }
        case Deny(reason):
            said |= {"permissionDecision": "deny", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": said}


async def before(kernel: Kernel, event: HookEvent) -> Decision:
    """Whether the tool runs. If so, the call is claimed.

    It waits for people for the kernel's `patience_s`.

    Raises:
        Unavailable: the ledger does not answer. The tool must not run.
        Refused: as of `Kernel.settle`.
    """
    spec = spec_from_schema(event.tool_name, "", _SCHEMA)
    refused = ""
    for _ in range(_ATTEMPTS):
        number = await _open_number(kernel, event)
        own = await _claimed(kernel, event, number)
        if own is not None and not has_ended(own):
            # This very call was allowed before, and may have run.
            return _denied(own)
        try:
            call = await kernel.wait(await kernel.request(_asked(event, number), spec))
            approved = next_step(call)
            if not isinstance(approved, Run):
                return _denied(call)
            if approved.edited and (odd := strict_json.rounded(approved.arguments)):
                # Claude Code reads its arguments as JavaScript does, and would round it.
                why = f"the number {odd} in the approved arguments cannot be held exactly here"
                return Deny(refusal_texts.not_as_approved(event.tool_name, why))
            async with kernel.in_time(f"the claim of {call.ref}"):
                await kernel.ledger.start(call.ref, claim_id=_claim_id(event), lease_s=LEASE_S)
        except BadArguments as problem:
            return Deny(str(problem))
        except (AlreadyFilled, NotOpen) as problem:
            refused = str(problem)  # another one with the same arguments took it, as a rule
            continue
        return Allow(msgspec.json.decode(approved.arguments) if approved.edited else None)
    return Deny(f"`{event.tool_name}` did not run: {refused}")


async def after(kernel: Kernel, event: HookEvent) -> Call | None:
    """Record what became of a call; None if none was allowed under this `tool_use_id`.

    Raises:
        AlreadyFilled: it has ended already.
        Unavailable: the ledger does not answer; do the same again.
    """
    call = await _claimed(kernel, event, await _open_number(kernel, event))
    if call is None:
        return None
    ledger = kernel.ledger
    if event.hook_event_name == "PostToolUse":
        recorded = _finished(kernel, call, recordable(event.tool_response, _output))
    elif event.is_interrupt:
        recorded = ledger.doubt(call.ref, f"`{event.tool_name}` was interrupted while it ran.")
    else:
        recorded = ledger.finish(call.ref, error=_text(event.error))
    async with kernel.in_time(f"the end of {call.ref}", "Do the same again."):
        return await recorded


def _denied(call: Call) -> Deny:
    match next_step(call):
        case Wait(ref) if call.status is Status.APPROVED:
            return Deny(
                f"`{call.wish.tool}` did not run: it is approved, and was stopped for now ({ref}). "
                "Make the same call again later, with exactly the same arguments: it runs once "
                "people have resumed."
            )
        case Wait(ref):
            return Deny(
                f"`{call.wish.tool if call.requested else 'The tool'}` did not run: people were "
                f"asked, and have not answered yet ({ref}). Nobody said no. Make the same call "
                "again later, with exactly the same arguments: it runs once they agree."
            )
        case Answer() as answer:
            text = answer.text
            return Deny(f"This call has an answer, and does not run (again): {text}")
        case Say(text):
            return Deny(text)
        case Run():
            raise AssertionError("an approved call is claimed")


async def _open_number(kernel: Kernel, event: HookEvent) -> int:
    """The number of the first equal call of the session that has not started.

    Equal calls start in the order of their numbers, so few looks find it.
    """
    passed, found = 0, 1
    while not await _is_open(kernel, event, found):
        passed, found = found, found * 2
    while found - passed > 1:
        middle = (passed + found) // 2
        if await _is_open(kernel, event, middle):
            found = middle
        else:
            passed = middle
    return found


async def _is_open(kernel: Kernel, event: HookEvent, number: int) -> bool:
    return (await _call(kernel, event, number)).status in _NOT_STARTED


async def _claimed(kernel: Kernel, event: HookEvent, open_number: int) -> Call | None:
    """The call that was allowed under this `tool_use_id`."""
    claim = _claim_id(event)
    for number in range(open_number - 1, max(0, open_number - 1 - _MAX_AT_ONCE), -1):
        call = await _call(kernel, event, number)
        started = call.starts[-1].event if call.starts else None
        if isinstance(started, e.ToolStarted) and started.id == claim:
            return call
    return None


async def _call(kernel: Kernel, event: HookEvent, number: int) -> Call:
    thread = ThreadRef(kernel.workspace, thread_name(event.session_id))
    ref = thread.call(_asked(event, number).call_id)
    async with kernel.in_time(str(ref), "Do the same again."):
        return await kernel.ledger.call(ref)


def _asked(event: HookEvent, number: int) -> AskedCall:
    # The model may write the same arguments in another order.
    arguments = msgspec.json.encode(event.tool_input, order="sorted").decode()
    unnamed = AskedCall(event.session_id, "", event.tool_name, arguments)
    return replace(unnamed, call_id=f"use-{numbered(unnamed, number)}")


def _claim_id(event: HookEvent) -> str:
    text = msgspec.json.encode([event.session_id, event.tool_use_id]).decode()
    return str(uuid.uuid5(uuid.NAMESPACE_OID, text))


async def _finished(kernel: Kernel, call: Call, output: e.Content) -> Call:
    output = await kept(kernel.ledger.log, kernel.workspace, output)
    return await kernel.ledger.finish(call.ref, output=output)


def _output(response: Any) -> e.Content:
    """What a tool returned: an image or a PDF that was read, or the blocks of an MCP server's
    result, are files. The beginning of a long text is kept.
    """
    found = output_of(response, _file)
    return found if isinstance(found, tuple) else _text(found)


def _file(item: Any) -> e.Media | None:
    match item:
        case {"type": "image", "file": {"base64": str(data), "type": str(media_type)}} if data:
            return e.Media(media_type, e.Inline(data))
        case {"type": "pdf", "file": {"base64": str(data), "filePath": str(path)}} if data:
            return e.Media(PDF, e.Inline(data), PurePath(path).name)
        case {"type": "image" | "document", "source": dict()}:
            return read_media(item)
        case _:
            return None


def _text(text: str) -> str:
    return cut(text.encode("utf-8", "replace").decode(), MAX_OUTPUT)
