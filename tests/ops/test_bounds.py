"""What the broker holds has bounds, and an alarm before they are reached."""

import asyncio
import json
from contextlib import AsyncExitStack

import msgspec
import pytest
import structlog
from disk import small_disk
from stories import CALL, REF, WISH, request
from structlog.testing import capture_logs
from until import until

from ayes.interfaces.cli import check, run
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Recorded
from ayes.ledger.nats import streams
from ayes.ledger.nats.streams import LEAST_BYTES, PENDING, RUNNING
from ayes.ledger.subscriptions import DURABLES, LEDGER, PARKED, TIMERS
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.ops.inspection import guard
from ayes.ops.workers import reactions, working
from ayes.schemas import events as e
from ayes.schemas.content import attached
from ayes.schemas.errors import BadInput, BrokerRefused, LedgerFull

TEN_YEARS_NS = 10 * 365 * 24 * 3600 * 10**9


async def api(ledger, subject, **body):
    """A request to JetStream, as anybody with a client of their own makes it."""
    client = ledger.log.connection.client
    return json.loads(
        (await client.request(f"$JS.API.{subject}", msgspec.json.encode(body), timeout=60)).data
    )


async def config_of(admin, stream):
    return (await api(admin, f"STREAM.INFO.{stream}"))["config"]


@pytest.fixture
async def observer(store):
    async with Ledger.connect(store, role="observer") as ledger:
        yield ledger


@pytest.fixture
def doctor(store, capsys):
    async def examined():
        await check.doctor(session=Session(store, json=True))
        return {one["check"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}

    return examined


async def alarms(store, capsys):
    await check.status(session=Session(store, json=True))
    return json.loads(capsys.readouterr().out)["alarms"]


async def kept_open(observer, stream, *, number=0, **config):
    """A consumer of an attacker's, kept for ten years though nobody listens."""
    body = {"deliver_subject": f"_INBOX.observer._.x{number}", "ack_policy": "none"} | config
    return await api(
        observer,
        f"CONSUMER.CREATE.{stream}",
        stream_name=stream,
        config={"inactive_threshold": TEN_YEARS_NS} | body,
    )


# ---------------------------------------------------------------------------------------- consumers


async def test_an_observer_cannot_lock_readers_out(store, admin, observer, doctor, capsys):
    """With all consumers of the log taken, a decision is made, waited for and heard, and the
    minute's look ends them (C6).

    The doctor names them and `status` tells that the bound is near.
    """
    most = 60
    await api(
        admin,
        f"STREAM.UPDATE.{LEDGER}",
        **(await config_of(admin, LEDGER)) | {"max_consumers": most},
    )
    made = await asyncio.gather(
        *(kept_open(observer, LEDGER, number=number) for number in range(most))
    )
    refused = [one["error"]["description"] for one in made if "error" in one]
    assert set(refused) == {"maximum consumers limit reached"}
    async with Ledger.connect(store) as service, working(reactions(["gate"]), store=store):
        await service.append(CALL.requested, request(WISH))
        waiting = asyncio.create_task(service.decision(CALL, timeout_s=60))
        await service.append(CALL.withdrawn, e.Withdrawn())
        assert (await waiting).decided is not None
    found = await doctor()
    assert not found["readers"]["ok"]
    assert "by observer is kept 315,360,000 s without a reader" in found["readers"]["detail"]
    assert not found["room"]["ok"]
    assert found["promises"]["detail"].startswith("not looked at: ")
    [alarm] = await alarms(store, capsys)
    assert alarm == f"{LEDGER} holds {most} of {most} consumers"
    gone = await streams.dismiss_abandoned(admin.log.api)
    assert len(gone) == most - len(refused)
    bad = {name for name, one in (await doctor()).items() if not one["ok"]}
    assert bad <= {"workers"}  # none runs for the queue
    assert await streams.undeclared(admin.log.api) == []


async def test_a_decision_is_waited_for_through_a_restart(tmp_path):
    """The broker goes and comes back while somebody waits; what is decided then is heard (B51)."""
    path = tmp_path / "store"
    async with AsyncExitStack() as stack:
        async with EmbeddedServer(path):
            await declare_streams(path)
            service = await stack.enter_async_context(Ledger.connect(path))
            await service.append(CALL.requested, request(WISH))
            waiting = asyncio.create_task(service.decision(CALL, timeout_s=60))
            await asyncio.sleep(0)
        async with EmbeddedServer(path), Ledger.connect(path, role="admin") as admin:
            await admin.try_append(CALL.decided, e.Withdrawn())
            assert (await waiting).decided is not None


@pytest.mark.parametrize("stream", [PENDING, f"{PENDING}.mine"])
async def test_the_broker_ends_what_is_kept_open_on_the_bucket(observer, stream):
    """Where no durable of ours reads, nobody outlives its reader by over five minutes (C6)."""
    named = {"name": "mine"} if stream.endswith("mine") else {}
    body = {"deliver_subject": "_INBOX.observer._.x", "ack_policy": "none"} | named
    refused = await api(
        observer,
        f"CONSUMER.CREATE.{stream}",
        stream_name=PENDING,
        config=body | {"inactive_threshold": TEN_YEARS_NS},
    )
    assert "inactive threshold exceeds" in refused["error"]["description"]
    durable = {"durable_name": "mine"} if named else {}
    taken = await api(
        observer, f"CONSUMER.CREATE.{stream}", stream_name=PENDING, config=body | durable
    )
    assert taken["config"]["inactive_threshold"] <= 300 * 10**9


async def test_no_durable_of_ours_ends_by_itself(admin):
    """A limit on the stream would be their end too: a stopped gate would begin anew."""
    for durable in DURABLES.values():
        there = await api(admin, f"CONSUMER.INFO.{durable.stream}.{durable.name}")
        assert not there["config"].get("inactive_threshold")


async def test_a_durable_that_nobody_declared_is_told_and_stays(admin, doctor):
    """Only an administrator can have made it, so it is theirs to delete."""
    config = {"durable_name": "mine", "ack_policy": "explicit"}
    await api(admin, f"CONSUMER.CREATE.{LEDGER}.mine", stream_name=LEDGER, config=config)
    assert (
        "consumer mine on LEDGER is kept for ever without a reader"
        in (await doctor())["readers"]["detail"]
    )
    assert await streams.dismiss_abandoned(admin.log.api) == []


# -------------------------------------------------------------------------------------------- bytes


async def test_a_full_ledger_says_so(store, admin, capsys, doctor):
    """An alarm from 80 % on; then one sentence for whoever records; more room, it goes on (M1)."""
    await declare_streams(store, max_bytes=LEAST_BYTES)
    text = "x" * 400_000
    async with Ledger.connect(store) as service:

        async def said(number):
            return await service.append(REF.said(f"m{number}"), e.Said(role="user", text=text))

        for number in range(34):
            assert isinstance(await said(number), Recorded)
        assert (await doctor())["room"]["detail"].startswith(f"{LEDGER} holds 13.6 MB of ")
        [alarm] = await alarms(store, capsys)
        assert alarm.startswith(f"{LEDGER} holds 13.6 MB of ")
        answers = [
            await asyncio.gather(said(number), return_exceptions=True) for number in range(34, 50)
        ]
        assert isinstance(answers[-1][0], LedgerFull)
        assert str(answers[-1][0]).startswith("the ledger is full: ")
        # In a batch each of them learns it.
        together = await asyncio.gather(*map(said, range(50, 70)), return_exceptions=True)
        assert {str(one).partition(":")[0] for one in together} == {"the ledger is full"}
        await declare_streams(store, max_bytes=2 * LEAST_BYTES)
        assert isinstance(await said(34 + 16), Recorded)


async def test_what_has_no_bounds_gets_them_and_what_is_narrower_stays(store, admin, doctor):
    """On streams of an earlier version `setup` and `up` add the bounds and nothing else."""
    for name in (LEDGER, TIMERS, PARKED, PENDING, RUNNING):
        loose = {"max_bytes": -1, "max_consumers": -1, "consumer_limits": {}}
        await api(admin, f"STREAM.UPDATE.{name}", **(await config_of(admin, name)) | loose)
    theirs = {"max_consumers": 50, "max_bytes": 10**9}
    await api(admin, f"STREAM.UPDATE.{PARKED}", **(await config_of(admin, PARKED)) | theirs)
    before = await config_of(admin, LEDGER)
    found = (await doctor())["streams and consumers"]
    assert not found["ok"]
    for stream in (LEDGER, TIMERS, PENDING, RUNNING):
        assert f"stream {stream}: max_bytes is -1, wider than the declared " in found["detail"]
    assert "`ayes setup` bounds it" in found["detail"]
    await declare_streams(store)
    assert (await doctor())["streams and consumers"]["detail"] == "as declared"
    after = await config_of(admin, LEDGER)
    bounds = {"max_bytes", "max_consumers", "consumer_limits", "metadata"}
    assert {key for key in after if after[key] != before.get(key)} <= bounds
    parked = await config_of(admin, PARKED)
    assert (parked["max_consumers"], parked["max_bytes"]) == (50, 10**9)


async def test_a_broker_with_little_room_gets_a_smaller_bound(store, admin, monkeypatch):
    """The declared bound is halved until it fits; one that was named, or too small, is refused."""
    monkeypatch.setitem(streams.MAX_BYTES_OF, LEDGER, 1 << 50)
    await api(
        admin, f"STREAM.UPDATE.{LEDGER}", **(await config_of(admin, LEDGER)) | {"max_bytes": -1}
    )
    await declare_streams(store)
    assert LEAST_BYTES <= (await config_of(admin, LEDGER))["max_bytes"] < 1 << 50
    with pytest.raises(
        BrokerRefused,
        match=r"no room for 1,125,899,906,842,624 bytes\. Name fewer with --max-bytes",
    ):
        await declare_streams(store, max_bytes=1 << 50)
    with pytest.raises(BadInput, match="is too small: the least is"):
        await declare_streams(store, max_bytes=1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GB", 20 * 10**9),
        ("500MiB", 500 << 20),
        ("17", 17),
        ("3 kB", None),
        ("2TB", 2 * 10**12),
        ("-1", None),
    ],
)
def test_a_size_is_a_number_and_a_unit(text, size):
    """What is not a size is refused with an example of one."""
    if size is None:
        with pytest.raises(BadInput, match=r"is not a number of bytes\. It looks like 20GB"):
            run.bytes_of(text)
    else:
        assert run.bytes_of(text) == size


# ------------------------------------------------------------------------------------------ batches


async def test_fifty_open_batches_keep_nobody_from_theirs(store, doctor):
    """The broker takes a thousand, and forgets one that is not finished after five seconds (M2)."""
    async with Ledger.connect(store) as service:
        client = service.log.connection.client
        for number in range(60):
            headers = {"Nats-Batch-Id": f"b{number}", "Nats-Batch-Sequence": "1"}
            answer = await client.request(
                REF.said(f"m{number}").subject, b"{}", headers=headers, timeout=60
            )
            assert answer.data == b""
    assert (await doctor())["batches"]["ok"]


# ------------------------------------------------------------------------------------ while it runs


async def test_what_changes_while_it_runs_is_an_alarm(store, admin, capsys, monkeypatch):
    """Each look logs what is new as an error, once; `status` tells it while it lasts (M6)."""
    monkeypatch.setattr(
        guard, "_log", structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)
    )
    with capture_logs() as logs:
        looking = asyncio.create_task(guard.guard(admin.log, every_s=0.01))
        try:
            config = await config_of(admin, LEDGER)
            await api(admin, f"STREAM.UPDATE.{LEDGER}", **config | {"allow_atomic": False})
            await until(lambda: logs)
            expected = "stream LEDGER: allow_atomic is None, declared is True"
            assert await alarms(store, capsys) == [expected]
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
    assert [(one["log_level"], one["alarm"]) for one in logs] == [("error", expected)]


@pytest.mark.parametrize(
    ("mib", "most"),
    [
        (200, None),
        (768, 64_000_000),
        *(pytest.param(mib, None, marks=pytest.mark.long) for mib in (1024, 1536, 2048, 4096)),
    ],
)
async def test_a_small_disk_is_shared_among_the_streams(tmp_path, mib, most):
    """Each stream gets a share, whatever the size of the disk: facts and large files are recorded,
    and nothing alarms. The log keeps the limit that was asked for (B84).
    """
    with small_disk(tmp_path / "disk", mib << 20) as disk:
        path = disk.path / "store"
        async with EmbeddedServer(path):
            await declare_streams(path, max_bytes=most)
            async with (
                Ledger.connect(path, role="admin") as admin,
                Ledger.connect(path) as service,
            ):
                assert await guard.alarms(admin.log) == []
                limits = {
                    name: (await config_of(admin, name))["max_bytes"] for name in streams.streams()
                }
                assert min(limits.values()) >= LEAST_BYTES
                # At least half of what there is, which is three quarters of the disk, is given out.
                assert most or sum(limits.values()) > 0.35 * (mib << 20)
                assert limits[LEDGER] == (most or max(limits.values()))
                picture = attached(bytes(100_000), "image/png")
                await service.say(REF, (picture,), message="m1")


async def test_a_disk_that_is_too_small_is_one_sentence(tmp_path):
    with small_disk(tmp_path / "disk", 100 << 20) as disk:
        path = disk.path / "store"
        async with EmbeddedServer(path):
            with pytest.raises(BrokerRefused, match=r"no room for the least .* Give it more disk"):
                await declare_streams(path)
            with pytest.raises(BrokerRefused, match=r"Name fewer with --max-bytes, or give it"):
                await declare_streams(path, max_bytes=LEAST_BYTES)
