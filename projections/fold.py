"""What a projection of the whole log is: what it says of each thing (a call, a conversation) that is under way.

    folding = Folding(OPEN, HISTORIES)
    for fact in facts:
        folding.take(fact)
    folding.rows(OPEN)

Following the log live and replaying it are the same loop over the same functions, so what one of
them shows the other shows too, byte for byte.

The rules of this folder:

* No clock, no randomness, no I/O: the same facts give the same bytes, on any machine.
* The log has an order. A fact that came before changes nothing, and one that comes early is held back until all
  before it are there: so duplicates and disorder leave the same state as if each had come once and in order.
* A fact from the future, or bytes that are not a fact (`Carried`), are never an error: an old program goes on reading a
  newer log. What they mean for the thing in whose place they stand is that thing's to say.
* A thing that has come to rest is let go after a while, with the row that it came to, so that memory grows with what
  is under way and not with the log. Should it go on after all, `wanted` says so, and whoever drives the folding
  reads its facts again (`recall`).
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Protocol

from msgspec import Struct

from ayes.schemas.codec import Fact
from ayes.schemas.slots import Slot

#: Workspace and thread, or these and a call.
type Key = tuple[str, ...]


class Thing(Protocol):
    """Something under way, as its facts have it."""

    def take(self, fact: Fact) -> None: ...

    @property
    def at_rest(self) -> bool:
        """Is nothing more to come, as far as can be seen?"""
        ...


class Row(Struct, frozen=True):
    """What a projection shows about one thing."""

    key: str
    value: bytes


class Fold[T: Thing](Struct, frozen=True):
    """A projection."""

    #: As commands call it.
    name: str
    #: Which thing a fact is about, by where it stands; None: nothing here.
    key: Callable[[Slot], Key | None]
    begin: Callable[[], T]
    #: Does a thing begin with what stands here?
    begins: Callable[[Slot], bool]
    #: May what stands here change a thing that was let go?
    resumes: Callable[[Slot], bool]
    #: What is shown about a thing; None: nothing.
    row: Callable[[T], Row | None]
    #: How many things at rest are kept in hand.
    resting: int = 1024


class Folding:
    """Some projections of the first `seq` facts of a log."""

    def __init__(self, *folds: Fold[Any]) -> None:
        self.seq = 0
        self._early: dict[int, Fact] = {}
        #: What went on after it had been let go: to be read again, and handed to `recall` before anything is shown.
        self.wanted: set[Key] = set()
        self._states: dict[str, _State[Any]] = {fold.name: _State(fold, self.wanted) for fold in folds}
        self._each = tuple(self._states.values())

    def take(self, fact: Fact) -> None:
        """The next fact of the log; or any other one, in which case nothing is shown of it before it is the next."""
        if fact.seq != self.seq + 1:
            if fact.seq > self.seq:
                self._early[fact.seq] = fact
            return
        self._step(fact)
        self.seq += 1
        while self._early and (following := self._early.pop(self.seq + 1, None)):
            self._step(following)
            self.seq += 1

    @property
    def missing(self) -> range:
        """The facts that those which are held back wait for."""
        return range(self.seq + 1, min(self._early) if self._early else self.seq + 1)

    def pass_over(self) -> None:
        """Go on without the facts that are missing: the log does not have them."""
        self.seq = self.missing.stop - 1
        while following := self._early.pop(self.seq + 1, None):
            self._step(following)
            self.seq += 1

    def rows(self, fold: Fold[Any]) -> Iterator[Row]:
        """What is shown of the things in hand, by key."""
        found = [fold.row(thing) for thing in self._states[fold.name].things.values()]
        return iter(sorted((row for row in found if row), key=attrgetter("key")))

    def row(self, fold: Fold[Any], slot: Slot) -> Row | None:
        """What is shown of the thing that a slot is about; None: nothing, or it is not in hand."""
        key = fold.key(slot)
        thing = self._states[fold.name].things.get(key) if key else None
        return fold.row(thing) if thing else None

    def things[T: Thing](self, fold: Fold[T]) -> Iterator[T]:
        """The things in hand."""
        return iter(self._states[fold.name].things.values())

    def ended[T: Thing](self, fold: Fold[T]) -> list[T]:
        """The things that were let go since this was last asked."""
        state = self._states[fold.name]
        ended, state.ended = state.ended, []
        return ended

    def recalled[T: Thing](self, fold: Fold[T]) -> list[T]:
        """The things as they were let go that are in hand again, since this was last asked."""
        state = self._states[fold.name]
        recalled, state.recalled = state.recalled, []
        return recalled

    def recall(self, facts: Iterable[Fact]) -> None:
        """Take in what was read again; facts that this folding has not come to yet are passed over."""
        known = [fact for fact in facts if fact.seq <= self.seq]
        self.wanted.clear()
        for state in self._each:
            state.recall(known)

    def _step(self, fact: Fact) -> None:
        if not fact.slot.workspace:  # not a slot of the ledger
            return
        for state in self._each:
            state.take(fact)


class _State[T: Thing]:
    """The things in hand of one projection."""

    def __init__(self, fold: Fold[T], wanted: set[Key]) -> None:
        self._fold = fold
        self._wanted_by_any = wanted
        self._key = fold.key
        self.things: dict[Key, T] = {}
        #: Those at rest, the longest first.
        self._resting: dict[Key, None] = {}
        self.ended: list[T] = []
        self.recalled: list[T] = []
        #: What is to be recalled, and the fact with which it went on.
        self.wanted: dict[Key, int] = {}

    def take(self, fact: Fact) -> None:
        slot = fact.slot
        key = self._key(slot)
        if key is None or (self.wanted and key in self.wanted):  # its facts are read again, this one too
            return
        thing = self.things.get(key)
        if thing is None:
            if not self._fold.begins(slot):
                if self._fold.resumes(slot):
                    self.wanted[key] = fact.seq
                    self._wanted_by_any.add(key)
                return
            thing = self.things[key] = self._fold.begin()
        thing.take(fact)
        self._settle(key, thing)

    def recall(self, facts: list[Fact]) -> None:
        wanted, self.wanted = self.wanted, {}
        for key, since in wanted.items():
            known = [fact for fact in facts if self._fold.key(fact.slot) == key]
            if before := [fact for fact in known if fact.seq < since]:
                self.recalled.append(self._made_of(before))
            if known:
                thing = self.things[key] = self._made_of(known)
                self._settle(key, thing)

    def _made_of(self, facts: list[Fact]) -> T:
        thing = self._fold.begin()
        for fact in facts:
            thing.take(fact)
        return thing

    def _settle(self, key: Key, thing: T) -> None:
        if not thing.at_rest:
            self._resting.pop(key, None)
            return
        self._resting[key] = None
        while len(self._resting) > self._fold.resting:
            longest = next(iter(self._resting))
            del self._resting[longest]
            self.ended.append(self.things.pop(longest))
