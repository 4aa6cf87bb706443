"""Setting up a broker: streams, consumers, and the policy in force."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging import policy_proposals as proposals
from ayes.ledger.judging.in_force import policy_in_force, policy_of
from ayes.ledger.judging.unjudged import unjudged_rule
from ayes.ledger.lifecycle import Status
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import ensure
from ayes.ledger.seal import SignerKey
from ayes.ledger.signing import policy_digest, signed
from ayes.ledger.subscriptions import ACK_WAIT_S
from ayes.schemas.codec import Fact
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import (
    AlreadyFilled,
    BadFact,
    BadFile,
    BadInput,
    Defect,
    NotOpen,
    UnknownTool,
)
from ayes.schemas.events import PolicyApplied
from ayes.schemas.policy import Policy, applied, read_policy
from ayes.schemas.slots import (
    ORGANISATION,
    ROOT,
    TOOL,
    CallRef,
    declarations,
    policies,
    policy_slot,
)


async def declare_streams(
    store: Path | str | None = None,
    *,
    ack_wait_s: float = ACK_WAIT_S,
    replicas: int = 1,
    also: Sequence[str] = (),
    max_bytes: int | None = None,
    packed: bool = False,
) -> None:
    """Create missing streams and consumers, and set missing bounds.

    Args:
        also: the optional consumers to create.
        max_bytes: the bound of the log in bytes; by default its present one, or else as declared.
        packed: the facts of the log may leave its stream. A log that is there stays as it is.

    Raises:
        BadInput: the log holds more than `max_bytes`, or is not `packed` and is to be.
        BrokerRefused: the broker does not allow it, or has no room for them.
    """
    async with JetStream.connect(store, role="admin") as log:
        await ensure(
            log.api,
            replicas=replicas,
            ack_wait_s=ack_wait_s,
            also=also,
            max_bytes=max_bytes,
            packed=packed,
        )


def check_policy(text: str, source: str, *, empty: bool = False) -> Policy:
    """Read a text that is to become a policy.

    Args:
        source: where the text is from, for errors.
        empty: it is meant to have no entries.

    Raises:
        BadFile: the text is wrong, or has no entries and is not meant to have none.
    """
    policy = read_policy(text, source)
    if not (policy.model_fields_set or empty):
        raise BadFile(
            source,
            "",
            "is empty: as a policy it would take every rule away. If that is meant: "
            "ayes policy apply --empty.",
        )
    return policy


async def apply_policy(
    ledger: Ledger,
    workspace: str,
    text: str,
    source: str,
    *,
    empty: bool = False,
    keys: Sequence[SignerKey] = (),
    signatures: Sequence[str] = (),
) -> int:
    """Make a text the workspace's policy, unless it is in force already. Returns its version.

    Args:
        workspace: or `ORGANISATION`, for the policy that holds in every workspace.
        source, empty: as of `check_policy`.
        keys: that sign it.
        signatures: by keys that are elsewhere, of the version that it will be.

    Raises:
        BadFile: the text is wrong; nothing was recorded.
    """
    await _check_judges(ledger, workspace, check_policy(text, source, empty=empty))
    for _ in range(100):
        versions = await ledger.log.read(policies(workspace))
        newest = versions[-1] if versions else None
        if newest and _applies(newest, applied(text)) and not (keys or signatures):
            return int(newest.slot.tail[1])
        version = _free(versions)
        made = await policy_signatures(ledger, workspace, version, text, keys) if keys else ()
        wanted = replace(applied(text), signatures=(*signatures, *made))
        # If another policy is applied at the same time and takes this number, ours comes after it.
        if await ledger.try_append(policy_slot(workspace, version), wanted) is None:
            return version
    raise Defect(
        f"a hundred other policies were applied to {workspace} meanwhile; please report it"
    )


async def _check_judges(ledger: Ledger, workspace: str, policy: Policy) -> None:
    """Refuse a policy that reads what a tool seals.

    Raises:
        BadInput: with the rule or budget.
    """
    of_all = workspace == ORGANISATION
    declared = f"{ROOT}.*.{TOOL}.*.*" if of_all else declarations(workspace)
    facts = await ledger.read(declared)
    for owner, name in {(one.slot.workspace, one.slot.tool[0]) for one in facts if one.slot.tail}:
        with suppress(UnknownTool):  # each declaration of it is void
            if problem := unjudged_rule(await ledger.tool(owner, name), policy):
                raise BadInput(f"the policy is not applied: {problem} Nothing was recorded.")


async def policy_signatures(
    ledger: Ledger, owner: str, version: int, text: str, keys: Sequence[SignerKey]
) -> tuple[str, ...]:
    """The signatures of these keys for a text as that version of a policy."""
    digest = policy_digest(await ledger.log.identity(), owner, version, text)
    return tuple(signed(key, digest) for key in keys)


async def next_version(ledger: Ledger, owner: str) -> int:
    """The number of the version that is applied next."""
    return _free(await ledger.log.read(policies(owner)))


def _applies(fact: Fact, wanted: PolicyApplied) -> bool:
    try:
        policy_of(fact)
    except (BadFact, BadFile):
        return False
    return isinstance(fact.event, PolicyApplied) and fact.event.digest == wanted.digest


def _free(versions: Sequence[Fact]) -> int:
    """The number after the newest version that counts, or the next free one."""
    taken = {int(fact.slot.tail[1]) for fact in versions if fact.slot.workspace}
    after = policy_in_force(versions).version + 1
    return next(
        number for number in chain(range(after, 10**9), range(1, after)) if number not in taken
    )


async def propose_policy(
    ledger: Ledger, workspace: str, text: str, source: str, requester: str, *, empty: bool = False
) -> Call:
    """Ask people to approve a text as the workspace's next policy. Proposing it again returns the
    same call.

    Raises:
        BadFile: the text is wrong; nothing was recorded.
    """
    await _check_judges(ledger, workspace, check_policy(text, source, empty=empty))
    latest = await ledger.log.latest(policies(workspace))
    base = int(latest.slot.tail[1]) if latest else 0
    tool = await ledger.declare(workspace, proposals.APPLY)
    ref = proposals.proposal_ref(workspace, base, text_digest(text))
    return await ledger.request(ref, tool, proposals.arguments(text, base), requester=requester)


def proposed_text(call: Call) -> str:
    """The text that a call proposes, as people approved it if they changed it.

    Raises:
        BadInput: the call is not a proposal.
    """
    if call.wish.tool != proposals.APPLY.name:
        raise BadInput(
            f"{call.ref} is a call of {call.wish.tool!r} and not a proposal. "
            "`policy apply --propose` makes one."
        )
    return str(msgspec.json.decode(call.arguments)["text"])


async def apply_proposal(operator: Ledger, service: Ledger, ref: CallRef) -> int:
    """Make an approved proposal the workspace's policy. Returns its version. Safe to repeat.

    Args:
        operator: with the right to record policies.
        service: with the right to finish the call.

    Raises:
        BadInput: the call is not a proposal.
        NotOpen: it was not approved, or the approval was taken back.
        AlreadyFilled: another version was applied after it was proposed.
    """
    call = await service.known_call(ref)
    text = proposed_text(call)
    if (
        call.status not in (Status.APPROVED, Status.RUNNING, Status.RETURNED)
        or call.flaw is not None
    ):
        raise NotOpen(
            f"{ref} is {call.status.replace('_', ' ')}. Only a proposal that people approved is "
            "applied."
        )
    version = int(msgspec.json.decode(call.arguments)["base"]) + 1
    await _check_judges(operator, ref.workspace, read_policy(text, str(ref)))
    applied = PolicyApplied(text=text, digest=text_digest(text), proposal=str(ref))
    first = await operator.try_append(policy_slot(ref.workspace, version), applied)
    if first is not None and not (
        isinstance(first.event, PolicyApplied) and first.event.proposal == str(ref)
    ):
        raise AlreadyFilled(
            f"version {version} was applied after {ref} was proposed. Propose the file again."
        )
    if call.status is Status.APPROVED:
        await service.start(ref)
    if call.status is not Status.RETURNED:
        await service.finish(ref, output=f"It is version {version}.")
    return version
