"""For services and scripts that ask: request a call, wait for the decision, and run it
themselves.
"""

from typing import Annotated, Final

import typer

from ayes.ledger.services import Ledger
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.options import CallArgument, JsonOption, ReasonOption, StoreOption, UrlOption
from ayes.ops.commands.outcome import exit_code, report, report_end
from ayes.ops.terminal.labels import read_labels
from ayes.ops.terminal.times import parse_duration
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef
from ayes.schemas.toml_files import read_text

app: Final = commands()


@command(app)
async def request(
    call: CallArgument,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="A tool declared in the workspace.")],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Its arguments; - for stdin.")
    ] = "{}",
    requester: Annotated[
        str, typer.Option("--for", metavar="NAME", help="On whose behalf: they cannot vote on it.")
    ] = "",
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="The agent that wishes it.")
    ] = "",
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="What rules may ask for."),
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Ask for a tool to be run, as a service does. Then: ayes wait CALL."""
    ref, named = CallRef.parse(call), read_labels(labels or ())
    if arguments == "-":
        arguments = read_text("/dev/stdin").strip()
    async with Ledger.connect(store, url=url, role="service") as ledger:
        await ledger.request(ref, tool, arguments, requester=requester, agent=agent, labels=named)
        return await report_end(ledger, ref, e.Approved, json=json)


@command(app)
async def withdraw(
    call: CallArgument,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Take a wish back, from the requester's side."""
    ref = CallRef.parse(call)
    async with Ledger.connect(store, url=url, role="service") as ledger:
        await ledger.withdraw(ref, reason)
        return await report_end(ledger, ref, e.Withdrawn, json=json)


@command(app)
async def doubt(
    call: CallArgument,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Say that whoever ran a call is gone, and nobody knows how it ended. Then a person reconciles
    it.
    """
    async with Ledger.connect(store, url=url, role="service") as ledger:
        known = await ledger.doubt(call, reason)
        await report(ledger, known, f"{call} is in doubt. Next: ayes reconcile {call}", json=json)


@command(app)
async def start(
    call: CallArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Claim an approved call that you run yourself: only when this ends with 0 may you run it.
    Then: ayes finish.
    """
    async with Ledger.connect(store, url=url, role="service") as ledger:
        known = await ledger.start(call)
        told = f"{call} is yours to run, with {known.arguments}. Next: ayes finish {call}"
        await report(ledger, known, told, json=json)


@command(app)
async def finish(
    call: CallArgument,
    text: Annotated[
        str | None,
        typer.Option("--output", metavar="TEXT", help="What the model reads; - for stdin."),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="TEXT", help="It ran and failed with this; - for stdin."),
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Say how a call went that you ran yourself. Claims it first, if `ayes start` did not."""
    if (text is None) == (error is None):
        raise BadInput("a call ends with --output TEXT or with --error TEXT: give one of them.")
    ref = CallRef.parse(call)
    said = read_text("/dev/stdin") if "-" in (text, error) else text or error or ""
    async with Ledger.connect(store, url=url, role="service") as ledger:
        if not (await ledger.known_call(ref)).claims:
            await ledger.start(ref)
        known = await (
            ledger.finish(ref, error=said) if text is None else ledger.finish(ref, output=said)
        )
        await report(ledger, known, f"{call} has {known.status}.", json=json)


@command(app)
async def wait(
    call: CallArgument,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="Such as 90s; for ever by default."),
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Wait until a call is decided: exit 0 approved, 5 denied, 6 expired, 3 timed out (8 with
    --timeout 0).
    """
    ref = CallRef.parse(call)
    timeout_s = None if timeout is None else parse_duration("--timeout", timeout)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        known = await (
            ledger.known_call(ref) if timeout_s == 0 else ledger.decision(ref, timeout_s=timeout_s)
        )
        await report(ledger, known, json=json)
    return exit_code(known, e.Approved)
