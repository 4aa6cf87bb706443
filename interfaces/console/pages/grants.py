"""The page of grants and delegations."""

import secrets
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, Field

from ayes.interfaces.api import grants, problems
from ayes.interfaces.api.backend import Backend, InBackend
from ayes.interfaces.api.identity import Reading, Reviewing, Role, Visitor
from ayes.interfaces.console.rendering import page
from ayes.schemas.durations import lasting_s, parse_time
from ayes.schemas.errors import AlreadyFilled, ApprovalsError, BadInput

router: Final = APIRouter()

#: The longest name, condition or reason that a form may send.
_MAX_TEXT: Final = 20_000


class GrantForm(BaseModel):
    """A new grant as it was typed."""

    #: Chosen when the form is shown, so that sending it twice gives one grant.
    name: str = Field(default_factory=lambda: f"g-{secrets.token_hex(4)}")
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
        return grants.NewGrant(
            call=self.call or None,
            workspace=self.workspace,
            tool=self.tool or None,
            for_s=lasting_s("How long", self.duration),
            uses=_number(self.uses),
            any_arguments=self.any_arguments,
            when=self.when,
            any_thread=self.any_thread,
            agent=self.agent or None,
            name=self.name,
            reason=self.reason,
        )


class DelegationForm(BaseModel):
    """A new delegation as it was typed. Times are in UTC."""

    #: As of a grant.
    name: str = Field(default_factory=lambda: f"d-{secrets.token_hex(4)}")
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
        return grants.NewDelegation(
            workspace=self.workspace,
            to=self.to,
            starts_at=parse_time("From", self.starts),
            ends_at=parse_time("Until", self.ends),
            tools=tuple(self.tools.replace(",", " ").split()),
            name=self.name,
            reason=self.reason,
        )


def _renamed[F: (GrantForm, DelegationForm)](form: F) -> F:
    return form.model_copy(update={"name": type(form)().name})


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= 1000):
        raise BadInput(f"{text[:20]!r} is not a number of uses. Give 1 to 1,000.")
    return int(text)


@router.get("/grants")
async def show(
    request: Request,
    backend: InBackend,
    visitor: Reading,
    workspace: str = "",
    call: str = "",
    after: str = "",
) -> HTMLResponse:
    """The grants; with a call, the form is for calls like it."""
    form = GrantForm(call=call, workspace=workspace)
    return await _shown(request, backend, visitor, workspace, form=form, after=after)


async def _shown(
    request: Request,
    backend: Backend,
    visitor: Visitor,
    workspace: str,
    *,
    form: GrantForm | None = None,
    delegation: DelegationForm | None = None,
    problem: ApprovalsError | None = None,
    after: str = "",
) -> HTMLResponse:
    """The page; after a problem with what was typed."""
    if isinstance(problem, AlreadyFilled):  # by the name that was chosen for what was sent before
        form = form and _renamed(form)
        delegation = delegation and _renamed(delegation)
    values: dict[str, Any] = {
        "form": form or GrantForm(workspace=workspace),
        "delegation": delegation or DelegationForm(workspace=workspace),
        "problem": problem,
        "is_reviewer": Role.REVIEWER in visitor.roles,
    }
    answer = page(
        request,
        "grants.html",
        visitor,
        found=await grants.grants(backend, visitor, workspace, after=after),
        delegations=await grants.delegations(backend, visitor, workspace),
        **values,
    )
    answer.status_code = problems.status_of(problem) if problem else HTTPStatus.OK
    return answer


@router.post("/grants")
async def give(
    form: Annotated[GrantForm, Form()], request: Request, backend: InBackend, visitor: Reviewing
) -> Response:
    try:
        await grants.give(form.new, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, "", form=form, problem=problem)
    return _to_grants(form.call.split("/")[0] or form.workspace)


@router.post("/grants/{workspace}/{giver}/{name}/revoke")
async def revoke(
    workspace: str,
    giver: str,
    name: str,
    request: Request,
    backend: InBackend,
    visitor: Reviewing,
    reason: Annotated[str, Form(max_length=_MAX_TEXT)] = "",
) -> Response:
    try:
        why = grants.Reason(reason=reason)
        await grants.revoke(workspace, giver, name, why, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, "", problem=problem)
    return _to_grants(workspace)


@router.post("/delegations")
async def delegate(
    form: Annotated[DelegationForm, Form()],
    request: Request,
    backend: InBackend,
    visitor: Reviewing,
) -> Response:
    try:
        await grants.delegate(form.new, backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, "", delegation=form, problem=problem)
    return _to_grants(form.workspace)


@router.post("/delegations/{workspace}/{giver}/{name}/end")
async def end(
    workspace: str, giver: str, name: str, request: Request, backend: InBackend, visitor: Reviewing
) -> Response:
    try:
        await grants.end(workspace, giver, name, grants.Reason(), backend, visitor)
    except ApprovalsError as problem:
        return await _shown(request, backend, visitor, "", problem=problem)
    return _to_grants(workspace)


def _to_grants(workspace: str) -> RedirectResponse:
    path = f"/grants?{urlencode({'workspace': workspace})}"
    return RedirectResponse(path, HTTPStatus.SEE_OTHER)
