"""The pages of policies: the one in force, those before, and a trial of another one."""

from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Form, Query
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from ayes.interfaces.api import policies
from ayes.interfaces.api.identity import Operating, Reading, Visit
from ayes.interfaces.console.pages.forms import Typed, again, to
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
async def choose(visit: Reading) -> Response:
    """The workspaces; with only one, its policy."""
    found = await policies.workspaces(visit)
    if len(found) == 1:
        return to(f"/policy/{found[0]}")
    return page(visit, "policies.html", found=found)


@router.get("/policy/{workspace}")
async def show(
    visit: Reading, version: Annotated[int | None, Query(ge=1, lt=10**9)] = None
) -> Response:
    """The policy in force, or another version of it."""
    return await _shown(visit, version=version)


async def _shown(
    visit: Visit,
    form: TrialForm | None = None,
    problem: ApprovalsError | None = None,
    *,
    version: int | None = None,
    trial: policies.Trial | None = None,
) -> Response:
    """The page; after a trial, or a problem with what was typed."""
    workspace = visit.request.path_params["workspace"]
    found = await policies.versions(workspace, visit)
    chosen = version or found.in_force
    return page(
        visit,
        "policy.html",
        problem,
        found=found,
        proposals=await policies.proposals(workspace, visit),
        version=next((one for one in found.versions if one.version == chosen), None),
        shown=await policies.text(workspace, chosen, visit) if chosen else None,
        form=form or TrialForm(),
        trial=trial,
    )


@router.post("/policy/{workspace}/try")
@again(_shown)
async def attempt(workspace: str, form: Annotated[TrialForm, Form()], visit: Reading) -> Response:
    trial = await policies.attempt(workspace, form.candidate, visit)
    return await _shown(visit, form, trial=trial)


@router.post("/policy/{workspace}/apply")
@again(_shown)
async def apply(workspace: str, form: Annotated[TrialForm, Form()], visit: Operating) -> Response:
    await policies.apply(workspace, form.new, visit)
    return to(f"/policy/{quote(workspace)}")


@router.post("/policy/{workspace}/propose")
@again(_shown)
async def propose(workspace: str, form: Annotated[TrialForm, Form()], visit: Operating) -> Response:
    made = await policies.propose(workspace, form.new, visit)
    return to(f"/calls/{made.proposal}")


@router.post("/policy/{workspace}/proposals/{thread}/{call}/apply")
@again(_shown)
async def apply_approved(workspace: str, thread: str, call: str, visit: Operating) -> Response:
    await policies.apply_approved(workspace, thread, call, visit)
    return to(f"/policy/{quote(workspace)}")
