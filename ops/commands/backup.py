"""Commands that write the log into a file, and restore it."""

from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.backup import Seal, back_up
from ayes.ops.broker.backup import restore as restore_from
from ayes.ops.commands.command import Session, command, commands
from ayes.ops.terminal.output import print_json, print_message

app: Final = commands()

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The backup.", show_default=False)
]


@command(app, examples="ayes backup /backups/ledger-2026-11-22")
async def backup(file: FileArgument, *, session: Session) -> None:
    """Write the log into a file, while it is in use. Needs the administrator's login."""
    async with JetStream.connect(session.store, url=session.url, role="admin") as log:
        seal = await back_up(log, file)
    _report(session, file, seal, "are in", "Keep the digest: `ayes restore --digest` compares it.")


@command(app, examples="ayes restore /backups/ledger-2026-11-22 --store ./new")
async def restore(
    file: FileArgument,
    digest: Annotated[
        str, typer.Option("--digest", metavar="HEX", help="What the backup's digest begins with.")
    ] = "",
    *,
    session: Session,
) -> None:
    """Restore a backup into an empty ledger, before any worker is started."""
    async with JetStream.connect(session.store, url=session.url, role="admin") as log:
        seal = await restore_from(log, file, digest=digest)
    _report(
        session,
        file,
        seal,
        "were restored from",
        "What was recorded after the backup is missing: see docs/cluster.md before you start "
        "executors.",
    )


def _report(session: Session, file: Path, seal: Seal, verb: str, then: str) -> None:
    if session.json:
        print_json(msgspec.structs.asdict(seal) | {"file": str(file)})
    else:
        print_message(
            f"{seal.facts:,} facts {verb} {file}, up to fact {seal.last_seq:,} with the digest "
            f"{seal.digest or 'of nothing'}. {then}"
        )
