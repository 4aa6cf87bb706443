"""Commands that write the log into a file, and restore it."""

import asyncio
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import argument, option
from ayes.ledger.nats.credentials import Store, broker_elsewhere
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.audit.backup import Seal, back_up, checked, put_beside
from ayes.ops.audit.backup import restore as restore_from

app: Final = commands()

FileArgument = Annotated[Path, argument("FILE", "The backup.")]


@command(app, examples="ayes backup /backups/ledger-2026-11-22")
async def backup(file: FileArgument, *, session: Session) -> None:
    """Write the log into a file, while it is in use, with API tokens, webhooks and the key of links
    of the store. Needs the administrator's login.
    """
    store = _store(session)
    async with JetStream.connect(session.store, url=session.url, role="admin") as log:
        seal = await back_up(log, file, store)
    then = (
        f"Of the store it has {', '.join(seal.beside) or 'no file'}"
        if store and seal.beside is not None
        else "It has no API tokens, webhooks and key of links: name the store that has them with "
        "--store"
    )
    _report(
        session,
        file,
        seal,
        "are in",
        f"{then}. Passwords, certificates and files outside of the store are not in it. Keep the "
        "digest elsewhere: only `ayes restore --digest` finds out that the file was exchanged.",
    )


@command(app, examples="ayes restore /backups/ledger-2026-11-22 --store ./new")
async def restore(
    file: FileArgument,
    digest: Annotated[
        str,
        option(
            "--digest",
            "HEX",
            "What the backup's digest begins with; else anybody's file is restored.",
        ),
    ] = "",
    only_files: Annotated[
        bool, option("--only-files", "Not the log: only API tokens, webhooks and the key of links.")
    ] = False,
    *,
    session: Session,
) -> None:
    """Restore a backup into an empty ledger and its store, before any worker is started."""
    store = _store(session)
    if only_files:
        backup = await asyncio.to_thread(checked, file, digest)
        put_beside(backup, store or Store(session.store))
        names = [*backup.beside]
        session.print(
            {"files": names}, f"Restored: {', '.join(names) or 'there is no file in it'}."
        )
        return
    async with JetStream.connect(session.store, url=session.url, role="admin") as log:
        seal = await restore_from(log, file, digest=digest, store=store)
    found = ", ".join(seal.beside or ())
    files = ""
    if found and store:
        files = f" So were {found}: start what runs from the store again."
    elif found:
        files = f" {found} were not: `ayes restore --only-files` on the machine of the store."
    _report(
        session,
        file,
        seal,
        "were restored from",
        "What was recorded after the backup is missing: see docs/cluster.md before you start "
        f"executors.{files}",
    )


def _store(session: Session) -> Store | None:
    """The store on this machine that belongs to the ledger; None if only its URL is known."""
    is_elsewhere = session.url or broker_elsewhere()
    return None if is_elsewhere and not session.store else Store(session.store)


def _report(session: Session, file: Path, seal: Seal, verb: str, then: str) -> None:
    session.print(
        msgspec.structs.asdict(seal) | {"file": str(file)},
        f"{seal.facts + seal.packed:,} facts {verb} {file}, up to fact {seal.last_seq:,}, with the "
        f"digest {seal.sha256}. {then}",
    )
