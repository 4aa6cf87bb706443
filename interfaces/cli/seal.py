"""Commands for the seal of the log."""

import asyncio
from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import argument, option
from ayes.interfaces.cli.settings import trust_of
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import VerifierKey
from ayes.ledger.trust import read_trust
from ayes.ops.inspection.witness import accepted
from ayes.ops.sealing.bucket import LockedBucket
from ayes.ops.sealing.copier import RebuiltLog, rebuild
from ayes.ops.sealing.exports import export as export_to
from ayes.ops.sealing.files import KEY, SealFiles, make_key, read_key
from ayes.schemas.errors import BadInput

app: Final = commands()


@app.callback()
def seal() -> None:
    """Seal the log, so that others notice a change."""


@command(app, examples="ayes seal init approvals.example.com")
async def init(
    name: Annotated[
        str, argument("NAME", "What auditors know the site by, such as its host name.")
    ],
    *,
    session: Session,
) -> None:
    """Make the key that seals the log of a store. From its next start on `ayes up` seals it."""
    checked_name(name, " +/")
    store = Store(session.store)
    async with JetStream.connect(session.store, url=session.url, role="observer") as log:
        identity, (number, _) = await log.identity(), await accepted(log)
    if not identity:
        raise BadInput("the log has no fact yet, and it is known by its first one.")
    # A log that was accepted with a loss is another one for those who know its seal.
    origin = f"{name}/{identity}" + (f"/{number + 1}" if number else "")
    key = make_key(store, origin).public
    session.print(
        {"key": str(key), "file": str(store.path / KEY)},
        f"{store.path / KEY} is the key that seals this log. Start `ayes up` again, or `ayes work "
        "sealer` beside it.",
        f"Give this to those who verify: {key}",
    )


@command(
    app,
    examples="""
    ayes seal export ledger-2026.jsonl
    ayes seal export again.jsonl --from s3://ayes-copies/shop --trust ayes-trust.toml
    """,
)
async def export(
    file: Annotated[Path, argument("FILE", "A new file.")],
    copy: Annotated[
        str | None,
        option("--from", "s3://BUCKET/PREFIX", "Of a copy in a bucket; no broker is asked."),
    ] = None,
    key: Annotated[
        str | None,
        option(
            "--key",
            "KEY",
            "With --from, the sealer's public key; by default that of the trust file, or of the "
            "store.",
        ),
    ] = None,
    trust: Annotated[
        Path | None,
        option("--trust", "FILE", "With --from, the trust file; by default that of the settings."),
    ] = None,
    *,
    session: Session,
) -> int:
    """Write the last checkpoint and all facts that it covers into a file. Others can verify it
    alone, and read everything in it. Exit 1 if a copy has objects of later facts that are not what
    was sealed.
    """
    store = Store(session.store)
    if copy is not None:
        said = read_trust(trust) if trust else trust_of(session.store, None)
        named = key or (said.sealer if said else "")
        public = VerifierKey.parse(named) if named else read_key(store).public
        made = await asyncio.to_thread(rebuild, LockedBucket(copy), public, file)
        _tell_rebuilt(file, public, made, session)
        return 1 if made.lacking else 0
    if key or trust:
        raise BadInput("--key and --trust go with --from: the log of a store has its own key.")
    if not (note := SealFiles(store).note()):
        raise BadInput("nothing is sealed yet. `ayes seal init` says how.")
    async with JetStream.connect(session.store, url=session.url, role="observer") as log:
        size = await export_to(log, note, file)
    session.print(
        {"file": str(file), "facts": size},
        f"{size:,} facts are in {file}. Next: ayes verify --export {file} --key KEY",
    )
    return 0


def _tell_rebuilt(file: Path, key: VerifierKey, made: RebuiltLog, session: Session) -> None:
    told = {"file": str(file)} | made._asdict()
    hidden = (
        f"somebody wrote over {len(made.hidden):,} objects, or deleted them; their oldest versions "
        f"were taken: {', '.join(made.hidden[:5])}"
    )
    session.print(
        told,
        f"{made.facts:,} facts are in {file}, as they were copied and sealed. "
        f"Next: ayes verify --export {file} --key {key}",
        *([hidden] if made.hidden else []),
        *(f"left out: {one}" for one in made.ignored[:5]),
        *([f"it ends at fact {made.facts:,}: {made.lacking}"] if made.lacking else []),
    )


def checked_name(name: str, forbidden: str) -> str:
    """The name of a key.

    Raises:
        BadInput: it has one of these characters, or others than a line of a note may have.
    """
    if not name.isprintable() or not name or {*name} & {*forbidden}:
        no = " or ".join(", ".join(["spaces", *forbidden.strip()]).rsplit(", ", 1))
        raise BadInput(f"{name!r} is not a name for a key: it has no {no}.")
    return name
