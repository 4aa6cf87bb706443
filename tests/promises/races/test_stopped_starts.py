"""Stops, against programs that start calls as fast as they can.

A gate, two executors, services that run calls of their own, an agent behind the MCP gateway, a
hook of Claude Code, and programs with a raw client that claim whatever is approved without looking
at anything. Meanwhile a person stops the workspace, and another one resumes it, again and again.

    STOPS=200 CLAIMERS=50 pytest -m "" tests/promises/races/test_stopped_starts.py
"""

import asyncio
import os
import random
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from brokers import running
from cluster import cluster
from gateways import client, gateway, settings, web_shop
from long import sampled
from paths import ROOT as CHECKOUT
from paths import TESTS
from running import working
from shop import rule
from until import recorded

from ayes.adapters.claude_code import Allow, after, before, event_of
from ayes.adapters.kernel import Kernel
from ayes.consumers.executor import Executor
from ayes.consumers.gate import Gate
from ayes.consumers.tools import Registered
from ayes.consumers.worker import Worker
from ayes.ledger.call import attempt_of
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.patience import while_away
from ayes.ledger.stops import Stop, stops_of
from ayes.ledger.validity import call_of
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.cluster.local import LocalCluster
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import Refused, Unavailable, WaitTimedOut
from ayes.schemas.policy import applied
from ayes.schemas.slots import ROOT, CallRef, StopRef, ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

STOPS = int(os.environ.get("STOPS", "6"))
CLAIMERS = int(os.environ.get("CLAIMERS", "2"))
PAY = ToolSpec(name="pay", schema='{"type":"object"}', run_by="client")
SHIP = ToolSpec(name="ship", schema='{"type":"object"}', run_by="executor")
GRAB = ToolSpec(name="grab", schema='{"type":"object"}', run_by="client")

#: Claims each approved `grab` in the slot of clients, and looks at nothing.
CLAIMER = """
import asyncio, contextlib, json, sys
import nats.errors
from nats.aio.client import Client
from ayes.ledger.nats.credentials import Store

async def main():
    login, client = Store(sys.argv[1]).login("service"), Client()
    inbox = b"_INBOX.service._" + sys.argv[2].encode()
    await client.connect(login.servers, user=login.user, password=login.password,
        tls=login.tls() if login.ca else None, inbox_prefix=inbox, error_cb=quiet)
    print("up", flush=True)
    for line in iter(sys.stdin.readline, ""):
        subject, digest, attempt = line.split()
        start = {"type": "ToolStarted", "digest": digest, "idempotency_key": "x"}
        await client.publish(f"{subject}.claim.client.{attempt}", json.dumps(start).encode(),
            headers={"Nats-Expected-Last-Subject-Sequence": "0"})
        with contextlib.suppress(nats.errors.Error):  # an election takes longer
            await client.flush(timeout=1)

async def quiet(_problem):
    pass

asyncio.run(main())
"""


class Site:
    """A workspace with workers; what ran, as the call and the attempt."""

    def __init__(self, store: Store, cluster: LocalCluster | None, stack: AsyncExitStack) -> None:
        self.store, self.cluster = store, cluster
        self._stack = stack
        self.ran: list[tuple[str, int]] = []

    async def ledger(self, role: str) -> Ledger:
        connecting = Ledger.connect(self.store.path, role=role, timeout_s=60)
        return await self._stack.enter_async_context(connecting)

    def tools(self) -> dict[str, Registered]:
        async def ship(call: str = "") -> str:
            self.ran.append((call, 0))
            return "done"

        return {"ship": Registered(SHIP, ship)}


@pytest.fixture(params=sampled(["one server", "three nodes"], "one server"))
async def site(request: Any, tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        if request.param == "one server":
            server: EmbeddedServer = await stack.enter_async_context(running(tmp_path / "store"))
            for person in ("ana", "ben"):
                await server.ensure_account(f"reviewer-{person}")
            yield Site(server.store, None, stack)
        else:
            nodes = await stack.enter_async_context(cluster(tmp_path, "ana", "ben"))
            yield Site(nodes.store, nodes, stack)


async def test_no_start_counts_that_comes_after_a_stop(site: Site, monkeypatch):
    """And none is lost: each call that nobody grabbed runs, once (I1, I2)."""
    monkeypatch.setattr("ayes.consumers.holding._AFTER_S", 0.1)
    monkeypatch.setattr("ayes.consumers.holding._AGAIN_S", 0.2)
    for name in ("_LOOK_AFTER", "_LOOK_AGAIN"):
        monkeypatch.setattr(f"ayes.consumers.gate.{name}", timedelta(seconds=0.1))
    service, gate = await site.ledger("service"), await site.ledger("gate")
    operator = await site.ledger("operator")
    await operator.append(policy_slot("shop", 1), applied(rule("free", "allow", tools="*")))
    for spec in (PAY, SHIP, GRAB):
        await service.declare("shop", spec)
    executors = [await site.ledger("executor") for _ in range(2)]
    workers = [
        Worker(gate, Gate()),
        *(Worker(one, Executor(site.tools())) for one in executors),
    ]
    over, journal = asyncio.Event(), site.store.path.with_name("journal")
    claimers = [await _claimer(site, number) for number in range(CLAIMERS)]
    try:
        async with working(*workers), asyncio.TaskGroup() as together:
            wanted: asyncio.Queue[CallRef] = asyncio.Queue()
            asking = together.create_task(_asks(service, claimers, wanted, over))
            paying = together.create_task(_pays(site, await site.ledger("service"), wanted, over))
            agents = (
                together.create_task(_behind_the_gateway(site, journal, over)),
                together.create_task(_hooked(site, over)),
            )
            electing = together.create_task(_elects(site, over))
            await _stops(site, over)
            await asyncio.gather(asking, paying, electing, *agents)
            requested = f"{ROOT}.shop.*.call.*.requested"
            for fact in await while_away(lambda: _replayed(service, requested)):
                ref = fact.slot.call_ref
                if ref is not None and ref.call.startswith("ship"):
                    await recorded(service, ref.finished.subject)
    finally:
        for one in claimers:
            with suppress(ProcessLookupError):
                one.kill()
            await one.wait()
    site.ran += [(f"{line.split()[1]}", 0) for line in journal.read_text().splitlines()]
    _check(site, await while_away(lambda: _replayed(service)))


async def _replayed(ledger: Ledger, *subjects: str) -> list[Fact]:
    return [fact async for fact in ledger.replay(1, *subjects)]


def _check(site: Site, facts: list[Fact]) -> None:
    stops = stops_of(facts)
    assert len(stops) == STOPS
    counting, arguments, void = dict[tuple[str, int], Fact](), dict[str, str](), 0
    asked = {fact.slot.call_ref for fact in facts if isinstance(fact.event, e.ToolRequested)}
    for ref in filter(None, asked):
        call = call_of(ref, facts)
        void += len(call.void)
        arguments[str(ref)] = call.wish.arguments
        for start in call.starts:
            counting[str(ref), attempt_of(start)] = start
    for (name, _), start in counting.items():
        assert not any(_is_during(start, stop) for stop in stops), name
    # What ran has a start that counts, and ran once.
    shipped = [call for call, _ in site.ran if "ship" in call]
    assert sorted(shipped) == sorted(str(ref) for ref in asked if ref and "ship" in ref.call)
    paid = [one for one in site.ran if "pay" in one[0]]
    assert len({call for call, _ in paid}) == len(paid)
    assert set(paid) <= set(counting)
    # What an agent runs is told by its arguments.
    started = Counter(
        found[0]
        for name, _ in counting
        if (found := re.findall(r"(?:mcp|hook)-\d+", arguments[name]))
    )
    ran = Counter(call for call, _ in site.ran if re.fullmatch(r"(?:mcp|hook)-\d+", call))
    assert ran
    assert set(ran.values()) == {1}
    assert ran <= started
    told = f"{len(stops)} stops, {len(asked)} calls, {len(counting)} starts, {void} void facts"
    sys.stdout.write(f"{told}\n")


def _is_during(start: Fact, stop: Stop) -> bool:
    return stop.given.seq < start.seq and (stop.ended is None or start.seq < stop.ended.seq)


async def _stops(site: Site, over: asyncio.Event) -> None:
    ana, ben = await site.ledger("reviewer-ana"), await site.ledger("reviewer-ben")
    try:
        for number in range(STOPS):
            await asyncio.sleep(random.uniform(0.05, 0.3))
            stop = StopRef("shop", "ana", f"s{number}")
            await _surely(lambda stop=stop: ana.reviewer("ana").stop(stop, reason="Try."))
            await asyncio.sleep(random.uniform(0.05, 0.3))
            await _surely(lambda stop=stop: ben.reviewer("ben").resume(stop))
            await recorded(ana, stop.ended.subject)
    finally:
        over.set()


async def _surely(act: Any) -> None:
    """Through elections: an answer that was lost is asked for again."""
    while True:
        try:
            await act()
        except Unavailable:
            await asyncio.sleep(0.1)
        except Refused:
            return  # it was recorded before its answer was lost
        else:
            return


async def _asks(
    service: Ledger, claimers: list[Any], wanted: asyncio.Queue[CallRef], over: asyncio.Event
) -> None:
    """Request calls of three tools. Each `grab` is claimed by all claimers, at three moments."""
    for number in count(1):
        for tool in ("ship", "pay", "grab"):
            ref = ThreadRef("shop", f"t{number % 7}").call(f"{tool}-{number}")
            arguments = {"call": str(ref)} if tool == "ship" else {}
            try:
                call = await service.request(ref, tool, arguments, requester="rita")
            except Unavailable:
                continue
            if tool == "pay":
                wanted.put_nowait(ref)
            if tool == "grab":
                line = f"{ref.subjects.removesuffix('.>')} {call.digest}"
                for attempt, after_s in enumerate((0.03, 0.15, 0.4), start=1):
                    loop = asyncio.get_running_loop()
                    loop.call_later(after_s, _claim, claimers, f"{line} {attempt}\n".encode())
        if over.is_set():
            return
        await asyncio.sleep(0.01)


def _claim(claimers: list[Any], line: bytes) -> None:
    for one in claimers:
        one.stdin.write(line)


async def _pays(
    site: Site, service: Ledger, wanted: asyncio.Queue[CallRef], over: asyncio.Event
) -> None:
    """Run each `pay` that is approved."""

    async def pay(ref: CallRef) -> str:
        site.ran.append((str(ref), (await service.call(ref)).attempt))
        return "done"

    async def run(ref: CallRef) -> None:
        while not over.is_set():
            try:
                await service.decision(ref, timeout_s=1)
                await service.run(ref, lambda **_: pay(ref))
            except (Refused, Unavailable, WaitTimedOut):
                await asyncio.sleep(0.05)
            else:
                return

    async with asyncio.TaskGroup() as running:
        while not over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    ref = await wanted.get()
                    running.create_task(run(ref))


async def _behind_the_gateway(site: Site, journal: Path, over: asyncio.Event) -> None:
    """An agent calls a tool of an MCP server, and waits for the result where it is told to."""
    ledger = await site.ledger("service")
    async with (
        web_shop(journal) as server,
        gateway(ledger, settings(server, hold="1s")) as (_, url),
        client(url, mode="legacy") as agent,
    ):
        for number in count(1):
            said = await agent.call_tool("refund", {"order": f"mcp-{number}"})
            while waiting := re.search(
                r'`approvals_wait` with the id "([^"]+)"', str(said.content)
            ):
                if over.is_set():
                    return
                said = await agent.call_tool("approvals_wait", {"id": waiting[1]})
            if over.is_set():
                return


async def _hooked(site: Site, over: asyncio.Event) -> None:
    """Claude Code asks its hook before each command, and runs it if that allows it."""
    kernel = Kernel(await site.ledger("service"), "shop", requester="rita")
    about = {"session_id": "s", "transcript_path": "/t", "tool_name": "Bash"}
    for number in count(1):
        about["tool_input"] = {"command": f"hook-{number}"}  # type: ignore[assignment]
        for again in count(1):
            if over.is_set():
                return
            use = {"tool_use_id": f"u-{number}-{again}"}
            given = event_of({**about, **use, "hook_event_name": "PreToolUse"})
            try:
                said = await before(kernel, given)
            except Unavailable:
                break  # during an election; the command of the hook denies it then
            if isinstance(said, Allow):
                site.ran.append((f"hook-{number}", 0))
                ended = {"hook_event_name": "PostToolUse", "tool_response": "done"}
                told = event_of({**about, **use, **ended})
                await _surely(lambda told=told: after(kernel, told))
                break


async def _elects(site: Site, over: asyncio.Event) -> None:
    """On three nodes another one leads the log, again and again."""
    if site.cluster is None:
        return
    admin = await site.ledger("admin")
    while not over.is_set():
        await asyncio.sleep(1)
        try:
            await admin.log.api.ask("$JS.API.STREAM.LEADER.STEPDOWN.LEDGER", b"")  # type: ignore[attr-defined]
        except Unavailable:
            continue


async def _claimer(site: Site, number: int) -> Any:
    path = os.pathsep.join(map(str, (CHECKOUT, TESTS / "support")))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLAIMER, str(site.store.path), str(number),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout
    assert (await process.stdout.readline()) == b"up\n"
    return process
