"""The pages of policies: the one in force, those before, and a trial of another one."""

from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, ValidationError

from ayes.interfaces.api import policies, problems
from ayes.interfaces.api.backend import Backend, InBackend
from ayes.interfaces.api.identity import Operating, Reading, Role, Visitor
from ayes.interfaces.console.pages.typed import Typed
from ayes.interfaces.console.rendering import page
from ayes.schemas.errors import ApprovalsError, BadInput

router: Final = APIRouter()


class TrialForm(BaseModel):
    """A policy as it was pasted."""

    text: Typed = ""
    days: str = "30"

    @property
    def candidate(self) -> policies.Candidate:
        """The policy to try.

        Raises:
            BadInput: the number of days is not valid, or the text is too long.
        """
        try:
            return policies.Candidate.model_validate({"text": self.text, "days": self.days})
        except ValidationError as problem:
            first = problem.errors()[0]
            raise BadInput(f"{first['loc'][0]}: {first['msg']}.") from None

    @property
    def new(self) -> policies.NewPolicy:
        """The policy to apply or to propose.

        Raises:
            BadInput: the text is too long.
        """
        return policies.NewPolicy(text=self.candidate.text)


@router.get("/policy")
async def choose(request: Request, backend: InBackend, visitor: Reading) -> Response:
    """The workspaces; with only one, its policy."""
    found = await policies.workspaces(backend, visitor)
    if len(found) == 1:
        return RedirectResponse(f"/policy/{found[0]}", HTTPStatus.SEE_OTHER)
    return page(request, "policies.html", visitor, found=found)


@router.get("/policy/{workspace}")
async def show(
    workspace: str,
    request: Request,
    backend: InBackend,
    visitor: Reading,
    version: Annotated[int | None, Query(ge=1, lt=10**9)] = None,
) -> HTMLResponse:
    """The policy in force, or another version of it."""
    return await _shown(request, backend, visitor, workspace, version)


async def _shown(
    request: Request,
    backend: Backend,
    visitor: Visitor,
    workspace: str,
    version: int | None = None,
    *,
    form: TrialForm | None = None,
    trial: policies.Trial | None = None,
    problem: ApprovalsError | None = None,
) -> HTMLResponse:
    """The page; after a trial, or a problem with what was typed."""
    found = await policies.versions(workspace, backend, visitor)
    chosen = version or found.in_force
    proposals = await policies.proposals(workspace, backend, visitor)
    values: dict[str, Any] = {
        "form": form or TrialForm(),
        "trial": trial,
        "problem": problem,
        "is_operator": Role.OPERATOR in visitor.roles,
    }
    answer = page(
        request,
        "policy.html",
        visitor,
        found=found,
        version=next((one for one in found.versions if one.version == chosen), None),
        shown=await policies.text(workspace, chosen, backend, visitor) if chosen else None,
        proposals=proposals,
        **values,
    )
    answer.status_code = problems.status_of(problem) if problem else HTTPStatus.OK
    return answer


@router.post("/policy/{workspace}/try")
async def attempt(
    workspace: str,
    form: Annotated[TrialForm, Form()],
    request: Request,
    backend: InBackend,
    visitor: Reading,
) -> HTMLResponse:
    trial, wrong = None, None
    try:
        trial = await policies.attempt(workspace, form.candidate, backend, visitor)
    except ApprovalsError as problem:
        wrong = problem
    return await _shown(request, backend, visitor, workspace, form=form, trial=trial, problem=wrong)


@router.post("/policy/{workspace}/apply")
async def apply(
    workspace: str,
    form: Annotated[TrialForm, Form()],
    request: Request,
    backend: InBackend,
    visitor: Operating,
) -> Response:
    try:
        await policies.apply(workspace, form.new, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, workspace, form=form, problem=problem)
    return RedirectResponse(f"/policy/{quote(workspace)}", HTTPStatus.SEE_OTHER)


@router.post("/policy/{workspace}/propose")
async def propose(
    workspace: str,
    form: Annotated[TrialForm, Form()],
    request: Request,
    backend: InBackend,
    visitor: Operating,
) -> Response:
    try:
        made = await policies.propose(workspace, form.new, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, workspace, form=form, problem=problem)
    return RedirectResponse(f"/calls/{made.proposal}", HTTPStatus.SEE_OTHER)


@router.post("/policy/{workspace}/proposals/{thread}/{call}/apply")
async def apply_approved(
    workspace: str,
    thread: str,
    call: str,
    request: Request,
    backend: InBackend,
    visitor: Operating,
) -> Response:
    try:
        await policies.apply_approved(workspace, thread, call, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, workspace, problem=problem)
    return RedirectResponse(f"/policy/{quote(workspace)}", HTTPStatus.SEE_OTHER)
