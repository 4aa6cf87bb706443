"""The files of a cluster on three or five hosts: one folder to copy to each.

    address.json     the store of the cluster: with it every command works from here
    ca.pem, ca.key   the authority; its key stays here
    HOST/
        nats.conf, accounts.conf, node.pem, node.key, ca.pem
        ayes-nats.service     for systemd
        compose.yaml          for Docker
    logins/
        ROLE.env         the login of one role, as environment variables
        ca.pem           what they verify the nodes with
        console/         the store of a console: the logins that it needs
        slack/           the store of a worker `slack`
        links.key        what notifier, slack and console make links with

Written again into the same directory, they keep passwords and authority. A node is known by its
name, n1 to n5, in the order of the hosts: a new host in the place of another takes over its part.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from msgspec import structs

from ayes.ledger.nats.credentials import Address, Store
from ayes.ledger.nats.link_key import FILE as LINK_KEY
from ayes.ledger.nats.link_key import link_key
from ayes.ops.broker.accounts import REVIEWER, SYSTEM, accounts_config, permissions
from ayes.ops.broker.config import server_config
from ayes.ops.broker.server import adopt, passwords
from ayes.ops.cluster.certificates import issue
from ayes.ops.cluster.config import AUTHORITY, CERTIFICATE, KEY, Node, cluster_config
from ayes.ops.cluster.store import SIZES, authority_of
from ayes.schemas.errors import BadInput

#: Where the files and the log are on each host.
CONFIG: Final = PurePosixPath("/etc/ayes-nats")
DATA: Final = PurePosixPath("/var/lib/ayes-nats")
#: Where a program that signs on with one of the logins finds `ca.pem`.
LOGIN: Final = PurePosixPath("/etc/ayes")
#: The folder of the logins.
LOGINS: Final = "logins"
#: The programs that sign on as people, and whom they sign on as besides.
_FOR_PEOPLE: Final = {"console": ("observer", "operator", "service", "api"), "slack": ("slack",)}
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
    before = store.read()
    known = passwords(before.passwords, roles)
    authority = authority_of(store)
    nodes = [Node(f"n{number}", host, PORT, ROUTE_PORT) for number, host in enumerate(hosts, 1)]
    for node in nodes:
        own = issue(authority, node.name, [node.host])
        folder = _folder(store, node.host)
        folder.write_private(AUTHORITY, authority.certificate)
        folder.write_private(CERTIFICATE, own.certificate)
        folder.write_private(KEY, own.key)
        accounts = accounts_config(known, logins=before.living_logins(), of_people=before.scopes)
        folder.write_private("accounts.conf", accounts.encode())
        folder.write_private("nats.conf", _config(node, nodes).encode())
        folder.write_private("ayes-nats.service", SYSTEMD.encode())
        folder.write_private("compose.yaml", _COMPOSE.encode())
    url = ",".join(f"tls://{node.address}" for node in nodes)
    address = structs.replace(before, url=url, passwords=known, port=PORT, ca=AUTHORITY)
    _write_logins(store, address, authority.certificate)
    store.write(address)
    return nodes


def _write_logins(store: Store, address: Address, authority: bytes) -> None:
    """Write a file for each login, so that a program gets its own password and no other."""
    logins = _folder(store, LOGINS)
    logins.write_private(AUTHORITY, authority)
    for role, password in address.passwords.items():
        if role != SYSTEM:
            login = address.url.replace("tls://", f"tls://{role}:{password}@", 1)
            text = f"AYES_URL={login}\nAYES_CA={LOGIN / AUTHORITY}\n"
            logins.write_private(f"{role}.env", text.encode())
    key = link_key(logins)
    for program, roles in _FOR_PEOPLE.items():
        copy = _folder(logins, program)
        copy.write_private(AUTHORITY, authority)
        copy.write_private(LINK_KEY, key)
        own = {
            role: password
            for role, password in address.passwords.items()
            if role in roles or role.startswith(REVIEWER)
        }
        copy.write(structs.replace(address, passwords=own, logins={}))


def _folder(store: Store, name: str) -> Store:
    folder = Store(store.path / name)
    folder.path.mkdir(mode=0o700, exist_ok=True)
    return folder


def _check(hosts: Sequence[str]) -> None:
    if len(set(hosts)) != len(hosts) or len(hosts) not in SIZES:
        raise BadInput(
            f"--hosts {','.join(hosts)} names {len(set(hosts))} hosts. A cluster has 3 or 5, each "
            "named once."
        )
    if wrong := [host for host in hosts if not _HOST.fullmatch(host) or host == LOGINS]:
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
SYSTEMD: Final = f"""\
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

# What it may do on this machine: `systemd-analyze security` explains each of them.
NoNewPrivileges=true
CapabilityBoundingSet=
LockPersonality=true
MemoryDenyWriteExecute=true
PrivateDevices=true
PrivateTmp=true
PrivateUsers=true
ProcSubset=pid
ProtectClock=true
ProtectControlGroups=true
ProtectHome=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
UMask=0077

[Install]
WantedBy=multi-user.target
"""

#: A node of deploy/compose.yaml, in the host's own network.
_COMPOSE: Final = f"""\
# As the user who owns this folder and ./data:
#   mkdir data; echo "OWNER_UID=$(id -u)" > .env; echo "OWNER_GID=$(id -g)" >> .env
services:
  nats:
    image: ${{NATS_IMAGE:-docker.io/library/nats:2.15}}
    command: ["-c", "{CONFIG}/nats.conf"]
    user: "${{OWNER_UID:-10001}}:${{OWNER_GID:-10001}}"
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    network_mode: host
    restart: always
    stop_signal: SIGUSR2
    stop_grace_period: 90s
    volumes:
      - ./:{CONFIG}:ro
      - ./data:{DATA}
"""
