"""A push service on loopback (RFC 8030): it has one subscription, and reads what is sent to it as
the browser would (RFC 8291).
"""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import http_ece
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from py_vapid import Vapid02


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class PushService:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._secret = os.urandom(16)
        self.endpoint = ""
        #: The headers and the content of what was sent.
        self.sent: asyncio.Queue[tuple[dict[str, str], dict[str, str]]] = asyncio.Queue()
        #: What it answers.
        self.status = 201

    @property
    def subscription(self) -> dict[str, Any]:
        point = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        keys = {"p256dh": _text(point), "auth": _text(self._secret)}
        return {"endpoint": self.endpoint, "expirationTime": None, "keys": keys}

    async def next(self) -> tuple[dict[str, str], dict[str, str]]:
        async with asyncio.timeout(60):
            return await self.sent.get()

    async def take(self, request: web.Request) -> web.Response:
        headers = dict(request.headers)
        assert Vapid02.verify(headers["Authorization"])
        body = await request.read()
        content = http_ece.decrypt(
            body, private_key=self._key, auth_secret=self._secret, version="aes128gcm"
        )
        self.sent.put_nowait((headers, json.loads(content)))
        return web.Response(status=self.status)


@asynccontextmanager
async def push_service() -> AsyncIterator[PushService]:
    made = PushService()
    app = web.Application()
    app.router.add_post("/send/{id}", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/send/one"
        yield made
    finally:
        await runner.cleanup()
