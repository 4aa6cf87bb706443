"""Bytes that rot: every one of each fact that lives long, and some of all others, one at a time.

    flips.py [--every N] [--nodes TIMES]     every N-th byte only; so often on three nodes instead

A log is made once, with a policy, a tool, a grant that was revoked, a delegation that was ended, a
stop that holds and one that was ended, a payment that ran, a call that was revoked and one that is
held by the stop, in more than one block. Then, again and again: a copy
of the stopped broker's files, one flipped bit, a start, and the question what a program would take
for so. It must be what it was, or an error that names the damage:

* at the start, where workers are refused (`ayes.ops.inspection.witness`), or
* when it is read (`LogDamaged`), and then the reading in the background names it too.

No slot that was filled is filled again. On three nodes the bit is flipped on each node in turn,
which is then made the leader.
"""

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rot import Record, flip, forget_index, records

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Recorded
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker import server
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.cluster.local import LocalCluster
from ayes.ops.inspection import watching, witness
from ayes.schemas import events as e
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BrokerAway, LogDamaged, Unavailable
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    ORGANISATION,
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    StopRef,
    ThreadRef,
    policy_slot,
)
from ayes.schemas.tools import ToolSpec

PAID, STOPPED = CallRef("shop", "t1", "paid"), CallRef("shop", "t1", "stopped")
HELD = CallRef("shop", "t1", "held")
GRANT, AWAY = GrantRef("shop", "ana", "small"), DelegationRef("shop", "ana", "holiday")
HALT, OVER = StopRef("shop", "ana", "wires"), StopRef(ORGANISATION, "ben", "all")
ORDER = '{"order":1}'
BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
#: The least that a log may have; the broker makes blocks of a quarter of it.
SIZE = 16 << 20
#: Of the bytes of other facts, and of the beginnings of blocks.
OTHERS = 40
#: What would be done twice, or said anew, if its slot were free.
FILLED = {PAID.client_claim(1), STOPPED.revoked_by("ben"), policy_slot("shop", 2), OVER.given}
NOWHERE = "nowhere: nothing was damaged"
ENDED = "by the broker, which does not start or is ended"


def _policy(number: int) -> e.PolicyApplied:
    return applied(
        f'[[rule]]\nname = "r{number}"\ntools = ["*"]\nthen = "ask"\nreason = "two of us"\n'
        'voters = ["ana", "ben"]\nvotes_needed = 2\n'
    )


def _digest(tool: str) -> str:
    return call_digest(tool, "v", ORDER)


def _call(ref: CallRef, tool: str = "refund") -> list[tuple[Slot, e.Event]]:
    wish = e.ToolRequested(
        tool=tool, tool_version="v", arguments=ORDER, digest=_digest(tool), requester="rita"
    )
    yes = e.Approved(digest=wish.digest, ground="policy", rule="r2", policy_version=2)
    return [(ref.requested, wish), (ref.decided, yes)]


def _facts() -> Iterator[tuple[Slot, e.Event]]:
    yield policy_slot("shop", 1), _policy(1)
    yield policy_slot("shop", 2), _policy(2)
    yield GRANT.given, e.Granted(tool="refund", expires_in_s=9e8)
    yield GRANT.revoked_by("ben"), e.GrantRevoked(reason="no more")
    yield AWAY.given, e.Delegated(to="ben", starts_at=BEGIN, ends_at=END)
    yield AWAY.ended, e.DelegationEnded(reason="back")
    yield OVER.given, e.Stopped(reason="who did this?")
    yield OVER.resumed_by("ben"), e.Resumed(reason="found")
    yield OVER.ended, e.StopEnded(resumed_by=("ben",))
    yield from _call(PAID)
    yield PAID.client_claim(1), e.ToolStarted(digest=_digest("refund"), idempotency_key=str(PAID))
    yield PAID.client_finished, e.ToolReturned(output='"paid"')
    yield from _call(STOPPED)
    yield STOPPED.revoked_by("ben"), e.Revoked(reason="stop")
    yield from _call(HELD, "wire")
    yield HALT.given, e.Stopped(reason="a wrong account", tools=("wire",))
    for number in range(12):
        text = f"{number} " + "x" * 400_000
        yield ThreadRef("shop", "t2").said(f"m{number}"), e.Said(role="user", text=text)


async def fill(store: Path) -> None:
    async with Ledger.connect(store, role="admin") as ledger:
        await ledger.declare("shop", ToolSpec(name="refund", schema='{"type":"object"}'))
        for slot, event in _facts():
            await ledger.append(slot, event)
    async with JetStream.connect(store, role="gate") as log:  # as a gate that has seen it
        async with watching.keeping(log, place := witness.place_of(store, None)):
            pass
        assert (await witness.Witness(log, place).known(await log.identity()))[0].seq


def places(store: Path, every: int, lot: random.Random) -> list[tuple[Record, int]]:
    """The bytes to flip: all (each N-th) of long-lived facts or of calls', some of the others."""
    found: list[tuple[Record, int]] = []
    others: list[tuple[Record, int]] = []
    for one in records(store):
        each = [(one, at) for at in range(one.begin, one.end)]
        if ".t2." in one.subject:
            others += [(one, at) for at in range(one.begin, one.begin + 60)]
            others += lot.sample(each, 20)
        else:
            found += each
    return found[lot.randrange(every) :: every] + lot.sample(others, max(1, OTHERS // every))


async def what_is_so(ledger: Ledger) -> dict[str, Any]:
    """What a program would go by, or the damage that it is told of instead."""

    async def told(reading: Awaitable[Any]) -> Any:
        try:
            return await reading
        except LogDamaged:
            return LogDamaged

    async def status(ref: CallRef) -> Any:
        call = await ledger.call(ref)
        return call.status, len(call.facts), call.void

    async def stops() -> Any:
        return (await ledger.call(HELD)).stops

    policies = await told(ledger.policies("shop"))
    tool = await told(ledger.tool("shop", "refund"))
    return {
        "policy": policies if policies is LogDamaged else policies.workspace,
        "tool": tool if tool is LogDamaged else tool.declared,
        "grants": await told(ledger.grants("shop")),
        "delegations": await told(ledger.delegations("shop")),
        "paid": await told(status(PAID)),
        "stopped": await told(status(STOPPED)),
        "stops": await told(stops()),
        "held": await told(status(HELD)),
    }


async def judged(store: Path, so: dict[str, Any]) -> str:
    """Where this damage was named.

    Raises:
        AssertionError: something is taken for so that is not, or a slot was filled again.
    """
    place = witness.place_of(store, None)
    async with (
        JetStream.connect(store, role="gate") as log,
        Ledger.connect(store, role="admin") as ledger,
    ):
        try:
            if await witness.difference(log, place) is not None:
                return "at the start"
        except Unavailable:
            return "at the start"
        found = await what_is_so(ledger)
        named = [name for name, one in found.items() if one is LogDamaged]
        wrong = {
            name: one for name, one in found.items() if one is not LogDamaged and one != so[name]
        }
        # A call whose fact has rotted in its subject is read as if the fact were not there, until
        # the whole log was read.
        late = wrong.keys() & {"paid", "stopped", "held"}
        assert wrong.keys() == late, f"taken for so: {wrong}"
        for slot, event in _facts():
            if slot in FILLED:
                with suppress(LogDamaged):
                    result = await ledger.append(slot, event)
                    assert not isinstance(result, Recorded), f"{slot.subject} was filled again"
        keeper = watching._Keeper(log, witness.Witness(log, place), is_gate=True)
        await keeper.begin()
        try:
            await keeper._read_from(await log.leader())
        except LogDamaged:
            return "when it is read" if named else "in the background"
        unnamed = {*named, *late}
        assert not unnamed, f"wrong, and not named in the background: {unnamed}"
        return NOWHERE


async def on_one_server(folder: Path, every: int, seed: int) -> Counter[str]:
    """Returns how often the damage was named where."""
    lot, counted = random.Random(seed), Counter[str]()
    for end in ("stopped", "killed"):
        store, kept = folder / end, folder / f"{end}-kept"
        async with EmbeddedServer(store, sync="2m") as broker:
            await declare_streams(store, max_bytes=SIZE)
            await fill(store)
            if end == "killed":
                os.kill(broker.pid, 9)
                await broker.exited()
        shutil.copytree(store, kept)
        async with _running(store, kept), Ledger.connect(store, role="admin") as ledger:
            so = await what_is_so(ledger)
        for keeps_index in (True, False) if end == "stopped" else (True,):
            for record, at in places(kept, every, lot):
                bit = 1 << lot.randrange(8)
                where = ENDED
                with suppress(BrokerAway):
                    async with _running(store, kept, (record, at, bit), keeps_index) as broker:
                        where = await _unless_ended(broker, _named(store, so, record, at, bit))
                counted[where] += 1
                if counted.total() % 100 == 0:
                    sys.stderr.write(f"{counted.total():,} flips: {dict(counted)}\n")
    return counted


async def _unless_ended(broker: EmbeddedServer, finding: Coroutine[Any, Any, str]) -> str:
    """What was found, unless the broker ended before: it takes all memory over some numbers."""
    ended, found = asyncio.create_task(broker.exited()), asyncio.create_task(finding)
    await asyncio.wait({ended, found}, return_when=asyncio.FIRST_COMPLETED)
    try:
        return found.result() if found.done() else ENDED
    finally:
        for task in (ended, found):
            task.cancel()
        await asyncio.wait({ended, found})


async def _named(store: Path, so: dict[str, Any], record: Record, at: int, bit: int) -> str:
    try:
        return await judged(store, so)
    except AssertionError as wrong:
        what = f"{record.subject}, byte {at - record.begin}, bit {bit}"
        raise AssertionError(f"{what}: {wrong}") from None


@asynccontextmanager
async def _running(
    store: Path,
    kept: Path,
    flipped: tuple[Record, int, int] | None = None,
    keeps_index: bool = True,
) -> AsyncIterator[EmbeddedServer]:
    """A broker on the files as they were kept, but for a bit of this message."""
    shutil.rmtree(store)
    shutil.copytree(kept, store)
    if flipped is not None:
        record, at, bit = flipped
        flip(store / record.block, at, bit)
    if not keeps_index:
        forget_index(store)
    async with EmbeddedServer(store, sync="2m") as broker:
        yield broker


async def on_three_nodes(folder: Path, times: int, seed: int) -> Counter[str]:
    """The same on each node in turn, stopped or killed, with and without its index; it is then made
    the leader, and mended as docs/cluster.md says.
    """
    lot, counted = random.Random(seed), Counter[str]()
    async with LocalCluster(folder / "cluster", sync="2m") as cluster:
        await cluster.declare(max_bytes=SIZE)
        store = cluster.store.path
        await fill(store)
        async with Ledger.connect(store, role="admin") as ledger:
            so = await what_is_so(ledger)
        for number in range(times):
            node = cluster.nodes[number % 3]
            await _current(store, node.name)
            os.kill(node.pid, 9 if lot.random() < 0.5 else 15)
            await node.exited()
            record, at = lot.choice(places(node.store.path, 1, lot))
            bit = 1 << lot.randrange(8)
            flip(node.store.path / record.block, at, bit)
            if lot.random() < 0.5:
                forget_index(node.store.path)
            await node.restart()
            await _leads(store, node.name)
            counted[await _named(store, so, record, at, bit)] += 1
            os.kill(node.pid, 15)
            await node.exited()
            shutil.rmtree(node.store.path / "jetstream")
            await node.restart()
            await _leads(store, node.name)
            assert await judged(store, so) == NOWHERE, "it was not mended"
    return counted


async def _current(store: Path, node: str) -> None:
    """Wait until this node has all of the log."""
    until = time.monotonic() + 60
    async with JetStream.connect(store, role="admin", timeout_s=30) as log:
        while True:
            with suppress(Unavailable):
                stream = await log.api.call("STREAM.INFO.LEDGER", repeat=True)
                about = stream["cluster"]
                others = {one["name"]: one for one in about.get("replicas") or ()}
                if about.get("leader") == node or (others.get(node) or {}).get("current"):
                    return
            assert time.monotonic() < until, f"{node} is not current"
            await asyncio.sleep(0.2)


async def _leads(store: Path, node: str) -> None:
    """Make this node the leader of the log."""
    until = time.monotonic() + 90
    async with JetStream.connect(store, role="admin", timeout_s=30) as log:
        while True:
            await _current(store, node)
            with suppress(Unavailable):
                if await log.leader() == node:
                    return
                body = {"placement": {"preferred": node}}
                await log.api.call("STREAM.LEADER.STEPDOWN.LEDGER", body)
            assert time.monotonic() < until, f"{node} does not come to lead"
            await asyncio.sleep(0.5)


def main() -> None:
    asking = argparse.ArgumentParser()
    asking.add_argument("--every", type=int, default=1)
    asking.add_argument("--nodes", type=int, default=0)
    asking.add_argument("--seed", type=int, default=1)
    given = asking.parse_args()
    witness.CHECKPOINT = 4  # type: ignore[misc] # so that a start reads the end only
    server._SPARE_BYTES = 200 << 20  # type: ignore[misc] # so that it is ended within a second
    with tempfile.TemporaryDirectory(prefix="flips-") as temporary:
        folder = Path(temporary)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        running = (
            on_three_nodes(folder, given.nodes, given.seed)
            if given.nodes
            else on_one_server(folder, given.every, given.seed)
        )
        counted = asyncio.run(running)
    for where, count in counted.most_common():
        sys.stdout.write(f"{count:7,} named {where}\n")


if __name__ == "__main__":
    main()
