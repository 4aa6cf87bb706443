"""The tools that services declared."""

from datetime import datetime
from typing import Final

from msgspec import Struct, field

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading
from ayes.ops.actions.tools import newest_tools
from ayes.projections.views.copied import copied
from ayes.projections.views.fact import fact_row
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import tools as declared_tools
from ayes.schemas.codec import Fact
from ayes.schemas.events import ToolClass

router: Final = ApiRouter(tags=["tools"])


class DeclaredTool(Struct, frozen=True):
    """A tool in its newest version."""

    #: The name of the tool.
    name: str
    version: str
    description: str
    #: JSON Schema of the arguments, raw text.
    json_schema: str
    run_by: str
    #: Whether it may run again after a crash.
    repeatable: bool
    #: Whether it can change policy; people are asked about each call then.
    governs: bool
    #: None: it declares none, and counts as irreversible.
    tool_class: ToolClass | None = field(name="class")
    #: The tool that undoes what it did; empty: none is declared.
    undo: str
    #: For how long, from when it returned; None: no end is known.
    undo_within_s: float | None
    #: What a call does in one line, with the places of arguments in braces; empty: none.
    title: str
    #: When this version was declared.
    declared_at: datetime
    #: Who declared it, by its own account.
    by: str


def _declared(tool: declared_tools.Tool, fact: Fact) -> DeclaredTool:
    return copied(
        DeclaredTool,
        tool.declared,
        name=tool.name,
        version=tool.version,
        json_schema=tool.declared.schema,
        declared_at=fact.recorded_at,
        by=fact_row(fact, WHOLE).by,
    )


@router.get("/tools/{workspace}")
async def tools(workspace: str, visit: Reading) -> list[DeclaredTool]:
    """The tools of a workspace, by name."""
    newest = await newest_tools(visit.reading, workspace)
    return [_declared(tool, fact) for tool, fact in newest.values()]
