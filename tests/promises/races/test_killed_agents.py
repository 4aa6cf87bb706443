"""Agents as programs of their own, on a real broker, killed with SIGKILL and started again."""

import asyncio
import json
import os
import signal
import sys
from typing import Any

import pytest
from asking_agent import POLICY
from brokers import running
from drivers import DRIVERS
from long import sampled
from paths import ROOT
from running import working
from shop import Shop
from until import until

from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.schemas.slots import CallRef

REF = CallRef("shop", "order-17", "call_9")


async def program(*arguments: Any) -> asyncio.subprocess.Process:
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "support")))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "tests" / "support" / "killable_agent.py"),
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )


async def told(*arguments: Any) -> Any:
    """What the program prints at its end."""
    process = await program(*arguments)
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(printed)


@pytest.mark.parametrize("driver", sampled(DRIVERS, DRIVERS[0]))
async def test_killed_in_the_middle_of_its_tool(driver, tmp_path):
    """It asks and ends. Approved, another process runs the tool and is killed in it. The next one
    tells the model that nobody knows, and runs nothing.
    """
    driver.load()
    async with running(tmp_path / "store") as server:
        store, folder = server.store.path, tmp_path / "agent"
        folder.mkdir()
        runs = folder / "runs.txt"
        common = (store, folder, driver.module)
        async with (
            Ledger.connect(store, role="admin") as admin,
            Ledger.connect(store, role="gate") as gate,
        ):
            shop = Shop(admin.log)
            await shop.open(POLICY)
            async with working(Worker(gate, Gate())):
                assert await told(*common, "start") is None
                await shop.until(REF.gated)
                await Ledger.on(admin.log, "reviewer-ana").reviewer("ana").approve(REF)
                await shop.until(REF.decided)
                victim = await program(*common, "resume", "hang")
                await until(lambda: runs.exists() and runs.read_text().endswith("\n"))
                victim.send_signal(signal.SIGKILL)
                await victim.wait()
                [text] = await told(*common, "resume")
        assert "Do not repeat it" in text
        assert [json.loads(one) for one in runs.read_text().splitlines()] == [{"amount": 100}]
