"""Commands for the trust file, which says who confirms people's keys."""

from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import SettingsOption, argument
from ayes.interfaces.cli.settings import trust_of
from ayes.ledger.seal import SignerKey
from ayes.ops.key_files import new_file
from ayes.schemas.ids import token

app: Final = commands()


@command(app)
async def show(settings: SettingsOption = None, *, session: Session) -> None:
    """Show the trust file that the settings name, and the identity of the log."""
    async with session.connect("observer") as ledger:
        log = await ledger.log.identity()
    known = f"log           {log or 'has no fact yet'}"
    trust = trust_of(session.store, settings)
    if trust is None:
        nobody = "trust file    none: no signature is checked, and all votes count unsigned"
        session.print({"log": log, "trust": None}, known, nobody)
        return
    lost = f"{trust.lost.people} others, after {trust.lost.after}" if trust.lost else "nobody else"
    session.print(
        {"log": log, "trust": trust.model_dump(mode="json")},
        known if trust.log == log else f"{known}, and the file is of {trust.log}",
        f"roots         {trust.roots_needed} of {', '.join(trust.roots)}",
        f"confirmers    {trust.confirmers_needed} of {', '.join(trust.confirmers) or 'nobody'}",
        f"lost keys     {lost}",
        *(f"signed since  fact {seq:,} in {name}" for name, seq in trust.signed_since.items()),
    )


@command(app, examples="ayes trust key board-1 board-1.key")
async def key(
    name: Annotated[str, argument("NAME", "Of the key, in the trust file.")],
    file: Annotated[Path, argument("FILE", "A new file, for the owner of the key alone.")],
    *,
    session: Session,
) -> None:
    """Make a key for the trust file. It belongs on no machine of the site."""
    made = SignerKey(token("key", name))
    new_file(file, made)
    session.print(
        {"key": str(made.public), "file": str(file)},
        f"{file} confirms people's keys, once roots or confirmers in the trust file have this:",
        str(made.public),
    )
