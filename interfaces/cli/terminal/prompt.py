"""Reading what is typed at the terminal, or piped in."""

import asyncio
import sys

from ayes.schemas.toml_files import read_text


def text_or_stdin(text: str) -> str:
    """The text itself, or the whole of stdin if it is `-`.

    Raises:
        BadFile: stdin is not UTF-8.
    """
    return read_text("/dev/stdin") if text == "-" else text


async def read_line() -> str | None:
    """The next line that is typed, stripped; None if the input ends (Ctrl-D).

    Other tasks run meanwhile, and Ctrl-C ends it at once, unlike a thread that reads.
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
