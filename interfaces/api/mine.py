"""Which pending calls are for a visitor to decide: in their own place, or in another person's."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from ayes.interfaces.api.groups import has_provider
from ayes.interfaces.api.identity import Role, Visit, Visitor
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.grants import delegations_of
from ayes.ledger.people import people_of
from ayes.projections.pending import Entry
from ayes.schemas.slots import DELEGATION, REMOVALS, ROOT, CallRef

#: Whether a pending call is for the visitor to decide.
type Mine = Callable[[Entry], bool]

_DELEGATIONS: Final = f"{ROOT}.*.{DELEGATION}.>"


async def mine_of(visit: Visit) -> Mine:
    """The pending calls that the visitor was asked about, whether they have voted or not."""
    ledger, visitor = visit.reading, visit.visitor
    if Role.REVIEWER not in visitor.roles:
        return lambda _entry: False
    name, now = visitor.name, ledger.now()
    facts = await ledger.read(_DELEGATIONS, REMOVALS)
    given = [one for one in delegations_of(facts) if one.delegated.to == name]
    names, people = (name, *(one.ref.giver for one in given)), people_of(facts)
    if has_provider(visit):  # whose groups were read long ago is asked to sign in again
        people = replace(await ledger.people(*names), forgives=True)
    groups = {one: people.groups(one, now) for one in names}

    def mine(entry: Entry) -> bool:
        if people.bar(name, entry.workspace) is not None:
            return False
        return entry.asks(name, groups[name]) or any(
            one.ref.workspace == entry.workspace
            and one.holds(name, entry.tool, now)
            and people.bar(one.ref.giver, entry.workspace) is None
            and entry.asks(one.ref.giver, groups[one.ref.giver])
            and not entry.excludes(name)
            for one in given
        )

    return mine


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
