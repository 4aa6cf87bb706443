"""What was seen of a log is kept outside of its store, and a log that is not that one any more
starts no gate.
"""

import asyncio
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from cluster import cluster
from msgspec import structs
from program import approvals, last_seq, record, up

from ayes.ledger.in_memory import Memory
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.services import Ledger
from ayes.ops.broker import witness
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.commands import check
from ayes.ops.commands.command import Session
from ayes.schemas import events as e
from ayes.schemas.errors import Unavailable
from ayes.schemas.slots import ThreadRef

THREAD = ThreadRef("shop", "t1")
FACTS = 41


def said(number: int, text: str = "amount 1") -> tuple:
    return THREAD.said(f"m{number}"), e.Said(role="user", text=text)


class Kept:
    """A store that a gate ran on, as it was after 25 facts and after all, and what was seen of
    it.
    """

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
            shutil.rmtree(there)
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
    seen = witness.load(Store(kept.store))
    assert (seen.seq, len(seen.digest)) == (FACTS + 1, 64)


@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_a_log_that_is_shorter_or_other_than_it_was_starts_no_gate(kept, change, capsys):
    """`up` refuses it in one sentence and says how to go on; without workers `doctor` and `status`
    tell (C7).
    """
    change(kept)
    refused = approvals("up", "--json", store=kept.store)
    assert refused.code == 1
    assert "is not what it was: " in refused.problem["message"]
    assert "--accept-log" in refused.problem["message"]
    found, alarms = asyncio.run(told(kept.store, capsys))
    assert not found["log"]["ok"]
    assert "before" in found["log"]["detail"]
    assert any(one.startswith("the log is not what it was: ") for one in alarms), alarms


async def told(store: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict, list[str]]:
    """What the doctor and status say of a broker without workers."""
    async with EmbeddedServer(store):
        await declare_streams(store)
        assert await check.doctor(session=Session(store, json=True)) == 1
        checks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        await check.status(session=Session(store, json=True))
        return {one["check"]: one for one in checks}, json.loads(capsys.readouterr().out)["alarms"]


def test_workers_beside_a_broker_refuse_it_too(kept):
    """`up --workers none` starts and says so in its log; `work` refuses, for an executor would run
    again what was run (C7).
    """
    older_copy(kept)
    with up(kept.store, "--workers", "none"):
        assert "the log is not what it was" in (kept.store.parent / "up.log").read_text()
        for kind in ("gate", "executor"):
            refused = approvals("work", kind, "--json", store=kept.store)
            assert (refused.code, "is not what it was" in refused.problem["message"]) == (1, True)


def test_whoever_runs_it_may_go_on_deliberately(kept):
    """With --accept-log the log is taken as it is; from then on it is the one that was seen."""
    older_copy(kept)
    with up(kept.store, "--workers", "gate", "--accept-log"):
        assert last_seq(kept.store) == 25
        record(kept.store, said(100))
    with up(kept.store, "--workers", "gate"):
        assert last_seq(kept.store) == 26
    assert witness.load(Store(kept.store)).seq == 26


def test_what_was_seen_and_cannot_be_read_starts_no_gate(kept):
    """Whoever breaks the file must not get further than who breaks the log."""
    file = witness.file_of(Store(kept.store))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("{")
    with pytest.raises(Unavailable, match=r"cannot be read: .*\.json: .* --accept-log"):
        witness.load(Store(kept.store))
    refused = approvals("up", "--json", store=kept.store)
    assert (refused.code, "cannot be read" in refused.problem["message"]) == (1, True)


async def test_only_the_end_of_a_long_log_is_compared(monkeypatch):
    """Two checkpoints are kept, so the comparison begins at the earlier one and covers what came
    since.
    """
    monkeypatch.setattr(witness, "CHECKPOINT", 4)
    memory = Memory()
    ledger = Ledger(memory, e.Author(kind="service", name="tests"))
    for number in range(15):
        await ledger.append(*said(number))
    seen = witness.Seen("here")
    begins = []
    async for batch in memory.raw(1, until_end=True):
        for raw in batch:
            seen = seen.add(raw)
            begins.append(seen.begin[0])
    assert begins == [0] * 7 + [4] * 4 + [8] * 4
    assert len({seen.digest, *(digest for _, digest in seen.checkpoints)}) == 3


def test_less_is_never_kept_than_another_process_has_seen(kept):
    """A gate beside the first one that is behind does not take back what the first one saw."""
    store = Store(kept.store)
    seen = witness.load(store)
    witness.save(store, witness.Seen(seen.store, seen.created, 3, seen.recorded_at, "00"))
    assert witness.load(store) == seen


async def test_a_log_that_becomes_shorter_ends_the_gate(kept, monkeypatch):
    """A stream that is deleted and made anew under a running gate is no log to go on with."""
    monkeypatch.setattr(witness, "EVERY_S", 0.05)
    async with EmbeddedServer(kept.store) as server:
        await declare_streams(kept.store)
        async with (
            witness.keeping(server.store) as watched,
            Ledger.connect(kept.store, role="admin") as admin,
        ):
            await admin.log.api.ask("$JS.API.STREAM.DELETE.LEDGER", b"")
            await declare_streams(kept.store)
            with pytest.raises(Unavailable, match="lost its end"):
                async with asyncio.timeout(20):
                    await asyncio.gather(*watched.ends)


async def test_what_the_gate_hears_of_is_not_read_again(kept, monkeypatch):
    """The witness takes the facts that come next as they are heard of, reads the others, and comes
    to the same digest.
    """
    monkeypatch.setattr(witness, "EVERY_S", 3600.0)
    scans: list[int] = []
    scan = JetStream.scan

    def counted(port: JetStream, start: int, **more):
        scans.append(start)
        return scan(port, start, **more)

    async with EmbeddedServer(kept.store) as server:
        await declare_streams(kept.store)
        async with Ledger.connect(kept.store, role="admin") as ledger:
            for number in range(3):
                await ledger.append(*said(FACTS + 1 + number))
            facts = [raw async for page in ledger.log.scan(1) for raw in page]
            monkeypatch.setattr(JetStream, "scan", counted)
            async with witness.keeping(server.store) as watched:
                watched.hear(facts[FACTS - 5 : FACTS + 1])
                watched.hear(facts[FACTS + 2 :])  # one is missing before it
                watched.hear(facts[:FACTS])
    assert scans == [FACTS + 2]
    seen = witness.load(server.store)
    expected = witness.Seen(seen.store, seen.created)
    for raw in facts:
        expected = expected.add(raw)
    assert (seen.seq, seen.digest) == (expected.seq, expected.digest)


async def test_a_deposed_leader_does_not_end_the_gate(tmp_path: Path):
    """A node that was the leader until a moment ago may answer that the log ends earlier. The gate
    goes on if the log is whole again soon; here the fact that it has seen comes while it looks.
    """
    async with (
        cluster(tmp_path) as running,
        JetStream.connect(running.store.path, role="observer") as log,
        Ledger.connect(running.store.path) as desk,
    ):
        await desk.append(*said(1))
        keeper = witness._Keeper(log, running.store)
        await keeper.look()
        keeper._seen = structs.replace(keeper._seen, seq=2)
        looking = asyncio.create_task(keeper.look())
        await asyncio.wait({looking}, timeout=0.2)
        await desk.append(*said(2))
        await looking
