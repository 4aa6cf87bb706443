"""Kill -9 in the midst of everything: what was recorded stays, and what was begun is finished.

Real processes, each with the credentials of its role, killed with SIGKILL and started again. In CI
a short version runs; `make kills` kills more often, on the whole of the real conversations
(CHAOS=1).
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from long import sampled
from paths import AIRLINE as POLICY
from paths import DATA
from program import AYES, REHEARSAL, Started, environment

from ayes.projections.formats.conversation import read_conversations

LONG = bool(os.environ.get("CHAOS"))
ACK_WAIT_S = "1.5"
#: How long a slow machine may need for the next few hundred facts.
QUIET_S = 100

pytestmark = [
    pytest.mark.skipif(
        not DATA.exists(), reason=f"the recorded conversations are not here: {DATA}"
    ),
    pytest.mark.timeout(3600 if LONG else 240),
]


type Running = dict[str, Program]


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """The real conversations: all of them, or in CI every twelfth."""
    lines = DATA.read_text().splitlines(keepends=True)
    file = tmp_path / "conversations.jsonl"
    file.write_text("".join(lines if LONG else lines[::12]))
    return file


class Program(Started):
    """An `ayes` program in a process of its own; the event loop does not stand still."""

    async def ended(self) -> int:
        while (code := self.poll()) is None:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.02)
        return code

    async def output(self) -> str:
        """All that it writes until it ends."""
        return (await asyncio.to_thread(self.communicate))[0]


def start(*arguments: str | Path, log: Path) -> Program:
    """Start `ayes`, or what `arguments` begin with if that is Python."""
    with log.open("ab") as err:
        return Program(
            [str(one) for one in _words(*arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=environment(),
        )


def _words(*arguments: str | Path) -> tuple[str | Path, ...]:
    return arguments if arguments[0] == sys.executable else (AYES, *arguments)


async def up(*arguments: str | Path, log: Path) -> Program:
    """`ayes up` or `work`, once it is ready, which it says with `--json`."""
    process = start(*arguments, log=log)
    assert await asyncio.to_thread(process.stdout.readline), tail(log)
    return process


@asynccontextmanager
async def program(*arguments: str | Path, log: Path) -> AsyncIterator[Program]:
    process = start(*arguments, log=log)
    try:
        yield process
    finally:
        await kill(process)


async def kill(process: Program) -> None:
    process.kill()
    await process.ended()
    process.stdout.close()


async def grown(store: Path, most: int) -> None:
    """Wait until so many facts are recorded."""
    from ayes.ledger.clients.services import Ledger

    async with (
        Ledger.connect(store, role="observer") as ledger,
        aclosing(ledger.watch(most)) as facts,
    ):
        await anext(facts)


async def unless_one_ends(wait: Coroutine[Any, Any, None], running: Running, log: Path) -> None:
    """Wait, but not for what never comes: a program that ended is said, with its last words."""
    waiting = asyncio.ensure_future(wait)
    ends = {asyncio.ensure_future(process.ended()): name for name, process in running.items()}
    try:
        async with asyncio.timeout(QUIET_S):
            done, _ = await asyncio.wait([waiting, *ends], return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        pytest.fail(f"nothing more was recorded for {QUIET_S} s:\n{tail(log)}")
    finally:
        for task in (waiting, *ends):
            task.cancel()
    ended = {name: running[name].returncode for task, name in ends.items() if task in done}
    assert waiting in done, f"ended by themselves: {ended}\n{tail(log)}"
    await waiting


def tail(log: Path) -> str:
    """What the programs said last, for whoever reads a failure."""
    return log.read_text()[-3000:]


async def verified(store: Path, log: Path) -> dict:
    """`ayes replay --verify` on the running store."""
    process = start("replay", "--verify", "--json", "--store", store, log=log)
    out = await process.output()
    assert process.returncode == 0, out + tail(log)
    return json.loads(out)


def expected(recordings: Path) -> dict[str, int]:
    """What a rehearsal must come to, counted straight from the file."""
    found = read_conversations(recordings)
    changing = {
        "book_reservation", "cancel_reservation", "update_reservation_flights",
        "update_reservation_baggages", "update_reservation_passengers", "send_certificate",
    }  # fmt: skip
    calls = [wish for one in found for step in one.steps for wish in getattr(step, "wishes", ())]
    gated = sum(wish.tool in changing for wish in calls)
    return {
        "conversations": len(found),
        "calls": len(calls),
        "gated": gated,
        "approved": gated,
        "denied": 0,
        "finished": len(calls),
        "identical": len(found),
        "different": 0,
    }


@pytest.mark.long
async def test_the_whole_of_it_killed_and_started_again(recordings: Path, tmp_path: Path):
    """Broker, workers and driver in one process, killed and restarted: same histories (B53, I7)."""
    store, log = tmp_path / "store", tmp_path / "log"
    rehearse = (
        *REHEARSAL, "run", recordings, "--policy", POLICY, "--store", store,
        "--ack-wait", ACK_WAIT_S, "--json",
    )  # fmt: skip
    wanted = await asyncio.to_thread(expected, recordings)
    dice = random.Random(7)
    done = 0
    for _ in range(12 if LONG else 2):
        async with program(*rehearse, log=log) as process:
            killer = asyncio.create_task(_kill_after(store, done + dice.randint(100, 450), process))
            await process.ended()
            killer.cancel()
            done += 300
            if process.returncode == 0:
                break
    process = start(*rehearse, log=log)
    out = await process.output()
    assert process.returncode == 0, tail(log)
    summary = json.loads(out)
    assert {key: summary[key] for key in wanted} == wanted
    server = await up("up", "--store", store, "--json", log=log)
    try:
        rebuilt = await verified(store, log)
    finally:
        await kill(server)
    assert rebuilt["differences"] == []
    assert rebuilt["calls"] == {"returned": wanted["calls"]}


async def _kill_after(store: Path, facts: int, process: Program) -> None:
    from ayes.schemas.errors import ApprovalsError

    while process.returncode is None:
        try:
            await grown(store, facts)
            break
        except ApprovalsError:
            await asyncio.sleep(0.05)  # not up yet
    await kill(process)


@pytest.mark.parametrize(
    "victim", sampled(["gate", "queue", "model", "executor", "up", "rehearse"], "executor")
)
async def test_any_one_of_them_killed(victim: str, recordings: Path, tmp_path: Path):
    """One process each; one is killed again and again, and it ends the same (B53, I6, I7)."""
    store, log = tmp_path / "store", tmp_path / "log"
    where = ("--store", store, "--ack-wait", ACK_WAIT_S)
    recorded = ("--recording", recordings)
    run = (*REHEARSAL, "run", recordings, "--policy", POLICY)
    work = (*REHEARSAL, "work")
    commands: dict[str, tuple[str | Path, ...]] = {
        "up": ("up", "--workers", "none", "--json", *where),
        "gate": ("work", "gate", "--json", *where),
        "queue": ("work", "queue", "--json", *where),
        "model": (*work, "model", "--json", *recorded, *where),
        "executor": (*work, "executor", "--json", *recorded, *where),
        "rehearse": (*run, "--no-workers", "--json", *where),
    }
    wanted = await asyncio.to_thread(expected, recordings)
    running: Running = {}
    try:
        running["up"] = await up(*commands["up"], log=log)
        # Each is ready before anything is killed: a program that starts while its broker is away
        # ends.
        for name in ("gate", "queue", "model", "executor"):
            running[name] = await up(*commands[name], log=log)
        running["rehearse"] = start(*commands["rehearse"], log=log)
        for kills in range(1, 9 if LONG else 3):
            await unless_one_ends(grown(store, kills * (1000 if LONG else 150)), running, log)
            await kill(running[victim])
            if victim == "rehearse":
                running[victim] = start(*commands[victim], log=log)
            else:
                running[victim] = await up(*commands[victim], log=log)
        out = await running["rehearse"].output()
        assert running["rehearse"].returncode == 0, tail(log)
        summary = json.loads(out)
        assert {key: summary[key] for key in wanted} == wanted
        rebuilt = await verified(store, log)
        assert rebuilt["differences"] == []
        assert rebuilt["pending"] == 0
    finally:
        for process in reversed(running.values()):
            await kill(process)
