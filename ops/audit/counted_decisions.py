"""The decisions of a workspace's past from which rules can be learned, and why the others are none.

* Only what a rule of the workspace could spare: calls about which the policies in force would ask,
  by the workspace's own rules. Not those that nobody can undo, nor tools that govern or that no
  grant may cover.
* Only calls whose arguments have the schema that the tool has now: under another, the same name may
  mean something else.
* Equal calls of one tool in one conversation are one wish. It was not approved if any of them was
  not, whatever people said of the others.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

from ayes.ledger.judging.policies import Policies
from ayes.ops.audit.backtest import Backtest, Beside, CandidateVerdict
from ayes.ops.audit.past_calls import AGAINST, PastCall
from ayes.schemas import strict_json
from ayes.schemas.policy import NO_RULE_NAME, Policy, Rule

WEEK: Final = timedelta(days=7)

#: Why a decision does not count: its tool; the policies in force, which would not ask, or of which
#: the organisation's asks; another schema of the tool by now; how people decided, as in `Said`; or
#: that it is one of several about equal calls of a conversation.
type LeftOut = Literal[
    "irreversible",
    "governs",
    "never_grant",
    "not_asked_now",
    "organisation",
    "schema",
    "quick",
    "confirmed",
    "glass_broken",
    "undecided",
    "retry",
]


class Decisions(Struct, frozen=True):
    """Decisions of people that count."""

    calls: int
    #: As they were asked for.
    approved: int


class CountedDecisions:
    """Calls are named by their places among all calls.

    Args:
        calls: of one workspace, in the order of their requests.
        policies: those in force there.
    """

    def __init__(self, calls: Sequence[PastCall], policies: Policies) -> None:
        self.calls = calls
        self.own = policies.workspace.policy
        self._policies = policies
        trial = self.trial(self.own)
        #: What the policies in force say of each call.
        self.verdicts = [trial.by_policies(one.wished) for one in calls]
        self.questions = [place for place, one in enumerate(calls) if one.said != "unasked"]
        self.of_tool: dict[str, list[int]] = defaultdict(list)
        for place, one in enumerate(calls):
            self.of_tool[one.wished.tool].append(place)
        self._rules = {one.name: one for one in self.own.rules}
        self._schemas: dict[str, object] = {}
        self.left_out: Counter[LeftOut] = Counter()
        #: By tool, why questions about it do not count; None: some do.
        self.whys: dict[str, set[LeftOut | None]] = defaultdict(set)
        #: The decisions that count, and whether each was against the call.
        self.against = self._counted()
        #: The first time of the newer ones; None: there are too few to divide them.
        self.newer_from = _middle([calls[place].at for place in self.against])
        #: The decisions that count by tool, in the order of their requests.
        self.places: dict[str, list[int]] = defaultdict(list)
        for place in self.against:
            self.places[calls[place].wished.tool].append(place)

    def trial(self, policy: Policy) -> Backtest:
        """A backtest of this policy as the workspace's."""
        return Backtest(policy, Beside(self._policies.organisation.policy))

    def is_older(self, place: int) -> bool:
        """Whether it is one of the decisions by which rules are chosen."""
        return self.newer_from is not None and self.calls[place].at < self.newer_from

    def counts(self, tool: str) -> tuple[int, int]:
        """The older and the newer decisions about a tool."""
        places = self.places[tool]
        older = sum(map(self.is_older, places))
        return older, len(places) - older

    def decisions(self, places: Iterable[int]) -> Decisions:
        """How people decided about these calls."""
        against = [self.against[place] for place in places]
        return Decisions(len(against), len(against) - sum(against))

    def _counted(self) -> dict[int, bool]:
        """The decisions that count; of equal calls of one conversation the first."""
        found: dict[int, bool] = {}
        first: dict[tuple[str, str, str], int] = {}
        for place in self.questions:
            one = self.calls[place]
            why = self._unfit(one, self.verdicts[place])
            self.whys[one.wished.tool].add(why)
            if why is not None:
                self.left_out[why] += 1
                continue
            wish = (one.wished.thread, one.wished.tool, one.wished.arguments)
            is_against = one.said in AGAINST
            if (earlier := first.setdefault(wish, place)) != place:
                self.left_out["retry"] += 1
                found[earlier] |= is_against
            else:
                found[place] = is_against
        return found

    def _unfit(self, one: PastCall, verdict: CandidateVerdict) -> LeftOut | None:
        """Why the decision about a call does not count; None if it does."""
        wished = one.wished
        is_dead = self.calls[self.of_tool[wished.tool][-1]].wished.tool_class == "irreversible"
        if wished.tool_class == "irreversible" or is_dead:
            return "irreversible"
        if wished.governs:
            return "governs"
        if not self._policies.grantable(wished.tool):
            return "never_grant"
        if verdict.outcome != "asked" or verdict.uncertain:
            return "not_asked_now"
        if self.rule(verdict.rule) is None and verdict.rule != NO_RULE_NAME:
            return "organisation"
        if self._schema(one) is None or self._schema(one) != self._schema(
            self.calls[self.of_tool[wished.tool][-1]]
        ):
            return "schema"
        match one.said:
            case "quick" | "confirmed" | "glass_broken" | "undecided":
                return one.said
            case _:
                return None

    def rule(self, name: str) -> Rule | None:
        """The rule of the workspace's policy with this name. Those of the organisation's have
        another form in a verdict.
        """
        return self._rules.get(name)

    def _schema(self, one: PastCall) -> object:
        """What its schema says, however it is written."""
        if one.schema is None:
            return None
        if one.schema not in self._schemas:
            try:
                self._schemas[one.schema] = strict_json.read(one.schema)
            except strict_json.BadJson:
                self._schemas[one.schema] = one.schema
        return self._schemas[one.schema]


def _middle(times: Sequence[datetime]) -> datetime | None:
    """The end of a week that halves the times best; or the middle one, if no week leaves a third of
    them on both sides. None: they cannot be divided.
    """
    ordered = sorted(times)
    if not ordered or ordered[0] == ordered[-1]:
        return None
    newest, whole = ordered[-1], len(ordered)
    ends = [newest - number * WEEK for number in range(1, (newest - ordered[0]) // WEEK + 1)]
    older = {end: sum(one < end for one in ordered) for end in ends}
    fair = [end for end in ends if whole <= 3 * older[end] <= 2 * whole]
    if not fair:
        return ordered[whole // 2]
    return min(fair, key=lambda end: abs(2 * older[end] - whole))
