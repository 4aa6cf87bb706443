"""Rehearse a file of recorded conversations, or answer from it in a process of its own:

python -m bench.rehearsal run examples/recorded.jsonl --policy examples/airline.toml
python -m bench.rehearsal work model executor --recording examples/recorded.jsonl
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Final

import typer
from msgspec.structs import replace
from rich.table import Table

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    AckWaitOption,
    JsonOption,
    PolicyOption,
    WorkspaceOption,
)
from ayes.interfaces.cli.policy_versions import apply_text
from ayes.interfaces.cli.run import ack_wait_of
from ayes.interfaces.cli.terminal import output
from ayes.interfaces.cli.terminal.output import print_json, print_message
from ayes.interfaces.cli.terminal.progress import bar
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.patience import while_away
from ayes.ops.broker.server import EmbeddedServer, ensure_account, is_running
from ayes.ops.broker.setup import check_policy, declare_streams
from ayes.ops.workers import reactions, until_signalled, working
from ayes.schemas.errors import BadFile
from ayes.schemas.toml_files import read_text
from bench.rehearsal.recorded import DURABLES, Recording, recorded_reactions
from bench.rehearsal.rehearse import Expected, Summary, read_recordings, refuse_other, review
from bench.rehearsal.rehearse import rehearse as drive
from bench.rehearsal.scripted_reviewer import script_for

app: Final = commands()


@command(app)
async def run(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE.jsonl", help="Conversations, one a line: id and messages."),
    ],
    policy: PolicyOption = None,
    reviewer: Annotated[
        str,
        typer.Option(
            "--reviewer",
            metavar="approve|deny|FILE.toml",
            help="How the scripted reviewer votes.",
        ),
    ] = "approve",
    workspace: WorkspaceOption = "rehearsal",
    workers: Annotated[
        bool,
        typer.Option(
            "--workers/--no-workers", help="Answer from the recording here, or in `work`."
        ),
    ] = True,
    ack_wait: AckWaitOption = "30s",
    store: Annotated[
        Path | None,
        typer.Option("--store", help="Keep it in this store; else it is thrown away."),
    ] = None,
    url: Annotated[str | None, typer.Option("--url")] = None,
    json: JsonOption = False,
) -> int:
    """Drive recorded conversations through the real workers: model and tools answer as recorded."""
    ack_wait_s = ack_wait_of(ack_wait)
    # All three files are read before anything is recorded.
    recorded, skipped = _recordings(file)
    script = script_for(reviewer)
    rules = None
    if policy is not None:
        rules = read_text(policy)
        check_policy(rules, policy)
    async with AsyncExitStack() as stack:
        recordings = {name: one for name, (_, one) in recorded.items()}
        started = recorded_reactions(("model", "executor"), recordings) if workers else []
        # Without --store it never touches the user's own store.
        if url is None and (store is None or not await is_running(store)):
            store = await stack.enter_async_context(_own_server(store))
            started = [
                *reactions(("gate", "queue")),
                *recorded_reactions(("model", "executor"), recordings),
            ]
        if url is None:
            await declare_streams(store, ack_wait_s=ack_wait_s, also=DURABLES)
        service = await stack.enter_async_context(Ledger.connect(store, url=url, name="rehearsal"))
        await refuse_other(service, workspace, recorded, script, rules)
        if policy is not None and rules is not None:
            await apply_text(rules, policy, workspace, Session(store, url))
        role = f"reviewer-{script.name}"
        if url is None:
            await ensure_account(store, role)
        failed = await stack.enter_async_context(
            working(started, store=store, url=url, ack_wait_s=ack_wait_s)
        )
        person = await stack.enter_async_context(Ledger.connect(store, url=url, role=role))
        with bar(len(recorded)) as progress:
            task = progress.add_task("rehearsing", total=len(recorded))
            driving = asyncio.ensure_future(
                drive(
                    service,
                    workspace,
                    recorded,
                    progress=lambda done: progress.update(task, completed=done),
                    stalled=lambda waiting: _report_stalled(waiting, workspace, store, url),
                )
            )
            voting = asyncio.ensure_future(review(person, workspace, script))
            try:
                await until_signalled(driving, voting, failed)
            finally:
                for one in (driving, voting):
                    one.cancel()
                await asyncio.gather(driving, voting, return_exceptions=True)
    if driving.cancelled():
        print_message("Stopped. Start it again with the same --store to continue.")
        return 130
    _report(replace(driving.result(), skipped=skipped), json=json)
    return BadFile.exit_code if skipped else 0


@command(app)
async def work(
    kinds: Annotated[list[str], typer.Argument(metavar="KIND...", help="model, executor")],
    recording: Annotated[str, typer.Option("--recording", metavar="FILE.jsonl")],
    ack_wait: AckWaitOption = "30s",
    *,
    session: Session,
) -> None:
    """Answer from the recording, for `run --no-workers`, until Ctrl-C."""
    found, _ = _recordings(recording)
    started = recorded_reactions(kinds, {name: one for name, (_, one) in found.items()})
    ack_wait_s = ack_wait_of(ack_wait)
    store, url, _ = session

    async def begin() -> tuple[AsyncExitStack, asyncio.Future[None]]:
        async with AsyncExitStack() as stack:
            if url is None and Store(store).has_login("admin"):
                await declare_streams(store, ack_wait_s=ack_wait_s, also=DURABLES)
            working_here = working(started, store=store, url=url, ack_wait_s=ack_wait_s)
            failed = await stack.enter_async_context(working_here)
            return stack.pop_all(), failed

    stack, failed = await while_away(begin, timeout_s=None)
    async with stack:
        await until_signalled(
            failed, ready=lambda: session.print({"workers": kinds}, "working until Ctrl-C")
        )


def _recordings(path: str) -> tuple[dict[str, tuple[Expected, Recording]], int]:
    """The conversations of a file, and how many of it are bad; these are named on stderr.

    Raises:
        BadFile: none of the recordings can be read.
    """
    skipped: list[BadFile] = []
    recorded = read_recordings(path, skipped.append)
    if not recorded:
        raise skipped[0]
    for wrong in skipped:
        print_message(f"Skipped: {wrong}")
    return recorded, len(skipped)


@asynccontextmanager
async def _own_server(store: Path | None) -> AsyncGenerator[Path]:
    """A broker for the duration of the block, in `store` or in a temporary store."""
    async with AsyncExitStack() as stack:
        if store is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="approvals-"))
            store = Path(folder) / "store"
        server = await stack.enter_async_context(EmbeddedServer(store))
        yield server.store.path


def _report_stalled(waiting: int, workspace: str, store: Path | None, url: str | None) -> None:
    calls = "1 call waits" if waiting == 1 else f"{waiting:,} calls wait"
    where = (
        " --url URL"
        if url
        else ""
        if store in {None, Store().path}
        else f" --store {quote(str(store))}"
    )
    print_message(
        f"{calls} for people and nothing else happens: the script leaves this open, or more votes "
        f"are needed. To decide by hand: ayes pending -w {workspace}{where}"
    )


def _report(summary: Summary, *, json: bool) -> None:
    if json:
        print_json(summary)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name in Summary.__struct_fields__:
        table.add_row(name, f"{getattr(summary, name):,}")
    output.console().print(table)
    if summary.seconds:
        print_message(
            f"{summary.facts / summary.seconds:,.0f} facts/s, "
            f"{summary.conversations / summary.seconds:,.1f} conversations/s"
        )


if __name__ == "__main__":
    app()
