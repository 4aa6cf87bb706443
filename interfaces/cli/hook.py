"""The hooks of coding agents, which ask before a tool runs."""

import asyncio
import sys
from typing import Annotated, Final

from ayes.adapters.claude_code import (
    Decision,
    HookEvent,
    after,
    before,
    decision_json,
    read_event,
)
from ayes.adapters.kernel import Kernel
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import NamedWorkspaceOption, RequesterOption, option
from ayes.interfaces.cli.terminal.output import print_error, print_json
from ayes.schemas.durations import parse_duration
from ayes.schemas.errors import ApprovalsError, BadInput, BrokerAway

app: Final = commands()

#: The exit code with which a hook stops the tool. Claude Code runs the tool after any other but 0,
#: unless the hook's settings say `"onFailure": "block"`.
BLOCKED: Final = 2
#: What a hook needs beside the time in which people are awaited.
_MORE_S: Final = 30.0


@app.callback()
def hook() -> None:
    """Let people decide about the tool calls of coding agents."""


@command(
    app,
    "claude-code",
    examples="""
    ayes hook claude-code --workspace desk --requester ben
    """,
)
async def claude_code(
    workspace: NamedWorkspaceOption,
    requester: RequesterOption,
    wait: Annotated[
        str,
        option(
            "--wait",
            "DURATION",
            "How long to wait for people; then the model reads how to come back.",
        ),
    ] = "9m",
    *,
    session: Session,
) -> int:
    """Answer a hook of Claude Code: its event on stdin, the decision on stdout."""
    raw = await asyncio.to_thread(sys.stdin.buffer.read)
    try:
        event = read_event(raw.decode())
        patience_s = parse_duration("--wait", wait)
        async with asyncio.timeout(patience_s + _MORE_S):
            said = await _answered(event, session, workspace, requester, patience_s)
        if said is not None:
            print_json(decision_json(said))
    except TimeoutError:
        print_error(BrokerAway("the ledger did not answer in time, so the tool does not run."))
        return BLOCKED
    except ApprovalsError as problem:
        print_error(problem)
        return BLOCKED
    except Exception as problem:  # noqa: BLE001 - whatever it is, the tool must not run
        print_error(problem)
        return BLOCKED
    return 0


async def _answered(
    event: HookEvent, session: Session, workspace: str, requester: str, patience_s: float
) -> Decision | None:
    async with session.connect("service", "claude-code") as ledger:
        kernel = Kernel(
            ledger, workspace, requester=requester, agent="claude-code", patience_s=patience_s
        )
        if event.hook_event_name == "PreToolUse":
            return await before(kernel, event)
        if await after(kernel, event) is None:
            raise BadInput(f"no call was allowed as {event.tool_use_id}: nothing is recorded.")
        return None
