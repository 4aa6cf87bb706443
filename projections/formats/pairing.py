"""Pairs calls with their results: for the writers, the checkers and the readers.

A wish and its outcome are two entries of a history, and two messages of most payloads. Providers
refuse half a pair. So each writer takes the pairs that `pair_turns` gives, most checkers leave the
pairs to `CallPairing`, and most readers to `PairedSteps`. (Gemini's checker pairs by order and
name, a `UIMessage` holds a pair in one part, and a recording is in order: `conversation`.)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from ayes.projections.formats.common import Problems
from ayes.projections.formats.conversation import ConversationStep, Output, RecordedReply, Spoken
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.events import Wish


class PairedTurn(Struct, frozen=True):
    """A model's turn, each wish with its outcome."""

    assistant: Assistant
    outcomes: tuple[tuple[Wish, Outcome], ...]
    #: The turn as it was given, also with the wishes that have lost their outcome: an opaque part
    #: before such a wish goes with it.
    given: Assistant


def pair_turns(entries: Sequence[Entry]) -> Iterator[System | User | Note | PairedTurn]:
    """The entries, each turn with its outcomes.

    `history` never separates them, but a program that shortens a history may. Half a pair is never
    sent: a wish without its outcome is left out, and an outcome without its wish becomes a note.
    """
    at = 0
    while at < len(entries):
        entry = entries[at]
        at += 1
        match entry:
            case Assistant(turn=turn, parts=parts):
                wishes = [part for part in parts if isinstance(part, Wish)]
                outcomes: dict[str, Outcome] = {}
                while len(outcomes) < len(wishes) and at < len(entries):
                    following = entries[at]
                    if not isinstance(following, Outcome) or not following.call.startswith(
                        f"{turn}-"
                    ):
                        break
                    outcomes[following.call] = following
                    at += 1
                yield _pair_turn(entry, outcomes)
            case Outcome(tool=tool, text=text):
                yield Note(f"An earlier call of `{tool}` ended so: {text}")
            case _:
                yield entry


def _pair_turn(assistant: Assistant, outcomes: dict[str, Outcome]) -> PairedTurn:
    pairs: list[tuple[Wish, Outcome]] = []
    parts = []
    index = 0
    for part in assistant.parts:
        if isinstance(part, Wish):
            outcome = outcomes.get(f"{assistant.turn}-{index}")
            index += 1
            if outcome is None:
                continue
            pairs.append((part, outcome))
        parts.append(part)
    return PairedTurn(Assistant(assistant.turn, tuple(parts)), tuple(pairs), assistant)


def call_id(outcome: Outcome, used: set[str], valid: Callable[[str], bool]) -> str:
    """The id of a call that has its outcome, as `mint_call_id` gives it."""
    return mint_call_id(outcome.call, outcome.provider_id, used, valid)


def mint_call_id(call: str, provider_id: str, used: set[str], valid: Callable[[str], bool]) -> str:
    """The provider's own id if it is valid and not used yet, otherwise one made of the call's.

    Adds it to `used`. Calls that are given in the same order get the same ids.
    """
    chosen = provider_id
    if not valid(chosen) or chosen in used:
        chosen = f"call_{call}"
    while chosen in used:
        chosen += "_"
    used.add(chosen)
    return chosen


class PairingRules(Struct, frozen=True):
    """How a format numbers and words the mistakes that a pair can have.

    A rule that the format does not have is 0.
    """

    #: The rule that every call has a result.
    missing: int
    #: The rule that a result answers a call of its turn.
    stray: int
    #: The rule that a call is answered once.
    twice: int
    #: Where a result has to stand, seen from its call.
    place: str
    #: What a result has to follow, and what to do.
    follows: str
    #: The rule that a result has the name of its call's tool.
    name: int = 0
    #: The format's word for a result.
    result: str = "result"


class CallPairing:
    """Pairs the calls and the results of a payload, while its checker goes through the messages.

    A turn's calls wait for their results until the turn ends.
    """

    def __init__(self, rules: PairingRules, problems: Problems) -> None:
        self._rules = rules
        self._problems = problems
        #: The ids of all calls so far.
        self.used: set[str] = set()
        #: The calls of this turn: the message and the tool.
        self.turn: dict[str, tuple[int, str]] = {}
        self._answered: set[str] = set()

    def add_call(self, at: int, id_: str, tool: str = "") -> None:
        """A call of this turn, in the message at that index."""
        self.used.add(id_)
        first, _tool = self.turn.get(id_, (at, ""))
        self.turn[id_] = (first, tool)

    def add_result(self, at: int, id_: str, *, tool: str = "", elsewhere: bool = False) -> None:
        """One result.

        Args:
            at: the index of its message.
            tool: the name that it has, if the format asks for one. Without a rule about names, a
                result of another name answers another call.
            elsewhere: its call may be in a part of the conversation that the provider keeps.
        """
        rules, result = self._rules, self._rules.result
        called = tool if elsewhere else None
        if id_ in self.turn:
            _at, called = self.turn[id_]
        if called is None or (called != tool and not rules.name):
            wrong = f"the {result} of {id_!r} does not follow {rules.follows}"
            self._problems.add(rules.stray, at, f"{wrong}, or drop it.")
        elif id_ in self._answered:
            self._problems.add(rules.twice, at, f"{id_!r} is answered twice. Keep one {result}.")
        if rules.name and called is not None and called != tool:
            wrong = f"{id_!r} calls {called!r} and is answered as {tool!r}."
            self._problems.add(rules.name, at, f"{wrong} Use one name.")
        self._answered.add(id_)

    def end_turn(self) -> None:
        """Report the calls of the turn that have no result, each at the message that holds it."""
        for id_, (at, _tool) in self.turn.items():
            if id_ not in self._answered:
                wrong = f"{id_!r} has no {self._rules.result} {self._rules.place}."
                more = "Wait for it, and send the turn whole."
                self._problems.add(self._rules.missing, at, f"{wrong} {more}")
        self.turn, self._answered = {}, set()


class PairedSteps:
    """The steps that a reader has read: after each reply its outputs, in the order of its calls.

    What was said before all of these outputs had come stands after them.
    """

    def __init__(self, steps: Iterable[ConversationStep] = ()) -> None:
        self._steps = list(steps)
        #: The last reply's calls, and their outputs so far.
        self._turn: list[tuple[Wish, Output | None]] = []
        self._said: list[Spoken] = []

    @property
    def waiting(self) -> list[Wish]:
        """The last reply's calls that have no output yet."""
        return [wish for wish, output in self._turn if output is None]

    def add_reply(self, reply: RecordedReply) -> None:
        self._end_turn()
        self._steps.append(reply)
        self._turn = [(wish, None) for wish in reply.wishes]

    def add_output(self, output: Output) -> None:
        """The output of the first waiting call with its id."""
        ids = [wish.provider_id if known is None else None for wish, known in self._turn]
        at = ids.index(output.provider_id)
        self._turn[at] = (self._turn[at][0], output)

    def add_said(self, said: Spoken) -> None:
        self._said.append(said)

    def finish(self) -> tuple[ConversationStep, ...]:
        """All steps. Every call must have its output."""
        self._end_turn()
        return tuple(self._steps)

    def _end_turn(self) -> None:
        assert not self.waiting, f"{self.waiting[0]} has no output"
        self._steps += [output for _wish, output in self._turn if output is not None]
        self._steps += self._said
        self._turn, self._said = [], []


def repeated_id(wishes: Sequence[Wish]) -> str | None:
    """The first id that two of the calls share; `None` if they share none."""
    ids = [wish.provider_id for wish in wishes]
    return next((id_ for id_ in ids if ids.count(id_) > 1), None)
