"""Ends the brokers that a test process has left, once that has ended: killed, it could not.

    python -S -E left_brokers.py MARK

They have MARK in their environment. The test process holds the other end of stdin.
"""

import contextlib
import os
import signal
import sys

if __name__ == "__main__":
    mark = sys.argv[1].encode()
    sys.stdin.read()
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - pathlib takes longer
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/comm") as name, open(f"/proc/{pid}/environ", "rb") as variables:  # noqa: PTH123
                is_left = name.read() == "nats-server\n" and mark in variables.read().split(b"\0")
            if is_left:
                os.kill(int(pid), signal.SIGTERM)
