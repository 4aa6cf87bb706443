"""The policy: which tools run freely, which wait for people, which never run.

    while_pending = "queue"                     # queue | supersede | block; absent: queue
    deny_repeats = 3                            # times that a repeated denied call is denied again
    calls_per_thread = 500                      # absent: no limit
    questions_per_thread = 50                   # calls of a thread put to people; absent: no limit
    never_grant = ["payout"]                    # no grant covers these tools
    may_revoke = ["@security"]                  # revoke approvals, in addition to the voters
    may_reconcile = ["@security"]               # reconcile calls in doubt; absent: the voters
    may_stop = ["@oncall"]                      # stop what starts; absent: everybody
    may_resume = ["@leads"]                     # end a stop; absent: everybody
    resumes_needed = 2                          # so many people must; absent: 1
    unmapped_requesters = "deny"                # deny | exclude_nobody; absent: deny
    policies_need_approval = false              # the organisation's: each version needs approval
    all_signed = false                          # true: as `signed` of every rule that asks
    undo_s = 5                                  # for so long a vote in the console can be undone

    [people]
    ana = ["ana@corp.example", "slack:U17"]     # accounts of the reviewer ana; each counts as ana

    [groups]
    security = ["sam", "sec-*"]                 # as voters: "@security"

    [owners]
    "desk-*" = ["olga"]                         # who is behind an agent never counts for its calls

    [[rule]]
    name = "changes a booking"
    tools = ["book_*", "cancel_reservation"]    # names, or patterns, such as github/*
    then = "ask"                                # allow | ask | block
    when = "args.amount > 100"                  # a CEL condition on the arguments; absent: always
    workspaces = ["*"]                          # absent: any
    agents = ["desk-*"]                         # agents that make the call; absent: any
    labels = {channel = "chat"}                 # of the thread; absent: any
    class = "irreversible"                      # of the tools of the call and of the calls above
                                                # it, the highest; or a list; absent: any
    valid_for_s = 86400                         # how long an approval is valid; absent: for ever
    priority = 0                                # a higher one overrides lower ones
    shadow = false                              # true: no effect; its verdict is recorded
    reason = "It changes a booking."
    # With ask only:
    voters = ["ana", "ops-*"]                   # names, patterns, groups; absent: everybody;
                                                # "group:leads": a group of the provider
    mode = "four_eyes"                          # requester_confirms: the requester may vote too
    votes_needed = 1
    denials_needed = 1
    also = [{voters = ["@security"]}]           # these must agree too; nobody counts twice
    editor_counts = false                       # true: an edit is also its editor's vote for it
    break_glass = ["@security"]                 # each of them alone may let it run, with a reason
    confirm = "typed"                           # whoever approves types the tool's name
    signed = true                               # only votes that are signed let it run
    expires_in_s = 3600                         # absent: never
    on_timeout = "escalate"                     # deny | escalate | stay; absent: deny
    stages = [{voters = ["@leads"], expires_in_s = 3600}]  # with escalate: who is asked in turn;
                                                # "oncall:desk": the people on call then
    ask_in = ["slack:C0123ABCD"]                # chat channels that ask too, with buttons
    reasons = ["Duplicate", "Wrong amount"]     # offered to people who deny or answer

    [[budget]]
    name = "refunds"
    tools = ["refund"]
    amount = "/amount"                          # a JSON pointer into the arguments, or "tokens"
    limit = 1000                                # or "99.50", exactly
    unit = "EUR"                                # only shown
    per = ["agent", "day"]                      # thread, agent, requester, day; absent: all calls
    then = "ask"                                # ask | block: what happens beyond it

Of all rules that match a call those of the highest priority count, and of these the strictest:
block beats ask beats allow, and among equals the first in the file. If no rule matches, people are
asked, so an empty file is the safest policy. If a condition cannot be evaluated (a missing key, a
number instead of a text), the people of its rule are asked about what other rules would allow.

A question takes four eyes: the requester and the people behind the agent never count. With the mode
`requester_confirms` they may vote as well (docs/decisions/0066). It never holds for a tool that
governs, for a call beyond a budget, or if a condition cannot be evaluated; of two rules that ask,
four eyes is the stricter mode.

The organisation may have a policy too. If one of its rules matches, the stricter of the two
policies counts, whatever the priorities; if both ask, both must be satisfied.

A requester is compared with reviewers as a person: without case, and through [people]. A requester
who maps to no possible reviewer (empty, or with characters that reviewers' names cannot have)
cannot be kept from approving their own request. So the call is denied, unless
`unmapped_requesters` says that such a requester excludes nobody.

Who is told of a question, a deadline or an outcome, and through which channel, is in `[contacts]`,
`[rooms]` and `[[notify]]`: `ayes.schemas.routes` shows them.

A budget (docs/decisions/0049) limits the sum of what calls spend, in each workspace. Over the limit
people are asked about calls that would be allowed; with block, calls are denied even if people
approve them. A day is one of UTC, by the time of the request on the broker's clock. An amount that
is missing, negative or not a number counts as over the limit. The amount "tokens" is what the
models' replies have used so far. A requester is a person, by every account in [people]. A
sub-agent's thread is one of its own. All budgets of the workspace and the organisation must have
room.

`while_pending` decides about a user's message while a call of the thread is pending: it waits until
the call is settled, makes the call moot, or is refused. It holds for every rule, and no message is
lost.
"""

import re
from collections.abc import Iterable
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from ayes.schemas import conditions
from ayes.schemas.amounts import amount
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import BadId
from ayes.schemas.events import (
    Confirm,
    Mode,
    OnTimeout,
    PolicyApplied,
    Quorum,
    Stage,
    ToolClass,
    WhilePending,
)
from ayes.schemas.ids import is_token, token
from ayes.schemas.limits import cited
from ayes.schemas.people import plain
from ayes.schemas.quorums import (
    GROUP,
    ON_CALL,
    everybody,
    is_among,
    is_group,
    is_open,
    is_plain,
    lacking,
    needed,
)
from ayes.schemas.routes import DEFAULT_ROOM, Contact, Contacts, Route, check_routing
from ayes.schemas.toml_files import (
    Interval,
    TomlModel,
    check_names_differ,
    checked_token,
    checked_tool_name,
    mistake,
    read_toml,
)

type Then = Literal["allow", "ask", "block"]
type UnmappedRequesters = Literal["deny", "exclude_nobody"]

_PATTERN: Final = re.compile(r"[A-Za-z0-9_*?-]+", re.ASCII)
_TOOL_PATTERN: Final = re.compile(r"[A-Za-z0-9_./*?-]+", re.ASCII)
#: Public channels of Slack begin with C, private ones with C or G.
_CHANNEL: Final = re.compile(r"slack:[CG][A-Z0-9]{2,30}", re.ASCII)
MAX_RULES: Final = 1000
#: Each has a key of its own.
MAX_REASONS: Final = 9
#: In characters: no button of Slack has more.
_MAX_REASON: Final = 75
#: Each is copied into every approval request on which it could vote.
MAX_SECOND_NAMES: Final = 1000
#: The size of the cache of rules by tool.
_MAX_TOOLS: Final = 10_000


def _checked(pattern: str) -> str:
    if pattern.startswith(ON_CALL):
        raise ValueError(f"{pattern!r} may not be here: write it among the voters of a stage.")
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(
            f"{pattern!r} is not a valid pattern: it may have A-Z a-z 0-9 _ - and the wildcards * "
            f"and ?.{_no_group(pattern)}"
        )
    return checked_token("name", pattern) if is_plain(pattern) else pattern


def _no_group(pattern: str) -> str:
    return " A group can only be among voters." if pattern.startswith("@") else ""


def _checked_tools(pattern: str) -> str:
    if not _TOOL_PATTERN.fullmatch(pattern):
        raise ValueError(
            f"{pattern!r} is not a valid pattern of tools: it may have A-Z a-z 0-9 _ - . / and the "
            f"wildcards * and ?.{_no_group(pattern)}"
        )
    return checked_tool_name(pattern) if is_plain(pattern) else pattern


#: A name, or a pattern with `*` (any text) and `?` (any character).
type Pattern = Annotated[str, AfterValidator(_checked)]
#: TOML has lists where we have tuples; the patterns in it stay strict.
type Patterns = Annotated[tuple[Pattern, ...], Field(strict=False, min_length=1)]
#: A tool's name, or a pattern over the whole name: `*` stands for slashes and dots too.
type ToolPattern = Annotated[str, AfterValidator(_checked_tools)]
type ToolPatterns = Annotated[tuple[ToolPattern, ...], Field(strict=False, min_length=1)]


def _checked_voter(voter: str) -> str:
    if is_group(voter):
        name = voter.removeprefix(GROUP)
        if not name or name != name.strip() or not name.isprintable() or not is_plain(name):
            raise ValueError(
                f"{voter!r} names no group. Write its name at the provider after {GROUP}, without "
                "wildcards: members of other groups would be among them."
            )
        return voter
    return f"@{_checked(voter[1:])}" if voter.startswith("@") else _checked(voter)


def _checked_later(voter: str) -> str:
    if voter.startswith(ON_CALL):
        return ON_CALL + checked_token("schedule", voter.removeprefix(ON_CALL))
    return _checked_voter(voter)


#: Who may vote: names, patterns, groups of the file as `@group`, and groups of the provider at
#: which people sign in as `group:name`.
type Voter = Annotated[str, AfterValidator(_checked_voter)]
type Voters = Annotated[tuple[Voter, ...], Field(strict=False, min_length=1)]
type Count = Annotated[int, Field(ge=1, le=1000)]


def _checked_channel(channel: str) -> str:
    if not _CHANNEL.fullmatch(channel):
        raise ValueError(
            f"{channel!r} is not a channel of a chat. Write slack: and the id that Slack shows at "
            'the end of the details of the channel, as in "slack:C0123ABCD".'
        )
    return channel


#: A channel of a chat in which people are asked.
type ChatChannel = Annotated[str, AfterValidator(_checked_channel)]


def _checked_reason(reason: str) -> str:
    if reason != reason.strip() or not reason.isprintable() or not 0 < len(reason) <= _MAX_REASON:
        raise ValueError(
            f"{cited(reason)} cannot be offered. Write 1 to {_MAX_REASON} characters in one line, "
            "all visible, without blanks around them."
        )
    return reason


#: A reason that people may choose.
type Reason = Annotated[str, AfterValidator(_checked_reason)]


class Also(TomlModel):
    """People who must agree too."""

    voters: Voters
    votes_needed: Count = 1


class Next(TomlModel):
    """People who are asked in addition if nobody has decided in time."""

    #: As `Voters`, and the people on call by a schedule of the settings as `oncall:name`.
    voters: Annotated[
        tuple[Annotated[str, AfterValidator(_checked_later)], ...],
        Field(strict=False, min_length=1),
    ]
    expires_in_s: Interval | None = None


#: Keys that are valid only with `then = "ask"`.
_OF_QUESTIONS: Final = (
    "voters",
    "mode",
    "votes_needed",
    "denials_needed",
    "also",
    "editor_counts",
    "break_glass",
    "confirm",
    "signed",
    "expires_in_s",
    "on_timeout",
    "stages",
    "ask_in",
    "reasons",
)


class Rule(TomlModel):
    """What happens to the tools it names."""

    name: str
    tools: ToolPatterns
    then: Then
    #: Why, in words for the reviewer or the model.
    reason: str = ""
    #: A condition (`ayes.schemas.conditions`); empty: always.
    when: str = ""
    workspaces: Patterns = ("*",)
    agents: Patterns = ("*",)
    #: Each must be there; the values may be patterns.
    labels: dict[str, str] = Field(default_factory=dict)
    #: The classes that it matches; empty: any.
    classes: Annotated[tuple[ToolClass, ...], Field(strict=False, alias="class")] = ()
    priority: int = Field(default=0, ge=-1000, le=1000)
    shadow: bool = False
    #: How long an approval is valid, from its decision to the start of the call. None: for ever.
    valid_for_s: Interval | None = None
    voters: Voters = ("*",)
    #: `requester_confirms`: the requester and the people behind the agent are not excluded.
    mode: Mode = "four_eyes"
    votes_needed: Count = 1
    denials_needed: Count = 1
    also: Annotated[tuple[Also, ...], Field(strict=False)] = ()
    #: Whether the editor's vote counts towards the edit.
    editor_counts: bool = False
    break_glass: Annotated[tuple[Voter, ...], Field(strict=False)] = ()
    #: None: an approval needs nothing but the vote.
    confirm: Confirm | None = None
    #: Whether votes that let it run, or answer it, count only if their voters signed them.
    signed: bool = False
    #: None: never.
    expires_in_s: Interval | None = None
    on_timeout: OnTimeout = "deny"
    stages: Annotated[tuple[Next, ...], Field(strict=False)] = ()
    #: Channels of chats, as `slack:` and the channel's id.
    ask_in: Annotated[tuple[ChatChannel, ...], Field(strict=False)] = ()
    #: Offered to people who deny or answer.
    reasons: Annotated[tuple[Reason, ...], Field(strict=False, max_length=MAX_REASONS)] = ()

    @model_validator(mode="before")
    @classmethod
    def _not_of_one_rule(cls, data: Any) -> Any:
        # In TOML a key below [[rule]] belongs to that rule, whatever its author intended.
        of_all = {field.alias or name for name, field in Policy.model_fields.items()}
        for key in data if isinstance(data, dict) else ():
            if key in of_all:
                raise mistake(
                    f"{key!r} is not a key of a rule. Write it above the first [[rule]]; it holds "
                    "for all.",
                    key,
                )
        return data

    @field_validator("name")
    @classmethod
    def _can_be_cited(cls, name: str) -> str:
        if not name.strip():
            raise ValueError("a rule needs a name, since every decision cites its rule.")
        if name == NO_RULE_NAME:
            raise ValueError(f"{name!r} is recorded when no rule matches. Choose another name.")
        return name

    @field_validator(*_OF_QUESTIONS)
    @classmethod
    def _only_when_asking[T](cls, value: T, info: ValidationInfo) -> T:
        if (then := info.data.get("then", "ask")) != "ask":
            raise ValueError(f'only a rule with then = "ask" has this key; here it is {then!r}.')
        return value

    @field_validator("valid_for_s")
    @classmethod
    def _only_of_approvals[T](cls, value: T, info: ValidationInfo) -> T:
        if info.data.get("then") == "block":
            raise ValueError('a rule with then = "block" approves nothing, so omit valid_for_s.')
        return value

    @model_validator(mode="after")
    def _is_confirmed_by_one(self) -> "Rule":
        if self.mode == "requester_confirms" and (self.also or self.votes_needed > 1):
            raise mistake(
                'mode = "requester_confirms" takes one vote, and this rule needs more. Omit mode, '
                f"or omit {'also' if self.also else 'votes_needed'}.",
                "mode",
            )
        return self

    @model_validator(mode="after")
    def _ends_are_possible(self) -> "Rule":
        if self.on_timeout != "deny" and self.expires_in_s is None:
            raise mistake(
                f"on_timeout = {self.on_timeout!r} needs expires_in_s, which is missing. Write it, "
                "or omit on_timeout.",
                "on_timeout",
            )
        if self.stages and self.on_timeout != "escalate":
            raise mistake(
                "stages are used only with escalation. Write "
                'on_timeout = "escalate", and expires_in_s.',
                "stages",
            )
        if self.on_timeout == "escalate" and not self.stages:
            raise mistake(
                'on_timeout = "escalate" needs people to escalate to. '
                "Write stages = [{voters = [...]}].",
                "on_timeout",
            )
        for index, stage in enumerate(self.stages[:-1]):
            if stage.expires_in_s is None:
                raise mistake(
                    "this stage never ends, so later stages are never asked. Give it expires_in_s.",
                    "stages",
                    index,
                )
        return self

    @field_validator("classes", mode="before")
    @classmethod
    def _one_or_several(cls, classes: object) -> object:
        if classes == []:
            raise ValueError("the list is empty. Name a class, or omit the key to match any.")
        return (classes,) if isinstance(classes, str) else classes

    @field_validator("when")
    @classmethod
    def _is_a_condition(cls, when: str) -> str:
        if when:
            conditions.check(when)
        return when

    @property
    def matches(self) -> object:
        """Equal for two rules that match the same calls."""
        sets = (self.tools, self.workspaces, self.agents, self.labels.items(), self.classes)
        return self.when, self.priority, self.shadow, *map(frozenset, sets)


type Per = Literal["thread", "agent", "requester", "day"]
#: The amount of a budget that counts what the model's replies used.
TOKENS: Final = "tokens"
_POINTER: Final = re.compile(r"(/([^~/]|~[01])*)+")
MAX_BUDGETS: Final = 100


class Budget(TomlModel):
    """A limit on the sum of what calls spend."""

    name: str
    tools: ToolPatterns
    #: A JSON pointer (RFC 6901) into the arguments, or `TOKENS`.
    amount: str
    limit: Decimal
    unit: str = Field(default="", max_length=32)
    #: Each combination of these has its own sum. None of them: one sum for the workspace.
    per: Annotated[tuple[Per, ...], Field(strict=False)] = ()
    #: Over it people are asked, or nothing runs.
    then: Literal["ask", "block"] = "ask"

    @field_validator("name")
    @classmethod
    def _is_a_token(cls, name: str) -> str:
        return checked_token("budget", name)

    @field_validator("amount")
    @classmethod
    def _is_a_place(cls, place: str) -> str:
        if place != TOKENS and not _POINTER.fullmatch(place):
            raise ValueError(
                f"{place!r} is not a JSON pointer. Write a slash before each key of the arguments, "
                f'as in "/amount", or "{TOKENS}".'
            )
        return place

    @field_validator("limit", mode="before")
    @classmethod
    def _is_exact(cls, limit: object) -> Decimal:
        text = str(limit) if isinstance(limit, int) and not isinstance(limit, bool) else limit
        if not isinstance(text, str) or (found := amount(text)) is None:
            raise ValueError(
                f"{cited(limit)} is not a limit. Write a whole number, or a decimal in quotes, as "
                'in "99.50".'
            )
        return found

    @field_validator("per")
    @classmethod
    def _in_one_order(cls, per: tuple[Per, ...]) -> tuple[Per, ...]:
        # The order is no part of the meaning.
        return tuple(sorted(set(per)))


class Policy(TomlModel):
    """The rules, in the order of the file, and the settings that they share."""

    while_pending: WhilePending = "queue"
    #: The number of times that an unchanged repetition of a denied call is denied again.
    deny_repeats: int = Field(default=3, ge=0, le=1000)
    #: None: no limit.
    calls_per_thread: Annotated[int, Field(ge=1)] | None = None
    questions_per_thread: Annotated[int, Field(ge=1)] | None = None
    never_grant: Annotated[tuple[ToolPattern, ...], Field(strict=False)] = ()
    may_revoke: Annotated[tuple[Voter, ...], Field(strict=False)] = ()
    may_reconcile: Annotated[tuple[Voter, ...], Field(strict=False)] = ()
    may_stop: Annotated[tuple[Voter, ...], Field(strict=False)] = ()
    may_resume: Annotated[tuple[Voter, ...], Field(strict=False)] = ()
    resumes_needed: Count = 1
    #: For a call whose requester could not be a reviewer, by [people] or by name.
    unmapped_requesters: UnmappedRequesters = "deny"
    #: The organisation's: workspaces' policies count only if people approved exactly their text.
    policies_need_approval: bool = False
    #: As `signed` of every rule that asks.
    all_signed: bool = False
    #: How long the console holds a vote, which can be undone until then. None: not at all, unless
    #: the other policy says so.
    undo_s: Annotated[int, Field(ge=0, le=30)] | None = None
    #: By person, in order of preference.
    contacts: dict[str, Contacts] = Field(default_factory=dict)
    rooms: dict[str, Contact] = Field(default_factory=dict)
    routes: Annotated[tuple[Route, ...], Field(strict=False, alias="notify", max_length=1000)] = ()
    #: By reviewer, the accounts that are theirs as well.
    accounts: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(
        default_factory=dict, alias="people"
    )
    groups: dict[str, Patterns] = Field(default_factory=dict)
    #: By agent, or a pattern of agents.
    owners: dict[Pattern, Voters] = Field(default_factory=dict)
    budgets: Annotated[
        tuple[Budget, ...], Field(strict=False, alias="budget", max_length=MAX_BUDGETS)
    ] = ()
    rules: Annotated[tuple[Rule, ...], Field(strict=False, alias="rule", max_length=MAX_RULES)] = ()

    @model_validator(mode="after")
    def _can_be_told(self) -> "Policy":
        check_routing(self.contacts, self.rooms, self.routes)
        return self

    @field_validator("groups")
    @classmethod
    def _can_be_named(cls, groups: dict[str, Patterns]) -> dict[str, Patterns]:
        for name in groups:
            try:
                token("group", name)
            except BadId as problem:
                raise mistake(str(problem), name) from None
        return groups

    @field_validator("accounts")
    @classmethod
    def _belong_to_one_person(
        cls, accounts: dict[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        whose: dict[str, str] = {}
        for reviewer in accounts:
            try:
                token("reviewer", reviewer)
            except BadId as problem:
                raise mistake(str(problem), reviewer) from None
            if (other := whose.setdefault(plain(reviewer), reviewer)) != reviewer:
                raise mistake(
                    f"{reviewer!r} and {other!r} are the same name: case does not count.", reviewer
                )
        for reviewer, named in accounts.items():
            for account in named:
                if not plain(account):
                    raise mistake("an account needs a name. Remove the empty one.", reviewer)
                if (other := whose.setdefault(plain(account), reviewer)) != reviewer:
                    belongs = f"the account {account!r} belongs to {other!r} too"
                    raise mistake(f"{belongs}. Give it to one of them.", reviewer)
        if sum(map(is_token, whose)) - len(accounts) > MAX_SECOND_NAMES:
            raise mistake(
                f"more than {MAX_SECOND_NAMES:,} accounts could be names of reviewers. "
                'Put the name of their system in front, as in "slack:U17".'
            )
        return accounts

    @field_validator("budgets")
    @classmethod
    def _budgets_differ(cls, budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
        check_names_differ("budget", budgets)
        return budgets

    @field_validator("rules")
    @classmethod
    def _names_differ(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        check_names_differ("rule", rules)
        return rules

    @field_validator("rules")
    @classmethod
    def _do_not_contradict(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        said: dict[object, Rule] = {}
        for index, rule in enumerate(rules):
            first = said.setdefault(rule.matches, rule)
            if first.then != rule.then:
                raise mistake(
                    f"this rule says {rule.then}, but {first.name!r} says {first.then} for the "
                    "same calls. Remove one, or give one a higher priority.",
                    index,
                    "then",
                )
        return rules

    @model_validator(mode="after")
    def _everybody_is_known(self) -> "Policy":
        for agent, owners in self.owners.items():
            self._known(owners, "owners", agent)
            # Whoever is not known to be a member would not be kept from voting.
            _no_groups(owners, "owners", agent)
        self._known(self.may_revoke, "may_revoke")
        self._known(self.may_reconcile, "may_reconcile")
        # What these people record is part of a call's status, which every reader makes of the facts
        # about the call alone.
        _no_groups(self.may_revoke, "may_revoke")
        _no_groups(self.may_reconcile, "may_reconcile")
        self._known(self.may_stop, "may_stop")
        self._known(self.may_resume, "may_resume")
        for index, rule in enumerate(self.rules):
            self._known(rule.voters, "rule", index, "voters")
            self._known(rule.break_glass, "rule", index, "break_glass")
            for number, one in enumerate(rule.also):
                self._known(one.voters, "rule", index, "also", number, "voters")
            for number, stage in enumerate(rule.stages):
                self._known(stage.voters, "rule", index, "stages", number, "voters")
            self._can_be_answered(rule, index)
            self._can_be_signed(rule, index)
        return self

    def _can_be_signed(self, rule: Rule, index: int) -> None:
        """What a provider says of a group, and a calendar of who is on call, nobody signs."""
        if not (rule.signed or self.all_signed) or rule.then != "ask":
            return
        also = (voter for one in rule.also for voter in one.voters)
        later = (voter for one in rule.stages for voter in one.voters)
        asked = self.people((*rule.voters, *also, *later, *rule.break_glass))
        if (unsigned := next(filter(is_open, asked), None)) is not None:
            raise mistake(
                f"{unsigned!r} cannot be asked for signed votes: nobody signs who that is. Name "
                "the people, or a group of [groups].",
                "rule",
                index,
                "signed" if rule.signed else "voters",
            )

    def people(self, voters: Iterable[str]) -> tuple[str, ...]:
        """Names and patterns, with groups replaced by their members."""
        found: dict[str, None] = {}
        for voter in voters:
            found |= dict.fromkeys(self.groups[voter[1:]] if voter.startswith("@") else (voter,))
        return tuple(found)

    @cached_property
    def persons(self) -> dict[str, str]:
        """By account of [people] in the form of `plain`: its person."""
        return {
            plain(account): plain(reviewer)
            for reviewer, accounts in self.accounts.items()
            for account in accounts
            if plain(account) != plain(reviewer)
        }

    @cached_property
    def second_names(self) -> dict[str, str]:
        """Those of `persons` whose account could be a reviewer's name."""
        return {account: whose for account, whose in self.persons.items() if is_token(account)}

    def quorums(self, rule: Rule) -> tuple[Quorum, ...]:
        """The quorums that this rule requires, the rule's own voters first."""
        asked = (
            (rule.voters, rule.votes_needed),
            *((one.voters, one.votes_needed) for one in rule.also),
        )
        return tuple(
            Quorum(self.people(voters), needed, " ".join(voters)) for voters, needed in asked
        )

    def stages(self, rule: Rule) -> tuple[Stage, ...]:
        """The escalation stages of this rule, in order."""
        return tuple(Stage(self.people(stage.voters), stage.expires_in_s) for stage in rule.stages)

    @cached_property
    def speaks_of_classes(self) -> bool:
        """Whether a rule matches by the class of a tool."""
        return any(rule.classes for rule in self.rules)

    @property
    def wants_signed(self) -> bool:
        """Whether any rule counts signed votes only."""
        return self.all_signed or any(rule.signed for rule in self.rules)

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """The voters whom a rule asks, at first or later."""
        asked = (
            voter
            for rule in self.rules
            if rule.then == "ask"
            for group in (
                rule.voters,
                *(one.voters for one in rule.also),
                *(stage.voters for stage in rule.stages),
            )
            for voter in self.people(group)
        )
        return tuple(dict.fromkeys(asked))

    @cached_property
    def untold(self) -> tuple[str, ...]:
        """The voters whom no notice reaches, neither themselves nor through the default room; none
        if the policy has no contacts at all. Of patterns nobody can say.
        """
        if DEFAULT_ROOM in self.rooms or not (self.contacts or self.rooms):
            return ()
        told = {self.persons.get(plain(name), plain(name)) for name in self.contacts}
        return tuple(
            one
            for one in filter(is_plain, self.asked)
            if self.persons.get(plain(one), plain(one)) not in told
        )

    def behind(self, agent: str) -> tuple[str, ...]:
        """The owners of an agent."""
        owners = [
            voters
            for pattern, voters in self.owners.items()
            if agent and fnmatchcase(agent, pattern)
        ]
        return self.people(voter for voters in owners for voter in voters)

    def with_rule(self, rule: Rule) -> "Policy":
        """The policy with one more rule at its end, without a check of it beside the others."""
        grown = self.model_copy(update={"rules": (*self.rules, rule)})
        for derived in grown.__dict__.keys() - Policy.model_fields.keys():
            del grown.__dict__[derived]  # cached of the rules before
        return grown

    def never_granted(self, tool: str) -> bool:
        """Whether no grant may cover this tool."""
        return is_among(tool, self.never_grant)

    def about(self, tool: str) -> tuple[Rule, ...]:
        """The rules that name this tool, in their order. Cached by tool."""
        if (found := self._by_tool.get(tool)) is None:
            found = tuple(rule for rule in self.rules if is_among(tool, rule.tools))
            if len(self._by_tool) < _MAX_TOOLS:
                self._by_tool[tool] = found
        return found

    @cached_property
    def _by_tool(self) -> dict[str, tuple[Rule, ...]]:
        return {}

    def _known(self, voters: Iterable[str], *place: str | int) -> None:
        for voter in voters:
            if voter.startswith("@") and voter[1:] not in self.groups:
                known = (
                    f"The groups are: {', '.join(self.groups)}."
                    if self.groups
                    else "There are none."
                )
                raise mistake(
                    f"there is no group {voter[1:]!r}. {known} Write it below [groups], or name "
                    "people.",
                    *place,
                )

    def _can_be_answered(self, rule: Rule, index: int) -> None:
        quorums = self.quorums(rule)
        by_name = [quorum for quorum in quorums if everybody((quorum,)) is not None]
        people = sorted(everybody(by_name) or ())
        if lacking(quorums, people):
            votes = needed(by_name)
            of = (
                f" of {' and '.join(quorum.name for quorum in by_name)}"
                if by_name != list(quorums)
                else ""
            )
            raise mistake(
                f"{votes} votes are needed{of}, but only {', '.join(people)} may vote"
                f"{', and nobody counts twice' if len(people) >= votes else ''}. Name more voters.",
                "rule",
                index,
                "also" if rule.also else "votes_needed",
            )
        everyone = everybody(quorums)
        if everyone is not None and rule.denials_needed > len(everyone):
            raise mistake(
                f"{rule.denials_needed} denials are needed, but only "
                f"{', '.join(sorted(everyone))} may vote. Name more voters.",
                "rule",
                index,
                "denials_needed",
            )


def _no_groups(voters: Iterable[str], *place: str) -> None:
    if named := next(filter(is_group, voters), None):
        raise mistake(f"{named!r} may not be here: name people, or write it among voters.", *place)


NO_RULE_NAME: Final = "no rule"


def read_policy(text: str, path: str) -> Policy:
    """Read the text of a policy file; `path` is only used in errors.

    Raises:
        BadFile: with the line and the rule of each mistake.
    """
    return read_toml(Policy, text, path)


def applied(text: str) -> PolicyApplied:
    """The fact that applies this text as the policy."""
    return PolicyApplied(text=text, digest=text_digest(text))
