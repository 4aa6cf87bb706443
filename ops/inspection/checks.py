"""The checks of `ayes doctor`, each a sentence about one thing."""

from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.drift import drift
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import OLDEST_SERVER, check_level, info, uses, version_text
from ayes.ledger.subscriptions import DURABLES, LEDGER, PARKED
from ayes.ops.audit.verify import rebuild
from ayes.ops.inspection import witness
from ayes.ops.inspection.guard import readers
from ayes.ops.inspection.health import takes_writes
from ayes.ops.inspection.nodes import clock_trouble, copies, explained, trouble
from ayes.ops.inspection.progress import ESSENTIAL, progress
from ayes.ops.inspection.status import doubts, void_facts
from ayes.schemas.errors import ApprovalsError, BrokerRefused, Unavailable
from ayes.schemas.ids import new_id
from ayes.schemas.slots import ROOT

#: Roles and subjects that they must not be able to write. Each is tried, in a way that records
#: nothing even if it is allowed.
MUST_NOT: Final = (
    ("model", "ledger.doctor.t.call.1-0.decided"),
    ("model", "ledger.doctor.t.call.1-0.vote.ana"),
    ("executor", "ledger.doctor.t.call.1-0.decided"),
    ("executor", "ledger.doctor.t.call.1-0.vote.ana"),
    ("service", "ledger.doctor.t.call.1-0.decided"),
    ("gate", "ledger.doctor.t.call.1-0.claim.1"),
    ("queue", "ledger.doctor.t.call.1-0.decided"),
    ("observer", "ledger.doctor.t.said.m1"),
    ("operator", "ledger.doctor.t.call.1-0.decided"),
)


class Check(Struct, frozen=True):
    check: str
    ok: bool
    detail: str


#: Of many sentences of one kind, so many are shown.
MOST: Final = 5
#: A log of more facts than this is read whole only with --deep.
READ_WHOLE: Final = 100_000


async def broker_checks(store: Path | None, url: str | None, *, deep: bool) -> list[Check]:
    """The checks of a broker, by one connection of its administrator.

    Args:
        deep: read the whole log, however long it is.
    """
    own = Store(store) if url is None else None
    connecting = JetStream.connect(store, url=url, role="admin", any_level=True)
    async with connecting as port, explained(port):
        check_level(await info(port.api, f"STREAM.INFO.{LEDGER}"))
        ledger = Ledger.on(port, "admin")
        differing = await drift(port.api)
        return [
            _server(port),
            await _nodes(port),
            Check("streams and consumers", not differing, "; ".join(differing) or "as declared"),
            await _readers(port),
            await _workers(port),
            await _room(port),
            await _writes(port, own),
            await _batches(port),
            await _witnessed(port, witness.place_of(store, url), deep=deep),
            await _promises(ledger, deep=deep),
            await _in_doubt(ledger),
            await _in_force(ledger, is_readable=not differing),
            await _parked(port),
            await _clock(port),
        ]


def _server(port: JetStream) -> Check:
    is_new_enough = port.server >= OLDEST_SERVER
    needed = f"needed is {version_text()}"
    return Check("server", is_new_enough, f"nats-server {port.server_version}; {needed}")


async def _nodes(port: JetStream) -> Check:
    found = await copies(port)
    led = "; ".join(map(str, found)) if any(one.cluster for one in found) else "one server"
    problem = trouble(found)
    return Check("nodes", not problem, problem or led)


def _joined(sentences: list[str]) -> str:
    more = len(sentences) - MOST
    return "; ".join(sentences[:MOST]) + (f"; and {more:,} more" if more > 0 else "")


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


async def _readers(port: JetStream) -> Check:
    abandoned = await readers(port.api)
    detail = _joined(abandoned) or "every consumer is a declared one"
    return Check("readers", not abandoned, detail)


async def _workers(port: JetStream) -> Check:
    """Whether the consumers of the gate and the queue are served.

    No call is decided without these two. Models and executors are not needed everywhere: services
    may call their models and run their tools themselves.
    """
    needed = [
        name
        for name, durable in DURABLES.items()
        if durable.role in ESSENTIAL and durable.stream != PARKED
    ]
    found = [await progress(port, name) for name in needed]
    idle = [
        f"{one.name}: {one.waiting:,} {'waits' if one.waiting == 1 else 'wait'} and "
        f"nobody listens; start it with `ayes work {DURABLES[one.name].role}`"
        if one.waiting and not one.listening
        else f"{one.name}: {one.problem}"
        for one in found
        if one.problem
    ]
    detail = "; ".join(idle) or "gate and queue run, or have nothing to do"
    return Check("workers", not idle, detail)


async def _room(port: JetStream) -> Check:
    taken = await uses(port.api)
    full = [one for one in taken if one.is_alarming]
    return Check("room", not full, "; ".join(map(str, full or taken)))


async def _writes(port: JetStream, store: Store | None) -> Check:
    health = await takes_writes(port, store)
    free = "" if health.free_bytes is None else f"; {health.free_bytes / 1e9:,.1f} GB are free"
    return Check("writes", health.ok, health.why or f"the log takes them{free}")


async def _batches(port: JetStream) -> Check:
    """Open a batch and abandon it: the broker drops it after some seconds, and records nothing."""
    headers = {"Nats-Batch-Id": new_id(), "Nats-Batch-Sequence": "1"}
    answer = await (await port.api.send(f"{ROOT}.doctor.t.said.m1", b"{}", headers))
    # An empty answer to the first message means that the batch may begin.
    refusal = answer.data.decode(errors="replace")
    detail = f"the broker refuses them, so facts go one by one: {refusal}"
    return Check("batches", not refusal, detail if refusal else "the broker accepts them")


async def _witnessed(
    log: JetStream, place: str, *, deep: bool = False, quick: bool = False
) -> Check:
    """Compare the log with its witness, and count its facts."""
    try:
        whole = deep or await log.last_seq() <= READ_WHOLE
        problem = await witness.difference(log, place, deep=whole, quick=quick)
        read, (_, accepted) = await witness.reading(log), await witness.accepted(log)
        if problem or (read and read.problem):
            found = await witness.unreadable(log) if whole else []
            named = f"; these facts cannot be read: {_joined(found)}" if found else ""
            return Check("log", ok=False, detail=f"{problem or read}{named}")
        known = await witness.Witness(log, place).known(await log.identity())
    except Unavailable as unreadable:
        return Check("log", ok=False, detail=str(unreadable))
    said = ["not seen before; a gate records it while it runs"]
    if known:
        first = 1 if whole else known[0].begin[0] + 1
        more = "" if whole else "; --deep looks at all"
        said = [f"facts {first:,} to {known[0].seq:,} are those that were seen before{more}"]
    said += [str(read)] if read else []
    if accepted is not None:
        by = f"accepted as it was up to fact {accepted.size:,} by {accepted.by.name}"
        said.append(f"{by}: {accepted.reason or 'no reason was given'}")
    return Check("log", ok=True, detail="; ".join(said))


async def _in_doubt(ledger: Ledger) -> Check:
    """The calls that a person must reconcile."""
    try:
        found = await doubts(ledger)
    except Unavailable as problem:
        return Check("in doubt", ok=False, detail=f"not looked at: {problem}")
    return Check("in doubt", not found, listed(found) if found else "no call")


def listed(doubts: list[str]) -> str:
    return f"{counted(len(doubts), 'call')} (ayes pending --in-doubt): {_joined(doubts)}"


async def _promises(ledger: Ledger, *, deep: bool) -> Check:
    """The result of `ayes replay --verify` for the facts alone, if they are few enough."""
    last = await ledger.log.last_seq()
    if not deep and last > READ_WHOLE:
        return Check("promises", ok=True, detail=f"not looked at: {last:,} facts; --deep does")
    try:
        differences = (
            list((await rebuild(ledger, until=last, verify=True)).differences) if last else []
        )
    except Unavailable as problem:
        return Check("promises", ok=False, detail=f"not looked at: {problem}")
    return Check("promises", not differences, _joined(differences) or f"kept by all {last:,} facts")


async def _in_force(ledger: Ledger, *, is_readable: bool) -> Check:
    """Streams that are not as declared may not be readable, and are an alarm by themselves."""
    if not is_readable:
        return Check("policies and tools", ok=True, detail="not looked at, see above")
    void = await void_facts(ledger)
    detail = "; ".join(void) or "what was recorded last counts"
    return Check("policies and tools", not void, detail)


async def _parked(port: JetStream) -> Check:
    parked = await port.parked()
    detail = f"{len(parked)} deliveries that no consumer could handle"
    return Check("parked", not parked, detail)


async def _clock(port: JetStream) -> Check:
    if different := await clock_trouble(port, await copies(port)):
        return Check("clock", ok=False, detail=different)
    skew = await _skew_s(port)
    detail = f"{skew:+.3f} s from the broker's, on which deadlines are counted"
    return Check("clock", abs(skew) < 1, detail)


async def cannot(role: str, subject: str, store: Store) -> Check:
    """Try to write what the role must not. If it is allowed, the header still prevents recording
    it.
    """
    name = f"{role} cannot write {'.'.join(subject.split('.')[3:])}"
    async with JetStream.connect(store.path, role=role) as log:
        try:
            answer = await log.api.send(subject, b"{}", {"Nats-Expected-Stream": "NO-SUCH-STREAM"})
            said = (await answer).data.decode()
        except BrokerRefused:
            return Check(name, ok=True, detail="the broker denies it")
        except ApprovalsError as problem:
            return Check(name, ok=False, detail=str(problem))
    return Check(name, ok=False, detail=f"the broker allows it: {said}")


def private(store: Store) -> Check:
    wrong = [
        file.name
        for file in (store.path / "address.json", store.path / "accounts.conf")
        if file.exists() and file.stat().st_mode & 0o077  # a cluster's nodes have the accounts
    ]
    return Check(
        "store is private",
        not wrong,
        f"others may read {', '.join(wrong)}" if wrong else str(store.path),
    )


async def _skew_s(log: JetStream) -> float:
    """How far this machine's clock is from the broker's, give or take half a round trip."""
    before = clock.now()
    stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
    after = clock.now()
    if stream is None:
        return 0.0
    return (datetime.fromisoformat(stream["ts"]) - (before + (after - before) / 2)).total_seconds()


async def unlike_witness(log: JetStream, place: str) -> str:
    """How the log differs from its witness; empty if it does not, as far as a quick look shows."""
    found = await _witnessed(log, place, quick=True)
    return "" if found.ok else found.detail
