"""The command that serves the web console and the HTTP API."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final

from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import (
    ArchiveOption,
    JsonOption,
    LinkKeyOption,
    PersonOption,
    SettingsOption,
    StoreOption,
    option,
)
from ayes.interfaces.cli.settings import settings_of, trust_of
from ayes.interfaces.cli.terminal.output import print_result
from ayes.ledger.nats.credentials import Store
from ayes.ops.tokens import AccessFile, own_name
from ayes.ops.traces import exporting
from ayes.ops.workers import until_signalled
from ayes.schemas.errors import BadInput

if TYPE_CHECKING:
    from ayes.interfaces.access.openid import OpenIdSettings
    from ayes.interfaces.console.serving import Serving
    from ayes.ledger.trust import Trust

app: Final = commands()

INSTALL: Final = "pip install 'ayes[web]'"


@command(
    app,
    examples="""
    ayes console
    ayes console --link
    ayes console --host 0.0.0.0 --settings ayes.toml
    """,
)
@exporting()
async def console(
    store: StoreOption = None,
    host: Annotated[str, option("--host", "ADDRESS", "Where it listens.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        option(
            "--port",
            "By default the same as the last time; 8420 at first, if it is free.",
            min=0,
            max=65535,
        ),
    ] = None,
    settings: SettingsOption = None,
    archive: ArchiveOption = None,
    link_key: LinkKeyOption = None,
    link: Annotated[
        bool, option("--link", "Print a new link to a console that runs already.")
    ] = False,
    name: PersonOption = "",
    json: JsonOption = False,
) -> None:
    """Serve the web console and the HTTP API beside a broker, until Ctrl-C."""
    place, person = Store(store), name or own_name()
    if link:
        found = AccessFile(place).link_for(person)
        print_result({"link": found}, found, json=json)
        return
    if not is_installed():
        raise BadInput(f"the console is not installed: {INSTALL}.")
    from ayes.interfaces.console.serving import serving

    said = settings_of(store, settings, "console", "openid")
    async with serving(
        place,
        person,
        host=host,
        port=port,
        public_url=said.console_url,
        sign_in=said.openid,
        archive=archive,
        link_key=link_key,
        trust=trust_of(store, settings),
        sign_page=said.sign_page,
    ) as served:
        await until_signalled(served.ended, ready=lambda: _greet(served, json=json))


@asynccontextmanager
async def beside(
    store: Store,
    person: str,
    *,
    port: int | None = None,
    public_url: str = "",
    sign_in: "OpenIdSettings | None" = None,
    trust: "Trust | None" = None,
    sign_page: str = "",
) -> AsyncGenerator["Serving | None"]:
    """Serve the console of a broker that this process runs; None if it is not installed."""
    if not is_installed():
        yield None
        return
    from ayes.interfaces.console.serving import serving

    opening = serving(
        store,
        person,
        port=port,
        public_url=public_url,
        sign_in=sign_in,
        trust=trust,
        sign_page=sign_page,
    )
    async with opening as served:
        yield served


def is_installed() -> bool:
    return all(find_spec(name) for name in ("fastapi", "uvicorn", "jinja2", "python_multipart"))


def _greet(served: "Serving", *, json: bool) -> None:
    once = "The link works once, for ten minutes; `ayes console --link` prints another."
    print_result(
        {"url": served.url, "link": served.link or None},
        f"console  {served.link or served.url}",
        *([once] if served.link else []),
        *served.notes,
        "Ctrl-C ends it.",
        json=json,
    )
