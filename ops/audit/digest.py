"""The running digest of a log, by which a witness and a backup know it again."""

import hashlib
import struct

from ayes.ledger.log import RawMessage


def next_digest(digest: str, raw: RawMessage) -> str:
    """The digest up to this fact, from the one up to the fact before it; 64 hex digits each.

    SHA-256 over the digest before, the sequence (8 bytes), the time (8 bytes, microseconds since
    1970), the length of the subject (4 bytes), the subject and the bytes of the fact.
    """
    subject = raw.subject.encode(errors="surrogateescape")
    at = int(raw.recorded_at.timestamp() * 1_000_000)
    head = struct.pack(">QqI", raw.seq, at, len(subject))
    return hashlib.sha256(bytes.fromhex(digest) + head + subject + raw.data).hexdigest()
