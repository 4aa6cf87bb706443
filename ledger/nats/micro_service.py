"""A service over NATS that other programs can discover (ADR-32)."""

import asyncio
import importlib.metadata
import re
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import nats.errors
from nats import micro
from nats.aio.client import Client
from nats.micro.service import Service


@asynccontextmanager
async def registered(client: Client, name: str, description: str) -> AsyncGenerator[Service]:
    """A service of this name, without endpoints yet, for as long as the block lasts."""
    with warnings.catch_warnings():
        # nats-py uses it for the start time of a service.
        warnings.filterwarnings("ignore", r"datetime\.datetime\.utcnow", DeprecationWarning)
        service = await micro.add_service(
            client, name=name, version=_version(), description=description
        )
    try:
        yield service
    finally:
        with suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(1):
                await service.stop()


def one_line(text: str) -> str:
    """A text as the header of an error can hold it."""
    return " ".join(text.split())


def _version() -> str:
    """The version of this package as a service may report it: three numbers."""
    with suppress(importlib.metadata.PackageNotFoundError):
        if found := re.match(r"\d+\.\d+\.\d+", importlib.metadata.version("ayes")):
            return found[0]
    return "0.0.0"
