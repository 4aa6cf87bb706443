"""Grants: approvals given in advance, for calls like one that was seen.

Each is given in the giver's own name, always has an end, and can be revoked before it.
"""

from typing import Annotated, Final

from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    AsOption,
    NamedOption,
    WhyOption,
    WorkspaceOption,
    argument,
    option,
)
from ayes.ops.actions.grants import GrantScope, check_scope, give_grant, grant_ref, vote_problem
from ayes.ops.actions.secrets import secrets_in
from ayes.projections.views.grant import grant_state, grant_words
from ayes.schemas.durations import lasting_s
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef, GrantRef

app: Final = commands()


@command(
    app,
    examples="""
    ayes grant give shop/order-24/refund-1 --duration 8h --uses 5 --as ana
    ayes grant give --tool refund -w shop --when 'args.amount < 20' --duration 7d --as ana
    """,
)
async def give(
    name: AsOption,
    duration: Annotated[str, option("--duration", "DURATION", "How long: 90s, 15m, 8h, 7d.")],
    call: Annotated[
        str | None,
        argument(
            "CALL",
            "Calls like this: workspace/thread/call",
            autocompletion=completion.pending_calls,
        ),
    ] = None,
    uses: Annotated[int, option("--uses", "N", "The number of calls, 1 to 1,000.")] = 1,
    any_arguments: Annotated[
        bool, option("--any-arguments", "With any arguments; else with exactly the call's.")
    ] = False,
    when: Annotated[
        str, option("--when", "CONDITION", "With arguments that meet this CEL condition.")
    ] = "",
    any_thread: Annotated[
        bool, option("--any-thread", "In any thread; else in the call's.")
    ] = False,
    agent: Annotated[
        str | None, option("--agent", "PATTERN", "By matching agents; else by the call's, or any.")
    ] = None,
    tool: Annotated[str | None, option("--tool", "TOOL", "Without a call: of this tool.")] = None,
    workspace: Annotated[
        str | None, option("-w", "--workspace", "WS", "Without a call: in this workspace.")
    ] = None,
    named: NamedOption = "",
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """Approve calls like this one for a time, up to a number: your vote, given early. On this
    call you vote now.
    """
    for_s = lasting_s("--duration", duration)
    ref = None if call is None else CallRef.parse(call)
    check_scope(call, tool, when, workspace or "", any_arguments=any_arguments)
    if ref is None and workspace is None:
        raise BadInput("a grant without a call needs a workspace. Name it with -w.")
    scope = GrantScope(tool or "", for_s, uses, when, agent, reason, any_arguments, any_thread)
    async with session.as_reviewer(name) as ledger:
        grant = grant_ref(ref.workspace if ref else workspace or "", name, named)
        given, problem = await give_grant(ledger, grant, ref, scope)
        now, secrets = ledger.now(), await secrets_in(ledger, given)
    session.print(grant_state(given, now, secrets), grant_words(given, now, secrets))
    if problem is not None:
        raise vote_problem(grant, ref, problem)


@command(app, "list")
async def show_grants(workspace: WorkspaceOption = "default", *, session: Session) -> None:
    """List the grants of a workspace, with their status, the uses that are left, and their end."""
    async with session.connect("observer") as ledger:
        found, now = await ledger.grants(workspace), ledger.now()
        secrets = await secrets_in(ledger, *found)
    session.print_rows(
        [(grant_state(one, now, secrets), grant_words(one, now, secrets)) for one in found],
        if_none=f"No grant was ever given in {workspace}.",
    )


@command(app)
async def revoke(
    grant: Annotated[str, argument("GRANT", "workspace/giver/name")],
    name: AsOption,
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """Revoke a grant, your own or another reviewer's."""
    ref = GrantRef.parse(grant)
    async with session.as_reviewer(name) as ledger:
        revoked = await ledger.reviewer(name).revoke_grant(ref, reason=reason)
        now, secrets = ledger.now(), await secrets_in(ledger, revoked)
    session.print(
        grant_state(revoked, now, secrets),
        f"{ref} covers no more calls. Calls approved by it stay approved.",
    )
