"""The part of a nats-server's configuration that makes it a node of a cluster."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ayes.ops.broker.config import quoted

#: The files of a node's certificate, of its key, and of the authority's certificate.
CERTIFICATE: Final = "node.pem"
KEY: Final = "node.key"
AUTHORITY: Final = "ca.pem"


class Node(Struct, frozen=True):
    """A server of the cluster, as clients and the other nodes reach it."""

    name: str
    host: str
    port: int
    route_port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def cluster_config(node: Node, nodes: Sequence[Node], folder: str) -> str:
    """TLS, routes and timeouts of `node`.

    Pings and the write deadline find a client that vanished without closing its connection within
    9 s; nats-server's own defaults take up to six minutes, in which the client is still sent
    deliveries. A node is found within 6 s: until then
    the others still assign new consumers to it, whose clients wait for nothing.

    Args:
        folder: where the node's certificates are, as an absolute path.
    """
    files = f"cert_file: {quoted(f'{folder}/{CERTIFICATE}')}, key_file: {quoted(f'{folder}/{KEY}')}"
    routes = [f"nats://{one.host}:{one.route_port}" for one in nodes]
    return (
        'ping_interval: "3s"\n'
        "ping_max: 2\n"
        'write_deadline: "5s"\n'
        # The least that nats-server takes; clients move to other nodes during it.
        'lame_duck_duration: "30s"\n'
        'lame_duck_grace_period: "2s"\n'
        # Clients verify the certificate for the name by which they were told of the node.
        f"client_advertise: {quoted(node.address)}\n"
        f"tls {{{files}, timeout: 5}}\n"
        "cluster {\n"
        "  name: ayes\n"
        f"  listen: {quoted(f'{node.host}:{node.route_port}')}\n"
        f"  routes: {quoted(routes)}\n"
        '  ping_interval: "2s"\n'
        "  ping_max: 2\n"
        f"  tls {{{files}, ca_file: {quoted(f'{folder}/{AUTHORITY}')}, timeout: 5}}\n"
        "}\n"
    )
