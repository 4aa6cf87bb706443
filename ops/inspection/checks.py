"""Is it well? One look at a broker, and checks that judge it.

    look = await overview(log, store, place)
    look.alarms                     # ["1 of 3 nodes is away: n2"]

`glance`, `overview` and `examination` ask the broker, each thing once. A check asks nothing: it is
a function of a `Look`. `ayes doctor`, `status`, `ready`, `/readyz`, `/metrics`, the page Operations
and the guard of `up` are selections of checks: `DOCTOR`, `ALARMS`, `READY` and `GUARD`.

To add a check, write its function, give it a name in `CHECKS`, and put the name into the selections
that are to show it. If it needs an answer that a `Look` does not have, add a field, and ask where
the other fields are filled.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ayes.consumers import doubt
from ayes.consumers.webhooks import endpoints
from ayes.consumers.webhooks.endpoints import EndpointFile, EndpointStatus
from ayes.ledger import clock
from ayes.ledger.clients.services import CALENDAR, CHANNEL, Ledger
from ayes.ledger.descriptions import describe_stop
from ayes.ledger.log import Parked
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.drift import differences
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import (
    ALARM,
    OLDEST_SERVER,
    Use,
    check_level,
    described,
    info,
    is_packed,
    kept,
    undeclared,
    uses,
    version_text,
)
from ayes.ledger.signing import fingerprint
from ayes.ledger.subscriptions import LEDGER, MAX_PARKED, OPERATOR, PARKED, Durable
from ayes.ledger.trust import Trust
from ayes.ops.actions.forgetting import personal_names
from ayes.ops.actions.policies import silent_schedules, voters_of, wanting_signed
from ayes.ops.actions.stops import stops_in
from ayes.ops.audit.verify import rebuild
from ayes.ops.broker.builds import Build
from ayes.ops.inspection import witness
from ayes.ops.inspection.health import Health, takes_writes
from ayes.ops.inspection.nodes import Copies, clocks, copies, skewed, trouble
from ayes.ops.inspection.progress import ESSENTIAL, ConsumerStatus, progress, seconds
from ayes.ops.sealing.status import NO_COPY, SealStatus
from ayes.schemas.errors import ApprovalsError, BadInput, BrokerRefused, Unavailable
from ayes.schemas.sizes import size

#: Deliveries of one consumer that may wait. The gate handles some 500 calls a second.
MAX_WAITING: Final = 10_000
#: Of many sentences of one kind, so many are shown; and of void starts and results.
MAX_SHOWN: Final = 5
_FEW: Final = 3
#: nats-server writes no index of a running stream with more subjects than this.
INDEXED: Final = 1_000_000
#: A log of more facts than this is read whole only with --deep.
READ_WHOLE: Final = 100_000
NOT_TRIED: Final = Health(ok=False, why="whether the log takes writes is not known yet.")


class Wanted(NamedTuple):
    """What must be so for a broker to be ready."""

    #: These workers are at work; none: those without which no call is decided.
    roles: Sequence[str] = ()
    #: No consumer has more waiting deliveries, unless its work may take long.
    most_waiting: int = MAX_WAITING


class FailingChannel(Struct, frozen=True):
    """A channel of notices whose last try failed, or a calendar that cannot be read."""

    #: The name of the channel, or whose calendar it is.
    channel: str
    since: datetime
    #: What went wrong.
    why: str


#: The problems, a sentence each; and what is said if there are none.
type Finding = tuple[Sequence[str], str]


class Look(Struct, frozen=True, kw_only=True):
    """What a broker answered. What was not asked, or cannot be read, is None or empty."""

    #: Why something cannot be read, by field.
    unread: dict[str, str] = {}
    wanted: Wanted = Wanted()
    url: str = ""
    server: tuple[tuple[int, ...], str] = ((), "")
    has_log: bool = True
    #: The number of facts, that of the last one, and when it was recorded (None: never).
    facts: int = 0
    last_seq: int = 0
    last_at: datetime | None = None
    #: Seconds since the last fact; None in an empty log. With nothing waiting, a log that does not
    #: grow looks healthy; people know whether it should.
    head_age_s: float | None = None
    bytes: int = 0
    #: The subjects of the log that have a fact, which the broker keeps in memory.
    subjects: int = 0
    #: The log refuses facts beyond this many bytes; None: it has no limit.
    limit_bytes: int | None = None
    consumers: Sequence[ConsumerStatus] = ()
    #: How the streams and consumers differ from what is declared.
    drift: Sequence[str] = ()
    streams: list[Copies] = []
    #: How full each stream is.
    room: Sequence[Use] = ()
    health: Health = NOT_TRIED
    #: By how many seconds each node's clock is ahead of this machine's; empty for a server alone.
    ahead_s: Mapping[str, float] = {}
    #: How far this machine's clock is from the broker's, give or take half a round trip.
    skew_s: float = 0.0
    #: The undeclared consumers that outlive their readers.
    readers: Sequence[str] = ()
    parked: Sequence[Parked] = ()
    #: The number of calls that wait for people.
    pending: int | None = None
    #: The calls that a person must reconcile, as `workspace/thread/call`.
    in_doubt: list[str] | None = None
    #: The calls with a start or result of the last week that counts for nothing, and why.
    void_runs: dict[str, str] | None = None
    #: The stops in force: what is stopped, by whom, why and until when.
    stopped: list[str] | None = None
    #: Recorded policies and declarations that do not count; those before them stay in force.
    void_facts: Sequence[str] | None = ()
    #: The schedules in the policies in force by which nobody would be asked now, and why.
    silent: Sequence[str] | None = ()
    #: The channels of notices that fail.
    channels: list[FailingChannel] | None = None
    #: The calendars of absences that cannot be read.
    calendars: list[FailingChannel] | None = None
    #: The endpoints of the file of webhooks on this machine.
    webhooks: list[EndpointStatus] = []
    #: How the log differs from its witness, as far as a quick look shows; empty if it does not.
    unlike: str = ""
    #: How far it is sealed; None without a seal.
    seal: SealStatus | None = None
    #: How it compares with the witness, and with what it promises.
    witnessed: Finding = ((), "")
    #: Why signed votes cannot count where they are wanted, or should not, and where they are.
    unsigned: list[str] | None = []
    signed_in: list[str] = []
    #: The threads with sealed values whose names look like a person's address or number.
    personal: list[str] = []
    promises: Finding = ((), "")
    #: Whether the nats-server of the store is a known build.
    build: Finding = ((), "the broker was not started here")

    @property
    def free_bytes(self) -> int | None:
        """The free bytes of the store's disk; None if the broker runs elsewhere."""
        return self.health.free_bytes

    @property
    def alarms(self) -> list[str]:
        return problems(self, ALARMS)


# ------------------------------------------------------------------------------------------- asking


async def glance(log: JetStream, wanted: Wanted | None = None) -> Look:
    """The streams and consumers of a broker.

    Args:
        log: on the login of the operator; that of a worker can ask about its own role.
        wanted: ask about the log and the consumers of these roles only.

    Raises:
        NewerLog: the log is at a level that this program does not know.
        Unavailable: the broker does not answer, or refuses.
    """
    if wanted is None:
        found = await described(log.api)
    else:

        def is_asked(durable: Durable) -> bool:
            is_wanted = not wanted.roles or durable.role in wanted.roles
            return is_wanted and durable.stream != PARKED

        found = await described(log.api, (LEDGER,), is_asked)
    check_level(found.ledger)
    each = (
        progress(log, found.durables[name], consumer, kept(found.ledger))
        for name, consumer in found.consumers.items()
    )
    return replace(
        _of_log(found.ledger),
        wanted=wanted or Wanted(),
        url=log.connection.login.url,
        server=(log.server, log.server_version),
        consumers=await asyncio.gather(*each),
        drift=[] if wanted else [*map(str, differences(found))],
        streams=copies(found),
        room=uses(found),
    )


def _of_log(stream: dict[str, Any] | None) -> Look:
    if stream is None:
        return Look(has_log=False)
    state, most = stream["state"], stream["config"]["max_bytes"]
    is_empty = not state["messages"]
    return Look(
        # What is in packs may have left the stream. The witness knows whether any fact is lost.
        facts=state["last_seq"] if is_packed(stream) else state["messages"],
        last_seq=state["last_seq"],
        last_at=None if is_empty else datetime.fromisoformat(state["last_ts"]),
        head_age_s=None if is_empty else seconds(state["last_ts"], stream["ts"]),
        bytes=state["bytes"],
        subjects=state.get("num_subjects", 0),
        limit_bytes=most if most > 0 else None,
    )


async def overview(
    log: JetStream,
    store: Store | None,
    place: str,
    *,
    pending: Callable[[], Awaitable[int]] | None = None,
    unlike: Callable[[], Awaitable[str]] | None = None,
    webhooks: EndpointFile | None = None,
) -> Look:
    """What an operator looks at first: the log, its nodes, each consumer, what needs a person.

    Args:
        store: the store of the broker, if it runs on this machine.
        place: as of `witness.place_of`.
        pending: another way to count the pending calls.
        unlike: another way to compare the log with its witness.
        webhooks: the endpoints, if they are on this machine; by default those in the store.

    Raises:
        BrokerRefused: there is no log.
    """
    found = await glance(log)
    if not found.has_log:
        raise BrokerRefused(f"there is no stream {LEDGER} here. `ayes up` creates it.")
    if webhooks is None and store is not None:
        webhooks = EndpointFile(store.path / endpoints.NAME)
    ledger, unread = Ledger.on(log, OPERATOR), dict[str, str]()
    count, runs, channels, calendars, shared = await asyncio.gather(
        _readable(unread, "pending", pending() if pending else _pending(log)),
        _readable(unread, "void_runs", doubt.void_runs(ledger)),
        _readable(unread, "channels", failing_channels(ledger)),
        _readable(unread, "calendars", failing_channels(ledger, CALENDAR)),
        _shared(log, store, found),
    )
    return replace(
        shared,
        unread={**shared.unread, **unread},
        consumers=[one for one in found.consumers if _is_shown(one)],
        pending=count,
        void_runs=runs,
        channels=channels,
        calendars=calendars,
        webhooks=webhooks.statuses() if webhooks else [],
        unlike=await (unlike() if unlike else unlike_witness(log, place)),
    )


async def examination(
    log: JetStream, store: Store | None, place: str, trust: Trust | None, *, deep: bool
) -> Look:
    """What an administrator checks.

    Args:
        trust: the trust file beside the store, if there is one.
        deep: read the whole log, however long it is.
    """
    shared = await _shared(log, store, await glance(log))
    ledger, unread = Ledger.on(log, OPERATOR), dict[str, str]()
    silent = await _readable(unread, "silent", _silent(ledger))
    wanting = await _readable(unread, "unsigned", wanting_signed(ledger)) if store else []
    unsigned = _unsigned(wanting or (), trust, await log.identity())
    copied: list[str] | None = []
    if trust is not None and not unsigned:
        copied = await _readable(unread, "unsigned", copied_keys(ledger, trust))
    return replace(
        shared,
        unread={**shared.unread, **unread},
        silent=silent,
        unsigned=None if wanting is None or copied is None else [*unsigned, *copied],
        signed_in=[*dict.fromkeys((*(wanting or ()), *(trust.signed_since if trust else ())))],
        readers=[*map(str, await undeclared(log.api))],
        personal=await _readable(unread, "personal", personal_names(ledger)) or [],
        skew_s=await _skew_s(log),
        witnessed=await _witnessed(log, place, deep=deep),
        promises=await _kept(log, deep=deep),
        build=await asyncio.to_thread(_build, store.read().binary) if store else Look().build,
    )


async def _shared(log: JetStream, store: Store | None, found: Look) -> Look:
    ledger, unread = Ledger.on(log, OPERATOR), dict[str, str]()
    health, seal, parked, doubts, stopped, void = await asyncio.gather(
        takes_writes(log, store),
        SealStatus.of(store, log, found.last_seq),
        log.parked(),
        _readable(unread, "in_doubt", doubt.in_doubt(ledger)),
        _readable(unread, "stopped", _stopped(ledger)),
        _readable(unread, "void_facts", ledger.alarms()),
    )
    nodes = max((1 + len(one.replicas) for one in found.streams), default=1)
    return replace(
        found,
        unread=unread,
        health=health,
        seal=seal,
        parked=parked,
        in_doubt=doubts and [f"{one.workspace}/{one.thread}/{one.call}" for one in doubts],
        stopped=stopped,
        void_facts=void and [f"{one.subject} (fact {one.seq}) is void: {one.why}" for one in void],
        ahead_s=await clocks(log, nodes) if nodes > 1 else {},
    )


async def _stopped(ledger: Ledger) -> list[str]:
    found, now = await stops_in(ledger), await ledger.log.clock()
    return [describe_stop(stop) for stop in found if stop.holds(now)]


async def _silent(ledger: Ledger) -> list[str]:
    return await silent_schedules(ledger, await voters_of(ledger))


async def _readable[T](unread: dict[str, str], field: str, reading: Awaitable[T]) -> T | None:
    """What is read from a bucket; None if that fails, since the rest is worth to be shown.

    A consumer for reading it may be placed on a node that has just gone away, and never answers.
    """
    try:
        return await reading
    except Unavailable as problem:
        unread[field] = str(problem)
        return None


def _is_shown(one: ConsumerStatus) -> bool:
    """Those that are needed; those for parked deliveries only if something is to be retried."""
    if one.kind.stream == PARKED:
        return bool(one.waiting or one.in_hand)
    return one.is_shown


async def _pending(log: JetStream) -> int:
    return len(await log.pending.entries())


async def failing_channels(ledger: Ledger, beginning: str = CHANNEL) -> list[FailingChannel]:
    """The channels through which the notifier reached nobody when it last tried, by name; or the
    calendars, whose keys have another beginning.
    """
    found = []
    for key, entry in sorted((await ledger.log.running.written()).items()):
        if key.startswith(beginning):
            try:
                said = msgspec.json.decode(entry.value, type=_Said)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                said = _Said("an entry of another version", entry.at)
            found.append(FailingChannel(key.removeprefix(beginning), said.since, said.why))
    return found


class _Said(Struct):
    why: str
    since: datetime


async def _skew_s(log: JetStream) -> float:
    before = clock.now()
    stream = await info(log.api, f"STREAM.INFO.{LEDGER}")
    after = clock.now()
    if stream is None:
        return 0.0
    return (datetime.fromisoformat(stream["ts"]) - (before + (after - before) / 2)).total_seconds()


async def unlike_witness(log: JetStream, place: str) -> str:
    """How the log differs from its witness; empty if it does not, as far as a quick look shows."""
    return "; ".join((await _witnessed(log, place, quick=True))[0])


async def _witnessed(
    log: JetStream, place: str, *, deep: bool = False, quick: bool = False
) -> Finding:
    """Compare the log with its witness, and count its facts."""
    try:
        whole = deep or await log.last_seq() <= READ_WHOLE
        problem = await witness.difference(log, place, deep=whole, quick=quick)
        read, (_, accepted) = await witness.reading(log), await witness.accepted(log)
        if problem or (read and read.problem):
            found = await witness.unreadable(log) if whole else []
            named = f"; these facts cannot be read: {_joined(found)}" if found else ""
            return [f"{problem or read}{named}"], ""
        known = await witness.Witness(log, place).known(await log.identity())
    except Unavailable as unreadable:
        return [str(unreadable)], ""
    said = ["not seen before; a gate records it while it runs"]
    if known:
        first = 1 if whole else known[0].begin[0] + 1
        more = "" if whole else "; --deep looks at all"
        said = [f"facts {first:,} to {known[0].seq:,} are those that were seen before{more}"]
    said += [str(read)] if read else []
    if accepted is not None:
        by = f"accepted as it was up to fact {accepted.size:,} by {accepted.by.name}"
        said.append(f"{by}: {accepted.reason or 'no reason was given'}")
    return [], "; ".join(said)


def _build(binary: str) -> Finding:
    if not binary:
        return Look().build
    try:
        found = Build.of(binary)
        return ([], str(found)) if found.is_known else ([str(found)], "")
    except BadInput as problem:
        return [str(problem)], ""


async def _kept(log: JetStream, *, deep: bool) -> Finding:
    """The result of `ayes replay --verify` for the facts alone, if they are few enough."""
    last = await log.last_seq()
    if not deep and last > READ_WHOLE:
        return [], f"not looked at: {last:,} facts; --deep does"
    try:
        found = await rebuild(Ledger.on(log, OPERATOR), until=last, verify=True) if last else None
    except Unavailable as problem:
        return [f"not looked at: {problem}"], ""
    broken = _joined(found.differences) if found else ""
    return [broken] if broken else [], f"kept by all {last:,} facts"


# --------------------------------------------------------------------------------------- the checks
#
# Each yields what is wrong, a sentence each; nothing, or empty sentences, if it is well.


class Check(Struct, frozen=True, omit_defaults=True):
    """How a check ended."""

    check: str
    ok: bool
    detail: str
    #: How full each stream is; of the check `room` alone.
    uses: Sequence[Use] = ()


type Judge = Callable[[Look], Iterable[str]]


def examined(look: Look, names: Iterable[str]) -> list[Check]:
    found = [(name, problems(look, [name]), CHECKS[name][1]) for name in names]
    return [
        Check(
            name,
            not bad,
            "; ".join(bad) or (well if isinstance(well, str) else well(look)),
            look.room if name == "room" else (),
        )
        for name, bad, well in found
    ]


def problems(look: Look, names: Iterable[str]) -> list[str]:
    return [sentence for name in names for sentence in CHECKS[name][0](look) if sentence]


def obstacle(look: Look) -> str:
    """Why calls do not get decided, in one sentence; empty if they do."""
    return next(iter(problems(look, READY)), "")


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(doubts: Sequence[str]) -> str:
    return f"{counted(len(doubts), 'call')} (ayes pending --in-doubt): {_joined(doubts)}"


def _joined(sentences: Sequence[str]) -> str:
    more = len(sentences) - MAX_SHOWN
    return "; ".join(sentences[:MAX_SHOWN]) + (f"; and {more:,} more" if more > 0 else "")


def _server(look: Look) -> Iterator[str]:
    if look.server[0] < OLDEST_SERVER:
        yield _version(look)


def _version(look: Look) -> str:
    return f"nats-server {look.server[1]}; needed is {version_text()}"


def _free(look: Look) -> str:
    free = look.health.free_bytes
    return "the log takes them" + ("" if free is None else f"; {size(free)} are free")


def _batches(look: Look) -> Iterator[str]:
    if why := look.health.no_batches:
        yield f"the broker refuses them, so facts go one by one: {why}"


def _clock(look: Look) -> Iterator[str]:
    yield skewed(look.ahead_s) or (_skew(look) if abs(look.skew_s) >= 1 else "")


def _skew(look: Look) -> str:
    return f"{look.skew_s:+.3f} s from the broker's, on which deadlines are counted"


def _workers(look: Look) -> Iterator[str]:
    """Whether the consumers of the gate and the queue are served, and those of single logins.

    No call is decided without these two. Models and executors are not needed everywhere: services
    may call their models and run their tools themselves.
    """
    for one in look.consumers:
        if not (one.login or one.role in ESSENTIAL) or one.kind.stream == PARKED:
            continue
        if one.waiting and not one.listening:
            waits = "waits" if one.waiting == 1 else "wait"
            remedy = f"start it with `ayes work {one.role}`"
            remedy += f" and the login {one.login}" if one.login else ""
            yield f"{one.name}: {one.waiting:,} {waits} and nobody listens; {remedy}"
        elif one.problem:
            yield f"{one.name}: {one.problem}"


def _at_work(look: Look) -> str:
    if not any(one.used or one.listening for one in look.consumers):
        return "none has ever received anything here, and nothing waits. `ayes work` starts them"
    working = {one.role for one in look.consumers if one.listening}
    idle = [role for role in ESSENTIAL if role not in working]
    said = f"nothing waits for {' and '.join(idle)}, and none is at work"
    return said if idle else f"{' and '.join(ESSENTIAL)} are at work"


def _fullest(look: Look) -> str:
    fullest = max(look.room, key=lambda one: one.taken / one.most, default=None)
    if fullest is None:
        return "no stream has a limit"
    return f"{fullest.taken / fullest.most:.0%} at most: {fullest}"


def _subjects(look: Look) -> str:
    """The number of subjects and, near `INDEXED`, what more cost. A large log is no fault."""
    said = f"{counted(look.subjects, 'subject')} with a fact, each in the broker's memory"
    if look.subjects < ALARM * INDEXED:
        return said
    return (
        f"{said}. With more than {INDEXED:,} a broker that was killed reads the whole log before "
        "it answers. Plan a ledger for each group of workspaces (docs/capacity.md)"
    )


def _log_exists(look: Look) -> Iterator[str]:
    if not look.has_log:
        yield f"there is no stream {LEDGER} here. `ayes up` or `ayes setup` creates it."


def _durables(look: Look) -> Iterator[str]:
    for one in look.consumers:
        if one.is_missing:
            yield f"the consumer {one.name} is missing. `ayes setup` creates it."
        elif one.paused_until and one.used:
            until = f"the consumer {one.name} is paused until {one.paused_until}"
            yield f"{until}. `ayes setup --upgrade` sets it going."


def _roles(look: Look) -> Iterator[str]:
    working = {one.role for one in look.consumers if one.listening and not one.login}
    for one in look.consumers:
        if not one.listening and not one.kind.optional:
            working.discard(one.role)
    for role in look.wanted.roles or ESSENTIAL:
        if role not in working:
            yield f"no {role} is at work. Start one: `ayes work {role}`."


def _stalls(look: Look) -> Iterator[str]:
    for one in look.consumers:
        # One without a worker belongs to another kind of the role; a login's holds up itself alone.
        if one.frozen and one.listening and not one.login:
            left = one.waiting + one.in_hand
            deliveries = "1 delivery is" if left == 1 else f"{left:,} deliveries are"
            yield (
                f"the workers of {one.name} stand still: {deliveries} not handled, and nothing was "
                f"done for {one.quiet_s:,.0f} s."
            )


def _backlogs(look: Look) -> Iterator[str]:
    most = look.wanted.most_waiting
    for one in look.consumers:
        if one.listening and not one.kind.slow and one.waiting > most:
            yield (
                f"the workers of {one.name} are behind: {one.waiting:,} deliveries wait, and "
                f"{most:,} may. They catch up by themselves; if it lasts, look at `ayes status`."
            )


def _parked(look: Look) -> Iterator[str]:
    if look.parked:
        yield _given_up(look)


def _given_up(look: Look) -> str:
    return f"{len(look.parked)} deliveries that no consumer could handle"


def _room_for_parked(look: Look) -> Iterator[str]:
    for consumer, count in Counter(one.consumer for one in look.parked).items():
        if count >= ALARM * MAX_PARKED:
            yield (
                f"{consumer or 'no known consumer'} has {count:,} of {MAX_PARKED:,} parked "
                "deliveries: retry or drop some (`ayes parked ls`). While it has no room, what it "
                "cannot handle stays with the broker and is tried again."
            )


def _log_so_far(look: Look) -> Iterator[str]:
    if look.unlike:
        yield f"the log is not what it was: {look.unlike}"


def _in_doubt(look: Look) -> Iterator[str]:
    if look.in_doubt is None:
        yield f"not looked at: {look.unread['in_doubt']}"
    elif look.in_doubt:
        yield listed(look.in_doubt)


def _void_runs(look: Look) -> Iterator[str]:
    if found := look.void_runs:
        few = "; ".join(f"{call}: {why}" for call, why in list(found.items())[:_FEW])
        yield (
            f"starts or results that count for nothing, of {len(found):,} calls ({few}): somebody "
            "ran a tool without leave, or made up what it returned. `ayes thread` shows it"
        )


def _in_force(look: Look) -> Iterable[str]:
    return _unless_unread(look, "void_facts", "policies and tools")


def _unless_unread(look: Look, field: str, what: str) -> Iterable[str]:
    """Streams that are not as declared may not be readable, and are an alarm by themselves."""
    found: Sequence[str] | None = getattr(look, field)
    if found is not None:
        return found
    return [] if look.drift else [f"{what} cannot be read: {look.unread[field]}"]


def _on_call(look: Look) -> Iterable[str]:
    return _unless_unread(look, "silent", "who is on call")


def _unsigned(wanting: Sequence[str], trust: Trust | None, identity: str) -> list[str]:
    """Why no signed vote counts, although these want them or there is a trust file."""
    if trust is None and wanting:
        owners = ", ".join(wanting)
        return [
            f"the policy of {owners} wants signed votes, and none counts: there is no trust file"
        ]
    if trust is not None and trust.log != identity:
        return [f"the trust file is of the log {trust.log}, and this one is {identity}"]
    return []


async def copied_keys(ledger: Ledger, trust: Trust) -> list[str]:
    """Of which passkeys there may be a copy."""
    return [
        f"there may be a copy of a passkey of {key.person}: its counter did not rise after the "
        f"vote on {vote.slot.call_ref}. Revoke it: "
        f"ayes key revoke {key.person} {fingerprint(key.public)}"
        for key, vote in await ledger.copied(trust)
    ]


def _signatures(look: Look) -> Iterable[str]:
    return _unless_unread(look, "unsigned", "who wants signed votes")


def _stops(look: Look) -> str:
    """What people stopped is no fault, and why nothing starts."""
    if look.stopped is None:
        return f"cannot be read: {look.unread['stopped']}"
    return _joined(look.stopped) or "nothing is stopped"


def _names(look: Look) -> str:
    """A name that looks like a person's may be none, so it is no fault."""
    if not look.personal:
        return "no thread with sealed values has a name like a mail address or telephone number"
    return (
        f"threads with sealed values have names like mail addresses or telephone numbers, which "
        f"forgetting leaves: {listed(look.personal)}"
    )


#: Each check, and what is said if it is well.
CHECKS: Final[dict[str, tuple[Judge, str | Callable[[Look], str]]]] = {
    "server": (_server, _version),
    "build": (lambda look: look.build[0], lambda look: look.build[1]),
    "nodes": (
        lambda look: [trouble(look.streams)],
        lambda look: "; ".join(str(one) for one in look.streams if one.cluster) or "one server",
    ),
    "streams and consumers": (lambda look: look.drift, "as declared"),
    "readers": (lambda look: [_joined(look.readers)], "every consumer is a declared one"),
    "workers": (_workers, _at_work),
    "room": (lambda look: [str(one) for one in look.room if one.is_alarming], _fullest),
    "subjects": (lambda _look: (), _subjects),
    "writes": (lambda look: [look.health.why], _free),
    "batches": (_batches, "the broker accepts them"),
    "log": (lambda look: look.witnessed[0], lambda look: look.witnessed[1]),
    "log so far": (_log_so_far, ""),
    "seal": (
        lambda look: look.seal.alarms if look.seal else (),
        lambda look: str(look.seal or "the log is not sealed (docs/seals.md)"),
    ),
    "copies": (
        lambda look: [look.seal.copies_alarm] if look.seal else (),
        lambda look: look.seal.copies if look.seal else NO_COPY,
    ),
    "promises": (lambda look: look.promises[0], lambda look: look.promises[1]),
    "in doubt": (_in_doubt, "no call"),
    "stops": (lambda _look: (), _stops),
    "void runs": (_void_runs, ""),
    "policies and tools": (
        _in_force,
        lambda look: (
            "cannot be read, see above"
            if look.void_facts is None
            else "what was recorded last counts"
        ),
    ),
    "signatures": (
        _signatures,
        lambda look: f"signed votes are wanted in {', '.join(look.signed_in) or 'no workspace'}",
    ),
    "names": (lambda _look: (), _names),
    "on call": (_on_call, "no schedule of a policy was read more than an hour ago"),
    "parked": (_parked, _given_up),
    "room for parked": (_room_for_parked, ""),
    "webhooks": (lambda look: [str(one) for one in look.webhooks if one.is_alarming], ""),
    "clocks of nodes": (lambda look: [skewed(look.ahead_s)], ""),
    "clock": (_clock, _skew),
    "log exists": (_log_exists, ""),
    "durables": (_durables, ""),
    "roles": (_roles, ""),
    "stalls": (_stalls, ""),
    "backlogs": (_backlogs, ""),
}
DOCTOR: Final = (
    "server", "build", "nodes", "streams and consumers", "readers", "workers", "room", "subjects",
    "writes", "batches", "log", "seal", "copies", "promises", "in doubt", "stops",
    "policies and tools", "signatures", "names", "on call", "parked", "clock",
)  # fmt: skip
#: The alarms of `ayes status`, of the page Operations and of the metrics.
ALARMS: Final = (
    "log so far", "seal", "copies", "writes", "nodes", "clocks of nodes", "streams and consumers",
    "room", "policies and tools", "void runs", "webhooks", "room for parked",
)  # fmt: skip
#: What keeps calls from being decided. The first one that is not well is the reason.
READY: Final = ("log exists", "writes", "durables", "roles", "stalls", "backlogs")
#: What the administrator of `up` looks at each minute.
GUARD: Final = ("streams and consumers", "room", "readers")


# ------------------------------------------------------------------- the passwords of a local store

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


async def permissions(store: Store | None) -> list[Check]:
    """Whether each role is kept from what it must not write, and the store from other users."""
    if store is None:
        said = "not tried: one URL is one login. Give --store to try each role's."
        return [Check("permissions", ok=True, detail=said)]
    return [*[await cannot(role, subject, store) for role, subject in MUST_NOT], private(store)]


async def cannot(role: str, subject: str, store: Store) -> Check:
    """Try to write what the role must not. If it is allowed, the header still prevents recording
    it.
    """
    async with JetStream.connect(store.path, role=role) as log:
        return await refused(log, role, subject)


async def refused(log: JetStream, role: str, subject: str) -> Check:
    """As `cannot`, on a connection of the role."""
    name = f"{role} cannot write {'.'.join(subject.split('.')[3:])}"
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
    said = f"others may read {', '.join(wrong)}" if wrong else str(store.path)
    return Check("store is private", not wrong, said)
