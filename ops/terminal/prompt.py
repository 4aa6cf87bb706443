"""Asking the person at the terminal."""

import asyncio
import sys


async def read_line() -> str | None:
    """The line that is typed next, stripped; None when the input ends (Ctrl-D).

    Other tasks run meanwhile, and Ctrl-C ends it at once: a thread that reads would wait for a
    line.
    """
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    line = sys.stdin.readline()
    return line.strip() if line else None
