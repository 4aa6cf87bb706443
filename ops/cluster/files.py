"""The files of a cluster on three or five hosts: one folder to copy to each.

    address.json     the store of the cluster: with it every command works from here
    ca.pem, ca.key   the authority; its key stays here
    HOST/
        nats.conf, accounts.conf, node.pem, node.key, ca.pem
        ayes-nats.service     for systemd
        compose.yaml          for Docker

Written again into the same directory, they keep passwords and authority. A node is known by its
name, n1 to n5, in the order of the hosts: a new host in the place of another takes over its part.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from ayes.ledger.nats.credentials import Address, Store
from ayes.ops.broker.accounts import REVIEWER, accounts_config, permissions
from ayes.ops.broker.config import server_config
from ayes.ops.broker.server import adopt, passwords
from ayes.ops.cluster.certificates import issue
from ayes.ops.cluster.config import AUTHORITY, CERTIFICATE, KEY, Node, cluster_config
from ayes.ops.cluster.store import SIZES, authority_of
from ayes.schemas.errors import BadInput

#: Where the files and the log are on each host.
CONFIG: Final = PurePosixPath("/etc/ayes-nats")
DATA: Final = PurePosixPath("/var/lib/ayes-nats")
#: nats-server's own ports.
PORT: Final = 4222
ROUTE_PORT: Final = 6222
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def write_files(store: Store, hosts: Sequence[str], people: Sequence[str] = ()) -> list[Node]:
    """Write the files into `store`; returns the nodes.

    Args:
        hosts: their names or IPv4 addresses.
        people: the reviewers who get an account, beside those of earlier times.

    Raises:
        BadInput: the hosts are not three or five different ones, or the directory is not ours.
    """
    _check(hosts)
    roles = [f"{REVIEWER}{name}" for name in people]
    for role in roles:
        permissions(role)
    adopt(store)
    known = passwords(store.read().passwords, roles)
    authority = authority_of(store)
    nodes = [Node(f"n{number}", host, PORT, ROUTE_PORT) for number, host in enumerate(hosts, 1)]
    for node in nodes:
        own = issue(authority, node.name, [node.host])
        folder = Store(store.path / node.host)
        folder.path.mkdir(mode=0o700, exist_ok=True)
        folder.write_private(AUTHORITY, authority.certificate)
        folder.write_private(CERTIFICATE, own.certificate)
        folder.write_private(KEY, own.key)
        folder.write_private("accounts.conf", accounts_config(known).encode())
        folder.write_private("nats.conf", _config(node, nodes).encode())
        folder.write_private("ayes-nats.service", _SYSTEMD.encode())
        folder.write_private("compose.yaml", _COMPOSE.encode())
    url = ",".join(f"tls://{node.address}" for node in nodes)
    store.write(Address(url=url, passwords=known, port=PORT, ca=AUTHORITY))
    return nodes


def _check(hosts: Sequence[str]) -> None:
    if len(set(hosts)) != len(hosts) or len(hosts) not in SIZES:
        raise BadInput(
            f"--hosts {','.join(hosts)} names {len(set(hosts))} hosts. A cluster has 3 or 5, each "
            "named once."
        )
    if wrong := [host for host in hosts if not _HOST.fullmatch(host)]:
        raise BadInput(
            f"--hosts: {wrong[0]!r} is not the name of a host. Name hosts without scheme and port."
        )


def _config(node: Node, nodes: Sequence[Node]) -> str:
    return (
        f"# Node {node.name} of {len(nodes)}; written by `ayes cluster files`.\n"
        + server_config(node.name, node.address, DATA / "jetstream")
        + cluster_config(node, nodes, str(CONFIG))
    )


#: As nats-server's own unit (util/nats-server.service in its repository): stopping it sends
#: SIGUSR2, upon which it hands over its leaderships and clients before it ends.
_SYSTEMD: Final = f"""\
[Unit]
Description=A node of the ledger's NATS cluster
Wants=network-online.target
After=network-online.target

[Service]
User=ayes-nats
ExecStart=/usr/local/bin/nats-server -c {CONFIG}/nats.conf
ExecReload=/bin/kill -s HUP $MAINPID
KillSignal=SIGUSR2
TimeoutStopSec=90
Restart=always
RestartSec=2
LimitNOFILE=65536
StateDirectory=ayes-nats
StateDirectoryMode=0700
NoNewPrivileges=true
PrivateTmp=true
ProtectHome=true
ProtectSystem=strict

[Install]
WantedBy=multi-user.target
"""

_COMPOSE: Final = f"""\
services:
  nats:
    image: nats:2.15
    command: ["-c", "{CONFIG}/nats.conf"]
    network_mode: host
    restart: always
    stop_signal: SIGUSR2
    stop_grace_period: 90s
    volumes:
      - ./:{CONFIG}:ro
      - data:{DATA}
volumes:
  data: {{}}
"""
