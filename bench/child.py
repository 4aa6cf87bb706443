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
    module: str, store: Path
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """Run `serve()` of this module on a store, for as long as the block lasts.

    Yields the process and its URL.
    """
    program = f"import asyncio; from {module} import serve; asyncio.run(serve())"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(store)),
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
