"""What a new policy opens, in values and in words; `compare` finds it.

A call is let through if the policies allow it without any vote, as `verdict.policy_verdict` says:
with room in every budget, by a tool that neither governs nor seals what rules read, in a thread
below its limits. What else makes a policy looser is listed by name.
"""

import json
import shlex
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from ayes.ops.audit.backtest import Report
from ayes.schemas.events import ToolClass
from ayes.schemas.policy import NO_RULE_NAME, Policy, Rule

type Answer = Literal["nothing_opened", "opened", "cannot_be_proved"]

#: Of a rule: what is compared, and what says nothing about who decides and for how long.
_COMPARED: Final = frozenset(
    {"tools", "then", "when", "workspaces", "agents", "labels", "classes", "priority", "shadow"}
)
_SAID: Final = frozenset({"name", "reason", "reasons", "ask_in"})
#: Of a policy: its rules, and who is told.
_TELLING: Final = frozenset({"rules", "contacts", "rooms", "routes", "undo_s"})


class OpenedCall(Struct, frozen=True, omit_defaults=True):
    """A call that the new policy lets through and the old one does not."""

    tool: str
    arguments: dict[str, Any]
    #: The rule of the new policy that allows it.
    rule: str
    #: What the old one says, and the rule that says it.
    before: Literal["asked", "blocked", "invalid"]
    before_rule: str
    #: The others are omitted if nothing depends on them.
    agent: str = ""
    requester: str = ""
    workspace: str = ""
    thread: str = ""
    labels: dict[str, str] = {}
    tool_class: ToolClass | None = msgspec.field(name="class", default=None)


class Unproved(Struct, frozen=True):
    """Why it cannot be proved that nothing is opened."""

    #: `old`, `new`, or `beside` for the policy that both are judged with; empty: none of them.
    policy: str
    #: Empty: no rule.
    rule: str
    why: str


class PolicyDifference(Struct, frozen=True):
    """What a new policy opens."""

    answer: Answer
    call: OpenedCall | None = None
    unproved: tuple[Unproved, ...] = ()
    #: By rule of both, the keys that differ and are not compared: who decides, and for how long.
    rules: dict[str, tuple[str, ...]] = {}
    #: The keys for all rules that differ and are not compared.
    settings: tuple[str, ...] = ()


class Coverage(Struct, frozen=True):
    """How many of the past calls a rule names."""

    named: int
    calls: int

    @property
    def share(self) -> str:
        """For people, in percent."""
        return f"{100 * self.named / self.calls:.1f}%" if self.calls else "none"


def other_keys(old: Policy, new: Policy) -> dict[str, tuple[str, ...]]:
    """By rule of both policies, the keys that differ and that `compare` leaves out."""
    before = {rule.name: rule for rule in old.rules}
    left = [one for one in Rule.model_fields if one not in _COMPARED | _SAID]
    found: dict[str, tuple[str, ...]] = {}
    for rule in new.rules:
        if (was := before.get(rule.name)) is not None:
            keys = tuple(key for key in left if getattr(rule, key) != getattr(was, key))
            found |= {rule.name: keys} if keys else {}
    return found


def other_settings(old: Policy, new: Policy) -> tuple[str, ...]:
    """The keys for all rules that differ and that `compare` leaves out."""
    fields = Policy.model_fields.items()
    return tuple(
        field.alias or name
        for name, field in fields
        if name not in _TELLING and getattr(old, name) != getattr(new, name)
    )


def coverage(report: Report) -> Coverage:
    """Of the calls that a policy was tried on and whose arguments are valid, those of a rule."""
    unnamed = report.by_rule.get(NO_RULE_NAME)
    calls = report.calls - report.invalid
    return Coverage(calls - (unnamed.calls if unnamed else 0), calls)


def sentences(found: PolicyDifference, old: str, new: str) -> list[str]:
    """What a new policy opens, for people.

    Args:
        old, new: what the two are called.
    """
    match found.answer:
        case "opened":
            assert found.call
            said = _opened(found.call, old, new)
        case "nothing_opened":
            said = [f"Nothing is opened: whatever {new} lets through, {old} lets through too."]
        case "cannot_be_proved":
            said = [f"It cannot be proved that {new} opens nothing:"]
            said += [f"  {_unproved(one, old, new)}" for one in found.unproved]
    return said + _left(found)


def _opened(call: OpenedCall, old: str, new: str) -> list[str]:
    did = {
        "asked": "asks people",
        "blocked": "blocks it",
        "invalid": "denies it as invalid",
    }[call.before]
    by = f" ({call.before_rule!r})" if call.before != "invalid" else ""
    first = f"Opened: {new} lets this call through ({call.rule!r}), and {old} {did}{by}:"
    text = msgspec.json.encode(_described(call)).decode()
    return [first, f"  {text}"]


def _described(call: OpenedCall) -> dict[str, Any]:
    """The call alone."""
    verdict = {"rule", "before", "before_rule"}
    return {key: one for key, one in msgspec.to_builtins(call).items() if key not in verdict}


def trial_command(call: OpenedCall, file: str) -> str:
    """The command that shows the verdict of a file on this call."""
    arguments = json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
    words = ["ayes", "policy", "test", file, "--tool", call.tool, "--arguments", arguments]
    words += ["--agent", call.agent] if call.agent else []
    words += ["--requester", call.requester] if call.requester else []
    words += [word for one in call.labels.items() for word in ("--label", "=".join(one))]
    words += ["--class", call.tool_class] if call.tool_class else []
    words += ["-w", call.workspace] if call.workspace else []
    return shlex.join(words)


def _unproved(one: Unproved, old: str, new: str) -> str:
    whose = {"old": old, "new": new, "beside": "the organisation's policy"}.get(one.policy, "")
    return f"{one.rule!r} of {whose}: {one.why}." if one.rule else f"{one.why}."


def _left(found: PolicyDifference) -> list[str]:
    """What differs and was not compared."""
    parts = [f"{rule!r} ({', '.join(keys)})" for rule, keys in found.rules.items()]
    parts += [f"the settings {', '.join(found.settings)}"] if found.settings else []
    if not parts:
        return []
    return [f"Not compared, see the lines that differ: {'; '.join(parts)}."]
