"""What a projection is: a beginning, and what each fact changes.

    state = initial()
    for fact in facts:
        state = evolve(state, fact)

Nothing else. Replaying the whole log and following it live are the same loop over the same two functions, so what
one of them shows the other shows too, byte for byte.

The rules of this folder:

* No clock, no randomness, no I/O: the same facts give the same bytes, on any machine.
* The stream delivers at least once and not always in order. A fact that came before, or that comes late, leaves
  the same state as if each had come once and in order.
* A fact from the future (`Carried`) is skipped, never an error: an old program goes on reading a newer log.
* A fold over one thread or one call gives frozen values. One over the whole log may change its tables in place,
  since copying them for every fact would be quadratic; hence `initial` is a function: each run has its own.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from schemas.codec import Fact
from schemas.events import Carried


class Fold[State](Struct, frozen=True):
    """A projection."""

    initial: Callable[[], State]
    evolve: Callable[[State, Fact], State]

    def take(self, state: State, fact: Fact) -> State:
        """The next state: what a live consumer does with each fact."""
        return state if isinstance(fact.event, Carried) else self.evolve(state, fact)

    def over(self, facts: Iterable[Fact]) -> State:
        """The state after all of these: what a replay does."""
        state = self.initial()
        for fact in facts:
            state = self.take(state, fact)
        return state
