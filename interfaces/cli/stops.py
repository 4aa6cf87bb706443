"""Stops: in an emergency nothing starts, until people resume (docs/stopping.md)."""

from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    AsOption,
    NamedOption,
    OnlyWorkspaceOption,
    WhyOption,
    argument,
    option,
)
from ayes.interfaces.cli.outcome import PENDING
from ayes.interfaces.cli.terminal.output import print_message
from ayes.ops.actions.stops import account, check_limits, resume_stop, stop_ref, stops_in
from ayes.projections.views.stop import StopAccount, StoppedCall, stop_state, stop_words
from ayes.schemas.durations import lasting_s
from ayes.schemas.errors import ApprovalsError, BadInput
from ayes.schemas.ids import token
from ayes.schemas.slots import StopRef

app: Final = commands()

#: Calls of one kind that are listed for people.
_SHOWN: Final = 20


@command(
    app,
    examples="""
    ayes stop shop --as ana --reason 'Refunds go to a wrong account.'
    ayes stop shop --as ana --reason 'It repeats itself.' --agent desk --tool 'refund*' --for 2h
    ayes stop --all-workspaces --as ana --reason 'A leaked key.'
    """,
)
async def stop(
    name: AsOption,
    reason: Annotated[str, option("--reason", "In words, for everybody whose calls wait.")],
    workspace: Annotated[str | None, argument("WORKSPACE", "The workspace.")] = None,
    every: Annotated[bool, option("--all-workspaces", "All workspaces, instead of one.")] = False,
    agent: Annotated[
        list[str] | None, option("--agent", "PATTERN", "Only such agents; may be repeated.")
    ] = None,
    tool: Annotated[
        list[str] | None, option("--tool", "PATTERN", "Only such tools; may be repeated.")
    ] = None,
    requester: Annotated[
        list[str] | None,
        option("--requester", "PATTERN", "Only calls on behalf of such people; may be repeated."),
    ] = None,
    lasts: Annotated[
        str | None,
        option(
            "--for",
            "DURATION",
            "It ends by itself after 90s, 15m, 8h, 7d; by default only when people resume.",
        ),
    ] = None,
    named: NamedOption = "",
    *,
    session: Session,
) -> None:
    """Let nothing start from now on, until people resume. What runs already goes on, and is
    listed.
    """
    if (workspace is None) != every:
        raise BadInput("name one WORKSPACE, or give --all-workspaces.")
    agents, tools, requesters = (tuple(one or ("*",)) for one in (agent, tool, requester))
    check_limits(agents, tools, requesters)
    for_s = None if lasts is None else lasting_s("--for", lasts)
    ref = stop_ref("" if workspace is None else token("workspace", workspace), name, named)
    async with session.as_reviewer(name) as ledger:
        given = await ledger.reviewer(name).stop(
            ref, reason=reason, agents=agents, tools=tools, requesters=requesters, for_s=for_s
        )
        if not session.json:  # at once: to find what runs may take a moment
            print_message(stop_words(given, ledger.now()))
        try:
            found = await account(ledger, given)
        except ApprovalsError as problem:
            raise type(problem)(
                f"{ref} is in force. What runs is not known: {problem}"
            ) from problem
    if session.json:
        session.print(found, "")
    else:
        _print_account(found)


def _print_account(found: StopAccount) -> None:
    print_message()
    _print_calls(found.running, "running. They go on: no tool is interrupted")
    _print_calls(found.in_doubt, "in doubt. See ayes pending --in-doubt")
    _print_calls(found.held, "approved and not started. They wait")
    print_message(
        f"{found.pending:,} waiting for people, who may deny. Nothing is approved meanwhile."
    )
    if found.looked_since is not None:
        print_message(
            "Calls that were approved, or started by an executor, before "
            f"{found.looked_since:%Y-%m-%d %H:%M:%S} UTC are not listed. Those that have not "
            "started wait too."
        )
    print_message()
    print_message(f"Next: ayes resume {found.stop} --as NAME")


def _print_calls(calls: list[StoppedCall], what: str) -> None:
    print_message(f"{len(calls):,} {what}{':' if calls else '.'}")
    for one in calls[:_SHOWN]:
        by = f" by {one.agent}" if one.agent else ""
        print_message(f"  {one.call}  {one.tool}{by}, since {one.since:%Y-%m-%d %H:%M:%S} UTC")
    if len(calls) > _SHOWN:
        print_message(f"  and {len(calls) - _SHOWN:,} more, which --json lists")


@command(app)
async def stops(workspace: OnlyWorkspaceOption = "", *, session: Session) -> None:
    """List the stops, oldest first, with their status, who resumed, and their end."""
    async with session.connect("observer") as ledger:
        found, now = await stops_in(ledger, workspace), await ledger.log.clock()
    session.print_rows(
        [(stop_state(one, now), stop_words(one, now)) for one in found],
        if_none=f"Nothing was ever stopped{f' in {workspace}' if workspace else ''}.",
    )


@command(app, examples="ayes resume shop/ana/s-4f1c02 --as ben --reason 'The account is right.'")
async def resume(
    ref: Annotated[str, argument("STOP", "workspace/giver/name")],
    name: AsOption,
    reason: WhyOption = "",
    *,
    session: Session,
) -> int:
    """Say that a stop should end. It ends once enough people have said so, and a gate has counted
    them.
    """
    async with session.as_reviewer(name) as ledger:
        found, missing = await resume_stop(ledger, StopRef.parse(ref), name, reason)
        now = await ledger.log.clock()
    state = stop_state(found, now)
    if state.status == "ended":
        sentence = f"{ref} has ended. What waited starts within a minute."
    elif missing:
        people = "1 more person" if missing == 1 else f"{missing} more people"
        sentence = f"{ref} is in force: {', '.join(state.resumed_by)} resumed, and {people} must."
    else:
        sentence = f"{ref} is in force until a gate ends it. Does one run? See ayes status."
    session.print(state, sentence)
    return 0 if state.status == "ended" else PENDING
