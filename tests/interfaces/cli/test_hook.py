"""`ayes hook claude-code` as Claude Code starts it: with the settings of the page, on a broker."""

import asyncio
import json
import os
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pages import blocks
from paths import ROOT
from program import forked
from running import judged
from shop import rule

from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef

POLICY = rule("reads", "allow", tools="Read") + rule("shell", "ask", tools="Bash")
[SETTINGS] = [
    json.loads(block.text)
    for block in blocks(ROOT / "docs" / "adapters.md")
    if block.language == "json"
]


@pytest.fixture
async def ledger(store: Path) -> AsyncIterator[Ledger]:
    async with judged(store, POLICY, "desk") as ledger:
        yield ledger


async def hook(store: Path, name: str, *, wait: str = "60s", **more: Any) -> tuple[int, Any, str]:
    """The exit code of the hook, its decision and what it says on stderr."""
    return await run(
        store,
        name,
        json.dumps(
            {
                "session_id": "5f0e",
                "transcript_path": "/home/ben/.claude/t.jsonl",
                "cwd": "/home/ben",
                "permission_mode": "default",
                "hook_event_name": name,
                "tool_name": "Bash",
                "tool_input": {"command": "make", "description": "Builds."},
            }
            | more
        ),
        wait,
    )


async def run(store: Path, name: str, text: str, wait: str = "60s") -> tuple[int, Any, str]:
    [group] = SETTINGS["hooks"][name]
    [one] = group["hooks"]
    assert one["type"] == "command"
    line = one["command"].replace(
        "ayes ", f"{shlex.join(forked('-m', 'ayes.interfaces.cli.main'))} ", 1
    )
    process = await asyncio.create_subprocess_shell(
        f"{line} --wait {wait} --store {store}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    out, err = await process.communicate(text.encode())
    return process.returncode or 0, json.loads(out) if out else None, err.decode()


def decided(said: Any) -> tuple[str, str]:
    output = said["hookSpecificOutput"]
    return output["permissionDecision"], output.get("permissionDecisionReason", "")


async def test_a_call_waits_is_approved_asked_again_and_recorded(store, ledger):
    """The model reads how to come back; under another id it runs, and the other hook records it."""
    code, said, _ = await hook(store, "PreToolUse", wait="1s", tool_use_id="toolu_1")
    how, reason = decided(said)
    assert (code, how) == (0, "deny")
    found = re.search(r"\((desk/\S+)\)", reason)
    assert found is not None
    ref = CallRef.parse(found[1])
    ana = Ledger.on(ledger.log, "reviewer-ana").reviewer("ana")
    await ana.approve(ref)
    code, said, _ = await hook(store, "PreToolUse", tool_use_id="toolu_2")
    assert (code, decided(said)[0]) == (0, "allow")
    assert (await ledger.call(ref)).status is Status.RUNNING
    response = {"stdout": "made", "stderr": "", "interrupted": False}
    ended = await hook(store, "PostToolUse", tool_use_id="toolu_2", tool_response=response)
    assert ended == (0, None, "")
    call = await ledger.call(ref)
    assert isinstance(call.finished and call.finished.event, e.ToolReturned)
    assert json.loads(call.finished.event.output) == response


async def test_what_the_policy_allows_runs_at_once(store, ledger):
    """Nobody is asked. An error of the tool is recorded as one."""
    read = {"tool_name": "Read", "tool_input": {"file_path": "a"}, "tool_use_id": "toolu_1"}
    _, said, _ = await hook(store, "PreToolUse", **read)
    assert decided(said)[0] == "allow"
    ended = await hook(store, "PostToolUseFailure", error="no such file", **read)
    assert ended == (0, None, "")


async def test_anything_that_goes_wrong_stops_the_tool(tmp_path):
    """Exit code 2, the only one that does, with one sentence: bad JSON, and a broker that is away.

    A settings file without `"onFailure": "block"` lets the tool run after any other code.
    """
    for text in ("", "{", "[]", '{"hook_event_name":"PreToolUse"}'):
        code, said, error = await run(tmp_path, "PreToolUse", text)
        assert (code, said) == (2, None)
        assert error.startswith("error: this is not the event of a hook")
    code, said, error = await hook(tmp_path / "none", "PreToolUse", tool_use_id="toolu_1")
    assert (code, said) == (2, None)
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert SETTINGS["hooks"]["PreToolUse"][0]["hooks"][0]["onFailure"] == "block"
