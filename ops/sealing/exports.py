"""An export of a log: a file of lines of JSON, the checkpoint and then each fact that it covers.

So an auditor verifies it alone, with nothing but the key of the sealer. The facts may be fewer if a
proof says that the checkpoint covers them.
"""

import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from itertools import batched
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ayes.ledger.log import RawMessage
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import Checkpoint
from ayes.ops.audit.backup import new_file
from ayes.schemas.errors import BadFile

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE: Final = 1000


class _Head(Struct):
    """The first line of an export."""

    checkpoint: str
    format: str = "ayes export 1"
    #: Of consistency, from the number of facts to the size of the checkpoint, if they differ.
    proof: tuple[bytes, ...] | UnsetType = UNSET


def head(note: str, proof: Sequence[bytes] = ()) -> bytes:
    """The first line."""
    return msgspec.json.encode(_Head(note, proof=tuple(proof) or UNSET)) + b"\n"


class _Line(Struct, forbid_unknown_fields=True):
    seq: int
    #: In nanoseconds since 1970; as text, since many programs round numbers of this size.
    time: str
    subject: str
    #: In base64.
    payload: bytes


def line(raw: RawMessage) -> bytes:
    """The line of a fact."""
    said = _Line(raw.seq, str(raw.at_ns), raw.subject, raw.data)
    return msgspec.json.encode(said) + b"\n"


async def export(log: JetStream, note: str, file: Path) -> int:
    """Write the facts that a checkpoint covers into a new file. Returns how many they are.

    Raises:
        BadInput: there is such a file already, or it cannot be written.
    """
    size = Checkpoint.parse(note).size
    with new_file(file) as written:
        written.write(head(note))
        async with aclosing(log.scan_leader(1)) as pages:
            async for page in pages:
                for raw in page:
                    if raw.seq <= size:
                        written.write(line(raw))
                if page[-1].seq >= size:
                    break
    return size


def exported(file: Path) -> tuple[str, list[bytes]]:
    """The signed checkpoint of an export, and the proof that it covers the facts.

    Raises:
        BadFile: it is no export.
    """
    try:
        with file.open("rb") as content:
            found = msgspec.json.decode(content.readline(), type=_Head)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise BadFile(
            str(file), "", f"it is not an export of `ayes seal export`: {problem}"
        ) from None
    return found.checkpoint, [*(found.proof or ())]


def count(file: Path) -> int:
    """How many facts an export has, sealed or not."""
    with file.open("rb") as content:
        return sum(1 for _ in content) - 1


async def exported_facts(file: Path) -> AsyncGenerator[list[RawMessage]]:
    """The facts of an export, in pages.

    Raises:
        BadFile: a line is not a fact.
    """
    with file.open("rb") as content:
        content.readline()
        for page in batched(enumerate(content, 2), _PAGE, strict=False):
            yield [fact_of_line(str(file), number, text) for number, text in page]


def fact_of_line(where: str, number: int, text: bytes) -> RawMessage:
    """The fact on a line.

    Raises:
        BadFile: it is not one.
    """
    try:
        said = _decoder.decode(text)
        at_us, below_us = divmod(int(said.time), 1000)
        at = _EPOCH + timedelta(microseconds=at_us)
        raw = RawMessage(said.seq, at, said.subject, said.payload, below_us)
        is_fact = bool(said.time.isdecimal() and raw.leaf)
    except (msgspec.MsgspecError, ValueError, OverflowError, struct.error):
        is_fact = False
    if not is_fact:
        raise BadFile(where, f"line {number}", "it is not a fact.")
    return raw


_decoder: Final = msgspec.json.Decoder(_Line)
