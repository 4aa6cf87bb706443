"""The recorded policies and declarations that count, by the facts alone.

Others may write to these slots: a newer program, a misconfigured one, an attacker with a role's
credentials. A version that cannot be read or is not valid is void: it neither stops nor loosens
anything, the last valid version stays in force, and people are alerted (docs/decisions/0019).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from ayes.ledger.judging.policies import AppliedPolicy
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import BadFact, BadFile
from ayes.schemas.policy import Policy, read_policy
from ayes.schemas.slots import ORGANISATION, POLICY, TOOL
from ayes.schemas.tools import Tool, version_of


class VoidVersion(Struct, frozen=True):
    """A fact in a slot for policies or declarations that does not count."""

    seq: int
    subject: str
    why: str


def subject_of(fact: Fact) -> str:
    """The subject of a fact, also if it is not a slot of the ledger."""
    return fact.slot.subject if fact.slot.workspace else fact.slot.tail[0]


#: Why versions lack an approved proposal, by sequence (`ayes.ledger.judging.policy_proposals`), or
#: the signatures that the trust file wants.
type Unapproved = Mapping[int, str]
_NONE: Final[Unapproved] = MappingProxyType({})


def policy_of(fact: Fact, unapproved: Unapproved = _NONE) -> AppliedPolicy:
    """The policy that a fact applies.

    Raises:
        BadFact: it is void; the message says why.
        BadFile: the same, where the text of the policy is wrong.
    """
    applied = _event(fact, POLICY)
    if not isinstance(applied, e.PolicyApplied):
        raise BadFact("it is not a policy that this program knows")
    if text_digest(applied.text) != applied.digest:
        raise BadFact("its digest is not that of its text")
    policy = read_policy(applied.text, subject_of(fact))
    if (why := unapproved.get(fact.seq)) is not None:
        raise BadFact(why)
    return AppliedPolicy(int(fact.slot.tail[1]), policy, fact.slot.workspace == ORGANISATION)


def policy_in_force(
    facts: Iterable[Fact], *, organisation: bool = False, unapproved: Unapproved = _NONE
) -> AppliedPolicy:
    """The newest policy of one owner that counts; if there are only void ones, people are asked."""
    any_at_all = False
    for fact in reversed(tuple(facts)):
        any_at_all = True
        try:
            return policy_of(fact, unapproved)
        except (BadFact, BadFile):
            pass
    return AppliedPolicy(0, _ASKS if any_at_all else Policy(), organisation)


def tool_of(fact: Fact) -> Tool:
    """The tool that a fact declares.

    Raises:
        BadFact: it is void; the message says why.
    """
    declared = _event(fact, TOOL)
    if not isinstance(declared, e.ToolDeclared):
        raise BadFact("it is not a declaration that this program knows")
    name, version = fact.slot.tool
    if (right := version_of(name, declared)) != version:
        raise BadFact(f"its version is not the digest of what it declares, which is {right}")
    return Tool(name, version, declared)


def needing_approval(
    facts: Iterable[Fact], organisation: Sequence[Fact], unapproved: Unapproved = _NONE
) -> tuple[Fact, ...]:
    """The workspaces' versions that were applied while the organisation required approval.

    Args:
        organisation: the versions of the organisation's policy.
        unapproved: why some of these do not count.
    """
    return tuple(
        fact
        for fact in facts
        if fact.slot.workspace not in {"", ORGANISATION}
        and policy_in_force(
            [one for one in organisation if one.seq < fact.seq],
            organisation=True,
            unapproved=unapproved,
        ).policy.policies_need_approval
    )


def void_policies(facts: Iterable[Fact], unapproved: Unapproved = _NONE) -> tuple[VoidVersion, ...]:
    """The void versions that are newer than the one in force, for each owner of a policy."""
    return _void(facts, lambda fact: policy_of(fact, unapproved), parts=3)


def void_tools(facts: Iterable[Fact]) -> tuple[VoidVersion, ...]:
    """The void declarations that are newer than every one that counts, for each tool."""
    return _void(facts, tool_of, parts=4)


def _void(
    facts: Iterable[Fact], read: Callable[[Fact], object], *, parts: int
) -> tuple[VoidVersion, ...]:
    by_owner: defaultdict[tuple[str, ...], list[Fact]] = defaultdict(list)
    for fact in facts:
        by_owner[tuple(subject_of(fact).split(".")[:parts])].append(fact)
    found = [void for own in by_owner.values() for void in _newer(own, read)]
    return tuple(sorted(found, key=lambda void: void.seq))


def _newer(facts: Sequence[Fact], read: Callable[[Fact], object]) -> Iterable[VoidVersion]:
    for fact in reversed(facts):
        try:
            read(fact)
        except (BadFact, BadFile) as problem:
            yield VoidVersion(fact.seq, subject_of(fact), str(problem).rstrip("."))
        else:
            return


def _event(fact: Fact, kind: str) -> e.AnyEvent:
    match fact.event:
        case e.Carried(problem=problem) if problem:
            raise BadFact(problem)
        case e.Carried(type=type_, v=version):
            raise BadFact(f"it is of a newer program: {type_}, version {version}")
        case event if fact.slot.tail[0] == kind:
            return event
        case _:
            raise BadFact(f"there is nothing of the kind {kind} in {subject_of(fact)}")


_ASKS: Final = read_policy(
    """
    [[rule]]
    name = "unreadable"
    tools = ["*"]
    then = "ask"
    reason = "The policy that was applied cannot be read, so people are asked about everything."
    """,
    "",
)
