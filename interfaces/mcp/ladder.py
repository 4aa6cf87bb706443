"""How a call of a tool is answered: at once if it can be, else in the best way its client supports.

1. The policy allows it: it is passed on, and the result is recorded. The policy blocks it: an error
   result with the reason.
2. People are asked, and the client declared the tasks extension: a task, at once. It is given one
   as well for a tool that takes longer than `TASK_AFTER_S`.
3. Otherwise the request is held, with progress. A client of 2026-07-28 is then asked to come back
   with a sealed state (`input_required`), for `ROUNDS` rounds: most clients give up after ten.
4. At last a finished result, `pending`, that says how to come back: the tool `approvals_wait`, or
   the same call again.

A request that is given up, by a disconnect or a cancellation, changes nothing in the ledger, and
nothing is started for it. If the ledger cannot be reached, nothing runs.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY

from ayes.adapters.kernel import Kernel
from ayes.adapters.names import AskedCall, has_ended
from ayes.adapters.next_step import Answer, Run, Say, Wait, next_step
from ayes.interfaces.mcp.client import Client
from ayes.interfaces.mcp.names import BadSeal, Codec, sealed, sent_id, unsealed
from ayes.interfaces.mcp.routes import MAX_TOOLS, Offered, Routes
from ayes.interfaces.mcp.runs import Asked, Replies, Running, Runs
from ayes.interfaces.mcp.wire import (
    SERVER_LABEL,
    TASKS,
    TOOL_LABEL,
    WAIT,
    Json,
    ServerError,
    complete,
    declares_tasks,
    detailed_task,
    ended_result,
    labels_of,
    pending_result,
    spec_of_tool,
    task,
    unfinished,
)
from ayes.ledger import clock
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.projections import refusal_texts
from ayes.schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    ApprovalsError,
    BadInput,
    NotOpen,
)
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec, declaration

_log: Final = get_logger("ayes.interfaces.mcp.ladder")

#: How many times a client is asked to come back: one less than clients' own limit.
ROUNDS: Final = 9
#: How often a client that waits is told so.
PROGRESS_S: Final = 15.0
#: How long a call of which nobody is asked may take before a client of tasks is given one.
TASK_AFTER_S: Final = 2.0
#: The versions of a server's tools that are declared a day, and their bytes together. Of 490 tools
#: of ten real servers the largest has 85 KB, and all together have 2.4 MB.
VERSIONS_A_DAY: Final = MAX_TOOLS
BYTES_A_DAY: Final = 16 * 2**20


class _Sought(NamedTuple):
    """What a request of a client is about."""

    ref: CallRef
    #: Our own state that came with it.
    state: Json
    #: To what the server asked, if that is what the client came back for.
    replies: Replies | None = None
    #: Whether it may be the call of an earlier turn, whose id the client sent again.
    may_be_earlier: bool = False


class Ladder:
    def __init__(
        self,
        ledger: Ledger,
        routes: Routes,
        codec: Codec,
        *,
        workspace: str,
        thread: str,
        hold_s: float,
    ) -> None:
        self._ledger, self._routes, self._codec = ledger, routes, codec
        self._workspace, self._thread, self._hold_s = workspace, thread, hold_s
        self.runs = Runs(routes)
        self._kernels: dict[str, Kernel] = {}
        #: By server, the versions of its tools that were called on this day, with their bytes.
        self._versions: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)
        self._day = clock.now().date()

    # --------------------------------------------------------------------------------------- entry

    async def call_tool(self, client: Client, params: Json) -> Json:
        """Answer `tools/call`.

        Raises:
            MCPError: the id or state that the client sent is not its own; or the server's error.
        """
        try:
            sought = await self._sought(client, params)
        except ApprovalsError as problem:
            # Whatever it is, it is not a yes.
            return complete(unfinished(f"The tool did not run: {problem}"), modern=client.modern)
        if sought is None:
            missing = self._routes.missing
            away = f" (not there now: the servers {', '.join(missing)})" if missing else ""
            unknown = f"Unknown tool: {params.get('name')}{away}"
            return complete(unfinished(unknown), modern=client.modern)
        try:
            return await self._follow(client, sought)
        except ApprovalsError as problem:
            return complete(unfinished(f"There is no result: {problem}"), modern=client.modern)

    async def _sought(self, client: Client, params: Json) -> _Sought | None:
        """The call that a request is about, requested now if it is new; None: no such tool."""
        name, state = str(params.get("name")), _state(params)
        if name == WAIT:
            arguments = params.get("arguments")
            given = arguments.get("id") if isinstance(arguments, dict) else None
            return _Sought(self._unsealed("wait", client, given), state)
        if "call" in state:
            # The boundary has checked that it is the state of this very request.
            replies = Replies(params.get("inputResponses"), state.get("server"))
            ref = self._own(CallRef.parse(state["call"]))
            return _Sought(ref, state, replies if state.get("asked") else None)
        if (offered := await self._offered(client, name)) is None:
            return None
        if offered.needs_task and client.modern and not declares_tasks(client.meta):
            raise no_tasks()
        call = await self._request(client, offered, params)
        may_be_earlier = bool(sent_id(params.get("_meta"))) and has_ended(call)
        return _Sought(call.ref, state, may_be_earlier=may_be_earlier)

    # ------------------------------------------------------------------------------------- request

    async def _offered(self, client: Client, name: str) -> Offered | None:
        """A tool that a server lists; None if none does, so that none is called in secret."""
        if name not in self._routes.tools:
            await self._routes.refresh_tools(client)
        return self._routes.tools.get(name)

    async def _request(self, client: Client, offered: Offered, params: Json) -> Call:
        spec = spec_of_tool(offered.server, offered.tool)
        self._check_versions(offered.server, spec)
        given = params.get("arguments")
        arguments = msgspec.json.encode({} if given is None else given).decode()
        thread = f"{self._thread}-{client.requester}"
        asked = AskedCall(thread, sent_id(params.get("_meta")), spec.name, arguments)
        labels = labels_of(offered.server, offered.tool)
        return await self._kernel(client).request(asked, spec, labels=labels)

    def _check_versions(self, server: str, spec: ToolSpec) -> None:
        """Bound the versions of a server's tools that are declared on a day, which is when they are
        called.
        """
        day = clock.now().date()
        if day != self._day:
            self._day, self._versions = day, defaultdict(dict)
        versions = self._versions[server]
        version = spec.name, declaration(spec)[0]
        size = len(spec.description.encode()) + len(spec.schema_text.encode())
        full = len(versions) >= VERSIONS_A_DAY or sum(versions.values()) + size > BYTES_A_DAY
        if version not in versions and full:
            _log.error("a server changes its tools too often", server=server, tool=spec.name)
            raise BadInput(
                f"the server {server} has changed its tools too often: {len(versions):,} versions "
                "of them were called today, and no other is taken until midnight UTC."
            )
        versions[version] = size

    def _kernel(self, client: Client) -> Kernel:
        if (kernel := self._kernels.get(client.requester)) is None:
            kernel = Kernel(self._ledger, self._workspace, requester=client.requester)
            self._kernels[client.requester] = kernel
        return kernel

    # -------------------------------------------------------------------------------------- follow

    async def _follow(self, client: Client, sought: _Sought) -> Json:
        """Wait for a call as long as one request may, and answer."""
        ref, state, replies, may_be_earlier = sought
        loop = asyncio.get_running_loop()
        until = loop.time() + self._hold_s
        has_tasks = client.modern and declares_tasks(client.meta)
        soon = min(until, loop.time() + TASK_AFTER_S) if has_tasks else until
        call = await self._ledger.known_call(ref)
        self._check_requester(client, call)
        async with self._progress(client, call):
            while True:
                if (running := await self._running(client, call)) is not None:
                    if running.asked is not None and replies is not None:
                        running.reply(client, replies)
                        replies = None
                    await running.news(soon - loop.time())
                    if running.asked is not None:
                        return _question(call, running.asked)
                    if running.task.done() and (result := running.result()) is not None:
                        return result
                    call = await self._ledger.known_call(ref)
                if (ended := await self._ended(client, call)) is not None:
                    if may_be_earlier:
                        note = {"type": "text", "text": refusal_texts.MAY_BE_EARLIER}
                        ended = {**ended, "content": [*ended.get("content", ()), note]}
                    return complete(ended, modern=client.modern)
                if has_tasks and (call.status is Status.PENDING or loop.time() >= soon):
                    given = sealed(self._codec, "task", client.requester, ref)
                    return {"resultType": "task", **task(call, given, "working")}
                if loop.time() >= until:
                    return self._later(client, call, state)
                left_s = max(0.01, soon - loop.time())
                call = await self._ledger.until(call, partial(_has_moved, call), left_s)

    async def _running(self, client: Client, call: Call) -> Running | None:
        """The run of a call in this gateway, begun now if it may run; None if there is none.

        Raises:
            NotOpen: it is approved, and may not run.
        """
        running = self.runs.of(call.ref)
        if running is not None or call.status is not Status.APPROVED:
            return running
        match next_step(call, await self._version(client, call)):
            case Run():
                kernel = self._kernel(client)
                return self.runs.of(call.ref) or self.runs.start(kernel, call, client)
            case Say(text=text):
                raise NotOpen(text)
            case _:
                return None

    async def _ended(self, client: Client, call: Call) -> Json | None:
        """The result of a call that has ended; None if it goes on.

        Raises:
            MCPError: the server's own error.
        """
        read = next_step(call)
        if call.status is Status.RUNNING or not isinstance(read, Say | Answer):
            return None
        call = await self._kernel(client).with_bytes(call)
        try:
            return ended_result(call, read, has_schema=self._has_schema(call))
        except ServerError as problem:
            error = problem.args[0]
            raise MCPError(
                int(error.get("code", -32603)), str(error.get("message", "")), error.get("data")
            ) from None

    def _later(self, client: Client, call: Call, state: Json) -> Json:
        """The answer to a request that has waited as long as it may."""
        rounds = state.get("rounds", 0) + 1
        if client.modern and rounds <= ROUNDS:
            ours = {"call": str(call.ref), "rounds": rounds}
            return {"resultType": "input_required", "requestState": json.dumps(ours)}
        given = sealed(self._codec, "wait", client.requester, call.ref)
        result = pending_result(call, given, has_schema=self._has_schema(call))
        return complete(result, modern=client.modern)

    def _tools(self, call: Call) -> list[Offered]:
        """The tool of a call as its server lists it, unless it does not any more."""
        named = tuple(map(call.wish.labels.get, (SERVER_LABEL, TOOL_LABEL)))
        every = self._routes.tools.values()
        return [one for one in every if (one.server, one.tool.get("name")) == named]

    def _has_schema(self, call: Call) -> bool:
        return any(one.has_schema for one in self._tools(call))

    async def _version(self, client: Client, call: Call) -> str | None:
        """The version of the tool as its server declares it now, if people approved one; empty if
        the server has it no more. A call of which nobody was asked came with what it had listed.
        """
        if call.gated is None:
            return None
        await self._routes.refresh_tools(client, call.wish.labels[SERVER_LABEL])
        listed = self._tools(call)
        return declaration(spec_of_tool(listed[0].server, listed[0].tool))[0] if listed else ""

    def _check_requester(self, client: Client, call: Call) -> None:
        if call.wish.requester != client.requester or SERVER_LABEL not in call.wish.labels:
            raise _bad_id()

    @asynccontextmanager
    async def _progress(self, client: Client, call: Call) -> AsyncGenerator[None]:
        """Tell a client that waits so, from time to time."""

        async def tell() -> None:
            waited = 0.0
            while True:
                await asyncio.sleep(PROGRESS_S)
                waited += PROGRESS_S
                if self.runs.of(call.ref) is None:
                    await client.progress(waited, None, "waits for a person's approval")

        telling = asyncio.create_task(tell())
        try:
            yield
        finally:
            telling.cancel()

    # --------------------------------------------------------------------------------------- tasks

    def _unsealed(self, kind: str, client: Client, token: object) -> CallRef:
        try:
            ref = unsealed(self._codec, kind, client.requester, token)
        except (BadSeal, ApprovalsError):
            raise _bad_id() from None
        return self._own(ref)

    def _own(self, ref: CallRef) -> CallRef:
        """Refuse a call of another workspace, whose gateway may have the same key."""
        if ref.workspace != self._workspace:
            raise _bad_id()
        return ref

    async def _task(self, client: Client, params: Json) -> tuple[Call, str]:
        given = params.get("taskId")
        ref = self._unsealed("task", client, given)
        return await self._ledger.known_call(ref), str(given)

    async def get_task(self, client: Client, params: Json) -> Json:
        """Answer `tasks/get`; an approved call starts here, while its client is there."""
        call, task_id = await self._task(client, params)
        try:
            running = await self._running(client, call)
        except NotOpen as problem:  # it is approved, and runs no more
            ended = complete(unfinished(str(problem)), modern=True)
            shown = task(call, task_id, "completed") | {"result": ended}
            return {"resultType": "complete", **shown}
        asked = running.asked if running else None
        requests = asked.open if asked else None
        has_schema = self._has_schema(call)
        call = await self._kernel(client).with_bytes(call)
        shown = detailed_task(call, task_id, has_schema=has_schema, asked=requests)
        return {"resultType": "complete", **shown}

    async def update_task(self, client: Client, params: Json) -> Json:
        """Answer `tasks/update`: what the server asked for goes to it."""
        call, _ = await self._task(client, params)
        running = self.runs.of(call.ref)
        responses = params.get("inputResponses")
        if running is not None and running.asked is not None and isinstance(responses, dict):
            asked = running.asked
            asked.given.update({key: responses[key] for key in asked.open if key in responses})
            if not asked.open:
                running.reply(client, Replies(asked.given, asked.result.get("requestState")))
        return {"resultType": "complete"}

    async def cancel_task(self, client: Client, params: Json) -> Json:
        """Answer `tasks/cancel`: withdraw a call that waits. One that was approved goes on."""
        call, _ = await self._task(client, params)
        if call.status in (Status.REQUESTED, Status.PENDING):
            with suppress(AlreadyDecided, AlreadyFilled, NotOpen):
                await self._ledger.withdraw(call.ref, "its client cancelled the task")
        return {"resultType": "complete"}


def _state(params: Json) -> Json:
    """Our own state in a request, which the boundary has unsealed; empty if there is none."""
    sent = params.get("requestState")
    if sent is None:
        return {}
    try:
        found: Any = json.loads(sent)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise MCPError(INVALID_PARAMS, "Invalid or expired requestState")
    return found


def _question(call: Call, asked: Asked) -> Json:
    """What the server asks its client for, with a state that leads back to the call."""
    ours: Json = {"call": str(call.ref), "asked": True}
    if isinstance(asked.result.get("requestState"), str):
        ours["server"] = asked.result["requestState"]
    return {**asked.result, "requestState": json.dumps(ours)}


def no_tasks() -> MCPError:
    """The error for a client that did not declare the extension."""
    needed: Json = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"declare the extension {TASKS}", needed)


def _bad_id() -> MCPError:
    return MCPError(
        INVALID_PARAMS,
        "there is no such call of yours: give the id exactly as it came with the pending result",
    )


def _has_moved(before: Call, now: Call) -> bool:
    """Whether its status is another one, or a stop that it waited for has ended."""
    both = (isinstance(next_step(one), Wait) for one in (before, now))
    return now.status is not before.status or len({*both}) > 1
