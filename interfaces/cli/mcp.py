"""The command that lets people decide about calls of MCP servers' tools."""

from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    BehindTlsOption,
    LinkKeyOption,
    SettingsOption,
    http_address,
    option,
)
from ayes.interfaces.cli.settings import needed, settings_of, trust_of
from ayes.interfaces.cli.terminal.output import print_message
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.link_key import link_key as key_of_links
from ayes.ops.broker.processes import die_with_parent
from ayes.schemas.addresses import LOOPBACK, check_reach
from ayes.schemas.errors import BadInput

app: Final = commands()

INSTALL: Final = "pip install 'ayes[mcp]'"


@app.callback()
def mcp() -> None:
    """Let people decide about calls of MCP servers' tools."""


@command(
    app,
    examples="""
    ayes mcp gateway --settings ayes.toml
    ayes mcp gateway --http 127.0.0.1:8808
    """,
)
async def gateway(
    settings: SettingsOption = None,
    http: Annotated[
        str,
        option(
            "--http",
            "HOST:PORT",
            "Serve many clients there, at /mcp; by default one, over stdin and stdout.",
        ),
    ] = "",
    link_key: LinkKeyOption = None,
    *,
    behind_tls: BehindTlsOption = False,
    session: Session,
) -> None:
    """Serve MCP servers' tools so that every call is judged by the policy first."""
    if find_spec("mcp") is None:
        raise BadInput(f"the gateway is not installed: {INSTALL}.")
    said = needed(settings_of(session.store, settings, "mcp").mcp, "mcp", "the gateway")
    host, port = http_address("--http", http) if http else ("", 0)
    if not said.requester and not (http and said.clients):
        raise BadInput(
            "[mcp] does not say on whose behalf calls are made. Add a line as in "
            'requester = "ben"; over HTTP, name the requester of each [[mcp.client]].'
        )
    if http:
        from ayes.interfaces.access import http_server

        check_reach("--http", host, has_tls=behind_tls, how="--behind-tls")
        if host not in LOOPBACK and not said.clients:
            raise BadInput(
                f"--http {http} can be reached from elsewhere, and there is no [[mcp.client]] with "
                "a token in the settings. Add one, or listen on 127.0.0.1."
            )
    if session.url is not None and link_key is None:
        raise BadInput(
            "the ids that clients keep need a key that stays: --link-key with a copy of links.key "
            "of the broker's store."
        )
    key = key_of_links(Store(session.store), link_key)
    from ayes.interfaces.mcp.server import http_app, opened, serve_stdio

    async with session.connect("service") as ledger, AsyncExitStack() as running:
        await ledger.trust_in(trust_of(session.store, settings))
        serving = await running.enter_async_context(opened(said, ledger, key, die_with_parent()))
        if not http:
            await serve_stdio(serving)
            return
        app = http_app(serving, host)
        print_message(f"The gateway serves http://{host}:{port}/mcp until Ctrl-C.")
        await http_server.server(app, has_signals=True, host=host, port=port).serve()
