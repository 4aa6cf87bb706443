"""Logins with a name and a key: the program `ayes` and real connections, on a real broker."""

import asyncio
import base64
import json
import os
import re
import stat
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from brokers import running
from program import AYES, Ended, approvals, environment, killed_at_the_end, started
from until import until

from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.nats import connection as connections
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Login, LoginFile, RegisteredLogin, Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.keys import Key, has_signed
from ayes.ledger.nats.streams import SCOPED
from ayes.ops.broker import callout
from ayes.ops.broker.logins import Logins
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import apply_policy
from ayes.ops.cluster.local import LocalCluster
from ayes.ops.workers import reactions, working
from ayes.schemas import events as e
from ayes.schemas.base64url import base64url
from ayes.schemas.errors import BadFile, BadInput, BrokerRefused
from ayes.schemas.slots import ThreadRef
from ayes.schemas.tools import ToolSpec

ALLOW = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n'
PAY = ToolSpec(name="pay", schema='{"type": "object"}')


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with running(tmp_path / "store") as server:
        yield server


async def ayes(broker: EmbeddedServer, *words: object, **more: str) -> Ended:
    ended = await asyncio.to_thread(approvals, *words, store=broker.store.path, **more)
    assert ended.code == 0, ended.err
    return ended


async def added(broker: EmbeddedServer, name: str, *words: object) -> Path:
    """A new login's file."""
    file = broker.store.path.parent / f"{name}.login"
    await ayes(broker, "auth", "add", name, *words, "--out", file)
    return file


async def facts(broker: EmbeddedServer, name: str) -> list[e.Event]:
    async with Ledger.connect(broker.store.path, role="observer") as ledger:
        found = await ledger.reading.read(f"ledger._organisation._login.{name}.*")
    return [one.event for one in found]


async def refused(file: Path) -> str:
    connection = Connection(LoginFile.read(file).login)
    with pytest.raises(BrokerRefused) as problem:
        await connection.open(name="refused", timeout_s=60)
    return str(problem.value)


# ---------------------------------------------------------------------------------------- the keys


def test_keys_are_those_of_nkeys():
    """As the documents of `nk` show them: a seed, its public key, and a signature."""
    key = Key(seed="SUAKYRHVIOREXV7EUZTBHUHL7NUMHPMAS7QMDU3GTIUWEI5LDNOXD43IZY")
    assert key.public == "UD466L6EBCM3YY5HEGHJANNTN4LSKTSUXTH7RILHCKEQMQHTBNLHJJXT"
    answer = (
        "0CK1XmkxNfUGfudxliWTWeoETgIo23m9qowS9yTfYFSrjR8HgAW63jQ3NxPU_jG38hZPW61IZSun37N690CkDg"
    )
    assert has_signed(key.public, "Hello World!\n", answer)
    assert has_signed(key.public, "a", key.answer("a").decode())
    other = Key(seed="SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY")
    assert other.public == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    for public, nonce, said in (
        (other.public, "a", key.answer("a").decode()),
        (key.public, "b", key.answer("a").decode()),
        (key.public, "", key.answer("").decode()),
        (key.public, "a", ""),
        (key.public, "a", "é"),
        (key.public[:-1] + "A", "a", key.answer("a").decode()),
        ("", "a", key.answer("a").decode()),
    ):
        assert not has_signed(public, nonce, said), (public, nonce, said)
    for seed in ("SU", key.seed[:-1] + "A", key.public, "é"):
        with pytest.raises(BadInput, match="the seed of the login's key is damaged"):
            Key(seed=seed)


# --------------------------------------------------------------------------------------- signing on


async def test_a_program_signs_on_with_its_file(broker, tmp_path):
    """With AYES_LOGIN, or where a URL is taken; it may do what its role may. The fact says who."""
    file = await added(broker, "billing", "--role", "service", "--reason", "Bills.")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = LoginFile.read(file)
    [fact] = await facts(broker, "billing")
    assert isinstance(fact, e.LoginAdded)
    key = Key(seed=made.seed).public
    assert (fact.role, fact.key, fact.ends_at, fact.reason) == (
        "service", key, made.ends_at, "Bills."
    )  # fmt: skip
    async with Ledger.connect(url=str(file), role="service") as desk:
        await desk.declare("shop", PAY)
    request = ("request", "shop/t/one", "pay", "{}", "--json")
    ended = await asyncio.to_thread(approvals, *request, cwd=tmp_path, AYES_LOGIN=file.name)
    assert ended.code == 8, ended.err
    ended = await asyncio.to_thread(approvals, *request, "--url", "./billing.login", cwd=tmp_path)
    assert ended.code == 8, ended.err
    ended = await asyncio.to_thread(approvals, "show", "shop/t/one", AYES_LOGIN=str(file))
    assert ended.code == 0, ended.err
    ended = await asyncio.to_thread(
        approvals, "approve", "shop/t/one", "--as", "ana", AYES_LOGIN=str(file)
    )
    assert ended.code == 2
    assert (
        f"the login 'billing' in {file} has the role 'service', and this needs 'reviewer-ana'. "
        "Take a login's file with that role." in ended.err
    )


async def test_a_login_of_a_person_votes_as_that_person(broker):
    """Beside the password, and not as anybody else."""
    file = await added(broker, "ana-laptop", "--role", "reviewer", "--person", "ana")
    assert LoginFile.read(file).role == "reviewer-ana"
    async with JetStream.connect(url=str(file), role="reviewer-ana") as log:
        slot = ThreadRef("shop", "t").call("c").vote("ana")
        assert await log.connection.client.request(slot.subject, b"{}", timeout=60)
        denied: list[str] = []
        log.connection.on_denied(denied.append)
        other = ThreadRef("shop", "t").call("c").vote("ben").subject
        await log.connection.client.publish(other, b"{}")
        await until(lambda: denied == [other])


async def test_the_seed_is_in_the_login_s_file_alone(broker, tmp_path):
    """Not in the store, the server's configuration or log, the log of facts or a list of processes;
    and the server's configuration has no password of the service that answers it.
    """
    file = await added(broker, "billing", "--role", "observer")
    seed = LoginFile.read(file).seed
    # Not a fork of our process, whose command line it would have.
    watching = await asyncio.create_subprocess_exec(
        AYES, "watch", "--url", file, env=environment(), stdout=asyncio.subprocess.DEVNULL
    )
    async with killed_at_the_end(watching):
        await until(lambda: _connected(broker, "billing"))
        assert str(watching.pid) in {one.parent.name for one in _commands(bytes(file))}
        assert _commands(seed.encode()) == []
    kept = _files(broker.store.path)
    assert {"accounts.conf", "address.json", "server.log"} <= {one.name for one in kept}
    assert [one for one in kept if seed.encode() in one.read_bytes()] == []
    assert "user: callout" not in (broker.store.path / "accounts.conf").read_text()
    assert seed not in repr(LoginFile.read(file).login)


def _commands(text: bytes) -> list[Path]:
    """The processes whose command lines have this text."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found += [one] if text in one.read_bytes() else []
    return found


def _files(folder: Path) -> list[Path]:
    return [one for one in folder.rglob("*") if one.is_file()]


async def _connected(broker: EmbeddedServer, name: str) -> bool:
    listed = await ayes(broker, "auth", "list", "--json")
    return any(one["name"] == name and one["connections"] for one in listed.lines)


async def test_a_wrong_or_ended_key_is_refused(broker):
    """In one sentence: a key that nobody knows, one that is not the signature's, and one whose time
    is over, whose open connection ends then too.
    """
    file = await added(broker, "billing", "--role", "service", "--expires", "1h")
    made = LoginFile.read(file)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(made, seed=Key().seed)))
    assert "does not accept the key of the login 'billing'" in await refused(file)
    forged = Connection(made.login)
    forged._key = Key()  # the public key is that of the login, the signature another's
    with pytest.raises(BrokerRefused):
        await forged.open(name="forged", timeout_s=60)

    connection = Connection(made.login)
    await connection.open(name="soon over", timeout_s=60)
    store = broker.store
    address = store.read()
    over = msgspec.structs.replace(address.logins["billing"], ends_at=datetime.now(UTC))
    store.write(msgspec.structs.replace(address, logins={"billing": over}))
    file.write_bytes(msgspec.json.encode(made))
    assert "has ended, was revoked or got another key" in await refused(file)
    await connection.close()


async def test_a_login_ends_while_it_is_connected(broker, monkeypatch):
    """Its token ends with it, and the program gives up for good."""
    monkeypatch.setattr(connections, "REFUSED_S", 0.0)
    file = await added(broker, "brief", "--role", "observer", "--expires", "6s")
    connection = Connection(LoginFile.read(file).login)
    await connection.open(name="brief", timeout_s=60)
    async with asyncio.timeout(60):
        await connection.closed.wait()


# -------------------------------------------------------------------------------- changes and ends


@pytest.mark.parametrize("how", ["revoke", "rotate"])
async def test_what_is_revoked_or_rotated_loses_its_connections(broker, how):
    """All open connections of the old key end at once, and it is refused from then on."""
    file = await added(broker, "billing", "--role", "service", "--workspaces", "*")
    other = await added(broker, "desk", "--role", "service")
    old = file.with_name("old.login")
    old.write_bytes(file.read_bytes())
    async with AsyncExitStack() as stack:
        opened = []
        for one in (old, old, other):
            connection = Connection(LoginFile.read(one).login)
            await connection.open(name="open", timeout_s=60)
            stack.push_async_callback(connection.close)
            opened.append(connection)
        ends = [connection.client for connection in opened]
        begun = time.monotonic()
        words = ("--out", file) if how == "rotate" else ("--reason", "Copied.")
        ending = asyncio.create_task(ayes(broker, "auth", how, "billing", *words))
        await until(lambda: not ends[0].is_connected and not ends[1].is_connected)
        took_s = time.monotonic() - begun
        assert took_s < 30, f"the connections ended {took_s:.2f} s after `ayes auth {how}` began"
        await ending
        assert ends[2].is_connected
        assert ends[2].stats["reconnects"] == 0
    assert "does not accept the key of the login 'billing'" in await refused(old)
    events = await facts(broker, "billing")
    if how == "rotate":
        assert [type(one) for one in events] == [e.LoginAdded, e.LoginAdded]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        async with Ledger.connect(url=str(file), role="service") as desk:
            await desk.declare("shop", PAY)
    else:
        assert events[1:] == [msgspec.structs.replace(events[1], reason="Copied.")]
        assert isinstance(events[1], e.LoginRevoked)
        await added(broker, "billing2", "--role", "service")


async def test_a_revocation_that_was_not_recorded_is_made_up_for(broker):
    """The broker refuses the key already: a second `revoke` records what the first one did not."""
    await added(broker, "billing", "--role", "service")
    store = broker.store
    store.write(msgspec.structs.replace(store.read(), logins={}))
    await ayes(broker, "auth", "revoke", "billing")
    assert isinstance((await facts(broker, "billing"))[-1], e.LoginRevoked)
    again = await asyncio.to_thread(approvals, "auth", "revoke", "billing", store=store.path)
    assert (again.code, "there is no login 'billing'. There are: none." in again.err) == (2, True)


async def test_a_removed_person_has_no_login_left(broker):
    """Their keys end with their password; a new one is refused until they are added again."""
    file = await added(broker, "ana-laptop", "--role", "reviewer", "--person", "ana")
    connection = Connection(LoginFile.read(file).login)
    await connection.open(name="ana", timeout_s=60)
    await ayes(broker, "people", "remove", "Ana")
    await until(lambda: not connection.client.is_connected)
    await connection.close()
    await refused(file)
    assert isinstance((await facts(broker, "ana-laptop"))[-1], e.LoginRevoked)
    words = ("auth", "add", "ana2", "--role", "reviewer", "--person", "ana")
    ended = await asyncio.to_thread(approvals, *words, store=broker.store.path)
    assert (ended.code, "ayes people add ana" in ended.err) == (2, True)


async def test_the_list_says_who_is_connected(broker):
    """A table for people, and JSON."""
    assert "There are no logins with keys." in (await ayes(broker, "auth", "list")).err
    file = await added(broker, "billing", "--role", "service", "--expires", "30d")
    await added(broker, "desk", "--role", "observer")
    connection = Connection(LoginFile.read(file).login)
    await connection.open(name="listed", timeout_s=60)
    one, other = (await ayes(broker, "auth", "list", "--json")).lines
    assert (one["name"], one["role"], one["workspaces"]) == ("billing", "service", [])
    assert one["ends_at"] == LoginFile.read(file).ends_at.isoformat()
    assert (one["connections"], other["connections"]) == (1, 0)
    shown = (await ayes(broker, "auth", "list")).out
    assert "billing  service  all workspaces  ends 20" in shown
    assert "connected 1x" in shown
    await connection.close()


# -------------------------------------------------------------------------------------- workspaces


async def test_a_login_with_workspaces_reads_and_writes_in_these(broker):
    """By its file, of a program and of a person. The broker denies it every other workspace."""
    file = await added(broker, "billing", "--role", "service", "--workspaces", "shop,desk")
    assert LoginFile.read(file).workspaces == ("desk", "shop")
    async with Ledger.connect(url=str(file), role="service", name="billing") as desk:
        tool = await desk.declare("shop", PAY)
        ref = ThreadRef("shop", "t").call("c")
        await desk.request(ref, tool, "{}", requester="ben")
        with pytest.raises(BrokerRefused):
            await desk.declare("bank", PAY)
    await ayes(broker, "people", "add", "ana", "--workspaces", "shop")
    async with Ledger.connect(broker.store.path, role="reviewer-ana") as hers:
        assert (await hers.known_call(ref)).wish.tool == "pay"
    words = ("--role", "reviewer", "--person", "ana", "--workspaces", "shop")
    file = await added(broker, "ana-laptop", *words)
    async with Ledger.connect(url=str(file), role="reviewer-ana") as hers:
        assert (await hers.known_call(ref)).wish.tool == "pay"


async def test_an_executor_of_one_workspace_runs_its_own_tools(broker):
    """`work` with its file declares them as its own, in its workspace alone. While it is away they
    wait, and `status` says so. A revocation ends what it followed.
    """
    file = await added(broker, "shop-tools", "--role", "executor", "--workspaces", "shop")
    words = ("work", "executor", "--tools", "examples.shop_tools:tools", "--json")
    login, store = {"AYES_LOGIN": str(file)}, broker.store.path
    ended = await asyncio.to_thread(approvals, *words, "-w", "bank", **login)
    assert ended.code != 0
    assert "shop-tools may read the workspaces shop alone" in ended.err, ended.err
    async with (
        Ledger.connect(store, role="operator") as operator,
        Ledger.connect(store) as service,
        working(reactions(["gate"]), store=store),
    ):
        await apply_policy(operator, "shop", ALLOW, "a test")
        with started(*words, "-w", "shop", **login) as worker:
            assert json.loads(worker.stdout.readline()) == {"workers": ["executor"]}
            asked = {"customer": "ben"}
            call = await service.request("shop/t/one", "find_orders", asked, requester="rita")
            assert call.wish.run_by == "shop-tools"
            done = await service.until(call.ref, lambda one: one.status is Status.RETURNED, 60)
            assert done.status is Status.RETURNED
        call = await service.request("shop/t/two", "find_orders", asked, requester="rita")
        await service.until(call.ref, lambda one: one.status is Status.APPROVED, 60)
        shown = (await ayes(broker, "status")).out
        assert re.search("shop-tools@executor .*nobody listens", shown), shown
    await ayes(broker, "auth", "revoke", "shop-tools")
    assert "shop-tools@executor" not in (await ayes(broker, "status")).out


async def test_a_login_with_workspaces_is_answered_with_them(broker, monkeypatch):
    """The callout asks for the permissions of that login and of no other workspace, and so for a
    person with a password. A person's key has workspaces of that person, or is refused.
    """
    asked = []
    plain = callout.permissions

    def permissions(role, **more):
        asked.append((role, more.get("login"), more.get("workspaces")))
        return plain(role, inbox=more["inbox"])

    monkeypatch.setattr(callout, "permissions", permissions)
    store, end = broker.store, datetime.now(UTC) + timedelta(days=1)
    key, hers = Key(), Key()
    logins = {
        "billing": RegisteredLogin("service", key.public, end, end, ("desk", "shop")),
        "ana-laptop": RegisteredLogin("reviewer-ana", hers.public, end, end),
    }
    address = await _with(broker, "reviewer-ana")
    scopes = {"reviewer-ana": ("shop",)}
    store.write(msgspec.structs.replace(address, logins=logins, scopes=scopes))
    issuer = callout.Issuer()

    def answer(nonce="n", **options):
        nats = {"server_id": {"id": "N"}, "user_nkey": key.public}
        nats |= {"client_info": {"nonce": nonce}, "connect_opts": options}
        body = base64url(json.dumps({"nats": nats}).encode())
        return _of(callout.answer_to(f"x.{body}.x".encode(), store, issuer))["nats"]

    for given in (
        answer(nkey=key.public, sig=key.answer("n").decode()),
        answer(user="reviewer-ana", **{"pass": address.passwords["reviewer-ana"]}),
    ):
        assert _of(given["jwt"])["aud"] == SCOPED
    refusal = answer(nkey=hers.public, sig=hers.answer("n").decode())["error"]
    assert refusal == "the login ana-laptop has workspaces that are not those of reviewer-ana"
    assert asked == [
        ("service", "billing", ("desk", "shop")),
        ("reviewer-ana", "reviewer-ana", ("shop",)),
    ]
    assert store.login("reviewer-ana").workspaces == ("shop",)


def _of(token: str) -> dict[str, Any]:
    """The content of a signed token."""
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


async def _with(broker: EmbeddedServer, role: str):
    await broker.ensure_account(role)
    return broker.store.read()


async def test_a_person_gets_other_workspaces(broker):
    """Recorded, and in the broker's registry; what is not said stays, and open connections end."""
    store = broker.store
    await ayes(broker, "people", "add", "ana")
    connection = Connection(store.login("reviewer-ana"))
    await connection.open(name="ana", timeout_s=60)
    row = (await ayes(broker, "people", "add", "ana", "--workspaces", "shop,desk", "--json")).one
    assert row["workspaces"] == ["desk", "shop"]
    await until(lambda: connection.client.stats["reconnects"] > 0)
    await connection.close()
    assert store.login("reviewer-ana").workspaces == ("desk", "shop")
    async with Logins.of(store) as pool:
        before = await pool.as_reviewer("ana")
        assert await pool.as_reviewer("ana") is before
        await ayes(broker, "people", "add", "ana", "--workspaces", "shop")
        assert (await pool.as_reviewer("ana")).log.connection.login.workspaces == ("shop",)
        await ayes(broker, "people", "add", "ana", "--workspaces", "desk,shop")
    for words in (["release", "ana"], ["add", "Ana"], ["list"]):
        await ayes(broker, "people", *words)
        async with Ledger.connect(store.path, role="observer") as ledger:
            assert (await ledger.people()).workspaces("ana") == ("desk", "shop")
        assert store.read().scope("reviewer-ana") == ("desk", "shop")
    words = ("--role", "reviewer", "--person", "ana", "--workspaces", "bank", "--out", os.devnull)
    ended = await asyncio.to_thread(approvals, "auth", "add", "a1", *words[:-2], store=store.path)
    assert "ana has the workspaces desk, shop only." in ended.err
    await ayes(broker, "people", "add", "ana", "--workspaces", "*")
    assert store.read().scope("reviewer-ana") == ()


# ------------------------------------------------------------------------------- bad input, no TLS


BAD_INPUT = [
    ("add a.b --role service", "login 'a.b' cannot be used"),
    ("add Gate --role service", "'Gate' is the name of a role. Give the login another name."),
    ("add reviewer-x --role service", "'reviewer-x' is the name of a role."),
    ("add scoped --role service", "'scoped' is the name of a role."),
    ("add x --role boss", "a login has no role 'boss'. There are: service, executor, model,"),
    ("add x --role gate", "a login has no role 'gate'."),
    ("add x --role reviewer", "--person and --role reviewer go together"),
    ("add x --role service --person ana", "--person and --role reviewer go together"),
    ("add x --role reviewer --person a.b", "reviewer 'a.b' cannot be used"),
    ("add x --role service --workspaces a.b", "workspace 'a.b' cannot be used"),
    ("add x --role service --workspaces ,", "workspace '' cannot be used"),
    ("add x --role service --expires 400d", "--expires '400d' is too long: 366d at most."),
    ("add client --role executor --workspaces shop", "tools of 'client' are run by services."),
    ("add executor --role executor --workspaces shop", "'executor' is the name of a role."),
    ("add reads --role service", "'reads' is the name of a role."),
    ("add known --role service --out new", "there is a login 'known' already. `ayes auth rotate"),
    ("add Known --role service --out new", "there is a login 'known' already."),
    ("add x --role service --out known.login", "known.login is there already. Name another file"),
    ("add x --role service --out no/x.login", "there is no directory no for x.login."),
    ("rotate x", "there is no login 'x'. There are: known."),
    ("revoke x", "there is no login 'x'. There are: known."),
]


async def test_bad_input_is_told_and_changes_nothing(broker, monkeypatch, within):
    """A sentence each: what is wrong, where, and what to do."""
    await added(broker, "known", "--role", "service")
    before = broker.store.read()
    folder = broker.store.path.parent
    for line, said in BAD_INPUT:
        ended = await asyncio.to_thread(
            approvals, "auth", *line.split(), store=broker.store.path, cwd=folder
        )
        assert (ended.code, ended.out) == (2, ""), line
        assert said in ended.err, (line, ended.err)
    assert broker.store.read() == before
    assert not (folder / "new").exists()


async def test_a_copy_of_a_part_of_the_store_makes_no_logins(broker, tmp_path):
    """Only the store of the broker itself has the registry."""
    copy = Store(tmp_path / "copy")
    copy.path.mkdir(mode=0o700)
    copy.write(msgspec.structs.replace(broker.store.read(), passwords={}))
    words = ("auth", "add", "x", "--role", "service")
    ended = await asyncio.to_thread(approvals, *words, store=copy.path, cwd=tmp_path)
    assert (ended.code, "is not the store of the broker itself" in ended.err) == (2, True)


def test_a_file_that_is_no_login_is_said_to_be_none(tmp_path):
    """Where it is missing, and where it is something else."""
    with pytest.raises(BadInput, match=r"the login's file .* cannot be read: No such file"):
        Login.parse(str(tmp_path / "none"))
    (tmp_path / "other").write_text('{"url": "nats://127.0.0.1"}')
    with pytest.raises(BadFile, match=r"not the file of a login: .* missing required field `name`"):
        Login.parse(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("login", "is_refused"),
    [
        (Login("nats://nats.example:4222", "service", "p"), True),
        (Login("nats://127.0.0.1:1,nats://10.0.0.7:4222", "billing", seed=Key().seed), True),
        (Login("nats://nats.example:4222"), False),
        (Login("nats://127.0.0.1:4222", "service", "p"), False),
        (Login("nats://[::1]:4222,nats://localhost:1", "service", "p"), False),
        (Login("tls://nats.example:4222", "service", "p"), False),
    ],
)
async def test_nothing_that_signs_on_leaves_this_machine_without_tls(login, is_refused):
    """Refused before anything is sent; who shows nothing may connect."""
    if not is_refused:
        login.check_line()
        return
    with pytest.raises(BadInput, match=r"is on another machine, .* begin the URL with tls://"):
        await Connection(login).open(name="far")


# --------------------------------------------------------------------- where the broker lists users


@pytest.mark.long
async def test_a_cluster_lists_its_logins(tmp_path):
    """By their public keys, from its next start on: the command says so. The file has the CA's
    certificate in it. Revoking it takes the key out of the list.
    """
    path = tmp_path / "cluster"
    file, scoped = tmp_path / "billing.login", tmp_path / "ana.login"

    async def ayes(*words: object, code: int = 0) -> Ended:
        ended = await asyncio.to_thread(approvals, *words, store=path)
        assert ended.code == code, ended.err
        return ended

    async with LocalCluster(path, sync="2m") as cluster:
        await cluster.declare(max_bytes=2 << 30)
        made = await ayes("auth", "add", "billing", "--role", "service", "--out", file)
        assert "This broker lists its logins: write accounts.conf of each server anew" in made.err
        assert "Until then this key is refused." in made.err
        words = ("--role", "reviewer", "--person", "ana", "--workspaces", "shop", "--out", scoped)
        await ayes("auth", "add", "ana-laptop", *words)
        login = LoginFile.read(file)
        assert login.url.startswith("tls://")
        assert login.ca.startswith("-----BEGIN CERTIFICATE-----")
        await refused(file)
    async with LocalCluster(path, sync="2m"):
        file.write_bytes(_moved(file, path))
        for one in sorted(path.glob("n*/accounts.conf")):
            assert f"nkey: {Key(seed=login.seed).public}" in one.read_text()
            assert login.seed not in one.read_text()
        async with Ledger.connect(url=str(file), role="service", timeout_s=60) as desk:
            await desk.declare("shop", PAY)
            listed = (await ayes("auth", "list", "--json")).lines
            assert [(one["name"], one["connections"]) for one in listed] == [
                ("ana-laptop", 0),
                ("billing", 1),
            ]
        connection = Connection(LoginFile.read(_written(scoped, _moved(scoped, path))).login)
        await connection.open(name="scoped", timeout_s=60)
        await connection.close()
        gone = await ayes("auth", "revoke", "billing", "--reason", "Copied.")
        assert "Until then the key is accepted." in gone.err
    async with LocalCluster(path, sync="2m"):
        file.write_bytes(_moved(file, path))
        await refused(file)


def _moved(file: Path, store: Path) -> bytes:
    """A login's file with the address of now: nodes on one machine may get other ports."""
    made = LoginFile.read(file)
    return msgspec.json.encode(msgspec.structs.replace(made, url=Store(store).read().url))


def _written(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file
