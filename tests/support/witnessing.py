"""A witness of seals over HTTP, which a test can take away, and which can be another one."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ayes.interfaces.access import http_server
from ayes.interfaces.witness import application
from ayes.ledger.seal import CosignerKey, VerifierKey
from ayes.ops.sealing.cosigning import Cosigner
from ayes.ops.sealing.witnesses import WitnessSettings


class WitnessServer:
    def __init__(self, folder: Path, name: str, log: VerifierKey) -> None:
        folder.mkdir()
        key = CosignerKey(name)
        self.cosigner = Cosigner(folder, key, [log])
        self.key = key.public
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.settings = WitnessSettings(key=str(self.key), url=self.url, allow_private=True)
        self.is_away = False

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = application(self.cosigner)

        async def here(scope, receive, send) -> None:
            if self.is_away:
                await send({"type": "http.response.start", "status": 503, "headers": []})
                await send({"type": "http.response.body", "body": b""})
            else:
                await app(scope, receive, send)

        server = http_server.server(here, lifespan="off", log_config=None)
        running = asyncio.create_task(server.serve([self._listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await running
