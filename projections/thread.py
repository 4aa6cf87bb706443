"""One conversation: its messages, the model's turns, and the calls that came of them.

A thread *is* the facts recorded in it, each in its place, as a call is (`ledger/lifecycle.py`).
They may come twice and in any order: the same facts give the same thread.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from ayes.ledger.call import Call, Void
from ayes.ledger.lifecycle import SETTLED
from ayes.ledger.stops import Stop, stops_of
from ayes.ledger.validity import call_of, may_hold
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.slots import STOP, CallRef, ThreadRef


class Turn(Struct, frozen=True):
    """One request to the model and its reply. Turns count from 1."""

    number: int
    #: The claims, by attempt. A second one exists only if the first got no answer.
    asked: tuple[Fact, ...] = ()
    #: ModelReplied, ModelFailed, or bytes that are neither: they end the turn as well.
    replied: Fact | None = None

    @property
    def cut(self) -> int | None:
        """The model was sent the messages with a smaller sequence; None without claim and reply.

        It is the first claim, not the last: messages between two attempts come after the turn. A
        reply that was recorded without a claim (by a service with its own loop) is its own cut.
        """
        first = self.asked[0] if self.asked else self.replied
        return first.seq if first else None

    @property
    def reply(self) -> e.ModelReplied | None:
        """The model's reply; None if it failed or has not answered yet."""
        event = self.replied.event if self.replied else None
        return event if isinstance(event, e.ModelReplied) else None

    @property
    def wishes(self) -> tuple[e.Wish, ...]:
        """The wishes of the reply, in the model's order."""
        parts = self.reply.parts if self.reply else ()
        return tuple(part for part in parts if isinstance(part, e.Wish))


class Thread(Struct, frozen=True):
    """The facts about one conversation, each in its place."""

    ref: ThreadRef
    opened: Fact | None = None
    #: The messages in the order of the log, including bytes that are not a message.
    said: tuple[Fact, ...] = ()
    #: By number, ascending.
    turns: dict[int, Turn] = {}
    #: By call id, sorted. Includes the calls of a service with its own loop, under its own ids.
    calls: dict[str, Call] = {}
    #: Facts from the future and broken bytes. They are skipped, but a caller that continues the
    #: thread should know that something is missing.
    unread: tuple[Fact, ...] = ()
    #: The stops that hold in its workspace.
    stops: tuple[Stop, ...] = ()

    @property
    def latest(self) -> int:
        """The number of the last turn; 0 before the first."""
        return max(self.turns, default=0)

    def call(self, ref: CallRef) -> Call:
        """The call, of status UNKNOWN if nothing is recorded about it.

        The request of a wish rests on the reply that holds the wish. A request in its slot from
        before the reply is void, so the wish has no request.
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
        """The wishes of that turn, each with its call; empty without a reply."""
        if turn not in self.turns:
            return ()
        return tuple(
            (self.ref.wish(turn, index), wish) for index, wish in enumerate(self.turns[turn].wishes)
        )

    def unsettled(self, turn: int) -> tuple[CallRef, ...]:
        """The calls of that turn that the next turn waits for."""
        return tuple(ref for ref, _wish in self.wishes(turn) if not is_settled(self.call(ref)))

    @property
    def is_model_due(self) -> bool:
        """Whether the model that the thread was opened for is to be asked now.

        Not while it is asked already or a call of its last turn is open, and not after `max_turns`.
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
        """Whether a person stopped the model at a call of that turn."""
        return any(self.call(ref).halts for ref, _wish in self.wishes(turn))


def goes_on(*, wished: bool, halted: bool, cut: int, heard: int, user_heard: int) -> bool:
    """Whether the model continues after a turn whose calls are settled, or before the first.

    It continues with the results of its wishes, or after a new message. If a person halted it, only
    a message of a user makes it continue.

    Args:
        cut: the cut of the last turn; 0 before the first.
        heard: the sequence of the last message of a user or note; 0 without one.
        user_heard: the sequence of the last message of a user; 0 without one.
    """
    return user_heard > cut if halted else wished or heard > cut


def is_settled(call: Call) -> bool:
    """Whether the model reads the call's final result. A call in doubt waits for a person."""
    return call.status in SETTLED or is_spoiled(call)


def is_spoiled(call: Call) -> bool:
    """Whether something else fills the slot of its request, so that it can never run."""
    return call.requested is None and any(one.fact.slot == call.ref.requested for one in call.void)


def thread_of(ref: ThreadRef, facts: Iterable[Fact], known: Mapping[str, Call] = {}) -> Thread:
    """The thread made of these facts and the stops among them; all else is ignored.

    Args:
        known: calls by id that were made of the same facts before.
    """
    opened: Fact | None = None
    said: dict[str, Fact] = {}
    asked: dict[int, dict[str, Fact]] = defaultdict(dict)
    replied: dict[int, Fact] = {}
    calls: dict[str, list[Fact]] = defaultdict(list)
    unread: dict[int, Fact] = {}
    stopping: list[Fact] = []
    for fact in facts:
        at, event = fact.slot, fact.event
        if at.tail[0] == STOP:
            stopping.append(fact)
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
            call: known.get(call) or call_of(ref.call(call), (*calls[call], *stopping))
            for call in sorted(calls)
        },
        unread=_in_sequence(unread.values()),
        stops=stops_of(_in_sequence(stopping), ref.workspace) if stopping else (),
    )


def _in_sequence(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(sorted(facts, key=lambda fact: fact.seq))
