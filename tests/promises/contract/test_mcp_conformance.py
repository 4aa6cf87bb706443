"""The official conformance suite of MCP, behind the gateway. Part of `make conformance`: the suite
is from npm.

The scored scenarios need the SDK's own example `everything-server`, which is in no package: with
its folder in `MCP_EVERYTHING` they are run directly and behind the gateway, and compared.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx2
import npm
import pytest
from gateways import gateway, settings
from paths import TESTS
from ports import free_port
from shop import Shop, rule

from ayes.interfaces.mcp.settings import ServerSettings
from ayes.ledger.log import EventLog
from ayes.schemas.errors import Refused
from ayes.schemas.slots import ThreadRef

pytestmark = [
    pytest.mark.log("memory"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("CONFORMANCE"),
        reason="run by `make conformance`, which installs from npm",
    ),
]

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
TASKS = TESTS / "support" / "mcp_tasks.py"
ALLOW = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n'
#: What asks people: the tools that the suite expects to become tasks at once.
ASK = rule("at once", "allow", tools="*/greet */test_tool_with_task") + rule(
    "people", "ask", tools="*/slow_compute */*_job */confirm_delete */multi_input"
)
SCENARIOS = (
    "lifecycle", "capability-negotiation", "wire-fields", "request-state-removal", "mrtr-input",
    "request-headers", "dispatch-and-envelope", "status-notifications", "required-task-error",
    "mrtr-composition",
)  # fmt: skip


async def passed(url: str, *options: str) -> tuple[str, list[str]]:
    """What the suite says, and the scenarios that it passes."""
    package = npm.installed(SUITE) / "node_modules" / SUITE.rpartition("@")[0]
    suite = await asyncio.create_subprocess_exec(
        *(npm.node(), package / "dist" / "index.js", "server", "--url", url, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = (await suite.communicate())[0].decode()
    return said, re.findall(r"^✓ ([\w-]+):", said, re.MULTILINE)


@asynccontextmanager
async def everything() -> AsyncIterator[str]:
    folder = os.environ.get("MCP_EVERYTHING")
    if not folder:
        pytest.skip("the SDK's everything-server is not here: name its folder in MCP_EVERYTHING")
    port = str(free_port())
    line = (sys.executable, "-m", "mcp_everything_server", "--port", port)
    process = await asyncio.create_subprocess_exec(
        *line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}/mcp"
    try:
        async with asyncio.timeout(60), httpx2.AsyncClient() as http:
            while True:
                assert process.returncode is None, (
                    f"{folder} has no mcp_everything_server that starts"
                )
                try:
                    await http.get(url)
                    break
                except httpx2.TransportError:
                    await asyncio.sleep(0.1)
        yield url
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_what_passes_directly_passes_behind_the_gateway(port: EventLog, version: str):
    """All scored scenarios; the tasks of the extension are the gateway's own, and below."""
    shop = Shop(port)
    await shop.apply(ALLOW)
    async with everything() as direct:
        servers = settings(ServerSettings(name="everything", url=direct))
        async with shop.gates(), gateway(shop.ledger, servers) as (_, url):
            _, without = await passed(direct, "--requirements", version)
            said, behind = await passed(url, "--requirements", version)
    assert len(without) > 30
    assert [one for one in without if one not in behind] == [], said[-3000:]


async def test_gated_tools_are_tasks(port: EventLog):
    """All ten scenarios of the extension, for tools without tasks; a reviewer approves after 1 s"""
    shop = Shop(port)
    await shop.apply(ASK)
    server = ServerSettings(
        name="tasks", command=(sys.executable, str(TASKS)), task_only=("failing_job",)
    )

    async def approving() -> None:
        seen: dict[object, int] = {}
        while True:
            await asyncio.sleep(0.25)
            for call in await shop.ledger.open_questions(ThreadRef("shop", "mcp-rita")):
                seen[call.ref] = seen.get(call.ref, 0) + 1
                if seen[call.ref] > 3:
                    try:
                        await shop.ledger.reviewer("ana").approve(call.ref)
                    except Refused:
                        continue

    reviewer = asyncio.create_task(approving())
    failing = {}
    async with shop.gates(), gateway(shop.ledger, settings(server)) as (_, url):
        for scenario in SCENARIOS:
            said, _ = await passed(url, "--scenario", f"tasks-{scenario}", "--verbose")
            if not re.search(r"^Passed: (\d+)/\1, 0 failed", said, re.MULTILINE):
                failing[scenario] = said[-2000:]
    reviewer.cancel()
    assert failing == {}
