"""The command that removes files which no fact names."""

from datetime import timedelta
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import option
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.files import sweep as sweep_files

app: Final = commands()


@command(app, examples="ayes files sweep")
async def sweep(
    hours: Annotated[
        int, option("--hours", "Keep files that are younger than this many hours.", min=24)
    ] = 24,
    *,
    session: Session,
) -> None:
    """Remove stored files that no fact names. Reads the whole log, and needs the administrator's
    login. Run it each night, for example.
    """
    async with JetStream.connect(session.store, url=session.url, role="admin") as log:
        removed = await sweep_files(log, timedelta(hours=hours))
    session.print({"removed": removed}, f"{removed:,} files that no fact names were removed.")
