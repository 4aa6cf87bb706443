"""A driver of the crash matrix as a program of its own: `STORE FOLDER DRIVER start|resume [hang]`.

It prints what the model was told as JSON. With `hang` its tool runs for ever.
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


class Runs(list[dict[str, Any]]):
    """The runs of the tool, in a file that outlives the process."""

    def __init__(self, file: Path, *, hangs: bool) -> None:
        self.file, self.hangs = file, hangs

    def append(self, arguments: dict[str, Any]) -> None:
        with self.file.open("a") as opened:
            opened.write(json.dumps(arguments) + "\n")
        if self.hangs:
            time.sleep(600)


async def main(store: str, folder: str, driver: str, step: str, *more: str) -> None:
    runs = Runs(Path(folder) / "runs.txt", hangs="hang" in more)
    wishes = (("call_9", "refund", {"amount": 100}),)
    async with Ledger.connect(store, name="desk") as ledger:
        kernel = Kernel(ledger, "shop", requester="rita")
        agent = importlib.import_module(driver).Agent(kernel, Path(folder), wishes, runs)
        sys.stdout.write(json.dumps(await getattr(agent, step)()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
