"""The command that verifies the log by its seal."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import option
from ayes.interfaces.cli.terminal.output import print_json, print_line
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import Checkpoint, VerifierKey
from ayes.ops.sealing.files import SealFiles, opened, read_key
from ayes.ops.sealing.verify import count, difference, exported, exported_facts
from ayes.schemas.errors import BadFile
from ayes.schemas.toml_files import read_text

app: Final = commands()


@command(
    app,
    examples="""
    ayes verify
    ayes verify --checkpoint kept-by-the-auditor --key approvals.example.com/…
    ayes verify --export ledger-2026.jsonl --key approvals.example.com/…
    """,
)
async def verify(
    export: Annotated[
        Path | None,
        option("--export", "FILE", "Verify what `ayes seal export` wrote; no broker is asked."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        option("--checkpoint", "FILE", "One that was kept elsewhere, instead of the last one."),
    ] = None,
    key: Annotated[
        str | None, option("--key", "KEY", "The sealer's public key; by default that of the store.")
    ] = None,
    *,
    session: Session,
) -> int:
    """Check that all facts are those that were sealed. Exit 1 if not."""
    store = Store(session.store)
    public = VerifierKey.parse(key) if key else read_key(store).public
    size, last, problem = 0, 0, ""
    try:
        sealed = _sealed(SealFiles(store), public, export, checkpoint)
        size = sealed.size
        async with _facts(session, export) as (facts, last):
            problem = await difference(facts, sealed, SealFiles(store).reading(public)) or ""
    except BadFile as found:
        problem = str(found)
    if session.json:
        print_json({"log": public.name, "sealed": size, "facts": last, "problem": problem or None})
    elif problem:
        print_line(f"differs: {problem}")
    else:
        print_line(
            f"verified: the first {size:,} of {last:,} facts of {public.name} are those that were "
            "sealed"
        )
    return 1 if problem else 0


def _sealed(
    files: SealFiles, key: VerifierKey, export: Path | None, checkpoint: Path | None
) -> Checkpoint:
    """What the facts are compared with."""
    if checkpoint:
        return opened(str(checkpoint), read_text(checkpoint), key)
    if export:
        return exported(export, key)
    if (sealed := files.checkpoint(key)) is None:
        why = "there is none: nothing was sealed yet, or the files of the sealer are gone."
        raise BadFile(str(files.file), "", why)
    return sealed


@asynccontextmanager
async def _facts(
    session: Session, export: Path | None
) -> AsyncGenerator[tuple[AsyncGenerator[list[RawMessage]], int]]:
    """The facts of an export or of the log, and how many there are."""
    if export:
        async with aclosing(exported_facts(export)) as facts:
            yield facts, count(export)
        return
    connecting = JetStream.connect(session.store, url=session.url, role="observer")
    async with connecting as log, aclosing(log.scan_leader(1)) as facts:
        yield facts, await log.last_seq()
