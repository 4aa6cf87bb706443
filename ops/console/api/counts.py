"""How much there is to do: what the header of every page shows."""

from typing import Final

from fastapi import APIRouter

from ayes.ops.console.api import calls
from ayes.ops.console.api.models import Model
from ayes.ops.console.backend import InBackend
from ayes.ops.console.identity import Reading

router: Final = APIRouter(tags=["calls"])


class Counts(Model):
    """Numbers of calls, in one workspace or in all."""

    #: They wait for people.
    waiting: int = 0
    #: All workspaces that have a policy or a waiting call.
    workspaces: tuple[str, ...] = ()


@router.get("/counts")
async def counts(backend: InBackend, visitor: Reading, workspace: str = "") -> Counts:
    """How many calls wait."""
    found = await calls.waiting(backend, visitor, workspace, limit=1)
    return Counts(waiting=found.waiting)
