"""The contract cases, which every client passes against a real broker: `cases.json`.

A runner is a program that does one step at a time with the client of its language. It is killed
between steps, and in the midst of one, which is then done again (B14, B84, I1, I2).
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from console_client import Site, site
from npm import node
from paths import ROOT
from program import Started
from typescript import packages

from ayes.interfaces.console.serving import serving
from ayes.ops.broker.server import ensure_account
from ayes.ops.tokens import AccessFile
from ayes.ops.visitors import Role
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTRACT = json.loads((ROOT / "tests" / "promises" / "contract" / "cases.json").read_text())
ACTORS = sorted({step["as"] for steps in CONTRACT["cases"].values() for step in steps})
#: How often a step is killed and done again.
KILLED = 0.5 if os.environ.get("CONFORMANCE") else 0.08
CLIENTS = ["python", "typescript-http", "typescript-nats"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Any]]:
    """A broker with its workers and console, and the logins of everybody in the cases."""
    tools = [
        ToolSpec(name=name, run_by="client", schema=json.dumps(schema or {"type": "object"}))
        for name, schema in CONTRACT["tools"].items()
    ]
    path = tmp_path_factory.mktemp("contract")
    async with site(path, CONTRACT["policy"], *tools) as shop:
        yield await _logins(shop)


async def _logins(shop: Site) -> dict[str, Any]:
    store, access = shop.server.store, AccessFile(shop.server.store)
    tokens: dict[str, str] = {}
    for actor in ACTORS:
        role, name = actor.split(":")
        if role == "reviewer":
            await ensure_account(store, f"reviewer-{name}")
        kind = Role.AUDITOR if role == "observer" else Role(role)
        tokens[actor], _ = access.add_token(name, kind, timedelta(days=1))
    return {
        "store": str(store.path),
        "shop": shop,
        "tokens": tokens,
        "servers": store.read().url,
        "passwords": dict(store.read().passwords),
    }


class Runner:
    """A process that does steps, and may be killed."""

    def __init__(self, command: list[str], world: Mapping[str, Any]) -> None:
        self._command = command
        self._environment = os.environ | {"AYES_CONTRACT": json.dumps(world)}
        self._process: subprocess.Popen[bytes] | None = None

    async def done(self, step: Mapping[str, Any]) -> dict[str, Any]:
        """What came of the step."""
        process = self._given(step)
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 60)
        assert line, "the runner ended; what it said is above"
        found: dict[str, Any] = json.loads(line)
        return found

    async def done_and_killed(self, step: Mapping[str, Any], after_s: float) -> None:
        """Begin the step and kill the process, before it, in it or after it."""
        self._given(step)
        await asyncio.sleep(after_s)
        await self.kill()

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.communicate)
            self._process = None

    def _given(self, step: Mapping[str, Any]) -> Any:
        """The process, which begins the step."""
        if self._process is None:
            start = Started if self._command[0] == sys.executable else subprocess.Popen
            self._process = start(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert self._process.stdin
        self._process.stdin.write(json.dumps(step).encode() + b"\n")
        self._process.stdin.flush()
        return self._process


@asynccontextmanager
async def runner(client: str, world: dict[str, Any]) -> AsyncIterator[Runner]:
    """The runner of a client; skips where its language cannot be had."""
    told = {name: value for name, value in world.items() if name != "shop"}
    if client == "python":
        command = [sys.executable, str(ROOT / "tests" / "support" / "contract_runner.py")]
        made = Runner(command, {"store": told["store"]})
    else:
        command = [node(), str(packages() / "test" / "runner.ts")]
        nats = {name: told[name] for name in ("servers", "passwords")}
        made = Runner(command, nats)
    async with serving(world["shop"].server.store, "ana") as console:
        if client == "typescript-http":
            made = Runner(command, {"url": console.url, "tokens": told["tokens"]})
        try:
            yield made
        finally:
            await made.kill()


def filled(value: Any, kept: Mapping[str, Any]) -> Any:
    """The value with what is kept in place of the texts that begin with $."""
    match value:
        case str() if value.startswith("$uuid."):
            return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kept['call']}/{value}"))
        case str() if value.startswith("$"):
            return kept[value[1:]]
        case dict():
            return {name: filled(one, kept) for name, one in value.items()}
        case _:
            return value


def fits(found: Any, wanted: Any) -> bool:
    """Whether an answer has all that is wanted of it."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            name in found and fits(found[name], one) for name, one in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(found) == len(wanted) and all(map(fits, found, wanted))
        )
    return bool(found == wanted)


def at(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = found[int(name)] if name.isdigit() else found[name]
    return found


async def played(run: Runner, steps: list[dict[str, Any]], thread: str, luck: random.Random) -> int:
    """Play a case; returns how often the runner was killed."""
    kept: dict[str, Any] = {"thread": thread, "call": f"{thread}/call-1"}
    kills = 0
    for number, step in enumerate(steps):
        asked = {name: step[name] for name in ("do", "as")} | {"with": filled(step["with"], kept)}
        again: list[str] = []
        if luck.random() < KILLED:
            kills += 1
            again = step.get("again", [])
            await run.done_and_killed(asked, luck.choice([0, 0, luck.random() / 20]))
        found = await run.done(asked)
        if "until" in step:
            ends = [filled(step[name], kept) for name in ("until", "or") if name in step]
            async with asyncio.timeout(60):
                while not any(fits(found.get("ok"), one) for one in ends):
                    found = await run.done(asked)
        where = f"step {number} of {thread}: {asked}: {found}"
        if found.get("error") in again:
            continue
        if "error" in step:
            assert found.get("error") == step["error"], where
            assert found["detail"].strip(), where
            continue
        assert fits(found.get("ok"), filled(step.get("ok", {}), kept)), where
        kept |= {name: at(found["ok"], path) for name, path in step.get("keep", {}).items()}
    return kills


@pytest.mark.parametrize("client", CLIENTS)
async def test_every_client_passes_every_case(world: dict[str, Any], client: str):
    """Whatever moment its process is killed at."""
    if client != "python" and not os.environ.get("CONFORMANCE"):
        pytest.skip("asked by `make conformance`, which installs from npm")
    luck = random.Random(f"contract {client}")
    kills = 0
    async with runner(client, world) as run:
        for number, (name, steps) in enumerate(CONTRACT["cases"].items()):
            assert steps, name
            kills += await played(run, steps, f"shop/{client}-{number}", luck)
    assert kills
