"""Projections of the whole log: one row for each thing (a call, a conversation) in progress.

    state = ProjectionState(OPEN_APPROVALS, HISTORIES)
    for fact in facts:
        state.apply(fact)
    state.rows(OPEN_APPROVALS)

Following the log live and replaying it run the same functions, so both show the same bytes.

The rules of this folder:

* No clock, no randomness, no I/O: the same facts give the same bytes, on any machine.
* The log has an order. A duplicate changes nothing, and an early fact is held back until all facts
  before it are there: so duplicates and disorder leave the same state as the log in order.
* A fact from the future, or bytes that are not a fact (`Carried`), are never an error: an old
  program goes on reading a newer log. The thing in whose slot they are decides what they mean.
* A complete thing is evicted after a while, together with its row, so memory grows with the work in
  progress and not with the log. If it continues after all, `to_reload` names it, and the caller
  reads its facts again (`reload`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Protocol

from msgspec import Struct

from ayes.schemas.codec import Fact
from ayes.schemas.slots import STOP, Slot

#: Workspace and thread, or these and a call.
type Key = tuple[str, ...]


class Aggregate(Protocol):
    """A thing in progress, made of its facts."""

    def apply(self, fact: Fact) -> None: ...

    @property
    def is_complete(self) -> bool:
        """Whether no more facts are expected."""
        ...


class ProjectedRow(Struct, frozen=True):
    """The output of a projection for one thing."""

    key: str
    value: bytes


class Projection[T: Aggregate](Struct, frozen=True):
    """The functions that make up a projection."""

    #: Its name in commands.
    name: str
    #: The thing that a slot belongs to; None if it does not matter here.
    key: Callable[[Slot], Key | None]
    #: Begins a thing, which is given all facts about stops, those that are still to come too.
    begin: Callable[[Sequence[Fact]], T]
    #: Whether a fact in this slot begins a thing.
    begins: Callable[[Slot], bool]
    #: Whether a fact in this slot may change an evicted thing.
    resumes: Callable[[Slot], bool]
    #: The row of a thing; None if it has none.
    row: Callable[[T], ProjectedRow | None]
    #: The number of complete things kept in memory.
    keep_complete: int = 1024


class ProjectionState:
    """The state of some projections after the first `seq` facts of a log."""

    def __init__(self, *folds: Projection[Any]) -> None:
        self.seq = 0
        self._early: dict[int, Fact] = {}
        #: Evicted things that received a fact. Their facts must be read again and passed to
        #: `reload` before rows are shown.
        self.to_reload: set[Key] = set()
        self._states: dict[str, _State[Any]] = {
            fold.name: _State(fold, self.to_reload) for fold in folds
        }
        self._each = tuple(self._states.values())

    def apply(self, fact: Fact) -> None:
        """Apply the next fact of the log, or hold back a later one until it is the next."""
        if fact.seq == self.seq + 1:
            self._apply_next(fact)
            if self._early:
                self._advance()
        elif fact.seq > self.seq:
            self._early[fact.seq] = fact

    @property
    def missing(self) -> range:
        """The sequences that are missing before the facts held back."""
        return range(self.seq + 1, min(self._early) if self._early else self.seq + 1)

    def pass_over(self) -> None:
        """Continue without the missing facts: the log does not have them."""
        self.seq = self.missing.stop - 1
        self._advance()

    def rows(self, fold: Projection[Any]) -> Iterator[ProjectedRow]:
        """The rows of the things in memory, by key."""
        found = [fold.row(thing) for thing in self._states[fold.name].things.values()]
        return iter(sorted((row for row in found if row), key=attrgetter("key")))

    def row(self, fold: Projection[Any], slot: Slot) -> ProjectedRow | None:
        """The row of the thing that a slot belongs to; None without a row, or if it is evicted."""
        key = fold.key(slot)
        thing = self._states[fold.name].things.get(key) if key else None
        return fold.row(thing) if thing else None

    def things[T: Aggregate](self, fold: Projection[T]) -> Iterator[T]:
        """The things in memory."""
        return iter(self._states[fold.name].things.values())

    def evicted[T: Aggregate](self, fold: Projection[T]) -> list[T]:
        """The things evicted since the last call."""
        state = self._states[fold.name]
        ended, state.evicted = state.evicted, []
        return ended

    def reloaded[T: Aggregate](self, fold: Projection[T]) -> list[T]:
        """The things reloaded since the last call, in their state before the new facts."""
        state = self._states[fold.name]
        recalled, state.reloaded = state.reloaded, []
        return recalled

    def reload(self, facts: Iterable[Fact]) -> None:
        """Rebuild the things in `to_reload` from their facts. Facts after `seq` are ignored."""
        known = [fact for fact in facts if fact.seq <= self.seq]
        self.to_reload.clear()
        for state in self._each:
            state.reload(known)

    def _advance(self) -> None:
        """Apply the facts held back that are next."""
        while following := self._early.pop(self.seq + 1, None):
            self._apply_next(following)

    def _apply_next(self, fact: Fact) -> None:
        self.seq += 1
        if fact.slot.workspace:  # without one it is not in a slot of the ledger
            for state in self._each:
                state.apply(fact)


class _State[T: Aggregate]:
    """The things in memory of one projection."""

    def __init__(self, fold: Projection[T], wanted: set[Key]) -> None:
        self._fold = fold
        self._wanted_by_any = wanted
        self._key = fold.key
        self._stops: list[Fact] = []
        self.things: dict[Key, T] = {}
        #: Complete things, in the order of their completion.
        self._complete: dict[Key, None] = {}
        self.evicted: list[T] = []
        self.reloaded: list[T] = []
        #: Things to reload, with the sequence of the fact that resumed them.
        self.to_reload: dict[Key, int] = {}

    def apply(self, fact: Fact) -> None:
        slot = fact.slot
        if slot.tail[0] == STOP:
            self._stops.append(fact)
        key = self._key(slot)
        if key is None or key in self.to_reload:  # the reload reads this fact too
            return
        thing = self.things.get(key)
        if thing is None:
            if not self._fold.begins(slot):
                if self._fold.resumes(slot):
                    self.to_reload[key] = fact.seq
                    self._wanted_by_any.add(key)
                return
            thing = self.things[key] = self._fold.begin(self._stops)
        thing.apply(fact)
        self._settle(key, thing)

    def reload(self, facts: list[Fact]) -> None:
        wanted, self.to_reload = self.to_reload, {}
        for key, since in wanted.items():
            known = [fact for fact in facts if self._fold.key(fact.slot) == key]
            if before := [fact for fact in known if fact.seq < since]:
                self.reloaded.append(self._made_of(before))
            if known:
                thing = self.things[key] = self._made_of(known)
                self._settle(key, thing)

    def _made_of(self, facts: list[Fact]) -> T:
        thing = self._fold.begin(self._stops)
        for fact in facts:
            thing.apply(fact)
        return thing

    def _settle(self, key: Key, thing: T) -> None:
        if not thing.is_complete:
            if key in self._complete:
                del self._complete[key]
            return
        self._complete[key] = None
        while len(self._complete) > self._fold.keep_complete:
            longest = next(iter(self._complete))
            del self._complete[longest]
            self.evicted.append(self.things.pop(longest))
