"""`ayes cluster up`: a cluster on this machine."""

import asyncio
import json
import os
import signal
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import cluster
from disk import small_disk
from program import approvals, started

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats import streams
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.streams import LEAST_BYTES, described, info
from ayes.ops.broker import server
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.cluster import local
from ayes.ops.cluster.certificates import issue, new_authority
from ayes.ops.cluster.local import LocalCluster
from ayes.ops.inspection.nodes import copies, trouble
from ayes.schemas.errors import BadInput, BrokerRefused, StoreHeld, Unavailable
from ayes.schemas.events import Said
from ayes.schemas.slots import ThreadRef

STREAMS = ("LEDGER", "TIMERS", "PARKED", "KV_pending")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The ready message of a running cluster."""
    store = tmp_path_factory.mktemp("cluster") / "store"
    command = [
        "cluster",
        "up",
        "--store",
        store,
        "--people",
        "ana",
        "--max-bytes",
        "2GiB",
        "--json",
    ]
    with started(*command) as process:
        assert process.stdout
        assert process.stderr
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield json.loads(line)


def test_its_directory_is_a_store_for_every_command(ready):
    """A call is requested, judged, approved and shown as with one server."""
    store = Path(ready["store"])
    with started("work", "gate", "queue", "--store", store, "--json") as workers:
        assert workers.stdout
        assert json.loads(workers.stdout.readline())["workers"] == ["gate", "queue"]
        tools = store.parent / "tools.toml"
        tools.write_text("[[tool]]\nname = 'pay'\nschema = '{\"type\": \"object\"}'\n")
        assert approvals("tool", "declare", tools, "-w", "shop", store=store).code == 0
        asked = approvals("request", "shop/t1/c1", "pay", "{}", "--requester", "rita", store=store)
        assert asked.code == 8, asked.err
        voted = approvals("approve", "shop/t1/c1", "--as", "ana", "--yes", store=store)
        assert voted.code == 0, voted.err
        assert approvals("wait", "shop/t1/c1", store=store).code == 0
    assert "Approved" in approvals("show", "shop/t1/c1", store=store).out
    assert approvals("doctor", store=store).code == 0


def test_its_log_can_be_one_that_is_packed(tmp_path, ready):
    """`ayes pack` refuses the log of a cluster that was begun without the option."""
    store = tmp_path / "store"
    with started("cluster", "up", "--packed", "--store", store, "--json") as process:
        assert process.stdout
        assert process.stdout.readline()
        packed = approvals("pack", "--settled-for", "1h", "--json", store=store)
    assert (packed.code, json.loads(packed.out)["packed"]) == (0, 0), packed.err
    refused = approvals("pack", "--settled-for", "1h", store=ready["store"])
    assert refused.code == 2, refused.err


async def test_a_log_that_is_there_cannot_become_one_that_is_packed(tmp_path):
    async with cluster(tmp_path) as nodes:
        with pytest.raises(BadInput, match=r"--packed"):
            await nodes.declare(packed=True)


@pytest.mark.long
async def test_a_node_that_was_killed_comes_back(ready):
    """On its port and with its part of the log; meanwhile the others take facts."""
    url, pid = ready["nodes"]["n2"].values()
    node = Store(Path(ready["store"]) / "n2")
    async with Ledger.connect(ready["store"], role="admin") as admin, asyncio.timeout(90):
        os.kill(pid, signal.SIGKILL)
        slot = ThreadRef("shop", "t2").said("m1")
        assert await admin.append_until_acknowledged(slot, Said("user", "Hello.")) is None
        while server_of(node) in {0, pid}:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.1)
        while await trouble_of(admin):  # noqa: ASYNC110 - nor for this
            await asyncio.sleep(0.1)
    assert node.read().url == url


def server_of(store: Store) -> int:
    """The process of the server, as the lock says; 0 if there is none at the moment."""
    _, *children = (store.path / "lock").read_text().split()
    return int(children[0]) if children else 0


async def trouble_of(admin: Ledger) -> str:
    try:
        return trouble(copies(await described(admin.log.api)))
    except Unavailable:
        return "no leader"


def test_the_default_is_what_production_needs(ready):
    """Three copies, a flush before each acknowledgement, and a lost node is soon noticed."""
    assert len(ready["nodes"]) == 3

    async def replicas() -> dict[str, int]:
        async with Ledger.connect(ready["store"], role="admin") as ledger:
            found = {name: await info(ledger.log.api, f"STREAM.INFO.{name}") for name in STREAMS}
        return {name: one["config"]["num_replicas"] for name, one in found.items()}

    assert asyncio.run(replicas()) == dict.fromkeys(STREAMS, 3)
    for name in ready["nodes"]:
        config = (Path(ready["store"]) / name / "server.conf").read_text()
        assert 'sync_interval: "always"' in config
        assert 'ping_interval: "3s"\nping_max: 2\nwrite_deadline: "5s"\n' in config
        assert '  ping_interval: "2s"\n  ping_max: 2\n' in config


def test_all_of_it_is_private(ready):
    """Keys, passwords and logs are their owner's alone."""
    for file in (path for path in Path(ready["store"]).rglob("*") if "jetstream" not in path.parts):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_a_reviewer_without_an_account_is_told_how_to_get_one(ready):
    """Accounts are the same on each node, so none is made while they run."""
    refused = approvals("approve", "shop/t1/c1", "--as", "ben", "--yes", store=ready["store"])
    assert refused.code == 2
    assert "no account 'reviewer-ben'" in refused.err
    assert "ayes cluster up --people ben" in refused.err


async def test_a_second_one_in_the_same_directory_is_refused(ready, monkeypatch):
    monkeypatch.setattr(server, "_DYING_S", 0.05)
    with pytest.raises(StoreHeld, match="is held by process"):
        await LocalCluster(ready["store"]).__aenter__()


def test_one_server_does_not_start_in_its_directory(ready):
    alone = approvals("up", "--store", ready["store"])
    assert alone.code == BadInput.exit_code
    assert "is the store of a cluster. Start that with `ayes cluster up`" in alone.err


async def test_it_does_not_start_in_the_directory_of_one_server(tmp_path):
    async with EmbeddedServer(tmp_path / "store", sync="2m"):
        pass
    with pytest.raises(BadInput, match="is the store of one server"):
        await LocalCluster(tmp_path / "store").__aenter__()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_number_of_nodes_without_a_use_is_refused(tmp_path, size):
    """Four nodes survive the loss of one, as three do."""
    with pytest.raises(BadInput, match=f"has 3 or 5 nodes, not {size}"):
        LocalCluster(tmp_path, size=size)


@pytest.mark.long
async def test_it_starts_again_with_what_it_had(tmp_path):
    """Passwords, authority and ports outlast a stop; a new reviewer gets an account."""
    async with LocalCluster(tmp_path / "store", people=["ana"], sync="2m") as first:
        before, authority = first.store.read(), (first.store.path / "ca.pem").read_bytes()
    assert first.store.read().url == ""
    async with LocalCluster(tmp_path / "store", people=["ben"], sync="2m") as again:
        now = again.store.read()
        assert now.url == before.url
        assert now.passwords.items() > before.passwords.items()
        assert (again.store.path / "ca.pem").read_bytes() == authority
        connection = Connection(again.store.login("reviewer-ben"))
        await connection.open(name="ben")
        await connection.close()


async def test_clients_verify_the_nodes(ready, tmp_path):
    """A client does not send its password to nodes whose authority is not the one it knows."""
    stranger = Store(tmp_path)
    stranger.write(Store(ready["store"]).read())
    stranger.write_private("ca.pem", new_authority().certificate)
    with pytest.raises(BrokerRefused, match="certificate"):
        await Ledger.connect(stranger.path).__aenter__()


@pytest.mark.parametrize("host", ["nats1.example.org", "127.0.0.1", "::1"])
async def test_a_certificate_is_for_its_hosts_only(tmp_path, host):
    """By name or by address; and it is valid by the strict rules of Python 3.13."""
    authority = new_authority()
    own = issue(authority, "n1", ["nats1.example.org", "127.0.0.1", "::1"])
    assert "PRIVATE" not in repr(own)
    (tmp_path / "own.pem").write_bytes(own.certificate + own.key)
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.load_cert_chain(tmp_path / "own.pem")
    ours = ssl.create_default_context(cadata=authority.certificate.decode())
    ours.verify_flags |= ssl.VERIFY_X509_STRICT

    async def end(_: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        to.transport.abort()  # a close would wait for the client's answer

    async with await asyncio.start_server(end, "127.0.0.1", ssl=theirs) as one:
        port = one.sockets[0].getsockname()[1]
        _, to = await asyncio.open_connection("127.0.0.1", port, ssl=ours, server_hostname=host)
        to.transport.abort()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=ours, server_hostname="localhost")


async def test_what_the_nodes_refuse_is_said_once_the_wait_for_a_leader_is_over(
    tmp_path, monkeypatch
):
    """For example that their disk has no room for the streams."""

    async def refuse(*_: object, **__: object) -> None:
        raise BrokerRefused("insufficient storage resources available")

    monkeypatch.setattr(local, "declare_streams", refuse)
    monkeypatch.setattr(local, "_ELECTION_S", 0.0)
    with pytest.raises(BrokerRefused, match="insufficient storage"):
        await LocalCluster(tmp_path / "store").declare()


async def test_who_else_asks_for_room_keeps_nobody_from_the_setup(tmp_path, monkeypatch):
    """Neither a program at the same moment, which wants other limits, nor one that was killed in
    that moment; and nothing of either stays.
    """
    another = {
        "name": "AYES-ROOM", "storage": "file", "num_replicas": 3, "max_bytes": LEAST_BYTES,
    }  # fmt: skip
    others = [another]
    remove = streams._remove

    async def and_another_comes(requests, stream):
        was_there = await remove(requests, stream)
        if others:
            await requests.call("STREAM.CREATE.AYES-ROOM", others.pop())
        return was_there

    async with (
        cluster(tmp_path) as nodes,
        Ledger.connect(nodes.store.path, role="admin") as admin,
    ):
        requests = admin.log.api
        await requests.call("STREAM.DELETE.KV_views")
        with monkeypatch.context() as patch:
            patch.setattr(streams, "_remove", and_another_comes)
            await streams.ensure(requests, replicas=3)
        assert others == []
        assert await info(requests, "STREAM.INFO.KV_views") is not None
        assert await info(requests, "STREAM.INFO.AYES-ROOM") is None
        await requests.call("STREAM.CREATE.AYES-ROOM", another)
        await streams.ensure(requests, replicas=3)
        assert await info(requests, "STREAM.INFO.AYES-ROOM") is None


@pytest.mark.long
@pytest.mark.parametrize("gib", [1, 24])
async def test_a_small_disk_is_shared_among_the_streams_of_a_cluster(tmp_path, gib):
    """The nodes say in other words than one server that they have no room. They learn late what the
    others have promised; who promised more than there is refuses each later change.
    """
    with small_disk(tmp_path / "disk", gib << 30) as disk:
        async with LocalCluster(disk.path / "cluster", sync="2m") as nodes:
            await nodes.declare()
            async with Ledger.connect(nodes.store.path, role="admin") as admin:
                for name in streams.streams():
                    await streams.change_stream(admin.log.api, name, {"metadata": {"seen": "1"}})
                found = await info(admin.log.api, "STREAM.INFO.LEDGER")
    assert found is not None
    assert LEAST_BYTES <= found["config"]["max_bytes"] < gib << 30
