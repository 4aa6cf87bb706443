"""Ports for programs whose address is known before they start, or that start again at it.

The kernel gives each connection a port of its own from a range. A port of that range may be taken
while its program is not running, even by a client that tries to connect to it again and again. The
ports here are below that range.
"""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    while True:
        port = random.randrange(10_000, max(end, 11_000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # somebody has it
                continue
            return port
