"""The page of grants and delegations."""

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form
from fastapi.responses import Response
from pydantic import BaseModel

from ayes.interfaces.api import grants
from ayes.interfaces.api.base import Reason
from ayes.interfaces.api.identity import Reading, Reviewing, Visit
from ayes.interfaces.console.pages.forms import Why, again, kept, new_name, patterns, to
from ayes.interfaces.console.rendering import page
from ayes.schemas.durations import lasting_s, parse_time
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.slots import DelegationRef, GrantRef

router: Final = APIRouter()


class GrantForm(BaseModel):
    """A new grant as it was typed."""

    name: str = new_name("g")
    call: str = ""
    workspace: str = ""
    tool: str = ""
    when: str = ""
    any_arguments: bool = False
    any_thread: bool = False
    agent: str = ""
    duration: str = ""
    uses: str = "1"
    reason: str = ""

    @property
    def new(self) -> grants.NewGrant:
        """The grant that it describes.

        Raises:
            BadInput: a field cannot be read.
        """
        read = {
            "call": self.call or None,
            "tool": self.tool or None,
            "agent": self.agent or None,
            "for_s": lasting_s("How long", self.duration),
            "uses": _number(self.uses),
        }
        return grants.NewGrant(**self.model_dump(include={*grants.NewGrant.model_fields}) | read)


class DelegationForm(BaseModel):
    """A new delegation as it was typed. Times are in UTC."""

    name: str = new_name("d")
    workspace: str = ""
    to: str = ""
    starts: str = ""
    ends: str = ""
    tools: str = "*"
    reason: str = ""

    @property
    def new(self) -> grants.NewDelegation:
        """The delegation that it describes.

        Raises:
            BadInput: a field cannot be read.
        """
        read = {
            "starts_at": parse_time("From", self.starts),
            "ends_at": parse_time("Until", self.ends),
            "tools": patterns(self.tools),
        }
        return grants.NewDelegation(**self.model_dump(exclude={"starts", "ends"}) | read)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= 1000):
        raise BadInput(f"{text[:20]!r} is not a number of uses. Give 1 to 1,000.")
    return int(text)


@router.get("/grants")
async def show(visit: Reading, workspace: str = "", call: str = "", after: str = "") -> Response:
    """The grants; with a call, the form is for calls like it."""
    form = GrantForm(call=call, workspace=workspace)
    return await _shown(visit, form, workspace=workspace, after=after)


async def _shown(
    visit: Visit,
    form: GrantForm | DelegationForm | None,
    problem: ApprovalsError | None = None,
    *,
    workspace: str = "",
    after: str = "",
) -> Response:
    """The page; after a problem with what was typed."""
    form = form and kept(form, problem)
    return page(
        visit,
        "grants.html",
        problem,
        form=form if isinstance(form, GrantForm) else GrantForm(),
        delegation=form
        if isinstance(form, DelegationForm)
        else DelegationForm(workspace=workspace),
        found=await grants.grants(visit, workspace, after=after),
        delegations=await grants.delegations(visit, workspace),
    )


@router.post("/grants")
@again(_shown)
async def give(visit: Reviewing, form: Annotated[GrantForm, Form()]) -> Response:
    await grants.give(form.new, visit)
    return _to_grants(form.call.split("/")[0] or form.workspace)


@router.post("/grants/{workspace}/{giver}/{name}/revoke")
@again(_shown)
async def revoke(visit: Reviewing, ref: Annotated[GrantRef, Depends()], why: Why = "") -> Response:
    await grants.revoke(visit, ref, Reason(reason=why))
    return _to_grants(ref.workspace)


@router.post("/delegations")
@again(_shown)
async def delegate(visit: Reviewing, form: Annotated[DelegationForm, Form()]) -> Response:
    await grants.delegate(form.new, visit)
    return _to_grants(form.workspace)


@router.post("/delegations/{workspace}/{giver}/{name}/end")
@again(_shown)
async def end(visit: Reviewing, ref: Annotated[DelegationRef, Depends()]) -> Response:
    await grants.end(visit, ref, Reason())
    return _to_grants(ref.workspace)


def _to_grants(workspace: str) -> Response:
    return to(f"/grants?{urlencode({'workspace': workspace})}")
