"""The command that verifies the log by its seal."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import option
from ayes.interfaces.cli.terminal.output import print_json, print_line
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import VerifierKey, WitnessKey, WitnessPolicy
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
    ayes verify --witness witness.example.org/w1+…
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
    witness: Annotated[
        list[str] | None,
        option("--witness", "KEY", "The public key of a witness that may have signed. Repeatable."),
    ] = None,
    *,
    session: Session,
) -> int:
    """Check that all facts are those that were sealed, and by whom it was witnessed. Exit 1 if
    facts differ, or no witness of those given has signed.
    """
    store = Store(session.store)
    public = VerifierKey.parse(key) if key else read_key(store).public
    asked = WitnessPolicy(tuple(map(WitnessKey.parse, witness or ())))
    size, last, problem, signed = 0, 0, "", dict[str, datetime]()
    try:
        where, note = _sealed(SealFiles(store), export, checkpoint)
        sealed = opened(where, note, public)
        size, signed = sealed.size, asked.signed(note)
        async with _facts(session, export) as (facts, last):
            problem = await difference(facts, sealed, SealFiles(store).reading(public)) or ""
        if witness and not (signed or problem):
            problem = f"{where}: no witness of those given has signed it"
    except BadFile as found:
        problem = str(found)
    if session.json:
        told = {"log": public.name, "sealed": size, "facts": last, "problem": problem or None}
        print_json(told | {"witnesses": signed})
    elif problem:
        print_line(f"differs: {problem}")
    else:
        print_line(
            f"verified: the first {size:,} of {last:,} facts of {public.name} are those that were "
            "sealed"
        )
        if witness:
            times = (f"{name} at {at:%Y-%m-%d %H:%M:%S} UTC" for name, at in signed.items())
            print_line(f"signed by {len(signed)} of {len(witness)} witnesses: {', '.join(times)}")
    return 1 if problem else 0


def _sealed(files: SealFiles, export: Path | None, checkpoint: Path | None) -> tuple[str, str]:
    """The file with what the facts are compared with, and the signed checkpoint in it."""
    if checkpoint:
        return str(checkpoint), read_text(checkpoint)
    if export:
        return str(export), exported(export)
    if not (note := files.note()):
        why = "there is none: nothing was sealed yet, or the files of the sealer are gone."
        raise BadFile(str(files.file), "", why)
    return str(files.file), note


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
