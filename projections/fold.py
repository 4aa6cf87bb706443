"""What a projection of the whole log is: what it says of each thing (a call, a conversation) that
is under way.

    state = Folding(OPEN, HISTORIES)
    for fact in facts:
        state.apply(fact)
    state.rows(OPEN)

Following the log live and replaying it are the same loop over the same functions, so what one of
them shows the other shows too, byte for byte.

The rules of this folder:

* No clock, no randomness, no I/O: the same facts give the same bytes, on any machine.
* The log has an order. A fact that came before changes nothing, and one that comes early is held
  back until all before it are there: so duplicates and disorder leave the same state as if each had
  come once and in order.
* A fact from the future, or bytes that are not a fact (`Carried`), are never an error: an old
  program goes on reading a newer log. What they mean for the thing in whose place they stand is
  that thing's to say.
* A thing that has come to rest is let go after a while, with the row that it came to, so that
  memory grows with what is under way and not with the log. Should it go on after all, `to_reload`
  says so, and whoever drives the state reads its facts again (`reload`).
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Protocol

from msgspec import Struct

from ayes.schemas.codec import Fact
from ayes.schemas.slots import Slot

#: Workspace and thread, or these and a call.
type Key = tuple[str, ...]


class Aggregate(Protocol):
    """Something under way, as its facts have it."""

    def apply(self, fact: Fact) -> None: ...

    @property
    def is_complete(self) -> bool:
        """Is nothing more to come, as far as can be seen?"""
        ...


class ProjectedRow(Struct, frozen=True):
    """What a projection shows about one thing."""

    key: str
    value: bytes


class Projection[T: Aggregate](Struct, frozen=True):
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
    row: Callable[[T], ProjectedRow | None]
    #: How many things at rest are kept in hand.
    keep_complete: int = 1024


class ProjectionState:
    """Some projections of the first `seq` facts of a log."""

    def __init__(self, *folds: Projection[Any]) -> None:
        self.seq = 0
        self._early: dict[int, Fact] = {}
        #: What went on after it had been let go: to be read again, and handed to `reload` before
        #: anything is shown.
        self.to_reload: set[Key] = set()
        self._states: dict[str, _State[Any]] = {
            fold.name: _State(fold, self.to_reload) for fold in folds
        }
        self._each = tuple(self._states.values())

    def apply(self, fact: Fact) -> None:
        """The next fact of the log; or any other one, in which case nothing is shown of it before
        it is the next.
        """
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

    def rows(self, fold: Projection[Any]) -> Iterator[ProjectedRow]:
        """What is shown of the things in hand, by key."""
        found = [fold.row(thing) for thing in self._states[fold.name].things.values()]
        return iter(sorted((row for row in found if row), key=attrgetter("key")))

    def row(self, fold: Projection[Any], slot: Slot) -> ProjectedRow | None:
        """What is shown of the thing that a slot is about; None: nothing, or it is not in hand."""
        key = fold.key(slot)
        thing = self._states[fold.name].things.get(key) if key else None
        return fold.row(thing) if thing else None

    def things[T: Aggregate](self, fold: Projection[T]) -> Iterator[T]:
        """The things in hand."""
        return iter(self._states[fold.name].things.values())

    def evicted[T: Aggregate](self, fold: Projection[T]) -> list[T]:
        """The things that were let go since this was last asked."""
        state = self._states[fold.name]
        ended, state.evicted = state.evicted, []
        return ended

    def reloaded[T: Aggregate](self, fold: Projection[T]) -> list[T]:
        """The things as they were let go that are in hand again, since this was last asked."""
        state = self._states[fold.name]
        recalled, state.reloaded = state.reloaded, []
        return recalled

    def reload(self, facts: Iterable[Fact]) -> None:
        """Take in what was read again; facts that this state has not come to yet are passed
        over.
        """
        known = [fact for fact in facts if fact.seq <= self.seq]
        self.to_reload.clear()
        for state in self._each:
            state.reload(known)

    def _step(self, fact: Fact) -> None:
        if not fact.slot.workspace:  # not a slot of the ledger
            return
        for state in self._each:
            state.apply(fact)


class _State[T: Aggregate]:
    """The things in hand of one projection."""

    def __init__(self, fold: Projection[T], wanted: set[Key]) -> None:
        self._fold = fold
        self._wanted_by_any = wanted
        self._key = fold.key
        self.things: dict[Key, T] = {}
        #: Those at rest, the longest first.
        self._complete: dict[Key, None] = {}
        self.evicted: list[T] = []
        self.reloaded: list[T] = []
        #: What is to be recalled, and the fact with which it went on.
        self.to_reload: dict[Key, int] = {}

    def apply(self, fact: Fact) -> None:
        slot = fact.slot
        key = self._key(slot)
        if key is None or (
            self.to_reload and key in self.to_reload
        ):  # its facts are read again, this one too
            return
        thing = self.things.get(key)
        if thing is None:
            if not self._fold.begins(slot):
                if self._fold.resumes(slot):
                    self.to_reload[key] = fact.seq
                    self._wanted_by_any.add(key)
                return
            thing = self.things[key] = self._fold.begin()
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
        thing = self._fold.begin()
        for fact in facts:
            thing.apply(fact)
        return thing

    def _settle(self, key: Key, thing: T) -> None:
        if not thing.is_complete:
            self._complete.pop(key, None)
            return
        self._complete[key] = None
        while len(self._complete) > self._fold.keep_complete:
            longest = next(iter(self._complete))
            del self._complete[longest]
            self.evicted.append(self.things.pop(longest))
