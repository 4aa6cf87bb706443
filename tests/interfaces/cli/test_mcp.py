"""`ayes mcp gateway` as people start it: over stdio and HTTP, on a real broker, and killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from brokers import running
from gateways import SHOP, first_answer
from long import sampled
from mcp import Client, StdioServerParameters, stdio_client
from ports import free_port
from program import environment, forked, started
from running import judged
from sections import settings_file
from shop import rule
from until import question, until

from ayes.adapters.names import AskedCall, id_names
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.schemas.slots import ThreadRef

POLICY = rule("slow", "allow", tools="*/slow */search") + rule("refunds", "ask", tools="*/refund")
THREAD = ThreadRef("shop", "mcp-rita")
CLAUDE = "claudecode/toolUseId"
TOKENS = {"rita": "r" * 32, "ben": "b" * 32}


@pytest.fixture
async def ledger(store: Path) -> AsyncIterator[Ledger]:
    async with judged(store, POLICY) as ledger:
        yield ledger


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def command(store: Path, journal: Path, clients: str = "") -> list[str]:
    """The arguments of `ayes`."""
    shop = forked(SHOP, journal)
    file = settings_file(
        store.parent,
        f'[mcp]\nworkspace = "shop"\nrequester = "rita"\nhold = "20s"\n{clients}'
        f'[[mcp.server]]\nname = "desk"\ncommand = {shop!r}\n'.replace("'", '"'),
    )
    return ["mcp", "gateway", "--settings", str(file), "--store", str(store)]


def over_stdio(arguments: list[str]) -> list[str]:
    """What a client runs, which starts the gateway itself."""
    return forked("-m", "ayes.interfaces.cli.main", *arguments)


def ran(journal: Path) -> list[str]:
    """The runs of tools, in order."""
    return journal.read_text().splitlines() if journal.exists() else []


async def test_a_client_over_stdio(ledger: Ledger, store: Path, journal: Path):
    """The program itself: a gated call waits, is approved by a person's vote, and runs once."""
    program, *arguments = over_stdio(command(store, journal))
    server = StdioServerParameters(command=program, args=arguments, env=environment())
    async with Client(stdio_client(server)) as agent:
        asking = asyncio.create_task(agent.call_tool("refund", {"order": "A-17"}))
        await ledger.reviewer("ana").approve((await question(ledger, THREAD)).ref)
        result = await asking
    assert result.content[0].text == "0 given back for A-17"
    assert ran(journal) == ["refund A-17 0"]


@pytest.mark.parametrize("first", sampled(["stdout", "stdin"], "stdout"))
async def test_a_client_that_goes_away_is_no_error(
    ledger: Ledger, store: Path, journal: Path, first: str
):
    """It closes both pipes, in either order, while an answer is due: the gateway ends quietly."""
    reads, writes = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *over_stdio(command(store, journal)),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=writes,
        stderr=subprocess.PIPE,
    )
    os.close(writes)
    assert process.stdin is not None
    about = {"protocolVersion": "2025-11-25", "capabilities": {}}
    about["clientInfo"] = {"name": "gone", "version": "1"}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    with os.fdopen(reads) as answers:
        assert "serverInfo" in await asyncio.to_thread(answers.readline)
        said = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in (said, listing)))
        if first == "stdin":
            process.stdin.close()
            await process.stdin.wait_closed()
    process.stdin.close()
    _, printed = await process.communicate()
    assert (process.returncode, printed.decode()) == (0, "")


@asynccontextmanager
async def over_http(arguments: list[str]) -> AsyncIterator[tuple[str, subprocess.Popen[str]]]:
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}/mcp"
    with started(*arguments, "--http", address, log=Path(os.devnull)) as process:
        await first_answer(url)
        yield url, process
        process.kill()


async def _call(url: str, tool: str, arguments: dict[str, Any], headers: Any = None) -> Any:
    async with httpx2.AsyncClient(timeout=60, headers=headers) as http:
        from mcp.client.streamable_http import streamable_http_client

        async with Client(streamable_http_client(url, http_client=http)) as agent:
            return await agent.call_tool(tool, arguments, meta={CLAUDE: "toolu_1"})


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends them")
@pytest.mark.parametrize("sent", sampled([signal.SIGKILL, signal.SIGTERM], signal.SIGKILL))
async def test_a_server_that_hangs_ends_with_its_gateway(
    ledger: Ledger, store: Path, journal: Path, sent: signal.Signals
):
    """However the gateway ends: it reads neither its input nor that it ended."""
    born = store.parent / "hung"
    line = f"echo $$ >{born}; exec sleep 999"
    hung = f'[[mcp.server]]\nname = "hung"\ncommand = ["sh", "-c", "{line}"]\n'
    async with over_http(command(store, journal, hung)) as (_, process):
        await until(lambda: born.exists() and born.read_text())
        process.send_signal(sent)
        await asyncio.to_thread(process.wait)
    hanging = int(born.read_text())

    async def gone() -> bool:
        try:
            os.kill(hanging, 0)
        except ProcessLookupError:
            return True
        return False

    await until(gone)


@pytest.mark.long
async def test_a_gateway_that_is_killed_runs_nothing_twice(
    ledger: Ledger, store: Path, journal: Path
):
    """Killed while a call waits, the next gateway goes on with it. Killed while its tool runs, the
    call is never run again, whoever asks: nobody knows what became of it (I1).
    """
    line = command(store, journal)
    async with over_http(line) as (url, process):
        asking = asyncio.create_task(_call(url, "refund", {"order": "A-17"}))
        waiting = await question(ledger, THREAD)
        process.kill()
        await asyncio.gather(asking, return_exceptions=True)
    await ledger.reviewer("ana").approve(waiting.ref)
    async with over_http(line) as (url, process):
        result = await _call(url, "refund", {"order": "A-17"})
        assert result.content[0].text == "0 given back for A-17"
        asking = asyncio.create_task(_call(url, "slow", {"seconds": 60}))
        await until(lambda: "slow began" in ran(journal))
        process.kill()
        await asyncio.gather(asking, return_exceptions=True)
    async with over_http(line) as (url, process):
        asking = asyncio.create_task(_call(url, "slow", {"seconds": 60}))
        again = AskedCall("mcp-rita", "toolu_1", "desk/slow", '{"seconds":60}')
        slow = THREAD.call(id_names(again)[1])
        assert (await ledger.call(slow)).status is Status.RUNNING
        await ledger.doubt(slow)
        assert "may have taken effect" in (await asking).content[0].text
    assert ran(journal) == ["refund A-17 0", "slow began"]


async def test_without_its_broker_nothing_runs(tmp_path: Path, journal: Path):
    """A call that the policy allows is refused while the broker is dead (fails closed)."""
    async with running(tmp_path / "store") as server:
        store = server.store.path
        async with over_http(command(store, journal)) as (url, _):
            async with judged(store, POLICY):
                await _call(url, "search", {"text": "before"})
            os.kill(server.pid, signal.SIGKILL)
            refused = await _call(url, "search", {"text": "meanwhile"})
            assert refused.is_error
            assert "The tool did not run" in refused.content[0].text
            assert ran(journal) == ["search before"]


async def test_over_http_a_token_says_on_whose_behalf(ledger: Ledger, store: Path, journal: Path):
    """Without a token of the file nothing is served, and one requester's call is not another's."""
    clients = "".join(
        f"[[mcp.client]]\nrequester = '{name}'\ntoken = '{token}'\n"
        for name, token in TOKENS.items()
    )
    async with over_http(command(store, journal, clients)) as (url, _):
        async with httpx2.AsyncClient(timeout=60) as http:
            for sent in ({}, {"Authorization": "Bearer x"}, {"Authorization": TOKENS["ben"]}):
                assert (await http.post(url, json={}, headers=sent)).status_code == 401
        for name, token in TOKENS.items():
            headers = {"Authorization": f"Bearer {token}"}
            await _call(url, "search", {"text": name}, headers)
    for name in TOKENS:
        call = await ledger.known_call(ThreadRef("shop", f"mcp-{name}").call("toolu_1"))
        assert call.wish.requester == name
    assert ran(journal) == ["search rita", "search ben"]


@pytest.mark.parametrize(
    ("file", "options", "said", "code"),
    [
        ('workspace = "w"\n', (), "does not say on whose behalf", 2),
        ('workspace = "w"\nrequester = "rita"\n', ("--http", "0.0.0.0:1"), "--behind-tls", 2),
        ('workspace = "w"\nrequester = "rita"\n', ("--http", "0.0.0.0:1", "--behind-tls"),
         "no [[mcp.client]]", 2),
        ('workspace = "w"\nrequester = "rita"\n', ("--http", "here"), "is not an address", 2),
        ('workspace = "w"\nrequester = "rita"\n', ("--url", "nats://127.0.0.1:1"), "--link-key", 2),
        ('workspace = "a b"\n', (), "'workspace'", 2),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_one_sentence(within, tmp_path: Path, file, options, said, code):
    """Before anything is started, with the exit code of a usage error."""
    text = f'[mcp]\n{file}[[mcp.server]]\nname = "s"\ncommand = ["s"]\n'
    named = ("--settings", settings_file(tmp_path, text))
    ended = within("mcp", "gateway", *named, *options, store=None)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
