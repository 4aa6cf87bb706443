"""What a query about pending calls rests on besides the calls."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.grants import delegations_of
from ayes.ledger.people import people_of
from ayes.projections.call_order import OLDEST, CallOrder
from ayes.projections.call_query import CallQuery, Seen
from ayes.projections.pending import Entry
from ayes.schemas.slots import DELEGATION, REMOVALS, ROOT, CallRef

#: Whether a pending call is for somebody to decide.
type Mine = Callable[[Entry], bool]

#: Calls of somebody, the oldest, of which it is read whether they have voted on them.
_MOST: Final = 128
#: Whom an entry asks, excluded or not.
_asking: Final = attrgetter("workspace", "tool", "voters", "also", "besides", "asked_as_well")
_DELEGATIONS: Final = f"{ROOT}.*.{DELEGATION}.>"


async def seen_by(
    ledger: Ledger,
    entries: Iterable[Entry],
    chosen: CallQuery,
    order: CallOrder = OLDEST,
    mine: Mine | None = None,
    snoozed: Callable[[Entry], bool] | None = None,
) -> Seen:
    """What the query and the order of these entries rest on.

    Args:
        mine: what the reader may decide; None: nobody knows who reads.
        snoozed: what the reader has put aside; likewise.
    """
    now = ledger.now()
    if not (chosen.searches or order.searches):
        return Seen(now, mine, snoozed)
    secret = await ledger.secrets({one.declaration for one in entries})
    return Seen(now, mine, snoozed, lambda entry: secret.get(entry.declaration))


async def asked_of(ledger: Ledger, name: str, *, forgives: bool = False) -> Mine:
    """The pending calls that this person was asked about in their own place, or in another
    person's, whether they have voted or not; without those that they have handed over.

    Args:
        forgives: whether groups that were read long ago still count.
    """
    now = ledger.now()
    facts = await ledger.read(_DELEGATIONS, REMOVALS)
    given = [one for one in delegations_of(facts) if one.delegated.to == name]
    names, people = (name, *(one.ref.giver for one in given)), people_of(facts)
    if forgives:
        people = replace(await ledger.people(*names), forgives=True)
    groups = {one: people.groups(one, now) for one in names}

    #: By what `places` rests on: thousands of entries may wait, which ask a few groups of people.
    known: dict[tuple[object, ...], list[str]] = {}

    def places(entry: Entry) -> list[str]:
        """In whose places they were asked, by the names that it excludes too."""
        if people.bar(name, entry.workspace) is not None:
            return []
        givers = (
            one.ref.giver
            for one in given
            if one.ref.workspace == entry.workspace
            and one.holds(name, entry.tool, now)
            and people.bar(one.ref.giver, entry.workspace) is None
        )
        return [one for one in (name, *givers) if entry.names(one, groups[one])]

    def mine(entry: Entry) -> bool:
        asking = _asking(entry)
        if asking not in known:
            known[asking] = places(entry)
        return (
            name not in (entry.handed or ())
            and not entry.excludes(name)
            and not all(map(entry.excludes, known[asking]))
        )

    return mine


async def to_decide(
    ledger: Ledger, name: str, entries: Iterable[Entry], *, forgives: bool = False
) -> Mine:
    """Those of these calls that this person was asked about (`asked_of`) and has not voted on.

    Votes are read of the first 128; nobody who has more to decide counts them one by one.
    """
    asked = await asked_of(ledger, name, forgives=forgives)
    done = await voted(ledger, name, [one.ref for one in islice(filter(asked, entries), _MOST)])
    if not done:
        return asked
    return lambda entry: asked(entry) and entry.ref not in done


async def voted(ledger: Ledger, name: str, calls: Sequence[CallRef]) -> frozenset[CallRef]:
    """Those of these calls on which this person has voted."""
    if not calls:
        return frozenset()
    # The request of one is there in any case. Without any answer, a replica does not say how far it
    # has the log, and the leader would be asked about each slot.
    found = await ledger.read(calls[0].requested, *(call.vote(name) for call in calls))
    return frozenset(
        ref
        for fact in found
        if fact.slot != calls[0].requested and (ref := fact.slot.call_ref) is not None
    )
