"""The command that lets people decide about calls of MCP servers' tools."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import BehindTlsOption, LinkKeyOption, http_address
from ayes.interfaces.cli.terminal.output import print_message
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.link_key import link_key as key_of_links
from ayes.ops.broker.processes import die_with_parent
from ayes.schemas.errors import BadInput
from ayes.schemas.settings import read_settings

app: Final = commands()

INSTALL: Final = "pip install 'ayes[mcp]'"


@app.callback()
def mcp() -> None:
    """Let people decide about calls of MCP servers' tools."""


@command(
    app,
    examples="""
    ayes mcp gateway gateway.toml
    ayes mcp gateway gateway.toml --http 127.0.0.1:8808
    """,
)
async def gateway(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.toml", help="Its servers and whose calls it asks about; see docs/mcp.md."
        ),
    ],
    http: Annotated[
        str,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve many clients there, at /mcp; by default one, over stdin and stdout.",
            show_default=False,
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
    from ayes.interfaces.mcp.settings import GatewayFile

    settings = read_settings(GatewayFile, file)
    host, port = http_address("--http", http) if http else ("", 0)
    if not settings.requester and not (http and settings.clients):
        raise BadInput(
            f"{file} does not say on whose behalf calls are made. Add a line as in "
            'requester = "ben"; over HTTP, name the requester of each [[client]].'
        )
    if http:
        from ayes.interfaces.access import http_server

        http_server.check_reach("--http", host, has_tls=behind_tls, how="--behind-tls")
        if host not in http_server.LOOPBACK and not settings.clients:
            raise BadInput(
                f"--http {http} can be reached from elsewhere, and {file} has no [[client]] with a "
                "token. Add one, or listen on 127.0.0.1."
            )
    if session.url is not None and link_key is None:
        raise BadInput(
            "the ids that clients keep need a key that stays: --link-key with a copy of links.key "
            "of the broker's store."
        )
    key = key_of_links(Store(session.store), link_key)
    from ayes.interfaces.mcp.server import http_app, opened, serve_stdio

    async with (
        session.connect("service") as ledger,
        opened(settings, ledger, key, die_with_parent()) as serving,
    ):
        if not http:
            await serve_stdio(serving)
            return
        app = http_app(serving, host)
        print_message(f"The gateway serves http://{host}:{port}/mcp until Ctrl-C.")
        await http_server.server(app, has_signals=True, host=host, port=port).serve()
