"""The command that forgets what was sealed in a thread."""

import sys
from pathlib import Path
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import SettingsOption, argument, option
from ayes.interfaces.cli.settings import thread_keys_of
from ayes.interfaces.cli.terminal.output import print_line, print_message
from ayes.interfaces.cli.terminal.prompt import read_line
from ayes.ops.actions.forgetting import STAYS
from ayes.ops.actions.forgetting import forget as destroy
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import ThreadRef

app: Final = commands()


@command(app, examples="ayes forget shop/order-17 --yes")
async def forget(
    thread: Annotated[str, argument("WORKSPACE/THREAD", "The thread.")],
    yes: Annotated[bool, option("--yes", "Do not ask.")] = False,
    settings: SettingsOption = None,
    *,
    session: Session,
) -> None:
    """Make unreadable what was sealed in a thread, for ever: its key is destroyed.

    It says what stays. After a crash, run it again.
    """
    ref, keys = ThreadRef.parse(thread), thread_keys_of(session.store, settings)
    if keys is None:
        raise BadInput(
            "no directory of keys is named: write [secrets] into ayes.toml, or name another file "
            "with --settings; docs/secrets.md has an example."
        )
    if not yes:
        await _ask(ref, keys.folder)
    async with session.connect("operator") as ledger:
        found = await destroy(ledger, keys, ref)
    if session.json:
        session.print(found)
        return
    print_message(f"What was sealed in {ref} cannot be opened any more.")
    for one in found.open:
        print_line(f"will not run      {one}: it is declined if people approve it")
    for one in found.running:
        print_line(f"still runs        {one}: it holds what it has opened until it ends")
    for one in found.stays:
        print_line(f"stays             {one}")


async def _ask(ref: ThreadRef, folder: Path) -> None:
    """Let somebody confirm it at the terminal.

    Raises:
        BadInput: they do not, or nobody is there.
    """
    if not sys.stdin.isatty():
        raise BadInput("nobody can be asked here. Give --yes. Nothing was recorded.")
    for one in STAYS:
        print_message(f"stays: {one}")
    print_message(f"The key of {ref} in {folder} is destroyed for ever. Type {ref} to go on:")
    if await read_line() != str(ref):
        raise BadInput("that is not its name. Nothing was recorded.")
