"""The demo's agent: a model that needs no key, and tools that work in their own folder.

The model is a few rules over its history. It is real where it matters here: it reads the results of
its tools and the decisions of people, and continues from them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from ayes.consumers.model import ModelReply, ModelRequest
from ayes.consumers.tools import Tools
from ayes.projections.history import Outcome
from ayes.schemas import events as e
from ayes.schemas.content import words

PROVIDER: Final = "demo"
TASK: Final = "The disk is nearly full. Please delete the temporary files."
POLICY: Final = """\
# Looking is free. Deleting is asked about.
[[rule]]
name = "looking"
tools = ["list_files"]
then = "allow"

[[rule]]
name = "deleting a file"
tools = ["delete_file"]
then = "ask"
voters = ["ana"]
expires_in_s = 600
reason = "A deleted file does not come back."
"""


class DemoAgent:
    """Lists the files, asks to delete the temporary ones, and reports the results."""

    async def reply(self, question: ModelRequest) -> ModelReply:
        outcomes = [entry for entry in question.history if isinstance(entry, Outcome)]
        deleted = [one for one in outcomes if one.tool == "delete_file"]
        if not outcomes:
            return ModelReply((e.Text("I will look at what is there."), _wish("list_files", {})))
        if not deleted:
            return ModelReply(
                tuple(
                    _wish("delete_file", {"name": name})
                    for name in _temporary(words(outcomes[0].text))
                )
            )
        return ModelReply((e.Text(_report(deleted)),))


def _temporary(listing: str) -> list[str]:
    return [file["name"] for file in msgspec.json.decode(listing) if file["name"].endswith(".tmp")]


def _report(outcomes: Sequence[Outcome]) -> str:
    return " ".join(["Done."] + [words(one.text) for one in outcomes])


def _wish(tool: str, arguments: dict[str, str]) -> e.Wish:
    return e.Wish(tool=tool, arguments=msgspec.json.encode(arguments).decode())


def tools_in(folder: Path) -> Tools:
    """The two tools, working in `folder` only."""
    tools = Tools()

    @tools.add(repeatable=True)
    def list_files() -> list[dict[str, str | int]]:
        """The files, with their sizes in bytes."""
        return [
            {"name": file.name, "bytes": file.stat().st_size} for file in sorted(folder.iterdir())
        ]

    @tools.add()
    def delete_file(name: str) -> str:
        """Delete a file for good."""
        file = folder / Path(name).name
        size = file.stat().st_size
        file.unlink()
        return f"{name} is deleted, {size:,} bytes are free again."

    return tools


def fill(folder: Path) -> None:
    """Some files to tidy up."""
    for name, size in (("cache.tmp", 48_000), ("draft-report.tmp", 9_000), ("invoices.csv", 2_500)):
        (folder / name).write_bytes(b"x" * size)
