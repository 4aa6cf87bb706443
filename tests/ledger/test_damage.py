"""What the broker cannot read is never taken for what is not there (docs/decisions/0055).

On 2.15 a message whose bytes rotted on disk is "not found" for every read, of the leader too, and
is counted all the same.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cluster import cluster
from rot import flip, forget_index, records, rot

from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.replica import ReadReplica
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.workers import reactions, working
from ayes.schemas import events as e
from ayes.schemas.errors import BrokerAway, LogDamaged, UnknownCall
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    CallRef,
    DelegationRef,
    GrantRef,
    Slot,
    StopRef,
    ThreadRef,
    policy_slot,
)
from ayes.schemas.tools import ToolSpec

CALL = CallRef("shop", "t1", "r-1")
TOOL = ToolSpec(name="refund", schema='{"type":"object"}', description="rot tool")
GRANT = GrantRef("shop", "ana", "small")
AWAY = DelegationRef("shop", "ana", "holiday")
HALT = StopRef("shop", "ana", "halt")
NOW, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)


def policy(number: int, voters: str = "ana") -> e.PolicyApplied:
    return applied(
        f'[[rule]]\nname = "r"\ntools = ["*"]\nthen = "ask"\nreason = "rot policy {number}"\n'
        f'voters = ["{voters}"]\nvotes_needed = 1\n'
    )


FACTS: tuple[tuple[Slot, e.Event], ...] = (
    (policy_slot("shop", 1), policy(1)),
    (policy_slot("shop", 2), policy(2)),
    (GRANT.given, e.Granted(tool="refund", expires_in_s=9e6, reason="rot grant")),
    (GRANT.revoked_by("ben"), e.GrantRevoked(reason="rot revocation")),
    (AWAY.given, e.Delegated(to="ben", starts_at=NOW, ends_at=LATER, reason="rot delegation")),
    (AWAY.ended, e.DelegationEnded(reason="rot return")),
    (HALT.given, e.Stopped(reason="rot halt", tools=("other",))),
    (HALT.ended, e.StopEnded(reason="rot end of it")),
    (CALL.requested, e.ToolRequested(
        tool="refund", tool_version="v", arguments='{"rot":"wish"}', digest="d", requester="rita"
    )),
    (CALL.decided, e.Approved(digest="d", ground="policy", rule="rot decision", policy_version=1)),
    (CALL.revoked_by("ben"), e.Revoked(reason="rot stop")),
)  # fmt: skip
#: Where a record of a block has the length of its subject.
SUBJECT_LENGTH = 20
#: The messages of a thread that is longer than one answer.
LONG = 1100


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A store with these facts, whose broker was stopped."""
    path = tmp_path_factory.mktemp("made") / "store"
    asyncio.run(_make(path))
    return path


async def _make(path: Path) -> None:
    async with EmbeddedServer(path, sync="2m"):
        await declare_streams(path)
        async with Ledger.connect(path, role="admin") as ledger:
            await ledger.declare("shop", TOOL)
            for slot, event in FACTS:
                await ledger.append(slot, event)
            said = ThreadRef("shop", "t2").said
            await asyncio.gather(*(ledger.append(said(f"m{n}"), _said(n)) for n in range(LONG)))


def _said(number: int) -> e.Said:
    return e.Said(role="user", text=f"rot message {number}.")


@pytest.fixture
def rotten(made: Path, tmp_path: Path):
    """A ledger of which the facts with these texts are unreadable."""
    path = tmp_path / "store"

    @asynccontextmanager
    async def running(*texts: str) -> AsyncIterator[Ledger]:
        shutil.copytree(made, path)
        for text in texts:
            rot(path, text)
        async with EmbeddedServer(path, sync="2m"), Ledger.connect(path, role="admin") as ledger:
            yield ledger

    running.path = path
    return running


async def _again(ledger: Ledger) -> None:
    await ledger.append_exclusive(CALL.revoked_by("ben"), e.Revoked(reason="again"))


#: What is unreadable, and what a program does that would take it for absent.
READS: dict[str, tuple[str, Callable[[Ledger], Awaitable[Any]]]] = {
    "the policy": ("rot policy 2", lambda ledger: ledger.policies("shop")),
    "a policy's subject": ("_policy.2", lambda ledger: ledger.policies("shop")),
    "the subject of a grant's end": ("revoked.ben", lambda ledger: ledger.grants("shop")),
    "an older policy": ("rot policy 1", lambda ledger: ledger.alarms()),
    "a tool": ("rot tool", lambda ledger: ledger.tool("shop", "refund")),
    "a grant": ("rot grant", lambda ledger: ledger.grants("shop")),
    "its end": ("rot revocation", lambda ledger: ledger.grants("shop")),
    "a delegation": ("rot delegation", lambda ledger: ledger.delegations("shop")),
    "its end too": ("rot return", lambda ledger: ledger.delegations("shop")),
    "a stop": ("rot halt", lambda ledger: ledger.known_call(CALL)),
    "its end as well": ("rot end of it", lambda ledger: ledger.known_call(CALL)),
    "a request": ("wish", lambda ledger: ledger.known_call(CALL)),
    "a decision": ("rot decision", lambda ledger: ledger.decision(CALL, timeout_s=60)),
    "a revocation": ("rot stop", lambda ledger: ledger.start(CALL)),
    "its slot": ("rot stop", _again),
}


@pytest.mark.parametrize("what", READS)
async def test_what_cannot_be_read_is_not_taken_for_absent(what: str, rotten):
    """A policy, a tool, a grant's end or a revocation whose bytes rotted is named, with its node,
    and nobody is told to do the same again: without a policy anybody might approve (I1, I7).
    """
    text, do = READS[what]
    async with rotten(text) as ledger:
        with pytest.raises(LogDamaged) as told:
            await do(ledger)
        assert "ledger.shop." in str(told.value)
        assert told.value.node == await ledger.log.leader()
        assert "docs/cluster.md" in str(told.value)
        assert "again: it is safe" not in str(told.value)


async def test_a_message_in_a_long_thread_that_cannot_be_read_is_named(rotten):
    """A thread that is read in pages is counted too."""
    async with rotten("rot message 700.") as ledger:
        with pytest.raises(LogDamaged, match=r"shop\.t2\.said\.m700 is counted"):
            await ledger.read(ThreadRef("shop", "t2"))


async def test_a_fact_whose_subject_ends_elsewhere_is_noticed(made: Path, tmp_path: Path):
    """The broker's checksum covers where a subject ends only in a message with headers, as all
    facts have. Without any, the fact would be on another subject, and its slot free; so, as for all
    that it finds damaged, it drops it and what follows in that file, and the start finds that.
    """
    path = shutil.copytree(made, tmp_path / "store")
    facts = [one.subject for one in records(path)]
    stop = next(one for one in records(path) if one.subject == CALL.revoked_by("ben").subject)
    flip(path / stop.block, stop.begin + SUBJECT_LENGTH, 4)
    forget_index(path)
    async with EmbeddedServer(path, sync="2m"), Ledger.connect(path, role="admin") as ledger:
        assert await ledger.log.last_seq() == facts.index(stop.subject)


async def test_what_nobody_recorded_is_absent_still(rotten):
    """Beside damage, what was never recorded is missing as before."""
    async with rotten("rot policy 2") as ledger:
        assert (await ledger.policies("other")).workspace.version == 0
        with pytest.raises(UnknownCall):
            await ledger.start(CallRef("shop", "t1", "r-2"))


async def test_a_policy_never_goes_back():
    """Whoever has read version 2 takes neither version 1 nor none for the policy, whatever a broker
    says that has lost it meanwhile (I7).
    """
    ledger = Ledger(Memory(), e.Author(kind="gate", name="gate"))
    for number in (1, 2):
        await ledger.append(policy_slot("shop", number), policy(number))
    assert (await ledger.policies("shop")).workspace.version == 2
    for left in (1, 0):
        older = Memory()
        for number in range(1, left + 1):
            await Ledger(older, ledger.author).append(policy_slot("shop", number), policy(number))
        with pytest.raises(BrokerAway, match="the policy of shop is fact 2, which is missing here"):
            await ledger.reading_from(older).policies("shop")


async def test_a_replica_of_the_log_takes_no_gap_for_the_log():
    """What a worker's replica is not delivered ends it, and so the worker."""
    replica = ReadReplica(Memory())
    said = [RawMessage(n, NOW, f"ledger.shop.t1.said.m{n}", b"{}") for n in (7, 8, 10)]
    replica._take(said[:2])
    with pytest.raises(LogDamaged, match="fact 9 is not delivered"):
        replica._take(said[2:])


@pytest.mark.parametrize("is_the_leader", [False, True])
async def test_in_a_cluster_damage_is_believed_if_it_stays(tmp_path, monkeypatch, is_the_leader):
    """What has just been recorded is not in the log of a node that was paused while another became
    the leader, and which answers until it learns of that.
    """
    async with (
        cluster(tmp_path) as nodes,
        JetStream.connect(nodes.store.path, role="service") as log,
        Ledger.connect(nodes.store.path) as ledger,
    ):
        said = ThreadRef("shop", "t9").said("m1")
        await ledger.append(said, e.Said("user", "Hello."))
        read, asked = log.leaders_message, 0

        async def lacking(stream: str, **which: str | int) -> RawMessage | None:
            nonlocal asked
            asked += 1
            return None if is_the_leader or asked == 1 else await read(stream, **which)

        monkeypatch.setattr(log, "leaders_message", lacking)
        if is_the_leader:
            with pytest.raises(LogDamaged, match=r"said\.m1 is counted there .* on node n\d"):
                await log.append(said, b"{}", "another")
        else:
            [found] = await log.read_from_leader(LEDGER, said.subject)
            asked = 0
            assert await log._no_packs().pack(found.seq) == found
        assert asked > 1


async def test_a_worker_ends_at_a_fact_that_cannot_be_read(rotten):
    """Neither parked nor tried for ever: the gate ends with a sentence that names the fact."""
    async with rotten("rot policy 2") as ledger:
        ref = CallRef("shop", "t9", "r-1")
        gate = reactions(["gate"])
        async with asyncio.timeout(60), working(gate, store=rotten.path) as ended:
            await ledger.request(ref, "refund", {}, requester="rita")
            with pytest.raises(LogDamaged, match=r"shop\._policy\.2 is counted"):
                await ended
        assert (await ledger.call(ref)).approval_request is None
        assert await ledger.log.parked() == []
