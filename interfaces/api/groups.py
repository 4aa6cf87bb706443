"""In which groups a visitor is, read anew at the provider before they say what may rest on it.

What it says is recorded with the console's own login (docs/decisions/0068), before the vote. If it
says nothing, that is recorded as well, and a vote for a group does not count.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from ayes.interfaces.access.openid import GroupsClaim, OpenIdSettings, ProviderAccount
from ayes.interfaces.api.backend import Backend
from ayes.interfaces.api.identity import Visit
from ayes.ledger.objections import may_ever_vote
from ayes.ledger.validity import call_of
from ayes.ops.visitors import Role
from ayes.schemas import events as e
from ayes.schemas.durations import seconds
from ayes.schemas.quorums import is_group
from ayes.schemas.slots import ORGANISATION, CallRef


async def read_for_votes(visit: Visit, *refs: CallRef) -> None:
    """Read the visitor's groups, if a group was asked about one of these calls."""
    if _account(visit) is None:
        return
    facts = await visit.reading.read(*refs)
    await _read(visit, (one for ref in refs for one in may_ever_vote(call_of(ref, facts))))


async def read_for_stops(visit: Visit, workspace: str) -> None:
    """Read the visitor's groups, if the policies let a group stop or resume there."""
    if _account(visit) is not None:
        policies = await visit.reading.policies(workspace or ORGANISATION)
        await _read(visit, (*policies.people("may_stop"), *policies.people("may_resume")))


async def _read(visit: Visit, voters: Iterable[str]) -> None:
    provider, account = visit.request.app.state.security.provider, _account(visit)
    if account is not None and any(map(is_group, voters)):
        read_at = (await visit.backend.recording()).now()
        said = await provider.groups_of(account)
        await record(visit.backend, visit.name, account, said, provider.settings, read_at)


def _account(visit: Visit) -> ProviderAccount | None:
    """The account at the provider with which the visitor has signed in; None: with none."""
    if not has_provider(visit) or Role.REVIEWER not in visit.visitor.roles:
        return None
    found: ProviderAccount | None = visit.request.app.state.security.account_of(visit.request)
    return found


def has_provider(visit: Visit) -> bool:
    """Whether people sign in at a provider here."""
    security = getattr(visit.request.app.state, "security", None)  # not of requests over NATS
    return security is not None and security.provider is not None


async def record(
    backend: Backend,
    name: str,
    account: ProviderAccount,
    said: GroupsClaim,
    settings: OpenIdSettings,
    read_at: datetime | None = None,
) -> None:
    """Record what a provider says of a person's groups, unless it said the same not long ago.

    Args:
        read_at: when it was asked; None: now.
    """
    ledger = await backend.recording()
    read_at = read_at or ledger.now()
    until = read_at + timedelta(seconds=seconds(settings.groups_last) or 0)
    issuer, groups, problem = settings.issuer, *said
    read = e.GroupsRead(issuer, account.subject, groups, read_at, until, problem)
    await ledger.record_groups(name, read)
