"""Policies: what is in force, what was before, and a trial of another one on the real past."""

from datetime import datetime, timedelta
from typing import Annotated, Final

from msgspec import Struct
from pydantic import Field

from ayes.interfaces.api.base import ApiModel, ApiRouter
from ayes.interfaces.api.identity import Operating, Reading, Visit
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging import policy_proposals
from ayes.ledger.judging.in_force import VoidVersion
from ayes.ops.actions.policies import changes, changes_to, text_of
from ayes.ops.audit import backtest
from ayes.ops.broker.setup import apply_policy, apply_proposal, propose_policy
from ayes.ops.single_flight import in_thread
from ayes.projections.thread import thread_of
from ayes.projections.views.copied import copied
from ayes.projections.views.fact import fact_row
from ayes.projections.views.secrets import WHOLE
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput, NotAllowed
from ayes.schemas.policy import Policy, read_policy
from ayes.schemas.slots import ORGANISATION, POLICY, ROOT, TOOL, CallRef, ThreadRef, policies

router: Final = ApiRouter(tags=["policies"])

#: How errors name a policy that was sent.
_SOURCE: Final = "the policy"
#: A policy is read whole before it is refused, so its length is bounded.
PolicyText = Annotated[str, Field(max_length=256_000)]


class Version(Struct, frozen=True):
    """A version of a policy, without its text."""

    version: int
    #: When it was applied.
    applied_at: datetime
    #: Who applied it, by their own account, as `operator NAME`.
    by: str
    #: The call by which people agreed to it; empty if nobody was asked.
    proposal: str
    #: Why it has no effect; empty if it has, or had.
    void: str
    seq: int


def _version(fact: Fact, voids: dict[int, str]) -> Version:
    return Version(
        version=int(fact.slot.tail[1]),
        applied_at=fact.recorded_at,
        by=fact_row(fact, WHOLE).by,
        proposal=getattr(fact.event, "proposal", ""),
        void=voids.get(fact.seq, ""),
        seq=fact.seq,
    )


class Versions(Struct, frozen=True):
    """The versions of a workspace's policy, or the organisation's, newest first."""

    workspace: str
    #: The version in force; 0 while there is none: then people are asked about every call.
    in_force: int
    #: Whether a version needs the approval of a second person.
    needs_approval: bool
    #: Each of them.
    versions: list[Version]


@router.get("/policies")
async def workspaces(visit: Reading) -> list[str]:
    """The workspaces that have a policy or a tool, and `_organisation` if it has a policy."""
    facts = await visit.reading.read(f"{ROOT}.*.{POLICY}.*", f"{ROOT}.*.{TOOL}.*.*")
    return sorted({fact.slot.workspace for fact in facts} - {""})


@router.get("/policies/{workspace}")
async def versions(workspace: str, visit: Reading) -> Versions:
    """The versions of a policy. `_organisation` names the one that holds in every workspace."""
    ledger = visit.reading
    facts = await _versions(ledger, workspace)
    in_force = await ledger.policies(workspace)
    is_organisations = workspace == ORGANISATION
    own = in_force.organisation if is_organisations else in_force.workspace
    voids = _by_seq(await ledger.alarms()) if facts else {}
    return Versions(
        workspace=workspace,
        in_force=own.version,
        needs_approval=_needs_approval(workspace, in_force.organisation.policy),
        versions=[_version(fact, voids) for fact in reversed(facts)],
    )


async def _versions(ledger: Ledger, workspace: str) -> list[Fact]:
    """In the order of the log; subjects that are no slots are left out."""
    return [fact for fact in await ledger.read(policies(workspace)) if fact.slot.workspace]


def _by_seq(voids: tuple[VoidVersion, ...]) -> dict[int, str]:
    return {one.seq: one.why for one in voids}


def _needs_approval(workspace: str, organisation: Policy) -> bool:
    return workspace != ORGANISATION and organisation.policies_need_approval


class VersionText(Struct, frozen=True):
    """The text of a version, and how it differs from the one before."""

    version: int
    #: TOML.
    text: str
    #: The number of the version before; 0 if it is the first.
    before: int
    #: A unified diff, line by line; empty for the first.
    changes: list[str]


@router.get("/policies/{workspace}/versions/{version}")
async def text(
    workspace: str,
    version: Annotated[int, Field(ge=1, lt=10**9)],
    visit: Reading,
) -> VersionText:
    """The text of one version."""
    facts = await _versions(visit.reading, workspace)
    numbers = sorted(int(fact.slot.tail[1]) for fact in facts)
    if version not in numbers:
        has = f"The versions are 1 to {numbers[-1]}" if numbers else "There is none yet"
        raise BadInput(f"there is no version {version} of the policy of {workspace}. {has}.")
    before = max((number for number in numbers if number < version), default=0)
    now = text_of(facts, version)
    then = text_of(facts, before)
    return VersionText(
        version=version,
        text=now,
        before=before,
        changes=changes(then, now, f"version {before}", f"version {version}") if before else [],
    )


# ------------------------------------------------------------------------------------------- trials


class Candidate(ApiModel):
    """A policy to try."""

    #: TOML, as of a policy file.
    text: PolicyText
    #: How far back the calls go that it is tried on.
    days: int = Field(default=30, ge=1, le=366)


class Trial(backtest.Findings, frozen=True, kw_only=True):
    """The verdicts of a policy on the calls of the last days."""

    #: How far back the calls go.
    days: int
    #: The version in force that it was compared with; 0: none.
    in_force: int
    #: How its text differs from that version.
    differences: list[str]
    #: Requests that this program cannot read; they are not counted.
    unreadable: int


@router.post("/policies/{workspace}/try")
async def attempt(workspace: str, candidate: Candidate, visit: Reading) -> Trial:
    """Try a policy on the past calls of a workspace, or of all as the organisation's. Nothing is
    recorded.
    """
    in_force, differences = await changes_to(
        visit.reading, _owner(workspace), candidate.text, _SOURCE
    )
    refusal = f"{visit.name} is trying a policy already. Wait for its result."
    async with visit.backend.busy.once(("trial", visit.name), refusal):
        report, unreadable = await in_thread(lambda: _backtest(visit, workspace, candidate))
    return copied(
        Trial,
        report,
        days=candidate.days,
        in_force=in_force,
        differences=differences,
        unreadable=unreadable,
    )


def _owner(workspace: str) -> str:
    """The workspace, checked: names that cannot be are refused."""
    policies(workspace)
    return workspace


async def _backtest(
    visit: Visit, workspace: str, candidate: Candidate
) -> tuple[backtest.Report, int]:
    """A backtest on a connection of its own: this runs in another event loop."""
    policy, organisation = read_policy(candidate.text, _SOURCE), workspace == ORGANISATION
    async with visit.alone("trial") as ledger:
        return await backtest.backtest_ledger(
            ledger,
            policy,
            workspace="" if organisation else workspace,
            since=ledger.now() - timedelta(days=candidate.days),
            organisation=organisation,
        )


# ----------------------------------------------------------------------------------------- applying


class NewPolicy(ApiModel):
    """A policy to apply or to propose."""

    #: TOML, as of a policy file.
    text: PolicyText


class Applied(Struct, frozen=True):
    workspace: str
    version: int


class Proposed(Struct, frozen=True):
    workspace: str
    #: The call that people approve or deny, as `workspace/thread/call`.
    proposal: str


@router.post("/policies/{workspace}")
async def apply(workspace: str, new: NewPolicy, visit: Operating) -> Applied:
    """Make a text the policy of a workspace from now on. Calls that wait stay as they were asked.

    If versions need approval, it is refused: propose it instead.
    """
    operator = await visit.operator()
    organisation = (await operator.policies(_owner(workspace))).organisation.policy
    if workspace == ORGANISATION:
        raise NotAllowed(
            "the organisation's policy is applied by whoever has its credentials: "
            "ayes policy apply FILE.toml --organisation"
        )
    if _needs_approval(workspace, organisation):
        raise NotAllowed(
            f"a second person must approve each policy of {workspace}, as the organisation wants. "
            "Nothing was recorded. Propose it instead."
        )
    version = await apply_policy(operator, workspace, new.text, _SOURCE)
    return Applied(workspace=workspace, version=version)


class Proposal(Struct, frozen=True):
    """A policy that somebody proposed."""

    #: The call that people approve or deny, as `workspace/thread/call`.
    proposal: str
    #: The number of the version that it would be.
    version: int
    status: str
    #: As in `CallState`.
    outcome: str
    requester: str
    requested_at: datetime


@router.get("/policies/{workspace}/proposals")
async def proposals(workspace: str, visit: Reading) -> list[Proposal]:
    """The proposals for the version after the last one that was applied; older ones are moot."""
    if workspace == ORGANISATION:
        return []
    thread = ThreadRef(workspace, policy_proposals.THREAD)
    facts = await _versions(visit.reading, workspace)
    following = max((int(fact.slot.tail[1]) for fact in facts), default=0) + 1
    calls = thread_of(thread, await visit.reading.read(thread)).calls.values()
    return [
        Proposal(
            proposal=str(call.ref),
            version=following,
            status=str(call.status),
            outcome=str(call.outcome),
            requester=call.wish.requester,
            requested_at=call.requested.recorded_at,
        )
        for call in calls
        if call.requested is not None and call.ref.call.startswith(f"v{following}-")
    ]


@router.post("/policies/{workspace}/proposals")
async def propose(workspace: str, new: NewPolicy, visit: Operating) -> Proposed:
    """Ask people to approve a text as the next policy of a workspace. It is safe to repeat."""
    service = await visit.service()
    call = await propose_policy(service, workspace, new.text, _SOURCE, visit.name)
    return Proposed(workspace=workspace, proposal=str(call.ref))


@router.post("/policies/{workspace}/proposals/{thread}/{call}/apply")
async def apply_approved(workspace: str, thread: str, call: str, visit: Operating) -> Applied:
    """Make a proposal that people approved the policy. Applying it again is safe."""
    operator = await visit.operator()
    service = await visit.service()
    version = await apply_proposal(operator, service, CallRef(workspace, thread, call))
    return Applied(workspace=workspace, version=version)
