"""The released Claude Code, started by its SDK with a scripted model: the ledger decides."""

import asyncio
import base64
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

import claude_agent_sdk as sdk
from asking_agent import Raising
from claude_model import Script, serving
from pages import blocks
from paths import ROOT
from pictures import PDF, PNG
from running import working
from shop import Shop, rule
from until import until

from ayes.adapters.claude_agent_sdk import approved
from ayes.adapters.claude_code import Deny, before, event_of
from ayes.adapters.kernel import Kernel
from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.schemas import events as e
from ayes.schemas.content import attached
from ayes.schemas.policy import applied
from ayes.schemas.slots import ROOT as SUBJECTS
from ayes.schemas.slots import CallRef, ThreadRef, policy_slot

pytestmark = pytest.mark.log("memory")
POLICY = rule("shell", "ask", 'voters = ["ana"]', tools="Bash")


@pytest.fixture
async def shop(port) -> AsyncIterator[Shop]:
    shop = Shop(port)
    async with shop.at_work(POLICY):
        yield shop


def environment(url: str, folder: Path) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "HOME": str(folder),
        "CLAUDE_CONFIG_DIR": str(folder / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # The scripted model is offered the tools of MCP servers without searching for them.
        "ENABLE_TOOL_SEARCH": "false",
    }


async def prompt(options: Any, folder: Path, script: Script) -> str:
    """One prompt to Claude Code; returns the session."""
    async with serving(script) as url:
        own = environment(url, folder)
        async for message in sdk.query(prompt="Go.", options=replace(options, env=own)):
            if isinstance(message, sdk.ResultMessage):
                session = message.session_id
    return str(session)


def options_of(folder: Path, **more: Any) -> Any:
    return sdk.ClaudeAgentOptions(
        cwd=folder, model="script", setting_sources=[], allowed_tools=["Bash"], **more
    )


async def ask(shop: Shop, folder: Path, script: Script, log: Any = None, **more: Any) -> str:
    ledger = Ledger(log or shop.log, e.Author(kind="service", name="desk"))
    kernel = Kernel(ledger, "shop", requester="ben")
    return await prompt(approved(options_of(folder, **more), kernel), folder, script)


async def test_the_tool_runs_once_after_the_approval(shop, tmp_path):
    """Although Claude Code's own rules allow it at once. First the model reads that people were
    asked; another process of the same session asks again, runs it, and its output is recorded.
    """
    ran = tmp_path / "ran"
    first, second, third = (Script(f"echo made | tee -a {ran}") for _ in range(3))
    session = await ask(shop, tmp_path, first)
    assert not ran.exists()
    [told] = first.told
    assert "Make the same call again later" in told
    found = re.search(r"\((shop/\S+)\)", told)
    assert found is not None
    ref = CallRef.parse(found[1])
    assert ref.thread == session
    ana = Ledger(shop.log, e.Author(kind="reviewer", name="ana")).reviewer("ana")
    await ana.approve(ref)
    await shop.until(ref.decided)
    assert await ask(shop, tmp_path, second, resume=session) == session
    assert ran.read_text() == "made\n"
    assert "made" in second.told[0]
    call = await shop.ledger.call(ref)
    assert isinstance(call.finished and call.finished.event, e.ToolReturned)
    assert "made" in call.finished.event.output
    await ask(shop, tmp_path, third, resume=session)
    assert "Make the same call again later" in third.told[0]
    assert ran.read_text() == "made\n"


async def test_a_failed_command_is_recorded_as_one(shop, tmp_path):
    """By the hook for failures."""
    await shop.apply(rule("shell", "allow", tools="Bash"))
    script = Script("echo broken >&2; exit 3")
    session = await ask(shop, tmp_path, script)
    facts = await shop.log.read(f"{SUBJECTS}.shop.{session}.>")
    [failed] = [fact.event for fact in facts if isinstance(fact.event, e.ToolFailed)]
    assert "broken" in failed.error


async def test_what_the_model_sees_is_recorded_as_files(shop, tmp_path):
    """A picture and a PDF that it reads, and a picture of an MCP server: in the forms in which this
    Claude Code reports them.
    """
    (tmp_path / "chart.png").write_bytes(PNG)
    (tmp_path / "may.pdf").write_bytes(PDF)

    @sdk.tool("chart", "Draw a chart.", {})
    async def chart(_arguments: Any) -> Any:
        image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
        return {"content": [{"type": "text", "text": "Refunds by month."}, image]}

    server = sdk.create_sdk_mcp_server("desk", tools=[chart])
    tools = ["Read", "mcp__desk__chart"]
    await shop.apply("".join(rule(name, "allow", tools=name) for name in tools))
    recorded = []
    for script in (
        Script(tool="Read", arguments={"file_path": str(tmp_path / "chart.png")}),
        Script(tool="Read", arguments={"file_path": str(tmp_path / "may.pdf")}),
        Script(tool="mcp__desk__chart", arguments={"a": 1}),
    ):
        ledger = Ledger(shop.log, e.Author(kind="service", name="desk"))
        options = sdk.ClaudeAgentOptions(
            cwd=tmp_path,
            model="script",
            setting_sources=[],
            allowed_tools=tools,
            mcp_servers={"desk": server},
        )
        kernel = Kernel(ledger, "shop", requester="ben")
        session = await prompt(approved(options, kernel), tmp_path, script)
        facts = await shop.log.read(f"{SUBJECTS}.shop.{session}.>")
        recorded += [fact.event.output for fact in facts if isinstance(fact.event, e.ToolReturned)]
    # Claude Code adds where it keeps the picture of a server.
    [picture], [page], [caption, drawn, *_] = recorded
    assert (picture.media_type, page) == ("image/png", attached(PDF, "application/pdf", "may.pdf"))
    assert (caption, drawn) == (e.Text("Refunds by month."), attached(PNG, "image/png"))


async def test_it_fails_closed(shop, tmp_path):
    """The ledger raises: the tool does not run, and the model reads so."""
    script = Script(f"touch {tmp_path / 'ran'}")
    await ask(shop, tmp_path, script, log=Raising(shop.log))
    assert "The tool did not run: no broker answered" in script.told[0]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("more", "runs"),
    [
        ({"command": "exit 1"}, True),
        ({"command": "sleep 30", "timeout": 1}, True),
        ({"command": "exit 2"}, False),
        ({"command": "exit 1", "onFailure": "block"}, False),
        ({"command": "sleep 30", "timeout": 1, "onFailure": "block"}, False),
        ({"command": "no-such-program", "onFailure": "block"}, False),
    ],
    ids=["1", "timeout", "2", "1-block", "timeout-block", "absent-block"],
)
async def test_which_hooks_stop_a_tool(tmp_path, more, runs):
    """Why the page's settings have `onFailure`, and the command exits with 2."""
    hooks = {"PreToolUse": [{"matcher": "*", "hooks": [{"type": "command", **more}]}]}
    options = options_of(tmp_path, settings=json.dumps({"hooks": hooks}))
    await prompt(options, tmp_path, Script(f"touch {tmp_path / 'ran'}"))
    assert (tmp_path / "ran").exists() == runs


@pytest.fixture
async def desk(store: Path) -> AsyncIterator[Ledger]:
    """A real broker with a gate at work, where people are asked about `make`."""
    async with (
        Ledger.connect(store, role="admin") as admin,
        Ledger.connect(store, role="gate") as gate,
        working(Worker(gate, Gate())),
    ):
        asked = rule("make", "ask", """when = 'args.command.startsWith("make")'""", tools="Bash")
        policy = asked + rule("rest", "allow", tools="Bash")
        await admin.append(policy_slot("desk", 1), applied(policy))
        yield admin


async def test_the_settings_of_the_page(desk, store, tmp_path):
    """With the command as the hook, on a real broker: one call runs and is recorded, and people are
    asked about the other.
    """
    [text] = [
        block.text for block in blocks(ROOT / "docs" / "adapters.md") if block.language == "json"
    ]
    ours = f"PYTHONPATH={ROOT} {sys.executable} -m ayes.interfaces.cli.main hook"
    settings = text.replace("ayes hook", ours)

    def waiting(time: str) -> Any:
        given = f"--requester ben --wait {time} --store {store}"
        return options_of(tmp_path, settings=settings.replace("--requester ben", given))

    allowed, asked = Script(f"touch {tmp_path / 'ran'}"), Script("make")
    session = await prompt(waiting("60s"), tmp_path, allowed)
    assert (tmp_path / "ran").exists()
    facts = await desk.read(ThreadRef("desk", session))
    assert any(isinstance(fact.event, e.ToolReturned) for fact in facts)
    await prompt(waiting("1s"), tmp_path, asked)
    assert "Make the same call again later" in asked.told[0]


async def test_the_example(desk, store, tmp_path):
    """The program of the page says what the model said, after the tool has run."""
    script = Script(f"touch {tmp_path / 'ran'}")
    async with serving(script) as url:
        process = await example(store, tmp_path, url)
        output, _ = await process.communicate()
    assert output.decode().strip().endswith(": Done.")
    assert (tmp_path / "ran").exists()


async def test_killed_in_the_middle_of_its_tool(desk, store, tmp_path):
    """Nobody knows how the call ended: it is not recorded as ended, and its hook allows nothing."""
    script = Script(f"echo ran >> {tmp_path / 'ran'}; sleep 20")
    async with serving(script) as url:
        process = await example(store, tmp_path, url)
        await until((tmp_path / "ran").exists)
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    facts = await desk.read(f"{SUBJECTS}.desk.>")
    [started] = [fact for fact in facts if isinstance(fact.event, e.ToolStarted)]
    call = await desk.call(started.slot.call_ref)
    assert call.status is Status.RUNNING
    again = {
        "hook_event_name": "PreToolUse",
        "session_id": call.ref.thread,
        "tool_name": "Bash",
        "tool_input": json.loads(call.wish.arguments),
        "tool_use_id": script.use,
    }
    kernel = Kernel(Ledger.on(desk.log, "service"), "desk", requester="ben")
    said = await before(kernel, event_of(again))
    assert isinstance(said, Deny)
    assert "started" in said.reason


async def example(store: Path, folder: Path, url: str) -> asyncio.subprocess.Process:
    more = {"PYTHONPATH": str(ROOT), "AYES_STORE": str(store)}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "claude_agent.py"),
        "Go.",
        cwd=folder,
        env=os.environ | environment(url, folder) | more,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
