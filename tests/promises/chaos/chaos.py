"""Chaos on a whole site: `chaos.py --minutes 20 --seed 1 --servers 3`.

Three nodes in network namespaces, or one server run by `ayes up`; every worker, service, reviewer
and rival is a process of its own. Who may not create namespaces gets nodes on 127.0.0.1 to
127.0.0.3, and no cuts. For the given time servers and programs are killed, paused and cut
off (`faults.py`). Then all is mended, the services finish what they began, and the log, the queue
and the journal are examined (`findings.py`). Ends with 1 if anything was found.

With `--packed`, packers are among the programs, and what they packed is also read with a raw client
(`packed_log.py`).

The report is Markdown; `--report docs/faults.md` replaces that part of the page.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

import network as networks
from chaos_tools import POLICY, WORKSPACE
from faults import EVERY_S, Faults
from findings import Findings, examined
from journal import Journal, merged, started
from nodes import Server, nodes_of
from programs import AYES, FEW, PACKING, SETTLED_S, Program, ours, workers
from report import report, write_into

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats import streams
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import DURABLES
from ayes.ops.broker.accounts import REVIEWER
from ayes.ops.broker.server import HOST, ensure_account
from ayes.ops.broker.setup import apply_policy, declare_streams
from ayes.schemas.errors import ApprovalsError

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "tests" / "data" / "small.jsonl"
PEOPLE = ["ana", "ben", "cai", "dora", "reviewer"]
#: How long everything may take to come to its end, once all is well again.
HEALING_S = 180.0
#: Seconds between two faults of a short run.
SHORT_S = 2.0


class Site:
    """Servers, and the programs that use them."""

    def __init__(
        self, folder: Path, size: int, seed: str, *, short: bool = False, packed: bool = False
    ) -> None:
        self.folder, self.size, self.seed, self.short = folder, size, seed, short
        self.packed = packed
        self.ack_wait_s = 1.0 if short else 10.0
        self.store = folder / "store"
        self.servers: dict[str, Server] = {}
        self.programs: dict[str, Program] = {}
        self.addresses: dict[str, str] = {}
        self.network: networks.Network | None = None
        (folder / "journal").mkdir()
        self.journal = Journal(folder / "journal", "chaos")
        self._stack = AsyncExitStack()
        self._leader = ""
        #: Calls whose runner died, and which a person had to look at.
        self.in_doubt = 0

    async def __aenter__(self) -> Self:
        if self.size == 1:
            command = [str(AYES), "up", "--workers", "none", "--store", str(self.store)]
            if self.packed:
                command += ["--pack-after", f"{SETTLED_S:g}s"]
            self.servers = {"up": Server(command, self.folder / "up.txt")}
        elif networks.why_not():
            self.addresses = {f"n{one}": f"127.0.0.{one}" for one in range(1, self.size + 1)}
            self.servers = nodes_of(self.store, self.addresses, PEOPLE, lambda _, *words: [*words])
        else:
            self.network = networks.Network([f"n{one}" for one in range(1, self.size + 1)])
            self._stack.enter_context(self.network.up())
            self.addresses = {name: self.network.addresses[name] for name in self.network.nodes}
            self.servers = nodes_of(self.store, self.addresses, PEOPLE, self.network.inside)
        for server in self.servers.values():
            await server.start()
            self._stack.push_async_callback(server.kill)
        await self._opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(one.end(patience_s=5) for one in self.programs.values()))
        await self._stack.aclose()

    async def leader(self) -> str:
        """The node that leads the log; the one that did if nobody says."""
        self._leader = (await self._cluster()).get("leader", self._leader)
        return self._leader or next(iter(self.servers))

    async def is_whole(self) -> bool:
        replicas = (await self._cluster()).get("replicas", ())
        return len(replicas) == self.size - 1 and all(
            one.get("current") and not one.get("offline") for one in replicas
        )

    async def _cluster(self) -> dict[str, Any]:
        with suppress(ApprovalsError, TimeoutError):
            async with asyncio.timeout(4), JetStream.connect(self.store, role="admin") as log:
                about = await streams.info(log.api, "STREAM.INFO.LEDGER")
                return dict(about.get("cluster", {})) if about else {}
        return {}

    async def answers(self, name: str) -> bool:
        host, port = self.addresses.get(name, HOST), Store(self.store).read().port
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                return True
        return False

    def start_programs(self) -> None:
        every = ours(self.folder, self.store, self.seed, RECORDED, self.ack_wait_s)
        self.programs = {
            name: one
            for name, one in every.items()
            if (name in (*FEW, *PACKING) or not self.short) and (name not in PACKING or self.packed)
        }
        for program in self.programs.values():
            program.start()

    async def warm(self) -> None:
        """Wait until every worker works; sixteen programs that start at once keep it busy."""
        async with asyncio.timeout(120):
            for one in workers(self.programs.values()):
                while not one.is_ready:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.2)

    def has_run_a_tool(self) -> bool:
        return any(started(line) for line in merged(self.folder / "journal"))

    async def heal(self) -> None:
        if self.network is not None:
            self.network.mend()
        for name, server in self.servers.items():
            server.signal(signal.SIGCONT)
            while not await self.answers(name):  # `up` may be about to end
                await server.start()
                await asyncio.sleep(0.2)
        for program in self.programs.values():
            program.signal(signal.SIGCONT)

    async def finish(self) -> list[str]:
        """Let the programs that make work end and wait for all of it; returns who did not end."""
        making = [one for one in self.programs.values() if not one.name.startswith(WORKING)]
        voting = [one for one in making if one.name in PEOPLE]
        others = [one for one in making if one not in voting]
        ended = await asyncio.gather(*(one.end(HEALING_S) for one in others))
        say("the services have ended")
        await self._settled()
        say("settled")
        await asyncio.gather(*(one.end(10) for one in voting))
        await self._reconciled()
        return [one.name for one, in_time in zip(others, ended, strict=True) if not in_time]

    async def _settled(self) -> None:
        """Wait until the consumers have handled every fact and nothing more is recorded."""
        until, last = time.monotonic() + HEALING_S, -1
        async with Ledger.connect(self.store, role="operator", timeout_s=60) as ledger:
            while time.monotonic() < until:
                seq, at_rest = await ledger.log.last_seq(), True
                for durable in ("gate", "queue", "executor", *([] if self.short else RECORDERS)):
                    progress = await ledger.log.progress(durable)
                    at_rest &= progress is None or not progress.waiting + progress.in_hand
                if at_rest and seq == last:
                    return
                last = seq
                # Longer than a delivery that nobody acknowledges takes to come again.
                await asyncio.sleep(self.ack_wait_s + 2)

    async def _reconciled(self) -> None:
        """Do what people do about calls whose runner died: nobody runs any of them any more."""
        async with (
            Ledger.connect(self.store, role="operator", timeout_s=60) as operator,
            Ledger.connect(self.store, role="service", timeout_s=60) as service,
            Ledger.connect(self.store, role=f"{REVIEWER}cai", timeout_s=60) as cai,
        ):
            for fact in await operator.read(f"ledger.{WORKSPACE}.*.call.*.requested"):
                call = await operator.call(fact.slot.call_ref)
                if call.status == "running" and call.is_clients:
                    call = await service.doubt(call.ref)
                if call.status == "in_doubt":
                    self.in_doubt += 1
                    await cai.reviewer("cai").reconcile(call.ref, happened=True, output="seen")

    async def _opened(self) -> None:
        """Declare the streams and apply the policy, once there is a leader."""
        async with asyncio.timeout(120):
            while True:
                try:
                    replicas = 3 if self.size > 1 else 1
                    await declare_streams(
                        self.store,
                        replicas=replicas,
                        also=WORKED if self.packed else tuple(DURABLES),
                        max_bytes=1 << 30,
                        packed=self.packed,
                    )
                    async with Ledger.connect(self.store, role="operator") as operator:
                        await apply_policy(operator, WORKSPACE, POLICY, "policy.toml")
                except ApprovalsError:
                    await asyncio.sleep(0.5)
                else:
                    break
        if self.size == 1:
            for person in PEOPLE:
                await ensure_account(self.store, f"{REVIEWER}{person}")


#: The consumers of the rehearsal's own workers.
RECORDERS = ("model-recorded", "executor-recorded")
#: The optional consumers that a program works for: nothing leaves the stream before each has
#: acknowledged it.
WORKED = ("executor", *RECORDERS)
#: The programs that work off what the others request.
WORKING = ("gate", "queue", "executor", "recorded")


async def run(folder: Path, args: argparse.Namespace) -> Findings:
    this = asyncio.current_task()
    assert this
    # So that the network is taken down.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with Site(folder, args.servers, args.seed, short=args.short, packed=args.packed) as site:
        site.start_programs()
        await site.warm()
        began = time.time()
        faults = Faults(site, args.seed, site.journal, every_s=SHORT_S if args.short else EVERY_S)
        say(f"chaos in {folder}: {args.servers} servers, seed {args.seed}")
        await faults.go_on(args.minutes * 60, site.has_run_a_tool)
        await site.heal()
        healed = time.time()
        say("healed")
        stuck = await site.finish()
        return await examined(site, faults, stuck, began, healed)


def say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def main() -> int:
    read = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    read.add_argument("--minutes", type=float, default=20)
    read.add_argument("--seed", default="1")
    read.add_argument("--servers", type=int, choices=(1, 3, 5), default=3)
    read.add_argument("--short", action="store_true", help="few programs, and faults every 2 s")
    read.add_argument("--packed", action="store_true", help="a log that is packed meanwhile")
    read.add_argument("--report", type=Path)
    read.add_argument("--keep", type=Path, help="a directory to keep logs and journals in")
    args = read.parse_args()
    if args.servers > 1 and (reason := networks.why_not()):
        say(f"no connection is cut: {reason}")
    folder = args.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(exist_ok=True)
    # What the witness remembers of this log is of no use to others.
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    found = asyncio.run(run(folder, args))
    if not args.keep and not found.problems:
        shutil.rmtree(folder)
    text = report(found, args)
    sys.stdout.write(text)
    if args.report is not None:
        write_into(args.report, text, f"chaos-{args.servers}{'-packed' if args.packed else ''}")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
