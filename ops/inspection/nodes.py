"""The nodes of a cluster: who leads each stream, who is away, and who answers without a leader."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.ledger import clock
from ayes.ledger.nats.api import ApiError
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import NatsMessage
from ayes.ledger.nats.streams import Described
from ayes.ops.broker.accounts import PING
from ayes.ops.inspection.progress import seconds
from ayes.schemas.errors import BrokerAway
from ayes.schemas.ids import new_id

#: A node from which the leader of a stream has heard nothing for longer is away. Nodes exchange
#: heartbeats each second (`hbIntervalDefault` of nats-server).
AWAY_S: Final = 5.0
#: A difference of the nodes' clocks that is an alarm.
SKEW_S: Final = 1.0
#: How long a node may take to answer a connection.
_ANSWER_S: Final = 1.0


class Replica(Struct, frozen=True):
    """A copy of a stream on a node, as its leader sees it."""

    #: The name of the node.
    node: str
    #: Whether the node does not answer.
    away: bool
    #: Whether it has all that is committed.
    current: bool = True
    #: Messages that it lacks.
    lag: int = 0
    #: Seconds since the leader last heard from it.
    silent_s: float = 0.0


class Copies(Struct, frozen=True):
    """The copies of a stream: the leader's, and the replicas on other nodes."""

    stream: str
    #: The name of its cluster; empty for a server by itself.
    cluster: str
    #: Empty: there is none at the moment.
    leader: str
    #: How many there should be.
    wanted: int
    #: The copies on other nodes.
    replicas: tuple[Replica, ...] = ()

    @property
    def away(self) -> list[str]:
        return [one.node for one in self.replicas if one.away]

    def __str__(self) -> str:
        others = ", ".join(map(_described, self.replicas))
        return f"{self.stream}: {self.leader or 'no node'} leads" + (others and f"; {others}")


def _described(one: Replica) -> str:
    if one.away:
        return f"{one.node} is away for {one.silent_s:,.0f} s"
    return f"{one.node} is current" if one.current else f"{one.node} is {one.lag:,} messages behind"


def copies(found: Described) -> list[Copies]:
    """The copies of each stream."""
    return [copies_of(name, one) for name, one in found.streams.items() if one is not None]


def copies_of(name: str, stream: dict[str, Any]) -> Copies:
    """By the broker's description of the stream (ADR-1)."""
    cluster = stream.get("cluster") or {}
    led_s = seconds(cluster["leader_since"], stream["ts"]) if "leader_since" in cluster else 0.0
    replicas = tuple(_replica(one, led_s) for one in cluster.get("replicas") or ())
    wanted = stream["config"]["num_replicas"]
    return Copies(name, cluster.get("name", ""), cluster.get("leader", ""), wanted, replicas)


def _replica(one: dict[str, Any], led_s: float) -> Replica:
    """By the leader's word; one that it has not heard of since it leads has no time."""
    unheard = not one["current"] and not one.get("active")
    silent_s = led_s if unheard else one.get("active", 0) / 1e9
    away = one.get("offline", False) or silent_s > AWAY_S
    return Replica(one["name"], away, one["current"], one.get("lag", 0), round(silent_s, 3))


def trouble(found: Sequence[Copies]) -> str:
    """What is wrong with the nodes of these streams; empty if nothing is."""
    away = sorted({node for one in found for node in one.away})
    nodes = {replica.node for one in found for replica in one.replicas} | {
        one.leader for one in found
    }
    if away:
        return f"{_count(len(away), len(nodes))} away: {', '.join(away)}"
    if behind := [one for one in found if not all(replica.current for replica in one.replicas)]:
        return "; ".join(map(str, behind))
    if few := [one for one in found if one.wanted > 1 + len(one.replicas)]:
        return "; ".join(
            f"{one.stream} has {1 + len(one.replicas)} of {one.wanted} copies so far" for one in few
        )
    if alone := [one.stream for one in found if one.cluster and not one.replicas]:
        one = len(alone) == 1
        return (
            f"{', '.join(alone)} {'is' if one else 'are'} on one node of the cluster only: "
            f"`ayes setup --replicas 3 --upgrade` copies {'it' if one else 'them'}"
        )
    return ""


def _count(away: int, nodes: int) -> str:
    return f"{away} of {nodes} nodes {'is' if away == 1 else 'are'}"


async def clocks(log: JetStream, nodes: int) -> dict[str, float]:
    """By how many seconds the clock of each node that answers is ahead of this machine's.

    Args:
        log: on the login of an operator or administrator.
        nodes: how many to wait for.
    """
    found: dict[str, float] = {}
    all_there = asyncio.Event()
    begun = clock.now()

    def take(message: NatsMessage) -> None:
        node = msgspec.json.decode(message[2], type=_Pong).server
        found[node.name] = (node.time - (begun + (clock.now() - begun) / 2)).total_seconds()
        if len(found) >= nodes:
            all_there.set()

    inbox = f"{log.connection.inbox}.{new_id()}"
    async with log.api.straight(inbox, take):
        await log.connection.client.publish(PING, b'{"include_unused":true}', reply=inbox)
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await all_there.wait()
    return found


class _Node(Struct):
    name: str
    time: datetime


class _Pong(Struct):
    server: _Node


def skewed(found: Mapping[str, float]) -> str:
    """What is wrong with the clocks of the nodes; empty if nothing is."""
    if not found or max(found.values()) - min(found.values()) < SKEW_S:
        return ""
    each = ", ".join(f"{name} {ahead_s:+,.3f} s" for name, ahead_s in sorted(found.items()))
    return (
        f"the clocks of the nodes differ (from this machine's: {each}), so deadlines are wrong: "
        "they are counted by the node that leads. Give all nodes one time (NTP)"
    )


@asynccontextmanager
async def explained(log: JetStream) -> AsyncGenerator[None]:
    """Name the nodes that are away when the broker cannot answer because of them.

    Raises:
        BrokerAway: too few nodes of the cluster are there.
    """
    try:
        yield
    except (BrokerAway, ApiError) as problem:
        who, has_majority = await _unreachable(log)
        if has_majority and who:
            raise BrokerAway(f"{who}. {problem}") from None
        if who:
            goes_on = "The ledger goes on when more than half of its nodes are there."
            raise BrokerAway(f"{who}. {goes_on}") from None
        raise


async def _unreachable(log: JetStream) -> tuple[str, bool]:
    """Which nodes do not answer, as far as this client can know, and whether more than half do.

    Without a leader no node says which others there should be: a node names only those that it
    reaches. So each known address is tried, those of the URL and those learned while connected.
    """
    known = {url.netloc.rpartition("@")[2]: url for url in log.connection.client.servers}
    found = await asyncio.gather(*(_greeting(one.hostname, one.port) for one in known.values()))
    there = sorted({one["server_name"] for one in found if one})
    away = [address for address, one in zip(known, found, strict=True) if not one]
    if away:
        who = f"{_count(len(away), len(there) + len(away))} away: {', '.join(away)}"
        return who, len(there) > len(away)
    if len(there) == 1 and any(one.get("cluster") for one in found):
        return f"only {there[0]} of its cluster is known to answer", False
    return "", True


async def _greeting(host: str | None, port: int | None) -> dict[str, Any]:
    """What the server at this address says of itself; empty if none answers."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                line = await reader.readline()
            finally:
                writer.close()
        found: dict[str, Any] = msgspec.json.decode(line.removeprefix(b"INFO "))
    except (OSError, TimeoutError, ValueError):
        return {}
    return found
