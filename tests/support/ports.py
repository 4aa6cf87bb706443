"""Ports for programs that are started at an address which is known before, or again at the same.

They are below those that the kernel gives to whoever connects. Such a port may be taken while its
program is not there, also by a client that tries it again and again: it then reaches itself.
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
