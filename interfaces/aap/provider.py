"""What an agent may ask of the provider, for one agent: each is a service of the ledger.

The provider keeps nothing. A request is found again by its id, which is the call's; what came with
it and has no place in the ledger is in the call's labels. So any number of providers can answer,
and one that was killed is replaced by the next.
"""

from contextlib import suppress
from datetime import datetime
from typing import Final

from ayes.adapters.kernel import judged
from ayes.adapters.names import thread_name
from ayes.interfaces.aap import wire
from ayes.interfaces.aap.settings import InstanceSettings
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.schemas import events as e
from ayes.schemas.durations import seconds
from ayes.schemas.errors import (
    AlreadyFilled,
    BadId,
    BadInput,
    Refused,
    UnknownCall,
    UnknownTool,
)
from ayes.schemas.slots import CLIENT, ThreadRef
from ayes.schemas.times import after
from ayes.schemas.tool_names import is_tool_name
from ayes.schemas.tools import ToolSpec

#: How long one request waits at most, as the protocol says.
MAX_WAIT_S: Final = 30.0
#: How long the gate may take to record a cancellation.
_CANCEL_S: Final = 10.0
_OPEN_SCHEMA: Final = '{"type":"object"}'


class Conflict(Exception):
    """The request cannot be what was asked of it; `code` is the protocol's word for why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def thread_of(workspace: str, instance: str) -> ThreadRef:
    """The thread of the calls of an agent."""
    return ThreadRef(workspace, thread_name(f"aap-{instance}"))


class Provider:
    """The requests of one agent."""

    def __init__(
        self, ledger: Ledger, workspace: str, instance: InstanceSettings, outcome_within_s: float
    ) -> None:
        self._ledger, self._instance, self._within_s = ledger, instance, outcome_within_s
        self._thread = thread_of(workspace, instance.name)

    async def create(self, sent: wire.Submission, key: str) -> tuple[bytes, bool]:
        """The request with this key, and whether it is new.

        Raises:
            BadInput: the tool, the arguments or the timeout are not valid here.
            Conflict: `idempotency_conflict`: the key was used for another request.
        """
        wait_s = seconds(sent.timeout)
        if wait_s is None or wait_s <= 0:
            raise BadInput(f"timeout {sent.timeout!r} is not a time. Write it as in 10m or 24h.")
        ref = self._thread.call(wire.request_id(self._instance.name, key))
        before = await self._ledger.call(ref)
        # What the settings say of the agent may have changed since.
        known = before.requested is not None
        requester = before.wish.requester if known else self._instance.requester
        try:
            call = await self._ledger.request(
                ref,
                await self._tool(sent),
                bytes(sent.arguments).decode(),
                requester=requester,
                agent=self._instance.name,
                labels=sent.labels(),
                expires_in_s=wait_s,
            )
        except AlreadyFilled:
            used = f"the key {key!r} was used for another request. Use a new one."
            raise Conflict("idempotency_conflict", used) from None
        call = await judged(self._ledger, call)
        return self._written(call), not known

    async def get(self, request_id: str, wait_s: float) -> bytes:
        """The request, as soon as it is decided, or after this wait.

        Raises:
            UnknownCall: this agent has no such request.
        """
        call = await self._known(request_id)
        if wait_s > 0 and wire.status(call) == "pending":
            wait_s = min(wait_s, MAX_WAIT_S)
            call = await self._ledger.until(call, lambda one: one.decided is not None, wait_s)
        return self._written(call)

    async def cancel(self, request_id: str) -> bytes:
        """Withdraw a request.

        Raises:
            UnknownCall: this agent has no such request.
            Conflict: `already_terminal`: it was decided before.
        """
        call = await self._known(request_id)
        if wire.status(call) == "pending":
            with suppress(Refused):
                await self._ledger.withdraw(call.ref, "its agent cancelled the request")
            call = await self._ledger.decision(call.ref, timeout_s=_CANCEL_S)
        if wire.status(call) != "cancelled":
            raise Conflict("already_terminal", f"{request_id} is {wire.status(call)}.")
        return self._written(call)

    async def consume(self, request_id: str, key: str) -> bytes:
        """Claim an approved call: the agent runs the tool next, once.

        Repeated with the same key it is the same claim, whatever came in between.

        Raises:
            UnknownCall: this agent has no such request.
            Conflict: `already_consumed`, `approval_expired` or `not_approved`.
            Refused: it is approved, and may not start for another reason, such as a stop.
        """
        call = await self._known(request_id)
        claim_id = wire.claim_id(call, key)
        refused: Refused | None = None
        if not call.starts and wire.status(call) == "approved":
            try:
                call = await self._ledger.start(call.ref, claim_id=claim_id, lease_s=self._within_s)
            except Refused as problem:  # mostly somebody was quicker: the facts say what it is
                refused, call = problem, await self._known(request_id)
        if call.starts:
            claim = call.starts[0].event
            if isinstance(claim, e.ToolStarted) and claim.id == claim_id:
                return self._written(call)
            raise Conflict("already_consumed", f"{request_id} was consumed with another key.")
        if wire.status(call) == "approved":
            if call.lapsed is not None or await self._ledger.is_too_late(call):
                late = f"the approval of {request_id} is valid no longer."
                raise Conflict("approval_expired", late)
            assert refused is not None, "it was not started"
            raise refused
        raise Conflict("not_approved", f"{request_id} is {wire.status(call)}.")

    async def outcome(self, request_id: str, report: wire.ReportedOutcome) -> bytes:
        """Record what became of a consumed request.

        Raises:
            UnknownCall: this agent has no such request.
            Conflict: `not_consumed`; or `outcome_conflict`: another outcome was recorded before.
        """
        call = await self._known(request_id)
        if not call.starts:
            raise Conflict("not_consumed", f"{request_id} was not consumed, so it did not run.")
        text = report.text()
        told = {"output": text} if report.status == "succeeded" else {"error": text}
        if not _has_result(call):
            # Somebody may have put the call in doubt meanwhile: then it is kept as late.
            with suppress(AlreadyFilled):
                await self._ledger.finish(call.ref, **told)
            call = await self._known(request_id)
        ends = (call.finished,) if _has_result(call) else call.late
        if not any(_says(fact.event, report.status, text) for fact in ends if fact is not None):
            raise Conflict("outcome_conflict", f"another outcome of {request_id} was reported.")
        return self._written(call)

    # ------------------------------------------------------------------------------------- inside

    async def _known(self, request_id: str) -> Call:
        try:
            call = await self._ledger.known_call(self._thread.call(request_id))
        except BadId:
            raise UnknownCall(f"there is no request {request_id!r}.") from None
        if call.wish.agent != self._instance.name or wire.TIMEOUT not in call.wish.labels:
            raise UnknownCall(f"there is no request {request_id!r}.")
        return call

    async def _tool(self, sent: wire.Submission) -> str:
        """The tool as it is declared in the workspace; one that nobody declared takes anything."""
        name = f"{sent.server}/{sent.tool}" if sent.server else sent.tool
        if not is_tool_name(name):
            raise BadInput(
                f"the tool {name!r} cannot be named so in the ledger: 1 to 128 characters of "
                "A-Z a-z 0-9 _ - . /"
            )
        workspace = self._thread.workspace
        try:
            tool = await self._ledger.tool(workspace, name)
        except UnknownTool:
            await self._ledger.declare(workspace, ToolSpec(name=name, schema=_OPEN_SCHEMA))
            return name
        if tool.declared.run_by != CLIENT:
            raise BadInput(
                f"{name} is run by {tool.declared.run_by!r}, not by agents. Declare it as the "
                "agent's own, or give the agent's tool another name."
            )
        return name

    def _written(self, call: Call) -> bytes:
        return wire.request(call, _deadline(call))


def _deadline(call: Call) -> datetime:
    """The end of the agent's wait, which it compares: a policy's own deadline may come before."""
    assert call.requested
    ends = after(call.requested.recorded_at, call.wish.expires_in_s)
    return ends or call.requested.recorded_at


def _has_result(call: Call) -> bool:
    ended = call.finished.event if call.finished else None
    return isinstance(ended, e.ToolReturned | e.ToolFailed)


def _says(event: object, status: str, text: str) -> bool:
    match event:
        case e.ToolReturned(output=output):
            return (status, text) == ("succeeded", output)
        case e.ToolFailed(error=error):
            return (status, text) == ("failed", error)
        case _:
            return False
