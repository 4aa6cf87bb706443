"""A console in a browser, for people who vote with passkeys; and the page of another origin."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from brokers import running
from console_client import REFUND, Site
from playwright.async_api import CDPSession, Page
from signed_site import DESK

from ayes.interfaces.access.security import Security
from ayes.interfaces.cli.trust import sign_page
from ayes.interfaces.console import serving
from ayes.interfaces.console.application import console
from ayes.ledger.clients.services import Ledger
from ayes.ledger.keys import added_keys
from ayes.ledger.signing import fingerprint, key_digest, key_id, signed
from ayes.ledger.trust import Trust
from ayes.ops.tokens import AccessFile
from ayes.ops.workers import KINDS, durables, reactions, working
from ayes.schemas import events as e
from ayes.schemas.policy import applied
from ayes.schemas.slots import KEYS, key_slot, policy_slot

POLICY: Final = """
[[rule]]
name = "large refunds"
tools = ["refund"]
then = "ask"
signed = true
voters = ["ana", "ben"]
"""


class PasskeySite(Site):
    """A site whose people vote with passkeys."""

    trust: Trust
    #: Where votes are signed; empty: on the console's own pages.
    sign_page = ""

    async def confirm(self, digits: str, name: str = "ana") -> None:
        """The desk confirms the key with these digits."""
        for whose, key in added_keys(await self.service.read(KEYS)):
            if whose == name and fingerprint(key) == digits:
                said = signed(DESK, key_digest(self.trust.log, name, key))
                slot = key_slot(name, key_id(key), "confirmed")
                async with Ledger.connect(self.server.store.path, role="organisation") as ledger:
                    await ledger.append(slot, e.KeyConfirmed(signatures=(said,)))
                return
        raise AssertionError(digits)


@asynccontextmanager
async def passkey_site(
    path: Path, rp: str = "localhost", *, elsewhere: bool = False
) -> AsyncIterator[PasskeySite]:
    """A site whose console is served at a name.

    Args:
        elsewhere: votes are signed on a page of another origin, below the name.
    """
    started = reactions([kind for kind in KINDS if kind != "model"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://{rp}:{listener.getsockname()[1]}"
        async with running(path / "store", also=tuple(durables(started))) as server:
            store = server.store.path
            async with (
                Ledger.connect(store, role="operator") as operator,
                Ledger.connect(store, name="desk") as service,
            ):
                await operator.append(policy_slot("shop", 1), applied(POLICY))
                await service.declare("shop", REFUND)
                page = _Page()
                async with page.served(f"sign.{rp}" if elsewhere else ""):
                    trust = Trust.model_validate(
                        {
                            "log": await service.log.identity(),
                            "roots": [str(DESK.public)],
                            "rp": rp,
                            "origins": [page.origin or url],
                        }
                    )
                    page.text = sign_page(url, trust)
                    security = Security(AccessFile(server.store), url)
                    async with (
                        working(started, store=store, trust=trust),
                        console(security, trust=trust) as app,
                        serving.served(app, listener, security),
                    ):
                        app.state.backend.sign_page = page.origin and f"{page.origin}/sign.html"
                        site = PasskeySite(server, service, app)
                        site.trust, site.sign_page = trust, page.origin
                        yield site


class _Page:
    """A server that has one page."""

    def __init__(self) -> None:
        self.origin = ""
        self.text = ""

    @asynccontextmanager
    async def served(self, host: str) -> AsyncIterator[None]:
        if not host:
            yield
            return
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.origin = f"http://{host}:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        body = self.text.encode() if b" /sign.html" in asked.split(b"\r\n")[0] else b""
        status = b"200 OK" if body else b"204 No Content"
        head = b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nConnection: close\r\n" % status
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()


class Device:
    """The virtual authenticator of a tab (Chrome DevTools Protocol, WebAuthn)."""

    def __init__(self, session: CDPSession, id_: str) -> None:
        self._session = session
        self.id = id_

    @classmethod
    async def of(cls, page: Page, **more: Any) -> "Device":
        session = await page.context.new_cdp_session(page)
        await session.send("WebAuthn.enable")
        options = {
            "protocol": "ctap2",
            "transport": "internal",
            "hasResidentKey": True,
            "hasUserVerification": True,
            "isUserVerified": True,
            "automaticPresenceSimulation": True,
        }
        given = {"options": options | more}
        made = await session.send("WebAuthn.addVirtualAuthenticator", given)
        return cls(session, made["authenticatorId"])

    async def verifies(self, is_user: bool) -> None:
        """Whether it finds that its person is there."""
        said = {"authenticatorId": self.id, "isUserVerified": is_user}
        await self._session.send("WebAuthn.setUserVerified", said)
