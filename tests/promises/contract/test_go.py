"""examples/go: a whole approval in Go, with the library of NATS alone.

Part of `make conformance`, which installs Go and that library where it may (.ci/go).
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from brokers import running
from cable import Cable
from console_client import Site, site
from paths import ROOT
from until import recorded

from ayes.consumers.doubt import in_doubt
from ayes.interfaces.console.application import console
from ayes.ledger.clients.reviewers import Reviewer
from ayes.ledger.nats.protocol import settled
from ayes.ops.broker.server import EmbeddedServer, ensure_account
from ayes.schemas.slots import CallRef

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE"), reason="asked by `make conformance`, which installs Go"
)

SOURCE = ROOT / "examples" / "go" / "main.go"
#: The sources of Debian's packages, which are compiled without modules and without a network.
SOURCES = Path("/usr/share/gocode")
CALL = CallRef.parse("shop/order-32/refund-1")
CLAIMED = "another process claimed it, and its result is not recorded. It was not run again"
RAN = f"{CALL} is returned: 480 given back for order A-32\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("go") or not (SOURCES / "src/github.com/nats-io/nats.go").exists():
        pytest.skip("Go and its library of NATS are not here; `.ci/go` installs them as root")
    made = tmp_path_factory.mktemp("go") / "refund"
    environment = os.environ | {"GO111MODULE": "off", "GOPATH": str(SOURCES)}
    environment |= {"GOCACHE": str(made.parent / "cache"), "GOFLAGS": ""}
    for command in (["go", "vet", SOURCE], ["go", "build", "-o", made, SOURCE]):
        subprocess.run(command, check=True, env=environment)
    return made


class Refund:
    """The program as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def says(self, text: str) -> None:
        """Wait until it says this on stderr."""
        assert self._process.stderr
        async with asyncio.timeout(60):
            while line := (await self._process.stderr.readline()).decode():
                if text in line:
                    return
        raise AssertionError(f"it ended and never said {text!r}")

    async def killed(self) -> None:
        self._process.kill()
        await self._process.communicate()

    async def ended(self, code: int = 0) -> str:
        """What it has printed, or what it said if it failed."""
        out, err = await asyncio.wait_for(self._process.communicate(), 60)
        assert self._process.returncode == code, err.decode()
        return (err if code else out).decode()


async def begun(program: Path, server: EmbeddedServer, url: str = "") -> Refund:
    login = server.store.login("service")
    environment = {"NATS_URL": url or login.url, "NATS_PASSWORD": login.password}
    return Refund(
        await asyncio.create_subprocess_exec(
            program,
            env=os.environ | environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    )


async def waits(shop: Site) -> None:
    """Wait until people are asked."""
    await recorded(shop.service, CALL.gated.subject)


async def reviewer(shop: Site) -> Reviewer:
    await ensure_account(shop.server.store, "reviewer-ana")
    found: Reviewer = await shop.app.state.backend.reviewer("ana")
    return found


async def facts(shop: Site) -> list[str]:
    known = await shop.service.known_call(CALL)
    return [type(fact.event).__name__ for fact in known.facts]


async def test_it_is_killed_while_it_waits_and_goes_on(program: Path, tmp_path: Path):
    """One request, one run, one result, however often it was started (B1, I1)."""
    async with site(tmp_path) as shop:
        for _ in range(2):
            refund = await begun(program, shop.server)
            await waits(shop)
            await refund.killed()
        refund = await begun(program, shop.server)
        await (await reviewer(shop)).approve(CALL)
        assert await refund.ended() == RAN
        assert await (await begun(program, shop.server)).ended() == RAN
        asked = ["ToolRequested", "ApprovalRequested", "Voted", "Approved"]
        assert await facts(shop) == [*asked, "ToolStarted", "ToolReturned"]


async def test_a_denial_runs_nothing(program: Path, tmp_path: Path):
    async with site(tmp_path) as shop:
        refund = await begun(program, shop.server)
        await waits(shop)
        await (await reviewer(shop)).deny(CALL, reason="Not twice.")
        assert "Their reason: Not twice." in await refund.ended()
        assert "ToolStarted" not in await facts(shop)


async def test_a_call_that_another_process_claimed_is_not_run(program: Path, tmp_path: Path):
    async with site(tmp_path) as shop:
        refund = await begun(program, shop.server)
        await waits(shop)
        await refund.killed()
        await (await reviewer(shop)).approve(CALL)
        await shop.service.decision(CALL, timeout_s=60)
        await shop.service.start(CALL)
        assert (
            await (await begun(program, shop.server)).ended() == f"{CALL} is running: {CLAIMED}\n"
        )
        assert (await facts(shop)).count("ToolStarted") == 1


class StopsAt(Cable):
    """Passes nothing on from the first request to an endpoint, as if it was never sent."""

    def __init__(self, port: int, endpoint: str) -> None:
        super().__init__(port)
        self._mark = f"approvals.service.billing.{endpoint} ".encode()
        self.reached = asyncio.Event()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            if self._mark in data:
                self.reached.set()
                self.silence()
            await self._speaks.wait()
            target.write(data)
            await target.drain()
        target.close()


async def test_it_is_killed_between_claim_and_result(program: Path, tmp_path: Path):
    """The next process runs nothing and says what is known; after a minute people see the doubt,
    and what they found is what the process after it says (I1).
    """
    async with site(tmp_path) as shop:
        cable = StopsAt(int(shop.server.store.read().url.rpartition(":")[2]), "finish")
        async with cable.laid() as port:
            refund = await begun(program, shop.server, f"nats://127.0.0.1:{port}")
            await waits(shop)
            person = await reviewer(shop)
            await person.approve(CALL)
            await asyncio.wait_for(cable.reached.wait(), 60)
            await refund.killed()
        assert (
            await (await begun(program, shop.server)).ended() == f"{CALL} is running: {CLAIMED}\n"
        )
        assert await in_doubt(shop.service) == []
        async with asyncio.timeout(75):
            while not await in_doubt(shop.service):  # noqa: ASYNC110 - no fact is recorded
                await asyncio.sleep(0.5)
        await shop.service.doubt(CALL)
        assert CLAIMED in await (await begun(program, shop.server)).ended()
        await person.reconcile(CALL, happened=True, output="480 were given back.")
        assert "480 were given back." in await (await begun(program, shop.server)).ended()
        assert (await facts(shop)).count("ToolStarted") == 1


async def test_it_waits_while_no_console_runs(program: Path, tmp_path: Path):
    """The broker says that nobody answers, which is no answer; the next console gives one."""
    others = asyncio.all_tasks()
    async with site(tmp_path) as shop:
        refund = await begun(program, shop.server)
        await waits(shop)
        [over_nats] = [
            task for task in asyncio.all_tasks() - others if task.get_name() == "the API over NATS"
        ]
        over_nats.cancel()
        await refund.says("no responders")
        async with console(shop.security):
            await (await reviewer(shop)).approve(CALL)
            assert await refund.ended() == RAN


@asynccontextmanager
async def scripted(path: Path, *answers: tuple[str, Any]) -> AsyncIterator[tuple[Any, list[Any]]]:
    """A broker on which these answers are given in place of the console's, each to the endpoint for
    which it is; None is an error 503. What was asked is kept.
    """
    waiting, asked = list(answers), list[Any]()
    async with running(path) as server:
        login = server.store.login("api")
        client = await nats.connect(login.url, user=login.user, password=login.password)

        async def answer(msg: Any) -> None:
            asked.append((msg.subject.rpartition(".")[2], json.loads(msg.data)))
            endpoint, given = waiting.pop(0)
            assert asked[-1][0] == endpoint
            headers = {"Nats-Service-Error-Code": "503", "Nats-Service-Error": "It is away."}
            reply = json.dumps(given or {}).encode()
            await client.publish(msg.reply, reply, headers=None if given else headers)

        await client.subscribe("approvals.*.*.*", cb=answer)
        await settled(client)
        try:
            yield server, asked
        finally:
            await client.close()


APPROVED = {"decided": True, "state": {"status": "approved"}}
RUNNING = {"status": "running", "arguments": '{"order":"A-32","amount":480}'}


async def test_a_lost_answer_is_asked_for_again(program: Path, tmp_path: Path):
    """With the same claim and the same result."""
    again = [("request", None), ("request", {"status": "requested"})]
    again += [("wait", None), ("wait", APPROVED), ("claim", None), ("claim", RUNNING)]
    again += [("finish", None), ("finish", {"status": "returned", "result": {"text": "it ran"}})]
    async with scripted(tmp_path, *again) as (server, asked):
        assert "is returned: it ran" in await (await begun(program, server)).ended()
    assert len(asked) == len(again)
    assert asked[::2] == asked[1::2]
    assert asked[-1][1] == {"call": str(CALL), "output": "480 given back for order A-32"}


@pytest.mark.parametrize("claimed", [{"arguments": "{}"}, {"status": "approved"}, [1], "running"])
async def test_an_answer_that_is_none_runs_nothing(program: Path, tmp_path: Path, claimed):
    """Whatever answers in place of the console: only a claim that succeeded is one."""
    answers = [("request", {"status": "requested"}), ("wait", APPROVED), ("claim", claimed)]
    async with scripted(tmp_path, *answers) as (server, asked):
        said = await (await begun(program, server)).ended(1)
    assert "claim" in said
    assert [endpoint for endpoint, _ in asked] == ["request", "wait", "claim"]
