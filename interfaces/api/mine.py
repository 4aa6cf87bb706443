"""Which pending calls are for a visitor to decide: in their own place, or in another person's."""

from collections.abc import Sequence

from ayes.interfaces.api.groups import has_provider
from ayes.interfaces.api.identity import Role, Visit, Visitor
from ayes.ledger.clients.services import Ledger
from ayes.ops.actions.policies import may_be, voters_of
from ayes.ops.actions.searching import Mine, asked_of
from ayes.schemas.slots import CallRef


async def mine_of(visit: Visit) -> Mine:
    """The pending calls that the visitor was asked about, whether they have voted or not."""
    if Role.REVIEWER not in visit.visitor.roles:
        return lambda _entry: False
    # Whose groups were read long ago is asked to sign in again.
    return await asked_of(visit.reading, visit.name, forgives=has_provider(visit))


async def is_asked(visit: Visit) -> bool:
    """Whether a policy may ask the visitor to vote. Of those who sign in at a provider some only
    look, and know it.
    """
    if has_provider(visit) or Role.REVIEWER not in visit.visitor.roles:
        return True
    is_scoped = bool(visit.visitor.workspaces)
    voters = await (voters_of(visit.reading) if is_scoped else visit.backend.voters())
    return may_be(visit.name, voters)


async def voted(ledger: Ledger, visitor: Visitor, calls: Sequence[CallRef]) -> frozenset[CallRef]:
    """Those of these calls on which the visitor has voted."""
    if not calls or Role.REVIEWER not in visitor.roles:
        return frozenset()
    slots = [call.vote(visitor.name) for call in calls]
    # The request of one is there in any case. Without any answer, a replica does not say how far it
    # has the log, and the leader would be asked about each slot.
    found = await ledger.read(calls[0].requested, *slots)
    return frozenset(
        ref
        for fact in found
        if fact.slot != calls[0].requested and (ref := fact.slot.call_ref) is not None
    )
