"""Running an approved call once: claim it, call the server, record what came.

The one module that calls tools. Whatever asks for it (a second request of the client, a task that
is polled, another gateway), the ledger's claim decides who runs, and everybody else gets the
recorded result. If a gateway dies in between, or the connection to the server breaks, nobody knows
whether the tool ran: the call is in doubt, and a person finds out. It is never run again by itself.

A server may ask its client for something before it goes on (`input_required`). The call stays
claimed until the client has answered, for `INPUT_S` at most.
"""

import asyncio
import json
from contextlib import suppress
from typing import Final, NamedTuple

from mcp.shared.exceptions import MCPError

from ayes.adapters.mcp_gateway.routes import Client, Routes
from ayes.adapters.mcp_gateway.upstream import Gone
from ayes.adapters.mcp_gateway.wire import (
    SERVER_LABEL,
    TOOL_LABEL,
    Json,
    recorded,
    recorded_error,
)
from ayes.ledger.lifecycle import Call, Status
from ayes.ledger.services import LEASE_S, RENEW_AFTER_S, Ledger
from ayes.schemas.errors import AlreadyFilled, BrokerRefused, NotOpen, TooLarge, Unavailable
from ayes.schemas.ids import new_id
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef

_log: Final = get_logger("ayes.adapters.mcp_gateway.runs")

#: How long a server's question waits for its client's answer.
INPUT_S: Final = 600.0
_AGAIN_S: Final = 0.5


class Asked(NamedTuple):
    """What a server asks its client for, before it goes on with a call."""

    #: The `input_required` result as it came.
    result: Json
    claim_id: str
    #: What a client of a task has answered so far, by the keys of the questions.
    given: Json

    @property
    def open(self) -> Json:
        """The questions that are not answered yet."""
        asked = self.result.get("inputRequests") or {}
        return {key: one for key, one in asked.items() if key not in self.given}


class Answers(NamedTuple):
    """What a client sends with the next attempt of a call."""

    responses: object = None
    #: The server's own state.
    state: str | None = None
    claim_id: str = ""


class Runs:
    def __init__(self, ledger: Ledger, routes: Routes) -> None:
        self._ledger = ledger
        self._routes = routes
        self._running: dict[CallRef, asyncio.Task[Json | None]] = {}
        self._asked: dict[CallRef, Asked] = {}
        self._keeping: dict[CallRef, asyncio.Task[None]] = {}

    def asked(self, ref: CallRef) -> Asked | None:
        """What the server asks for, of a call that this gateway runs."""
        return self._asked.get(ref)

    def running(self, ref: CallRef) -> "asyncio.Task[Json | None] | None":
        """The run in this process, whose result is the server's own; None if there is none."""
        return self._running.get(ref)

    async def close(self) -> None:
        """Give the runs in progress a moment to record what came."""
        for keeping in self._keeping.values():
            keeping.cancel()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=5)
        for running in self._running.values():
            running.cancel()

    def start(self, call: Call, client: Client | None, answers: Answers) -> None:
        """Begin to run an approved call, or go on with one whose client was asked for something.

        The run does not end with the request of its client: what it comes to must be recorded.
        """
        ref = call.ref
        if ref in self._running:
            return
        asked = self._asked.get(ref)
        claim_id = answers.claim_id or (asked.claim_id if asked else new_id())
        if (keeping := self._keeping.pop(ref, None)) is not None:
            keeping.cancel()
        self._asked.pop(ref, None)
        running = asyncio.create_task(self._run(call, client, answers, claim_id))
        self._running[ref] = running
        running.add_done_callback(lambda done: self._ended(ref, done))

    def _ended(self, ref: CallRef, done: "asyncio.Task[Json | None]") -> None:
        self._running.pop(ref, None)
        if not done.cancelled() and (problem := done.exception()) is not None:
            _log.info("a run ended with an error", call=str(ref), problem=str(problem))

    async def _run(
        self, call: Call, client: Client | None, answers: Answers, claim_id: str
    ) -> Json | None:
        """Returns the server's result as it came; None: look into the ledger."""
        labels = call.wish.labels
        server, tool = labels.get(SERVER_LABEL, ""), labels.get(TOOL_LABEL, call.wish.tool)
        await self._routes.reach(client, server)  # a server that is away costs no claim
        try:
            claimed = await self._ledger.start(call.ref, claim_id=claim_id, lease_s=LEASE_S)
        except (AlreadyFilled, NotOpen):
            return None
        renewing = asyncio.create_task(self._renew(call.ref, claim_id))
        try:
            params = _params(tool, json.loads(claimed.arguments), client, answers)
            try:
                result = await self._routes.call(client, server, params)
            except MCPError as problem:
                error = problem.error.model_dump(mode="json", exclude_none=True)
                await self._finish(call.ref, error=recorded_error(error))
                raise
            except Gone:
                why = f"The connection to the server {server!r} ended before its result came."
                await self._doubt(call.ref, why)
                return None
            if result.get("resultType") == "input_required":
                self._asked[call.ref] = Asked(result, claim_id, {})
                self._keeping[call.ref] = asyncio.create_task(self._keep(call.ref, claim_id))
                return result
            text, is_error = recorded(result)
            await (
                self._finish(call.ref, error=text)
                if is_error
                else self._finish(call.ref, output=text)
            )
            return result
        finally:
            renewing.cancel()

    async def _renew(self, ref: CallRef, claim_id: str) -> None:
        while True:
            await asyncio.sleep(RENEW_AFTER_S)
            try:
                await self._ledger.renew(ref, claim_id)
            except NotOpen:
                return
            except Unavailable as problem:
                _log.warning("the claim is not renewed", call=str(ref), problem=str(problem))

    async def _keep(self, ref: CallRef, claim_id: str) -> None:
        """Keep a claimed call while its client is asked for something."""
        with suppress(TimeoutError):
            async with asyncio.timeout(INPUT_S):
                await self._renew(ref, claim_id)
        self._asked.pop(ref, None)
        self._keeping.pop(ref, None)

    async def _finish(
        self, ref: CallRef, *, output: str | None = None, error: str | None = None
    ) -> None:
        """Record the end, for as long as it takes."""
        while True:
            try:
                await self._ledger.finish(ref, output=output, error=error)
            except AlreadyFilled as problem:
                _log.info("had ended", call=str(ref), problem=str(problem))
            except TooLarge as problem:
                output, error = None, f"The tool ran, but its result is too large: {problem}"
                continue
            except BrokerRefused:
                raise
            except Unavailable as problem:
                _log.warning("not recorded yet", call=str(ref), problem=str(problem))
                await asyncio.sleep(_AGAIN_S)
                continue
            return

    async def _doubt(self, ref: CallRef, why: str) -> None:
        with suppress(
            NotOpen, AlreadyFilled, Unavailable
        ):  # else its lease ends, with the same end
            await self._ledger.doubt(ref, why)


def may_start(call: Call, runs: Runs, answers: Answers) -> bool:
    """Whether this gateway is to run the call, or go on with it, now."""
    if call.status is Status.APPROVED:
        return call.flaw is None
    asked = runs.asked(call.ref) is not None
    return call.status is Status.RUNNING and (asked or bool(answers.claim_id))


def _params(tool: str, arguments: Json, client: Client | None, answers: Answers) -> Json:
    """The call as its server is sent it: with the approved arguments, whatever the client sent."""
    params: Json = {"name": tool, "arguments": arguments}
    if answers.responses is not None:
        params["inputResponses"] = answers.responses
    if answers.state is not None:
        params["requestState"] = answers.state
    meta = dict(client.meta) if client is not None else {}
    return params | ({"_meta": meta} if meta else {})
