"""`ayes status` and `ayes doctor` on three nodes: who leads, who is away, and what follows."""

import asyncio
import json
import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cluster import cluster

from ayes.interfaces.cli import check
from ayes.interfaces.cli.command import Session
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import described
from ayes.ops.inspection import checks
from ayes.ops.inspection.checks import Check, Look, examined
from ayes.ops.inspection.nodes import clocks, copies, copies_of, explained, skewed, trouble
from ayes.schemas.errors import BrokerAway, Unavailable


@contextmanager
def stopped(*nodes):
    """Nodes that are there and say nothing, as behind a cut cable."""
    for node in nodes:
        os.kill(node.pid, signal.SIGSTOP)
    while not all(map(is_stopped, nodes)):  # on a busy machine a thread answers until its turn
        time.sleep(0.01)
    try:
        yield
    finally:
        for node in nodes:
            os.kill(node.pid, signal.SIGCONT)


def is_stopped(node):
    threads = Path(f"/proc/{node.pid}/task").glob("*/stat")
    return all(one.read_text().rpartition(")")[2].split()[0] == "T" for one in threads)


@pytest.mark.long
async def test_nodes_that_are_away_are_named(tmp_path, capsys):
    """With one node of three away `status` has an alarm and so does `doctor`; with two away, when
    nobody leads, both still say which do not answer (D16).
    """
    async with cluster(tmp_path) as three:
        session = Session(three.store.path, json=True)

        async def status():
            await check.status(session=session)
            return json.loads(capsys.readouterr().out)

        names = {node.store.path.name: node for node in three.nodes}
        seen = await until(status, lambda seen: not seen["alarms"])
        log = next(one for one in seen["streams"] if one["stream"] == "LEDGER")
        assert {log["leader"], *(one["node"] for one in log["replicas"])} == set(names)

        # The client begins with the first one; what becomes of it then is not shown here.
        first = next(iter(names))
        leaders = [one["leader"] for one in seen["streams"]]
        gone = min(set(names) - {log["leader"], first}, key=leaders.count)
        with stopped(names[gone]):
            said = f"1 of 3 nodes is away: {gone}"
            seen = await until(status, lambda seen: said in seen["alarms"])
            assert isinstance(seen["pending"], int | None)
            connecting = JetStream.connect(three.store.path, role="observer", any_level=True)
            async with connecting as client:
                look = Look(streams=copies(await described(client.api, is_asked=lambda _: False)))
                assert examined(look, ["nodes"]) == [Check("nodes", ok=False, detail=said)]
                another = next(one for name, one in names.items() if name not in {gone, first})
                with stopped(another), pytest.raises(BrokerAway) as raised:
                    async with explained(client):
                        raise BrokerAway("nobody leads")
            assert str(raised.value).startswith("2 of 3 nodes are away: ")
            for one in (names[gone], another):
                assert one.url.rpartition("/")[2] in str(raised.value)


def replica(name, **more):
    return {"name": name, "current": True, "active": 500_000_000} | more


@pytest.mark.parametrize(
    ("wanted", "replicas", "said"),
    [
        (3, [replica("n2"), replica("n3")], ""),
        (3, [replica("n2"), replica("n3", offline=True)], "1 of 3 nodes is away: n3"),
        (3, [replica("n2", active=6 * 10**9), replica("n3", active=9 * 10**9)],
         "2 of 3 nodes are away: n2, n3"),
        (2, [replica("n2", current=False, lag=1200)],
         "LEDGER: n1 leads; n2 is 1,200 messages behind"),
        # The leader was elected after it went away.
        (3, [replica("n2"), replica("n3", current=False, active=0)], "1 of 3 nodes is away: n3"),
        (3, [replica("n2")], "LEDGER has 2 of 3 copies so far"),
        (
            1,
            [],
            (
                "LEDGER is on one node of the cluster only: `ayes setup --replicas 3 --upgrade` "
                "copies it"
            ),
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_nodes(wanted, replicas, said):
    """From what the leader of the stream says: silence, lag, and missing copies (D16)."""
    since = "2026-03-01T09:00:00.123456789Z"
    cluster = {"name": "c", "leader": "n1", "leader_since": since, "replicas": replicas}
    stream = {
        "config": {"num_replicas": wanted},
        "cluster": cluster,
        "ts": "2026-03-01T09:01:00Z",
    }
    assert trouble([copies_of("LEDGER", stream)]) == said


def test_a_server_by_itself_has_no_nodes():
    """Its copy has no other, and needs none."""
    alone = {"config": {"num_replicas": 1}, "cluster": {"leader": "some"}}
    assert trouble([copies_of("LEDGER", alone)]) == ""


async def until(command, is_so):
    """Look until it is so; a broker that elects a leader may not answer meanwhile."""
    async with asyncio.timeout(60):
        while True:
            with suppress(Unavailable):
                if is_so(seen := await command()):
                    return seen
            await asyncio.sleep(0.1)


# --------------------------------------------------------------------------------------- the clocks


@pytest.mark.parametrize(
    ("ahead_s", "said"),
    [
        ({}, ""),
        ({"n1": 3600.0}, ""),  # one that answers says nothing about the others
        ({"n1": -0.2, "n2": 0.3, "n3": 0.7}, ""),
        ({"n1": 120.0, "n2": 120.1, "n3": 120.0}, ""),  # it is this machine's that is wrong
        (
            {"n2": 3600.25, "n1": 0.0, "n3": -0.001},
            "the clocks of the nodes differ (from this machine's: n1 +0.000 s, n2 +3,600.250 s, ",
        ),
        ({"n1": 0.0, "n2": -1.0}, "the clocks of the nodes differ"),
    ],
)
def test_nodes_have_one_time(ahead_s, said):
    """From a second on, a difference is an alarm, also of a node that leads nothing yet."""
    assert skewed(ahead_s).startswith(said)
    assert bool(skewed(ahead_s)) == bool(said)


@pytest.mark.long
async def test_the_clock_of_each_node_is_looked_at(tmp_path, capsys, monkeypatch):
    """Each of three answers, whichever leads; one whose clock is wrong is named."""
    async with cluster(tmp_path) as three:
        names = {node.store.path.name for node in three.nodes}
        for role in ("operator", "admin"):
            async with asyncio.timeout(60), JetStream.connect(three.store.path, role=role) as log:
                while (found := await clocks(log, 3)).keys() != names:  # they are being connected
                    pass
                assert all(abs(ahead_s) < 5 for ahead_s in found.values())  # the machine is busy

        async def wrong(log, count):
            return await clocks(log, count) | {"n2": -3600.0}

        monkeypatch.setattr(checks, "clocks", wrong)
        session = Session(three.store.path, json=True)
        assert await check.status(session=session) == 1
        alarms = json.loads(capsys.readouterr().out)["alarms"]
        assert [one for one in alarms if "n2 -3,600.000 s" in one]
        assert await check.doctor(session=session) == 1
        lines = map(json.loads, capsys.readouterr().out.splitlines())
        [told] = [one for one in lines if one["check"] == "clock"]
        assert (told["ok"], "n2 -3,600.000 s" in told["detail"]) == (False, True)
