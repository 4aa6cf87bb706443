"""Delegations: another person votes in one's place.

Each is given in the giver's own name, always has an end, and can be ended before it.
"""

from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    AsOption,
    NamedOption,
    NamedWorkspaceOption,
    WhyOption,
    WorkspaceOption,
    argument,
    option,
)
from ayes.ops.actions.grants import check_patterns, delegation_ref
from ayes.projections.views.grant import delegation_state, delegation_words
from ayes.schemas.durations import parse_time
from ayes.schemas.errors import NotAllowed
from ayes.schemas.ids import token
from ayes.schemas.slots import DelegationRef

app: Final = commands()


@command(
    app,
    examples="""
    ayes delegate give ben -w shop --from 2026-12-20T00:00 --until 2027-01-03T00:00 --as ana
    """,
)
async def give(
    to: Annotated[str, argument("NAME", "The person who votes in your place.")],
    name: AsOption,
    starts: Annotated[str, option("--from", "TIME", "ISO, UTC: 2026-11-21T08:00.")],
    ends: Annotated[str, option("--until", "TIME", "ISO, UTC.")],
    workspace: NamedWorkspaceOption,
    tool: Annotated[
        list[str] | None, option("--tool", "PATTERN", "Only for such tools; may be repeated.")
    ] = None,
    named: NamedOption = "",
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """Let another person vote in your place for a time. Their decisions say: ben for ana."""
    tools = tuple(tool or ("*",))
    ref = delegation_ref(workspace, name, named)
    token("reviewer", to)
    check_patterns(tools)
    async with session.as_reviewer(name) as ledger:
        given = await ledger.reviewer(name).delegate(
            ref,
            to,
            starts_at=parse_time("--from", starts),
            ends_at=parse_time("--until", ends),
            tools=tools,
            reason=reason,
        )
        now = ledger.now()
    session.print(delegation_state(given, now), delegation_words(given, now))


@command(app, "list")
async def show_delegations(workspace: WorkspaceOption = "default", *, session: Session) -> None:
    """List the delegations of a workspace: who votes for whom, from when until when."""
    async with session.connect("observer") as ledger:
        found, now = await ledger.delegations(workspace), ledger.now()
    session.print_rows(
        [(delegation_state(one, now), delegation_words(one, now)) for one in found],
        if_none=f"Nobody ever delegated anything in {workspace}.",
    )


@command(app)
async def end(
    delegation: Annotated[str, argument("DELEGATION", "workspace/giver/name")],
    name: AsOption,
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """End your delegation before its time."""
    ref = DelegationRef.parse(delegation)
    if ref.giver != name:
        raise NotAllowed(f"only {ref.giver} can end {ref}: a delegation is its giver's.")
    async with session.as_reviewer(name) as ledger:
        ended = await ledger.reviewer(name).end_delegation(ref, reason=reason)
        now = ledger.now()
    session.print(delegation_state(ended, now), f"{ref} has ended. Votes cast by it remain valid.")
