"""The pages of stops. What a new one covers is shown once more before it is recorded, and what it
found after.
"""

import secrets
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, Field

from ayes.interfaces.api import policies, problems, stops
from ayes.interfaces.api.backend import Backend, InBackend
from ayes.interfaces.api.identity import Reading, Reviewing, Role, Visitor
from ayes.interfaces.console.rendering import page
from ayes.schemas.durations import lasting_s
from ayes.schemas.errors import AlreadyFilled, ApprovalsError, BadInput
from ayes.schemas.slots import ORGANISATION

router: Final = APIRouter()

#: Calls of one kind that the page of a stop lists.
_MOST: Final = 100
#: The longest reason that a form may send.
_MAX_TEXT: Final = 20_000


class StopForm(BaseModel):
    """A new stop as it was typed."""

    #: Chosen when the form is shown, so that sending it twice gives one stop.
    name: str = Field(default_factory=lambda: f"s-{secrets.token_hex(4)}")
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
        return stops.NewStop(
            workspace=self.workspace,
            agents=_patterns("Agents", self.agents),
            tools=_patterns("Tools", self.tools),
            requesters=_patterns("Requesters", self.requesters),
            for_s=lasting_s("How long", self.duration) if self.duration else None,
            name=self.name,
            reason=self.reason,
        )


def _patterns(field: str, text: str) -> tuple[str, ...]:
    found = tuple(text.replace(",", " ").split())
    if not found:
        raise BadInput(f"{field} is empty, so nothing would be stopped. Write * for all.")
    return found


@router.get("/stops")
async def show(
    request: Request, backend: InBackend, visitor: Reading, workspace: str = "", after: str = ""
) -> HTMLResponse:
    form = StopForm(workspace=workspace)
    return await _shown(request, backend, visitor, workspace, form=form, after=after)


async def _shown(
    request: Request,
    backend: Backend,
    visitor: Visitor,
    workspace: str,
    *,
    form: StopForm | None = None,
    problem: ApprovalsError | None = None,
    after: str = "",
) -> HTMLResponse:
    """The page; after a problem with what was typed."""
    form = form or StopForm()
    if isinstance(problem, AlreadyFilled):  # by the name that was chosen for what was sent before
        form = form.model_copy(update={"name": StopForm().name})
    values: dict[str, Any] = {
        "form": form,
        "problem": problem,
        "is_reviewer": Role.REVIEWER in visitor.roles,
        "known": await policies.workspaces(backend, visitor),
    }
    found = await stops.stops(backend, visitor, workspace, after=after)
    answer = page(request, "stops.html", visitor, found=found, **values)
    answer.status_code = problems.status_of(problem) if problem else HTTPStatus.OK
    return answer


@router.post("/stops")
async def stop(
    form: Annotated[StopForm, Form()],
    request: Request,
    backend: InBackend,
    visitor: Reviewing,
    sure: Annotated[bool, Form()] = False,
) -> Response:
    """Show what would be stopped; record it once somebody is sure."""
    try:
        if not sure:
            return page(request, "stop.html", visitor, form=form, new=form.new)
        given = await stops.stop(form.new, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, "", form=form, problem=problem)
    return RedirectResponse(f"/stops/{given.stop}", HTTPStatus.SEE_OTHER)


@router.get("/stops/{workspace}/{giver}/{name}")
async def one(
    workspace: str, giver: str, name: str, request: Request, backend: InBackend, visitor: Reading
) -> HTMLResponse:
    """A stop and what it found; the stop also if that cannot be found out now."""
    problem, shown = None, await stops.state(workspace, giver, name, backend)
    try:
        shown = await stops.found(workspace, giver, name, backend, visitor)
    except ApprovalsError as raised:
        problem = raised
    is_reviewer = Role.REVIEWER in visitor.roles
    values = {"one": shown, "problem": problem, "is_reviewer": is_reviewer, "most": _MOST}
    return page(request, "stopped.html", visitor, **values)


@router.post("/stops/{workspace}/{giver}/{name}/resume")
async def resume(
    workspace: str,
    giver: str,
    name: str,
    request: Request,
    backend: InBackend,
    visitor: Reviewing,
    reason: Annotated[str, Form(max_length=_MAX_TEXT)] = "",
) -> Response:
    try:
        why = stops.Reason(reason=reason)
        await stops.resume(workspace, giver, name, why, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, "", problem=problem)
    chosen = "" if workspace == ORGANISATION else workspace
    return RedirectResponse(f"/stops?{urlencode({'workspace': chosen})}", HTTPStatus.SEE_OTHER)
