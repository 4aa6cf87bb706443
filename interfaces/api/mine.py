"""Which pending calls are for a visitor to decide: in their own place, or in another person's."""

from ayes.interfaces.api.groups import has_provider
from ayes.interfaces.api.identity import Role, Visit
from ayes.ops.actions.policies import may_be, voters_of
from ayes.ops.actions.searching import Mine, asked_of, to_decide


async def mine_of(visit: Visit, *, reads_votes: bool = True) -> Mine:
    """The pending calls that the visitor was asked about and has not voted on.

    Args:
        reads_votes: False: whether they have voted or not, which takes no reading of votes.
    """
    if Role.REVIEWER not in visit.visitor.roles:
        return lambda _entry: False
    # Whose groups were read long ago is asked to sign in again.
    ledger, name, forgives = visit.reading, visit.name, has_provider(visit)
    if not reads_votes:
        return await asked_of(ledger, name, forgives=forgives)
    return await to_decide(ledger, name, visit.waiting.oldest(), forgives=forgives)


async def is_asked(visit: Visit) -> bool:
    """Whether a policy may ask the visitor to vote. Of those who sign in at a provider some only
    look, and know it.
    """
    if has_provider(visit) or Role.REVIEWER not in visit.visitor.roles:
        return True
    is_scoped = bool(visit.visitor.workspaces)
    voters = await (voters_of(visit.reading) if is_scoped else visit.backend.voters())
    return may_be(visit.name, voters)
