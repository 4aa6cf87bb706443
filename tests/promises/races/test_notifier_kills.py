"""A notifier that is killed again and again: everybody is told, and nobody twice but for the
messages that were being sent.

Real processes, killed with SIGKILL at random moments while they send, several at a time on one
broker. In CI a few; `make kills` kills 200 (NOTIFIER_KILLS).
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from brokers import running
from inboxes import Inbox, http
from program import AYES, Started, environment
from sections import settings_file

from ayes.ledger.clients.services import Ledger
from ayes.schemas import events as e
from ayes.schemas.policy import applied
from ayes.schemas.slots import ROOT, ThreadRef, policy_slot

KILLS = int(os.environ.get("NOTIFIER_KILLS", "4"))
#: Notifiers that run at the same time.
TOGETHER = 4 if KILLS > 10 else 2
ACK_WAIT_S = 1.5
PEOPLE = ("ana", "ben", "olga")
#: New calls for each kill; each is three messages.
CALLS_A_KILL = 2
#: How long an endpoint takes to answer, so that there is always a message in flight.
SLOW_S = 0.02
#: How long a slow machine may need until a process sends its first message.
PATIENCE_S = 60.0
#: Messages that one process sends at the same time.
AT_ONCE = 2

pytestmark = pytest.mark.timeout(3600 if KILLS > 10 else 240)


class Life(NamedTuple):
    """When a process was killed."""

    killed_at: float


@pytest.fixture
def web() -> Iterator[Inbox]:
    with http() as inbox:
        inbox.slow_s = SLOW_S
        yield inbox


async def ask(ledger: Ledger, calls: list[str]) -> None:
    """Record these calls as requested and put to everybody."""
    for call in calls:
        ref = ThreadRef("shop", "t1").call(call)
        wish = e.ToolRequested(tool="refund", arguments="{}", digest="d", requester="rita")
        asking = e.ApprovalRequested(digest="d", rule="money", policy_version=1, voters=PEOPLE)
        for slot, event in ((ref.requested, wish), (ref.gated, asking)):
            assert await ledger.try_append(slot, event) is None


async def live(store: Path, settings: Path, web: Inbox, dice: random.Random) -> Life:
    """One process: started, left to send for a random time, and killed."""
    before = len(web)
    process = Started(
        [AYES, "work", "notifier", "--json", "--store", store, "--settings", settings,
         "--ack-wait", f"{ACK_WAIT_S}s"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=environment(),
    )  # fmt: skip
    assert process.stdout
    assert await asyncio.to_thread(process.stdout.readline), "it ended by itself"
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while len(web) == before:  # noqa: ASYNC110 - it is another thread's
                await asyncio.sleep(0.005)
    await asyncio.sleep(dice.uniform(0.0, 0.3))
    killed_at = time.time()
    process.kill()
    await asyncio.to_thread(process.wait)
    process.stdout.close()
    return Life(killed_at)


@pytest.mark.long
async def test_killed_at_any_moment_it_tells_everybody(web: Inbox, tmp_path: Path):
    """Every message is sent at least once. One that is repeated was in flight when a process was
    killed: there is a kill between any two of it, and none comes after its fact (B54).
    """
    settings = settings_file(
        tmp_path, f'[notices.web]\nurl = "json://{web.place}/{{address}}"\nat_once = {AT_ONCE}\n'
    )
    contacts = "".join(f'{one} = ["web:{one}"]\n' for one in PEOPLE)
    dice = random.Random(15)
    async with (
        running(tmp_path / "store", ACK_WAIT_S) as server,
        Ledger.connect(server.store.path, role="admin") as ledger,
    ):
        store = server.store.path
        await ledger.append(policy_slot("shop", 1), applied(f"[contacts]\n{contacts}"))
        calls: list[str] = []
        kills: list[float] = []
        while len(kills) < KILLS:
            more = [f"c{len(calls) + n}" for n in range(CALLS_A_KILL * TOGETHER)]
            calls += more
            await ask(ledger, more)
            lives = await asyncio.gather(
                *(
                    live(store, settings, web, dice)
                    for _ in range(min(TOGETHER, KILLS - len(kills)))
                )
            )
            kills += [one.killed_at for one in lives]
        wanted = len(calls) * len(PEOPLE)
        last = asyncio.create_task(_until_told(ledger, wanted))
        with Started(
            [AYES, "work", "notifier", "--store", store, "--settings", settings,
             "--ack-wait", f"{ACK_WAIT_S}s"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment(),
        ) as process:  # fmt: skip
            try:
                await last
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait)
        facts = await ledger.read(f"{ROOT}.*.*.call.*.notified.>")
    recorded = {
        (fact.slot.call_ref.call, fact.slot.tail[3]): fact.recorded_at.timestamp()
        for fact in facts
        if fact.slot.call_ref
    }
    came: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in list(web):
        came[one.subject.rpartition("/")[2], one.to].append(one.at)

    assert set(came) == set(recorded) == {(call, who) for call in calls for who in PEOPLE}
    repeated = {key: times for key, times in came.items() if len(times) > 1}
    for key, times in repeated.items():
        for before, after in pairwise(times):
            assert any(before <= kill <= after for kill in kills), (key, times, kills)
    # The broker's clock is this machine's.
    assert all(times[-1] <= recorded[key] + 0.05 for key, times in came.items())
    extra = sum(len(times) - 1 for times in repeated.values())
    assert extra <= len(kills) * 2 * AT_ONCE
    sys.stdout.write(f"{len(kills)} kills, {wanted} messages, {extra} sent once more\n")


async def _until_told(ledger: Ledger, count: int) -> None:
    while len(await ledger.read(f"{ROOT}.*.*.call.*.notified.>")) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
