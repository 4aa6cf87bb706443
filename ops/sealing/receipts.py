"""Making the receipt of a call, of the facts that it rests on, and judging one."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final, cast

from msgspec import Struct

from ayes.ledger.call import Call
from ayes.ledger.clients.client import LedgerClient
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.judging.policies import origin_slots
from ayes.ledger.log import EventLog
from ayes.ledger.objections import votes_rest_on
from ayes.ledger.receipts import GivenLog, Receipt, receipt
from ayes.ledger.seal import Checkpoint, Proofs, SignerKey, VerifierKey
from ayes.ledger.signing import Signature
from ayes.ledger.trust import Trust
from ayes.ops.sealing.files import SealFiles
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput, NotOpen
from ayes.schemas.slots import (
    DELEGATION,
    KEY,
    KEYS,
    ORGANISATION,
    PERSON,
    POLICY,
    STOP,
    CallRef,
    policies,
    tool_slot,
)

#: How long the last fact of a call may take to be sealed.
_SEALED_S: Final = 10.0
_LOOK_S: Final = 0.2


async def make(ledger: LedgerClient, ref: CallRef, files: SealFiles, key: SignerKey) -> Receipt:
    """The receipt of a call, of what is recorded now.

    Raises:
        UnknownCall: there is no such call.
        NotOpen: its facts are not sealed in time.
        BadFile: the files of the seal are not whole.
    """
    facts = await evidence(ledger, ref)
    raws = [raw for fact in facts if (raw := await ledger.log.at(fact.seq)) is not None]
    note = await _sealed(files, raws[-1].seq)
    size = Checkpoint.parse(note).size
    return receipt(ref, raws, note, Proofs(size, files.tile).inclusion, key)


class ProvedCall(Struct, frozen=True):
    """What a receipt shows."""

    call: Call
    #: Whether votes on it must be signed, as the trust file says.
    wants_signed: bool
    #: Why its approval does not follow from the facts; empty if it does, or is none.
    unproved: str


async def judged(shown: Receipt, log: VerifierKey, trust: Trust | None) -> ProvedCall:
    """What a receipt shows, by nothing but the key of the sealer and the trust file.

    Raises:
        BadInput: it shows nothing: it is not whole, or not of the log that this key has sealed.
    """
    given = GivenLog(shown.facts_of(log))
    if trust is not None and trust.log not in log.name.split("/"):
        raise BadInput(f"the trust file is of the log {trust.log}, and the receipt of {log.name}.")
    ledger = LedgerClient(cast(EventLog, given), e.Author("auditor", ""))
    ledger.trust = trust
    call = await ledger.call(shown.ref)
    seq = call.decided.seq if call.decided is not None else None
    is_wanted = trust is not None and trust.wants_signed(call.ref.workspace, seq)
    if not isinstance(_decision(call), e.Approved):
        return ProvedCall(call, is_wanted, "")
    return ProvedCall(call, is_wanted, await why_unproved(ledger, call, counts_others=False))


async def _sealed(files: SealFiles, seq: int) -> str:
    """The checkpoint, once it covers a fact."""
    clock = asyncio.get_running_loop()
    until = clock.time() + _SEALED_S
    while not (note := files.note()) or Checkpoint.parse(note).size < seq:
        if clock.time() > until:
            size = Checkpoint.parse(note).size if note else 0
            raise NotOpen(
                f"the log is sealed to fact {size:,}, and the call has fact {seq:,}. Does the "
                "sealer run? (`ayes doctor` says so.)"
            )
        await asyncio.sleep(_LOOK_S)
    return note


async def evidence(ledger: LedgerClient, ref: CallRef) -> tuple[Fact, ...]:
    """The facts on which a call rests, in the order of the log."""
    call = await ledger.known_call(ref)
    seen = _Seen(ledger.log)
    reader = ledger.on_log(cast(EventLog, seen))
    tool = tool_slot(ref.workspace, call.wish.tool, call.wish.tool_version)
    rests_on = (policies(ref.workspace), policies(ORGANISATION), KEYS, *votes_rest_on(call))
    await reader.read(ref, *origin_slots(ref), tool, *rests_on)
    if isinstance(_decision(call), e.Approved):
        await why_unproved(reader, call, counts_others=False)
    assert call.requested
    in_force = await ledger.policies(ref.workspace, before=call.requested.seq)
    versions = {
        ref.workspace: in_force.workspace.version,
        ORGANISATION: in_force.organisation.version,
    }
    facts = sorted(seen.facts.values(), key=lambda one: one.seq)
    people = _people(call, facts)
    last = max(one.seq for one in call.facts)
    decided = call.decided.seq if call.decided is not None else last

    def is_needed(fact: Fact) -> bool:
        kind, *rest = fact.slot.tail
        if kind == POLICY:
            is_later = int(rest[0]) >= versions.get(fact.slot.workspace, 0)
            return is_later and fact.seq < decided
        if kind in (KEY, PERSON):
            return rest[0] in people
        if kind == DELEGATION:
            return rest[0] in people and fact.seq < decided
        return kind != STOP or fact.seq < last

    return tuple(filter(is_needed, facts))


def _people(call: Call, facts: Iterable[Fact]) -> set[str]:
    """Those on whose word a call rests, and those whose keys have confirmed theirs."""
    found = {name.partition("/")[0] for name in getattr(_decision(call), "grants", ())}
    for vote in call.votes:
        found |= {vote.slot.tail[3], getattr(vote.event, "on_behalf_of", "")}
    about = [one for one in facts if one.slot.tail[0] == KEY]
    owners = {one.slot.tail[2]: one.slot.tail[1] for one in about}
    while True:
        by = {
            owners[signature.key]
            for one in about
            if one.slot.tail[1] in found and isinstance(one.event, e.KeyConfirmed)
            for signature in map(Signature.parse, one.event.signatures)
            if signature is not None and signature.key in owners
        }
        if by <= found:
            return found
        found |= by


def _decision(call: Call) -> object:
    return call.decided.event if call.decided is not None else None


class _Seen:
    """A log that keeps every fact that was read of it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.facts = dict[int, Fact]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        found = await self._log.read(*subjects)
        self.facts.update({one.seq: one for one in found})
        return found

    async def latest(self, subjects: str) -> Fact | None:
        found = await self._log.latest(subjects)
        if found is not None:
            self.facts[found.seq] = found
        return found
