"""The histories of a whole log: for each conversation, the entries that its model continues from.

A conversation is complete while its model has nothing to do: the last turn is answered, no call of
a turn is open, and nothing was said since or no model is to be asked again. A service that answers
by itself, without a model of ours, has nothing to do that we know of. Only facts that concern the
model count: the calls of a service with its own loop, in a thread that was never opened, make no
history.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import SETTLED
from ayes.projections import history as histories
from ayes.projections.calls import SETTLING, call_in
from ayes.projections.fold import Key, ProjectedRow, Projection
from ayes.projections.thread import Thread, goes_on, thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import Slot


class ThreadFacts:
    """The facts of a thread, in the order of the log."""

    def __init__(self, stops: Sequence[Fact] = ()) -> None:
        self._stops = stops
        self.facts: list[Fact] = []
        self._last_turn = 0
        self._most_turns = 0
        self._cut = 0
        #: Sequence of the last message that the model should answer, and of the last by a user.
        self._heard = self._user_heard = 0
        #: Whether the last turn is claimed and not answered, and whether its reply has wishes.
        self._asked = self._wished = False
        #: The facts of each call; and the settled calls, until another fact about them comes.
        self._calls: defaultdict[str, list[Fact]] = defaultdict(list)
        self._settled_as: dict[str, Call] = {}
        #: The calls of wishes that are not settled.
        self._waiting: set[str] = set()
        self._settled: set[str] = set()
        #: Turns after which the model does not go on by itself.
        self._halted: set[str] = set()

    @property
    def is_complete(self) -> bool:
        if self._asked or self._waiting:
            return False
        return self._last_turn >= self._most_turns or not goes_on(
            wished=self._wished,
            halted=str(self._last_turn) in self._halted,
            cut=self._cut,
            heard=self._heard,
            user_heard=self._user_heard,
        )

    def apply(self, fact: Fact) -> None:
        self.facts.append(fact)
        match fact.slot.tail:
            case ("call", call, *_):
                self._calls[call].append(fact)
                if call in self._settled_as:
                    del self._settled_as[call]
                if call not in self._settled and isinstance(fact.event, SETTLING):
                    self._settle(call)
            case ("turn", number, "asked", "1") if int(number) > self._last_turn:
                if isinstance(fact.event, e.ModelAsked):
                    self._last_turn, self._cut, self._asked = int(number), fact.seq, True
            case ("turn", number, "replied"):
                is_newer = isinstance(fact.event, e.Carried) and not fact.event.problem
                if not is_newer:
                    self._replied(int(number), fact.seq, fact.event)
            case ("said", _):
                if isinstance(fact.event, e.Said) and fact.event.role != "system":
                    self._heard = fact.seq
                    self._user_heard = fact.seq if fact.event.role == "user" else self._user_heard
            case ("opened",):
                if isinstance(fact.event, e.ThreadOpened):
                    self._most_turns = fact.event.max_turns if fact.event.model else 0
            case _:
                pass

    def _settle(self, call: str) -> None:
        """Mark a call as settled, unless its end is void."""
        found = call_in(self._calls[call], self._stops)
        if found.status in SETTLED:
            self._settled.add(call)
            self._settled_as[call] = found
            self._waiting.discard(call)
            if found.halts:
                self._halted.add(call.partition("-")[0])

    @property
    def thread(self) -> Thread:
        """The thread made of the facts."""
        ref = self.facts[0].slot.thread_ref
        return thread_of(ref, (*self.facts, *self._stops), self._settled_as)

    def _replied(self, number: int, seq: int, event: object) -> None:
        parts = event.parts if isinstance(event, e.ModelReplied) else ()
        wishes = [part for part in parts if isinstance(part, e.Wish)]
        self._waiting |= {f"{number}-{index}" for index in range(len(wishes))} - self._settled
        if number > self._last_turn:
            # A service that does not claim its turns: the reply is its own cut.
            self._last_turn, self._cut = number, seq
        if number == self._last_turn:
            self._asked, self._wished = False, bool(wishes)


def _key(slot: Slot) -> Key | None:
    return (slot.workspace, slot.thread) if slot.thread else None


def _row(conversation: ThreadFacts) -> ProjectedRow | None:
    thread = conversation.thread
    found = histories.history(thread)
    value = {"entries": found.entries, "stopped_at": found.stopped_at and str(found.stopped_at)}
    return ProjectedRow(f"{thread.ref.workspace}.{thread.ref.thread}", _encoder.encode(value))


_encoder: Final = msgspec.json.Encoder()

HISTORIES: Final = Projection[ThreadFacts](
    name="histories",
    key=_key,
    begin=ThreadFacts,
    begins=lambda slot: slot.tail[0] == "opened",
    # Facts about a call after its conversation is complete are never shown to the model.
    resumes=lambda slot: slot.tail[0] in {"said", "turn"},
    row=_row,
    # A conversation has many more facts than a call, and reloading one costs about as much as
    # folding it did. So a few hundred are kept: as many as may be active at the same time.
    keep_complete=256,
)
