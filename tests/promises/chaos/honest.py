"""What happens to an honest log, again and again, without an alarm.

    honest.py [TIMES]       1,000 times by default, on the nats-server of NATS_SERVER_BIN

Facts are recorded, the broker is stopped or killed, its index is lost, settings are changed, the
store is moved, the log is backed up and restored elsewhere. After each of these the log is what was
seen before, and now and then all of it is read.
"""

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from rot import forget_index

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.audit.backup import back_up, restore
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.inspection import watching, witness
from ayes.schemas import events as e
from ayes.schemas.errors import Unavailable
from ayes.schemas.policy import applied
from ayes.schemas.slots import ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

#: What is done to it while no broker runs, or while one does.
EVENTS = ("stop", "kill", "lose the index", "move", "settings", "backup", "nothing")
#: Of so many events, one is followed by a reading of all facts.
READ_EVERY = 10


async def histories(folder: Path, times: int, seed: int) -> list[str]:
    """Returns the alarms, with the events before them."""
    lot, store, alarms = random.Random(seed), folder / "store-0", list[str]()
    done: list[str] = []
    for number in range(times):
        event = lot.choice(EVENTS)
        done.append(event)
        async with EmbeddedServer(store, sync="2m") as server:
            size = (1 << 30) + lot.randrange(1 << 20) if event == "settings" else None
            await declare_streams(store, max_bytes=size)
            is_read = number % READ_EVERY == 0
            if problem := await _seen(store, number, lot, is_read=is_read):
                alarms.append(f"{number}: {problem} after {done[-5:]}")
            if event == "backup":
                await _backed_up(store, folder, number)
            if event == "kill":
                os.kill(server.pid, 9)
                await server.exited()
        if event == "backup":
            store = folder / f"store-{number}"
        if event == "lose the index":
            forget_index(store)
        if event == "move":
            store = store.rename(folder / f"moved-{number}")
    return alarms


async def _seen(store: Path, number: int, lot: random.Random, *, is_read: bool) -> str:
    """What a gate that starts now, records facts and ends says of the log; empty if it is fine."""
    place = witness.place_of(store, None)
    async with (
        JetStream.connect(store, role="gate") as log,
        Ledger.connect(store, role="admin") as ledger,
    ):
        try:
            await witness.check(log, place)
            async with watching.keeping(log, place):
                await _recorded(ledger, number, lot)
            if is_read:
                keeper = watching._Keeper(log, witness.Witness(log, place), is_gate=True)
                await keeper.begin()
                assert await keeper._read_from(await log.leader())
        except Unavailable as problem:
            return str(problem)
    return ""


async def _recorded(ledger: Ledger, number: int, lot: random.Random) -> None:
    said = ThreadRef("shop", f"t{number}").said
    text = "x" * lot.choice((1, 100, 2_000))
    facts = [(said(f"m{n}"), e.Said(role="user", text=text)) for n in range(lot.choice((1, 5, 40)))]
    await asyncio.gather(*(ledger.append(*one) for one in facts))
    await ledger.declare("shop", ToolSpec(name=f"tool-{number}", schema='{"type":"object"}'))
    rule = f'[[rule]]\nname = "r{number}"\ntools = ["*"]\nthen = "allow"\n'
    await ledger.append(policy_slot("shop", number + 1), applied(rule))


async def _backed_up(store: Path, folder: Path, number: int) -> None:
    file, other = folder / f"{number}.backup", folder / f"store-{number}"
    async with JetStream.connect(store, role="admin") as log:
        await back_up(log, file)
    async with EmbeddedServer(other, sync="2m"):
        await declare_streams(other)
        async with JetStream.connect(other, role="admin") as log:
            await restore(log, file)
    file.unlink()
    shutil.rmtree(store / "archive", ignore_errors=True)


def main() -> int:
    asking = argparse.ArgumentParser()
    asking.add_argument("times", type=int, nargs="?", default=1000)
    asking.add_argument("--seed", type=int, default=1)
    given = asking.parse_args()
    with tempfile.TemporaryDirectory(prefix="honest-") as temporary:
        os.environ["XDG_STATE_HOME"] = str(Path(temporary) / "state")
        alarms = asyncio.run(histories(Path(temporary), given.times, given.seed))
    sys.stdout.write("\n".join([*alarms, f"{len(alarms)} alarms in {given.times:,} events\n"]))
    return bool(alarms)


if __name__ == "__main__":
    sys.exit(main())
