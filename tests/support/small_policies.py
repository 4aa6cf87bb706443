"""Small policies by chance, and a small world of calls on which two of them are tried.

The conditions mix what a comparison writes exactly with what it does not, and with errors: missing
keys, texts for numbers, truths for texts.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ledger.judging.verdict import policy_verdict
from ayes.ops.audit.backtest import CandidateCall, case_of, tool_of
from ayes.ops.policy_diff.difference import OpenedCall
from ayes.ops.policy_diff.versions import difference
from ayes.schemas import events as e
from ayes.schemas.policy import Policy, Rule

ABSENT = object()
#: What the arguments `a` and `b` may be.
A = (
    *(ABSENT, None, True, False, 0, 1, 2, 3, -1, 1.5, 2.0, 2.5, "", "x", "xy", "y"),
    *([1], ["x", 2.0], [], {}, {"c": 1}, {"c": "x"}),
    *(2**63, 2**64, 2**63 - 1, -(2**63) + 1),
)
B = (ABSENT, None, True, 0, 2, 3, 0.5, "x", "z", [2], [True, "x"], {"c": 2}, {"c": None})
TOOLS = ("pay", "pay_out", "look", "looks")
PATTERNS = ("pay", "pay*", "*", "look", "look?", "*_out")
AGENTS = ("", "desk-1", "bot")
WORKSPACES = ("default", "shop")
LABELS: tuple[dict[str, str], ...] = ({}, {"channel": "chat"}, {"channel": "mail", "x": ""})
REQUESTERS = ("ana", "ben@corp.example", "")
CLASSES = ("irreversible", "reads")

PLACES = ("args.a", "args.b", "args.b.c", "args.a[0]", 'args["a"]', "args.b[1]")
CONSTANTS = (
    *("0", "1", "2", "3", "-1", "2u", "1.5", "2.0", '"x"', '"y"', '"xy"', '""', "true", "null"),
    *("9223372036854775807", "9223372036854775808u"),
)
TEXTS = ("agent", "tool", "workspace", "labels.channel", "requester")
NAMED = ('"desk-1"', '"pay"', '"shop"', '"chat"', '"ana"')
TABLES = ("args.a", "args.b", "args", "labels", "args.b.c")
ODD = ("true", "false", "!args.a", "args.a.exists(x, x == 1)", "args == {}", *PLACES)
#: Calls that are tried on a pair of policies.
CALLS = 200
#: What may stand for one another in a condition.
WORDS = ("0", "1", "2", "3", "<", ">", "<=", "&&", "||", "x", "==", "!=", "a", "b", "has")


class Chance:
    """Policies and conditions by chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _one(self, *of: Any) -> Any:
        return self._random.choice(of)

    def _is(self, share: float) -> bool:
        return self._random.random() < share

    def _value(self, depth: int = 1) -> str:
        roll = self._random.random()
        if roll < 0.45:
            return self._one(*PLACES)
        if roll < 0.8 or depth == 0:
            return self._one(*CONSTANTS)
        if roll < 0.86:
            return self._one(*TEXTS)
        if roll < 0.97:
            sign = self._one("+", "+", "-", "-", "*", "/", "%")
            return f"({self._value(depth - 1)} {sign} {self._value(depth - 1)})"
        place = self._one(*PLACES)
        return self._one(f"-({self._value(0)})", f"size({place})", "(args.a + args.b)")

    def _atom(self) -> str:
        roll = self._random.random()
        if roll < 0.5:
            sign = self._one("<", "<=", ">", ">", ">=", "==", "==", "!=")
            return f"{self._value()} {sign} {self._value()}"
        if roll < 0.62:
            return f"has({self._one('args.a', 'args.b', 'args.b.c', 'labels.channel')})"
        if roll < 0.72:
            items = ", ".join(self._value(0) for _ in range(self._random.randint(0, 3)))
            return f"{self._value()} in [{items}]"
        if roll < 0.8:
            return f"{self._value()} in {self._one(*TABLES)}"
        if roll < 0.86:
            return f"{self._one(*TEXTS)} == {self._one(*NAMED)}"
        if roll < 0.92:
            method = self._one("startsWith", "endsWith", "contains", "matches")
            return f"{self._value(0)}.{method}({self._value(0)})"
        return self._one(*ODD)

    def condition(self, depth: int) -> str:
        """A condition of at most this depth."""
        roll = self._random.random()
        if depth == 0 or roll < 0.35:
            return self._atom()
        one, other = self.condition(depth - 1), self.condition(depth - 1)
        if roll < 0.6:
            return f"({one} && {other})"
        if roll < 0.82:
            return f"({one} || {other})"
        if roll < 0.94:
            return f"!({one})"
        return f"({one} ? {other} : {self._atom()})"

    def _usable(self) -> str:
        while not is_usable(condition := self.condition(self._one(0, 1, 1, 2))):
            pass
        return condition

    def _rule(self, name: str) -> dict[str, Any]:
        tools = self._random.sample(PATTERNS, self._one(1, 1, 2))
        found = {"name": name, "tools": tools, "then": self._one("allow", "allow", "ask", "block")}
        found |= {"when": self._usable()} if self._is(0.75) else {}
        found |= {"priority": self._one(0, 1, 2)} if self._is(0.5) else {}
        found |= {"agents": [self._one("desk-*", "bot", "?*")]} if self._is(0.15) else {}
        found |= {"workspaces": [self._one("shop", "d*")]} if self._is(0.1) else {}
        found |= {"labels": {"channel": self._one("chat", "*", "[c]hat")}} if self._is(0.1) else {}
        found |= {"class": [self._one(*CLASSES)]} if self._is(0.1) else {}
        return found | ({"shadow": True} if self._is(0.08) else {})

    def _shared(self) -> dict[str, Any]:
        unmapped = {"unmapped_requesters": self._one("deny", "exclude_nobody")}
        people = {"people": {"ben": ["ben@corp.example"]}}
        return (unmapped if self._is(0.1) else {}) | (people if self._is(0.1) else {})

    def _draft(self) -> dict[str, Any]:
        """A policy, as what is written of it."""
        number = self._one(1, 2, 2, 3, 4)
        return self._shared() | {"rule": [self._rule(f"r{at}") for at in range(number)]}

    def _variant(self, draft: dict[str, Any]) -> dict[str, Any]:
        """The same with one or two things changed."""
        found = draft | {"rule": [dict(one) for one in draft["rule"]]}
        for _ in range(self._one(1, 1, 2)):
            rules = found["rule"]
            one = self._one(*rules) if rules else {}
            match self._random.randrange(9) if one else 1:
                case 0:
                    rules.remove(one)
                case 1:
                    rules.append(self._rule(f"n{len(rules)}"))
                case 2:
                    one["then"] = self._one("allow", "ask", "block")
                case 3:
                    one["priority"] = self._one(0, 1, 2)
                case 4:
                    one["agents"] = [self._one("desk-*", "*", "bot")]
                case 5:
                    self._random.shuffle(rules)
                case 6:
                    found = {"rule": rules} | self._shared()
                case _:
                    one |= {"when": self._varied(one["when"])} if "when" in one else {}
        return found

    def _varied(self, condition: str) -> str:
        for _ in range(20):
            varied = condition.replace(self._one(*WORDS), self._one(*WORDS[:-1]), 1)
            if varied != condition and is_usable(varied):
                return varied
        return condition

    def pair(self) -> tuple[Policy, Policy]:
        """Two valid policies, mostly alike."""
        while True:
            old = self._draft()
            new = self._variant(old) if self._is(0.8) else self._draft()
            try:
                return Policy.model_validate(old), Policy.model_validate(new)
            except ValueError:
                continue  # two of its rules contradict each other

    def calls(self, number: int) -> Iterator[CandidateCall]:
        """Some calls of the small world."""
        for _ in range(number):
            arguments = {"a": self._one(*A), "b": self._one(*B)}
            yield CandidateCall(
                tool=self._one(*TOOLS),
                arguments=json.dumps(
                    {key: one for key, one in arguments.items() if one is not ABSENT}
                ),
                agent=self._one(*AGENTS),
                requester=self._one(*REQUESTERS),
                workspace=self._one(*WORKSPACES),
                thread="t",
                labels=self._one(*LABELS),
                tool_class=self._one(*CLASSES),
            )


def is_usable(condition: str) -> bool:
    """Whether a rule may have it."""
    try:
        Rule(name="x", tools=("x",), then="ask", when=condition)
    except ValueError:
        return False
    return True


def lets_through(policy: Policy, call: CandidateCall, beside: Policy | None = None) -> bool:
    """Whether a workspace's policy lets a call through without a vote, as the gate judges it."""
    over = AppliedPolicy(0, beside or Policy(), organisation=True)
    policies = Policies(AppliedPolicy(0, policy), over)
    verdict = policy_verdict(case_of(policies, call, tool_of(call.tool, governs=False)))
    return isinstance(verdict.says, e.Approved)


def size(arguments: Any) -> int:
    """The number of values in arguments."""
    match arguments:
        case dict():
            return sum(1 + size(one) for one in arguments.values())
        case list():
            return sum(1 + size(one) for one in arguments)
        case _:
            return 0


def as_call(one: OpenedCall) -> CandidateCall:
    """The call with all that it leaves out."""
    return CandidateCall(
        one.tool,
        json.dumps(one.arguments),
        one.agent,
        one.requester or "anybody",
        one.workspace or "default",
        one.thread or "t",
        one.labels,
        tool_class=one.tool_class or "irreversible",
    )


def judged(seed: int) -> tuple[str, str]:
    """The answer about a pair of small policies, and how brute force shows it wrong, if it does.

    A fifth of the pairs stand beside an organisation's policy.
    """
    chance = Chance(seed)
    old, new = chance.pair()
    beside = Chance(-seed).pair()[0] if seed % 5 == 0 else None
    found = difference(old, new, beside)
    tried = [
        json.loads(call.arguments)
        for call in chance.calls(CALLS)
        if lets_through(new, call, beside) and not lets_through(old, call, beside)
    ]
    wrong = ""
    if found.answer == "nothing_opened" and tried:
        wrong = f"seed {seed}: {tried[0]} is opened"
    if found.call is not None:
        call = as_call(found.call)
        if not lets_through(new, call, beside) or lets_through(old, call, beside):
            wrong = f"seed {seed}: {found.call} is not opened"
        elif any(size(one) < size(found.call.arguments) for one in tried):
            wrong = f"seed {seed}: {found.call} is not the smallest"
    return found.answer, wrong
