"""Agents as programs of their own, on a real broker, killed with SIGKILL and started again."""

import json
import subprocess
import sys

import pytest
from asking_agent import POLICY
from brokers import running
from drivers import DRIVERS
from long import sampled
from paths import TESTS
from program import Started, environment
from running import working
from shop import Shop
from until import until

from ayes.adapters.kernel import Kernel
from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.services import Ledger
from ayes.schemas.slots import CallRef

REF = CallRef("shop", "order-17", "call_9")


@pytest.mark.parametrize("driver", sampled(DRIVERS, DRIVERS[0]))
async def test_killed_in_the_middle_of_its_tool(driver, tmp_path):
    """It asks, and is gone. Approved, another process runs the tool and is killed in it. The next
    agent tells the model that nobody knows, and runs nothing.
    """
    made = driver.load()
    async with running(tmp_path / "store") as server:
        store, folder = server.store.path, tmp_path / "agent"
        folder.mkdir()
        runs = folder / "runs.txt"
        async with (
            Ledger.connect(store, role="admin") as admin,
            Ledger.connect(store, role="gate") as gate,
            Ledger.connect(store, name="desk") as desk,
        ):
            shop = Shop(admin.log)
            await shop.open(POLICY)

            def agent():
                wishes = (("call_9", "refund", {"amount": 100}),)
                return made(Kernel(desk, "shop", requester="rita"), folder, wishes, [])

            async with working(Worker(gate, Gate())):
                assert await agent().start() is None
                await shop.until(REF.gated)
                await Ledger.on(admin.log, "reviewer-ana").reviewer("ana").approve(REF)
                await shop.until(REF.decided)
                program = TESTS / "support" / "killable_agent.py"
                words = [sys.executable, program, store, folder, driver.module]
                with Started(words, stdin=subprocess.DEVNULL, env=environment()) as victim:
                    await until(lambda: runs.exists() and runs.read_text().endswith("\n"))
                    victim.kill()
                again = agent()
                [text] = await again.resume()
        assert "Do not repeat it" in text
        assert [json.loads(one) for one in runs.read_text().splitlines()] == [{"amount": 100}]
        assert again.runs == []
