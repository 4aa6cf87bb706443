"""The policy: which tools run freely, which wait for people, which never run.

    while_pending = "queue"                     # queue | supersede | block; absent: queue

    [[rule]]
    name = "changes a booking"
    tools = ["book_*", "cancel_reservation"]    # names, or patterns with * and ?
    then = "ask"                                # allow | ask | block
    when = "args.amount > 100"                  # a condition in CEL on the arguments; absent: always
    agents = ["desk-*"]                         # whose agent wishes it; absent: any
    labels = {channel = "chat"}                 # of the thread; absent: any
    priority = 0                                # a rule of a higher one overrides those of lower ones
    shadow = false                              # judges without effect; what it would have said is recorded
    voters = ["ana", "ops-*"]                   # only with ask; absent: everybody
    votes_needed = 1                            # only with ask
    expires_in_s = 3600                         # only with ask; absent: never
    reason = "It changes a booking."

Of all rules that match a call those of the highest priority count, and of these the strictest: block beats ask beats
allow, and among equals the first in the file. A call that no rule matches is asked about, so an empty file is the safest
policy there is. So is one whose condition cannot be evaluated (a key that is not there, a number where a text is): what
the other rules would have allowed is then asked about.

`while_pending` says what becomes of what a user says while a call of the thread waits for people: it waits until the
call is settled, or makes the call moot, or may not be said yet. It is the same for every rule, and no policy loses it.
"""

import re
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from schemas import conditions
from schemas.errors import BadId
from schemas.events import Shadow, WhilePending
from schemas.files import Table, mistake, read_toml
from schemas.ids import token

type Then = Literal["allow", "ask", "block"]

_STRICTNESS: Final[dict[Then, int]] = {"allow": 0, "ask": 1, "block": 2}
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*?-]+", re.ASCII)


def _checked(pattern: str) -> str:
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(
            f"{pattern!r} is no pattern: a name or pattern is made of A-Z a-z 0-9 _ - and the wildcards * and ?."
        )
    if is_plain(pattern):
        try:
            token("name", pattern)
        except BadId as problem:
            raise ValueError(str(problem)) from None
    return pattern


#: A name, or a pattern with `*` (any text) and `?` (any character).
type Pattern = Annotated[str, AfterValidator(_checked)]
#: TOML has lists where we have tuples; the patterns in it stay strict.
type Patterns = Annotated[tuple[Pattern, ...], Field(strict=False, min_length=1)]


class Rule(Table):
    """What happens to the tools it names."""

    name: str
    tools: Patterns
    then: Then
    #: Why, in words for the reviewer or the model.
    reason: str = ""
    #: A condition (`schemas.conditions`); empty: always.
    when: str = ""
    agents: Patterns = ("*",)
    #: Each must be there; the values may be patterns.
    labels: dict[str, str] = Field(default_factory=dict)
    priority: int = Field(default=0, ge=-1000, le=1000)
    shadow: bool = False
    voters: Patterns = ("*",)
    votes_needed: int = Field(default=1, ge=1, le=1000)
    #: None: never. At most a century, so that every deadline is a date.
    expires_in_s: float | None = Field(default=None, gt=0, le=3_155_760_000, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _not_of_one_rule(cls, data: Any) -> Any:
        # In TOML a key below [[rule]] is that rule's, wherever whoever wrote it thought it would be.
        if isinstance(data, dict) and "while_pending" in data:
            raise mistake(
                "'while_pending' is no key of a rule. Write it above the first [[rule]]; it is the same for all.",
                "while_pending",
            )
        return data

    @field_validator("name")
    @classmethod
    def _can_be_cited(cls, name: str) -> str:
        if not name.strip():
            raise ValueError("a rule needs a name, since every decision cites its rule.")
        if name == NO_RULE_NAME:
            raise ValueError(f"{name!r} is what stands in the ledger when no rule matches. Choose another.")
        return name

    @field_validator("voters", "votes_needed", "expires_in_s")
    @classmethod
    def _only_when_asking[T](cls, value: T, info: ValidationInfo) -> T:
        if (then := info.data.get("then", "ask")) != "ask":
            raise ValueError(f'only a rule with then = "ask" has this; here it is {then!r}.')
        return value

    @field_validator("votes_needed")
    @classmethod
    def _can_be_met(cls, needed: int, info: ValidationInfo) -> int:
        voters = set(info.data.get("voters", ("*",)))
        if all(map(is_plain, voters)) and len(voters) < needed:
            raise ValueError(
                f"{needed} votes are needed, but only {', '.join(sorted(voters))} may vote. Name more voters."
            )
        return needed

    @field_validator("when")
    @classmethod
    def _is_a_condition(cls, when: str) -> str:
        if when:
            conditions.check(when)
        return when

    def covers(self, about: "About") -> bool:
        """Is the rule about such calls? Its condition is another question."""
        return (
            _matches(about.tool, self.tools)
            and (self.agents == ("*",) or _matches(about.agent, self.agents))
            and all(
                name in about.labels and fnmatchcase(about.labels[name], self.labels[name])
                for name in self.labels
            )
        )


class Policy(Table):
    """The rules, in the order of the file, and what they all share."""

    while_pending: WhilePending = "queue"
    rules: Annotated[tuple[Rule, ...], Field(strict=False, alias="rule")] = ()

    @field_validator("rules")
    @classmethod
    def _names_differ(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        seen: set[str] = set()
        for index, rule in enumerate(rules):
            if rule.name in seen:
                raise mistake(f"another rule has the name {rule.name!r} already.", index, "name")
            seen.add(rule.name)
        return rules


NO_RULE_NAME: Final = "no rule"


def read_policy(text: str, path: str) -> Policy:
    """Read the text of a policy file; `path` is only named in errors.

    Raises:
        BadFile: with the line and the rule of each mistake.
    """
    return read_toml(Policy, text, path)


class About(Struct, frozen=True):
    """What is judged: a wish, and whose."""

    tool: str
    #: Validated against the tool's schema first; None where they could not be.
    args: Any = None
    agent: str = ""
    requester: str = ""
    workspace: str = ""
    thread: str = ""
    labels: dict[str, str] = {}


class Judged(Struct, frozen=True):
    """What a policy says to a wish."""

    #: The rule that counts, for every decision cites one.
    rule: Rule
    then: Then
    reason: str
    #: What the rules without effect would have said.
    shadows: tuple[Shadow, ...] = ()


def judge(policy: Policy, about: About) -> Judged:
    """The word that counts: the strictest of the highest priority, and never a yes where anything is uncertain."""
    scope = {name: getattr(about, name) for name in conditions.NAMES}
    counts, unsaid, shadows = NO_RULE, None, []
    found = False
    for rule in policy.rules:
        if not rule.covers(about):
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
            unsaid = max(unsaid, (rule, problem), key=_priority) if unsaid else (rule, problem)
        elif not found or _weight(rule) > _weight(counts):
            counts, found = rule, True
    if unsaid and (not found or (counts.then == "allow" and unsaid[0].priority >= counts.priority)):
        rule, problem = unsaid
        return Judged(
            rule,
            "ask",
            f"The condition of this rule cannot be evaluated, so a person must look: {problem}.",
            tuple(shadows),
        )
    return Judged(counts, counts.then, counts.reason, tuple(shadows))


def _weight(rule: Rule) -> tuple[int, int]:
    return rule.priority, _STRICTNESS[rule.then]


def _priority(unsaid: tuple[Rule, str]) -> int:
    return unsaid[0].priority


def _matches(name: str, patterns: Patterns) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_plain(pattern: str) -> bool:
    """Is it one name, without wildcards?"""
    return not {"*", "?"} & set(pattern)


# Built without validation: its name is the one that no file may use.
NO_RULE: Final = Rule.model_construct(
    name=NO_RULE_NAME, tools=("*",), then="ask", reason="No rule of the policy covers this tool."
)
