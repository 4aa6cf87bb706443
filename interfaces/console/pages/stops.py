"""The pages of stops. What a new one covers is shown once more before it is recorded, and what it
found after.
"""

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form
from fastapi.responses import Response
from pydantic import BaseModel

from ayes.interfaces.api import policies, stops
from ayes.interfaces.api.base import Reason
from ayes.interfaces.api.identity import Reading, Reviewing, Visit
from ayes.interfaces.console.pages.forms import Why, again, kept, new_name, patterns, to
from ayes.interfaces.console.rendering import page
from ayes.schemas.durations import lasting_s
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.slots import ORGANISATION

router: Final = APIRouter()

#: Calls of one kind that the page of a stop lists.
_MOST: Final = 100


class StopForm(BaseModel):
    """A new stop as it was typed."""

    name: str = new_name("s")
    workspace: str = ""
    agents: str = "*"
    tools: str = "*"
    requesters: str = "*"
    duration: str = ""
    reason: str = ""

    @property
    def new(self) -> stops.NewStop:
        """The stop that it describes.

        Raises:
            BadInput: a field cannot be read.
        """
        if not self.workspace:
            raise BadInput("which workspace is stopped? Choose it, or all workspaces.")
        if not self.reason.strip():
            raise BadInput("a stop needs a reason, which everybody reads whose calls wait.")
        read: dict[str, object] = {
            one: _patterns(one, getattr(self, one)) for one in ("agents", "tools", "requesters")
        }
        read["for_s"] = lasting_s("How long", self.duration) if self.duration else None
        return stops.NewStop.model_validate(self.model_dump(exclude={"duration"}) | read)


def _patterns(field: str, text: str) -> tuple[str, ...]:
    if not (found := patterns(text)):
        raise BadInput(
            f"{field.capitalize()} is empty, so nothing would be stopped. Write * for all."
        )
    return found


@router.get("/stops")
async def show(visit: Reading, workspace: str = "", after: str = "") -> Response:
    form = StopForm(workspace=workspace)
    return await _shown(visit, form, workspace=workspace, after=after)


async def _shown(
    visit: Visit,
    form: StopForm | None,
    problem: ApprovalsError | None = None,
    *,
    workspace: str = "",
    after: str = "",
) -> Response:
    """The page; after a problem with what was typed."""
    return page(
        visit,
        "stops.html",
        problem,
        form=kept(form or StopForm(), problem),
        known=await policies.workspaces(visit),
        found=await stops.stops(visit, workspace, after=after),
    )


@router.post("/stops")
@again(_shown)
async def stop(
    visit: Reviewing, form: Annotated[StopForm, Form()], sure: Annotated[bool, Form()] = False
) -> Response:
    """Show what would be stopped; record it once somebody is sure."""
    if not sure:
        return page(visit, "stop.html", form=form, new=form.new)
    given = await stops.stop(form.new, visit)
    return to(f"/stops/{given.stop}")


@router.get("/stops/{workspace}/{giver}/{name}")
async def one(visit: Reading, ref: stops.Named) -> Response:
    """A stop and what it found; the stop also if that cannot be found out now."""
    unknown, shown = None, await stops.state(visit, ref)
    try:
        shown = await stops.found(visit, ref)
    except ApprovalsError as problem:
        unknown = problem
    return page(visit, "stopped.html", one=shown, unknown=unknown, most=_MOST)


@router.post("/stops/{workspace}/{giver}/{name}/resume")
@again(_shown)
async def resume(visit: Reviewing, ref: stops.Named, why: Why = "") -> Response:
    await stops.resume(visit, ref, Reason(reason=why))
    chosen = "" if ref.workspace == ORGANISATION else ref.workspace
    return to(f"/stops?{urlencode({'workspace': chosen})}")
