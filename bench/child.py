"""A measured program in a process of its own, which prints its URL once it is served."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ayes.ops.broker.processes import die_with_parent, environment


@asynccontextmanager
async def served(
    module: str, store: Path, does: str = "serve", *more: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """Run a function of this module on a store, for as long as the block lasts.

    Args:
        more: arguments of the program, after the store.

    Yields the process and its URL.
    """
    program = f"import asyncio; from {module} import {does}; asyncio.run({does}())"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(store), *more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent(),
        env=environment(),
    )
    assert process.stdout
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
