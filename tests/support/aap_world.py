"""A provider of the Agent Approval Protocol, its broker and agents, as programs that can be killed.

    agent ──► Relay ──► `ayes serve aap` ──► nats-server
                │
                └── at one step: SIGKILL of one of the three, which is then started again

Each agent is a program of `aap_agents/`, in the environment of its framework.
"""

import asyncio
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from brokers import running
from gateways import first_answer, serving
from paths import ROOT
from ports import free_port
from program import AYES, Started, environment
from running import judged
from sections import settings_file
from shop import rule

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ops.broker.server import EmbeddedServer
from ayes.schemas import events as e
from ayes.schemas.errors import Refused, Unavailable
from ayes.schemas.slots import ThreadRef

AGENTS: Final = ROOT / "tests" / "support" / "aap_agents"
PACKAGE: Final = "agentapprovalprotocol[{}]==0.3.3"
#: The extras of the package, and what the agent needs besides.
FRAMEWORKS: Final[dict[str, tuple[str, ...]]] = {
    "langgraph": ("langgraph-checkpoint-sqlite",),
    "pydantic-ai": (),
    "openai-agents": (),
    "claude-agent-sdk": (),
    "adk": (),
    "crewai": (),
}
OPERATIONS: Final = ("create", "get", "consume", "outcome")
TOKEN: Final = "a" * 32
PROVISIONER: Final = "p" * 32
THREAD: Final = ThreadRef("shop", "aap-bot")
POLICY: Final = rule("money", "ask", 'voters = ["ana"]', tools="*refund")


class Strike(NamedTuple):
    """What is killed, and when: before or after an operation of the agent."""

    target: str
    operation: str
    is_after: bool


class Relay:
    """Passes requests on to the provider, and strikes once."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.strike: Strike | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        operation = _operation(scope["method"], scope["path"])
        if await self._struck(operation, is_after=False):
            return
        status, content = await self._passed_on(scope, body)
        if status < 300 and await self._struck(operation, is_after=True):
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _passed_on(self, scope: Any, body: bytes) -> tuple[int, bytes]:
        query = scope["query_string"].decode()
        url = f"{self._world.provider_url}{scope['path']}{'?' if query else ''}{query}"
        kept = (b"authorization", b"idempotency-key", b"content-type")
        headers = [(name, value) for name, value in scope["headers"] if name in kept]
        try:
            async with httpx.AsyncClient(timeout=60) as http:
                answer = await http.request(scope["method"], url, headers=headers, content=body)
        except httpx.TransportError:
            return 502, b"{}"
        return answer.status_code, answer.content

    async def _struck(self, operation: str, *, is_after: bool) -> bool:
        """Strike if it is time; whether the agent is dead, so that nobody waits for an answer."""
        if self.strike is None or self.strike[1:] != (operation, is_after):
            return False
        target, self.strike = self.strike.target, None
        await self._world.kill(target)
        return target == "agent"


def _operation(method: str, path: str) -> str:
    match method, path.split("/")[3:]:
        case "POST", []:
            return "create"
        case "GET", _:
            return "get"
        case "POST", [_, operation]:
            return operation
        case _:
            return method


class World:
    """A broker, a gate, a provider, and a person who approves each order once."""

    def __init__(self, server: EmbeddedServer, folder: Path, ledger: Ledger) -> None:
        self.server, self.folder, self.ledger = server, folder, ledger
        self.relay = Relay(self)
        self.url = ""
        self.denied: set[str] = set()
        self._approved: set[str] = set()
        self._provider: Started | None = None
        self._agent: asyncio.subprocess.Process | None = None
        self._address = f"127.0.0.1:{free_port()}"
        self.provider_url = f"http://{self._address}"

    @property
    def runs(self) -> list[str]:
        """The orders that were paid back, as often as they were."""
        file = self.folder / "journal"
        return file.read_text().splitlines() if file.exists() else []

    async def calls(self, order: str) -> list[Call]:
        """The calls about an order, in the order in which they were asked for."""
        requested = f"{THREAD.call('x').requested.subject}".replace(".x.", ".*.")
        facts = await self.ledger.read(requested)
        refs = [one.slot.call_ref for one in facts if json.loads(one.event.arguments) == of(order)]
        return [await self.ledger.call(ref) for ref in refs if ref]

    # ------------------------------------------------------------------------------------ programs

    async def start_provider(self) -> None:
        file = settings_file(
            self.folder,
            '[aap]\nworkspace = "shop"\nallow_private = true\n'
            f'[[aap.instance]]\nname = "bot"\nrequester = "rita"\ntoken = "{TOKEN}"\n'
            f'[[aap.provisioner]]\nrequester = "rita"\ntoken = "{PROVISIONER}"\n',
        )
        options = ("--settings", file, "--http", self._address, "--store", self.server.store.path)
        self._provider = Started(
            [AYES, "serve", "aap", *options], env=environment(), stderr=subprocess.DEVNULL
        )
        await first_answer(self.provider_url)

    async def agent(self, framework: str, python: Path, token: str = TOKEN) -> None:
        """Start an agent, in place of one that ended.

        Args:
            token: its own, or that of a provisioner, with which it registers itself.
        """
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        told = {"PROVIDER": self.url, "TOKEN": token, "STATE": str(state), "HOME": str(state)}
        with (self.folder / "agent.log").open("ab") as log:
            self._agent = await asyncio.create_subprocess_exec(
                str(python),
                str(AGENTS / f"agent_{framework.replace('-', '_')}.py"),
                env=environment(JOURNAL=str(self.folder / "journal"), **told) | {"PYTHONPATH": ""},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert await self._printed() == {"ready": True}

    async def ask(self, order: str) -> str | None:
        """What the agent's model read about an order; None if the agent was killed meanwhile."""
        assert self._agent
        assert self._agent.stdin
        self._agent.stdin.write(f"{order}\n".encode())
        printed = await self._printed()
        return None if printed is None else str(printed["read"])

    async def _printed(self) -> Any:
        assert self._agent
        assert self._agent.stdout
        async with asyncio.timeout(120):
            line = await self._agent.stdout.readline()
        if line:
            return json.loads(line)
        await self._agent.wait()
        assert self._agent.returncode == -9, (self.folder / "agent.log").read_text()[-2000:]
        return None

    async def kill(self, target: str) -> None:
        """End it with SIGKILL, and start it again; an agent is started again by its test."""
        match target:
            case "agent":
                await _ended(self._agent)
            case "provider":
                self._end_provider()
                await self.start_provider()
            case _:
                os.kill(self.server.pid, 9)
                await self.server.restart()

    async def end(self) -> None:
        await _ended(self._agent)
        self._end_provider()

    def _end_provider(self) -> None:
        if self._provider:
            self._provider.kill()
            self._provider.wait()

    # -------------------------------------------------------------------------------------- people

    async def decide(self) -> None:
        """Approve each order the first time that it is asked for, and no other one."""
        ana = self.ledger.reviewer("ana")
        while True:
            with suppress(Refused, Unavailable):
                for call in await self.ledger.open_questions(THREAD):
                    known = await self.ledger.call(call.ref)
                    order = json.loads(known.wish.arguments)["order"]
                    if order in self._approved | self.denied:
                        await ana.deny(call.ref, reason="I said so.")
                    else:
                        await ana.approve(call.ref)
                        self._approved.add(order)
            await asyncio.sleep(0.1)

    async def ended(self, order: str) -> str:
        """What became of an order: `ran`, `in doubt` or `not run`. It never ran twice, and never
        without an approval and a claim that was recorded before.
        """
        runs, calls = self.runs.count(order), await self.calls(order)
        approved = [
            one for one in calls if one.decided and isinstance(one.decided.event, e.Approved)
        ]
        started = [one for one in calls if one.starts]
        assert runs <= 1, f"{order} ran {runs} times"
        assert len(approved) <= 1, f"{order} was approved more than once"
        assert runs <= len(started) <= 1, f"{order} ran without a claim"
        assert {one.ref for one in started} <= {one.ref for one in approved}
        assert all(len(one.starts) == 1 and not one.void for one in started)
        if not started:
            return "not run"
        [call] = started
        if call.status is Status.RUNNING:
            # Nothing more will be heard of it: what the end of its lease does in a real ledger.
            call = await self.ledger.doubt(call.ref)
        assert call.status in (Status.RETURNED, Status.IN_DOUBT), call.status
        assert call.status is Status.IN_DOUBT or runs == 1, f"{order} is reported, and never ran"
        return "ran" if call.status is Status.RETURNED else "in doubt"


def of(order: str) -> dict[str, str]:
    return {"order": order}


async def _ended(process: asyncio.subprocess.Process | None) -> None:
    if process is not None and process.returncode is None:
        process.kill()
        await process.wait()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with (
        running(folder / "store") as server,
        judged(server.store.path, POLICY) as ledger,
    ):
        made = World(server, folder, ledger)
        await made.start_provider()
        deciding = asyncio.create_task(made.decide())
        try:
            async with serving(made.relay) as url:
                made.url = url.removesuffix("/mcp")
                yield made
        finally:
            deciding.cancel()
            with suppress(asyncio.CancelledError):
                await deciding
            await made.end()


@functools.cache
def python_of(framework: str, folder: Path) -> Path:
    """The Python of an environment with the framework: one below the folder that the variable
    AAP_ENVIRONMENTS names, or a new one below `folder`. Skips the test where it cannot be had.
    """
    ready = Path(os.environ.get("AAP_ENVIRONMENTS", folder)) / framework
    python = ready / "bin" / "python"
    if python.exists():
        return python
    uv = shutil.which("uv") or str(Path(sys.prefix) / "uv" / "bin" / "uv")
    if not Path(uv).exists():
        pytest.skip("there is no uv, which makes the environment of a framework")
    packages = (PACKAGE.format(framework), *FRAMEWORKS[framework])
    for words in (
        ("venv", "--quiet", "--python", sys.executable, ready),
        ("pip", "install", "--quiet", "--python", python, *packages),
    ):
        done = subprocess.run([uv, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{framework} cannot be installed: {done.stderr.strip()[-300:]}")
    return python
