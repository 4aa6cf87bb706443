"""What was seen of a log is kept outside of its store, and a log that is not that one any more
starts no gate.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from cluster import cluster
from long import sampled
from msgspec import structs
from program import approvals, last_seq, record, up
from rot import flip, forget_index, records, rot

from ayes.interfaces.cli import check
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.nats import jetstream
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.inspection import watching, witness
from ayes.schemas import events as e
from ayes.schemas.errors import Distrusted, Unavailable
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    BUDGET,
    FILLED_BY,
    GRANT,
    ONCALL,
    PERSON,
    ROOT,
    ThreadRef,
    matches,
    policy_slot,
)

THREAD = ThreadRef("shop", "t1")
FACTS = 41


def read_file(store: Path, log: str = "") -> witness.LastSeen:
    """What was seen of the log in this store, or of this log, in the user's state directory."""
    folder = Path(os.environ["XDG_STATE_HOME"]) / "approval-ledger" / "witness"
    named = log or hashlib.sha256(os.fsencode(store.resolve())).hexdigest()[:24]
    return msgspec.json.decode((folder / f"{named}.json").read_bytes(), type=witness.LastSeen)


def said(number: int, text: str = "amount 1") -> tuple:
    return THREAD.said(f"m{number}"), e.Said(role="user", text=text)


class Kept:
    """A store that a gate ran on, after 25 facts and after all, and what was seen of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / "store"
        self.state = path / "state"

    def make(self) -> None:
        for name, begin, end in (("older", 0, 25), ("last", 25, FACTS)):
            with up(self.store, "--workers", "gate"):
                record(self.store, *map(said, range(begin, end)))
            shutil.copytree(self.store, self.path / name)
        shutil.copytree(self.state, self.path / "seen")

    def again(self) -> None:
        """As it was, whatever a test did to it."""
        for there, kept in ((self.store, "last"), (self.state, "seen")):
            shutil.rmtree(there, ignore_errors=True)
            shutil.copytree(self.path / kept, there)

    @property
    def blocks(self) -> Path:
        (found,) = self.store.glob("jetstream/**/streams/LEDGER/msgs")
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Kept:
    kept = Kept(tmp_path_factory.mktemp("witnessed"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(kept.state))
        kept.make()
    return kept


@pytest.fixture
def kept(made, monkeypatch) -> Kept:
    made.again()
    monkeypatch.setenv("XDG_STATE_HOME", str(made.state))
    return made


def one_byte(kept: Kept, *, index: bool) -> None:
    (block,) = kept.blocks.glob("*.blk")
    held = bytearray(block.read_bytes())
    held[held.index(b"amount 1", len(held) // 3) + len("amount ")] = ord("9")
    block.write_bytes(held)
    if not index:
        (kept.blocks / "index.db").unlink()


def tail_cut(kept: Kept) -> None:
    (block,) = kept.blocks.glob("*.blk")
    os.truncate(block, block.stat().st_size - 600)


def older_copy(kept: Kept) -> None:
    shutil.rmtree(kept.store / "jetstream")
    shutil.copytree(kept.path / "older" / "jetstream", kept.store / "jetstream")


def older_ledger(kept: Kept) -> None:
    ledger = kept.blocks.parent
    shutil.rmtree(ledger)
    shutil.copytree(kept.path / "older" / ledger.relative_to(kept.store), ledger)


def no_log(kept: Kept) -> None:
    shutil.rmtree(kept.store / "jetstream")


def rewritten(kept: Kept) -> None:
    """As many facts as before and more, and others than were seen: by a server that was told to."""
    shutil.rmtree(kept.store / "jetstream")
    with up(kept.store, "--workers", "none"):
        record(kept.store, *(said(number, "amount 9") for number in range(FACTS + 5)))


TAMPERED = {
    "one byte, index kept": lambda kept: one_byte(kept, index=True),
    "one byte, index deleted": lambda kept: one_byte(kept, index=False),
    "the tail cut": tail_cut,
    "all of jetstream/ as it was": older_copy,
    "only LEDGER as it was": older_ledger,
    "no log any more": no_log,
    "another log": rewritten,
}


def test_a_log_that_is_as_it_was_is_taken(kept):
    """The next `up` goes on with it, and what it adds is seen as well."""
    with up(kept.store, "--workers", "gate"):
        record(kept.store, said(FACTS + 1))
    seen = read_file(kept.store)
    assert (seen.seq, len(seen.digest), len(seen.log)) == (FACTS + 1, 64, 32)


@pytest.mark.parametrize("change", sampled(TAMPERED, "the tail cut", "another log"))
def test_a_log_that_is_shorter_or_other_than_it_was_starts_no_gate(kept, change, capsys):
    """`up` refuses it and says how to go on; without workers `doctor` and `status` tell (C7)."""
    TAMPERED[change](kept)
    refused = approvals("up", "--json", store=kept.store)
    assert refused.code == 1
    assert "is not what it was: " in refused.problem["message"]
    assert "--accept-log" in refused.problem["message"]
    found, alarms = asyncio.run(told(kept.store, capsys))
    assert not found["log"]["ok"]
    assert re.search("before|it lacks 3 of its 41 facts", found["log"]["detail"])
    assert any(one.startswith("the log is not what it was: ") for one in alarms), alarms


async def told(store: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict, list[str]]:
    """What the doctor and status say of a broker without workers."""
    async with EmbeddedServer(store, sync="2m"):
        await declare_streams(store)
        return await told_of(store, capsys)


def test_a_store_that_was_moved_is_guarded_too(kept, tmp_path):
    """A log is known by its first fact, and not by its path (market 5.1)."""
    older_copy(kept)
    moved = kept.path / "moved"
    shutil.copytree(kept.store, moved)
    shutil.rmtree(kept.store / "jetstream")
    try:
        refused = approvals("up", "--json", store=moved)
        assert (refused.code, "ends at fact 25" in refused.problem["message"]) == (1, True)
    finally:
        shutil.rmtree(moved)


def test_a_program_without_a_state_directory_is_guarded_too(kept):
    """A container that forgets all of its files has what was seen from the broker (market 5.1)."""
    older_ledger(kept)
    shutil.rmtree(kept.state)
    refused = approvals("up", "--json", store=kept.store)
    assert (refused.code, "ends at fact 25" in refused.problem["message"]) == (1, True)
    with up(kept.store, "--workers", "none"):
        login = Store(kept.store).login("executor")
        url = f"nats://{login.user}:{login.password}@{login.url.removeprefix('nats://')}"
        refused = approvals("work", "executor", "--json", "--url", url)
        assert (refused.code, "ends at fact 25" in refused.problem["message"]) == (1, True)


def test_workers_beside_a_broker_refuse_it_too(kept):
    """`up --workers none` starts and logs it; `work` refuses, or it would run things again (C7)."""
    older_copy(kept)
    with up(kept.store, "--workers", "none"):
        assert "the log is not what it was" in (kept.store.parent / "up.log").read_text()
        for kind in ("gate", "executor"):
            refused = approvals("work", kind, "--json", store=kept.store)
            assert (refused.code, "is not what it was" in refused.problem["message"]) == (1, True)


def test_whoever_runs_it_may_go_on_deliberately(kept):
    """With --accept-log the log is taken as it is; from then on it is the one that was seen. Who
    accepted it, and why, is a fact (market 5.3).
    """
    older_copy(kept)
    with up(kept.store, "--workers", "gate", "--accept-log", "--reason", "the backup of Monday"):
        assert last_seq(kept.store) == 26
        record(kept.store, said(100))
        found = next(
            one
            for one in approvals("doctor", "--json", store=kept.store).lines
            if one["check"] == "log"
        )
        assert "accepted as it was up to fact 25 by " in found["detail"]
        assert "the backup of Monday" in found["detail"]
    with up(kept.store, "--workers", "gate"):
        assert last_seq(kept.store) == 27
    assert (read_file(kept.store).seq, read_file(kept.store).accepted) == (27, 1)


def test_what_was_seen_and_cannot_be_read_starts_no_gate(kept):
    """Whoever breaks the file must not get further than who breaks the log."""
    (file,) = (kept.state / "approval-ledger" / "witness").glob(
        hashlib.sha256(os.fsencode(kept.store.resolve())).hexdigest()[:24] + ".json"
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("{")
    refused = approvals("up", "--json", store=kept.store)
    assert refused.code == 1
    assert re.search(r"cannot be read: .*\.json: .* --accept-log", refused.problem["message"])
    assert "is not what it was:" not in refused.problem["message"]
    with up(kept.store, "--workers", "gate", "--accept-log"):
        record(kept.store, said(100))


async def test_only_the_end_of_a_long_log_is_compared(monkeypatch):
    """Two checkpoints are kept: comparing begins at the earlier and covers the rest."""
    monkeypatch.setattr(witness, "CHECKPOINT", 4)
    memory = Memory()
    ledger = Ledger(memory, e.Author(kind="service", name="tests"))
    for number in range(15):
        await ledger.append(*said(number))
    seen = witness.LastSeen("here")
    begins = []
    async for batch in memory.raw(1, until_end=True):
        for raw in batch:
            seen = seen.add(raw)
            begins.append(seen.begin[0])
    assert begins == [0] * 7 + [4] * 4 + [8] * 4
    assert len({seen.digest, *(digest for _, digest in seen.checkpoints)}) == 3


async def test_less_is_never_kept_than_another_process_has_seen(kept):
    """A gate beside the first one that is behind does not take back what the first one saw."""
    seen = read_file(kept.store)
    async with EmbeddedServer(kept.store, sync="2m"), observing(kept, "gate") as (log, place):
        less = structs.replace(seen, seq=3, digest="00")
        await witness.Witness(log, place).save(less)
        assert await witness.Witness(log, place).known(seen.log) == [seen]
    assert read_file(kept.store) == seen


@asynccontextmanager
async def observing(kept: Kept, role: str = "observer") -> AsyncIterator[tuple[JetStream, str]]:
    async with JetStream.connect(kept.store, role=role) as log:
        yield log, witness.place_of(kept.store, None)


async def test_a_log_that_becomes_shorter_ends_the_gate(kept, monkeypatch):
    """A stream that is deleted and made anew under a running gate is no log to go on with."""
    monkeypatch.setattr(watching, "EVERY_S", 0.05)
    async with EmbeddedServer(kept.store, sync="2m"):
        await declare_streams(kept.store)
        async with (
            observing(kept, "gate") as (log, place),
            watching.keeping(log, place) as watched,
            Ledger.connect(kept.store, role="admin") as admin,
        ):
            await admin.log.api.ask("$JS.API.STREAM.DELETE.LEDGER", b"")
            await declare_streams(kept.store)
            with pytest.raises(Unavailable, match="lost its end"):
                async with asyncio.timeout(60):
                    await asyncio.gather(*watched.ends)


async def test_a_log_that_is_made_anew_while_it_is_read_is_not_called_damaged(kept, monkeypatch):
    """Its facts are not in the new one, and the background reading meets that first."""
    monkeypatch.setattr(watching, "EVERY_S", 3600.0)
    scan = JetStream.scan_leader

    async with (
        EmbeddedServer(kept.store, sync="2m"),
        Ledger.connect(kept.store, role="admin") as admin,
    ):

        async def behind_a_new_log(log: JetStream, start: int) -> AsyncIterator[list]:
            await admin.log.api.ask("$JS.API.STREAM.DELETE.LEDGER", b"")
            await declare_streams(kept.store)
            async for page in scan(log, start):
                yield page

        monkeypatch.setattr(JetStream, "scan_leader", behind_a_new_log)
        async with observing(kept, "gate") as (log, place):
            keeper = watching._Keeper(log, witness.Witness(log, place), is_gate=True)
            await keeper.begin()
            with pytest.raises(Distrusted, match="lost its end"):
                await keeper.repeat(keeper.read_all)


async def test_what_the_gate_hears_of_is_not_read_again(kept, monkeypatch):
    """The witness takes facts that come next as heard of, reads others: the same digest."""
    monkeypatch.setattr(watching, "EVERY_S", 3600.0)
    scans: list[int] = []
    scan = JetStream.scan_leader

    def counted(port: JetStream, start: int):
        scans.append(start)
        return scan(port, start)

    async with EmbeddedServer(kept.store, sync="2m"):
        await declare_streams(kept.store)
        async with (
            Ledger.connect(kept.store, role="admin") as ledger,
            observing(kept, "gate") as (log, place),
        ):
            for number in range(3):
                await ledger.append(*said(FACTS + 1 + number))
            facts = [raw async for page in ledger.log.scan(1) for raw in page]
            monkeypatch.setattr(JetStream, "scan_leader", counted)
            async with watching.keeping(log, place, is_gate=True) as watched:
                watched.hear(facts[FACTS - 5 : FACTS + 1])
                watched.hear(facts[FACTS + 2 :])  # one is missing before it
                watched.hear(facts[:FACTS])
    assert scans == [FACTS + 2]
    seen = read_file(kept.store)
    expected = witness.LastSeen(seen.store)
    for raw in facts:
        expected = expected.add(raw)
    assert (seen.seq, seen.digest) == (expected.seq, expected.digest)


async def test_a_deposed_leader_does_not_end_the_gate(tmp_path: Path):
    """A node that was the leader until a moment ago may answer that the log ends earlier. The gate
    goes on if the log is whole again soon; here the fact that it has seen comes while it looks.
    """
    async with (
        cluster(tmp_path) as running,
        JetStream.connect(running.store.path, role="gate") as log,
        Ledger.connect(running.store.path) as desk,
    ):
        await desk.append(*said(1))
        place = witness.place_of(running.store.path, None)
        keeper = watching._Keeper(log, witness.Witness(log, place), is_gate=True)
        await keeper.begin()
        await keeper.look()
        keeper._seen = structs.replace(keeper._seen, seq=2)
        looking = asyncio.create_task(keeper.look())
        await asyncio.wait({looking}, timeout=0.2)
        await desk.append(*said(2))
        await looking


# -------------------------------------------------------------------- damage in the middle of a log

PLENTY = "x" * 400_000
#: The facts of a log of several blocks.
LARGE = 42
#: All facts of it: one is a policy.
ALL = LARGE + 1 + 30


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A store whose log has a policy and large messages, in several blocks, and small ones. As
    programs of others may, it records them without the header of our facts.
    """
    path = tmp_path_factory.mktemp("large") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jetstream, "_COVERED", {})
        asyncio.run(_large(path))
    return path


async def _large(path: Path) -> None:
    async with EmbeddedServer(path, sync="2m"):
        await declare_streams(path)
        async with Ledger.connect(path, role="admin") as ledger:
            for number in range(LARGE):
                await ledger.append(*said(number, f"large {number} {PLENTY}"))
                if number == 5:
                    await ledger.append(policy_slot("shop", 1), applied(POLICY))
            for number in range(LARGE, ALL - 1):
                await ledger.append(*said(number))


POLICY = """
[[rule]]
name = "two"
tools = ["*"]
then = "ask"
reason = "rot policy"
votes_needed = 2
voters = ["ana", "ben"]
"""


@pytest.fixture
def damaged(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that no gate has seen."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copytree(large, tmp_path / "store")
    return tmp_path / "store"


def test_a_log_with_a_hole_starts_no_worker(damaged: Path):
    """After a kill the broker drops the rest of a block with one rotten bit, and keeps the number
    of the last fact: a payment's claim could be taken again. The log is dense, so a hole is counted
    (seals 5.1). Whoever accepts it goes on with that hole, and with no other.
    """
    rot(damaged, "large 3 ", index=False)
    for kind in ("executor", "gate"):
        refused = approvals("up", "--workers", kind, "--json", store=damaged)
        assert refused.code == 1
        message = refused.problem["message"]
        found = re.search(rf"it lacks (\d+) of its {ALL} facts, on node", message)
        assert found, message
    with up(damaged, "--workers", "gate", "--accept-log"):
        record(damaged, said(1000))
    rot(damaged, "large 25 ", index=False)
    refused = approvals("up", "--workers", "gate", "--json", store=damaged)
    more = re.search(rf"it lacks (\d+) of its {ALL + 2} facts, on node", refused.problem["message"])
    assert more, refused.problem["message"]
    assert int(more[1]) > int(found[1])


@pytest.mark.parametrize("index", [True, False])
def test_a_policy_that_rotted_starts_no_worker(damaged: Path, index: bool):
    """One rotten bit in a policy's fact, older than what the witness reads again, and anybody might
    approve (market 5.2). `up` names the fact and the node, or what is missing after it.
    """
    rot(damaged, "rot policy", index=index)
    refused = approvals("up", "--workers", "executor", "--json", store=damaged)
    assert refused.code == 1
    missing = "ledger.shop._policy.1 is counted there and cannot be read" if index else "it lacks"
    assert missing in refused.problem["message"]
    assert "on node approvals-" in refused.problem["message"]


def test_whatever_lives_long_is_read_at_each_start():
    """All that is no thread's is: policies, tools, people, stops, with their ends. Uses of grants,
    budgets, and what was said of groups and of who is on call, are as many as calls or hours.
    """
    once = {slot for slot in FILLED_BY if slot[0].startswith("_") and slot[0] != BUDGET}
    once -= {
        (GRANT, "*", "*", "used", "#"),
        (PERSON, "*", "groups", "#", "#"),
        (ONCALL, "*", "#", "#"),
    }
    for slot in once:
        subject = f"{ROOT}.shop.{'.'.join(slot)}".translate(dict.fromkeys(b"*#%", "1"))
        assert any(matches(pattern, subject) for pattern in witness.LONG_LIVED), subject


@pytest.mark.parametrize("index", [True, False])
def test_a_policy_that_moved_to_another_subject_starts_no_worker(damaged: Path, index: bool):
    """In a message without headers the broker's checksum is over subject and payload together, so
    that a flipped bit in the length of the subject passes: the policy is no policy, and nothing is
    missing. The facts that live long have a digest of their own, of which the broker has a copy.
    """
    state = damaged.parent / "state"
    with up(damaged, "--workers", "gate"):
        while not list(state.rglob("*.json")):
            time.sleep(0.02)
    (one,) = (one for one in records(damaged) if one.subject.endswith("._policy.1"))
    flip(damaged / one.block, one.begin + 20, bit=16)
    if not index:
        forget_index(damaged)
    shutil.rmtree(state)
    refused = approvals("up", "--workers", "executor", "--json", store=damaged)
    assert refused.code == 1
    why = "_policy.1 is counted" if index else "stops or people are not those seen before"
    assert why in refused.problem["message"]


async def test_the_whole_log_is_read_while_workers_run(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A message in the middle that cannot be read is found by the reading in the background. It
    ends the gate and, by what the gate reports, other workers; `doctor` names fact, subject and
    node.
    """
    monkeypatch.setattr(watching, "EVERY_S", 0.05)
    rot(damaged, "large 3 ")
    place = witness.place_of(damaged, None)
    async with (
        EmbeddedServer(damaged, sync="2m"),
        JetStream.connect(damaged, role="gate") as log,
        JetStream.connect(damaged, role="executor") as other,
    ):
        await declare_streams(damaged)
        node = await log.leader()
        async with watching.keeping(other, place, is_gate=False) as beside:
            async with watching.keeping(log, place) as watched:
                async with asyncio.timeout(60):
                    await asyncio.wait(watched.ends, return_when=asyncio.FIRST_EXCEPTION)
                ended = [str(one.exception()) for one in watched.ends if one.done()]
                assert f"fact 4 cannot be read, on node {node}" in ended[0]
            with pytest.raises(Unavailable, match="fact 4 cannot be read"):
                async with asyncio.timeout(60):
                    await asyncio.gather(*beside.ends)
        found, alarms = await told_of(damaged, capsys)
        assert not found["log"]["ok"]
        assert node in found["log"]["detail"]
        assert "ledger.shop.t1.said.m3" in found["log"]["detail"]
        assert any("fact 4 cannot be read" in one for one in alarms)


async def test_how_far_the_log_was_read_is_told(damaged: Path, capsys, monkeypatch):
    """`doctor` says by when the gate's process has read the whole log, and from which node."""
    monkeypatch.setattr(watching, "EVERY_S", 0.05)
    place = witness.place_of(damaged, None)
    async with (
        EmbeddedServer(damaged, sync="2m"),
        JetStream.connect(damaged, role="gate") as log,
    ):
        await declare_streams(damaged)
        async with watching.keeping(log, place) as watched, asyncio.timeout(60):
            while (read := await witness.reading(log)) is None or read.until < ALL:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert not any(one.done() for one in watched.ends)
        found, _ = await told_of(damaged, capsys)
        assert f"all {ALL} facts were read from {await log.leader()} by " in found["log"]["detail"]


async def test_a_log_is_known_by_its_first_fact(damaged: Path, tmp_path: Path):
    """Settings, restarts and new facts leave its identity as it is (seals 5.2)."""
    found = set()
    for size in (None, 1 << 30):
        async with EmbeddedServer(damaged, sync="2m"):
            await declare_streams(damaged, max_bytes=size)
            async with Ledger.connect(damaged, role="admin") as ledger:
                found.add(await ledger.log.identity())
                answer = await ledger.log.api.call("STREAM.MSG.GET.LEDGER", {"seq": 1})
                await ledger.append(*said(2000 + bool(size)))
    first = answer["message"]
    whole, _, fraction = first["time"].removesuffix("Z").partition(".")
    at = int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 10**9
    at += int(fraction.ljust(9, "0"))
    data = base64.b64decode(first["data"])
    subject = first["subject"].encode()
    leaf = b"ayes fact 1\n" + (1).to_bytes(8) + at.to_bytes(8) + len(subject).to_bytes(2) + subject
    leaf += len(data).to_bytes(4) + hashlib.sha256(data).digest()
    assert found == {hashlib.sha256(leaf).hexdigest()[:32]}


async def told_of(store: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict, list[str]]:
    """As `told`, of a broker that runs."""
    capsys.readouterr()
    await check.doctor(session=Session(store, json=True))
    checks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    await check.status(session=Session(store, json=True))
    return {one["check"]: one for one in checks}, json.loads(capsys.readouterr().out)["alarms"]
