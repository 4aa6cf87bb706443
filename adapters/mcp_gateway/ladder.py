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
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY

from ayes.adapters.mcp_gateway.names import (
    BadSeal,
    Codec,
    content_name,
    numbered,
    sealed,
    sent_name,
    thread_name,
    unsealed,
)
from ayes.adapters.mcp_gateway.routes import Client, Offered, Routes
from ayes.adapters.mcp_gateway.runs import Answers, Runs, may_start
from ayes.adapters.mcp_gateway.wire import (
    SERVER_LABEL,
    TASKS,
    TOOL_LABEL,
    WAIT,
    Json,
    ServerError,
    complete,
    declares_tasks,
    detailed_task,
    labels_of,
    pending_result,
    replayed,
    says,
    spec_of_tool,
    task,
    unfinished,
    with_changes,
)
from ayes.ledger.lifecycle import NOT_RUN, SETTLED, Call, Status
from ayes.ledger.services import Ledger
from ayes.schemas import events as e
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    ApprovalsError,
    NotOpen,
    WaitTimedOut,
)
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.tools import declaration

_log: Final = get_logger("ayes.adapters.mcp_gateway.ladder")

#: How many times a client is asked to come back: one less than clients' own limit.
ROUNDS: Final = 9
#: How often a client that waits is told so.
PROGRESS_S: Final = 15.0
#: How long a call of which nobody is asked may take before a client of tasks is given one.
TASK_AFTER_S: Final = 2.0
_POLL_S: Final = 0.25
#: How many calls of the same name are looked at.
_SAME_NAME: Final = 10_000
_OVER: Final = SETTLED | NOT_RUN
_WAITS: Final = frozenset({Status.REQUESTED, Status.PENDING})


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
        self.runs = Runs(ledger, routes)
        #: The declarations that are known to be recorded, by tool and version.
        self._declared: dict[tuple[str, str], e.ToolRef] = {}

    # --------------------------------------------------------------------------------------- entry

    async def call_tool(self, client: Client, params: Json) -> Json:
        """Answer `tools/call`.

        Raises:
            MCPError: the id or state that the client sent is not its own; or the server's error.
        """
        try:
            return await self._call_tool(client, params)
        except ApprovalsError as problem:
            # Whatever it is, it is not a yes.
            return complete(unfinished(f"The tool did not run: {problem}"), modern=client.modern)

    async def _call_tool(self, client: Client, params: Json) -> Json:
        name = str(params.get("name"))
        if name == WAIT and name not in self._routes.tools:
            arguments = params.get("arguments")
            given = arguments.get("id") if isinstance(arguments, dict) else None
            ref = self._unsealed("wait", client, given)
            state = _state(params)
            return await self._follow(client, ref, state, Answers())
        state = _state(params)
        answers = Answers(params.get("inputResponses"), state.get("server"), state.get("claim", ""))
        if "call" in state:
            # The boundary has checked that it is the state of this very request.
            return await self._follow(client, CallRef.parse(state["call"]), state, answers)
        if (offered := await self._offered(client, name)) is None:
            return complete(unfinished(f"Unknown tool: {name}"), modern=client.modern)
        if offered.needs_task and client.modern and not declares_tasks(client.meta):
            raise no_tasks()
        call = await self._request(client, offered, params)
        return await self._follow(client, call.ref, state, answers)

    # ------------------------------------------------------------------------------------- request

    async def _offered(self, client: Client, name: str) -> Offered | None:
        """A tool that a server lists; None if none does, so that none is called in secret."""
        if name not in self._routes.tools:
            await self._routes.about()
            await self._routes.refresh_tools(client)
        return self._routes.tools.get(name)

    async def declare(self, offered: Offered) -> e.ToolRef:
        """Declare a server's tool, as it is now."""
        spec = spec_of_tool(offered.tool)
        key = spec.name, declaration(spec)[0]
        if key not in self._declared:
            self._declared[key] = await self._ledger.declare(self._workspace, spec)
        return self._declared[key]

    async def _request(self, client: Client, offered: Offered, params: Json) -> Call:
        tool = await self.declare(offered)
        given = params.get("arguments")
        arguments = msgspec.json.encode({} if given is None else given).decode()
        thread = ThreadRef(self._workspace, thread_name(self._thread, client.requester))
        digest = call_digest(tool.tool, tool.version, arguments)
        labels = labels_of(offered.server, offered.tool)
        sent = sent_name(params.get("_meta"))
        if sent is None:
            ref = await self._unfinished(thread, content_name(digest))
            return await self._ledger.request(
                ref, tool, arguments, requester=client.requester, labels=labels
            )
        for number in range(1, _SAME_NAME):
            ref = thread.call(numbered(sent, number))
            with suppress(AlreadyFilled):
                return await self._ledger.request(
                    ref, tool, arguments, requester=client.requester, labels=labels
                )
        raise NotOpen(f"{sent!r} was used for too many different calls.")

    async def _unfinished(self, thread: ThreadRef, name: str) -> CallRef:
        """The first call of this name that has not ended.

        They end in the order of their numbers, so it is found in a few reads.
        """

        async def over(number: int) -> bool:
            return (await self._ledger.call(thread.call(numbered(name, number)))).status in _OVER

        low, high = 0, 1
        while await over(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await over(middle) else (low, middle)
        return thread.call(numbered(name, high))

    # -------------------------------------------------------------------------------------- follow

    async def _follow(self, client: Client, ref: CallRef, state: Json, answers: Answers) -> Json:
        """Wait for a call as long as one request may, and answer."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._hold_s
        has_tasks = client.modern and declares_tasks(client.meta)
        soon = min(until, loop.time() + TASK_AFTER_S) if has_tasks else until
        call = await self._ledger.known_call(ref)
        self._check_requester(client, call)
        async with self._progress(client, call):
            while True:
                if may_start(call, self.runs, answers):
                    await self._check_unchanged(client, call)
                    self.runs.start(call, client, answers)
                    answers = Answers()
                if (running := self.runs.running(ref)) is not None:
                    done, _ = await asyncio.wait([running], timeout=max(0, soon - loop.time()))
                    if done and (result := running.result()) is not None:
                        return self._as_sent(call, result, client)
                    call = await self._ledger.known_call(ref)
                    if done and call.status is not Status.RUNNING:
                        continue
                if (ended := self._ended(call)) is not None:
                    return complete(ended, modern=client.modern)
                if has_tasks and (call.status is Status.PENDING or loop.time() >= soon):
                    given = sealed(self._codec, "task", client.requester, ref)
                    return {"resultType": "task", **task(call, given, "working")}
                if loop.time() >= until:
                    return self._later(client, call, state)
                call = await self._next(call, soon)

    async def _next(self, call: Call, until: float) -> Call:
        """The call after something may have happened to it."""
        left_s = max(0.01, until - asyncio.get_running_loop().time())
        if call.status not in _WAITS:
            await asyncio.sleep(min(_POLL_S, left_s))
            return await self._ledger.known_call(call.ref)
        # A task is given as soon as people are asked, so the question is looked for as well.
        try:
            return await self._ledger.decision(call.ref, timeout_s=min(_POLL_S * 2, left_s))
        except WaitTimedOut:
            return await self._ledger.known_call(call.ref)

    def _ended(self, call: Call) -> Json | None:
        """The result of a call that has ended; None if it goes on.

        Raises:
            MCPError: the server's own error.
        """
        has_schema = self._has_schema(call)
        if (said := says(call, has_schema=has_schema)) is not None:
            return said
        if call.status is Status.APPROVED and call.flaw is not None:
            return unfinished(f"`{call.wish.tool}` did not run: {call.flaw.replace('_', ' ')}.")
        if call.status not in (Status.RETURNED, Status.FAILED):
            return None
        try:
            return with_changes(call, replayed(call))
        except ServerError as problem:
            error = problem.args[0]
            raise MCPError(
                int(error.get("code", -32603)), str(error.get("message", "")), error.get("data")
            ) from None

    def _as_sent(self, call: Call, result: Json, client: Client) -> Json:
        """What the server answered just now, as it came."""
        if result.get("resultType") != "input_required":
            return with_changes(call, result)
        asked = self.runs.asked(call.ref)
        ours = {"call": str(call.ref), "claim": asked.claim_id if asked else ""}
        if isinstance(result.get("requestState"), str):
            ours["server"] = result["requestState"]
        return {**result, "requestState": json.dumps(ours)}

    def _later(self, client: Client, call: Call, state: Json) -> Json:
        """The answer to a request that has waited as long as it may."""
        rounds = state.get("rounds", 0) + 1
        if client.modern and rounds <= ROUNDS:
            ours = {"call": str(call.ref), "rounds": rounds}
            return {"resultType": "input_required", "requestState": json.dumps(ours)}
        given = sealed(self._codec, "wait", client.requester, call.ref)
        result = pending_result(call, given, has_schema=self._has_schema(call))
        return complete(result, modern=client.modern)

    def _has_schema(self, call: Call) -> bool:
        labels = call.wish.labels
        return any(
            one.has_schema
            for one in self._routes.tools.values()
            if (one.server, one.tool.get("name"))
            == (labels.get(SERVER_LABEL), labels.get(TOOL_LABEL))
        )

    async def _check_unchanged(self, client: Client, call: Call) -> None:
        """Refuse to run what people approved if its server declares something else by now.

        Raises:
            NotOpen: the tool has changed or is gone.
        """
        if call.gated is None:
            return
        await self._routes.about()
        await self._routes.refresh_tools(client)
        labels = call.wish.labels
        for one in self._routes.tools.values():
            if (one.server, one.tool.get("name")) == (labels[SERVER_LABEL], labels[TOOL_LABEL]):
                spec = spec_of_tool(one.tool)
                if (spec.name, declaration(spec)[0]) == (call.wish.tool, call.wish.tool_version):
                    return
        raise NotOpen(
            f"{call.wish.tool} is not what was approved: its server has changed its description or "
            "schema, or has it no more. Ask again."
        )

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
                if self.runs.running(call.ref) is None:
                    await client.progress(waited, None, "waits for a person's approval")

        telling = asyncio.create_task(tell())
        try:
            yield
        finally:
            telling.cancel()

    # --------------------------------------------------------------------------------------- tasks

    def _unsealed(self, kind: str, client: Client, token: object) -> CallRef:
        try:
            return unsealed(self._codec, kind, client.requester, token)
        except (BadSeal, ApprovalsError):
            raise _bad_id() from None

    async def _task(self, client: Client, params: Json) -> tuple[Call, str]:
        given = params.get("taskId")
        ref = self._unsealed("task", client, given)
        return await self._ledger.known_call(ref), str(given)

    async def get_task(self, client: Client, params: Json) -> Json:
        """Answer `tasks/get`; an approved call starts here, while its client is there."""
        call, task_id = await self._task(client, params)
        if call.status is Status.APPROVED and may_start(call, self.runs, Answers()):
            await self._check_unchanged(client, call)
            self.runs.start(call, client, Answers())
        asked = self.runs.asked(call.ref)
        requests = asked.open if asked else None
        has_schema = self._has_schema(call)
        shown = detailed_task(call, task_id, has_schema=has_schema, asked=requests)
        return {"resultType": "complete", **shown}

    async def update_task(self, client: Client, params: Json) -> Json:
        """Answer `tasks/update`: what the server asked for goes to it."""
        call, _ = await self._task(client, params)
        asked = self.runs.asked(call.ref)
        responses = params.get("inputResponses")
        if asked is not None and isinstance(responses, dict):
            asked.given.update({key: responses[key] for key in asked.open if key in responses})
            if not asked.open:
                state = asked.result.get("requestState")
                self.runs.start(call, client, Answers(asked.given, state, asked.claim_id))
        return {"resultType": "complete"}

    async def cancel_task(self, client: Client, params: Json) -> Json:
        """Answer `tasks/cancel`: withdraw a call that waits. One that was approved goes on."""
        call, _ = await self._task(client, params)
        if call.status in _WAITS:
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


def no_tasks() -> MCPError:
    """The error for a client that did not declare the extension."""
    needed: Json = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"declare the extension {TASKS}", needed)


def _bad_id() -> MCPError:
    return MCPError(
        INVALID_PARAMS,
        "there is no such call of yours: give the id exactly as it came with the pending result",
    )
