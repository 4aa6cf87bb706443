"""The command that opens the inbox: what waits, in a full screen, decided by keys."""

import sys
from functools import partial
from importlib.util import find_spec
from typing import Final

from ayes.consumers.pending_view import PendingView
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.decide import chosen_calls
from ayes.interfaces.cli.options import AsOption, OnlyWorkspaceOption, QueryArgument
from ayes.schemas.errors import BadInput

app: Final = commands()

INSTALL: Final = "pip install 'ayes[inbox]'"


@command(
    app,
    examples="""
    ayes inbox --as ana
    ayes inbox 'tool:refund is:mine' --as ana
    """,
)
async def inbox(
    name: AsOption,
    query: QueryArgument = "",
    workspace: OnlyWorkspaceOption = "",
    *,
    session: Session,
) -> int:
    """Decide pending calls in a full screen, by keys; ? shows them, q ends it. Pictures, the rule's
    reasons at hand and undoing a vote are in the console alone. Other commands edit (approve
    --edit), decide several calls (approve --all), comment, and hand over.
    """
    choose = partial(chosen_calls, workspace=workspace)
    choose(query)
    if find_spec("textual") is None:
        raise BadInput(f"the inbox is not installed: {INSTALL}.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("the inbox needs a terminal. `ayes pending` lists the same calls.")
    from ayes.interfaces.cli.screens.inbox import Inbox

    async with session.as_reviewer(name) as ledger, PendingView(ledger) as view:
        shown = Inbox(ledger, view, name, choose, query)
        problem = await shown.run_async()
    if problem is not None:
        raise problem
    return shown.return_code or 0
