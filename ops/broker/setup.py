"""Setting a broker up: streams, consumers, and the policy in force."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec

from ayes.ledger import policy_proposals as proposals
from ayes.ledger.in_force import policy_in_force, policy_of
from ayes.ledger.lifecycle import Call, Status
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import ensure
from ayes.ledger.services import Ledger
from ayes.ledger.subscriptions import ACK_WAIT_S
from ayes.schemas.codec import Fact
from ayes.schemas.digest import text_digest
from ayes.schemas.errors import AlreadyFilled, BadFact, BadFile, BadInput, Defect, NotOpen
from ayes.schemas.events import PolicyApplied
from ayes.schemas.policy import applied, read_policy
from ayes.schemas.slots import CallRef, policies, policy_slot
from ayes.schemas.toml_files import read_text


async def declare_streams(
    store: Path | str | None = None,
    *,
    url: str | None = None,
    ack_wait_s: float = ACK_WAIT_S,
    replicas: int = 1,
    also: Sequence[str] = (),
    max_bytes: int | None = None,
) -> None:
    """Create the streams and consumers that are missing, and bound what has no bound.

    Args:
        also: which of the optional consumers.
        max_bytes: the most bytes of the log; None: what it is bounded to already, else as declared.

    Raises:
        BadInput: the log holds more than `max_bytes`.
        BrokerRefused: the broker does not allow it or cannot hold them.
    """
    async with JetStream.connect(store, url=url, role="admin") as log:
        await ensure(
            log.api, replicas=replicas, ack_wait_s=ack_wait_s, also=also, max_bytes=max_bytes
        )


async def apply_policy(ledger: Ledger, workspace: str, path: str) -> int:
    """Make a file the workspace's policy; answers with its version. The one in force applied again
    stays.

    Args:
        workspace: or `ORGANISATION`, for what holds in every workspace.

    Raises:
        BadFile: the file is wrong; nothing was recorded.
    """
    text = read_text(path)
    read_policy(text, path)
    wanted = applied(text)
    for _ in range(100):
        versions = await ledger.log.read(policies(workspace))
        newest = versions[-1] if versions else None
        if newest and _applies(newest, wanted):
            return int(newest.slot.tail[1])
        version = _free(versions)
        # Somebody else may apply one at the same time: then theirs has this number, and ours comes
        # after it.
        if await ledger.try_append(policy_slot(workspace, version), wanted) is None:
            return version
    raise Defect(
        f"a hundred other policies were applied to {workspace} meanwhile; please report it"
    )


def _applies(fact: Fact, wanted: PolicyApplied) -> bool:
    try:
        policy_of(fact)
    except (BadFact, BadFile):
        return False
    return isinstance(fact.event, PolicyApplied) and fact.event.digest == wanted.digest


def _free(versions: Sequence[Fact]) -> int:
    """The number after the newest version that counts, or the next one that nothing stands
    under.
    """
    taken = {int(fact.slot.tail[1]) for fact in versions if fact.slot.workspace}
    after = policy_in_force(versions).version + 1
    return next(
        number for number in chain(range(after, 10**9), range(1, after)) if number not in taken
    )


async def propose_policy(ledger: Ledger, workspace: str, path: str, requester: str) -> Call:
    """Put a file to people as the next version of the workspace's policy. The same proposed again
    is the same call.

    Raises:
        BadFile: the file is wrong; nothing was recorded.
    """
    text = read_text(path)
    read_policy(text, path)
    latest = await ledger.log.latest(policies(workspace))
    base = int(latest.slot.tail[1]) if latest else 0
    tool = await ledger.declare(workspace, proposals.APPLY)
    ref = proposals.proposal_ref(workspace, base, text_digest(text))
    return await ledger.request(ref, tool, proposals.arguments(text, base), requester=requester)


async def apply_proposal(operator: Ledger, service: Ledger, ref: CallRef) -> int:
    """Make a proposal that people approved the workspace's policy; answers with its version. Doing
    it again is safe.

    Args:
        operator: who may record policies.
        service: who may say that the call is done.

    Raises:
        BadInput: the call is not a proposal.
        NotOpen: it was not approved, or the approval was taken back.
        AlreadyFilled: another version was applied since it was proposed.
    """
    call = await service.known_call(ref)
    if call.wish.tool != proposals.APPLY.name:
        raise BadInput(
            f"{ref} is a call of {call.wish.tool!r} and not a proposal. `policy apply --propose` "
            "makes one."
        )
    if (
        call.status not in (Status.APPROVED, Status.RUNNING, Status.RETURNED)
        or call.flaw is not None
    ):
        raise NotOpen(
            f"{ref} is {call.status.replace('_', ' ')}. Only a proposal that people approved is "
            "applied."
        )
    said = msgspec.json.decode(call.arguments)
    text, version = str(said["text"]), int(said["base"]) + 1
    read_policy(text, str(ref))
    applied = PolicyApplied(text=text, digest=text_digest(text), proposal=str(ref))
    first = await operator.try_append(policy_slot(ref.workspace, version), applied)
    if first is not None and not (
        isinstance(first.event, PolicyApplied) and first.event.proposal == str(ref)
    ):
        raise AlreadyFilled(
            f"version {version} was applied since {ref} was proposed. Propose the file anew."
        )
    if call.status is Status.APPROVED:
        await service.start(ref)
    if call.status is not Status.RETURNED:
        await service.finish(ref, output=f"It is version {version}.")
    return version
