"""Commands for the trust file, which says who confirms people's keys."""

from html import escape
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import SettingsOption, argument, option
from ayes.interfaces.cli.settings import settings_of, trust_of
from ayes.ledger.seal import SignerKey
from ayes.ledger.trust import Trust
from ayes.ops.key_files import new_file
from ayes.schemas.errors import BadInput
from ayes.schemas.files import write_atomically
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
        f"passkeys      of {trust.rp}, on {', '.join(trust.origins)}"
        if trust.rp
        else "passkeys      nobody's",
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


#: On which people sign votes, with places for what it knows of a site.
_SIGN_PAGE: Final = Path(__file__).parent.parent / "sign.html"


@command(app, examples="ayes trust page sign.html --console https://ayes.example.com")
async def page(
    file: Annotated[Path, argument("FILE", "The file, for a web server of another origin.")],
    console: Annotated[
        str,
        option("--console", "URL", "Where people open the console; by default by the settings."),
    ] = "",
    settings: SettingsOption = None,
    *,
    session: Session,
) -> None:
    """Write the page on which people sign votes, so that no console can show them other ones."""
    trust = trust_of(session.store, settings)
    if trust is None or not trust.rp:
        raise BadInput("the page needs rp and origins of the trust file, and there are none.")
    url = (console or settings_of(session.store, settings, "console").console_url).rstrip("/")
    parts = urlsplit(url)
    is_web = parts.scheme in ("http", "https") and bool(parts.netloc)
    if not is_web or url != f"{parts.scheme}://{parts.netloc}":
        raise BadInput(f"{url!r} is not where people open a console. Give it with --console.")
    try:
        write_atomically(file, sign_page(url, trust).encode())
    except OSError as problem:
        raise BadInput(f"{file} cannot be written: {problem.strerror}.") from None
    session.print(
        {"file": str(file), "console": url, "rp": trust.rp},
        f"{file} signs votes of {url}. Serve it at one of {', '.join(trust.origins)}, where the "
        "console has no access, and name its address as [console] sign_page.",
    )


def sign_page(console: str, trust: Trust) -> str:
    """The page on which people sign the votes of this console."""
    text = _SIGN_PAGE.read_text()
    for name, value in ("console", console), ("log", trust.log), ("rp", trust.rp):
        text = text.replace(
            f'name="ayes-{name}" content=""', f'name="ayes-{name}" content="{escape(value)}"'
        )
    return text
