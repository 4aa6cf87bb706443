"""The desk: a page of what waits in one request, the same as the bucket gives. Against a real
broker, whatever becomes of either.
"""

import asyncio
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
import structlog
from brokers import running
from cable import Cable, delete, put, question
from nats.aio.client import Client
from nats.aio.msg import Msg
from program import environment
from structlog.testing import capture_logs
from until import until

from ayes.consumers import pending_client, pending_service
from ayes.consumers.pending_client import SERVICE, SUBJECT, PageRequest
from ayes.interfaces.cli import decide
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats import streams
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker import callout as signing_on
from ayes.ops.broker import server as servers
from ayes.ops.broker.accounts import Callout, Permissions, accounts_config, permissions
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.workers import reactions, working
from ayes.projections import pending
from ayes.projections.call_filter import NO_FILTER, CallFilter
from ayes.projections.pending import Page
from ayes.schemas.errors import BrokerAway, BrokerRefused, Unavailable

AYES = Path(sys.executable).with_name("ayes")
TOOLS = ("refund", "ship", "ship-abroad")


@asynccontextmanager
async def open_desk(store: Path | None = None, *, url: str | None = None) -> AsyncIterator[None]:
    """A desk in this process, as `working` has it."""
    async with Ledger.connect(store, url=url, role="queue") as ledger:
        serving = asyncio.create_task(pending_service.serve(ledger.log))
        try:
            yield
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


async def asks(ledger: Ledger, most: int = 50, chosen: CallFilter = NO_FILTER) -> pending.Listed:
    """What the desk answers, and nothing else; waits until there is one."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await pending_client._asked(ledger, most, chosen)
            except Unavailable:
                await asyncio.sleep(0.02)


@pytest.fixture
async def observer(store: Path) -> AsyncIterator[Ledger]:
    async with Ledger.connect(store, role="observer") as ledger:
        yield ledger


@pytest.fixture
def said() -> Iterator[list[Any]]:
    """The warnings."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with capture_logs() as lines:
        yield lines
    structlog.configure(**before)


@asynccontextmanager
async def plain_client(store: Path, role: str) -> AsyncIterator[Client]:
    """nats-py, and nothing of ours."""
    login = Store(store).login(role)
    client = await nats.connect(
        login.url,
        user=login.user,
        password=login.password,
        inbox_prefix=f"_INBOX.{role}._".encode(),
    )
    try:
        yield client
    finally:
        await client.close()


async def answered(client: Client, body: bytes) -> bytes:
    """What a plain client is answered, once there is somebody who does."""
    async with asyncio.timeout(60):
        while True:
            with suppress(nats.errors.NoRespondersError):
                answer = await client.request(SUBJECT, body, timeout=60)
                assert not answer.headers, answer.headers
                return answer.data


async def refused(client: Client, body: bytes) -> tuple[str, str]:
    """Code and sentence of an error; nothing is said beside it."""
    answer = await client.request(SUBJECT, body, timeout=60)
    assert answer.data == b""
    headers = answer.headers or {}
    return headers["Nats-Service-Error-Code"], headers["Nats-Service-Error"]


# ----------------------------------------------------------------------- the same result either way

CHOICES = [
    NO_FILTER,
    CallFilter("shop"),
    CallFilter(thread="acme/t1"),
    CallFilter("shop", "acme/t1"),
    CallFilter(tool="ship*"),
    CallFilter("acme", tool="refund"),
    CallFilter("nobody"),
    CallFilter("sho"),
]


async def fill(bucket: Any, many: int, size: Callable[[int], int] = lambda seq: 0) -> None:
    """Asked in no order, of two workspaces and three tools; of some more people are asked, and some
    were decided.
    """
    for seq in random.Random(5).sample(range(many), many):
        entry = question(seq, workspace=("acme", "shop")[seq % 2], size=size(seq))
        entry = msgspec.structs.replace(entry, tool=TOOLS[seq % 3])
        await put(bucket, entry)
        if seq % 5 == 0:
            await put(bucket, msgspec.structs.replace(entry, asked_as_well=("lea",)))
        if seq % 7 == 0:
            _, revision = await bucket.get(pending.key(entry.ref))
            assert await bucket.delete(pending.key(entry.ref), revision)


async def test_the_desk_and_the_bucket_say_the_same(store: Path, admin: Ledger, observer: Ledger):
    """Whatever is chosen, so many as are wanted, and how many there are; none there is an answer
    too (B72).
    """
    async with open_desk(store):
        assert (
            await asks(observer)
            == ([], 0, [])
            == await pending_client._read(observer, 50, NO_FILTER)
        )
        await fill(admin.log.pending, 60)
        for chosen in CHOICES:
            for most in (1, 7, 50, 1_000):
                found = await asks(observer, most, chosen)
                assert found == await pending_client._read(observer, most, chosen), (chosen, most)
        oldest, waiting, _ = await asks(observer, 3)
        assert ([one.seq for one in oldest], waiting) == ([1, 2, 3], 51)
        assert await pending_client.oldest(observer, 5, CallFilter("acme.t1")) == ([], 0, [])
        # More than a page has are read, with and without a limit.
        for most in (None, 1_001):
            assert await pending_client.oldest(observer, most) == await pending_client._read(
                observer, None, NO_FILTER
            )


async def test_large_entries_come_on_several_pages(store: Path, admin: Ledger, observer: Ledger):
    """As many as fit into a message, then those behind; together it is what the bucket holds, byte
    for byte.
    """
    await fill(
        admin.log.pending, 24, size=lambda seq: 400_000 * (seq % 4 == 0) + 60_000 * (seq % 4 == 1)
    )
    there = await admin.log.pending.entries()
    async with open_desk(store), plain_client(store, "service") as client:
        for chosen in CHOICES[:6]:
            found = await asks(observer, 1_000, chosen)
            assert found == await pending_client._read(observer, 1_000, chosen)
        raw, asked, lengths = [], {"most": 9}, []
        while True:
            page = json.loads(await answered(client, json.dumps(asked).encode()))
            lengths.append(len(page["entries"]))
            raw += page["entries"]
            if not page["more"]:
                break
            asked["after"] = page["after"]
        assert [one["seq"] for one in raw] == sorted(
            json.loads(value)["seq"] for value in there.values()
        )
        assert all(
            json.loads(there[f"{one['workspace']}.{one['thread']}.{one['call']}"]) == one
            for one in raw
        )
        assert len(set(lengths)) > 1
        assert max(lengths) == 9


async def test_entries_keep_their_bytes(store: Path, admin: Ledger, observer: Ledger):
    """Also what this version knows nothing of: spaces, and fields of a newer one."""
    value = pending.encode(question(1)).replace(b'"tool":', b'"newer": [1, 2],  "tool" : ')
    assert await admin.log.pending.put("acme.t1.c1", value, 0)
    async with open_desk(store), plain_client(store, "model") as client:
        assert await asks(observer) == ([question(1)], 1, [])
        page = msgspec.json.decode(await answered(client, b""), type=Page)
        assert [bytes(one) for one in page.entries] == [value]


async def test_an_entry_that_no_answer_holds_is_read(store: Path, admin: Ledger, observer: Ledger):
    """It fills a message by itself: the desk names it, and whoever asks for it reads the bucket."""
    await put(admin.log.pending, question(1))
    large = question(2)
    bare = len(pending.encode(large))
    large = msgspec.structs.replace(large, arguments="x" * ((1 << 20) - bare - 300))
    await put(admin.log.pending, large)
    async with open_desk(store), plain_client(store, "observer") as client:
        oldest, waiting, _ = await asks(observer, 1)
        assert ([one.seq for one in oldest], waiting) == ([1], 2)
        code, why = await refused(client, b'{"after":{"seq":1,"key":"acme.t1.c1"}}')
        assert code == "413"
        assert why.startswith("acme.t1.c2 has 1,04")
        assert await pending_client.oldest(observer, 2) == ([question(1), large], 2, [])


# ---------------------------------------------------------------------------------- what is refused

NO_REQUESTS = [
    b"most=5",
    b"[]",
    b"null",
    b'{"most":0}',
    b'{"most":-1}',
    b'{"most":1001}',
    b'{"most":1e300}',
    b'{"most":"5"}',
    b'{"most":null}',
    b'{"limit":5}',
    b'{"lim\\r\\nit":5}',
    b'{"\\ud800":5}',
    b'{"workspace":null}',
    b'{"workspace":"a.b"}',
    b'{"workspace":"acme.>"}',
    b'{"thread":"t1"}',
    b'{"thread":"acme/t1/c1"}',
    b'{"after":7}',
    b'{"after":{"seq":7}}',
    b'{"after":{"seq":7,"key":"acme.t1.c7","more":1}}',
    b"\xff\xfe",
    b"{" * 10_000,
]


async def test_what_is_no_request_is_told_why(store: Path, admin: Ledger, observer: Ledger):
    """In one line, with the code 400; the next request is answered."""
    await put(admin.log.pending, question(1))
    async with open_desk(store), plain_client(store, "service") as client:
        await asks(observer)
        for body in NO_REQUESTS:
            code, why = await refused(client, body)
            assert code == "400", body
            assert why.startswith("not a valid request for a page: "), body
            assert "\n" not in why
        assert await asks(observer) == ([question(1)], 1, [])


async def test_an_answer_that_is_sent_to_the_desk_does_no_harm(
    store: Path, admin: Ledger, observer: Ledger
):
    """Somebody names the desk as where an answer goes. It is no request, there is nobody to tell
    so, and the next one is answered.
    """
    await put(admin.log.pending, question(1))
    async with open_desk(store), plain_client(store, "observer") as client:
        await asks(observer)
        for subject in ("$SRV.PING", SUBJECT, "$JS.API.INFO"):
            await client.publish(subject, b"", reply=SUBJECT)
        await client.publish(SUBJECT, b"{}")
        assert await asks(observer) == ([question(1)], 1, [])


UNREADABLE = [
    b"",
    b"{}",
    b"no",
    b"[]",
    b'{"waiting":1,"entries":[{}],"more":false,"after":null}',
    b'{"waiting":1,"entries":[],"more":0,"after":null}',
    b'{"waiting":1,"entries":7,"more":false,"after":null}',
]


async def test_an_answer_that_cannot_be_read_is_as_good_as_none(
    store: Path, admin: Ledger, observer: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """Of a newer program, say: then the bucket is read. So it is when the answer is an error, or
    none comes in time.
    """
    patience_s = pending_client.PATIENCE_S
    await put(admin.log.pending, question(1))
    async with plain_client(store, "queue") as other:
        answers: list[bytes | dict[str, str] | None] = []

        async def answer(msg: Msg) -> None:
            match answers.pop():
                case bytes(data):
                    await msg.respond(data)
                case dict(headers):
                    await other.publish(msg.reply, b"", headers=headers)

        await other.subscribe(SUBJECT, cb=answer)
        answers.append(b"it can be reached")  # from another account only after a moment
        async with asyncio.timeout(60):
            while answers:
                with suppress(Unavailable):
                    await observer.log.ask(SUBJECT, b"", 30)
        for said in [
            *UNREADABLE,
            {"Nats-Service-Error-Code": "500", "Nats-Service-Error": "oh"},
            None,
        ]:
            answers.append(said)
            # On a busy machine an answer may take longer than a client usually waits.
            monkeypatch.setattr(pending_client, "PATIENCE_S", patience_s if said is None else 30)
            begun = time.monotonic()
            assert await pending_client.oldest(observer, 5) == ([question(1)], 1, []), said
            assert answers == []
        assert time.monotonic() - begun > patience_s


# ------------------------------------------------------------ no service answers, or not any more


async def test_where_nobody_answers_the_bucket_is_read_at_once(ledger: Ledger):
    """Of the twin in memory, and of a broker on which no queue is kept."""
    await put(ledger.log.pending, question(2))
    await put(ledger.log.pending, question(1))
    with pytest.raises(BrokerAway, match="no service answers"):
        await pending_client._asked(ledger, 1, NO_FILTER)
    assert await pending_client.oldest(ledger, 1) == ([question(1)], 2, [])


@asynccontextmanager
async def at_work(store: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`ayes work queue`, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(AYES, "work", "queue", "--store", str(store)),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_the_command_shows_the_same_whatever_becomes_of_the_desk(
    store: Path, admin: Ledger, observer: Ledger, capsys: pytest.CaptureFixture[str]
):
    """Answered by `ayes work queue`; that process stands still, is killed, and the bucket is read
    (B72).
    """
    for seq in range(5):
        await put(admin.log.pending, question(seq))

    async def shown() -> list[int]:
        await decide.pending("acme", watch=False, limit=3, session=Session(store, json=True))
        return [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()]

    assert await shown() == [0, 1, 2]
    async with at_work(store) as process:
        await asks(observer)
        assert await shown() == [0, 1, 2]
        await delete(admin.log.pending, 0)
        os.kill(process.pid, signal.SIGSTOP)
        assert await shown() == [1, 2, 3]
        os.kill(process.pid, signal.SIGCONT)
        process.kill()
        await process.wait()
        await delete(admin.log.pending, 1)
        assert await shown() == [2, 3, 4]
    with pytest.raises(Unavailable):
        await pending_client._asked(observer, 3, NO_FILTER)


async def test_whoever_keeps_the_queue_answers(store: Path, admin: Ledger, observer: Ledger):
    """`ayes up` and `ayes work queue` start it so; it ends with them."""
    await put(admin.log.pending, question(1))
    async with working(reactions(["queue"]), store=store):
        assert await asks(observer) == ([question(1)], 1, [])
    with pytest.raises(Unavailable):
        await pending_client._asked(observer, 1, NO_FILTER)
    async with working(reactions(["gate"]), store=store):
        await asyncio.sleep(0.3)
        with pytest.raises(Unavailable):
            await pending_client._asked(observer, 1, NO_FILTER)


async def stats(client: Client, desks: int) -> dict[str, int]:
    """How many requests each desk has had, by its id; waits until there are so many desks."""
    async with asyncio.timeout(60):
        while True:
            inbox = client.new_inbox()
            answers = await client.subscribe(inbox)
            await client.publish(f"$SRV.STATS.{SERVICE}", b"", reply=inbox)
            await asyncio.sleep(0.3)
            found = [
                json.loads((await answers.next_msg()).data) for _ in range(answers.pending_msgs)
            ]
            await answers.unsubscribe()
            if len(found) == desks:
                return {one["id"]: one["endpoints"][0]["num_requests"] for one in found}


async def test_two_desks_share_the_requests(store: Path, admin: Ledger, observer: Ledger):
    """Each request is answered by one of them, and when one goes the other answers all."""
    await put(admin.log.pending, question(1))
    async with plain_client(store, "operator") as client, open_desk(store):
        await asks(observer)
        async with open_desk(store):
            before = await stats(client, 2)
            for _ in range(60):
                assert await asks(observer) == ([question(1)], 1, [])
            after = await stats(client, 2)
            shares = [after[one] - before[one] for one in before]
            assert sum(shares) >= 60
            assert min(shares) > 0
        for _ in range(20):
            assert await asks(observer, 1) == ([question(1)], 1, [])
        await stats(client, 1)


# ------------------------------------------------------------------------------- never a wrong page


async def test_a_page_holds_what_was_written_before_it_was_asked_for(
    store: Path, admin: Ledger, observer: Ledger
):
    """Put or deleted by one, asked for by another straight after, two hundred times."""
    async with open_desk(store):
        await asks(observer)
        for seq in range(200):
            await put(admin.log.pending, question(seq))
            assert await asks(observer) == ([question(seq)], 1, [])
            await delete(admin.log.pending, seq)
            assert await asks(observer) == ([], 0, [])


async def pages_after(
    observer: Ledger, expected: list[int], away: Callable[[], Awaitable[None]]
) -> None:
    """From then on the desk answers with what is there, or not at all; and soon it answers."""
    await away()
    refusals = 0
    async with asyncio.timeout(60):
        while True:
            try:
                oldest, waiting, _ = await pending_client._asked(observer, 50, NO_FILTER)
            except Unavailable:
                refusals += 1
                await asyncio.sleep(0.01)
            else:
                assert ([one.seq for one in oldest], waiting) == (expected, len(expected))
                if refusals:
                    return


async def test_a_desk_that_was_cut_off_says_nothing_old(
    store: Path, admin: Ledger, observer: Ledger
):
    """What was asked and decided meanwhile is missing in its inbox when it is back: until that has
    caught up it does not answer.
    """
    login = Store.login_for("queue", store=store)
    cable = Cable(int(login.url.rpartition(":")[2]))
    async with cable.laid() as port:
        for seq in range(4):
            await put(admin.log.pending, question(seq))
        async with open_desk(url=f"nats://queue:{login.password}@127.0.0.1:{port}"):
            await asks(observer)
            for seq in range(3):

                async def away(seq: int = seq) -> None:
                    await cable.cut()
                    await delete(admin.log.pending, seq)
                    await put(admin.log.pending, question(10 + seq))
                    await cable.mend()

                await pages_after(observer, [*range(seq + 1, 4), *range(10, 11 + seq)], away)


async def test_a_broker_that_is_started_again(tmp_path: Path):
    """The desk is there again with it, and shows what came and went before it was."""
    path = tmp_path / "store"
    async with running(path), Ledger.connect(path, role="admin") as admin:
        await put(admin.log.pending, question(1))
        await put(admin.log.pending, question(2))
    queue = None
    async with running(path):
        queue = Ledger.connect(path, role="queue")
        ledger = await queue.__aenter__()
        serving = asyncio.create_task(pending_service.serve(ledger.log))
        async with Ledger.connect(path, role="observer") as observer:
            assert (await asks(observer))[1] == 2
    try:
        async with (
            running(path),
            Ledger.connect(path, role="admin") as admin,
            Ledger.connect(path, role="observer") as observer,
        ):
            await delete(admin.log.pending, 1)
            await put(admin.log.pending, question(3))
            assert await asks(observer) == ([question(2), question(3)], 2, [])
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await queue.__aexit__(None, None, None)
    finally:
        serving.cancel()


async def test_a_desk_without_its_bucket_says_so(store: Path, admin: Ledger, observer: Ledger):
    """Before all is read, and once it can be read no longer, the answer is 503; when the bucket is
    there again, a page.
    """
    requests = admin.log.api
    await requests.ask("$JS.API.STREAM.DELETE.KV_pending", b"")
    async with open_desk(store), plain_client(store, "observer") as client:
        told = await until(lambda: _told(client))
        assert told == ("503", "the view is loading. Ask again soon, or read the bucket.")
        with pytest.raises(BrokerRefused, match="is loading"):
            await pending_client._asked(observer, 1, NO_FILTER)
        await streams.ensure(requests)
        await put(admin.log.pending, question(1))
        assert await asks(observer) == ([question(1)], 1, [])
        await requests.ask("$JS.API.STREAM.DELETE.KV_pending", b"")
        code, why = await refused(client, b"")
        assert code == "503"
        assert why.endswith("ead the bucket.")


async def _told(client: Client) -> tuple[str, str] | None:
    try:
        return await refused(client, b"")
    except nats.errors.NoRespondersError:
        return None


#: What may stand in a bucket that others can write to; None: another call's entry.
BAD = {
    "acme.t1.junk": b"no entry",
    "acme.t1.bytes": b'{"seq":1,"tool":"\xff\xfe"}',
    "acme.t1.old": b'{"seq":2,"workspace":"acme","thread":"t1","call":"old"}',
    "acme.t1.other": None,
    "odd": b'{"seq":"x"}',
}


async def test_a_value_that_is_not_an_entry_hinders_no_other(
    store: Path, admin: Ledger, observer: Ledger, said: list[Any]
):
    """Each page has all that can be read, from the desk and from the bucket alike, and the first
    one names what cannot: it is not JSON, not UTF-8, of an older version, or under the key of
    another call (R8).
    """
    bucket = admin.log.pending
    await put(bucket, question(1))
    async with open_desk(store), plain_client(store, "observer") as client:
        await asks(observer)
        raw = pending.encode(question(1))
        for key, value in BAD.items():
            assert await bucket.put(key, value or raw, 0)
        found = await asks(observer)
        assert found == await pending_client._read(observer, None, NO_FILTER)
        assert found[:2] == ([question(1)], 1)
        assert [one.key for one in found.unreadable] == sorted(BAD)
        assert all("--swap" in str(one) and one.key in str(one) for one in found.unreadable)
        assert json.loads(await answered(client, b""))["waiting"] == 1
        for key in BAD:
            _, revision = await bucket.get(key)
            assert await bucket.delete(key, revision)
        assert (
            await asks(observer, 1)
            == await pending_client.oldest(observer, 1)
            == ([question(1)], 1, [])
        )
    assert said == []


# ------------------------------------------------------------------------- what anybody can look at


@pytest.mark.parametrize("role", ["operator", "observer"])
async def test_any_client_can_look_for_it(store: Path, admin: Ledger, observer: Ledger, role: str):
    """By NATS' own protocol for services (ADR-32): who is there, what they offer, and how they
    fare.
    """
    await put(admin.log.pending, question(1))
    async with open_desk(store), plain_client(store, role) as client:
        await asks(observer)
        await refused(client, b"no")
        for verb, kind in (("PING", "ping"), ("INFO", "info"), ("STATS", "stats")):
            found = json.loads((await client.request(f"$SRV.{verb}", b"", timeout=60)).data)
            assert found["type"] == f"io.nats.micro.v1.{kind}_response"
            assert found["name"] == SERVICE
            assert len(found["version"].split(".")) == 3
            for subject in (f"$SRV.{verb}.{SERVICE}", f"$SRV.{verb}.{SERVICE}.{found['id']}"):
                assert (
                    json.loads((await client.request(subject, b"", timeout=60)).data)["id"]
                    == found["id"]
                )
        info = json.loads((await client.request(f"$SRV.INFO.{SERVICE}", b"", timeout=60)).data)
        assert [(one["name"], one["subject"], one["queue_group"]) for one in info["endpoints"]] == [
            ("oldest", SUBJECT, "q")
        ]
        [endpoint] = json.loads(
            (await client.request(f"$SRV.STATS.{SERVICE}", b"", timeout=60)).data
        )["endpoints"]
        assert (endpoint["num_requests"] >= 2, endpoint["num_errors"] >= 1) == (True, True)
        assert endpoint["last_error"].startswith("400:not a valid request")


# --------------------------------------------------------------------- accounts of an older version


def older(passwords: dict[str, str], callout: Callout | None = None) -> str:
    """The accounts as they were before there was a page service."""
    now = accounts_config(passwords, callout=callout)
    text = re.sub(r".*account: (queue|api),.*\n|.*allow_responses.*\n", "", now)
    text = re.sub(r"    exports: \[\n      \{service: \"(pending|appr)(.|\n)*?\]\n", "", text)
    return re.sub(r',"(pending\.oldest|approvals\.[^"]*|\$SRV[^"]*)"', "", text)


def no_services(role: str, inbox: str) -> Permissions:
    return msgspec.structs.replace(permissions(role, inbox=inbox), asked=(), answered=())


async def test_on_a_broker_of_an_older_version_the_bucket_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[Any]
):
    """The command shows the same, the worker says what is missing, and the next start of the same
    store puts it right.
    """
    path = tmp_path / "store"
    with monkeypatch.context() as before:
        before.setattr(servers, "accounts_config", older)
        before.setattr(signing_on, "permissions", no_services)
        async with running(path):
            text = (path / "accounts.conf").read_text()
            assert SUBJECT not in text
            assert "$SRV" not in text
            async with (
                Ledger.connect(path, role="admin") as admin,
                Ledger.connect(path, role="observer") as ledger,
            ):
                await put(admin.log.pending, question(1))
                async with working(reactions(["queue"]), store=path):
                    assert await pending_client.oldest(ledger, 1) == ([question(1)], 1, [])
                    with pytest.raises(BrokerRefused, match=SUBJECT):
                        await pending_client._asked(ledger, 1, NO_FILTER)
                assert ["write them anew" in line["event"] for line in said] == [True]
    async with (
        EmbeddedServer(path),
        working(reactions(["queue"]), store=path),
        Ledger.connect(path, role="observer") as ledger,
    ):
        assert await asks(ledger, 1) == ([question(1)], 1, [])


def test_a_request_says_only_what_it_wants():
    """What is left out is as in the documentation."""
    assert msgspec.json.decode(b"{}", type=PageRequest) == PageRequest(
        workspace="", thread="", tool="", rule="", most=50, after=None
    )
