"""The journal: what programs were told, and what tools did, for the checker.

Each process appends lines of JSON to a file of its own, each with one system call, so that a kill
loses none that was written. The kinds of lines are those of `tests/support/checker`.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class Journal:
    def __init__(self, folder: Path, process: str) -> None:
        self.folder, self.process = folder, process
        self._file = os.open(
            folder / f"{process}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )

    def note(self, kind: str, **what: Any) -> None:
        line = {"kind": kind, "at": now(), "process": self.process} | what
        os.write(self._file, json.dumps(line).encode() + b"\n")


def now() -> str:
    return datetime.now(UTC).isoformat()


def merged(folder: Path, files: str = "*.jsonl") -> list[dict[str, Any]]:
    """The lines of these processes, in the order of their times."""
    lines = [
        json.loads(line) for file in folder.glob(files) for line in file.read_text().splitlines()
    ]
    return sorted(lines, key=lambda line: str(line["at"]))


def started(line: dict[str, Any]) -> bool:
    """Whether a tool says that it was started."""
    return bool(line["kind"] == "tool" and line["did"] == "started")
