"""Pairs calls with their results: for the writers and the checkers.

A wish and its outcome are two entries of a history, and two messages of most payloads. Providers
refuse half a pair. So writers take their pairs from `pair_turns`, and most checkers use
`CallPairing`. (Gemini's checker pairs by order and name, and a `UIMessage` holds a pair in one
part.)
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from ayes.projections.formats.common import Problems
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User
from ayes.schemas.content import words
from ayes.schemas.events import Wish


class PairedTurn(Struct, frozen=True):
    """A model's turn, and its pairs of a wish and an outcome."""

    assistant: Assistant
    outcomes: tuple[tuple[Wish, Outcome], ...]
    #: The turn including the wishes that lost their outcome: an opaque part before such a wish is
    #: lost with it.
    given: Assistant

    def mint_ids(self, used: set[str], valid: Callable[[str], bool]) -> dict[str, str]:
        """The provider's ids of the calls that have an outcome, by our own, as `mint_call_id`."""
        return {
            outcome.call: mint_call_id(outcome.call, outcome.provider_id, used, valid)
            for _wish, outcome in self.outcomes
        }


def pair_turns(entries: Sequence[Entry]) -> Iterator[System | User | Note | PairedTurn]:
    """The entries, each turn with its outcomes.

    `history` never separates them, but a program that shortens a history may. Half a pair is not
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
                yield Note(f"An earlier call of `{tool}` ended so: {words(text)}")
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


def mint_call_id(call: str, provider_id: str, used: set[str], valid: Callable[[str], bool]) -> str:
    """The provider's own id if it is valid and unused, otherwise one made of the call's.

    Adds it to `used`. The same calls in the same order get the same ids.
    """
    chosen = provider_id
    if not valid(chosen) or chosen in used:
        chosen = f"call_{call}"
    while chosen in used:
        chosen += "_"
    used.add(chosen)
    return chosen


class PairingRules(Struct, frozen=True):
    """A format's numbers and words for the mistakes in a pair.

    A rule that the format does not have is 0.
    """

    #: The rule that every call has a result.
    missing: int
    #: The rule that a result answers a call of its turn.
    stray: int
    #: The rule that a call is answered once.
    twice: int
    #: The place of a result, relative to its call.
    place: str
    #: The end of the sentence on a stray result: its right place, and the remedy.
    follows: str
    #: The rule that a result has the name of its call's tool.
    name: int = 0
    #: The format's word for a result.
    result: str = "result"


class CallPairing(Problems):
    """Pairs the calls and the results of a payload, while its checker goes through the messages.

    A turn's calls are open until it ends.
    """

    def __init__(self, rules: PairingRules) -> None:
        super().__init__()
        self._rules = rules
        #: The ids of all calls so far.
        self.used: set[str] = set()
        #: The message and the tool of each call of this turn.
        self.turn: dict[str, tuple[int, str]] = {}
        self._answered: set[str] = set()

    def add_call(self, id_: str, tool: str = "") -> None:
        """Add a call of this turn, from this message."""
        self.used.add(id_)
        first, _tool = self.turn.get(id_, (self.at, ""))
        self.turn[id_] = (first, tool)

    def add_result(self, id_: str, *, tool: str = "", elsewhere: bool = False) -> None:
        """Check one result, of this message.

        Args:
            tool: its tool's name, if the format has one. Without a rule about names, a result with
                another name answers another call.
            elsewhere: its call may be in a part of the conversation that the provider keeps.
        """
        rules, result = self._rules, self._rules.result
        called = tool if elsewhere else None
        if id_ in self.turn:
            _at, called = self.turn[id_]
        if called is None or (called != tool and not rules.name):
            wrong = f"the {result} of {id_!r} does not follow {rules.follows}"
            self.add(rules.stray, f"{wrong}, or drop it.")
        elif id_ in self._answered:
            self.add(rules.twice, f"{id_!r} is answered twice. Keep one {result}.")
        if rules.name and called is not None and called != tool:
            wrong = f"{id_!r} calls {called!r} and is answered as {tool!r}."
            self.add(rules.name, f"{wrong} Use one name.")
        self._answered.add(id_)

    def end_turn(self) -> None:
        """Report the calls of the turn that have no result, each at its own message."""
        for id_, (at, _tool) in self.turn.items():
            if id_ not in self._answered:
                wrong = f"{id_!r} has no {self._rules.result} {self._rules.place}."
                more = "Wait for it, and send the turn whole."
                self.add(self._rules.missing, f"{wrong} {more}", at)
        self.turn, self._answered = {}, set()
