"""`ayes backup` and `ayes restore`."""

import asyncio
import hashlib
import os
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from brokers import running
from cluster import cluster
from disk import small_disk
from long import sampled
from msgspec import structs
from packing import in_stream, let_remove, pack, removed
from program import approvals
from receivers import endpoint
from shop import rule
from until import recorded, until

from ayes.consumers.gate import Gate
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.webhooks import endpoints as webhook_endpoints
from ayes.consumers.webhooks.endpoints import EndpointFile
from ayes.ledger.clients.services import Ledger
from ayes.ledger.files import PIECE_BYTES, fetched, keep
from ayes.ledger.log import RawMessage
from ayes.ledger.nats import streams
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.link_key import link_key
from ayes.ops.audit import backup as backup_module
from ayes.ops.audit.backup import back_up, check, restore
from ayes.ops.inspection import witness
from ayes.ops.tokens import AccessFile
from ayes.ops.visitors import Role
from ayes.ops.workers import working
from ayes.projections.pending import key
from ayes.schemas.content import attached
from ayes.schemas.errors import (
    AlreadyFilled,
    BadFile,
    BadInput,
    BrokerAway,
    BrokerRefused,
    NewerLog,
)
from ayes.schemas.events import Said
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

#: `make cluster` restores into three nodes as well.
WHOLE = bool(os.environ.get("AYES_TEST_CALLS"))
POLICY = rule("soon", "ask", "expires_in_s = 6", tools="soon") + rule("money", "ask", tools="*")


async def everything(log: JetStream) -> list[RawMessage]:
    return [raw async for page in log.scan(1) for raw in page]


async def write(ledger: Ledger, writer: int, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        slot = ThreadRef("shop", f"t{writer}").said(f"m{number}")
        await ledger.append(slot, Said(role="user", text="Hello. " * 50))


async def reaches(ledger: Ledger, seq: int) -> None:
    while await ledger.log.last_seq() < seq:  # noqa: ASYNC110 - nobody is told of it
        await asyncio.sleep(0.01)


@asynccontextmanager
async def one_server(path: Path) -> AsyncIterator[Path]:
    async with running(path) as server:
        yield server.store.path


@asynccontextmanager
async def three_nodes(path: Path) -> AsyncIterator[Path]:
    async with cluster(path) as site:
        yield site.store.path


@pytest.mark.parametrize(
    "elsewhere",
    [
        one_server,
        pytest.param(three_nodes, marks=pytest.mark.long),
    ],
)
async def test_a_log_in_use_is_backed_up_and_goes_on_elsewhere(tmp_path, elsewhere):
    """While writers write, one server is backed up; elsewhere the facts have the same numbers and
    times, and their files the same bytes; the queue is as the facts have it, a deadline of before
    is kept, and new calls are asked about. No decision is made twice.
    """
    file = tmp_path / "backup"
    soon, kept, new = (CallRef("shop", "calls", name) for name in ("soon", "kept", "new"))
    people = [("gate", Gate()), ("queue", PendingProjector())]
    async with (
        running(tmp_path / "one") as server,
        Ledger.connect(server.store.path, role="admin") as admin,
        Ledger.connect(server.store.path) as service,
    ):
        await admin.append(policy_slot("shop", 1), applied(POLICY))
        for name in ("soon", "pay"):
            await service.declare("shop", ToolSpec(name=name, schema='{"type": "object"}'))
        async with working(people, store=server.store.path):
            for ref, tool in ((soon, "soon"), (kept, "pay")):
                await service.request(ref, tool, {}, requester="rita")
                await recorded(service, ref.gated.subject)
            picture = attached(os.urandom(3 * PIECE_BYTES + 7), "image/png")
            await admin.log.bucket("views").overwrite("ana", b"[]")
            shown = (await service.say("shop/picture", (picture,), message="m1")).event.text
            stop = asyncio.Event()
            writers = [asyncio.create_task(write(service, one, stop)) for one in range(8)]
            await reaches(service, 500)
            seal = await back_up(admin.log, file)
            await reaches(service, seal.last_seq + 1)
            stop.set()
            await asyncio.gather(*writers)
        before = await everything(admin.log)
    assert check(file).seal == seal
    assert 500 <= seal.facts == seal.last_seq < len(before)
    async with elsewhere(tmp_path / "elsewhere") as there:
        async with JetStream.connect(there, role="admin") as log:
            assert await restore(log, file, digest=seal.sha256[:12]) == seal
            assert await everything(log) == before[: seal.last_seq]
            assert await fetched(log, "shop", shown) == {shown[0]: picture}
            assert (await log.bucket("views").get("ana"))[0] == b"[]"
        async with (
            working(people, store=there),
            Ledger.connect(there) as service,
        ):
            async with asyncio.timeout(60):
                assert (await service.decision(soon)).status == "expired"
                await service.request(new, "pay", {}, requester="rita")
                while set(await service.log.pending.entries()) != {key(kept), key(new)}:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            verified = await asyncio.to_thread(approvals, "replay", "--verify", store=there)
            assert verified.code == 0, verified
            facts = [fact.slot.subject for fact in await service.log.read("ledger.shop.calls.>")]
            assert len(facts) == len(set(facts)) == 7


@pytest.mark.parametrize("elsewhere", sampled([one_server, three_nodes], one_server))
async def test_a_packed_log_is_as_it_was_elsewhere(tmp_path, elsewhere):
    """With what left its stream, in a log of its level alone. Used slots stay used, and more may
    leave there.
    """
    file, thread, other = tmp_path / "backup", ThreadRef("shop", "t1"), ThreadRef("shop", "t2")
    async with (
        running(tmp_path / "one") as server,
        Ledger.connect(server.store.path, role="admin") as admin,
    ):
        await let_remove(admin.log)
        for number in range(900):
            one = other if number % 100 == 99 else thread
            await admin.append(one.said(f"m{number}"), Said(role="user", text=str(number)))
        await removed(admin, thread)
        before, left = await everything(admin.log), await in_stream(admin.log)
        seal = await back_up(admin.log, file)
    assert (seal.facts, seal.packed, seal.last_seq) == (len(left), 891, len(before))
    assert check(file).seal == seal
    async with (
        elsewhere(tmp_path / "elsewhere") as there,
        JetStream.connect(there, role="admin") as log,
    ):
        with pytest.raises(BadInput, match="of a log of level 2, and this ledger is of level 1"):
            await restore(log, file)
        assert await log.last_seq() == 0
        await let_remove(log)
        assert await restore(log, file) == seal
        assert await everything(log) == before
        assert await in_stream(log) == left
        assert _may_leave(await log.api.call("STREAM.INFO.LEDGER"))
        ledger = Ledger.on(log, "admin")
        with pytest.raises(AlreadyFilled):
            await ledger.append_exclusive(thread.said("m1"), Said(role="user", text="again"))
        await removed(ledger, other)
        assert len(await in_stream(log)) == len(left) + 1 - 9
        assert (await everything(log))[: len(before)] == before
        assert await witness.difference(log, "elsewhere") is None


def _may_leave(stream) -> bool:
    return streams.is_packed(stream) and not stream["config"]["deny_purge"]


# ----------------------------------------------------------------------------------------- refusals


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A backup of a log with a few hundred facts of some size, and a file."""
    folder = tmp_path_factory.mktemp("before")

    async def make() -> None:
        async with (
            running(folder / "store") as server,
            Ledger.connect(server.store.path, role="admin") as admin,
        ):
            for number in range(300):
                said = Said(role="user", text=str(number) * 500)
                await admin.append(ThreadRef("shop", "t1").said(f"m{number}"), said)
            await keep(admin.log, "shop", os.urandom(100_000))
            await back_up(admin.log, folder / "backup")

    asyncio.run(make())
    return folder / "backup"


@pytest.fixture
def backup(made: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may spoil."""
    return Path(shutil.copy(made, tmp_path))


@pytest.fixture
async def log(store: Path) -> AsyncIterator[JetStream]:
    """An empty ledger."""
    async with JetStream.connect(store, role="admin") as log:
        yield log


SPOILED = {
    "empty": lambda whole: b"",
    "its first half": lambda whole: whole[: len(whole) // 2],
    "without its last byte": lambda whole: whole[:-1],
    "without its last line": lambda whole: whole[: whole.rstrip().rindex(b"\n")],
    "without a piece": lambda whole: whole[:2000] + whole[2100:],
    "with a piece twice": lambda whole: whole[:2100] + whole[2000:],
    "with another byte": lambda whole: whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
    "with another first line": lambda whole: whole.replace(b'"discard":"new"', b'"discard":"old"'),
    "with another last line": lambda whole: whole.replace(b'"facts":300', b'"facts":301'),
    "something else": lambda whole: b"{}\n" * 1000,
}


async def test_a_torn_or_altered_backup_is_refused(store, log, backup):
    """In one sentence, and nothing is restored."""
    whole = backup.read_bytes()
    for how, spoil in SPOILED.items():
        backup.write_bytes(spoil(whole))
        assert backup.read_bytes() != whole, how
        with pytest.raises(BadFile, match=rf"^{backup}: it (is|was) [^.]*\.$"):
            await restore(log, backup)
        assert await log.last_seq() == 0, how
    refused = await asyncio.to_thread(approvals, "restore", backup, store=store)
    assert refused.code == BadFile.exit_code
    assert refused.err == f"error: {backup}: it is torn, or not a backup of `ayes backup`.\n"


async def test_a_snapshot_of_other_facts_is_refused(log, backup, tmp_path):
    """The broker's copy of it is removed, and the ledger is empty and usable."""
    seal = check(backup).seal
    other = structs.replace(seal, digest=hashlib.sha256().hexdigest())
    body = backup.read_bytes()[: seal.bytes]
    backup.write_bytes(body + b"\n" + msgspec.json.encode(other) + b"\n")
    with pytest.raises(BrokerRefused, match="is not the one that was backed up"):
        await restore(log, backup)
    assert await log.last_seq() == 0
    backup.write_bytes(body + b"\n" + msgspec.json.encode(seal) + b"\n")
    assert await restore(log, backup) == seal


async def test_a_log_of_before_is_restored_into_one_whose_facts_may_leave(log, backup):
    """That is how a log comes to its level. A restore that fails leaves the empty one as it was."""
    await let_remove(log)
    config = (await log.api.call("STREAM.INFO.LEDGER"))["config"]
    seal = check(backup).seal
    other, body = structs.replace(seal, digest=hashlib.sha256().hexdigest()), backup.read_bytes()
    backup.write_bytes(body[: seal.bytes] + b"\n" + msgspec.json.encode(other) + b"\n")
    with pytest.raises(BrokerRefused, match="is not the one that was backed up"):
        await restore(log, backup)
    assert (await log.api.call("STREAM.INFO.LEDGER"))["config"] == config
    backup.write_bytes(body)
    assert (await restore(log, backup), seal.packed) == (seal, 0)
    assert _may_leave(await log.api.call("STREAM.INFO.LEDGER"))
    before = await everything(log)
    await removed(Ledger.on(log, "admin"), ThreadRef("shop", "t1"))
    assert (await everything(log))[:300] == before
    assert len(await in_stream(log)) < 10


async def test_what_the_broker_cannot_read_restores_nothing(log, backup):
    """A snapshot that only the broker finds spoiled: that of the log, or of the files."""
    seal = check(backup).seal
    for part, stream in enumerate(("LEDGER", "FILES")):
        body = bytearray(backup.read_bytes()[: seal.bytes])
        end = sum(seal.parts[: part + 1])
        body[end - 200 : end] = bytes(200)
        other = structs.replace(seal, sha256=hashlib.sha256(body).hexdigest())
        spoiled = backup.with_name("spoiled")
        spoiled.write_bytes(bytes(body) + b"\n" + msgspec.json.encode(other) + b"\n")
        with pytest.raises(BrokerRefused, match=rf"refuses STREAM.RESTORE.{stream}"):
            await restore(log, spoiled)
        assert await log.last_seq() == 0


async def test_a_log_whose_store_of_files_was_deleted_is_backed_up(tmp_path):
    """The facts are not lost with it. Where they are restored there is an empty one again."""
    for file in (tmp_path / "first", tmp_path / "second"):
        async with (
            running(tmp_path / f"of {file.name}") as server,
            Ledger.connect(server.store.path, role="admin") as admin,
        ):
            if file.name == "second":
                await restore(admin.log, tmp_path / "first")
                assert await admin.log.last_seq() == 1
                await keep(admin.log, "shop", b"a file")
            else:
                await admin.append(ThreadRef("shop", "t1").said("m1"), Said(role="user", text="?"))
                await admin.log.api.call("STREAM.DELETE.FILES")
            await back_up(admin.log, file)
        assert len(check(file).streams) == (3 if file.name == "second" else 2)


async def test_only_an_empty_ledger_is_restored_into(log, backup):
    """What a ledger holds is never replaced."""
    await restore(log, backup)
    with pytest.raises(BadInput, match="this ledger holds 300 facts"):
        await restore(log, backup)
    assert await log.last_seq() == 300


async def test_nothing_is_restored_under_workers(store, log, backup):
    """An executor would run at once what was approved before the backup."""

    async def listens():
        return (await log.api.call("CONSUMER.INFO.LEDGER.gate")).get("push_bound")

    async with working([("gate", Gate())], store=store):
        await until(listens)
        with pytest.raises(BadInput, match="workers listen to this ledger: gate"):
            await restore(log, backup)
    assert await log.last_seq() == 0


async def test_another_backup_or_a_log_of_a_newer_program_is_refused(log, backup, monkeypatch):
    """Whoever kept the digest finds out that the file was exchanged; and before anything is done to
    the ledger.
    """
    with pytest.raises(BadInput, match="It is another backup"):
        await restore(log, backup, digest="0123")
    monkeypatch.setattr(streams, "PACKED_LEVEL", 0)
    with pytest.raises(NewerLog, match="this log is at level 1"):
        await restore(log, backup)
    assert await log.last_seq() == 0


async def test_a_backup_is_private_and_replaces_no_file(log, tmp_path):
    """Its file has its name only when it is whole; what is there stays."""
    file = tmp_path / "new"
    await back_up(log, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    with pytest.raises(BadInput, match="exists already"):
        await back_up(log, file)
    assert file.read_bytes() == before
    with pytest.raises(BadInput, match="No such file or directory"):
        await back_up(log, tmp_path / "no" / "folder")


async def test_a_backup_that_fails_leaves_nothing(log, tmp_path):
    """The broker refuses it: one sentence, and no file."""
    folder = tmp_path / "backups"
    folder.mkdir()
    await log.api.call("STREAM.DELETE.LEDGER")
    with pytest.raises(BrokerRefused, match=r"STREAM\.SNAPSHOT"):
        await back_up(log, folder / "backup")
    assert list(folder.iterdir()) == []


async def test_a_backup_of_a_log_that_is_packed_meanwhile_is_refused(log, tmp_path, monkeypatch):
    """If it took so long that facts may have left before they were copied; else it has them all."""
    await let_remove(log)
    ledger, thread = Ledger.on(log, "admin"), ThreadRef("shop", "t1")
    for number in range(9):
        await ledger.append(thread.said(f"m{number}"), Said(role="user", text="?"))
    call = log.api.call

    async def packed_meanwhile(what, *args, **named):
        found = await call(what, *args, **named)
        if what == "STREAM.SNAPSHOT.LEDGER":
            await pack(ledger, thread)
        return found

    monkeypatch.setattr(log.api, "call", packed_meanwhile)
    seal = await back_up(log, tmp_path / "in time")
    assert (seal.facts, seal.packed, seal.last_seq) == (9, 0, 9)
    monkeypatch.setattr(backup_module, "REMOVED_AFTER", timedelta(0))
    await ledger.append(thread.said("more"), Said(role="user", text="?"))
    with pytest.raises(BrokerAway, match="as it was packed meanwhile"):
        await back_up(log, tmp_path / "late")
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["in time"]


async def test_a_backup_without_room_leaves_nothing(log, backup, tmp_path):
    """In one sentence, and the ledger is as it was."""
    await restore(log, backup)
    with small_disk(tmp_path / "small") as disk:
        disk.leave(4096)
        with pytest.raises(BadInput, match="backup cannot be written: No space left on device"):
            await back_up(log, disk.path / "backup")
        assert list(disk.path.iterdir()) == []
    assert await log.last_seq() == 300


# ------------------------------------------------------------------------------- beside the log


async def test_what_lies_beside_the_log_comes_back(tmp_path):
    """API tokens, webhooks with their secrets, the settings and the key of links are in a
    backup, private as they were, also where the new store has a token of its own (B84).
    """
    file, old, new = tmp_path / "backup", tmp_path / "old", tmp_path / "new"
    async with running(old) as server:
        store = server.store.path
        secret, _ = AccessFile(server.store).add_token("crm", Role.SERVICE, timedelta(days=30))
        key = link_key(server.store)
        EndpointFile(store / webhook_endpoints.NAME).add(endpoint("https://crm.example/hook"))
        (store / "ayes.toml").write_text("# of ours\n")
        before = (store / webhook_endpoints.NAME).read_bytes()
        made = await asyncio.to_thread(approvals, "backup", file, "--json", store=store)
        assert made.code == 0, made
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with running(new) as server:
        store = server.store.path
        own, _ = AccessFile(server.store).add_token("own", Role.SERVICE, timedelta(days=1))
        assert link_key(server.store) != key
        done = await asyncio.to_thread(
            approvals, "restore", file, "--digest", made.one["sha256"], store=store
        )
        assert done.code == 0, done
        assert "links.key" in done.err
        for each, name in ((secret, "crm"), (own, "own")):
            assert (visitor := AccessFile(server.store).visitor_of(each)), name
            assert visitor.name == name
        assert link_key(server.store) == key
        assert (store / webhook_endpoints.NAME).read_bytes() == before
        for name in ("console.json", "links.key", "ayes.toml", "webhooks.json"):
            assert stat.S_IMODE((store / name).stat().st_mode) == 0o600
        # On another machine, after a restore by URL.
        (store / "links.key").unlink()
        done = await asyncio.to_thread(approvals, "restore", file, "--only-files", store=store)
        assert (done.code, link_key(server.store)) == (0, key)
        (store / "ayes.toml").write_text("# of others\n")
        done = await asyncio.to_thread(approvals, "restore", file, "--only-files", store=store)
        assert done.code == 2
        assert "ayes.toml is there already, and is another" in done.err


async def test_a_backup_with_files_of_another_is_refused(log, backup, store):
    """Whoever can write the file can seal it anew, and add a token of theirs or a path: the digest
    that was kept elsewhere finds it out, and no other file is ever written.
    """
    seal = check(backup).seal
    spoiled = backup.with_name("spoiled")
    for beside, why in (
        ({"console.json": b"{}"}, "It is another backup"),
        ({"../../evil": b"x"}, r"it holds \.\./\.\./evil, which is not ours"),
    ):
        line = msgspec.json.encode(beside) + b"\n"
        body = backup.read_bytes()[: sum(seal.parts[:-1])] + line
        other = structs.replace(
            seal,
            bytes=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
            parts=(*seal.parts[:-1], len(line)),
            beside=tuple(beside),
        )
        spoiled.write_bytes(body + b"\n" + msgspec.json.encode(other) + b"\n")
        with pytest.raises((BadInput, BadFile), match=why):
            await restore(log, spoiled, digest=seal.sha256[:12], store=Store(store))
    assert await log.last_seq() == 0
