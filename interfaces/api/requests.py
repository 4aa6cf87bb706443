"""What services do: request a call, wait for its decision, claim it, and record how it ended."""

from typing import Annotated, Final
from uuid import UUID

from fastapi import Header, Query
from msgspec import Struct
from pydantic import Field

from ayes.interfaces.api.base import ApiModel, ApiRouter, example
from ayes.interfaces.api.content import GivenContent, as_recorded
from ayes.interfaces.api.doubts import doubt_about
from ayes.interfaces.api.identity import Reading, Serving
from ayes.interfaces.api.permissions import check_doubt, check_withdrawal
from ayes.interfaces.api.queries import Named
from ayes.ledger.call import Call
from ayes.ledger.clients.client import same_content
from ayes.ledger.lifecycle import Status
from ayes.projections.views.call import CallState
from ayes.schemas import events as e
from ayes.schemas.errors import AlreadyFilled, BadInput
from ayes.schemas.limits import MAX_INTERVAL_S

router: Final = ApiRouter(tags=["requests"])

#: The longest wait for a decision; a client asks again.
_MAX_WAIT_S: Final = 60.0
#: The longest lease of a claim, which its runner renews: a day.
_MAX_LEASE_S: Final = 86_400.0


class Request(ApiModel):
    """A request to run a tool."""

    model_config = example(
        tool="refund", arguments='{"order": "A-17", "amount": 480}', requester="ben"
    )

    #: A tool that is declared in the workspace.
    tool: str
    #: Raw JSON text, as model providers deliver it. It is kept byte for byte, and the digest is
    #: over these bytes.
    arguments: str = "{}"
    #: The person on whose behalf; by default that of the thread, else the token's name. They never
    #: decide about it, so it must be a reviewer's name or an account that the policy lists.
    requester: str = ""
    agent: str = ""
    #: Rules may match them.
    labels: dict[str, str] = Field(default_factory=dict)
    #: How long the requester waits for people, in seconds from when the request is recorded. The
    #: policy may ask them for a shorter time, and never for a longer one. If the request is
    #: repeated, the time of the first one counts.
    expires_in_s: float | None = Field(None, gt=0, le=MAX_INTERVAL_S, allow_inf_nan=False)


@router.put("/calls/{workspace}/{thread}/{call}")
async def request(
    ref: Named,
    request: Request,
    visit: Serving,
    idempotency_key: Annotated[str, Header()] = "",
) -> CallState:
    """Request a call. The same request again returns the call; a different one is refused.

    The name of the call is its idempotency key. The header `Idempotency-Key` is not needed; if
    there is one, it must be `workspace/thread/call`.
    """
    if idempotency_key.strip('"') not in ("", str(ref)):
        raise BadInput(
            f"the header Idempotency-Key is {idempotency_key!r}, but the name of the call is its "
            f"key: leave the header out, or send {str(ref)!r}."
        )
    service = await visit.service()
    known = await service.request(ref, **request.model_dump())
    return await visit.state_of(known)


class Decision(Struct, frozen=True):
    """Whether the call is decided, and its state."""

    #: Whether it is decided.
    decided: bool
    #: The call as it is.
    state: CallState


@router.get("/calls/{workspace}/{thread}/{call}/decision")
async def decision(
    ref: Named,
    visit: Reading,
    timeout_s: Annotated[float, Query(ge=0, le=_MAX_WAIT_S, allow_inf_nan=False)] = 0,
) -> Decision:
    """The decision, once there is one; at the latest after `timeout_s` seconds (long polling)."""
    known = await visit.reading.known_call(ref)
    if timeout_s:
        known = await visit.reading.until(known, lambda one: one.decided is not None, timeout_s)
    return Decision(decided=known.decided is not None, state=await visit.state_of(known))


class Withdrawal(ApiModel):
    reason: str = ""


@router.post("/calls/{workspace}/{thread}/{call}/withdraw")
async def withdraw(ref: Named, withdrawal: Withdrawal, visit: Reading) -> CallState:
    """Withdraw a request, as its requester or as a service. Repeating it is safe."""
    reading = visit.reading
    known = await reading.with_origin(await reading.known_call(ref))
    if known.withdrawn is None:
        await check_withdrawal(reading, known, visit.visitor)
        service = await visit.service()
        known = await service.withdraw(ref, withdrawal.reason)
    return await visit.state_of(known)


class Claim(ApiModel):
    """A claim on an approved call, by one process that will run it."""

    model_config = example(claim="4f6ad0ae-7a1b-4b53-9c9a-0f5c4e8a2d11")

    #: A UUID that only this run of the tool has. Send the same one again if the answer was lost.
    claim: UUID
    #: If the claim is not renewed for so many seconds, the call is in doubt; 0: only once somebody
    #: says so.
    lease_s: Annotated[float, Field(ge=0, le=_MAX_LEASE_S, allow_inf_nan=False)] = 0


@router.post("/calls/{workspace}/{thread}/{call}/claim")
async def claim(ref: Named, claim: Claim, visit: Serving) -> CallState:
    """Claim an approved call, to run it: exactly the `arguments` of the answer, and only if this
    succeeds. The same claim again succeeds until the call ends; a second one is refused.
    """
    service = await visit.service()
    known = await service.start(ref, claim_id=str(claim.claim), lease_s=claim.lease_s)
    return await visit.state_of(known)


class Renewal(ApiModel):
    """That a process still runs the call that it claimed with a lease."""

    model_config = example(claim="4f6ad0ae-7a1b-4b53-9c9a-0f5c4e8a2d11")

    #: That of its claim.
    claim: UUID


@router.post("/calls/{workspace}/{thread}/{call}/renew")
async def renew(ref: Named, renewal: Renewal, visit: Serving) -> CallState:
    """Renew a claim, so that its lease begins again. Repeating it is safe: do it three times in
    each lease.
    """
    service = await visit.service()
    return await visit.state_of(await service.renew(ref, str(renewal.claim)))


class Result(ApiModel):
    """How a call ended: with one of the two."""

    model_config = example(output="480 given back")

    #: The tool's output, for the model: a text, or texts and files in their order.
    output: GivenContent | None = None
    #: Or the error that it raised.
    error: str | None = None


@router.post("/calls/{workspace}/{thread}/{call}/finish")
async def finish(ref: Named, result: Result, visit: Serving) -> CallState:
    """Record the result of a call that was claimed. The same result again is not refused."""
    service = await visit.service()
    output = None if result.output is None else as_recorded(result.output)
    try:
        known = await service.finish(ref, output=output, error=result.error)
    except AlreadyFilled:
        known = await service.known_call(ref)
        if not _ended_so(known, output, result.error):
            raise
    return await visit.state_of(known)


def _ended_so(call: Call, output: e.Content | None, error: str | None) -> bool:
    """Whether the call has ended with this result."""
    match call.finished.event if call.finished else None:
        case e.ToolReturned(attempt=attempt) as recorded if output is not None:
            return same_content(recorded, e.ToolReturned(output=output, attempt=attempt))
        case e.ToolFailed(error=recorded):
            return error == recorded
        case _:
            return False


class Doubts(ApiModel):
    reason: str = ""


@router.post("/calls/{workspace}/{thread}/{call}/doubt")
async def doubt(ref: Named, doubts: Doubts, visit: Reading) -> CallState:
    """Record that the service that runs a call is gone, and nobody knows how it ended.

    A service may say it at any time; a person, once the service stopped renewing its claim.
    """
    reading = visit.reading
    known = await reading.known_call(ref)
    if known.status is not Status.IN_DOUBT:
        await check_doubt(reading, known, visit.visitor, await doubt_about(reading, known))
        service = await visit.service()
        known = await service.doubt(ref, doubts.reason)
    return await visit.state_of(known)
