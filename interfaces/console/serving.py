"""Serving the console, in the event loop of the program that runs it."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI
from msgspec import Struct

from ayes.interfaces.access import http_server
from ayes.interfaces.access.openid import OpenIdProvider, OpenIdSettings
from ayes.interfaces.access.security import Security
from ayes.interfaces.api.backend import jetstream
from ayes.interfaces.console.application import console
from ayes.ledger.nats.credentials import Store
from ayes.ledger.trust import Trust
from ayes.ops.actions.policies import may_be
from ayes.ops.tokens import AccessFile
from ayes.ops.workers import gone
from ayes.schemas.addresses import LOOPBACK, check_reach
from ayes.schemas.errors import BadInput

#: The port of the first console on a machine; another one takes any that is free, and keeps it.
PORT: Final = 8420
_HOST: Final = "127.0.0.1"
#: How long requests that write may take to end, in whole seconds.
_ENDING_S: Final = 5


class Serving(Struct, frozen=True):
    """A console that is being served."""

    url: str
    #: Signs in the person who runs it, once; empty if they sign in elsewhere.
    link: str
    #: What the person who runs it should know, a sentence each.
    notes: list[str]
    #: Done when it no longer serves, and failed when it no longer can.
    ended: asyncio.Future[None]


@asynccontextmanager
async def serving(
    store: Store,
    name: str,
    *,
    host: str = _HOST,
    port: int | None = None,
    public_url: str = "",
    sign_in: OpenIdSettings | None = None,
    archive: Path | None = None,
    link_key: Path | None = None,
    trust: Trust | None = None,
    sign_page: str = "",
) -> AsyncGenerator[Serving]:
    """Serve the console of this store for as long as the block lasts.

    Args:
        name: the reviewer whom the link signs in.
        port: None: the same as the last time, or else a free one.
        public_url: where people open it, if a proxy passes their requests on.
        sign_in: the OpenID Connect provider at which people sign in.
        archive: where the lake is, if it is not in the store.
        link_key: the file of the key of links in messages, if it is not in the store.
        trust: by what signatures are judged.
        sign_page: the page of another origin on which votes are signed.

    Raises:
        BadInput: the sign page is not one of the trust file; others could reach it and nobody would
            have to sign in; or the port is in use.
        BrokerAway: no broker runs from the store.
    """
    _check_reach(host, public_url, sign_in)
    origins, rp = (trust.origins, trust.rp) if trust is not None else ((), "")
    if sign_page and _origin(sign_page) not in origins:
        raise BadInput(
            f"[console] sign_page {sign_page!r} is on none of the origins of the trust file: "
            f"{', '.join(origins) or 'it names none'}."
        )
    access = AccessFile(store)
    kept = access.read().port or PORT
    with _listen(host, port, kept) as listener:
        bound = listener.getsockname()[1]
        is_local = rp == "localhost" or rp.endswith(".localhost")
        name_or_host = rp if is_local and host in LOOPBACK else f"[{host}]" if ":" in host else host
        url = public_url.rstrip("/") or f"http://{name_or_host}:{bound}"
        provider = OpenIdProvider(sign_in, url) if sign_in else None
        security = Security(access, url, provider)
        async with (
            console(security, archive, link_key, trust) as app,
            served(app, listener, security) as running,
        ):
            app.state.backend.sign_page = sign_page
            noted = access.serve_at(url, bound, by_link=provider is None)
            notes = [] if port is not None else _about_port(bound, kept)
            if rp and not sign_page and url not in origins:
                notes.append(
                    f"No passkey signs at {url}: the trust file names {', '.join(origins)}."
                )
            if sign_page and url in origins:
                notes.append(
                    f"The trust file lets passkeys sign at {url} too, so the sign page protects "
                    "from no console. Name in origins the sign page alone."
                )
            if provider is None and not may_be(name, await app.state.backend.voters()):
                notes.append(
                    f"The link signs in {name}, whom no rule of the policies asks to vote: "
                    "`--as NAME` signs in somebody whom one does."
                )
            away = asyncio.create_task(gone(jetstream(app.state.backend.reading)))
            ended = asyncio.create_task(_first(running, away))
            try:
                with noted:
                    link = "" if provider else access.link_for(name, url)
                    yield Serving(url, link, notes, ended)
            finally:
                away.cancel()
                ended.cancel()


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def _first(*ends: asyncio.Future[None]) -> None:
    done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        one.result()


def _check_reach(host: str, public_url: str, sign_in: OpenIdSettings | None) -> None:
    parts = urlsplit(public_url)
    if public_url and not (parts.scheme in {"http", "https"} and parts.hostname):
        raise BadInput(
            f"[console] url {public_url!r} is not a URL such as https://ayes.example.com."
        )
    if parts.path.strip("/") or parts.query:
        raise BadInput(f"[console] url {public_url!r} has a path. The console needs its own host.")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise BadInput(
            f"[console] url {public_url!r} is without TLS, so sessions could be stolen on the way. "
            "Put a proxy with TLS before it, and write https://."
        )
    check_reach(
        "--host",
        host,
        has_tls=bool(public_url),
        how="[console] url, where people open it, in the settings",
    )
    if sign_in is None and (public_url or host not in LOOPBACK):
        raise BadInput(
            "other machines could reach this console, and a link signs in only on this one. Say "
            "in [openid] of the settings how people sign in, or leave out --host and [console] url."
        )


def _listen(host: str, port: int | None, before: int) -> socket.socket:
    """A socket on this port; without one, on that of before or any other that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for one in (port,) if port is not None else (before, 0):
        with suppress(OSError):
            return socket.create_server((host, one), family=family)
    at = host if port is None else f"{host}:{port}"
    raise BadInput(f"cannot serve at {at}: the port is in use, or the address is not ours.")


def _about_port(bound: int, kept: int) -> list[str]:
    """Why it has another port than 8420. It stays where it is: bookmarks, installed consoles, the
    notices of devices, and programs have its address, and 8420 may be that of another store.
    """
    if bound == PORT:
        return []
    why = "as the last time" if bound == kept else f"as {kept} is in use"
    moved = f"`ayes up --console-port {PORT}` or `ayes console --port {PORT}` moves it"
    return [f"The console is at port {bound}, {why}, and stays there, as links have it: {moved}."]


@asynccontextmanager
async def served(
    app: FastAPI, listener: socket.socket, security: Security
) -> AsyncGenerator[asyncio.Future[None]]:
    """Serve this application for as long as the block lasts; yields when it no longer serves."""
    server = http_server.server(
        app,
        # Logging is the program's, and addresses with codes belong in no log.
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        # Only a proxy knows whose request it is; without one, nobody may claim anything.
        proxy_headers=security.provider is not None,
        timeout_graceful_shutdown=_ENDING_S,
    )
    running = asyncio.create_task(server.serve([listener]), name="console")
    try:
        yield running
    finally:
        security.end()
        server.should_exit = True
        await asyncio.gather(running, return_exceptions=True)
