"""The client in TypeScript, beyond the contract cases: its own tests, and a run that is killed.

Part of `make conformance`, since it needs Node 24 and packages from npm.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from cable import Cable
from console_client import Site, site
from npm import node
from program import killed_at_the_end
from typescript import packages
from until import until

from ayes.consumers.doubt import in_doubt
from ayes.interfaces.console.application import console
from ayes.interfaces.console.serving import serving
from ayes.ledger.clients.services import LEASE_S
from ayes.ops.broker.server import ensure_account
from ayes.ops.tokens import AccessFile
from ayes.ops.visitors import Role
from ayes.schemas.slots import CallRef

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs from npm"
)

CALL = CallRef.parse("shop/order-17/refund-1")


@pytest.fixture(scope="module")
def package() -> Path:
    return packages()


def ran(package: Path, *command: str | Path) -> str:
    done = subprocess.run(
        [node(), *command], cwd=package, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass(package: Path):
    """What it does if a proxy answers, an answer is lost, or a renewal fails."""
    ran(package, "--test", *sorted((package / "test").glob("*.test.ts")))


def test_what_is_built_is_imported_by_its_names(package: Path):
    """`npm run build` makes JavaScript, and each export of the package leads to it."""
    ran(package, package.parent / "node_modules" / "typescript" / "bin" / "tsc")
    script = (
        'const names = ["@ayes/client", "@ayes/client/nats", "@ayes/client/ai"];'
        "const found = await Promise.all(names.map((name) => import(name)));"
        "console.log(found.flatMap((one) => Object.keys(one)).sort().join());"
    )
    found = ran(package, "--input-type=module", "--eval", script)
    assert found.strip() == "Client,ENDPOINTS,Problem,attached,guarding,http,nats"


@asynccontextmanager
async def running(
    package: Path,
    shop: Site,
    transport: str,
    *more: str,
    program: str = "run.ts",
    port: int | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that waits for the decision on the call, and runs it.

    Args:
        port: that at which it finds the broker, if not the broker's own.
    """
    store = shop.server.store
    async with serving(store, "ana") as console:
        token, _ = AccessFile(store).add_token("billing", Role.SERVICE, timedelta(days=1))
        login = store.login("service")
        told = (
            {"AYES_URL": console.url, "AYES_TOKEN": token}
            if transport == "http"
            else {
                "NATS_URL": f"nats://127.0.0.1:{port}" if port else login.url,
                "NATS_PASSWORD": login.password,
            }
        )
        process = await asyncio.create_subprocess_exec(
            node(), package / "test" / program, str(CALL), *more,
            env=os.environ | told, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with killed_at_the_end(process):
            yield process


async def said(process: asyncio.subprocess.Process) -> str:
    """The next line that it prints."""
    assert process.stdout
    return (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()


async def approve(shop: Site) -> None:
    await ensure_account(shop.server.store, "reviewer-ana")
    await (await shop.app.state.backend.reviewer("ana")).approve(CALL)


@pytest.mark.parametrize("transport", ["http", "nats"])
async def test_a_run_whose_process_was_killed_is_in_doubt(
    package: Path, tmp_path: Path, transport: str
):
    """Once its lease has ended, and not before: while the process lives, it renews the claim."""
    async with site(tmp_path) as shop:
        await shop.ask(str(CALL))
        async with running(package, shop, transport, "60", "3") as process:
            assert await said(process) == "it waits"
            await approve(shop)
            assert await said(process) == "it is approved"
            assert await said(process) == "it runs"
            await asyncio.sleep(5)
            assert await in_doubt(shop.service) == []
            process.kill()
            async with asyncio.timeout(60):
                while True:
                    if found := await in_doubt(shop.service):
                        break
                    await asyncio.sleep(0.1)
        assert [f"{one.workspace}/{one.thread}/{one.call}" for one in found] == [str(CALL)]


async def test_its_lease_is_that_of_the_python_client(package: Path):
    assert f"const LEASE_S = {LEASE_S:g};" in (package / "src" / "client.ts").read_text()


async def test_it_outlasts_a_broker_that_is_away(package: Path, tmp_path: Path):
    """However often it has tried to connect again."""
    async with site(tmp_path) as shop:
        await shop.ask(str(CALL))
        async with running(package, shop, "nats", "0") as process:
            assert await said(process) == "it waits"
            await shop.server._end()
            await asyncio.sleep(2)  # 10 attempts are the library's own
            await shop.server.restart()
            await approve(shop)
            assert await said(process) == "it is approved"
            assert await said(process) == "it runs"
            assert await said(process) == "it is returned: it ran"


class LosesAnAnswer(Cable):
    """Loses what the broker sends in the second after the first request to an endpoint."""

    def __init__(self, port: int, endpoint: str, *, cuts: bool) -> None:
        super().__init__(port)
        self._mark = f"approvals.service.billing.{endpoint} ".encode()
        self._cuts = cuts
        self._until = 0.0
        self.lost = 0

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop()
        is_brokers = None
        while data := await source.read(1 << 16):
            is_brokers = data.startswith(b"INFO") if is_brokers is None else is_brokers
            if not self._until and self._mark in data:
                self._until = clock.time() + 1
            if is_brokers and clock.time() < self._until:
                self.lost += 1
                if self._cuts:
                    self._until = 1.0
                    target.transport.abort()
                    return
                continue
            target.write(data)
            await target.drain()
        target.close()


async def facts(shop: Site) -> list[str]:
    known = await shop.service.known_call(CALL)
    return [type(fact.event).__name__ for fact in known.facts]


async def begins(process: asyncio.subprocess.Process, shop: Site) -> None:
    """Approve what it waits for, until it runs that."""
    assert await said(process) == "it waits"
    await approve(shop)
    assert await said(process) == "it is approved"
    assert await said(process) == "it runs"


async def runs_once(process: asyncio.subprocess.Process, shop: Site) -> None:
    """Approve what it waits for; it runs that once, and records it once."""
    await begins(process, shop)
    assert await said(process) == "it is returned: it ran"
    assert (await facts(shop))[-2:] == ["ToolStarted", "ToolReturned"]


@pytest.mark.parametrize("endpoint", ["claim", "finish"])
@pytest.mark.parametrize("cuts", [True, False], ids=["cut", "silent"])
async def test_an_answer_over_nats_is_lost(
    package: Path, tmp_path: Path, endpoint: str, cuts: bool
):
    """With the connection, or alone; then it is asked for again before the lease has ended."""
    async with site(tmp_path) as shop:
        await shop.ask(str(CALL))
        cable = LosesAnAnswer(
            int(shop.server.store.read().url.rpartition(":")[2]), endpoint, cuts=cuts
        )
        async with (
            cable.laid() as port,
            running(package, shop, "nats", "0", "30", port=port) as process,
            asyncio.timeout(60),
        ):
            await runs_once(process, shop)
        assert cable.lost > 0


async def test_the_broker_is_away_while_the_tool_runs(package: Path, tmp_path: Path):
    """Renewals fail and go on: the call is not in doubt afterwards, and its result is recorded."""
    async with site(tmp_path) as shop:
        await shop.ask(str(CALL))
        async with running(package, shop, "nats", "8", "3") as process:
            await begins(process, shop)
            await shop.server._end()
            await asyncio.sleep(1.5)
            await shop.server.restart()
            await asyncio.sleep(4)  # more than a lease

            async def none_in_doubt() -> bool:
                return await in_doubt(shop.service) == []

            await until(none_in_doubt)  # the next renewal may come late
            assert await said(process) == "it is returned: it ran"


async def test_the_result_is_recorded_once_a_console_runs_again(package: Path, tmp_path: Path):
    """However it takes some more than seconds: what a tool did is lost otherwise."""
    others = asyncio.all_tasks()
    async with site(tmp_path) as shop:
        await shop.ask(str(CALL))
        async with running(package, shop, "nats", "2", "1") as process:
            await begins(process, shop)
            for task in asyncio.all_tasks() - others:
                if task.get_name() == "the API over NATS":
                    task.cancel()
            await asyncio.sleep(15)
            async with console(shop.security):
                assert await said(process) == "it is returned: it ran"


async def test_a_wait_over_nats_is_aborted(package: Path, tmp_path: Path):
    """At once; a run that is aborted before its claim claims nothing."""
    async with site(tmp_path) as shop:
        await shop.ask(str(CALL))
        async with running(package, shop, "nats", program="aborted.ts") as process:
            found = json.loads(await said(process))
            assert await asyncio.wait_for(process.wait(), 60) == 0
        assert [one["said"] for one in found["found"]] == ["Error: the user left"] * 3
        assert all(one["took_ms"] < 2_000 for one in found["found"])
        assert (found["ran"], found["status"]) == (False, "pending")
