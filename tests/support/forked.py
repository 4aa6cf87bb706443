"""A program of Python, forked by `fork_server.py`, for those who start it by a command themselves.

    python -S -E forked.py NAME FILE ARGUMENTS…

NAME is that of the fork server's socket. It has the streams, environment and directory of this
process, which waits for it, passes SIGTERM on and ends as it does. It outlives a kill of this
process, until the end of its input.
"""

import json
import os
import signal
import socket
import sys

if __name__ == "__main__":
    name, *words = sys.argv[1:]
    request = {
        "words": [sys.executable, *words],
        "environment": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109 - pathlib takes longer than all the rest
    }
    reading, answer = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(f"\0{name}")
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2, answer])
    os.close(answer)
    for stream in (0, 1):  # the other program alone holds their ends
        os.close(stream)
    with os.fdopen(reading) as answered:
        pid = int(answered.readline())
        # Or it would hold its streams open after the end of this process.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
        status = answered.readline()
    os._exit(os.waitstatus_to_exitcode(int(status)) & 0xFF)
