"""Snapshots: where a folding stood, so that the next one need not begin at the first fact.

A snapshot is a cache. It holds the facts that the state was made of, in the user's cache directory; deleting it costs
time and nothing else. One that is broken, of another version, or of another ledger is passed over: its last fact must
stand in the log where it says. (Only of a log that is whole: which facts an administrator took out of the midst of it,
its last fact cannot tell.)
"""

import hashlib
import os
import tempfile
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct
from platformdirs import user_cache_path

from ledger.client import Ledger
from projections.fold import Fold, Folding
from schemas.codec import Fact, as_json, fact_of

_log: Final = structlog.get_logger("ops.snapshots")


class _Kept(Struct, frozen=True, array_like=True):
    """A fact as it stands in the log."""

    seq: int
    recorded_at: datetime
    subject: str
    raw: bytes


class _Snapshot(Struct, frozen=True):
    fold: str
    version: int
    #: The last fact that it covers, by which the ledger is known again.
    last: _Kept
    kept: tuple[_Kept, ...]


def directory() -> Path:
    """Where snapshots are kept: `$XDG_CACHE_HOME/approval-ledger` or its like."""
    return user_cache_path("approval-ledger") / "snapshots"


def save(fold: Fold[Any], folding: Folding, last: Fact, ledger_id: str) -> None:
    """Keep where this folding stands, whole or not at all; only its owner may read it."""
    snapshot = _Snapshot(fold.name, fold.version, _keep(last), tuple(map(_keep, folding.kept)))
    body = msgspec.msgpack.encode(snapshot)
    file = _file(fold, ledger_id)
    try:
        _write(file, hashlib.sha256(body).digest() + body)
    except OSError as problem:
        _log.warning("no snapshot is kept", file=str(file), problem=str(problem))


async def load(fold: Fold[Any], ledger: Ledger, ledger_id: str) -> tuple[Folding, Fact] | None:
    """The folding that was saved last, and its last fact; None where there is none that holds."""
    file = _file(fold, ledger_id)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        _log.warning("a snapshot that cannot be read is passed over", file=str(file), problem=str(problem))
        return None
    snapshot = _read(content)
    if snapshot is None or (snapshot.fold, snapshot.version) != (fold.name, fold.version):
        _log.warning("a snapshot that cannot be used is passed over", file=str(file))
        return None
    seq = snapshot.last.seq
    async with aclosing(ledger.replay(seq)) as facts:
        last = await anext(facts, None)
    if last is None or _keep(last) != snapshot.last:
        _log.warning("a snapshot of another log is passed over", file=str(file), seq=seq)
        return None
    return Folding(fold, after=seq, kept=map(_fact, snapshot.kept)), last


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=file.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _read(content: bytes) -> _Snapshot | None:
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(body, type=_Snapshot)
    except msgspec.MsgspecError:
        return None


def _file(fold: Fold[Any], ledger_id: str) -> Path:
    return directory() / ledger_id / f"{fold.name}.v{fold.version}"


def _keep(fact: Fact) -> _Kept:
    raw = as_json(fact.event)
    return _Kept(fact.seq, fact.recorded_at, fact.slot.subject, raw)


def _fact(kept: _Kept) -> Fact:
    return fact_of(kept.seq, kept.recorded_at, kept.subject, kept.raw)
