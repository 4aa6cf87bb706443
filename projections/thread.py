"""One conversation: what was said, the model's turns, and the calls that came of them.

A thread *is* the facts recorded in it, each in its place, as a call is (`ledger/lifecycle.py`).
They may come twice and in any order: the same facts give the same thread.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from ayes.ledger.lifecycle import SETTLED, Call, Void, call_of, may_hold
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import CallRef, ThreadRef


class Turn(Struct, frozen=True):
    """One time that the model was asked. Turns count from 1."""

    number: int
    #: The claims, by attempt: a second one stands only where the first never answered.
    asked: tuple[Fact, ...] = ()
    #: ModelReplied or ModelFailed; or bytes that are neither, after which the turn is over as well.
    replied: Fact | None = None

    @property
    def cut(self) -> int | None:
        """What was said with a smaller sequence is what the model was sent.

        It is the first claim, not the last: what is said between two attempts comes after the turn.
        A reply that was recorded without a claim (by a service with its own loop) is its own cut.
        None: neither stands yet.
        """
        first = self.asked[0] if self.asked else self.replied
        return first.seq if first else None

    @property
    def reply(self) -> e.ModelReplied | None:
        """What the model answered. None: it failed, or has not answered yet."""
        event = self.replied.event if self.replied else None
        return event if isinstance(event, e.ModelReplied) else None

    @property
    def wishes(self) -> tuple[e.Wish, ...]:
        """The tools that the reply wants called, in the model's order."""
        return (
            tuple(part for part in self.reply.parts if isinstance(part, e.Wish))
            if self.reply
            else ()
        )


class Thread(Struct, frozen=True):
    """The facts about one conversation, each in its place."""

    ref: ThreadRef
    opened: Fact | None = None
    #: In the order in which the broker recorded them. Bytes that are not a message stand among
    #: them.
    said: tuple[Fact, ...] = ()
    #: By number, ascending.
    turns: dict[int, Turn] = {}
    #: By call id, sorted. Calls of a service with its own loop stand here too, under ids of its
    #: choice.
    calls: dict[str, Call] = {}
    #: What this program cannot read: a fact from the future, or broken bytes. It is skipped here as
    #: everywhere, but whoever goes on from the thread should know that something is missing from
    #: it.
    unread: tuple[Fact, ...] = ()

    @property
    def latest(self) -> int:
        """The number of the last turn that was begun; 0 before the first."""
        return max(self.turns, default=0)

    def call(self, ref: CallRef) -> Call:
        """That call, of status UNKNOWN when nothing is recorded about it.

        A wish's request rests on the reply that wishes for it. What was requested in its place
        before the reply is another call, whatever became of it, and the wish has no request.
        """
        call = self.calls.get(ref.call)
        if call is None:
            return Call(ref)
        if call.requested is None or ref.wish is None:
            return call
        turn, index = ref.wish
        reply = self.turns[turn].replied if turn in self.turns else None
        if reply is None or reply.seq < call.requested.seq or index >= len(self.turns[turn].wishes):
            return call
        return Call(ref, void=(Void(call.requested, "the model had not wished for it before"),))

    def wishes(self, turn: int) -> tuple[tuple[CallRef, e.Wish], ...]:
        """What the model wished in that turn, each with the call that it becomes. Empty if it has
        not replied.
        """
        if turn not in self.turns:
            return ()
        return tuple(
            (self.ref.wish(turn, index), wish) for index, wish in enumerate(self.turns[turn].wishes)
        )

    def unsettled(self, turn: int) -> tuple[CallRef, ...]:
        """The calls of that turn which keep the next one waiting."""
        return tuple(ref for ref, _wish in self.wishes(turn) if not is_settled(self.call(ref)))

    @property
    def is_model_due(self) -> bool:
        """Is it the turn of the model that the thread was opened for?

        Not while it is asked or a call of its last turn waits, and not after `max_turns`.
        """
        opened = self.opened.event if self.opened else None
        if not isinstance(opened, e.ThreadOpened) or not opened.model:
            return False
        last = self.turns.get(self.latest, Turn(0))
        is_asked = last.number > 0 and last.replied is None
        if is_asked or last.number >= opened.max_turns or self.unsettled(last.number):
            return False
        said = [(fact.seq, fact.event) for fact in self.said]
        heard = [(seq, one.role) for seq, one in said if isinstance(one, e.Said)]
        return goes_on(
            wished=bool(last.wishes),
            halted=self.is_halted(last.number),
            cut=last.cut or 0,
            heard=max((seq for seq, role in heard if role != "system"), default=0),
            user_heard=max((seq for seq, role in heard if role == "user"), default=0),
        )

    def is_halted(self, turn: int) -> bool:
        """Did somebody deny a call of that turn so that the model does not go on by itself?"""
        decisions = [self.call(ref).decided for ref, _wish in self.wishes(turn)]
        return any(one and isinstance(one.event, e.Denied) and one.event.halt for one in decisions)


def goes_on(*, wished: bool, halted: bool, cut: int, heard: int, user_heard: int) -> bool:
    """Does the model go on after a turn whose calls are settled, or before the first?

    It does with the results of the calls that it wished for, or when something was said since.
    Where a person halted it, only what a user says makes it go on.

    Args:
        cut: the sequence from which on it was sent nothing; 0 before the first turn.
        heard: the sequence of the last thing said by a user or in a note; 0: nothing was.
        user_heard: the same, by a user.
    """
    return user_heard > cut if halted else wished or heard > cut


def is_settled(call: Call) -> bool:
    """Will the model be told nothing more about it? A call in doubt is not settled: it waits for a
    person.
    """
    return call.status in SETTLED or is_spoiled(call)


def is_spoiled(call: Call) -> bool:
    """Does something else stand in the place of its request? Then the call can never be requested,
    and so never runs.
    """
    return call.requested is None and any(one.fact.slot == call.ref.requested for one in call.void)


def thread_of(ref: ThreadRef, facts: Iterable[Fact], known: Mapping[str, Call] = {}) -> Thread:
    """The thread that these facts make; facts about anything else are passed over.

    Args:
        known: calls by id that were made of just these facts before, and need not be made again.
    """
    opened: Fact | None = None
    said: dict[str, Fact] = {}
    asked: dict[int, dict[str, Fact]] = defaultdict(dict)
    replied: dict[int, Fact] = {}
    calls: dict[str, list[Fact]] = defaultdict(list)
    unread: dict[int, Fact] = {}
    for fact in facts:
        at, event = fact.slot, fact.event
        if at.thread != ref.thread or at.workspace != ref.workspace:
            continue
        if type(event) is e.Carried:
            unread[fact.seq] = fact
        broken = type(event) is e.Carried and bool(event.problem)
        match at.tail:
            case ("call", call, place, *_) if may_hold(place, event):
                calls[call].append(fact)
            case ("turn", number, "asked", attempt) if isinstance(event, e.ModelAsked):
                asked[int(number)].setdefault(attempt, fact)
            case ("turn", number, "replied") if broken or isinstance(
                event, e.ModelReplied | e.ModelFailed
            ):
                replied.setdefault(int(number), fact)
            case ("said", message) if broken or isinstance(event, e.Said):
                said.setdefault(message, fact)
            case ("opened",) if isinstance(event, e.ThreadOpened):
                opened = opened or fact
            case _:
                pass
    return Thread(
        ref,
        opened=opened,
        said=_in_sequence(said.values()),
        turns={
            number: Turn(number, _in_sequence(asked[number].values()), replied.get(number))
            for number in sorted({*asked, *replied})
        },
        calls={
            call: known.get(call) or call_of(ref.call(call), calls[call]) for call in sorted(calls)
        },
        unread=_in_sequence(unread.values()),
    )


def _in_sequence(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(sorted(facts, key=lambda fact: fact.seq))
