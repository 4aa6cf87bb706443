"""A witness of the log: it detects a log that was cut, damaged or replaced.

The broker drops facts whose bytes were changed on disk, or answers as if they were not there, both
without an error; a store may also be replaced by an older copy. Then slots are free again whose
facts had effects: the same payment would be approved and made twice. So whoever runs a gate keeps
the number of the last fact and a running digest of all facts up to it, in the user's state
directory and in the broker, and no worker starts on a log that does not lead to the same digest
(decisions 0021 and 0055).

    digest of fact n = SHA-256(digest of the fact before, n, the broker's time,
                               length of the subject, subject, payload)

A log is known by its first fact (`ayes.ledger.log.identity_of`), so it is found again elsewhere;
and another log in its place is refused.

At each start the last 10,000 to 20,000 facts are read again, and all that live long: policies,
tools, grants, delegations, stops and their ends, people. Nothing is ever deleted, so the leader
must count as many facts as the number of the last one, but for those that are in packs. The process
of a gate then reads the whole log in the background, from each node that comes to lead it. Facts
are read from the leader only, since each node has a copy of its own. None of this stops a person
who can write to all of them.

What is in a pack (docs/decisions/0091) stays in the stream for some minutes or days. While n such
facts are there, n others could be lost and the count would not show it; reading all of them does.
"""

import hashlib
import os
from contextlib import aclosing, suppress
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from platformdirs import user_state_path

from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Login, Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import info, is_packed
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.audit.digest import next_digest
from ayes.schemas import events as e
from ayes.schemas.errors import Distrusted, LogDamaged
from ayes.schemas.files import write_atomically
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import (
    DELEGATION,
    GRANT,
    KEY,
    LOG,
    LOGIN,
    ORGANISATION,
    PERSON,
    POLICY,
    ROOT,
    STOP,
    TOOL,
    log_slot,
    matches,
)

_log: Final = get_logger("ayes.ops.inspection.witness")

#: Facts between two checkpoints; the last two checkpoints are kept.
CHECKPOINT: Final = 10_000
#: The entries of the bucket `running`, which only the gate may write.
SEEN: Final = f"{LOG}.seen"
READING: Final = f"{LOG}.reading"
#: The facts that are read at each start. Uses of grants, budgets and what was said of groups are as
#: many as calls: they are read in the background, and counted whenever they are read.
LONG_LIVED: Final = tuple(
    f"{ROOT}.*.{kind}"
    for kind in (
        f"{POLICY}.*",
        f"{TOOL}.*.*",
        f"{GRANT}.*.*.given",
        f"{GRANT}.*.*.revoked",
        f"{GRANT}.*.*.revoked.*",
        f"{DELEGATION}.>",
        f"{STOP}.>",
        f"{PERSON}.*.*",
        f"{PERSON}.*.account.*",
        f"{LOGIN}.>",
        f"{KEY}.>",
        f"{LOG}.*",
    )
)


class LastSeen(Struct, frozen=True):
    """The state of a log when it was last seen."""

    #: For people who read the file: the store, or the addresses of the broker.
    store: str
    #: Its identity; empty in files of earlier versions.
    log: str = ""
    #: How often it was accepted as it was.
    accepted: int = 0
    seq: int = 0
    recorded_at: datetime | None = None
    digest: str = ""
    #: The same of the facts that live long; None in files of earlier versions.
    kept: str | None = None
    #: How many facts are in the packs up to this fact; None if that was not counted.
    packed: int | None = None
    #: The digest at earlier facts, oldest first: where a comparison may begin.
    checkpoints: tuple[tuple[int, str], ...] = ()

    def add(self, raw: RawMessage) -> "LastSeen":
        digest = next_digest(self.digest, raw)
        checkpoints = self.checkpoints
        if raw.seq // CHECKPOINT > self.seq // CHECKPOINT:
            checkpoints = (*checkpoints[-1:], (raw.seq, digest))
        return msgspec.structs.replace(
            self,
            seq=raw.seq,
            recorded_at=raw.recorded_at,
            digest=digest,
            kept=_next_kept(self.kept, raw),
            packed=None if self.packed is None else self.packed + packs.size_of(raw),
            checkpoints=checkpoints,
        )

    @property
    def begin(self) -> tuple[int, str]:
        """The checkpoint after which the log is compared: a fact, and its digest."""
        return self.checkpoints[0] if len(self.checkpoints) > 1 else (0, "")


class Reading(Struct, frozen=True):
    """How far the log was read since the gate's process has started."""

    #: The node that led the log, and so was read.
    node: str
    #: The last fact that was read, and the last one that there was.
    until: int
    of: int
    at: datetime
    #: What was found; empty if nothing was.
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        how = "all" if self.until >= self.of else f"{self.until:,} of"
        return f"{how} {self.of:,} facts were read from {self.node} by {self.at:%Y-%m-%d %H:%M} UTC"


def _next_kept(kept: str | None, raw: RawMessage) -> str | None:
    if kept is None or "._" not in raw.subject:
        return kept
    is_kept = any(matches(pattern, raw.subject) for pattern in LONG_LIVED)
    return next_digest(kept, raw) if is_kept else kept


async def kept_until(log: JetStream, seq: int) -> str | None:
    """The digest of the facts up to that number that live long, each read from the leader.

    Raises:
        LogDamaged: it cannot read one of them.
    """
    kept: str | None = ""
    facts = await log.read_from_leader(LEDGER, *LONG_LIVED)
    for raw in sorted(facts, key=attrgetter("seq")):
        kept = _next_kept(kept, raw) if raw.seq <= seq else kept
    return kept


async def packed_until(log: JetStream, seen: LastSeen, seq: int) -> int:
    """How many facts are in the packs up to that number, which is not before what was seen."""
    if seen.packed is None:
        return await log.in_packs(1, seq)
    return seen.packed + await log.in_packs(seen.seq + 1, seq)


def place_of(store: Path | str | None, url: str | None) -> str:
    """Where a log is: the addresses of its broker, or else its store."""
    if url:
        return ",".join(sorted(Login.parse(url).url.split(",")))
    return str(Store(store).path.resolve())


class Witness:
    """What was seen of a log, in the user's state directory and in the broker.

    Args:
        log: on any login; only that of the gate can save it in the broker.
        place: as of `place_of`.
    """

    def __init__(self, log: JetStream, place: str) -> None:
        self._log = log
        self.place = place

    def files(self, log: str) -> list[Path]:
        """The file of this place, and that of this log, which may have been elsewhere before, in
        `$XDG_STATE_HOME/approval-ledger/witness` or its equivalent.
        """
        folder = user_state_path("approval-ledger") / "witness"
        named = hashlib.sha256(os.fsencode(self.place)).hexdigest()[:24]
        return [folder / f"{name}.json" for name in (named, log) if name]

    async def known(self, log: str) -> list[LastSeen]:
        """What was seen of this log, or of another one in its place; the furthest first.

        Raises:
            Distrusted: a file cannot be read.
        """
        found = [one for file in self.files(log) if (one := _read(file)) is not None]
        entry, _ = await self._log.running.get(SEEN)
        with suppress(msgspec.MsgspecError):  # of another version
            found += [msgspec.json.decode(entry, type=LastSeen)] if entry else []
        every = dict.fromkeys(one for one in found if one.seq)
        return sorted(every, key=lambda one: one.seq, reverse=True)

    async def save(self, seen: LastSeen) -> None:
        """Write the state, unless another process has seen more of the same log."""
        raw = msgspec.json.encode(seen)
        for file in self.files(seen.log):
            try:
                with suppress(Distrusted):
                    if (other := _read(file)) is not None and _is_ahead(other, seen):
                        continue
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(file, msgspec.json.format(raw))
            except OSError as problem:
                _log.warning("the witness of the log cannot be saved here", problem=str(problem))
        entry, revision = await self._log.running.get(SEEN)
        with suppress(msgspec.MsgspecError):
            if entry and _is_ahead(msgspec.json.decode(entry, type=LastSeen), seen):
                return
        await self._log.running.put(SEEN, raw, revision)


def _is_ahead(other: LastSeen, seen: LastSeen) -> bool:
    same = (other.log, other.accepted) == (seen.log, seen.accepted)
    return other.accepted > seen.accepted if not same else other.seq > seen.seq


def _read(file: Path) -> LastSeen | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=LastSeen)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as problem:
        raise Distrusted(
            f"the witness of the log cannot be read: {file}: {problem}. So nobody can say whether "
            "the log is what it was. Restore a copy of that file, or continue deliberately with "
            "--accept-log."
        ) from None


async def reading(log: JetStream) -> Reading | None:
    """How far the log was read in the background; None if it never was."""
    entry, _ = await log.running.get(READING)
    return msgspec.json.decode(entry, type=Reading) if entry else None


async def accepted(log: JetStream) -> tuple[int, e.LogAccepted | None]:
    """How often the log was accepted as it was, and what was accepted last."""
    newest = await log.latest(f"{ROOT}.{ORGANISATION}.{LOG}.*")
    if newest is None or not isinstance(newest.event, e.LogAccepted):
        return 0, None
    return int(newest.slot.tail[1]), newest.event


async def unreadable(log: JetStream) -> list[str]:
    """The subjects of the facts that the leader counts and cannot read."""
    counted = {*await log.counted(LEDGER, f"{ROOT}.>")}
    async with aclosing(log.scan_leader(1)) as pages:
        async for page in pages:
            counted.difference_update(raw.subject for raw in page)
    return sorted(counted)


async def difference(
    log: JetStream, place: str, *, deep: bool = False, quick: bool = False
) -> str | None:
    """How the log differs from what was seen of it, or lacks facts, as half a sentence; `None` if
    it does not.

    Args:
        deep: compare the whole log, and not only its end.
        quick: do not read the facts that live long.

    Raises:
        Distrusted: the witness cannot be read.
    """
    witness = Witness(log, place)
    stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
    try:
        identity = await log.identity() if stream else ""
        known = await seen_of(log, witness, identity)
        for one in known:
            if (why := await _other(log, one, identity)) is not None:
                return why
        if stream is None:
            return None
        seen = known[0] if known else LastSeen(place)
        await check_density(log, stream, (await accepted(log))[1], seen)
        if not quick:
            kept = await kept_until(log, known[0].seq if known else 0)
            if known and known[0].kept not in {None, kept}:
                return (
                    "policies, tools, grants, delegations, stops or people are not those seen "
                    "before"
                )
        return await _other_facts(log, known[0], deep=deep) if known else None
    except LogDamaged as damage:
        return damage.what


async def seen_of(log: JetStream, witness: Witness, identity: str) -> list[LastSeen]:
    """What was seen since the log was accepted, or what was accepted."""
    number, last = await accepted(log) if identity else (0, None)
    known = [one for one in await witness.known(identity) if one.accepted >= number]
    if not known and last is not None:
        known = [LastSeen(witness.place, identity, number, last.size, digest=last.digest)]
    return known


async def _other(log: JetStream, seen: LastSeen, identity: str) -> str | None:
    """Whether this is another log, or ends before what was seen."""
    at = f", recorded at {seen.recorded_at:%Y-%m-%d %H:%M:%S} UTC," if seen.recorded_at else ""
    last = f"fact {seen.seq:,}{at} was seen before"
    stream = await log.stream_with(seen.seq)
    if stream is None:
        return f"there is no log, and {last}"
    if stream["state"]["last_seq"] < seen.seq:
        return f"the log ends at fact {stream['state']['last_seq']:,}, and {last}"
    if seen.log not in {"", identity}:
        return f"the log begins with another fact, and {last}"
    return None


async def _other_facts(log: JetStream, seen: LastSeen, *, deep: bool) -> str | None:
    begin, digest = (0, "") if deep else seen.begin
    checkpoints = dict(seen.checkpoints)
    async with aclosing(log.scan_leader(begin + 1)) as pages:
        async for page in pages:
            for raw in page:
                if raw.seq > seen.seq:
                    break
                digest = next_digest(digest, raw)
                if checkpoints.get(raw.seq, digest) != digest:
                    return f"the facts up to {raw.seq:,} are not those that were seen before"
            if page[-1].seq >= seen.seq:
                break
    if digest == seen.digest:
        return None
    return f"the facts {begin + 1:,} to {seen.seq:,} are not those that were seen before"


async def check_density(
    log: JetStream, stream: dict[str, Any], known: e.LogAccepted | None, seen: LastSeen
) -> None:
    """Refuse a log that lacks facts between its first and its last one, as its leader counts them.

    What is in packs may have left the stream. Of a log that was not seen before, all are read.

    Args:
        known: what was accepted last.

    Raises:
        LogDamaged: it lacks other facts than were accepted.
    """
    state, node = stream["state"], str(stream.get("cluster", {}).get("leader", ""))
    lacking = state["last_seq"] - state["messages"]
    expected = known.size - known.facts if known else 0
    if lacking > expected and is_packed(stream):
        lacking -= await packed_until(log, seen, state["last_seq"])
    if lacking > expected:
        raise LogDamaged(f"it lacks {lacking:,} of its {state['last_seq']:,} facts", node)


async def check(log: JetStream, place: str) -> None:
    """Refuse a log that differs from its witness.

    Raises:
        Distrusted: the log lacks facts, is shorter, or differs.
    """
    if (problem := await difference(log, place)) is not None:
        raise Distrusted(
            f"the log in {place} is not what it was: {problem}. No worker starts on it, since a "
            "payment could be made again. Mend it (docs/cluster.md) or restore the right log; or "
            "look at it with `ayes up --workers none`, and continue deliberately with --accept-log."
        )


async def accept(log: JetStream, place: str, organisation: Ledger, reason: str) -> None:
    """Accept the log as it is, as a fact."""
    identity = await log.identity()
    last, digest, count = await log.last_seq(), "", 0
    async with aclosing(log.scan_leader(1)) as pages:
        async for page in pages:
            for raw in page:
                if raw.seq <= last:
                    digest, count = next_digest(digest, raw), count + 1
    number, _ = await accepted(log)
    event = e.LogAccepted(last, count, identity, digest, reason)
    await organisation.append_exclusive(log_slot(number + 1), event)
    for file in Witness(log, place).files(identity):
        file.unlink(missing_ok=True)


async def tell(log: JetStream, place: str) -> None:
    """Log an error if the log differs from its witness. For a process that starts no worker."""
    if (problem := await difference(log, place)) is not None:
        _log.error("the log is not what it was", store=str(place), problem=problem)
