"""What runs on uvloop's event loop and on asyncio's own: the same, to whoever looks from outside.

uvloop is an extra. Where it is not installed, its rows are skipped.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from program import APPROVALS, environment

from ops.processes import loop_factory

uvloop = pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed")
#: What `APPROVALS_NO_UVLOOP` says, by the loop that is meant.
LOOPS = [pytest.param("1", id="asyncio"), pytest.param("", id="uvloop", marks=uvloop)]

#: Starts a child that says where it is, and waits.
PARENT = """
import asyncio, sys
from ops.processes import apart, loop_factory

CHILD = "import os, time; print(os.getpid(), os.getpgrp(), flush=True); time.sleep(60)"

async def main():
    print(type(asyncio.get_running_loop()).__module__, flush=True)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, preexec_fn=apart())
    await child.wait()

asyncio.run(main(), loop_factory=loop_factory())
"""


def running(pid):
    """A zombie that nobody has collected yet runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid):
    async with asyncio.timeout(10):
        while running(pid):  # noqa: ASYNC110 - somebody else's child
            await asyncio.sleep(0.02)


async def loop_of(factory):
    return type(asyncio.get_running_loop()).__module__


@uvloop
def test_uvloop_is_used_where_it_is_installed(monkeypatch):
    """Nobody needs to ask for it."""
    monkeypatch.delenv("APPROVALS_NO_UVLOOP", raising=False)
    assert asyncio.run(loop_of(None), loop_factory=loop_factory()).startswith("uvloop")


@uvloop
def test_uvloop_can_be_switched_off(monkeypatch):
    """By an environment variable that is set to anything."""
    monkeypatch.setenv("APPROVALS_NO_UVLOOP", "1")
    assert loop_factory() is None


def test_without_uvloop_commands_run_on_asyncios_own_loop(monkeypatch):
    """What is not installed is not missed."""
    monkeypatch.delenv("APPROVALS_NO_UVLOOP", raising=False)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child lives on when its parent is killed")
@pytest.mark.parametrize("off", LOOPS)
async def test_a_child_apart_is_in_a_group_of_its_own_and_dies_with_us(off):
    """Ctrl-C in our terminal does not reach it; kill -9 of us does."""
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT),
        cwd=Path(__file__).parents[1],
        env=environment(APPROVALS_NO_UVLOOP=off),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        module = (await parent.stdout.readline()).decode()
        assert module.startswith("asyncio" if off else "uvloop")
        child, group = map(int, (await parent.stdout.readline()).split())
        assert group == child
        assert os.getpgid(parent.pid) == parent.pid
        parent.kill()
        await gone(child)
    finally:
        with suppress(ProcessLookupError):
            parent.kill()
        await parent.wait()


@pytest.mark.parametrize("off", LOOPS)
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_goes_to_the_whole_group_and_the_broker_goes_last(off, stop, tmp_path):
    """A terminal sends it to every process of the group. The workers end in order, and then the broker is stopped by us (0)."""
    log = tmp_path / "log"
    with log.open("ab") as words:
        process = await asyncio.create_subprocess_exec(
            *(str(APPROVALS), "up", "--store", str(tmp_path / "store"), "--json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
            env=environment(APPROVALS_NO_UVLOOP=off, APPROVALS_VERBOSE="1"),
            start_new_session=True,
        )
    try:
        broker = json.loads(await process.stdout.readline())["pid"]
        assert os.getpgid(broker) == broker != os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, stop)
        async with asyncio.timeout(20):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = log.read_text()
    assert said.index("workers stopped") < said.index("broker stopped")
    assert "Traceback" not in said
    assert not running(broker)
    assert "Server Exiting" in (tmp_path / "store" / "server.log").read_text()
    assert ("selector" in said) is bool(off)  # asyncio's own loop says, at debug, what it selects with
