"""The monitor: `/livez`, `/readyz` and `/metrics` of a real broker, and what they say when it is
away, takes no writes, or has no workers.
"""

import asyncio
import json
import os
import shutil
import signal
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
from brokers import running
from program import started
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from stories import REF, WISH, approval, question, request

from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Parked
from ayes.ledger.nats import credentials
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.streams import info
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.inspection import health, progress
from ayes.ops.inspection import monitor as monitor_module
from ayes.ops.inspection.checks import Wanted
from ayes.ops.inspection.health import CLOSED
from ayes.ops.inspection.metrics import METRICS
from ayes.ops.inspection.monitor import Monitor
from ayes.ops.inspection.probes import ListenAddress, answer, monitored
from ayes.ops.workers import reactions, working
from ayes.projections import pending as queue
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput

ANYWHERE = ListenAddress("127.0.0.1", 0)
#: A busy machine takes longer than the five seconds that an idle one needs.
PATIENCE_S = 60


class Probe:
    """A client of a monitor."""

    def __init__(self, client):
        self._client = client

    async def get(self, path):
        answer = await self._client.get(path)
        return answer.status_code, answer.text

    async def until_ready(self):
        return await self.until("ok\n")

    async def until(self, why):
        """Wait until `/readyz` says this, and return its status."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status, text = await self.get("/readyz")
                if why in text:
                    return status
                await asyncio.sleep(0.05)

    async def metrics(self, **headers):
        answer = await self._client.get("/metrics", headers=headers)
        assert answer.status_code == 200
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    async def until_metric(self, value, *key):
        async with asyncio.timeout(PATIENCE_S):
            while (await self.metrics()).get(key) != value:  # noqa: ASYNC110 - another task's
                await asyncio.sleep(0.05)


@asynccontextmanager
async def probed(store, **options):
    async with (
        monitored(store, ANYWHERE, **options) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
    ):
        yield Probe(client)


@asynccontextmanager
async def site(store):
    """A gate and a queue at work, and a probe of a monitor that knows it."""
    async with working(reactions(["gate", "queue"]), store=store), probed(store) as probe:
        await probe.until_ready()
        yield probe


# ---------------------------------------------------------------------------------------- readiness


def test_each_trouble_is_known_within_five_seconds():
    """The pause before it is looked at, and the time that the look may take."""
    assert monitor_module.LOOK_S + monitor_module._PATIENCE_S <= 5
    assert monitor_module.LOOK_S + progress.STALLED_S <= 5
    assert monitor_module.TRY_S + health._PATIENCE_S <= 5
    assert monitor_module.STALE_S <= 5


async def test_ready_is_when_gate_and_queue_run(store):
    """Not before it has looked; then without workers; then with both. `/livez` is its own."""
    assert "not looked at yet" in answer(Monitor(store), b"GET /readyz HTTP/1.1").body.decode()
    async with probed(store) as probe:
        assert await probe.until("no gate is at work") == 503
        assert await probe.get("/livez") == (200, "ok\n")
        async with working(reactions(["gate", "queue"]), store=store):
            assert await probe.until_ready() == 200
        assert await probe.until("no gate is at work") == 503


async def test_a_log_that_takes_no_writes_is_not_ready(store, admin):
    """As while `up` refuses facts for want of space; it is ready again by itself."""
    async with site(store) as probe:
        log = admin.log
        config = (await info(log.api, f"STREAM.INFO.{LEDGER}"))["config"]
        closed = {"metadata": config["metadata"] | {CLOSED: str(config["max_bytes"])}}
        await log.api.call(f"STREAM.UPDATE.{LEDGER}", config | closed | {"max_bytes": 1})
        assert await probe.until("the disk of the ledger is nearly full") == 503
        metrics = await probe.metrics()
        assert (metrics["ayes_ready",], metrics["ayes_log_writable",]) == (0, 0)
        assert metrics["ayes_broker_up",] == 1
        await log.api.call(f"STREAM.UPDATE.{LEDGER}", config)
        assert await probe.until_ready() == 200


async def test_a_broker_that_is_away_is_not_ready(tmp_path, monkeypatch):
    """Frozen, then killed: each time it is ready again, with what came before and after."""
    monkeypatch.setattr(monitor_module, "_PATIENCE_S", 1.0)  # rather than three
    async with running(tmp_path / "store") as server, site(server.store.path) as probe:
        async with Ledger.connect(server.store.path, role="admin") as admin:
            await admin.append(REF.said("m1"), e.Said(role="user", text="Hello"))
        await probe.until_metric(1, "ayes_facts_total", "Said")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert await probe.until("did not answer") == 503
            # A scrape that waited for the broker would have to wait for ever.
            monkeypatch.setattr(monitor_module, "_PATIENCE_S", 3600.0)
            metrics = await probe.metrics()
            monkeypatch.setattr(monitor_module, "_PATIENCE_S", 1.0)
            assert (metrics["ayes_ready",], metrics["ayes_broker_up",]) == (0, 0)
            assert metrics["ayes_facts_total", "Said"] == 1
            assert ("ayes_consumer_waiting_deliveries", "gate") not in metrics
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await probe.until_ready()
        os.kill(server.pid, signal.SIGKILL)
        assert await probe.until("broker") == 503
        await server.restart()
        await probe.until_ready()
        async with Ledger.connect(server.store.path, role="admin") as admin:
            await admin.append(REF.said("m2"), e.Said(role="user", text="Hello again"))
        await probe.until_metric(2, "ayes_facts_total", "Said")


async def test_a_monitor_may_start_before_its_broker(tmp_path):
    """It says that there is none, and finds the one that comes."""
    store = tmp_path / "store"
    async with probed(store, wanted=Wanted(["gate"])) as probe:
        assert await probe.until("no broker runs in") == 503
        assert (await probe.metrics())["ayes_broker_up",] == 0
        async with running(store), working(reactions(["gate"]), store=store):
            assert await probe.until_ready() == 200


async def test_the_login_of_a_worker_is_enough_for_its_probe(store):
    """The metrics are those that it may read."""
    login = Store(store).login("gate")
    url = login.url.replace("//", f"//{login.user}:{login.password}@")
    async with (
        working(reactions(["gate"]), store=store),
        probed(None, url=url, wanted=Wanted(["gate"])) as probe,
    ):
        await probe.until_ready()
        metrics = await probe.metrics()
        assert metrics["ayes_consumer_listening", "gate"] == 1
        assert ("ayes_consumer_listening", "queue") not in metrics
        assert ("ayes_parked_deliveries", "gate") not in metrics


async def test_beside_a_broker_elsewhere_the_disk_here_does_not_matter(store, tmp_path):
    """Its address and passwords are on this machine; its disk and system account are not."""
    known, beside = Store(store).read(), Store(tmp_path / "beside")
    beside.path.mkdir(mode=0o700)
    beside.write(credentials.Address(known.url, {"operator": known.passwords["operator"]}))
    async with (
        working(reactions(["gate"]), store=store),
        probed(beside.path, wanted=Wanted(["gate"])) as probe,
    ):
        await probe.until_ready()
        metrics = await probe.metrics()
    assert metrics["ayes_log_writable",] == 1
    assert ("ayes_store_free_bytes",) not in metrics


# ------------------------------------------------------------------------------------------ metrics


async def test_a_scrape_under_load_is_valid(store, admin):
    """While calls are requested and decided, each scrape is a valid text in both formats, no
    counter falls, and at the end all of them are counted.
    """
    calls = [REF.call(f"c{number}") for number in range(40)]

    async def load():
        for call in calls:
            for slot, event in (
                (call.requested, request(WISH)),
                (call.gated, question(WISH)),
                (call.decided, approval(WISH)),
            ):
                await admin.append(slot, event)

    counters = {name for name, metric in METRICS.items() if metric.kind == "counter"}
    async with probed(store) as probe:
        await probe.until("no gate is at work")
        await probe.until_metric(0, "ayes_facts_total", "ToolRequested")
        loading, scrapes, before = asyncio.create_task(load()), 0, {}
        while not loading.done() or scrapes < 3:
            _, text = await probe.get("/metrics")
            now = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name in counters
            }
            assert all(now.get(key, 0) >= value for key, value in before.items())
            scrapes, before = scrapes + 1, now
            response = await probe._client.get(
                "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
            )
            assert list(openmetrics.text_string_to_metric_families(response.text))
        await loading
        count = len(calls)
        await probe.until_metric(count, "ayes_decisions_total", "money", "approved")
        metrics = await probe.metrics()
        assert metrics["ayes_facts_total", "ToolRequested"] == count
        assert metrics["ayes_decision_duration_seconds_count", "people"] == count
        assert metrics["ayes_decision_duration_seconds_bucket", "people", "+Inf"] == count
        assert metrics["ayes_monitor_uncounted_facts",] >= 0
        if promtool := shutil.which("promtool"):
            _, text = await probe.get("/metrics")
            process = await asyncio.create_subprocess_exec(
                *(promtool, "check", "metrics"), stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            told, _ = await process.communicate(text.encode())
            assert (process.returncode, told) == (0, b"")


async def test_what_waits_for_people_is_seen(store, admin, monkeypatch):
    """A pending call and its age, a call in doubt, and a parked delivery; and a call that waited
    before the monitor began is counted when it is decided.
    """
    monkeypatch.setattr(monitor_module, "STATUS_S", 0.1)
    call, other = REF.call("c1"), REF.call("c2")
    await admin.append(call.requested, request(WISH))
    await admin.append(call.gated, question(WISH))
    entry = queue.entry(await admin.call(call))
    await admin.log.pending.put(queue.key(call), queue.encode(entry), 0)
    digest = approval(WISH).digest
    for slot, event in (
        (other.requested, request(WISH)),
        (other.decided, e.Approved(digest=digest, ground="policy", rule="r", policy_version=1)),
        (other.claim(1), e.ToolStarted(digest=digest, idempotency_key=str(other))),
        (other.finished, e.InDoubt(attempt=1, text="the executor died")),
    ):
        await admin.append(slot, event)
    await admin.log.park(
        Parked("gate", 1, call.requested.subject, "a reason", 5, await admin.log.clock())
    )
    async with probed(store) as probe:
        await probe.until_metric(1, "ayes_pending_calls", "0-1m")
        await probe.until_metric(1, "ayes_calls_in_doubt")
        await probe.until_metric(1, "ayes_parked_deliveries", "gate")
        metrics = await probe.metrics()
        assert metrics["ayes_pending_oldest_age_seconds",] > 0
        assert metrics["ayes_log_facts",] == 6
        assert metrics["ayes_facts_total", "ToolRequested"] == 0
        await admin.append(call.decided, approval(WISH))
        await probe.until_metric(1, "ayes_decisions_total", "money", "approved")
        metrics = await probe.metrics()
        assert metrics["ayes_decision_duration_seconds_count", "people"] == 1
        assert metrics["ayes_decision_duration_seconds_sum", "people"] > 0


async def test_without_the_extra_metrics_say_so(store):
    """One sentence, and probes as ever."""
    monitor = Monitor(store, measuring=False)
    status, body, _ = answer(monitor, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert (status, body) == (501, b"metrics are not installed: pip install 'ayes[metrics]'.\n")
    async with monitor.running(), asyncio.timeout(PATIENCE_S):
        while "no gate is at work" not in monitor.seen().why:  # noqa: ASYNC110 - another task's
            await asyncio.sleep(0.05)
        seen = monitor.seen()
        assert (seen.tally, seen.asked_at, seen.status) == (None, None, None)


# --------------------------------------------------------------------------------------------- HTTP


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /livez HTTP/1.1", 200),
        (b"GET /livez?verbose HTTP/1.1", 200),
        (b"GET /readyz HTTP/1.1", 503),
        (b"GET /metrics?name[]=x HTTP/1.1", 200),
        (b"GET / HTTP/1.1", 404),
        (b"GET /metrics/ HTTP/1.1", 404),
        (b"POST /readyz HTTP/1.1", 405),
        (b"\xff\xfe", 405),
        (b"", 405),
    ],
)
def test_each_request_has_an_answer(tmp_path, head, status):
    """Whatever is sent."""
    assert answer(Monitor(tmp_path), head + b"\r\n\r\n").status == status


async def test_a_client_that_is_slow_or_sends_too_much_is_cut_off(tmp_path, monkeypatch):
    """And delays nobody else."""
    monkeypatch.setattr("ayes.ops.inspection.probes._REQUEST_S", 0.3)
    async with monitored(tmp_path, ANYWHERE) as url, httpx.AsyncClient() as client:
        host, port = url.removeprefix("http://").split(":")
        silent, silents = await asyncio.open_connection(host, port)
        loud, louds = await asyncio.open_connection(host, port)
        with suppress(ConnectionError):
            louds.write(b"GET /livez HTTP/1.1\r\nx: " + b"y" * 200_000)
            await louds.drain()
        assert (await client.get(f"{url}/livez")).text == "ok\n"
        for reader in (silent, loud):
            async with asyncio.timeout(PATIENCE_S):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        for writer in (silents, louds):
            writer.transport.abort()  # a close would wait until all is sent


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8421", ("127.0.0.1", 8421)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_an_address_is_host_and_port(text, address):
    """A port alone is of this machine only. What others reach needs a proxy with TLS before it."""
    assert ListenAddress.parse("--listen", text, has_tls=True) == address
    if address[0] == "0.0.0.0":
        with pytest.raises(BadInput, match=r"read on the way.*`ayes monitor --behind-tls`"):
            ListenAddress.parse("--listen", text)
    else:
        assert ListenAddress.parse("--listen", text) == address


@pytest.mark.parametrize("text", ["", "host", ":80", "host:", "host:http", "host:65536", "h:-1"])
def test_anything_else_is_no_address(text):
    """Also a port without its host behind a colon, which elsewhere means all addresses."""
    with pytest.raises(BadInput, match=r"--listen '.*' is not HOST:PORT or a port"):
        ListenAddress.parse("--listen", text)


def test_the_command_says_where_it_listens(tmp_path, within):
    """In JSON or for people; an address in use, or an unknown worker, is one sentence."""
    with started("monitor", "--listen", "0", "--store", tmp_path, "--json") as process:
        url = json.loads(process.stdout.readline())["url"]
        assert httpx.get(f"{url}/livez", timeout=PATIENCE_S).text == "ok\n"
        port = url.rpartition(":")[2]
        taken = within("monitor", "--listen", port, "--store", tmp_path)
        assert taken.code == 2
        assert taken.err.startswith(f"error: cannot serve at 127.0.0.1:{port}: ")
    unknown = within("monitor", "--role", "gates", "--store", tmp_path)
    assert (unknown.code, "there is no worker gates" in unknown.err) == (2, True)
