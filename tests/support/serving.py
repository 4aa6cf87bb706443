"""An application on a port of its own, in the event loop of the test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import uvicorn
from fastapi import FastAPI


class _Server(uvicorn.Server):
    def capture_signals(self):
        return nullcontext()


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """Serve the application on a free port; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = _Server(
            uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        )
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
