"""The examples of docs/adapters.md: each asks, ends, and goes on after the approval."""

import asyncio
import importlib.util
import os
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from asking_agent import POLICY
from brokers import running
from long import sampled
from pages import blocks
from paths import ROOT
from running import working
from shop import Shop

from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.schemas.slots import CallRef

#: The call of each, and the package that it needs.
EXAMPLES = {
    "anthropic_loop": ("shop/order-17/toolu_1", "ayes"),
    "pydantic_ai_agent": ("shop/order-18/call_1", "pydantic_ai"),
    "langchain_agent": ("shop/order-19/call_1", "langchain"),
    "openai_agents_agent": ("shop/order-20/call_1", "agents"),
}
#: Run by a test of its own (`test_claude_agent_sdk.py`): its thread is the session of Claude Code.
CLAUDE = "claude_agent"


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    async with (
        running(tmp_path / "store") as server,
        Ledger.connect(server.store.path, role="admin") as admin,
        Ledger.connect(server.store.path, role="gate") as gate,
    ):
        shop = Shop(admin.log)
        await shop.open(POLICY)
        async with working(Worker(gate, Gate())):
            yield shop


async def printed(example: str, folder: Path) -> str:
    """What the example prints, run in `folder`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / f"{example}.py"),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "AYES_STORE": str(folder / "store")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode().strip()


@pytest.mark.parametrize("example", sampled(EXAMPLES, "anthropic_loop"))
async def test_the_example_asks_and_goes_on_after_a_restart(example, shop, tmp_path):
    """B84: it says what it waits for; after the approval another process runs the tool."""
    written, package = EXAMPLES[example]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed here")
    ref = CallRef.parse(written)
    waits = f"{ref} waits for people: ayes approve {ref} --as NAME"
    assert await printed(example, tmp_path) == waits
    assert await printed(example, tmp_path) == waits
    await shop.until(ref.gated)
    await Ledger.on(shop.log, "reviewer-ana").reviewer("ana").approve(ref)
    await shop.until(ref.decided)
    order = ref.thread.removeprefix("order-")
    assert await printed(example, tmp_path) == f"480 given back for order A-{order}"


def test_the_page_shows_the_examples():
    """Each block of the page is at most 15 lines, and stands in one of the examples."""
    shown = [block for block in blocks(ROOT / "docs" / "adapters.md") if block.language == "text"]
    programs = [(ROOT / "examples" / f"{name}.py").read_text() for name in (*EXAMPLES, CLAUDE)]
    assert len(shown) == len(programs)
    for block in shown:
        assert len(block.text.splitlines()) <= 15
        indented = [textwrap.indent(block.text.strip(), " " * width) for width in (4, 8)]
        assert any(one in program for program in programs for one in indented), block.text
