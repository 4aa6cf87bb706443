"""What facts add up to: how many of each type, the decisions, and how long these took.

    tally = FactCounts(seq=4711)
    for fact in facts:                      # from 4712 on
        tally.apply(fact, known)

It counts from a place in the log on, not from its beginning: a Prometheus counter may begin at 0,
and a log of ten million facts takes minutes to read. It holds sums, and nothing about any call. So
the caller passes the earlier facts about a call that is decided, read from the log: a call that
waited for three days counts in full, whenever this began.

Names in facts are chosen by others, so their number is bounded: a model names the tools it wishes
for, and these are not counted by name at all; policies name rules, of which the first
`MAX_RULES` are told apart.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

from ayes.ledger.call import mode_of
from ayes.ledger.validity import call_of, void
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.limits import cut

#: The number of rules that are told apart, and the bytes of a rule's name.
MAX_RULES: Final = 100
_LONGEST: Final = 100
#: In place of a rule's name: no rule was involved; one of those beyond `MAX_RULES`.
NO_RULE: Final = "(none)"
OTHER: Final = "(other)"
#: The type of a fact that this program cannot read.
UNKNOWN: Final = "unknown"
#: Upper bounds in seconds: a policy decides in milliseconds, people in minutes or days.
BOUNDS_S: Final = (
    0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0, 259_200.0, 604_800.0,
)  # fmt: skip

#: Who decided about a call: people, who were asked; or a policy or grant, so that nobody was.
type Asked = Literal["people", "nobody"]


class Histogram:
    """Durations, counted by `BOUNDS_S`."""

    def __init__(self) -> None:
        #: Those up to each bound and above the one before it; the last are above all bounds.
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s


class FactCounts:
    """The sums of the facts after a place in the log."""

    def __init__(self, seq: int = 0) -> None:
        #: The last fact that is counted.
        self.seq = seq
        #: By type, those that never occurred too.
        self.facts: Counter[str] = Counter(dict.fromkeys((*e.TYPES, UNKNOWN), 0))
        #: By verdict (`approved`, `expired`, ...) and rule; an approval of the requester's own is
        #: `confirmed`.
        self.decisions: Counter[tuple[str, str]] = Counter()
        #: From the request to the decision.
        self.durations: dict[Asked, Histogram] = {"people": Histogram(), "nobody": Histogram()}
        self._rules: set[str] = set()

    def apply(self, fact: Fact, known: Iterable[Fact] = ()) -> None:
        """Count the next fact of the log.

        Args:
            known: if `is_decision(fact)`, the request of its call and the question to people.
        """
        self.seq = fact.seq
        is_read = not isinstance(fact.event, e.Carried)
        self.facts[type(fact.event).__name__ if is_read else UNKNOWN] += 1
        if is_read and is_decision(fact):
            self._decided(fact, known)

    def _decided(self, fact: Fact, known: Iterable[Fact]) -> None:
        ref = fact.slot.call_ref
        assert ref, "a decision is about a call"
        call = call_of(ref, (*known, fact))
        if call.requested is None or void(call, fact) is not None:
            return
        was_asked = call.gated is not None and call.gated.seq < fact.seq
        asking = call.approval_request if was_asked else None
        rule = getattr(fact.event, "rule", "") or (asking.rule if asking else "")
        is_own = mode_of(fact.event) == "requester_confirms"
        verdict = "confirmed" if is_own else type(fact.event).__name__.lower()
        self.decisions[verdict, self._known_rule(rule)] += 1
        took = fact.recorded_at - call.requested.recorded_at
        self.durations["people" if asking else "nobody"].add(max(0.0, took.total_seconds()))

    def _known_rule(self, name: str) -> str:
        if not name:
            return NO_RULE
        name = cut(name, _LONGEST)
        if name not in self._rules and len(self._rules) >= MAX_RULES:
            return OTHER
        self._rules.add(name)
        return name


def is_decision(fact: Fact) -> bool:
    """Whether it is in the slot of a call's decision."""
    return fact.slot.call_ref is not None and fact.slot.tail[2:] == ("decided",)
