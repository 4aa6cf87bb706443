"""What the library says to a program that uses it: nothing below a warning, and nothing on
stdout.
"""

import asyncio
import sys
from pathlib import Path

from brokers import running

PROGRAM = """
import asyncio, sys
from ayes import Ledger

async def main():
    async with Ledger.connect(sys.argv[1], name="billing") as ledger:
        print("connected", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await ledger.log.clock()
        print("again", flush=True)

asyncio.run(main())
"""


async def test_a_broker_that_is_away_is_told_in_two_lines(tmp_path: Path):
    """One warning when it goes, one when it is back, both on stderr (A7)."""
    store = tmp_path / "store"
    pipe = asyncio.subprocess.PIPE
    async with running(store):
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, str(store), stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert program.stderr
        assert await program.stdout.readline() == b"connected\n"
    assert b"away" in await program.stderr.readline()
    async with running(store):
        assert b"back" in await program.stderr.readline()
        out, rest = await program.communicate(b"\n")
    assert (program.returncode, out, rest) == (0, b"again\n", b"")
