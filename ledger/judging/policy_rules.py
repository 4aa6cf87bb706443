"""The evaluation of one policy: the rule that counts for a call, and its verdict.

Of the rules that match, those of the highest priority count, and of these the strictest. A
condition that cannot be evaluated never makes the judgement milder: what would be allowed without
that rule is asked about, and takes four eyes. `schemas/policy.py` explains the file;
`ledger/judging/policies.py` joins the workspace's policy with the organisation's.
"""

from fnmatch import fnmatchcase
from typing import Any, Final

from msgspec import Struct

from ayes.schemas import conditions
from ayes.schemas.events import Mode, Shadow, ToolClass
from ayes.schemas.policy import NO_RULE_NAME, Policy, Rule, Then
from ayes.schemas.quorums import is_among

STRICTNESS: Final[dict[Then, int]] = {"allow": 0, "ask": 1, "block": 2}
#: Counts if no rule matches. Built without validation, since no file may use its name.
NO_RULE: Final = Rule.model_construct(
    name=NO_RULE_NAME, tools=("*",), then="ask", reason="No rule of the policy covers this tool."
)
_ALL: Final = ("*",)


class About(Struct, frozen=True):
    """The properties of a call that rules and conditions see."""

    tool: str
    #: Valid by the tool's schema; None if they are not.
    args: Any = None
    agent: str = ""
    requester: str = ""
    workspace: str = ""
    thread: str = ""
    labels: dict[str, str] = {}
    #: The highest of its tool and of the tools of the calls above it.
    tool_class: ToolClass = "irreversible"

    @property
    def scope(self) -> conditions.Scope:
        """The variables of a condition."""
        return conditions.Scope({name: getattr(self, name) for name in conditions.NAMES})


class RuleMatch(Struct, frozen=True):
    """The verdict of a policy on a call."""

    #: The rule that counts; `NO_RULE` if none matches.
    rule: Rule
    then: Then
    reason: str
    shadows: tuple[Shadow, ...] = ()
    mode: Mode = "four_eyes"


def judge(policy: Policy, about: About) -> RuleMatch:
    """Apply the strictest rule of the highest priority; never allow in case of doubt."""
    scope = about.scope
    counts, shadows = NO_RULE, []
    unsaid: list[tuple[Rule, str]] = []
    found = False
    for rule in policy.about(about.tool):
        if not covers(rule, about):
            continue
        said: Then = rule.then
        problem = ""
        try:
            if rule.when and not conditions.holds(rule.when, scope):
                continue
        except conditions.CannotSay as why:
            said, problem = "ask", str(why)
        if rule.shadow:
            shadows.append(Shadow(rule.name, said))
        elif problem:
            unsaid.append((rule, problem))
        elif not found or _weight(rule) > _weight(counts):
            counts, found = rule, True
    for rule, problem in sorted(unsaid, key=_asks_of_whom, reverse=True):
        if not found or _may_beat(rule, counts, policy):
            reason = "The condition of this rule cannot be evaluated, so a person must look"
            return RuleMatch(rule, "ask", f"{reason}: {problem}.", tuple(shadows))
    return RuleMatch(counts, counts.then, counts.reason, tuple(shadows), counts.mode)


def _weight(rule: Rule) -> tuple[int, int, bool]:
    return rule.priority, STRICTNESS[rule.then], rule.mode == "four_eyes"


def _asks_of_whom(unsaid: tuple[Rule, str]) -> tuple[int, bool, bool]:
    """The order of rules that cannot be evaluated: by priority, then those that ask people."""
    rule, _ = unsaid
    return rule.priority, rule.then == "ask", rule.mode == "four_eyes"


def _may_beat(unsaid: Rule, counts: Rule, policy: Policy) -> bool:
    """Whether this rule could be the one that counts, and make the verdict stricter."""
    if counts.then == "allow":
        return unsaid.priority >= counts.priority
    if counts.then == "block" or unsaid.then != "ask":
        return False
    # Both ask: who is asked must not depend on whether a condition can be evaluated.
    if _weight(unsaid) != _weight(counts):
        return _weight(unsaid) > _weight(counts)
    return policy.rules.index(unsaid) < policy.rules.index(counts)


def covers(rule: Rule, about: About) -> bool:
    """Whether the rule matches this call, apart from the tool and the condition."""
    # Most rules are about all workspaces and agents: comparing patterns then takes three times as
    # long, with hundreds of rules as long as recording the verdict (`python -m bench policy`).
    return (
        (rule.workspaces == _ALL or is_among(about.workspace, rule.workspaces))
        and (rule.agents == _ALL or is_among(about.agent, rule.agents))
        and (not rule.classes or about.tool_class in rule.classes)
        and all(_is_labelled(about, name, pattern) for name, pattern in rule.labels.items())
    )


def _is_labelled(about: About, name: str, pattern: str) -> bool:
    # Any text may stand in a label; only * and ? are wildcards.
    label = about.labels.get(name)
    return label is not None and fnmatchcase(label, pattern.replace("[", "[[]"))
