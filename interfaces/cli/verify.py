"""The command that verifies the log by its seal."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import argument, option
from ayes.interfaces.cli.receipts import verify_receipt
from ayes.interfaces.cli.terminal.output import print_json, print_line
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import VerifierKey, WitnessKey, WitnessPolicy
from ayes.ledger.trust import read_trust
from ayes.ops.sealing.exports import count, exported, exported_facts
from ayes.ops.sealing.files import SealFiles, opened, read_key
from ayes.ops.sealing.verify import difference
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.toml_files import read_text

app: Final = commands()


@command(
    app,
    examples="""
    ayes verify
    ayes verify --checkpoint kept-by-the-auditor --key approvals.example.com/…
    ayes verify --witness witness.example.org/w1+…
    ayes verify refund-1.receipt --key approvals.example.com/… --trust ayes-trust.toml
    """,
)
async def verify(
    receipt: Annotated[
        Path | None,
        argument("[RECEIPT]", "What `ayes prove` wrote, instead of the log; no broker is asked."),
    ] = None,
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
    trust: Annotated[
        Path | None,
        option("--trust", "FILE", "The trust file by which a receipt's signatures are judged."),
    ] = None,
    *,
    session: Session,
) -> int:
    """Check that all facts are those that were sealed, and by whom it was witnessed; or what a
    receipt shows. Exit 1 if facts differ, or no witness of those given has signed.
    """
    if bool(receipt) and (export or checkpoint):
        raise BadInput("a receipt has facts and checkpoint of its own. Leave out the option.")
    if trust and not receipt:
        raise BadInput("--trust goes with a receipt.")
    store = Store(session.store)
    public = VerifierKey.parse(key) if key else read_key(store).public
    asked = WitnessPolicy(tuple(map(WitnessKey.parse, witness or ())))
    if receipt:
        judged_by = read_trust(trust) if trust else None
        return await verify_receipt(receipt, public, asked, judged_by, json=session.json)
    size, last, more, problem, signed = 0, 0, 0, "", dict[str, datetime]()
    try:
        where, note, proof = _sealed(SealFiles(store), export, checkpoint)
        sealed = opened(where, note, public)
        size, signed = sealed.size, asked.signed(note)
        async with _facts(session, export) as (facts, last):
            reading = SealFiles(store).reading(public)
            problem = await difference(facts, sealed, reading, proof) or ""
        if proof and last < size:
            size, more = last, size - last
        if witness and not (signed or problem):
            problem = f"{where}: no witness of those given has signed it"
    except BadFile as found:
        problem = str(found)
    if session.json:
        told = {"log": public.name, "sealed": size, "facts": last, "problem": problem or None}
        told["lacking"] = more
        print_json(told | {"witnesses": signed})
    elif problem:
        print_line(f"differs: {problem}")
    else:
        print_line(
            f"verified: the first {size:,} of {last:,} facts of {public.name} are those that were "
            "sealed"
        )
        if more:
            print_line(f"{more:,} more facts were sealed, and it does not have them")
        if witness:
            times = (f"{name} at {at:%Y-%m-%d %H:%M:%S} UTC" for name, at in signed.items())
            print_line(f"signed by {len(signed)} of {len(witness)} witnesses: {', '.join(times)}")
    return 1 if problem else 0


def _sealed(
    files: SealFiles, export: Path | None, checkpoint: Path | None
) -> tuple[str, str, list[bytes]]:
    """The file with what the facts are compared with, the signed checkpoint in it, and the proof
    that it covers the facts of an export, if it covers more.
    """
    if checkpoint:
        return str(checkpoint), read_text(checkpoint), []
    if export:
        return str(export), *exported(export)
    if not (note := files.note()):
        why = "there is none: nothing was sealed yet, or the files of the sealer are gone."
        raise BadFile(str(files.file), "", why)
    return str(files.file), note, []


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
