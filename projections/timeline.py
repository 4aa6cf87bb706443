"""A thread as people read it: messages and turns in the model's order, each call as one item.

    message ─► turn 1 ─► call, call ─► message, ... ─► turn 2 ─► ...

The order is that of `history.py`, so that people see what the model saw: a message that was
recorded after a turn's claim comes after the turn, and the calls of a turn directly follow it,
whatever was recorded in between. Unlike a history it goes on after a call that is not settled, and
is never compacted. Calls of a service with its own loop, which belong to no turn, stand where they
were requested.
"""

from bisect import bisect_left
from operator import itemgetter

from msgspec import Struct

from ayes.ledger.call import Call
from ayes.projections.thread import Thread, Turn
from ayes.schemas import events as e
from ayes.schemas.codec import Fact


class Cycle(Struct, frozen=True):
    """A call from the wish to the result."""

    call: Call
    #: What the model wanted; None if a service requested the call by itself.
    wish: e.Wish | None = None


#: A message, or bytes in the place of one; a turn; or a call.
type Item = Fact | Turn | Cycle


def timeline(thread: Thread) -> tuple[Item, ...]:
    """All messages, turns and calls of a thread, in order."""
    between, items, passed = _between(thread), list[Item](), 0
    for number, turn in thread.turns.items():
        until = bisect_left(between, turn.cut or 0, key=itemgetter(0))
        items += [item for _, item in between[passed:until]]
        passed = max(passed, until)
        items.append(turn)
        items += [Cycle(thread.call(ref), wish) for ref, wish in thread.wishes(number)]
    return (*items, *(item for _, item in between[passed:]))


def _between(thread: Thread) -> list[tuple[int, Item]]:
    """The messages, and the calls that belong to no turn, each with its sequence."""
    of_turns = {ref.call for number in thread.turns for ref, _ in thread.wishes(number)}
    found: list[tuple[int, Item]] = [(fact.seq, fact) for fact in thread.said]
    found += [
        (call.facts[0].seq, Cycle(call))
        for name, call in thread.calls.items()
        if name not in of_turns and call.facts
    ]
    return sorted(found, key=itemgetter(0))
