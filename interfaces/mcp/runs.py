"""The calls that this gateway runs, each in a task that outlives the request of its client.

The kernel claims a call, runs it once and records what came. Here the tool is a request to a
server. If the connection breaks before its answer, nobody knows whether the tool took effect: the
call is in doubt, and a person finds out. It is never run again by itself.

A server may ask its client for something before it goes on (`input_required`). The call stays
claimed until the client has answered, for `INPUT_S` at most.
"""

import asyncio
from typing import Any, Final, NamedTuple

from mcp.shared.exceptions import MCPError

from ayes.adapters.kernel import Kernel, Raised, Ran
from ayes.interfaces.mcp.client import Client
from ayes.interfaces.mcp.routes import Routes
from ayes.interfaces.mcp.upstream import Gone
from ayes.interfaces.mcp.wire import (
    SERVER_LABEL,
    TOOL_LABEL,
    Json,
    recorded,
    recorded_error,
    recorded_failure,
)
from ayes.ledger.call import Call
from ayes.ledger.tool_runner import EffectUnknown, ToolError
from ayes.schemas.errors import AlreadyFilled, NotOpen
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef

_log: Final = get_logger("ayes.interfaces.mcp.runs")

#: How long a server's question waits for its client's answer.
INPUT_S: Final = 600.0
#: How long a gateway that ends waits for results that are on their way.
_CLOSE_S: Final = 5.0


class Replies(NamedTuple):
    """What a client sends with the next attempt of a call."""

    responses: object = None
    #: The server's own state.
    state: str | None = None


class Asked:
    """What a server asks its client for, before it goes on with a call."""

    def __init__(self, result: Json) -> None:
        #: The `input_required` result as it came.
        self.result = result
        #: What a client of a task has answered so far, by the keys of the questions.
        self.given: Json = {}

    @property
    def open(self) -> Json:
        """The questions that are not answered yet."""
        asked = self.result.get("inputRequests") or {}
        return {key: one for key, one in asked.items() if key not in self.given}


class _ErrorResult(ToolError):
    """The server's result is an error, for the model."""

    def __init__(self, text: str, result: Json) -> None:
        super().__init__(text)
        self.result = result


class _ServerError(ToolError):
    """The server answered with an error of JSON-RPC, for the client."""

    def __init__(self, problem: MCPError) -> None:
        error = problem.error.model_dump(mode="json", exclude_none=True)
        super().__init__(recorded_error(error))
        self.problem = problem


class Running:
    """A call that this gateway runs."""

    def __init__(self, kernel: Kernel, routes: Routes, call: Call, client: Client | None) -> None:
        self._kernel, self._routes, self._call, self._client = kernel, routes, call, client
        #: The open question of the server to its client.
        self.asked: Asked | None = None
        self._news = asyncio.Event()
        self._replies: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(self._ended)

    async def news(self, within_s: float) -> None:
        """Wait until the server has asked for something, or the run has ended."""
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                await self._news.wait()
        except TimeoutError:
            return

    def reply(self, client: Client | None, replies: Replies) -> None:
        """Go on with what the server asked for."""
        self.asked = None
        self._client = client
        self._news.clear()
        self._replies.set_result(replies)

    def result(self) -> Json | None:
        """The server's result as it came; None: look into the ledger.

        Raises:
            MCPError: the server's own error; or it could not be reached, and nothing has run.
        """
        return self.task.result()

    def _ended(self, done: "asyncio.Task[Json | None]") -> None:
        self._news.set()
        if not done.cancelled() and (problem := done.exception()) is not None:
            _log.info("a run ended with an error", call=str(self._call.ref), problem=str(problem))

    async def _run(self) -> Json | None:
        # A server that is away costs no claim.
        await self._routes.reach(self._client, self._server)
        try:
            ended = await self._kernel.run(self._call, self._called, output=recorded)
        except (AlreadyFilled, NotOpen):
            return None
        match ended:
            case Ran(value=dict(result)):
                return result
            case Raised(problem=_ErrorResult(result=result)):
                return result
            case Raised(problem=_ServerError(problem=problem)):
                raise problem
            case _:
                return None

    @property
    def _server(self) -> str:
        return self._call.wish.labels.get(SERVER_LABEL, "")

    async def _called(self, arguments: dict[str, Any]) -> Json:
        """The tool: the server's result, once it asks its client for nothing more."""
        replies = Replies()
        while True:
            result = await self._sent(arguments, replies)
            if result.get("resultType") != "input_required":
                break
            replies = await self._replied(result)
        if result.get("isError") is True:
            raise _ErrorResult(recorded_failure(result), result)
        return result

    async def _sent(self, arguments: Json, replies: Replies) -> Json:
        labels = self._call.wish.labels
        params: Json = {
            "name": labels.get(TOOL_LABEL, self._call.wish.tool),
            # As approved, whatever the client sent.
            "arguments": arguments,
        }
        if replies.responses is not None:
            params["inputResponses"] = replies.responses
        if replies.state is not None:
            params["requestState"] = replies.state
        if self._client is not None and self._client.meta:
            params["_meta"] = dict(self._client.meta)
        try:
            return await self._routes.call(self._client, self._server, params)
        except MCPError as problem:
            raise _ServerError(problem) from None
        except Gone:
            why = f"The connection to the server {self._server!r} ended before its result came."
            raise EffectUnknown(why) from None

    async def _replied(self, result: Json) -> Replies:
        self._replies = asyncio.get_running_loop().create_future()
        self.asked = Asked(result)
        self._news.set()
        try:
            return await asyncio.wait_for(self._replies, INPUT_S)
        except TimeoutError:
            self.asked = None
            why = f"The server {self._server!r} asked its client for something, without an answer."
            raise EffectUnknown(why) from None


class Runs:
    """At most one run of each call in this process; the claims of the ledger see to all others."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._running: dict[CallRef, Running] = {}

    def of(self, ref: CallRef) -> Running | None:
        return self._running.get(ref)

    def start(self, kernel: Kernel, call: Call, client: Client | None) -> Running:
        """Begin to run an approved call."""
        running = Running(kernel, self._routes, call, client)
        self._running[call.ref] = running
        running.task.add_done_callback(lambda _: self._running.pop(call.ref, None))
        return running

    async def close(self) -> None:
        """Give the runs in progress a moment to record what came."""
        tasks = [one.task for one in self._running.values() if one.asked is None]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        for running in list(self._running.values()):
            running.task.cancel()
