"""Making the receipt of a call, of the facts that it rests on, and judging one."""

import asyncio
from collections.abc import Iterable
from itertools import filterfalse
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.clients.client import LedgerClient
from ayes.ledger.clients.proofs import why_unproved
from ayes.ledger.judging.grants import delegated
from ayes.ledger.judging.policies import origin_slots
from ayes.ledger.judging.votes import counted
from ayes.ledger.log import EventLog
from ayes.ledger.objections import votes_rest_on
from ayes.ledger.receipts import GivenLog, Receipt, receipt
from ayes.ledger.seal import Proofs, SignerKey, VerifierKey
from ayes.ledger.signing import Signature
from ayes.ledger.trust import Trust
from ayes.ledger.validity import voids
from ayes.ops.sealing.files import SealFiles, opened
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadFile, BadInput, NotOpen
from ayes.schemas.people import plain
from ayes.schemas.slots import (
    DELEGATION,
    KEY,
    KEYS,
    ORGANISATION,
    PERSON,
    POLICY,
    STOP,
    CallRef,
    delegations,
    is_votes_of,
    policies,
    tool_slot,
)

#: How long the last fact of a call may take to be sealed.
_SEALED_S: Final = 10.0
_LOOK_S: Final = 0.2
_SPENT: Final = "one of its people has voted, or nobody may cast it in another's place"


async def make(ledger: LedgerClient, ref: CallRef, files: SealFiles, key: SignerKey) -> Receipt:
    """The receipt of a call, of what is recorded now.

    Raises:
        UnknownCall: there is no such call.
        NotOpen: its facts are not sealed in time.
        BadInput: its request contradicts itself.
        BadFile: the files of the seal are not whole, or not those of the log.
    """
    facts = await evidence(ledger, ref)
    raws = [raw for fact in facts if (raw := await ledger.log.at(fact.seq)) is not None]
    note, size = await _sealed(files, raws[-1].seq, key.public)
    made = receipt(ref, raws, note, Proofs(size, files.tile).inclusion, key)
    try:
        made.facts_of(key.public)
    except BadInput as problem:
        why = f"with it the receipt would not hold: {problem} `ayes verify` says what has changed."
        raise BadFile(str(files.folder), "", why) from None
    return made


class ProvedCall(Struct, frozen=True):
    """What a receipt shows."""

    call: Call
    #: Whether votes on it must be signed, as the trust file says.
    wants_signed: bool
    #: Whether it was found out if its decision follows from the facts; an approval alone is judged.
    is_judged: bool
    #: Why its approval does not follow from the facts; empty if it does, or was not judged.
    unproved: str
    votes: tuple["ShownVote", ...]


class ShownVote(Struct, frozen=True):
    """A vote in a receipt."""

    person: str
    verdict: str
    #: The key that it says has signed it; empty: none.
    key: str
    #: Whether the signature was checked.
    is_checked: bool
    #: Why it does not count; empty: nothing in the receipt speaks against it.
    why_void: str


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
    is_judged = is_wanted and isinstance(_decision(call), e.Approved)
    unproved = await why_unproved(ledger, call, counts_others=False) if is_judged else ""
    return ProvedCall(call, is_wanted, is_judged, unproved, await _votes(ledger, call))


async def _votes(ledger: LedgerClient, call: Call) -> tuple[ShownVote, ...]:
    """Its votes, and which of them count, as whoever starts the call would judge them."""
    counting = set[int]()
    if call.gated is not None:
        call, given = await ledger.with_given(call)
        if call.signatures is not None and not call.starts:
            # Until a call is started, the end of a key counts whenever it is recorded.
            call = replace(call, signatures=replace(call.signatures, until=None))
        if call.approval_request is not None:
            counting = {one.seq for one in counted(call, lambda one: delegated(given, call, one))}
    whys = {one.fact.seq: one.why for one in voids(call)}
    return tuple(
        _vote(call, one, whys.get(one.seq, "" if one.seq in counting else _SPENT))
        for one in call.votes
    )


def _vote(call: Call, vote: Fact, why_void: str) -> ShownVote:
    event = vote.event
    assert isinstance(event, e.Voted)
    signature = Signature.parse(event.signature)
    return ShownVote(
        vote.slot.tail[3],
        event.verdict,
        signature.key if signature is not None else "",
        call.signatures is not None and event.verdict != "deny" and not why_void,
        why_void,
    )


async def _sealed(files: SealFiles, seq: int, key: VerifierKey) -> tuple[str, int]:
    """The checkpoint, once it covers a fact, and its size.

    Raises:
        BadFile: it is not one that this key has signed.
    """
    clock = asyncio.get_running_loop()
    until = clock.time() + _SEALED_S
    while True:
        note = files.note()
        size = opened(str(files.file), note, key).size if note else 0
        if size >= seq:
            return note, size
        if clock.time() > until:
            raise NotOpen(
                f"the log is sealed to fact {size:,}, and the call has fact {seq:,}. Does the "
                "sealer run? (`ayes doctor` says so.)"
            )
        await asyncio.sleep(_LOOK_S)


async def evidence(ledger: LedgerClient, ref: CallRef) -> tuple[Fact, ...]:
    """The facts on which a call rests, in the order of the log.

    Bytes that are no fact are left out: nothing rests on them, and a text may not be able to hold
    them.
    """
    call = await ledger.known_call(ref)
    seen = _Seen(ledger.log)
    reader = ledger.on_log(cast(EventLog, seen))
    tool = tool_slot(ref.workspace, call.wish.tool, call.wish.tool_version)
    rests_on = (policies(ref.workspace), policies(ORGANISATION), KEYS, *votes_rest_on(call))
    given = (delegations(ref.workspace),) if call.votes else ()
    await reader.read(ref, *origin_slots(ref), tool, *rests_on, *given)
    if isinstance(_decision(call), e.Approved):
        await why_unproved(reader, call, counts_others=False)
    assert call.requested
    if ledger.trust is not None:
        read = sorted(seen.facts.values(), key=lambda one: one.seq)
        fell = await ledger.fallen(call, ledger.judged_keys(read, ledger.trust))
        seen.facts |= {fell[one.seq].seq: fell[one.seq] for one in call.votes if one.seq in fell}
    in_force = await ledger.policies(ref.workspace, before=call.requested.seq)
    versions = {
        ref.workspace: in_force.workspace.version,
        ORGANISATION: in_force.organisation.version,
    }
    facts = sorted(filterfalse(_is_foreign, seen.facts.values()), key=lambda one: one.seq)
    people = _people(call, facts)
    plainly = {*map(plain, people)}
    about = [one.slot.tail for one in facts if one.slot.tail[0] == KEY]
    # Whoever adds a key first has it: so those too who have added one of theirs.
    keys = {key for _, name, key, *_ in about if plain(name) in plainly}
    last = max(one.seq for one in call.facts)
    decided = call.decided.seq if call.decided is not None else last

    def is_needed(fact: Fact) -> bool:
        kind, *rest = fact.slot.tail
        if kind == POLICY:
            is_later = int(rest[0]) >= versions.get(fact.slot.workspace, 0)
            return is_later and fact.seq < decided
        if kind == KEY:
            return rest[1] in keys
        if kind == PERSON:
            return plain(rest[0]) in plainly
        if kind == DELEGATION:
            return rest[0] in people and fact.seq < decided
        return kind != STOP or fact.seq < last

    return tuple(filter(is_needed, facts))


def _is_foreign(fact: Fact) -> bool:
    return isinstance(fact.event, e.Carried) and bool(fact.event.problem)


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
        if not all(map(is_votes_of, subjects)):  # those of other calls are nobody's business
            self.facts.update({one.seq: one for one in found})
        return found

    async def latest(self, subjects: str) -> Fact | None:
        found = await self._log.latest(subjects)
        if found is not None:
            self.facts[found.seq] = found
        return found
