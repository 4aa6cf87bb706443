"""Rules that would have decided as people did, with a bound on how often they would not have.

    suggest(calls, policies)      of past calls with people's decisions, in the order of the log

`past_calls.py` says which decisions count, and `rule_candidates.py` which rules are tried. The
rules of this file:

* **Chosen on the older decisions, stated on the newer ones**, at which nobody has looked before.
  The two meet between two weeks, where there are about as many on both sides.
* **The bounds of all candidates that reach the newer decisions hold together**: each is stated with
  a share of the doubt (Bonferroni), so what is suggested can be chosen by them. A candidate may be
  dropped before that by the calls, but not by what was decided of the newer ones.
* **A candidate covers what its rule allows**, beside the policies in force: each call is judged by
  a backtest of the policy with the rule. A rule that would let run what is blocked now is dropped.
* **Retries count once**: equal calls of one tool in one conversation are one wish, which was not
  approved if any of them was not.
* Nothing is suggested for calls that nobody can undo, for tools that govern or that no grant may
  cover, nor about what the organisation asks.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from ayes.ledger.judging.policies import Policies
from ayes.ops.audit.call_properties import Facts, set_of
from ayes.ops.audit.candidate_search import Demands, best
from ayes.ops.audit.counted_decisions import WEEK, CountedDecisions, Decisions, LeftOut
from ayes.ops.audit.past_calls import PastCall
from ayes.ops.audit.rule_candidates import (
    Number,
    RuleCandidate,
    RuleText,
    Value,
    rule_toml,
)
from ayes.ops.audit.shares import fewest, rising, upper_bound
from ayes.schemas.errors import BadFile
from ayes.schemas.policy import NO_RULE_NAME, read_policy
from ayes.schemas.tools import CLASSES

#: Candidates that reach the newer decisions.
MAX_CARRIED: Final = 5
#: Tries for one of them.
_MAX_TRIES: Final = 20
_MAX_PRIORITY: Final = 1000

#: Fewer show no drift, and more are of another time.
_FEWEST_WEEKS: Final = 4
_MOST_WEEKS: Final = 26
#: The probability with which weeks without a drift are said to have one.
_BY_CHANCE: Final = 0.05
#: Properties of which a suggestion says what it has not seen.
_MAX_SEEN: Final = 8


class Terms(Struct, frozen=True):
    """What a suggestion must reach."""

    #: The probability with which all bounds that are stated hold.
    confidence: float = 0.95
    #: The highest bound that is suggested.
    at_most: float = 0.05


class SeenProperty(Struct, frozen=True):
    """What the approved calls have of a property that the rule leaves open."""

    #: As a condition reads it, such as `args.amount`.
    where: str
    #: The lowest and the highest number; None: the rule has that bound, or these are no numbers.
    least: Number | None = None
    most: Number | None = None
    #: The values, if they are no numbers.
    values: tuple[Value, ...] = ()


class WeeklyDrift(Struct, frozen=True):
    """A number whose extreme goes further from week to week."""

    where: str
    #: Whether it is the highest of each week that rises; else the lowest falls.
    rises: bool
    #: The extreme of each week, the oldest first.
    weekly: tuple[Number, ...]


class Suggestion(Struct, frozen=True, kw_only=True):
    """A rule, and what is known of it."""

    #: The rule's name.
    name: str
    tool: str
    #: The rule as it stands in a policy file, without effect.
    toml: str
    #: By which it was chosen.
    older: Decisions
    #: By which it is judged.
    newer: Decisions
    #: The conversations of these.
    threads: int
    #: The bound of the share that people would not have approved.
    denied_at_most: float
    #: The newer questions that it spares, and their share of all newer questions.
    spared: int
    spared_share: float
    #: The newer questions among these that nobody decided.
    undecided: int
    #: What it has not seen is all else.
    seen: tuple[SeenProperty, ...]
    drifts: tuple[WeeklyDrift, ...]
    #: The rules that ask about these calls now; `no rule` if none does.
    asked_by: tuple[str, ...]
    #: Further rules of the policy, above which it would stand.
    above: tuple[str, ...]


class Rejected(Struct, frozen=True):
    """A candidate that the newer decisions do not bear out."""

    name: str
    newer: Decisions
    denied_at_most: float


#: Why nothing is suggested about a tool: no call of it can be undone; it can change policies; no
#: grant may cover it; too few decisions count; or no small rule fits them.
type NoRule = Literal["irreversible", "governs", "never_grant", "too_few", "no_rule"]


class Without(Struct, frozen=True):
    """A tool about which nothing is suggested."""

    tool: str
    why: NoRule
    #: Decisions about it that count.
    older: int
    newer: int


class Suggestions(Struct, frozen=True, kw_only=True):
    """What people decided in a workspace, and the rules that it suggests."""

    #: The questions to people, of all calls.
    questions: int
    #: Those of which the decision counts, by which rules are chosen and judged.
    older: Decisions
    newer: Decisions
    #: When the newer ones begin; None: there are too few decisions to divide them.
    newer_from: datetime | None
    #: The number of newer questions, counted or not.
    newer_questions: int
    confidence: float
    at_most: float
    #: The rules that were tried on the newer decisions, for which all bounds are corrected.
    tried: int
    #: Those that spare the most first.
    suggestions: tuple[Suggestion, ...]
    rejected: tuple[Rejected, ...]
    #: Why the other questions do not count, and how many.
    left_out: dict[LeftOut, int]
    #: Tools that people were asked about.
    without: tuple[Without, ...]
    #: The fewest decisions about a tool that can say anything.
    fewest: int


def suggest(
    calls: Sequence[PastCall], policies: Policies, terms: Terms | None = None
) -> Suggestions:
    """The rules that a workspace's past suggests for its policy.

    Args:
        calls: of the workspace, in the order of their requests.
        policies: those in force there.
    """
    return _Work(calls, policies, terms or Terms()).suggestions()


class _Carried(NamedTuple):
    """A candidate that reaches the newer decisions."""

    candidate: RuleCandidate
    text: RuleText
    #: The places of the calls that its rule would have allowed.
    allowed: frozenset[int]
    asked_by: tuple[str, ...]


class _Work:
    """The calls are named by their places among all calls."""

    def __init__(self, calls: Sequence[PastCall], policies: Policies, terms: Terms) -> None:
        self.past, self.terms = CountedDecisions(calls, policies), terms
        self.fewest = fewest(terms.at_most, terms.confidence)
        self.facts: dict[str, Facts] = {}

    # ---------------------------------------------------------------------------- the choice

    def suggestions(self) -> Suggestions:
        without = self._prepared()
        carried = self._corrected(self._carried())
        tried = [self._stated(one, len(carried)) for one in carried]
        good = [one for one in tried if one.denied_at_most <= self.terms.at_most]
        good.sort(key=lambda one: (-one.spared, one.name))
        for tool in self.past.places:
            if all(one.tool != tool for one in good):
                without.setdefault(tool, "no_rule")
        newer = [place for place in self.past.questions if not self.past.is_older(place)]
        return Suggestions(
            questions=len(self.past.questions),
            older=self.past.decisions(filter(self.past.is_older, self.past.against)),
            newer=self.past.decisions(
                one for one in self.past.against if not self.past.is_older(one)
            ),
            newer_from=self.past.newer_from,
            newer_questions=len(newer),
            confidence=self.terms.confidence,
            at_most=self.terms.at_most,
            tried=len(tried),
            suggestions=tuple(good),
            rejected=tuple(
                Rejected(one.name, one.newer, one.denied_at_most)
                for one in tried
                if one.denied_at_most > self.terms.at_most
            ),
            left_out=dict(self.past.left_out.most_common()),
            without=tuple(
                Without(tool, why, *self.past.counts(tool)) for tool, why in sorted(without.items())
            ),
            fewest=2 * self.fewest,
        )

    def _prepared(self) -> dict[str, NoRule]:
        """Find the facts of each tool of which enough is known; why not, of the others."""
        found: dict[str, NoRule] = {}
        for tool, whys in sorted(self.past.whys.items()):
            match [*whys]:
                case ["irreversible" | "governs" | "never_grant" as why]:
                    found[tool] = why
                    continue
                case _ if min(self.past.counts(tool)) < self.fewest:
                    found[tool] = "too_few"
                    continue
                case _:
                    pass
            places = self.past.places[tool]
            older = [self.past.is_older(place) for place in places]
            self.facts[tool] = Facts(
                [self.past.calls[place] for place in places],
                older,
                [self.past.against[place] for place in places],
                [self.past.calls[place] for place in self.past.of_tool[tool]],
            )
        return found

    def _carried(self) -> list[_Carried]:
        """The candidates that spare the most, one after the other."""
        demands = Demands(self.terms.at_most, self.terms.confidence, self.fewest, self.fewest)
        fresh = {tool: facts.older | facts.newer for tool, facts in self.facts.items()}
        banned: set[RuleCandidate] = set()
        found = {tool: best(self.facts[tool], fresh[tool], demands) for tool in self.facts}
        carried: list[_Carried] = []
        for _ in range(_MAX_TRIES):
            scored = [(one[0], tool, one[1]) for tool, one in found.items() if one is not None]
            if not scored or len(carried) == MAX_CARRIED:
                break
            _, tool, candidate = max(scored, key=lambda one: one[0])
            names = {one.text.name for one in carried}
            if (one := self._tried_on_the_past(candidate, names)) is not None:
                carried.append(one)
                fresh[tool] &= ~self.facts[tool].covered(candidate)
            banned.add(candidate)
            found[tool] = best(self.facts[tool], fresh[tool], demands, banned)
        return carried

    def _tried_on_the_past(self, candidate: RuleCandidate, taken: set[str]) -> _Carried | None:
        """The candidate as a rule with what it would have allowed; None: it would override what
        blocks, nothing comes above the rules that ask, or no policy takes the rule.
        """
        facts, places = self.facts[candidate.tool], self.past.places[candidate.tool]
        flags = facts.flags(facts.covered(candidate))
        within = [place for place, flag in zip(places, flags, strict=True) if flag]
        asking = [
            self.past.rule(name) for name in {self.past.verdicts[place].rule for place in within}
        ]
        rules = [one for one in asking if one is not None]
        priority = max((one.priority + 1 for one in rules), default=0)
        if priority > _MAX_PRIORITY:
            return None
        classes = {self.past.calls[place].wished.tool_class for place in within}
        name = _free(str(candidate), {*taken, *(one.name for one in self.past.own.rules)})
        text = RuleText(name, tuple(one for one in CLASSES if one in classes), priority)
        try:
            read = read_policy(rule_toml(candidate, facts.condition(candidate), text), name)
        except BadFile:  # such as a condition that is too long
            return None
        rule = read.rules[0].model_copy(update={"shadow": False})
        trial = self.past.trial(self.past.own.with_rule(rule))
        allowed = set()
        # Of the decisions that count, the others have not what the rule asks for.
        uncounted = (
            place for place in self.past.of_tool[candidate.tool] if place not in self.past.against
        )
        for place in (*within, *uncounted):
            verdict = trial.by_policies(self.past.calls[place].wished)
            if verdict.outcome == "allowed" and verdict.rule == name:
                if self.past.verdicts[place].outcome == "blocked":
                    return None
                allowed.add(place)
        names = tuple(sorted(one.name for one in rules)) or (NO_RULE_NAME,)
        return _Carried(candidate, text, frozenset(allowed), names)

    def _corrected(self, carried: list[_Carried]) -> list[_Carried]:
        """Those of which there are enough newer decisions, by their number alone, for bounds that
        hold for all of them together.
        """
        while carried:
            least = min(carried, key=lambda one: sum(1 for _ in self._newer_of(one)))
            needed = fewest(self.terms.at_most, _shared(self.terms.confidence, len(carried)))
            if sum(1 for _ in self._newer_of(least)) >= needed:
                break
            carried = [one for one in carried if one is not least]
        return carried

    def _newer_of(self, one: _Carried) -> Iterator[int]:
        places = self.past.places[one.candidate.tool]
        return (place for place in places if place in one.allowed and not self.past.is_older(place))

    # ---------------------------------------------------------------------------- the statement

    def _stated(self, one: _Carried, tried: int) -> Suggestion:
        tool = one.candidate.tool
        covered = [place for place in self.past.places[tool] if place in one.allowed]
        newer = [place for place in covered if not self.past.is_older(place)]
        stated = self.past.decisions(newer)
        confidence = _shared(self.terms.confidence, tried)
        questions = [place for place in self.past.questions if not self.past.is_older(place)]
        spared = [
            place
            for place in questions
            if place in one.allowed and self.past.verdicts[place].outcome == "asked"
        ]
        first, last = self.past.calls[newer[0]].at, self.past.calls[newer[-1]].at
        text = one.text._replace(
            reason=f"People approved {stated.approved:,} of {stated.calls:,} such calls from "
            f"{first:%Y-%m-%d} to {last:%Y-%m-%d}."
        )
        approved = [place for place in covered if not self.past.against[place]]
        return Suggestion(
            name=text.name,
            tool=tool,
            toml=rule_toml(one.candidate, self.facts[tool].condition(one.candidate), text),
            older=self.past.decisions(filter(self.past.is_older, covered)),
            newer=stated,
            threads=len({self.past.calls[place].wished.thread for place in newer}),
            denied_at_most=upper_bound(stated.calls - stated.approved, stated.calls, confidence),
            spared=len(spared),
            spared_share=len(spared) / len(questions),
            undecided=sum(self.past.calls[place].said == "undecided" for place in spared),
            seen=tuple(self._seen(one.candidate, approved))[:_MAX_SEEN],
            drifts=tuple(self._drifts(one.candidate)),
            asked_by=one.asked_by,
            above=tuple(self._above(one)),
        )

    def _above(self, one: _Carried) -> Iterator[str]:
        for rule in self.past.own.about(one.candidate.tool):
            if (
                not rule.shadow
                and rule.then != "allow"
                and rule.priority < one.text.priority
                and rule.name not in one.asked_by
            ):
                yield rule.name

    def _seen(self, candidate: RuleCandidate, approved: Sequence[int]) -> Iterator[SeenProperty]:
        facts = self.facts[candidate.tool]
        places = self.past.places[candidate.tool]
        found = {*approved}
        bound = candidate.bound
        for where, numbers in facts.numbers.items():
            values = [value for value, index in numbers if places[index] in found]
            if values:
                bounded = bound.is_most if bound is not None and bound.where == where else None
                least = None if bounded is False else values[0]
                yield SeenProperty(str(where), least, None if bounded else values[-1])
        fixed = {one.where for one in candidate.parts}
        within = set_of(index for index, place in enumerate(places) if place in found)
        for where, sets in facts.values.items():
            values_seen = tuple(value for value, calls in sets.items() if calls & within)
            if values_seen and where not in fixed:
                yield SeenProperty(str(where), values=tuple(sorted(values_seen, key=str)))

    def _drifts(self, candidate: RuleCandidate) -> Iterator[WeeklyDrift]:
        """How far each week went in what people approved, whether or not the bound covers it."""
        facts = self.facts[candidate.tool]
        places = self.past.places[candidate.tool]
        bound = candidate.bound
        within = facts.flags(facts.covered(candidate._replace(bound=None)))
        for where in [bound.where] if bound is not None else facts.numbers:
            rises = bound is None or bound.is_most
            weekly = self._weekly(
                (self.past.calls[places[index]].at, value)
                for value, index in facts.numbers[where]
                if within[index] and not self.past.against[places[index]]
            )
            extremes = tuple(max(week) if rises else min(week) for week in weekly)
            upwards = [value if rises else -value for value in extremes]
            if len(weekly) >= _FEWEST_WEEKS and rising(upwards) <= _BY_CHANCE:
                yield WeeklyDrift(str(where), rises, extremes)

    def _weekly(self, numbers: Iterable[tuple[datetime, Number]]) -> list[list[Number]]:
        """The numbers of each of the last weeks that has any, the oldest first."""
        end = max(self.past.calls[place].at for place in self.past.against)
        weeks: dict[int, list[Number]] = defaultdict(list)
        for at, value in numbers:
            if (ago := (end - at) // WEEK) < _MOST_WEEKS:
                weeks[ago].append(value)
        return [weeks[ago] for ago in sorted(weeks, reverse=True)]


def _shared(confidence: float, among: int) -> float:
    """The confidence of each of several bounds that hold together with this one."""
    return 1 - (1 - confidence) / max(1, among)


def _free(name: str, taken: set[str]) -> str:
    """The name, or the first of its kind that is free."""
    if name not in taken:
        return name
    return next(
        one for number in range(2, len(taken) + 3) if (one := f"{name} ({number})") not in taken
    )
