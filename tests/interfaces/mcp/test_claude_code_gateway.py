"""The released Claude Code, driven by a scripted model, calls a gated tool through the gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("claude_agent_sdk")

import claude_agent_sdk as sdk
from claude_model import Script, serving
from gateways import gateway, settings, shop_server
from program import environment, killed_at_the_end
from shop import Shop, rule
from until import question

from ayes.ledger.lifecycle import Status
from ayes.schemas.slots import ThreadRef

pytestmark = pytest.mark.log("memory")
POLICY = rule("refunds", "ask", tools="desk/refund")
THREAD = ThreadRef("shop", "mcp-rita")
TOOL = "mcp__desk__refund"


@asynccontextmanager
async def claude_code(
    folder: Path, model: str, server: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Claude Code with one prompt and one MCP server."""
    servers = {"mcpServers": {"desk": {"type": "http", "url": server}}}
    own = environment(
        ANTHROPIC_BASE_URL=model,
        ANTHROPIC_API_KEY="none",
        HOME=str(folder),
        CLAUDE_CONFIG_DIR=str(folder / "claude"),
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        ENABLE_TOOL_SEARCH="false",  # the model sees the tools of MCP servers at once
    )
    process = await asyncio.create_subprocess_exec(
        str(Path(sdk.__file__).parent / "_bundled" / "claude"),
        *("-p", "Go.", "--model", "script", "--output-format", "json"),
        *("--mcp-config", json.dumps(servers), "--strict-mcp-config", "--allowedTools", TOOL),
        cwd=folder,
        env=own,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with killed_at_the_end(process):
        yield process


async def test_it_waits_is_killed_and_comes_back(port, tmp_path: Path):
    """Killed while its call waits, nothing runs; after the approval it runs once (I1)."""
    shop, journal = Shop(port), tmp_path / "journal"
    await shop.apply(POLICY)
    script = Script(tool=TOOL, arguments={"order": "A-17", "amount": 4})
    file = settings(shop_server(journal), hold="30s")
    async with shop.gates(), gateway(shop.ledger, file) as (_, url), serving(script) as model:
        async with claude_code(tmp_path, model, url) as first:
            waiting = await question(shop.ledger, THREAD)
            first.kill()
            await first.wait()
        assert (await shop.ledger.call(waiting.ref)).status is Status.PENDING
        assert waiting.ref.call == script.use
        await shop.ledger.reviewer("ana").approve(waiting.ref)
        await shop.until(waiting.ref.decided)
        assert not journal.exists()
        for _ in range(2):
            async with claude_code(tmp_path, model, url) as again:
                out, err = await asyncio.wait_for(again.communicate(), 90)
                assert again.returncode == 0, (out, err)
    assert journal.read_text() == "refund A-17 4\n"
    assert ["4 given back for A-17" in told for told in script.told] == [True, True]
    assert (await shop.ledger.call(waiting.ref)).status is Status.RETURNED
