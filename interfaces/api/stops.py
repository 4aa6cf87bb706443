"""Stops, by which a person keeps calls from starting, and their ends."""

from typing import Annotated, Final

from fastapi import Depends
from msgspec import Struct
from pydantic import Field

from ayes.interfaces.api.base import ApiModel, ApiRouter, Reason, example
from ayes.interfaces.api.groups import read_for_stops
from ayes.interfaces.api.identity import Reading, Reviewing, Visit
from ayes.interfaces.api.queries import Limit, page_of
from ayes.ledger.stops import known_stop
from ayes.ops.actions.stops import account, check_limits, resume_stop, stop_ref, stops_in
from ayes.ops.single_flight import in_thread
from ayes.projections.views.stop import StopAccount, StopState, stop_state
from ayes.schemas.slots import StopRef

router: Final = ApiRouter(tags=["stops"])

#: The parameter of a handler whose path names a stop.
Named = Annotated[StopRef, Depends()]


class Stops(Struct, frozen=True):
    """A page of stops: those in force first, then the newest."""

    #: Those of the page.
    stops: list[StopState]
    #: How many are in force, on this page and on others.
    in_force: int
    next: str | None


@router.get("/stops")
async def stops(
    visit: Reading,
    workspace: str = "",
    after: str = "",
    limit: Limit = 200,
) -> Stops:
    """The stops that hold in a workspace, those of all workspaces among them; or every stop."""
    now = await visit.reading.log.clock()
    every = [stop_state(one, now) for one in await stops_in(visit.reading, workspace)]
    page, following = page_of(every, _is_over, after, limit)
    in_force = sum(not _is_over(one) for one in every)
    return Stops(stops=page, in_force=in_force, next=following)


def _is_over(one: StopState) -> bool:
    return one.status != "in force"


@router.get("/stops/{workspace}/{giver}/{name}")
async def found(visit: Reading, ref: Named) -> StopAccount:
    """What a stop covered when it was given: what ran, what is in doubt since, and what it held.

    It may take some seconds. A visitor may ask for one at a time.
    """

    async def looked() -> StopAccount:  # on a connection of its own, in another event loop
        async with visit.alone("account") as ledger:
            return await account(ledger, known_stop(ref, await ledger.read(ref)))

    refusal = f"{visit.name} is asking for what a stop covered already. Wait for the answer."
    async with visit.backend.busy.once(("account", visit.name), refusal):
        return await in_thread(looked)


async def state(visit: Visit, ref: StopRef) -> StopState:
    """A stop without what it covered, which is there at once."""
    one = known_stop(ref, await visit.reading.read(ref))
    return stop_state(one, await visit.reading.log.clock())


#: Without any a stop would cover nothing.
Patterns = Annotated[tuple[str, ...], Field(min_length=1)]


class NewStop(ApiModel):
    """A stop in the visitor's own name. A call is covered if its agent, tool and requester fit."""

    model_config = example(workspace="shop", tools=["refund"], reason="They go to a wrong account.")

    #: `_organisation`: all workspaces.
    workspace: str = Field(min_length=1)
    #: Why; everybody reads it whose calls wait.
    reason: str
    agents: Patterns = ("*",)
    tools: Patterns = ("*",)
    requesters: Patterns = ("*",)
    #: Seconds after which it ends by itself, a century at most; None: it lasts until people resume.
    for_s: float | None = None
    #: Its name; chosen at random if empty. With one, giving the same stop again is safe.
    name: str = ""


@router.post("/stops")
async def stop(new: NewStop, visit: Reviewing) -> StopState:
    """Stop: from now on nothing starts that it covers. A tool that runs already goes on."""
    check_limits(new.agents, new.tools, new.requesters)
    await read_for_stops(visit, new.workspace)
    ref = stop_ref(new.workspace, visit.name, new.name)
    said = new.model_dump(exclude={"workspace", "name"})
    given = await (await visit.reviewer()).stop(ref, **said)
    return stop_state(given, visit.reading.now())


@router.post("/stops/{workspace}/{giver}/{name}/resume")
async def resume(visit: Reviewing, ref: Named, why: Reason) -> StopState:
    """Say that a stop should end. It ends once enough people who may have said so."""
    await read_for_stops(visit, ref.workspace)
    ledger = await visit.as_reviewer()
    resumed, _ = await resume_stop(ledger, ref, visit.name, why.reason)
    return stop_state(resumed, await ledger.log.clock())
