"""A server that forks `ayes` and Python processes from one that has imported everything: 20 ms of
CPU from the start to the end of one that does nothing, rather than 0.8 s.

Each is a real process, with its own arguments, environment, directory, streams and exit code. Only
the end differs: the interpreter is not taken down, which takes 0.25 s with so many modules.
`program.py` runs this file once for all test processes, and sends a request for each start, on a
socket with a name: the arguments, the environment and the directory as JSON, with four file
descriptors: stdin, stdout, stderr, and a pipe for the answer, which is the pid in one line and the
wait status in the next. What other programs have to start themselves asks through `forked.py`.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def serve(run: int, listener: socket.socket) -> dict[str, Any]:
    """Return in each new process with its request; in the server, never return.

    Args:
        run: becomes ready when the tests have ended.
    """
    #: The processes, by descriptors that become ready when they end: the pid, and their answer.
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([run, listener, *running], [], [])[0]:
            if ready in running:
                pid, answer = running.pop(ready)
                _answer(answer, os.waitpid(pid, 0)[1])
                os.close(ready)
                os.close(answer)
                continue
            if ready == run:
                os._exit(0)
            with listener.accept()[0] as asking:
                data, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 4)
            if not data:  # it was killed meanwhile
                continue
            *streams, answer = descriptors
            if (pid := os.fork()) == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                listener.detach()
                others = (one for _, one in running.values())
                os.closerange(3, max(*descriptors, *running, *others, run) + 1)
                return json.loads(data)
            for stream in streams:
                os.close(stream)
            running[os.pidfd_open(pid)] = pid, answer
            _answer(answer, pid)


def _answer(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(descriptor, b"%d\n" % number)


def _text(number: int, mode: str) -> io.TextIOWrapper:
    """Open a standard stream as Python does at its start."""
    return io.TextIOWrapper(
        open(number, f"{mode}b", closefd=False),
        encoding="utf-8",
        errors="backslashreplace" if number == 2 else "strict",
        line_buffering=number == 2 or os.isatty(number),
    )


def become(words: list[str], environment: dict[str, str], directory: str | None) -> None:
    """Take over the arguments, environment and directory of a request."""
    if directory is not None:
        os.chdir(directory)
    # Whoever runs the tests in the background may ignore it, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = words
    sys.stdin, sys.stdout, sys.stderr = _text(0, "r"), _text(1, "w"), _text(2, "w")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def program() -> Callable[[], object]:
    """What `sys.argv` starts: `python FILE`, `python -c CODE` or `-m MODULE`, or else `ayes`."""
    from ayes.interfaces.cli import main as cli

    if sys.argv[0] != sys.executable:
        return cli.main
    option, *rest = (word for word in sys.argv[1:] if word != "-P")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if option.endswith(".py"):
        sys.argv = [option, *rest]
        sys.path.insert(0, str(Path(option).parent))  # as Python does
        return lambda: runpy.run_path(option, run_name="__main__")
    what, *rest = rest
    sys.argv = [option, *rest]
    if option == "-c":
        return lambda: exec(compile(what, "<string>", "exec"), vars(main))
    # It was imported by a command; as a program it is not.
    sys.modules.pop(what, None)
    return lambda: runpy.run_module(what, run_name="__main__", alter_sys=True)


def run(main: Callable[[], object]) -> None:
    """Run a program and end as Python does, up to where it takes its modules down. A program that
    ends by any other exception than `SystemExit` with a number ends in the usual way.
    """
    try:
        main()
        code = 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code
        if not isinstance(code, int):
            raise
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    from patient import wait_for_brokers

    sys.path.pop(0)
    import duckdb  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pytest

    with contextlib.suppress(ImportError):  # PyArrow does, where it is installed
        import pandas  # noqa: F401, ICN001

    import mcp.server.mcpserver  # noqa: F401

    import ayes.interfaces.cli as package
    import ayes.interfaces.console.application
    import ayes.interfaces.console.serving

    # The command imports it when it is called; the servers behind a gateway need the rest.
    import ayes.interfaces.mcp.server  # noqa: F401

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")

    wait_for_brokers(pytest.MonkeyPatch())
    # A collection in a forked process would copy all memory that it shares with the others.
    gc.collect()
    gc.freeze()
    run_of_tests, listening = map(int, sys.argv[1:])
    become(**serve(run_of_tests, socket.socket(fileno=listening)))
    run(program())
