"""The real `ayes` program, as users and scripts start it."""

import asyncio
import functools
import json
import logging
import os
import pty
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

import pytest
import structlog
from until import recorded

from ayes.interfaces.cli import main as cli
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Bucket
from ayes.schemas.events import Event
from ayes.schemas.slots import CallRef, Slot
from ayes.schemas.tools import ToolSpec

AYES = Path(sys.executable).with_name("ayes")
#: The program that rehearses recorded conversations.
REHEARSAL = (sys.executable, "-m", "bench.rehearsal")
#: The process that ends when this run of the tests does.
_RUN = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
#: The name of the fork server's socket, in Linux' name space without files.
_NAME = f"ayes-fork-server-{_RUN}"

#: Variables that a developer's shell may set; no test may depend on them.
FROM_A_SHELL = ("AYES_", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLUMNS", "LINES", "TTY_", "OTEL_")


#: To make the commands of a module takes longer than to run one.
_get_group = functools.cache(cli.get_group)


class Ended(NamedTuple):
    """The result of a program: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        # Not splitlines: JSON may contain U+2028, which does not end a line here.
        return [json.loads(line) for line in self.out.split("\n") if line]

    @property
    def one(self) -> Any:
        (line,) = self.lines
        return line

    @property
    def problem(self) -> Any:
        """The error that `--json` reports."""
        return json.loads(self.err.splitlines()[-1])


def environment(**variables: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(FROM_A_SHELL)}
    return ours | {name: str(value) for name, value in variables.items()}


class Started(Popen[Any]):
    """`ayes`, or Python with `-c` or `-m`, as a real process, forked by `fork_server.py`.

    It is not a child of this process, so starting it and waiting for it differ; all else is as if
    a shell had started it.
    """

    def _execute_child(self, args, *others):  # overrides subprocess.Popen
        _, _, _, _, cwd, env, *_ = others
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = others[9:15]
        request = {
            "words": [str(one) for one in args],
            "environment": dict(os.environ if env is None else env),
            "directory": str(cwd or Path.cwd()),
        }
        streams = [
            given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))
        ]
        reading, answer = os.pipe()
        try:
            _ask_fork_server(json.dumps(request).encode(), [*streams, answer])
        finally:
            os.close(answer)
        self._answer = os.fdopen(reading)
        self.pid = int(self._answer.readline())
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags):
        if wait_flags & os.WNOHANG and not select.select([self._answer], [], [], 0)[0]:
            return 0, 0
        with self._answer:
            return self.pid, int(self._answer.readline())

    def _internal_poll(self, _deadstate=None):
        if self.returncode is None and not self._answer.closed:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


def _ask_fork_server(request: bytes, descriptors: Sequence[int]) -> None:
    """Send a request to the fork server, which whoever is the first to need it starts."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        while True:
            try:
                server.connect(f"\0{_NAME}")
                break
            except ConnectionRefusedError:
                _start_fork_server()
        socket.send_fds(server, [request], descriptors)


def _start_fork_server() -> None:
    """Start it unless there is one. All test processes of a run share it; it ends with the run."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(f"\0{_NAME}")
        except OSError:  # another process has the name
            return
        listener.listen()
        file = Path(__file__).with_name("fork_server.py")
        given = (os.pidfd_open(_RUN), listener.fileno())
        command = [sys.executable, file, *map(str, given)]
        process = Popen(command, pass_fds=given, env=environment())
        process.returncode = 0  # Python complains of a process that is forgotten while it runs
        os.close(given[0])


def forked(*words: object) -> list[str]:
    """A command that starts Python by a fork: 30 ms of CPU rather than what imports take."""
    _start_fork_server()
    file = Path(__file__).with_name("forked.py")
    return [sys.executable, "-S", "-E", str(file), _NAME, *map(str, words)]


def approvals(
    *arguments: object,
    store: Path | None = None,
    cwd: Path | None = None,
    timeout_s: float = 60,
    typed: str = "",
    program: Sequence[object] = (AYES,),
    **variables: str,
) -> Ended:
    """Run it to its end; `typed` is its input, and AYES_STORE names the store."""
    if store is not None:
        variables["AYES_STORE"] = str(store)
    ended = _ended([*program, *arguments], cwd, timeout_s, typed, environment(**variables))
    # It does not run on a terminal.
    assert "\x1b" not in ended.out + ended.err
    assert "Traceback" not in ended.err, ended.err
    return ended


def python(code: str, *arguments: object, timeout_s: float = 60, **variables: str) -> Ended:
    """Run this code to its end, in a process of its own."""
    command = [sys.executable, "-c", code, *arguments]
    return _ended(command, None, timeout_s, "", environment(**variables))


def _ended(
    command: Sequence[object],
    cwd: Path | None,
    timeout_s: float,
    typed: str,
    variables: dict[str, str],
) -> Ended:
    with Started(
        [*map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=variables,
    ) as process:
        try:
            out, err = process.communicate(typed, timeout_s)
        except BaseException:
            process.kill()
            raise
    return Ended(process.returncode, out, err)


@contextmanager
def started(
    *arguments: object,
    log: Path | None = None,
    program: Sequence[object] = (AYES,),
    **variables: str,
) -> Iterator[subprocess.Popen[str]]:
    """Run it for the duration of the block. Without a log its stderr is a pipe."""
    with (
        (log or Path(os.devnull)).open("a") as words,
        Started(
            [str(one) for one in (*program, *arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words if log else subprocess.PIPE,
            text=True,
            env=environment(**variables),
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=60)


@asynccontextmanager
async def killed_at_the_end(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """Kill the process when the block ends, unless it has ended by itself."""
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@contextmanager
def up(store: Path, *options: object) -> Iterator[dict[str, Any]]:
    """Run `ayes up` on this store; yields its ready message with its pid as `up`. A console takes a
    second to start, and is served only if the options say `--console`.
    """
    store.parent.mkdir(parents=True, exist_ok=True)
    log = store.parent / "up.log"
    given = ("up", "--store", store, "--json", "--no-console", *options)
    with started(*given, log=log) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line) | {"up": process.pid}


#: What the tools of `shop` take.
AMOUNT = """{
  "type": "object",
  "properties": {"amount": {"type": "integer"}},
  "required": ["amount"],
  "additionalProperties": false
}"""
FIVE = '{"amount": 5}'


def declare(store: Path, tools: Sequence[str], *workspaces: str) -> None:
    """Declare tools that their callers run."""

    async def declared() -> None:
        async with Ledger.connect(store) as ledger:
            for workspace in workspaces:
                for tool in tools:
                    await ledger.declare(workspace, ToolSpec(name=tool, schema=AMOUNT))

    asyncio.run(declared())


@contextmanager
def shop(folder: Path, policy: str, tools: Sequence[str], *more: str) -> Iterator[Path]:
    """The store of a running `ayes up`: in workspace `shop` a policy is in force, and there and in
    `more` workspaces tools are declared, which their callers run.
    """
    file = folder / "policy.toml"
    file.write_text(policy)
    with up(folder / "store", "--policy", file, "-w", "shop") as ready:
        declare(Path(ready["store"]), tools, "shop", *more)
        yield Path(ready["store"])


#: Commands that may be repeated, since they record nothing.
_READING = frozenset({"doctor", "history", "queue", "replay", "show", "status"})


@contextmanager
def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ended]]:
    """Run the program in this process: for the many runs that differ in a word."""
    monkeypatch.setattr(cli, "get_group", _get_group)
    root, config = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    for name in [name for name in os.environ if name.startswith(FROM_A_SHELL)]:
        monkeypatch.delenv(name)

    def once(arguments: list[str]) -> Ended:
        with pytest.raises(SystemExit) as end:
            cli.app(arguments, prog_name="ayes")
        return Ended(end.value.code, *capsys.readouterr())

    def run(*arguments: object, store: Path | None = None) -> Ended:
        if store is not None:
            monkeypatch.setenv("AYES_STORE", str(store))
        words = [str(one) for one in arguments]
        ended = once(words)
        # On a busy machine a broker may answer too late: what only reads is asked again, as the
        # exit code 75 says.
        while words[:1] and words[0] in _READING and "no answer within" in ended.err:
            ended = once(words)
        return ended

    yield run
    root.handlers = handlers
    root.setLevel(level)
    structlog.configure(**config)


@contextmanager
def piped(text: str) -> Iterator[str]:
    """The path of a pipe that holds this text (up to 64 KiB), as a shell makes one for `<(...)`."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "w") as content:
            content.write(text)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


class Terminal:
    """The program on a terminal, with a user who reads and types."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self.told = ""
        self._ours = ours

    def read_until(self, text: str) -> None:
        while text not in self.told:
            assert self._read(), self.told

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def type_end(self) -> None:
        """Type Ctrl-D at the beginning of a line, which ends the input."""
        os.write(self._ours, b"\x04")

    def ended(self) -> int:
        while self._read():
            pass
        return self.process.wait(60)

    def _read(self) -> bool:
        try:
            self.told += os.read(self._ours, 65536).decode()
        except OSError:  # how Linux reports that the other end is closed
            return False
        return True


@contextmanager
def at_a_terminal(*arguments: object, store: Path, **variables: str) -> Iterator[Terminal]:
    """Run it on a terminal for the duration of the block."""
    ours, theirs = pty.openpty()
    with Started(
        [AYES, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(AYES_STORE=str(store), TERM="xterm-256color", **variables),
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            os.close(ours)
            if process.poll() is None:
                process.terminate()


# ------------------------------------------------------------------------- other clients


def ask(
    store: Path,
    call: CallRef,
    tool: str = "pay",
    requester: str = "rita",
    arguments: str = '{"amount": 5}',
) -> str:
    """Request a tool as a service does and wait for the gate; returns the call's digest."""

    async def asked() -> str:
        async with Ledger.connect(store) as ledger:
            known = await ledger.request(call, tool, arguments, requester=requester)
            await recorded(ledger, call.gated.subject, call.decided.subject)
            return known.wish.digest

    return asyncio.run(asked())


def until_listed(store: Path, call: CallRef, *, listed: bool = True) -> None:
    """Wait until the queue has this call, or no longer: its worker learns of it later."""

    async def changed() -> None:
        async with Ledger.connect(store) as ledger, asyncio.timeout(60):
            key = str(call).replace("/", ".")
            while (key in await ledger.log.pending.entries()) is not listed:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    asyncio.run(changed())


def until(store: Path, *slots: Slot) -> None:
    """Wait until these slots are filled."""

    async def filled() -> None:
        async with Ledger.connect(store, role="observer") as ledger:
            for slot in slots:
                await recorded(ledger, slot.subject)

    asyncio.run(filled())


async def entry_of(bucket: Bucket, key: str) -> tuple[bytes, int]:
    """An entry of the queue and its revision, once the queue's worker has written it."""
    async with asyncio.timeout(60):
        while True:
            value, revision = await bucket.get(key)
            if value:
                return value, revision
            await asyncio.sleep(0.01)


def record(store: Path, *facts: tuple[Slot, Event]) -> None:
    """Record facts as an administrator."""

    async def appended() -> None:
        async with Ledger.connect(store, role="admin") as ledger:
            for slot, event in facts:
                assert await ledger.try_append(slot, event) is None

    asyncio.run(appended())


def last_seq(store: Path) -> int:
    async def read() -> int:
        async with Ledger.connect(store, role="observer") as ledger:
            return await ledger.log.last_seq()

    return asyncio.run(read())
