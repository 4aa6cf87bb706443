"""Commands for services and scripts: request a call, wait for the decision, and run it."""

from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    CallArgument,
    DecidedCallArgument,
    LabelsOption,
    ReasonOption,
    RequesterOption,
    argument,
    option,
    read_labels,
)
from ayes.interfaces.cli.outcome import exit_code, report, report_end
from ayes.interfaces.cli.terminal.prompt import text_or_stdin
from ayes.ledger.descriptions import outcome_words
from ayes.schemas import events as e
from ayes.schemas.durations import parse_duration
from ayes.schemas.errors import BadInput
from ayes.schemas.sealed import shown
from ayes.schemas.slots import CallRef

app: Final = commands()


@command(
    app,
    examples="""
    ayes request shop/order-17/refund-1 refund '{"order":"A-17","amount":480}' --requester ben
    ayes request shop/order-17/refund-2 refund - < arguments.json
    ayes request shop/order-17/refund-3 refund '{"order":"A-17","amount":9}' --expires-in 10m
    """,
)
async def request(
    call: DecidedCallArgument,
    tool: Annotated[str, argument("TOOL", "A tool declared in the workspace.")],
    arguments: Annotated[str, argument("JSON", "Its arguments; - for stdin.")] = "{}",
    requester: RequesterOption = "",
    agent: Annotated[str, option("--agent", "NAME", "The agent that makes the request.")] = "",
    labels: LabelsOption = None,
    expires_in: Annotated[
        str | None,
        option(
            "--expires-in",
            "DURATION",
            "Wait for people no longer than this; the policy may say less.",
        ),
    ] = None,
    *,
    session: Session,
) -> int:
    """Request a call of a tool, as a service does. Then: ayes wait CALL."""
    ref, named = CallRef.parse(call), read_labels(labels or ())
    expires_in_s = None if expires_in is None else parse_duration("--expires-in", expires_in)
    arguments = text_or_stdin(arguments).strip()
    async with session.connect("service") as ledger:
        await ledger.request(
            *(ref, tool, arguments),
            requester=requester,
            agent=agent,
            labels=named,
            expires_in_s=expires_in_s,
        )
        return await report_end(ledger, ref, e.Approved, json=session.json, whole=True)


@command(app)
async def withdraw(call: CallArgument, reason: ReasonOption = "", *, session: Session) -> int:
    """Withdraw a request, on the requester's side. A call that runs goes on; the calls that its
    sub-agents asked for are withdrawn.
    """
    ref = CallRef.parse(call)
    async with session.connect("service") as ledger:
        known = await ledger.withdraw(ref, reason)
        assert known.withdrawn
        if known.starts and known.starts[0].seq < known.withdrawn.seq:
            sentence = f"{call} goes on. The calls that its sub-agents asked for are withdrawn."
            await report(ledger, known, sentence, json=session.json, whole=True)
            return 0
        return await report_end(ledger, ref, e.Withdrawn, json=session.json, whole=True)


@command(app)
async def doubt(call: DecidedCallArgument, reason: ReasonOption = "", *, session: Session) -> None:
    """Say that the runner of a call is gone, and nobody knows how it ended. A person then
    reconciles it.
    """
    async with session.connect("service") as ledger:
        known = await ledger.doubt(call, reason)
        sentence = f"{call} is in doubt. Next: ayes reconcile {call} --as NAME"
        await report(ledger, known, sentence, json=session.json, whole=True)


@command(app)
async def start(call: DecidedCallArgument, session: Session) -> None:
    """Claim an approved call that you run yourself: run it only if this exits with 0. Then: ayes
    finish.
    """
    async with session.connect("service") as ledger:
        known = await ledger.start(call)
        sentence = (
            f"{call} is yours to run, with {shown(known.arguments)}. Next: ayes finish {call}"
        )
        await report(ledger, known, sentence, json=session.json, whole=True)


@command(
    app,
    examples="""
    ayes finish shop/order-17/refund-1 --output '480 given back'
    ./refund.sh | ayes finish shop/order-17/refund-1 --output -
    """,
)
async def finish(
    call: DecidedCallArgument,
    text: Annotated[
        str | None, option("--output", "TEXT", "What the model reads; - for stdin.")
    ] = None,
    error: Annotated[
        str | None, option("--error", "TEXT", "It ran and failed with this; - for stdin.")
    ] = None,
    *,
    session: Session,
) -> None:
    """Report the result of a call that you ran yourself. Claims it first, if `ayes start` did
    not.
    """
    if (text is None) == (error is None):
        raise BadInput("a call ends with --output TEXT or with --error TEXT: give one of them.")
    ref = CallRef.parse(call)
    output = None if text is None else text_or_stdin(text)
    error = None if error is None else text_or_stdin(error)
    async with session.connect("service") as ledger:
        if not (await ledger.known_call(ref)).claims:
            await ledger.start(ref)
        known = await (
            ledger.finish(ref, error=error) if output is None else ledger.finish(ref, output=output)
        )
        await report(
            ledger, known, f"{call} {outcome_words(known.outcome)}.", json=session.json, whole=True
        )


@command(app, examples="ayes wait shop/order-17/refund-1 --timeout 15m && ./refund.sh")
async def wait(
    call: CallArgument,
    timeout: Annotated[
        str | None, option("--timeout", "DURATION", "Such as 90s; unlimited by default.")
    ] = None,
    *,
    session: Session,
) -> int:
    """Wait until a call is decided: exit 0 approved, 5 denied, 6 expired, 3 timed out (8 with
    --timeout 0).
    """
    ref = CallRef.parse(call)
    timeout_s = None if timeout is None else parse_duration("--timeout", timeout)
    async with session.connect("observer") as ledger:
        known = await (
            ledger.known_call(ref) if timeout_s == 0 else ledger.decision(ref, timeout_s=timeout_s)
        )
        await report(ledger, known, json=session.json, whole=True)
    return exit_code(known, e.Approved)
