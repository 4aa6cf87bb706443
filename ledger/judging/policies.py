"""The verdict of the policies in force on a call, as requested or as edited by a reviewer.

The policies of the workspace and of the organisation are evaluated separately, and the stricter
verdict counts: so a workspace cannot weaken the organisation's policy, whatever its priorities.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.judging.chain import Chain
from ayes.ledger.judging.grants import same
from ayes.ledger.judging.policy_rules import NO_RULE, STRICTNESS, About, RuleMatch, judge
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.events import Quorum, Shadow
from ayes.schemas.people import by_person, is_excluded, is_mapped, person, plain
from ayes.schemas.policy import Policy
from ayes.schemas.quorums import filled, is_among, is_open, is_plain, lacking, needed
from ayes.schemas.slots import CLIENT, CallRef, Slot
from ayes.schemas.tools import Tool, highest_class, judged_class


class AppliedPolicy(Struct, frozen=True):
    """A policy and its version; 0 if none was ever applied."""

    version: int = 0
    policy: Policy = Policy()
    organisation: bool = False


#: A policy that says nothing.
_SILENT: Final = Policy()


class Policies(Struct, frozen=True):
    """The policies in force in a workspace."""

    workspace: AppliedPolicy = AppliedPolicy()
    organisation: AppliedPolicy = AppliedPolicy(organisation=True)

    @property
    def speak_of_classes(self) -> bool:
        """Whether a rule matches by the class of a tool."""
        return any(one.policy.speaks_of_classes for one in (self.workspace, self.organisation))

    def grantable(self, tool: str) -> bool:
        """Whether a grant may cover this tool."""
        return not any(
            one.policy.never_granted(tool) for one in (self.workspace, self.organisation)
        )

    def limit(self, name: str) -> int | None:
        """The lower of the two policies' limits of that name; None if neither has one."""
        limits = [getattr(one.policy, name) for one in (self.workspace, self.organisation)]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def all_signed(self) -> bool:
        """Whether one of the two policies wants signed votes on each question."""
        return self.workspace.policy.all_signed or self.organisation.policy.all_signed

    def behind(self, agent: str) -> tuple[str, ...]:
        """The people who own an agent."""
        return self.organisation.policy.behind(agent) + self.workspace.policy.behind(agent)

    def accounts(self, voters: Collection[str] = ("*",)) -> dict[str, str]:
        """The accounts that could be reviewers' names but belong to persons of another name.

        If the two policies disagree about an account, the organisation's counts.

        Args:
            voters: only accounts that match these names and patterns.
        """
        found = self.workspace.policy.second_names | self.organisation.policy.second_names
        among = [plain(voter) for voter in voters]
        return {account: whose for account, whose in found.items() if is_among(account, among)}

    def reviewers_of(self, *accounts: str) -> list[str]:
        """The reviewers to whom the organisation's [people] gives one of these accounts. What a
        workspace's says lets nobody vote.
        """
        wanted = {*map(plain, accounts)}
        return [
            reviewer
            for reviewer, theirs in self.organisation.policy.accounts.items()
            if not wanted.isdisjoint(map(plain, theirs))
        ]

    def person_of(self, requester: str, *, organisation: bool = False) -> str:
        """The person of a requester, by the accounts of both policies; the organisation's first.

        Args:
            organisation: by the organisation's alone, which no workspace changes.
        """
        name, own = plain(requester), self.workspace.policy.persons
        return self.organisation.policy.persons.get(name) or (
            name if organisation else own.get(name, name)
        )

    def is_known(self, requester: str) -> bool:
        """Whether the requester can be kept from approving their own call, or need not be."""
        both = (self.organisation.policy, self.workspace.policy)
        saying = next(
            (one for one in both if "unmapped_requesters" in one.model_fields_set), _SILENT
        )
        # A workspace makes nobody known to an organisation that wants to know each of them.
        tables = both[:1] if saying is self.organisation.policy else both
        if any(is_mapped(requester, one.persons) for one in tables):
            return True
        return saying.unmapped_requesters == "exclude_nobody"

    def excluded(self, requester: str, *agents: str) -> tuple[str, ...]:
        """The people who never count: the requester by every name, and those behind the agents.

        If the two policies disagree about an account, both people are excluded. A requester who
        could not be a reviewer excludes nobody.
        """
        both = (self.organisation.policy, self.workspace.policy)
        itself = [plain(requester)] if is_mapped(requester) else []
        people = [
            person(requester, one.persons) for one in both if is_mapped(requester, one.persons)
        ]
        names = (
            name for one in both for name, whose in one.second_names.items() if whose in people
        )
        owners = chain.from_iterable(map(self.behind, agents))
        return tuple(dict.fromkeys(chain(itself, people, names, owners)))

    def people(self, key: str) -> tuple[str, ...]:
        """The voters whom `may_revoke`, `may_reconcile`, `may_stop` or `may_resume` names.

        Those of both policies may revoke and stop, which only makes things stricter. For
        reconciling and resuming, the organisation's beat the workspace's.
        """
        named = [
            one.people(getattr(one, key))
            for one in (self.organisation.policy, self.workspace.policy)
        ]
        if key in {"may_revoke", "may_stop"}:
            return tuple(dict.fromkeys(chain(*named)))
        return next(filter(None, named), ())


class Origin(Struct, frozen=True):
    """The origin of a call: the opening of its thread, the model's reply, the calls above."""

    opened: Fact | None = None
    reply: Fact | None = None
    chain: Chain = Chain()


def reply_slot(ref: CallRef) -> Slot | None:
    """The slot of the reply with the wish for this call; None for a service's own call."""
    return ref.thread_ref.replied(ref.wish[0]) if ref.wish is not None else None


def origin_slots(ref: CallRef) -> tuple[Slot, ...]:
    """The slots of a call's origin."""
    reply = reply_slot(ref)
    return (ref.thread_ref.opened, reply) if reply is not None else (ref.thread_ref.opened,)


def origin(call: Call, facts: Iterable[Fact]) -> Origin:
    """The origin of a call, as recorded before its request."""
    assert call.requested
    until, reply = call.requested.seq, reply_slot(call.ref)
    opened = call.ref.thread_ref.opened
    before = {
        fact.slot: fact for fact in facts if fact.slot in (opened, reply) and fact.seq < until
    }
    return Origin(before.get(opened), before.get(reply) if reply is not None else None)


def wished(opened: e.ThreadOpened, wish: e.Wish) -> e.ToolRequested:
    """The request for a model's wish, with requester, agent and labels of its thread."""
    tool = next((one for one in reversed(opened.tools) if one.tool == wish.tool), None)
    version = tool.version if tool else ""  # not offered: the gate will deny it
    run_by = tool.run_by if tool else CLIENT
    return e.ToolRequested(
        tool=wish.tool,
        tool_version=version,
        arguments=wish.arguments,
        digest=call_digest(wish.tool, version, wish.arguments),
        requester=opened.requester,
        agent=opened.agent,
        provider_id=wish.provider_id,
        run_by=run_by,
        labels=opened.labels,
        layout=2 if run_by == CLIENT else 1,
    )


def attributed(call: Call, origin: Origin) -> Call:
    """The call with the requester, agent and labels of its thread if the request omits them."""
    opened = origin.opened.event if origin.opened else None
    if not isinstance(opened, e.ThreadOpened) or call.requested is None:
        return call
    wish = call.wish
    whose = replace(
        wish,
        requester=wish.requester or opened.requester,
        agent=wish.agent or opened.agent,
        labels=wish.labels or opened.labels,
    )
    return call if whose == wish else replace(call, requested=replace(call.requested, event=whose))


def classed(call: Call, tool: Tool | None, above: Chain) -> Call:
    """The call with the class by which rules judge it.

    Args:
        tool: its declaration; None if there is none.
        above: with the classes of its calls (`with_classes`).
    """
    classes = (judged_class(tool), *(link.tool_class for link in above.links))
    return replace(call, tool_class=highest_class(classes))


def disowned(call: Call, origin: Origin) -> str | None:
    """Why a request does not match its thread, or the thread its parent; None if they do.

    In an opened thread all calls have the thread's requester, agent and labels. If a model answers,
    a request with the id of a wish must be that wish; services use other ids.
    """
    opened = origin.opened.event if origin.opened else None
    if opened is None:
        return None
    if not isinstance(opened, e.ThreadOpened):
        return "The opening of the thread cannot be read, so it is not known whose wish this is."
    if origin.chain.problem:
        return origin.chain.problem
    wish = call.wish
    for what in ("requester", "agent", "labels"):
        named = getattr(wish, what)
        if named and named != getattr(opened, what):
            return (
                f"The request names other {what} than the thread was opened with. Leave {what} out."
            )
    if not opened.model or call.ref.wish is None:
        return None
    reply = origin.reply.event if origin.reply else None
    wishes = (
        [part for part in reply.parts if isinstance(part, e.Wish)]
        if isinstance(reply, e.ModelReplied)
        else []
    )
    _turn, index = call.ref.wish
    if index < len(wishes):
        asked_for = wished(opened, wishes[index])
        if all(getattr(wish, what) == getattr(asked_for, what) for what in _OF_A_WISH):
            return None
    not_wished = f"The model did not wish for this as {call.ref.call}"
    return f"{not_wished}. A service's own calls need ids of another form."


_OF_A_WISH: Final = ("tool", "tool_version", "arguments", "run_by")


class PolicyDecision(Struct, frozen=True):
    """The verdict that counts, and its policy."""

    judged: RuleMatch
    by: AppliedPolicy
    #: The workspace's rule if both policies ask people.
    beside: RuleMatch | None = None
    shadows: tuple[Shadow, ...] = ()

    @property
    def mode(self) -> e.Mode:
        """The stricter mode of the rules that ask."""
        modes = {one.mode for one in (self.judged, self.beside) if one is not None}
        return "four_eyes" if "four_eyes" in modes else "requester_confirms"

    @property
    def signed(self) -> bool:
        """Whether one of the rules wants signed votes."""
        return any(one is not None and one.rule.signed for one in (self.judged, self.beside))


def evaluate(policies: Policies, about: About) -> PolicyDecision:
    """The stricter of the two verdicts. The organisation's counts only if a rule of it matches."""
    own = judge(policies.workspace.policy, about)
    over = judge(policies.organisation.policy, about)
    shadows = over.shadows + own.shadows
    if over.rule is NO_RULE or STRICTNESS[over.then] < STRICTNESS[own.then]:
        return PolicyDecision(own, policies.workspace, shadows=shadows)
    both_ask = over.then == own.then == "ask" and own.rule is not NO_RULE
    return PolicyDecision(over, policies.organisation, own if both_ask else None, shadows)


def required(policies: Policies, ruling: PolicyDecision) -> tuple[tuple[Quorum, ...], ...]:
    """The sets of quorums that a ruling asks for; the same votes must meet each set."""
    own = ruling.by.policy.quorums(ruling.judged.rule)
    if ruling.beside is None:
        return (own,)
    return own, policies.workspace.policy.quorums(ruling.beside.rule)


def about(call: Call, arguments: str | None = None) -> About:
    """The call as a policy judges it, with arguments that fit the tool's schema."""
    wish = call.wish
    return About(
        tool=wish.tool,
        args=None if arguments is None else strict_json.read(arguments),
        agent=wish.agent,
        requester=wish.requester,
        workspace=call.ref.workspace,
        thread=call.ref.thread,
        labels=wish.labels,
        tool_class=call.tool_class,
    )


def block(policies: Policies, call: Call, arguments: str) -> PolicyDecision | None:
    """The ruling if the policies in force block these arguments: a later policy may be stricter."""
    ruling = evaluate(policies, about(call, arguments))
    return ruling if ruling.judged.then == "block" else None


def of_edit(
    policies: Policies, tool: Tool | None, call: Call, arguments: str
) -> tuple[tuple[Quorum, ...], ...] | None:
    """Quorums that must also approve edited arguments; None if these may not run."""
    if tool is None or tool.problems(arguments) is not None:
        return None
    if tool.seal_problem(call.wish.arguments, arguments):
        return None
    ruling = evaluate(policies, about(call, arguments))
    if ruling.judged.then != "ask":
        return () if ruling.judged.then == "allow" else None
    # What takes four eyes is no edit of what the requester may confirm.
    asking = call.approval_request
    if asking is not None and asking.mode != "four_eyes" and ruling.mode == "four_eyes":
        return None
    # Nor is what takes signed votes one of what takes any.
    if asking is not None and not asking.signed and (ruling.signed or policies.all_signed):
        return None
    return required(policies, ruling)


def is_possible(call: Call, required: Iterable[Sequence[Quorum]]) -> bool:
    """Whether the people who were asked about the call could also meet these quorums."""
    asking = call.approval_request
    if asking is None:
        return False
    asked = (*call.voters(), *(voter for stage in asking.stages for voter in stage.voters))
    for wanted in required:
        named = dict.fromkeys((*(voter for quorum in wanted for voter in quorum.voters), *asked))
        names = [
            one
            for one in named
            if is_plain(one)
            and (is_among(one, asked) or any(map(is_open, asked)))
            and not is_excluded(one, asking.excluded, asking.people)
        ]
        quorums, able = by_person(wanted, names, asking.people)
        closed = all(map(is_plain, asked))
        if (needed(quorums) - filled(quorums, able) if closed else lacking(quorums, able)) > 0:
            return False
    return True


class ThreadUsage(Struct, frozen=True):
    """The earlier calls of a thread."""

    #: Requested calls, and those that people were asked about. Read only if a policy limits them.
    calls: int
    questions: int
    #: Requested calls that are not judged yet: each of them may be put to people.
    unjudged: int
    #: People's last denial of the same call, if the user has said nothing since.
    denied: Fact | None
    #: The repetitions since that denial.
    repeats: int


def thread_usage(call: Call, facts: Iterable[Fact]) -> ThreadUsage:
    """The usage before a call, by the requests, questions, decisions and messages of its thread."""
    assert call.requested
    facts = tuple(facts)
    before = [fact for fact in facts if fact.seq < call.requested.seq]
    wishes = [fact for fact in before if isinstance(fact.event, e.ToolRequested)]
    alike = _alike(call.wish, wishes)
    denied = _denial(before, {fact.slot.call_ref for fact in alike})
    # The wishes of one reply are all recorded before any is judged, so these two include later
    # facts.
    wished = {fact.slot.call_ref for fact in wishes}
    asked = {fact.slot.call_ref for fact in facts if isinstance(fact.event, e.ApprovalRequested)}
    decided = {fact.slot.call_ref for fact in facts if fact.slot.tail[-1] == "decided"}
    return ThreadUsage(
        calls=len(wishes),
        questions=len(wished & asked),
        unjudged=len(wished - asked - decided),
        denied=denied,
        repeats=sum(denied is not None and fact.seq > denied.seq for fact in alike),
    )


def _alike(wish: e.ToolRequested, wishes: Sequence[Fact]) -> list[Fact]:
    """The requests for the same tool and version with arguments of the same value."""
    try:
        value = strict_json.read(wish.arguments)
    except strict_json.BadJson:
        return []  # it is denied as invalid, and never repeats what people denied
    return [
        fact
        for fact in wishes
        if isinstance(fact.event, e.ToolRequested)
        and (fact.event.tool, fact.event.tool_version) == (wish.tool, wish.tool_version)
        and (fact.event.arguments == wish.arguments or same(fact.event.arguments, value))
    ]


def _denial(before: Sequence[Fact], refs: set[object]) -> Fact | None:
    """The last time people said no to one of these calls, unless they said yes or a user has spoken
    since.
    """
    for fact in reversed(before):
        match fact.event:
            case e.Said(role="user"):
                return None
            case e.Approved(ground="people" | "grant" | "broken_glass") if (
                fact.slot.call_ref in refs
            ):
                return None
            case e.Denied(ground="people") if fact.slot.call_ref in refs:
                return fact
            case _:
                pass
    return None
