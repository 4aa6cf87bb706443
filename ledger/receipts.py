"""Receipts: a file that shows to a stranger what was recorded about a call.

    format      "ayes receipt 1"
    statement   a DSSE envelope with a statement of in-toto: a summary for programs of others
    facts       the facts on which the call rests, byte for byte, each with its number and time
    hashes      the nodes of all proofs, each once, in base64
    proofs      of each fact, the numbers of its nodes: that it is in the sealed log (RFC 6962)
    checkpoint  what was sealed (c2sp.org/tlog-checkpoint)

Who made the file has signed the statement, which proves nothing else: all of it is computed again
from the facts. A receipt has one form, to the byte.
"""

import base64
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.ledger.log import RawMessage
from ayes.ledger.seal import Checkpoint, SignerKey, VerifierKey, is_included, leaf_hash
from ayes.ledger.signing import Signature
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef, matches

FORMAT: Final = "ayes receipt 1"
#: The type of the statement in its envelope (in-toto attestation, v1).
TYPE: Final = "application/vnd.in-toto+json"
_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_PREDICATE: Final = "https://github.com/in-toto/attestation/ayes/call/v1"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The errors of a decoder; the last one for brackets nested by the thousand.
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Proved(Struct, frozen=True, forbid_unknown_fields=True):
    """A fact in a receipt."""

    seq: int
    #: The broker's clock in nanoseconds since 1970; as text, since many programs round numbers of
    #: this size.
    time: str
    subject: str
    payload: str

    @classmethod
    def of(cls, raw: RawMessage) -> "Proved":
        return cls(raw.seq, str(raw.at_ns), raw.subject, raw.data.decode())

    def raw(self) -> RawMessage:
        at_us, below_us = divmod(int(self.time), 1000)
        at = _EPOCH + timedelta(microseconds=at_us)
        return RawMessage(self.seq, at, self.subject, self.payload.encode(), below_us)


class DsseSignature(Struct, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: str


class Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    """A statement with its signature (DSSE, github.com/secure-systems-lab/dsse)."""

    payloadType: str  # noqa: N815 - as DSSE names it
    payload: str
    signatures: tuple[DsseSignature, ...]


class Receipt(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a call, and that it is in the sealed log."""

    format: str
    statement: Envelope
    facts: tuple[Proved, ...]
    hashes: tuple[str, ...]
    proofs: tuple[tuple[int, ...], ...]
    checkpoint: str

    def text(self) -> bytes:
        """The file: JSON without blanks, and a line feed."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def parse(cls, text: bytes) -> "Receipt":
        """Read a file.

        Raises:
            BadInput: it is not a receipt, or written in another way than ours.
        """
        try:
            found = msgspec.json.decode(text, type=cls)
        except _UNREADABLE as problem:
            raise BadInput(f"it is not a receipt: {problem}.") from None
        if found.format != FORMAT or found.text() != text:
            raise BadInput(f"it is not a receipt of the form {FORMAT!r}, to the byte.")
        return found

    @property
    def ref(self) -> CallRef:
        """The call that it says it is about.

        Raises:
            BadInput: it names none.
        """
        try:
            named = msgspec.json.decode(_bytes(self.statement.payload))["subject"][0]["name"]
            return CallRef.parse(named)
        except (*_UNREADABLE, LookupError, TypeError, AttributeError):
            raise BadInput("its statement names no call.") from None

    def facts_of(self, log: VerifierKey) -> tuple[RawMessage, ...]:
        """Its facts, in the order of the log, if they are in the log that this key has sealed.

        Raises:
            BadInput: they are not, or the receipt is not whole.
        """
        sealed = Checkpoint.parse(self.checkpoint)
        if sealed.origin != log.name or not log.signed(self.checkpoint):
            raise BadInput(f"its checkpoint is not one that {log} has signed.")
        nodes = [_bytes(one) for one in self.hashes]
        if len(self.proofs) != len(self.facts):
            raise BadInput("it does not have one proof for each fact.")
        raws, used, last = list[RawMessage](), set[int](), 0
        for fact, proof in zip(self.facts, self.proofs, strict=True):
            raw = _raw(fact)
            if fact.seq <= last or any(not 0 <= one < len(nodes) for one in proof):
                raise BadInput(
                    f"its facts are not in order, or the proof of fact {fact.seq:,} is not whole."
                )
            beside = [nodes[one] for one in proof]
            entry = leaf_hash(raw.leaf)
            if not is_included(entry, fact.seq - 1, sealed.size, sealed.root, beside):
                raise BadInput(f"fact {fact.seq:,} is not the one that was sealed.")
            raws.append(raw)
            used.update(proof)
            last = fact.seq
        if len(used) != len(nodes) or len({*nodes}) != len(nodes):
            raise BadInput("it has hashes that no proof uses, or one twice.")
        self._check_statement(raws, log)
        return tuple(raws)

    def _check_statement(self, raws: Sequence[RawMessage], log: VerifierKey) -> None:
        envelope = self.statement
        summary = _bytes(envelope.payload)
        if envelope.payloadType != TYPE or len(envelope.signatures) != 1:
            raise BadInput("its statement is not in an envelope with one signature.")
        if summary != statement(self.ref, raws, Checkpoint.parse(self.checkpoint)):
            raise BadInput("its statement is not what its facts say.")
        [by] = envelope.signatures
        if by.keyid != log.id.hex() or not log.verifies(_bytes(by.sig), pae(summary)):
            raise BadInput(f"its statement is not signed by {log}.")


def receipt(
    ref: CallRef,
    raws: Sequence[RawMessage],
    note: str,
    prove: Callable[[int], list[bytes]],
    key: SignerKey,
) -> Receipt:
    """Make a receipt of these facts about a call, in the order of the log.

    Args:
        note: the checkpoint, which covers them all.
        prove: gives the proof of a leaf, by its index.
        key: that of the sealer, which signs the statement.
    """
    nodes, proofs = dict[bytes, int](), list[tuple[int, ...]]()
    for raw in raws:
        proofs.append(tuple(nodes.setdefault(one, len(nodes)) for one in prove(raw.seq - 1)))
    summary = statement(ref, raws, Checkpoint.parse(note))
    by = DsseSignature(key.public.id.hex(), _text(key.sign(pae(summary))))
    return Receipt(
        FORMAT,
        Envelope(TYPE, _text(summary), (by,)),
        tuple(map(Proved.of, raws)),
        tuple(map(_text, nodes)),
        tuple(proofs),
        note,
    )


def statement(ref: CallRef, raws: Iterable[RawMessage], sealed: Checkpoint) -> bytes:
    """What a receipt says in short, as JSON: a statement of in-toto about the call's digest. It is
    what stands in the facts, so a program that knows nothing of a call's life can compute it.

    Raises:
        BadInput: the facts are of no call, or two of them have one subject, or the request names
            another digest than that of its call.
    """
    raws = tuple(raws)
    if len({raw.subject for raw in raws}) < len(raws):
        raise BadInput("two of its facts have one subject.")
    facts = {fact.slot: fact for fact in facts_in(raws)}
    wish, said = (
        facts[one].event if one in facts else None for one in (ref.requested, ref.decided)
    )
    if not isinstance(wish, e.ToolRequested):
        raise BadInput(f"the request of {ref} is not among its facts.")
    digest = call_digest(wish.tool, wish.tool_version, wish.arguments)
    if wish.digest != digest:
        raise BadInput(f"the request of {ref} names the digest of another call.")
    of_call = [one for one in facts.values() if one.slot.call_ref == ref]
    votes = [one for one in of_call if one.slot.tail[2:3] == ("vote",)]
    predicate: dict[str, Any] = {
        "log": sealed.origin,
        "size": sealed.size,
        "root": _text(sealed.root),
        "decision": type(said).__name__ if isinstance(said, e.Event) else "",
        "ground": getattr(said, "ground", ""),
        "rule": getattr(said, "rule", ""),
        "policy": getattr(said, "policy_version", 0),
        "organisation": getattr(said, "organisation", False),
        "votes": [_vote(one) for one in votes],
        "facts": [[one.seq, sha256(one.leaf).hexdigest()] for one in raws],
    }
    about = {"name": str(ref), "digest": {"sha256": digest}}
    return msgspec.json.encode(
        {
            "_type": _STATEMENT,
            "subject": [about],
            "predicateType": _PREDICATE,
            "predicate": predicate,
        }
    )


def _vote(fact: Fact) -> dict[str, str]:
    event = fact.event
    signature = Signature.parse(event.signature) if isinstance(event, e.Voted) else None
    return {
        "person": fact.slot.tail[3],
        "verdict": event.verdict if isinstance(event, e.Voted) else "",
        "key": signature.key if signature is not None else "",
    }


def facts_in(raws: Iterable[RawMessage]) -> tuple[Fact, ...]:
    return tuple(fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data) for raw in raws)


class GivenLog:
    """A log that has these facts alone: what can be read of one (`EventLog`)."""

    def __init__(self, raws: Iterable[RawMessage]) -> None:
        self._raws = {raw.seq: raw for raw in raws}
        self._facts = facts_in(self._raws.values())

    async def read(self, *subjects: str) -> tuple[Fact, ...]:
        return tuple(
            one for one in self._facts if any(matches(some, one.slot.subject) for some in subjects)
        )

    async def latest(self, subjects: str) -> Fact | None:
        return next(iter(reversed(await self.read(subjects))), None)

    async def at(self, seq: int) -> RawMessage | None:
        return self._raws.get(seq)

    async def last_seq(self) -> int:
        return max(self._raws, default=0)


def _raw(fact: Proved) -> RawMessage:
    try:
        raw = fact.raw()
        if raw.leaf and Proved.of(raw) == fact:
            return raw
    except (ValueError, OverflowError, struct.error):
        pass
    raise BadInput(f"fact {fact.seq:,} is not written as a receipt has it.")


def pae(payload: bytes) -> bytes:
    """What is signed of a payload (DSSE, protocol.md)."""
    return b"DSSEv1 %d %b %d %b" % (len(TYPE), TYPE.encode(), len(payload), payload)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    """The bytes of a text in base64.

    Raises:
        BadInput: it is not written as base64 writes these bytes.
    """
    with suppress(ValueError):
        raw = base64.b64decode(text, validate=True)
        if _text(raw) == text:
            return raw
    raise BadInput(f"{text[:100]!r} is not base64.")
