"""The comparison of two policies by the solver z3; every call that it finds is judged by the gate's
own functions before it is shown.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec
import z3

from ayes.ledger.judging.policies import Policies
from ayes.ledger.judging.verdict import PolicyVerdict, policy_verdict
from ayes.ops.audit.backtest import CandidateCall, case_of, tool_of
from ayes.ops.policy_diff import values as v
from ayes.ops.policy_diff.difference import Answer, OpenedCall, PolicyDifference, Unproved
from ayes.ops.policy_diff.rules import bounded, judged, meaning, names_tool
from ayes.ops.policy_diff.search import USUAL, GaveUp, Requesters, Search, Steps
from ayes.ops.policy_diff.terms import TOOL, AnyCall, like
from ayes.ops.policy_diff.tools import Region, TooMany, matches, regions
from ayes.ops.policy_diff.values import Formula
from ayes.schemas import events as e
from ayes.schemas.policy import Policy, Rule

_USUAL_CLASS: Final = "irreversible"
_GAVE_UP: Final = "the solver finds no answer within its steps"


class _Sides(NamedTuple):
    """The rules about the tools of one region, of the four policies."""

    old: tuple[Rule, ...]
    new: tuple[Rule, ...]
    old_over: tuple[Rule, ...]
    new_over: tuple[Rule, ...]

    @property
    def all(self) -> tuple[Rule, ...]:
        return self.old + self.new + self.old_over + self.new_over

    @property
    def key(self) -> object:
        return tuple(map(meaning, self))


class _Known(NamedTuple):
    """Whom a policy knows who could not be a reviewer: everybody, or those with these accounts."""

    everybody: bool
    accounts: frozenset[str]


class _Open(NamedTuple):
    """A region in which the formula allows a call."""

    search: Search
    call: AnyCall
    sides: _Sides


def compare(
    old: Policies,
    new: Policies,
    *,
    rules: dict[str, tuple[str, ...]],
    settings: tuple[str, ...],
) -> PolicyDifference:
    """The smallest call that the new policies let through and the old ones do not."""
    comparison = _Comparison(old, new)
    call = comparison.call()
    answer: Answer = "nothing_opened"
    if call is not None:
        answer = "opened"
    elif comparison.unproved:
        answer = "cannot_be_proved"
    unproved = () if call else tuple(dict.fromkeys(comparison.unproved))
    return PolicyDifference(answer, call, unproved, rules, settings)


class _Comparison:
    def __init__(self, old: Policies, new: Policies) -> None:
        self._old, self._new = old, new
        self._whom = _known(old), _known(new)
        self._steps = Steps()
        self.unproved: list[Unproved] = []

    def call(self) -> OpenedCall | None:
        """The smallest call that is opened; None: there is none, or `unproved` says why not."""
        for _, one in sorted(self._sized(), key=lambda each: each[0]):
            try:
                found = next(filter(None, map(self._opened, one.search.calls())), None)
            except GaveUp:
                found = None
            if found is not None:
                return found
            self._cannot_say(one)
        return None

    def _sized(self) -> Iterator[tuple[tuple[object, ...], _Open]]:
        """The regions with such calls, with the size of the smallest."""
        for region, sides in self._regions():
            one = self._asked(region, sides)
            try:
                if one.search.is_possible():
                    example = region.example
                    yield (*one.search.size(), len(example), example), one
            except GaveUp:
                self.unproved.append(Unproved("", "", _GAVE_UP))

    def _regions(self) -> Iterator[tuple[Region, _Sides]]:
        """The regions in which the policies differ; of those that are alike, the first."""
        policies = (
            self._old.workspace.policy,
            self._new.workspace.policy,
            self._old.organisation.policy,
            self._new.organisation.policy,
        )
        patterns = [one for each in policies for rule in each.rules for one in rule.tools]
        try:
            found = regions(patterns)
        except TooMany:
            why = "their patterns of tools can be combined in more ways than are tried"
            self.unproved.append(Unproved("", "", why))
            return
        seen = set()
        for region in sorted(found, key=lambda one: (len(one.example), one.example)):
            sides = _Sides(*(_about(policy, region) for policy in policies))
            key = sides.key
            is_alike = meaning(sides.old) == meaning(sides.new) and meaning(
                sides.old_over
            ) == meaning(sides.new_over)
            if is_alike and self._whom[0] == self._whom[1]:
                continue
            if key in seen and not names_tool(sides.all):
                continue
            seen.add(key)
            yield region, sides

    def _asked(self, region: Region, sides: _Sides) -> _Open:
        is_one = region.patterns is None or not names_tool(sides.all)
        call = AnyCall(region.example if is_one else None)
        requesters = self._requesters()
        search = Search(call, region.example, requesters, self._steps)
        try:
            opened = v.both(
                self._lets(1, sides.new, sides.new_over, call, requesters),
                v.no(self._lets(0, sides.old, sides.old_over, call, requesters)),
            )
        except v.Unwritable as why:
            self.unproved.append(Unproved("", "", str(why)))
            opened = v.NO
        search.assume(opened, *call.facts, *bounded(call))
        if requesters is not None:
            search.assume(requesters.fact)
        if not is_one:
            search.assume(*self._of_region(region, call.tool))
        return _Open(search, call, sides)

    def _lets(
        self,
        side: int,
        own: tuple[Rule, ...],
        over: tuple[Rule, ...],
        call: AnyCall,
        requesters: Requesters | None,
    ) -> Formula:
        """When the policies let a call through, as `policies.evaluate` joins them."""
        workspace, organisation = judged(own, call), judged(over, call)
        whom = self._whom[side]
        is_known = (
            v.YES
            if requesters is None or whom.everybody
            else requesters.among(sorted(whom.accounts))
        )
        stricter = v.either((organisation.silent, organisation.allowed))
        return v.both(workspace.allowed, stricter, is_known)

    def _requesters(self) -> Requesters | None:
        """None: the policies know the same requesters, so that nothing depends on them."""
        old, new = self._whom
        return None if old == new else Requesters(sorted(old.accounts | new.accounts))

    def _of_region(self, region: Region, tool: Formula) -> Iterator[Formula]:
        """What is so of the tools of a region."""
        yield z3.InRe(tool, TOOL)
        every = {one for each in self._every_policy() for rule in each.rules for one in rule.tools}
        for pattern in sorted(every):
            is_like = like(tool, pattern)
            yield is_like if pattern in (region.patterns or ()) else v.no(is_like)

    def _every_policy(self) -> Iterable[Policy]:
        for each in (self._old, self._new):
            yield from (each.workspace.policy, each.organisation.policy)

    # -------------------------------------------------------------------------------------- saying

    def _opened(self, call: CandidateCall) -> OpenedCall | None:
        """The call, if the gate would judge it so."""
        before, now = (_said(policies, call) for policies in (self._old, self._new))
        if not isinstance(now.says, e.Approved) or isinstance(before.says, e.Approved):
            return None
        return OpenedCall(
            tool=call.tool,
            arguments=msgspec.json.decode(call.arguments, type=dict),
            rule=now.ruling.judged.rule.name,
            before=_outcome(before),
            before_rule=before.ruling.judged.rule.name,
            agent=call.agent,
            requester="" if call.requester == USUAL["requester"] else call.requester,
            workspace="" if call.workspace == USUAL["workspace"] else call.workspace,
            thread="" if call.thread == USUAL["thread"] else call.thread,
            labels=call.labels,
            tool_class=None if call.tool_class == _USUAL_CLASS else call.tool_class,
        )

    def _cannot_say(self, one: _Open) -> None:
        """Keep why the calls that the formula allows are none."""
        sides = (("new", one.sides.new), ("old", one.sides.old), *self._over(one.sides))
        found = [
            Unproved(policy, rule.name, ", and ".join(why))
            for policy, rules in sides
            for rule in rules
            if (why := one.call.why_inexact(rule.when))
        ]
        self.unproved += found or [Unproved("", "", _GAVE_UP)]

    def _over(self, sides: _Sides) -> Iterator[tuple[str, tuple[Rule, ...]]]:
        """The rules of the organisation's policies, with what these are called."""
        if self._old.organisation == self._new.organisation:
            yield "beside", sides.old_over
        else:
            yield from (("new", sides.new_over), ("old", sides.old_over))


def _about(policy: Policy, region: Region) -> tuple[Rule, ...]:
    return tuple(rule for rule in policy.rules if matches(region, rule.tools))


def _said(policies: Policies, call: CandidateCall) -> PolicyVerdict:
    return policy_verdict(case_of(policies, call, tool_of(call.tool, governs=False)))


def _outcome(verdict: PolicyVerdict) -> Literal["asked", "blocked", "invalid"]:
    match verdict.says:
        case e.ApprovalRequested():
            return "asked"
        case e.Denied(ground="invalid"):
            return "invalid"
        case _:
            return "blocked"


def _known(policies: Policies) -> _Known:
    """As `Policies.is_known`."""
    both = (policies.organisation.policy, policies.workspace.policy)
    saying = next((one for one in both if "unmapped_requesters" in one.model_fields_set), None)
    tables = both[:1] if saying is both[0] else both
    everybody = saying is not None and saying.unmapped_requesters == "exclude_nobody"
    accounts = frozenset(account for one in tables for account in one.persons)
    return _Known(everybody, frozenset() if everybody else accounts)
