"""Programs under a supervisor that starts them again and counts who ended by themselves."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from journal import Journal
from msgspec import Struct

from ayes.ops.broker.processes import die_with_parent

HERE = Path(__file__).resolve().parent
AYES = Path(sys.executable).with_name("ayes")
REHEARSAL = [sys.executable, "-m", "bench.rehearsal"]
#: The pause before a program is started again.
AGAIN_S = 0.5


class Ended(Struct, frozen=True):
    """A program that ended although nobody told it to."""

    name: str
    code: int
    at: float
    #: The last lines that it wrote.
    words: str


class Program:
    """One program, started again whenever it ends, until `end`.

    Args:
        is_load: it is a program of `load.py`. SIGTERM waits until it has begun, so that it then
            finishes what it had in progress before it was killed.
    """

    def __init__(
        self, name: str, command: list[str], folder: Path, *, is_load: bool = False
    ) -> None:
        self.name = name
        self._is_load = is_load
        self.starts = 0
        self.ended: list[Ended] = []
        self._command, self._folder = command, folder
        self._output = folder / "output" / name
        self._output.parent.mkdir(exist_ok=True)
        self._process: asyncio.subprocess.Process | None = None
        self._killed = self._ending = False
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._task: asyncio.Task[None]

    @property
    def process(self) -> str:
        """The name of this start of it, in the journal."""
        return f"{self.name}.{self.starts}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def is_ready(self) -> bool:
        """Whether a worker has said that it works."""
        return self._output.exists() and b'{"workers"' in self._output.read_bytes()

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise())

    async def kill(self, away_s: float, notes: Journal) -> None:
        """Kill it, and let it start again after a while."""
        if not self.is_running:
            return
        self._killed = True
        self._may_run.clear()
        notes.note("died", process=self.process)
        self.signal(signal.SIGKILL)
        try:
            await asyncio.sleep(away_s)
        finally:
            self._may_run.set()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, number)

    async def end(self, patience_s: float) -> bool:
        """Let it finish its work; whether it did in time."""
        self._ending = True
        self._may_run.set()
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await asyncio.shield(self._task)
                return True
        self.signal(signal.SIGKILL)
        await self._task
        return False

    async def _supervise(self) -> None:
        while True:
            await self._may_run.wait()
            if self._ending:
                return
            self._killed = False
            self.starts += 1
            await self._run()
            await asyncio.sleep(AGAIN_S)

    def _begin(self) -> Callable[[], None]:
        """What its process does before its program begins."""
        die = die_with_parent()

        def begin() -> None:
            if die is not None:
                die()
            if self._is_load:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

        return begin

    async def _run(self) -> None:
        journal = self._folder / "journal"
        variables = os.environ | {"CHAOS_JOURNAL": str(journal), "CHAOS_PROCESS": self.process}
        variables["PYTHONPATH"] = os.pathsep.join(
            [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        with self._output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(one.replace("PROCESS", self.process) for one in self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=variables,
                cwd=HERE,
                preexec_fn=self._begin(),
            )
            if self._ending:  # meanwhile
                self.signal(signal.SIGTERM)
            code = await self._process.wait()
        if not self._killed and not self._ending:
            at = asyncio.get_running_loop().time()
            words = self._output.read_text(errors="replace")[-400:]
            self.ended.append(Ended(self.name, code, at, words))


#: One of each kind, for a short run.
FEW = ("gate-a", "queue-a", "executor-a", "desk-a1", "desk-a2", "ana", "ben", "cai", "rival-a")
PACKERS = ("packer-a", "packer-b")
#: How long what a packer packs must have been settled, in seconds.
SETTLED_S = 10.0
#: Those that run only if the log is packed.
PACKING = (*PACKERS, "model")


def ours(
    folder: Path, store: Path, seed: str, recorded: Path, ack_wait_s: float
) -> dict[str, Program]:
    """Everything that runs against the broker, by name."""
    work = [str(AYES), "work"]
    recorded_work = [*REHEARSAL, "work"]
    where = ["--store", str(store), "--ack-wait", f"{ack_wait_s:g}s", "--json"]
    load = [sys.executable, str(HERE / "load.py")]

    def loaded(kind: str, name: str) -> list[str]:
        return [*load, kind, name, str(store), str(folder / "journal" / "PROCESS"), seed]

    commands: dict[str, list[str]] = {}
    for one in ("a", "b"):
        tools = ["--tools", "chaos_tools:tools", "-w", "load"]
        commands[f"gate-{one}"] = [*work, "gate", *where]
        commands[f"queue-{one}"] = [*work, "queue", *where]
        commands[f"executor-{one}"] = [*work, "executor", *tools, *where]
        commands[f"rival-{one}"] = loaded("rival", f"rival-{one}")
        commands[f"desk-{one}1"] = loaded("desk", f"desk-{one}1")
        commands[f"desk-{one}2"] = loaded("desk", f"desk-{one}2")
    for kind in ("model", "executor"):
        commands[f"recorded-{kind}"] = [*recorded_work, kind, "--recording", str(recorded), *where]
    for person in ("ana", "ben", "cai"):
        commands[person] = loaded("reviewer", person)
    commands["rehearsal"] = loaded("rehearsal", "rehearsal")
    commands |= {name: loaded(name.split("-")[0], name) for name in PACKING}
    return {
        name: Program(name, command, folder, is_load=command[:2] == load)
        for name, command in commands.items()
    }


#: Those of the package itself: none of them may end by itself.
def workers(programs: Iterable[Program]) -> list[Program]:
    kinds = ("gate", "queue", "executor", "recorded")
    return [one for one in programs if one.name.startswith(kinds)]
