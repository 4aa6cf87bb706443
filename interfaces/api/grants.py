"""Grants, which approve calls in advance, and delegations, by which one votes for another."""

from datetime import datetime
from typing import Annotated, Final, Literal

from fastapi import Depends
from msgspec import Struct
from pydantic import Field

from ayes.interfaces.api.base import ApiModel, ApiRouter, Reason
from ayes.interfaces.api.identity import Reading, Reviewing
from ayes.interfaces.api.queries import Limit, page_of
from ayes.ledger.judging import grants as ledger_grants
from ayes.ops.actions.grants import (
    GrantScope,
    check_patterns,
    check_scope,
    delegation_ref,
    give_grant,
    grant_ref,
    vote_problem,
)
from ayes.projections.views.grant import DelegationState, GrantState, delegation_state, grant_state
from ayes.schemas.ids import token
from ayes.schemas.limits import MAX_GRANT_S
from ayes.schemas.slots import (
    DELEGATION,
    GRANT,
    REMOVALS,
    ROOT,
    CallRef,
    DelegationRef,
    GrantRef,
)

router: Final = ApiRouter(tags=["grants"])


class Grants(Struct, frozen=True):
    """A page of grants: those in force first, then the newest."""

    #: Those of the page.
    grants: list[GrantState]
    #: How many are in force, on this page and on others.
    in_force: int
    next: str | None


@router.get("/grants")
async def grants(
    visit: Reading,
    workspace: str = "",
    standing: ledger_grants.GrantStanding | Literal[""] = "",
    after: str = "",
    limit: Limit = 200,
) -> Grants:
    """The grants of a workspace, or of all. Reads every fact about them."""
    facts = await visit.reading.read(_subjects(workspace, GRANT), REMOVALS)
    now = visit.reading.now()
    given = ledger_grants.grants_of(facts)
    secrets = await visit.secrets(*given)
    every = [grant_state(one, now, secrets) for one in given]
    chosen = [one for one in every if standing in {"", one.standing}]
    page, following = page_of(chosen, _is_over, after, limit)
    in_force = sum(one.standing == "in force" for one in every)
    return Grants(grants=page, in_force=in_force, next=following)


def _subjects(workspace: str, kind: str) -> str:
    return f"{ROOT}.{token('workspace', workspace) if workspace else '*'}.{kind}.>"


def _is_over(one: GrantState | DelegationState) -> bool:
    return one.standing not in {"in force", "to come"}


class NewGrant(ApiModel):
    """A grant for calls like `call`, or for a tool of a workspace."""

    call: str | None = None
    #: Without a call: the workspace.
    workspace: str = ""
    #: Without a call: the tool.
    tool: str | None = None
    #: How long it lasts; a year at most.
    for_s: float = Field(gt=0, le=MAX_GRANT_S)
    #: How many calls it approves.
    uses: int = Field(default=1, ge=1, le=ledger_grants.MAX_USES)
    #: Calls with any arguments; else with exactly those of the call, or those of `when`.
    any_arguments: bool = False
    #: Calls whose arguments meet this condition (CEL).
    when: str = ""
    #: Calls of any thread; else of the call's.
    any_thread: bool = False
    #: A pattern; None: the agent of the call, or any.
    agent: str | None = None
    #: Its name; chosen at random if empty. With one, giving the same grant again is safe.
    name: str = ""
    reason: str = ""


@router.post("/grants")
async def give(new: NewGrant, visit: Reviewing) -> GrantState:
    """Give a grant in the visitor's own name. If it is for calls like one that is pending, also
    vote for that call.
    """
    check_scope(new.call, new.tool, new.when, new.workspace, any_arguments=new.any_arguments)
    like = CallRef.parse(new.call) if new.call is not None else None
    workspace = like.workspace if like else token("workspace", new.workspace)
    said = new.model_dump(include=set(GrantScope._fields))
    scope = GrantScope(**said | {"tool": new.tool or ""})
    ledger = await visit.as_reviewer()
    grant = grant_ref(workspace, visit.name, new.name)
    given, problem = await give_grant(ledger, grant, like, scope)
    if problem is not None:
        raise vote_problem(grant, like, problem)
    return grant_state(given, ledger.now(), await visit.secrets(given))


@router.post("/grants/{workspace}/{giver}/{name}/revoke")
async def revoke(visit: Reviewing, ref: Annotated[GrantRef, Depends()], why: Reason) -> GrantState:
    """Revoke a grant. Every reviewer may; calls that it approved stay approved."""
    revoked = await (await visit.reviewer()).revoke_grant(ref, reason=why.reason)
    return grant_state(revoked, visit.reading.now(), await visit.secrets(revoked))


# ------------------------------------------------------------------------------------- delegations


class Delegations(Struct, frozen=True):
    """A page of delegations: those that are not over first, then the newest."""

    #: Those of the page.
    delegations: list[DelegationState]
    next: str | None


@router.get("/delegations")
async def delegations(
    visit: Reading,
    workspace: str = "",
    after: str = "",
    limit: Limit = 200,
) -> Delegations:
    """The delegations of a workspace, or of all. Reads every fact about them."""
    facts = await visit.reading.read(_subjects(workspace, DELEGATION), REMOVALS)
    now = visit.reading.now()
    found = [delegation_state(one, now) for one in ledger_grants.delegations_of(facts)]
    page, following = page_of(found, _is_over, after, limit)
    return Delegations(delegations=page, next=following)


class NewDelegation(ApiModel):
    """The visitor lets somebody vote in their place for a time."""

    workspace: str
    #: The person who may vote.
    to: str
    #: With an offset from UTC.
    starts_at: datetime
    ends_at: datetime
    #: Names, or patterns with `*`.
    tools: tuple[str, ...] = ("*",)
    #: Its name; chosen at random if empty. With one, giving the same delegation again is safe.
    name: str = ""
    reason: str = ""


@router.post("/delegations")
async def delegate(new: NewDelegation, visit: Reviewing) -> DelegationState:
    """Let another person vote in the visitor's place for a time."""
    check_patterns(new.tools)
    ref = delegation_ref(new.workspace, visit.name, new.name)
    said = new.model_dump(exclude={"workspace", "name"})
    given = await (await visit.reviewer()).delegate(ref, **said)
    return delegation_state(given, visit.reading.now())


@router.post("/delegations/{workspace}/{giver}/{name}/end")
async def end(
    visit: Reviewing, ref: Annotated[DelegationRef, Depends()], why: Reason
) -> DelegationState:
    """End a delegation that the visitor gave. Votes cast by it remain valid."""
    ended = await (await visit.reviewer()).end_delegation(ref, reason=why.reason)
    return delegation_state(ended, visit.reading.now())
