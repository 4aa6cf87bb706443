"""What the policies in force say to a wish, as it came or as a reviewer would have it run.

The workspace's policy and the organisation's are judged by apart, and the stricter word counts: so a workspace cannot
weaken what the organisation says, whatever priorities it writes.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ledger.lifecycle import Call
from schemas import events as e
from schemas import jsontext
from schemas.codec import Fact
from schemas.events import Quorum, Shadow
from schemas.policy import NO_RULE, STRICTNESS, About, Judged, Policy, judge
from schemas.quorums import filled, is_among, is_plain, lacking, needed
from schemas.tools import Tool


class InForce(Struct, frozen=True):
    """A policy and its version; 0 where none was ever applied."""

    version: int = 0
    policy: Policy = Policy()
    organisation: bool = False


class Policies(Struct, frozen=True):
    """Those that hold in a workspace."""

    workspace: InForce = InForce()
    organisation: InForce = InForce(organisation=True)

    def grantable(self, tool: str) -> bool:
        """May a standing approval cover this tool?"""
        return not any(one.policy.never_granted(tool) for one in (self.workspace, self.organisation))

    def limit(self, name: str) -> int | None:
        """The lower of the two policies' limits of that name; None where neither has one."""
        limits = [getattr(one.policy, name) for one in (self.workspace, self.organisation)]
        return min((limit for limit in limits if limit is not None), default=None)

    def behind(self, agent: str) -> tuple[str, ...]:
        """Who owns an agent."""
        return self.organisation.policy.behind(agent) + self.workspace.policy.behind(agent)


class Ruling(Struct, frozen=True):
    """The word that counts, and by which policy."""

    judged: Judged
    by: InForce
    #: What the workspace's rule asks for, where the organisation's asks too.
    beside: Judged | None = None
    #: What rules without effect would have said.
    shadows: tuple[Shadow, ...] = ()


def ruled(policies: Policies, about: About) -> Ruling:
    """The stricter of the two policies' words. The organisation's says nothing where none of its rules matches."""
    own = judge(policies.workspace.policy, about)
    over = judge(policies.organisation.policy, about)
    shadows = over.shadows + own.shadows
    if over.rule is NO_RULE or STRICTNESS[over.then] < STRICTNESS[own.then]:
        return Ruling(own, policies.workspace, shadows=shadows)
    both_ask = over.then == own.then == "ask" and own.rule is not NO_RULE
    return Ruling(over, policies.organisation, own if both_ask else None, shadows)


def required(policies: Policies, ruling: Ruling) -> tuple[tuple[Quorum, ...], ...]:
    """Who must agree where this ruling asks: each of these sets of quorums, by the same votes."""
    own = ruling.by.policy.quorums(ruling.judged.rule)
    if ruling.beside is None:
        return (own,)
    return own, policies.workspace.policy.quorums(ruling.beside.rule)


def about(call: Call, arguments: str | None = None) -> About:
    """The wish as a policy judges it; `arguments` are those that were found to fit the tool's schema."""
    wish = call.wish
    return About(
        tool=wish.tool,
        args=None if arguments is None else jsontext.read(arguments),
        agent=wish.agent,
        requester=wish.requester,
        workspace=call.ref.workspace,
        thread=call.ref.thread,
        labels=wish.labels,
    )


def block(policies: Policies, call: Call, arguments: str) -> Ruling | None:
    """The ruling, if the policies in force block the call with these arguments: a later word may tighten."""
    ruling = ruled(policies, about(call, arguments))
    return ruling if ruling.judged.then == "block" else None


def of_edit(
    policies: Policies, tool: Tool | None, call: Call, arguments: str
) -> tuple[tuple[Quorum, ...], ...] | None:
    """Who must agree, beyond those who were asked, to what a reviewer would have it run. None: it may not run so."""
    if tool is None or tool.problems(arguments) is not None:
        return None
    ruling = ruled(policies, about(call, arguments))
    if ruling.judged.then == "block":
        return None
    return required(policies, ruling) if ruling.judged.then == "ask" else ()


def is_possible(call: Call, required: Iterable[Sequence[Quorum]]) -> bool:
    """Could those who were asked about the call ever agree to this as well? Not where it takes others."""
    asking = call.asking
    if asking is None:
        return False
    asked = (*call.voters(), *(voter for stage in asking.stages for voter in stage.voters))
    for quorums in required:
        named = dict.fromkeys((*(voter for quorum in quorums for voter in quorum.voters), *asked))
        able = [
            one
            for one in named
            if is_plain(one) and is_among(one, asked) and not is_among(one, asking.excluded)
        ]
        closed = all(map(is_plain, asked))
        if (needed(quorums) - filled(quorums, able) if closed else lacking(quorums, able)) > 0:
            return False
    return True


class Past(Struct, frozen=True):
    """What a thread went through before a wish."""

    #: Requested, and put to people. Counted where a policy limits them; else these facts are not read.
    calls: int
    questions: int
    #: Requested, and neither put to people nor decided yet: each of them may become a question.
    unjudged: int
    #: The same call as people denied it last, if the user has said nothing since; and how often it was repeated since.
    denied: Fact | None
    repeats: int


def past(call: Call, facts: Iterable[Fact]) -> Past:
    """The past of a call, by the requests, questions, decisions and messages of its thread."""
    assert call.requested
    facts = tuple(facts)
    before = [fact for fact in facts if fact.seq < call.requested.seq]
    wishes = [fact for fact in before if isinstance(fact.event, e.ToolRequested)]
    same = [fact for fact in wishes if _digest(fact) == call.wish.digest]
    denied = _denial(before, {fact.slot.call_ref for fact in same})
    # Wishes of one reply are recorded before any of them is judged, so these two are looked for after the wish as well.
    wished = {fact.slot.call_ref for fact in wishes}
    asked = {fact.slot.call_ref for fact in facts if isinstance(fact.event, e.ApprovalRequested)}
    decided = {fact.slot.call_ref for fact in facts if fact.slot.tail[-1] == "decided"}
    return Past(
        calls=len(wishes),
        questions=len(wished & asked),
        unjudged=len(wished - asked - decided),
        denied=denied,
        repeats=sum(denied is not None and fact.seq > denied.seq for fact in same),
    )


def _digest(fact: Fact) -> str:
    return fact.event.digest if isinstance(fact.event, e.ToolRequested) else ""


def _denial(before: Sequence[Fact], refs: set[object]) -> Fact | None:
    """The last time people said no to one of these calls, unless they said yes or a user has spoken since."""
    for fact in reversed(before):
        match fact.event:
            case e.Said(role="user"):
                return None
            case e.Approved(ground="people" | "grant" | "broken_glass") if fact.slot.call_ref in refs:
                return None
            case e.Denied(ground="people") if fact.slot.call_ref in refs:
                return fact
            case _:
                pass
    return None
