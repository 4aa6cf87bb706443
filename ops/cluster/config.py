"""The part of a nats-server's configuration that makes it a node of a cluster."""

import json
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

#: Copies of each stream.
REPLICAS: Final = 3
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


def cluster_config(node: Node, nodes: Sequence[Node], folder: str) -> str:
    """TLS, routes and timeouts of `node`.

    Pings and the write deadline find a node or client that vanished without closing its connection
    within 20 to 30 s; nats-server's own defaults take four minutes.

    Args:
        folder: where the node's certificates are, as an absolute path.
    """
    files = (
        f"cert_file: {_quoted(f'{folder}/{CERTIFICATE}')}, key_file: {_quoted(f'{folder}/{KEY}')}"
    )
    routes = [f"nats://{one.host}:{one.route_port}" for one in nodes]
    return (
        'ping_interval: "10s"\n'
        "ping_max: 2\n"
        'write_deadline: "5s"\n'
        'lame_duck_duration: "30s"\n'
        'lame_duck_grace_period: "2s"\n'
        f"tls {{{files}, timeout: 5}}\n"
        "cluster {\n"
        "  name: ayes\n"
        f"  listen: {_quoted(f'{node.host}:{node.route_port}')}\n"
        f"  routes: {_quoted(routes)}\n"
        f"  tls {{{files}, ca_file: {_quoted(f'{folder}/{AUTHORITY}')}, timeout: 5}}\n"
        "}\n"
    )


def _quoted(value: str | list[str]) -> str:
    # A JSON string or list of strings is also valid in a nats-server configuration.
    return json.dumps(value, ensure_ascii=False)
