"""Commands for the seal of the log."""

from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import argument
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.inspection.witness import accepted
from ayes.ops.sealing.files import KEY, SealFiles, make_key
from ayes.ops.sealing.verify import export as export_to
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


@command(app, examples="ayes seal export ledger-2026.jsonl")
async def export(
    file: Annotated[Path, argument("FILE", "A new file.")], *, session: Session
) -> None:
    """Write the last checkpoint and all facts that it covers into a file. Others can verify it
    alone, and read everything in it.
    """
    if not (note := SealFiles(Store(session.store)).note()):
        raise BadInput("nothing is sealed yet. `ayes seal init` says how.")
    async with JetStream.connect(session.store, url=session.url, role="observer") as log:
        size = await export_to(log, note, file)
    session.print(
        {"file": str(file), "facts": size},
        f"{size:,} facts are in {file}. Next: ayes verify --export {file} --key KEY",
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
