"""A year of a company, simulated in an hour: what a packed log needs when most of it is settled.

    python -m bench.year --minutes 60

Conversations come week by week, as many each week, and what is older than a month of that year is
packed each week and removed from the stream (docs/packing.md). A month has four weeks here. How
many conversations come is measured first: as many as this machine can write and pack in that time.
If it becomes slower, fewer come. At each quarter's end the broker is killed, and started.

Of every tenth conversation a digest is kept while it is in the stream: of its facts, as they are
there, and of its history. When the year is over, each of those that were packed is read by a new
client and compared.

The conversations are recorded ones, repeated under new names, where `--recorded` names a file of
them; else made-up ones (bench/logs.py).
"""

import argparse
import asyncio
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import astuple, replace

from ayes.interfaces.cli.terminal.logs import setup
from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import RawMessage
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.processes import environment
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.projections.formats import format_named
from ayes.projections.history import history
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.slots import ROOT, Slot, ThreadRef
from bench import capacity, logs
from bench.growth import (
    DISK,
    SUBJECTS,
    Cost,
    Measured,
    check_memory,
    disk_mb,
    jetstream,
    pack,
    resident_mb,
    table,
    without_workers,
)
from bench.history import PROVIDER
from bench.logs import Place
from bench.rehearsal import RECORDED
from bench.results import SYNC, Better, Result, compared, told

WORKLOAD: Final = "year"
MONTHS: Final = 12
_A_QUARTER: Final = 3
#: In weeks.
_A_MONTH: Final = 4
_WEEKS: Final = MONTHS * _A_MONTH
#: Weeks after which a conversation is packed.
_HOT: Final = _A_MONTH
#: One in this many conversations is read back.
_TENTH: Final = 10
#: Conversations by which it is measured how many come in a week.
_PROBE: Final = 30
#: Of the given time, what the year itself may take. The rest is to measure and to read back.
_SHARE: Final = 0.8
#: By which people are asked about recorded calls.
_POLICY: Final = Path(__file__).resolve().parents[1] / "examples" / "airline.toml"
#: Targets.
MOST_MB: Final = 1.5e9 / (1 << 20)
SLOWEST_MS: Final = 5_000.0

THREADS: Final = Cost("conversations in the log", "conversations")
FACTS: Final = Cost("facts in the log, without packs", "facts")
PACKS: Final = Cost("packs in the log", "packs")
MEMORY: Final = Cost("broker memory", "MB")
PEAK: Final = Cost("peak memory of the broker since its start", "MB")
WRITING: Final = Cost("writing a week", "s")
PACKING: Final = Cost("packing a week", "s")

#: The facts of the conversation of this number, under a name of its own.
type Conversation = Callable[[int], Iterator[Place]]


class Kept(Struct, frozen=True):
    """What must be the same before a conversation is packed and afterwards."""

    thread: str
    #: Of the numbers, times, subjects and bytes of its facts, in order.
    facts: str
    #: Of its history, as it is written for a provider.
    history: str
    #: Of the last call.
    status: Status | None


class Company:
    """A log that conversations are written to, week by week.

    Args:
        store: of its broker.
        conversation: the facts of each.
    """

    def __init__(self, store: Path, conversation: Conversation) -> None:
        self.store = store
        self._conversation = conversation
        self.threads = self.facts = 0
        #: By week: the conversations until its end, and its end by the broker's clock.
        self._ends: list[tuple[int, datetime]] = []
        #: A line for each conversation that is to be read back, in the order of their numbers.
        self.kept = store.with_suffix(".kept")

    def running(self) -> EmbeddedServer:
        return EmbeddedServer(self.store, sync=SYNC)

    async def begin(self) -> None:
        async with self.running():
            await declare_streams(self.store, packed=True)
            async with Ledger.connect(self.store, role="admin") as ledger:
                await without_workers(jetstream(ledger))

    async def week(self, ledger: Ledger, conversations: int) -> None:
        """Write that number of conversations, and keep a digest of every tenth."""
        new = range(self.threads, self.threads + conversations)
        first = await ledger.log.last_seq() + 1
        await logs.append_all(ledger, self._counted(new))
        self.threads = new.stop
        self._ends.append((new.stop, await ledger.log.clock()))
        log = jetstream(ledger)
        with self.kept.open("ab") as file:
            for number in new:
                if number % _TENTH == 0:
                    ref = next(self._conversation(number))[0].thread_ref
                    raw = await _all(log.in_stream(first, ref.subjects))
                    thread = thread_of(ref, [fact_of(*astuple(one)[:4]) for one in raw])
                    status = [call.status for call in thread.calls.values()][-1:]
                    file.write(msgspec.json.encode(_kept(thread, raw, *status)) + b"\n")

    def _counted(self, numbers: range) -> Iterator[Place]:
        for place in logs.interleaved(map(self._conversation, numbers)):
            self.facts += 1
            yield place

    async def pack(self, ledger: Ledger, hot: int = _HOT) -> None:
        """Pack the conversations from before the last weeks."""
        if len(self._ends) > hot:
            await pack(ledger, self._ends[-1 - hot][1])

    async def read_back(self, ledger: Ledger) -> tuple[int, int]:
        """The number of packed conversations that were kept, and of those that are the same."""
        packed, same = range(0, self._ends[-1 - _HOT][0], _TENTH), 0
        with self.kept.open("rb") as lines:
            for _, line in zip(packed, lines, strict=False):
                kept = msgspec.json.decode(line, type=Kept)
                ref = ThreadRef.parse(kept.thread)
                in_stream = await _all(jetstream(ledger).in_stream(subjects=ref.subjects))
                if any(packs.is_packable(Slot.parse(one.subject)) for one in in_stream):
                    raise AssertionError(f"{ref} is not packed")
                same += await _read(ledger, ref) == kept
        return len(packed), same


async def _read(ledger: Ledger, ref: ThreadRef) -> Kept:
    """What is kept of a conversation, made of what programs and the console read."""
    thread = thread_of(ref, await ledger.read(ref))
    raw = await _all(ledger.log.scan(1, ref.subjects))
    last = [*thread.calls][-1:]
    status = [(await ledger.call(ref.call(name))).status for name in last]
    return _kept(thread, [one for one in raw if not packs.number_of(one.subject)], *status)


def _kept(thread: Thread, raw: Sequence[RawMessage], status: Status | None = None) -> Kept:
    rows = [(one.seq, one.at_ns, one.subject, one.data) for one in raw]
    written = format_named(PROVIDER).write(history(thread).entries)
    return Kept(str(thread.ref), _digest(rows), _digest(written), status)


def _digest(of: object) -> str:
    return sha256(msgspec.msgpack.encode(of)).hexdigest()


async def _all(pages: AsyncGenerator[list[RawMessage]]) -> list[RawMessage]:
    async with aclosing(pages):
        return [one async for page in pages for one in page]


# ------------------------------------------------------------------------------------ conversations


async def source(file: str, scratch: Path) -> tuple[Conversation, str]:
    """The conversations, and what they are: those of a file as a rehearsal records them
    (`bench.rehearsal`), one after the other and then again; made-up ones if `file` is empty.

    Raises:
        BadInput: the file cannot be rehearsed.
    """
    if not file:
        return lambda n: logs.conversation(ThreadRef("bench", f"t{n}")), "made-up conversations"
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.rehearsal", "run", file),
        *("--policy", str(_POLICY), "--store", str(scratch), "--json"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    _, problem = await done.communicate()
    found: dict[ThreadRef, list[Fact]] = defaultdict(list)
    if done.returncode == 0:
        async with EmbeddedServer(scratch), Ledger.connect(scratch, role="observer") as ledger:
            async for fact in ledger.replay(1, f"{ROOT}.*.*.>"):
                if fact.slot.thread:
                    found[fact.slot.thread_ref].append(fact)
    if not found:
        raise BadInput(f"{file} cannot be rehearsed: {problem.decode().strip()}")
    each = list(found.values())
    return lambda n: (_again(fact, n) for fact in each[n % len(each)]), "recorded conversations"


def _again(fact: Fact, number: int) -> Place:
    """What a fact of a recording says, in the conversation of this number."""
    slot = replace(fact.slot, thread=f"t{number}")
    assert isinstance(fact.event, e.Event)
    event = replace(fact.event, id="", at=UNSET, cause="", trace="")
    if isinstance(event, e.ToolStarted):
        event = replace(event, idempotency_key=str(slot.call_ref))
    return slot, event


# ---------------------------------------------------------------------------------------- measuring


async def a_week(scratch: Path, conversation: Conversation, seconds: float) -> int:
    """How many conversations can be written and packed in that time."""
    company = Company(scratch, conversation)
    await company.begin()
    async with company.running(), Ledger.connect(company.store, role="admin") as ledger:
        begun = time.perf_counter()
        await company.week(ledger, _PROBE)
        for _ in range(2):  # the second one removes
            await company.pack(ledger, hot=0)
        return max(1, int(_PROBE * seconds / (time.perf_counter() - begun)))


async def passing(
    company: Company, conversations: int, what: str, until: float, months: dict[int, Measured]
) -> AsyncGenerator[Result]:
    """Let a year pass. Yields a result for each cost of each month, for each start of the broker
    after a kill, and for the whole year.

    Args:
        conversations: that come in a week, at first.
        what: their kind.
        until: when it should be over, by `time.perf_counter`; if it takes longer, fewer come.
        months: given the costs, from the second month on, in which packing begins.
    """
    version, peak = "", 0.0

    def line(
        what: str, unit: str, value: float, floor: float, beside: str,
        target: float | None = None, better: Better = "lower",
    ) -> Result:  # fmt: skip
        return compared(
            WORKLOAD, what, unit, [value], [floor], beside=beside, better=better, target=target,
            facts=company.facts, nats_server=version,
        )  # fmt: skip

    await company.begin()
    for over in range(0, MONTHS + 1, _A_QUARTER):
        begun = time.perf_counter()
        async with company.running() as server:
            started_ms = (time.perf_counter() - begun) * 1000
            if over:
                started = f"broker start-up after kill -9, after month {over}"
                yield line(started, "ms", started_ms, SLOWEST_MS, "allowed", 1)
            async with Ledger.connect(company.store, role="admin") as ledger:
                version = ledger.log.server_version
                for month in range(over + 1, min(over + _A_QUARTER, MONTHS) + 1):
                    found = await _month(company, ledger, server.pid, conversations)
                    peak = max(peak, *found[PEAK])
                    spent = _A_MONTH * (found[WRITING][0] + found[PACKING][0])
                    allowed = (until - time.perf_counter()) / max(1, MONTHS - month)
                    conversations = max(1, int(conversations * min(1, allowed / spent)))
                    if month > 1:
                        months[month] = found
                    for cost, [value] in found.items() if months else ():
                        said, [floor] = f"{cost.what}, month {month}", months[2][cost]
                        yield line(said, cost.unit, value, floor, "month 2")
                if over == MONTHS:
                    await company.pack(ledger)  # removes what was packed last
            if over == MONTHS:
                async with Ledger.connect(company.store, role="observer") as ledger:
                    packed, same = await company.read_back(ledger)
                peak = max(peak, resident_mb(server.pid, "VmHWM"))
            os.kill(server.pid, signal.SIGKILL)
            await server.exited()
    a_year = capacity.SIZES["a company"] * 365
    for facts, which in ((capacity.AROUND, "conversations"), (capacity.ALONE, "approvals alone")):
        said = f"facts, as a share of a company's year of {which}"
        yield line(said, "%", 100 * company.facts / (a_year * facts), 100, "docs/capacity.md")
    yield line("peak memory of the broker", "MB", peak, MOST_MB, "allowed", 1)
    yield line(f"{what}, packed and the same", "read", same, packed, "read back", 1, "higher")


async def _month(company: Company, ledger: Ledger, pid: int, conversations: int) -> Measured:
    writing, packing = list[float](), list[float]()
    for _ in range(_A_MONTH):
        begun = time.perf_counter()
        await company.week(ledger, conversations)
        writing.append(time.perf_counter() - begun)
        await company.pack(ledger)
        packing.append(time.perf_counter() - begun - writing[-1])
    log = jetstream(ledger)
    stream = (await log.api.call(f"STREAM.INFO.{LEDGER}"))["state"]
    made = len(await log.counted(LEDGER, packs.EVERY))
    if stream["last_seq"] != company.facts + made:
        raise AssertionError(
            f"{stream['last_seq']:,} numbers are not of {company.facts:,} facts and {made:,} packs"
        )
    found = {
        THREADS: company.threads,
        FACTS: company.facts,
        PACKS: made,
        SUBJECTS: stream["num_subjects"],
        MEMORY: resident_mb(pid),
        PEAK: resident_mb(pid, "VmHWM"),
        DISK: disk_mb(company.store),
        WRITING: statistics.mean(writing),
        PACKING: statistics.mean(packing),
    }
    return {cost: [value] for cost, value in found.items()}


def main() -> None:
    """Let a year pass, and print a line for each result as it comes."""
    options = argparse.ArgumentParser(description="Measure a year of a packed log.")
    options.add_argument("--minutes", type=float, default=60, help="about how long it may take")
    options.add_argument(
        "--recorded",
        default=str(RECORDED) if RECORDED.exists() else "",
        help="a file of recorded conversations; '' for made-up ones",
    )
    options.add_argument("--json", action="store_true", help="one JSON object a line")
    given = options.parse_args()
    setup(verbose=False)
    try:
        if not 0 < given.minutes < math.inf:
            raise BadInput(f"--minutes is {given.minutes:g}: give a number over 0.")
        check_memory()
        if not asyncio.run(_measure(given)):
            sys.exit("A target was missed.")
    except ApprovalsError as problem:
        sys.exit(str(problem))


async def _measure(given: argparse.Namespace) -> bool:
    """Whether all targets were met."""
    met, months = True, dict[int, Measured]()
    until = time.perf_counter() + given.minutes * 60
    with tempfile.TemporaryDirectory(prefix="ayes-bench-") as name:
        scratch = Path(name)
        conversation, what = await source(given.recorded, scratch / "recorded")
        a_week_s = given.minutes * 60 * _SHARE / _WEEKS
        conversations = await a_week(scratch / "probe", conversation, a_week_s)
        company = Company(scratch / "store", conversation)
        passed = passing(company, conversations, what, until, months)
        async with aclosing(passed) as results:
            async for result in results:
                print(told(result, json=given.json), flush=True)
                met &= result.met
    if not given.json:
        print(f"\n{table('month', months, slope=False)}")
    return met


if __name__ == "__main__":
    main()
