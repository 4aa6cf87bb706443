"""The commands that serve those who do not read the log themselves."""

from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import BehindTlsOption, SettingsOption, http_address, option
from ayes.interfaces.cli.settings import needed, place_of, settings_of, trust_of
from ayes.interfaces.cli.terminal.output import print_message
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.accounts import READS
from ayes.ops.broker.reads import Reads
from ayes.ops.workers import until_signalled
from ayes.schemas.addresses import check_reach
from ayes.schemas.errors import BadInput

app: Final = commands()

INSTALL: Final = "pip install 'ayes[web]'"


@app.callback()
def serve() -> None:
    """Serve agents of other protocols, and logins with some workspaces only."""


@command(app, examples="ayes serve aap --settings ayes.toml --http 127.0.0.1:8810")
async def aap(
    settings: SettingsOption = None,
    http: Annotated[str, option("--http", "HOST:PORT", "Where to listen.")] = "127.0.0.1:8810",
    *,
    behind_tls: BehindTlsOption = False,
    session: Session,
) -> None:
    """Serve agents that speak the Agent Approval Protocol."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise BadInput(f"the provider is not installed: {INSTALL}.")
    said = needed(settings_of(session.store, settings, "aap").aap, "aap", "the provider")
    made = place_of(session.store, settings).with_suffix(".instances.json")
    host, port = http_address("--http", http)
    from ayes.interfaces.aap.provisioning import opened
    from ayes.interfaces.aap.routes import application
    from ayes.interfaces.access import http_server

    check_reach("--http", host, has_tls=behind_tls, how="--behind-tls")

    async with session.connect("service") as ledger, AsyncExitStack() as running:
        await ledger.trust_in(trust_of(session.store, settings))
        instances = await running.enter_async_context(opened(said, ledger, made))
        app = application(said, ledger, instances)
        print_message(f"The provider serves http://{host}:{port} until Ctrl-C.")
        await http_server.server(app, has_signals=True, host=host, port=port).serve()


@command(app, examples="ayes serve reads --store /etc/ayes")
async def reads(*, session: Session) -> None:
    """Read for logins with some workspaces only, beside a broker that `up` does not run."""
    serving = Reads(Store.login_for(READS, store=session.store, url=session.url))
    await serving.open()
    try:
        said = "Logins with some workspaces may read until Ctrl-C."
        await until_signalled(ready=lambda: print_message(said))
    finally:
        await serving.close()
