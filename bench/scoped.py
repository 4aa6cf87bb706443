"""What it costs to have some workspaces only: reads and approval cycles of logins with one
workspace, beside the same with all.

Both kinds of clients are in the process that measures, and sign on at the same broker; gate and
executor are in one of their own. The service that reads for the first kind is where it is with
`ayes up`, in the process that runs the broker, which here is the one that measures too.
"""

import statistics
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import RegisteredLogin
from ayes.ops.actions import logins
from ayes.schemas.slots import ROOT, policies
from bench.append import AT_ONCE, broker, timed
from bench.cycle import REVIEWER, WORKSPACE, Clients, at_work
from bench.logs import Log
from bench.results import SYNC, Better, Result, compared, in_turns

WORKLOAD: Final = "scoped"
#: Reads, and cycles, of a round; a tenth of the cycles one at a time.
_READS: Final = 2_000
_CYCLES: Final = 1_000
_AT_ONCE: Final = 32


async def measure(log: Log, rounds: int, scratch: Path) -> list[Result]:
    """Reads and cycles a second, and milliseconds of each."""
    store = scratch / "scoped"
    reads, cycles = min(_READS, log.facts), min(_CYCLES, log.facts)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(broker(store, SYNC))
        await server.ensure_account(f"reviewer-{REVIEWER}")
        files: dict[str, str] = {}
        now = datetime.now(UTC)
        for role in ("service", "observer", f"reviewer-{REVIEWER}"):
            new = RegisteredLogin(role, "", now + timedelta(hours=9), now, (WORKSPACE,))
            made = await logins.add(server.store, f"scoped-{role}", new, "to be measured")
            file = scratch / f"{role}.json"
            file.write_bytes(msgspec.json.encode(made))
            files[role] = str(file)
        await stack.enter_async_context(at_work(store))
        connect = stack.enter_async_context
        all_ = await connect(Ledger.connect(store, role="observer"))
        one = await connect(Ledger.connect(url=files["observer"], role="observer"))
        async with Clients.at(store) as clients:
            await clients.cycles(20, 1)
        [fact] = (await all_.log.read(f"{ROOT}.{WORKSPACE}.*.call.*.requested"))[:1]
        call = fact.slot.call_ref
        assert call
        asked = (call.subjects, policies(WORKSPACE))

        async def reading(ledger: Ledger, at_once: int) -> float:
            async def read(_: int) -> None:
                assert await ledger.log.read(*asked)

            return await timed(read, list(range(reads)), at_once) / reads

        async def rate(ledger: Ledger) -> float:
            return 1 / await reading(ledger, _AT_ONCE)

        async def alone_ms(ledger: Ledger) -> float:
            return 1000 * await reading(ledger, 1)

        async def cycling(logins_of: dict[str, str]) -> float:
            async with Clients.at(store, logins_of) as clients:
                begun = time.perf_counter()
                await clients.cycles(cycles, AT_ONCE)
                return cycles / (time.perf_counter() - begun)

        async def start_ms(logins_of: dict[str, str]) -> float:
            async with Clients.at(store, logins_of) as clients:
                return 1000 * statistics.median(await clients.cycles(max(1, cycles // 10), 1))

        def line(
            what: str, unit: str, found: tuple[list[float], list[float]], better: Better
        ) -> Result:
            return compared(
                WORKLOAD, what, unit, *found, beside="with all", better=better, facts=cycles * 6,
                nats_server=all_.log.server_version,
            )  # fmt: skip

        return [
            line(
                "one workspace: a call is read, one at a time", "ms",
                await in_turns(rounds, lambda: alone_ms(one), lambda: alone_ms(all_)), "lower",
            ),
            line(
                f"calls are read, {_AT_ONCE} at once", "/s",
                await in_turns(rounds, lambda: rate(one), lambda: rate(all_)), "higher",
            ),
            line(
                f"approval cycles, {AT_ONCE} at once", "cycles/s",
                await in_turns(rounds, lambda: cycling(files), lambda: cycling({})), "higher",
            ),
            line(
                "vote to tool started, one at a time, p50", "ms",
                await in_turns(rounds, lambda: start_ms(files), lambda: start_ms({})), "lower",
            ),
        ]  # fmt: skip
