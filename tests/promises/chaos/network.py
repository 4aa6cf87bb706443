"""A network of this machine's own, in which connections can be cut without a word.

Each node is in a network namespace, behind a bridge, and clients are on the host's side of it. A
cut lasts until it is mended; packets into it vanish, as behind a dead switch or a full NAT table,
and no connection is closed. One direction is cut by a neighbour entry: the sender's kernel has a
wrong hardware address for the receiver, and the bridge delivers the packets to nobody.
"""

import itertools
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

#: The name of the host's side, where the clients are.
CLIENTS = "clients"
#: Nobody has it.
_NOBODY = "02:00:00:00:ff:ff"


class NoNetwork(Exception):
    """This machine or user may not create network namespaces; says why."""


class Network:
    """Members by name: the nodes, and `CLIENTS`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._tag = f"{os.getpid() % 0xFFFF:04x}"
        self._bridge = f"chaos{self._tag}"
        # 198.18.0.0/15 is for tests of networks (RFC 2544), so nothing else should be there.
        prefix = f"198.18.{os.getpid() % 254 + 1}"
        self.addresses = {CLIENTS: f"{prefix}.254"}
        self.addresses |= {name: f"{prefix}.{number}" for number, name in enumerate(names, 1)}
        self._hardware: dict[str, str] = {}

    @property
    def nodes(self) -> list[str]:
        return [name for name in self.addresses if name != CLIENTS]

    @contextmanager
    def up(self) -> Iterator[None]:
        with ExitStack() as stack:
            _ip("link", "add", self._bridge, "type", "bridge")
            stack.callback(_ip, "link", "del", self._bridge)
            _ip("addr", "add", f"{self.addresses[CLIENTS]}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for name in self.nodes:
                _ip("netns", "add", self.space(name))
                stack.callback(_ip, "netns", "del", self.space(name))
                self._attach(name)
                # A space is taken away some time after it was deleted, and its cable with it.
                stack.callback(_ip, "link", "del", self._cable(name))
            # Fixed, so that no later request for an address can mend a cut.
            self._hardware = {name: self._hardware_of(name) for name in self.addresses}
            self.mend()
            yield

    def inside(self, name: str, *command: str) -> list[str]:
        """The command that runs another one where this member is."""
        return ["ip", "netns", "exec", self.space(name), *command]

    def cut(self, source: str, target: str) -> None:
        """Lose all packets from one member to another, and not those the other way."""
        self._neighbour(source, target, _NOBODY)

    def isolate(self, name: str) -> None:
        """Cut a member off from all others, in both directions."""
        for other in self.addresses:
            if other != name:
                self.cut(name, other)
                self.cut(other, name)

    def mend(self) -> None:
        for source, target in itertools.permutations(self.addresses, 2):
            self._neighbour(source, target, self._hardware[target])

    def _attach(self, name: str) -> None:
        space, cable = self.space(name), self._cable(name)
        peer = ("peer", "name", "eth0", "netns", space)
        _ip("link", "add", cable, "type", "veth", *peer)
        _ip("link", "set", cable, "master", self._bridge, "up")
        _ip("-n", space, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")

    def _cable(self, name: str) -> str:
        return f"c{self._tag}{name}"

    def space(self, name: str) -> str:
        return f"chaos-{self._tag}-{name}"

    def _where(self, name: str) -> tuple[list[str], str]:
        """The options of `ip` that select a member, and its device."""
        return ([], self._bridge) if name == CLIENTS else (["-n", self.space(name)], "eth0")

    def _hardware_of(self, name: str) -> str:
        options, device = self._where(name)
        return _ip(*options, "-br", "link", "show", device).split()[2]

    def _neighbour(self, source: str, target: str, hardware: str) -> None:
        options, device = self._where(source)
        entry = (self.addresses[target], "lladdr", hardware, "dev", device, "nud", "permanent")
        _ip(*options, "neigh", "replace", *entry)


def why_not() -> str:
    """Why no such network can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "only root may create network namespaces"
    try:
        with Network(["n1"]).up():
            return ""
    except (OSError, NoNetwork) as problem:
        return f"no network namespaces can be created here: {problem}"


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetwork(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
