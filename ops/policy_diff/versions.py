"""Policies compared: two of them, a text with the version in force, versions by their numbers."""

import asyncio
from collections.abc import Sequence
from threading import Lock
from typing import Final

from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.in_force import policy_of
from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ops.policy_diff.difference import PolicyDifference, other_keys, other_settings
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadFact, BadFile, BadInput
from ayes.schemas.events import PolicyApplied
from ayes.schemas.policy import Policy, read_policy
from ayes.schemas.slots import ORGANISATION

#: The solver has one state for all threads.
_ONE_AT_A_TIME: Final = Lock()
INSTALL: Final = "pip install 'ayes[prove]'"


def difference(
    old: Policy, new: Policy, beside: Policy | None = None, *, organisation: bool = False
) -> PolicyDifference:
    """Compare two policies of a workspace, or of the organisation.

    Args:
        beside: the organisation's, if the two are a workspace's.
        organisation: the two are the organisation's; the workspace allows everything.

    Raises:
        BadInput: the extra is not installed.
    """
    try:
        from ayes.ops.policy_diff.compare import compare
    except ImportError as problem:
        if problem.name != "z3":
            raise
        raise BadInput(
            f"z3-solver, which compares policies, is not installed: {INSTALL}."
        ) from None
    both = (_in_force(one, beside, organisation=organisation) for one in (old, new))
    with _ONE_AT_A_TIME:
        return compare(*both, rules=other_keys(old, new), settings=other_settings(old, new))


def _in_force(policy: Policy, beside: Policy | None, *, organisation: bool) -> Policies:
    own, over = (_open(), policy) if organisation else (policy, beside or Policy())
    return Policies(AppliedPolicy(0, own), AppliedPolicy(0, over, organisation=True))


def _open() -> Policy:
    """A workspace's policy that allows everything."""
    return Policy.model_validate(
        {"rule": [{"name": "everything", "tools": ["*"], "then": "allow"}]}
    )


async def opened_by(ledger: Ledger, owner: str, text: str, source: str) -> PolicyDifference:
    """What a text would open as the next version, beside the organisation's policy.

    Raises:
        BadInput: the extra that finds out is not installed.
    """
    in_force = await ledger.policies(owner)
    is_all = owner == ORGANISATION
    old = in_force.organisation.policy if is_all else in_force.workspace.policy
    beside = None if is_all else in_force.organisation.policy
    return await compared(old, read_policy(text, source), beside, organisation=is_all)


async def compared(
    old: Policy, new: Policy, beside: Policy | None = None, *, organisation: bool = False
) -> PolicyDifference:
    """As `difference`, in a thread of its own: it may take a while."""
    return await asyncio.to_thread(difference, old, new, beside, organisation=organisation)


def version_of(facts: Sequence[Fact], version: int, whose: str) -> Fact:
    """A version of a policy, as it was applied.

    Args:
        whose: what the policy is called.

    Raises:
        BadInput: there is none of that number.
    """
    numbered = {int(fact.slot.tail[1]): fact for fact in facts if fact.slot.workspace}
    if version not in numbered:
        raise BadInput(
            f"there is no version {version} of {whose}. The versions are 1 to {max(numbered)}."
            if numbered
            else f"there is no version {version} of {whose}: none was ever applied."
        )
    return numbered[version]


def read_version(facts: Sequence[Fact], version: int, whose: str) -> tuple[str, Policy]:
    """The text of a version, and the policy.

    Raises:
        BadInput: there is none of that number, or it is void.
    """
    fact = version_of(facts, version, whose)
    try:
        policy = policy_of(fact).policy
    except (BadFact, BadFile) as why:
        raise BadInput(f"version {version} of {whose} cannot be compared: {why}") from None
    assert isinstance(fact.event, PolicyApplied)
    return fact.event.text, policy
