"""A driver of the crash matrix as a program of its own, which resumes: `STORE FOLDER DRIVER`.

Its tool writes its arguments to `runs.txt`, and runs for ever.
"""

import asyncio
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from ayes.adapters.kernel import Kernel
from ayes.ledger.clients.services import Ledger


class Hanging(list[dict[str, Any]]):
    """The runs of the tool, the first of which does not end."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def append(self, arguments: dict[str, Any]) -> None:
        with self.file.open("a") as opened:
            opened.write(json.dumps(arguments) + "\n")
        time.sleep(600)


async def main(store: str, folder: str, driver: str) -> None:
    runs = Hanging(Path(folder) / "runs.txt")
    async with Ledger.connect(store, name="desk") as ledger:
        kernel = Kernel(ledger, "shop", requester="rita")
        agent = importlib.import_module(driver).Agent(kernel, Path(folder), (), runs)
        await agent.resume()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
