"""A login that floods the broker is ended, and leaves the others their share (bench/floods.py).

`make floods` measures each flood for half a minute; here each is short, and what is shown is that
honest calls end while the flood goes on.
"""

import asyncio
import itertools

import pytest
from long import sampled
from until import until

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Login
from ayes.ops.broker.floods import PAUSE_S, Floods
from ayes.schemas.errors import BadInput, BrokerRefused
from ayes.schemas.slots import CallRef
from bench.append import LATER, broker
from bench.cycle import REVIEWER, WORKSPACE, Clients, at_work
from bench.floods import flooding, honest


@pytest.mark.parametrize("name", sampled(["facts", "replies", "large facts", "files"]))
async def test_a_flood_is_ended_and_others_go_on(tmp_path, name):
    """Its login may not sign on for a while, and nobody else's is ended."""
    store = tmp_path / "store"
    calls = (CallRef(WORKSPACE, f"h{number}", "c1") for number in itertools.count())
    async with broker(store, LATER) as server:
        await server.ensure_account(f"reviewer-{REVIEWER}")
        async with at_work(store), Clients.at(store) as clients:
            await clients.cycle(next(calls))
            async with flooding(store, name):

                async def is_refused():
                    try:
                        async with Ledger.connect(store, role="model", timeout_s=1):
                            return False
                    except BrokerRefused:
                        return True

                await until(is_refused)
                found = await honest(clients, 1.0, calls)
            assert found.rate > 0
            assert (found.repeated, found.lost) == (0, 0)


async def test_who_sends_most_is_ended(tmp_path, monkeypatch):
    """With small bounds, so that little is a flood: it is refused for a while, and nobody else."""
    bounds = {"_LOOK_S": 0.05, "_COUNT_S": 0.1, "_LONG_S": 0.0, "MOST_MESSAGES": 20}
    for name, bound in bounds.items():
        monkeypatch.setattr(f"ayes.ops.broker.floods.{name}", bound)
    async with (
        broker(tmp_path / "store", LATER) as server,
        Ledger.connect(server.store.path, role="service") as quiet,
        Ledger.connect(server.store.path, role="model") as loud,
    ):
        client = loud.log.connection.client
        ended = client.stats["reconnects"]
        while client.is_connected and client.stats["reconnects"] == ended:
            for _ in range(200):
                await client.publish("live.shop.t1.1", b"x")
            await asyncio.sleep(0)
        with pytest.raises(BrokerRefused):
            async with Ledger.connect(server.store.path, role="model"):
                pass
        assert await quiet.log.last_seq() == 0
        assert quiet.log.connection.client.stats["reconnects"] == 0


def test_a_pause_doubles(monkeypatch):
    """For whoever floods again within the hour; then it is the first again."""
    now = [1000.0]
    monkeypatch.setattr("ayes.ops.broker.floods.time.monotonic", lambda: now[0])
    floods = Floods(Login("nats://a"), Login("nats://a"))
    floods.check("model")
    for lasts in (PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S):
        floods._pause("model")
        floods.check("service")
        with pytest.raises(BadInput, match=rf"may sign on in {lasts:.0f} s"):
            floods.check("model")
        now[0] += lasts
        floods.check("model")
    now[0] += 3601
    floods._pause("model")
    with pytest.raises(BadInput, match=rf"may sign on in {PAUSE_S:.0f} s"):
        floods.check("model")
