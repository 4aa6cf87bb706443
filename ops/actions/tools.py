"""The declared tools of a workspace."""

from contextlib import suppress

from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.in_force import tool_of
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadFact
from ayes.schemas.slots import declarations
from ayes.schemas.tools import Tool


async def newest_tools(ledger: Ledger, workspace: str) -> dict[str, tuple[Tool, Fact]]:
    """The newest declaration of each tool of a workspace that counts, by name."""
    newest: dict[str, tuple[Tool, Fact]] = {}
    for fact in await ledger.read(declarations(workspace)):
        with suppress(BadFact):  # a void declaration; `ayes status` names it
            tool = tool_of(fact)
            newest[tool.name] = tool, fact
    return dict(sorted(newest.items()))
