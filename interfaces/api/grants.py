"""Grants, which approve calls in advance, and delegations, by which one votes for another."""

from datetime import datetime
from typing import Final, Literal

from msgspec import Struct
from pydantic import Field

from ayes.interfaces.api.backend import InBackend
from ayes.interfaces.api.base import ApiModel, ApiRouter
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
    backend: InBackend,
    _visitor: Reading,
    workspace: str = "",
    standing: ledger_grants.GrantStanding | Literal[""] = "",
    after: str = "",
    limit: Limit = 200,
) -> Grants:
    """The grants of a workspace, or of all. Reads every fact about them."""
    facts = await backend.reading.read(_subjects(workspace, GRANT), REMOVALS)
    now = backend.reading.now()
    every = [grant_state(one, now) for one in ledger_grants.grants_of(facts)]
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
async def give(new: NewGrant, backend: InBackend, visitor: Reviewing) -> GrantState:
    """Give a grant in the visitor's own name. If it is for calls like one that is pending, also
    vote for that call.
    """
    check_scope(new.call, new.tool, new.when, new.workspace, any_arguments=new.any_arguments)
    like = CallRef.parse(new.call) if new.call is not None else None
    workspace = like.workspace if like else token("workspace", new.workspace)
    scope = GrantScope(
        new.tool or "", new.for_s, new.uses, new.when, new.agent, new.reason,
        new.any_arguments, new.any_thread,
    )  # fmt: skip
    ledger = await backend.as_reviewer(visitor.name)
    grant = grant_ref(workspace, visitor.name, new.name)
    given, problem = await give_grant(ledger, grant, like, scope)
    if problem is not None:
        raise vote_problem(grant, like, problem)
    return grant_state(given, ledger.now())


class Reason(ApiModel):
    reason: str = ""


@router.post("/grants/{workspace}/{giver}/{name}/revoke")
async def revoke(
    workspace: str, giver: str, name: str, why: Reason, backend: InBackend, visitor: Reviewing
) -> GrantState:
    """Revoke a grant. Every reviewer may; calls that it approved stay approved."""
    ledger = await backend.as_reviewer(visitor.name)
    ref = GrantRef(workspace, giver, name)
    revoked = await ledger.reviewer(visitor.name).revoke_grant(ref, reason=why.reason)
    return grant_state(revoked, ledger.now())


# ------------------------------------------------------------------------------------- delegations


class Delegations(Struct, frozen=True):
    """A page of delegations: those that are not over first, then the newest."""

    #: Those of the page.
    delegations: list[DelegationState]
    next: str | None


@router.get("/delegations")
async def delegations(
    backend: InBackend,
    _visitor: Reading,
    workspace: str = "",
    after: str = "",
    limit: Limit = 200,
) -> Delegations:
    """The delegations of a workspace, or of all. Reads every fact about them."""
    facts = await backend.reading.read(_subjects(workspace, DELEGATION), REMOVALS)
    now = backend.reading.now()
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
async def delegate(new: NewDelegation, backend: InBackend, visitor: Reviewing) -> DelegationState:
    """Let another person vote in the visitor's place for a time."""
    check_patterns(new.tools)
    ref = delegation_ref(new.workspace, visitor.name, new.name)
    ledger = await backend.as_reviewer(visitor.name)
    given = await ledger.reviewer(visitor.name).delegate(
        ref,
        new.to,
        starts_at=new.starts_at,
        ends_at=new.ends_at,
        tools=new.tools,
        reason=new.reason,
    )
    return delegation_state(given, ledger.now())


@router.post("/delegations/{workspace}/{giver}/{name}/end")
async def end(
    workspace: str, giver: str, name: str, why: Reason, backend: InBackend, visitor: Reviewing
) -> DelegationState:
    """End a delegation that the visitor gave. Votes cast by it remain valid."""
    ledger = await backend.as_reviewer(visitor.name)
    ref = DelegationRef(workspace, giver, name)
    ended = await ledger.reviewer(visitor.name).end_delegation(ref, reason=why.reason)
    return delegation_state(ended, ledger.now())
