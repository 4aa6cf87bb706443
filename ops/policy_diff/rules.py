"""What the rules of a policy say of a call, as a formula: as `policy_rules.judge` judges it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import z3

from ayes.ops.policy_diff import values as v
from ayes.ops.policy_diff.terms import AnyCall, like
from ayes.ops.policy_diff.values import Formula
from ayes.schemas.policy import Rule
from ayes.schemas.tools import CLASSES

_ALL: Final = ("*",)


class PolicySays(NamedTuple):
    """When the policy allows the call, and when no rule of it says anything."""

    allowed: Formula
    silent: Formula


class _Rule(NamedTuple):
    rule: Rule
    #: When it is about the call, and when it may be but its condition cannot be evaluated.
    matches: Formula
    unsaid: Formula


def judged(rules: Sequence[Rule], call: AnyCall) -> PolicySays:
    """What these rules say; those without effect say nothing.

    A call is allowed if a rule allows it, and of the rules of its priority and above none that
    matches says anything else, and there is none that cannot be evaluated.
    """
    each = [_judged(rule, call) for rule in rules if not rule.shadow]
    ways = []
    for priority in {one.rule.priority for one in each if one.rule.then == "allow"}:
        level = [one for one in each if one.rule.priority >= priority]
        allowing = (
            one.matches
            for one in level
            if one.rule.then == "allow" and one.rule.priority == priority
        )
        others = (v.no(one.matches) for one in level if one.rule.then != "allow")
        sure = (v.no(one.unsaid) for one in level)
        ways.append(v.both(v.either(allowing), *others, *sure))
    silent = v.both(*(v.no(v.either((one.matches, one.unsaid))) for one in each))
    return PolicySays(v.either(ways), silent)


def _judged(rule: Rule, call: AnyCall) -> _Rule:
    covers = _covers(rule, call)
    if not rule.when:
        return _Rule(rule, covers, v.NO)
    said = call.said(rule.when)
    return _Rule(rule, v.both(covers, said.true), v.both(covers, said.unsaid))


def _covers(rule: Rule, call: AnyCall) -> Formula:
    parts = [_among(call, "workspace", rule.workspaces), _among(call, "agent", rule.agents)]
    if rule.classes:
        parts.append(v.either(call.tool_class == CLASSES.index(one) for one in rule.classes))
    for name, pattern in rule.labels.items():
        label = call.label(name)
        parts.append(v.both(label.is_(v.TEXT), like(label.values[v.TEXT], pattern)))
    return v.both(*parts)


def _among(call: AnyCall, what: str, patterns: Sequence[str]) -> Formula:
    if tuple(patterns) == _ALL:
        return v.YES
    return v.either(like(call.text(what), one) for one in patterns)


def meaning(rules: Sequence[Rule]) -> frozenset[object]:
    """Equal for rules that judge all calls of their tools alike."""
    return frozenset(
        (
            rule.then,
            rule.when,
            rule.priority,
            frozenset(rule.workspaces),
            frozenset(rule.agents),
            frozenset(rule.labels.items()),
            frozenset(rule.classes),
        )
        for rule in rules
        if not rule.shadow
    )


def names_tool(call_rules: Sequence[Rule]) -> bool:
    """Whether a condition speaks of the tool, so that not all tools of a region are alike."""
    return any("tool" in rule.when for rule in call_rules)


def bounded(call: AnyCall) -> list[Formula]:
    """What is so of the class of every call."""
    return [z3.And(call.tool_class >= 0, call.tool_class < len(CLASSES))]
