"""The examples of docs/adapters.md: each asks, ends, and goes on after the approval."""

import ast
import asyncio
import builtins
import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from asking_agent import POLICY
from brokers import running
from long import sampled
from pages import Block, blocks
from paths import ROOT
from running import working
from shop import Shop, rule

from ayes import Status, Tools
from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.schemas.slots import CallRef
from ayes.testing import asked, ledger

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


@pytest.mark.long
def test_the_example_of_a_tested_service_passes(tmp_path):
    """In a folder of its own, as its author runs it; docs/testing.md shows all of it."""
    example = ROOT / "examples" / "refunds_test.py"
    assert example.read_text() in [one.text for one in blocks(ROOT / "docs" / "testing.md")]
    shutil.copy(example, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout + done.stderr


async def test_a_service_with_an_executor_is_tested_in_memory():
    """Tools are declared, and run once they are approved; nobody is asked about what is allowed."""
    tools, ran = Tools(), []

    @tools.add()
    def refund(order: str) -> str:
        ran.append(order)
        return "given back"

    async with ledger(workspace="shop", tools=tools) as desk:
        await desk.request("shop/t1/c1", "refund", {"order": "A-17"}, requester="ben")
        call = await asked(desk, "shop/t1/c1")
        await desk.reviewer("ana").approve(call.ref)
        call = await desk.until(call, lambda one: one.finished is not None, 10)
        assert (call.outcome, ran) == (Status.RETURNED, ["A-17"])
    async with ledger(rule("free", "allow"), workspace="shop", tools=tools) as desk:
        await desk.request("shop/t1/c1", "refund", {"order": "A-18"}, requester="ben")
        with pytest.raises(TimeoutError):
            await asked(desk, "shop/t1/c1", timeout_s=0.2)


#: What the page says is the reader's own, beside what its lines import.
OWN = {
    "ledger", "refund", "model", "client", "messages", "save", "saver", "config", "prompt",
    "session",
}  # fmt: skip


def test_the_page_shows_the_examples():
    """For each adapter its imports and at most 15 lines, which stand in a program that is run; and
    all that the lines name is imported, or said to be the reader's.
    """
    _, *shown = blocks(ROOT / "docs" / "adapters.md", "python")
    names = (*EXAMPLES, CLAUDE)
    assert len(shown) == 2 * len(names)
    for name, imports, lines in zip(names, shown[::2], shown[1::2], strict=True):
        program = (ROOT / "examples" / f"{name}.py").read_text()
        assert len(lines.text.splitlines()) <= 15
        assert any(textwrap.indent(lines.text.strip(), " " * one) in program for one in (4, 8))
        assert set(imports.text.splitlines()) <= {*program.splitlines()}
        known = OWN | {*dir(builtins)} | _names(imports, ast.Store) | _names(lines, ast.Store)
        assert _names(lines, ast.Load) <= known


def _names(block: Block, context: type[ast.expr_context]) -> set[str]:
    """The names that these lines use, or those that they bind, also by an import."""
    tree = ast.parse(block.text)
    used = {
        one.id
        for one in ast.walk(tree)
        if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }
    bound = {one.asname or one.name for one in ast.walk(tree) if isinstance(one, ast.alias)}
    return used | bound
