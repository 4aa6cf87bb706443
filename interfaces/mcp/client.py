"""The client of a request: what it says of itself, and what it can be told."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict

from ayes.interfaces.mcp.wire import CAPABILITIES, CLIENT_INFO, VERSION, Json


class _Raw(BaseModel):
    """A message that is passed on as it is."""

    method: str
    params: Json | None = None


class _RawResult(BaseModel):
    model_config = ConfigDict(extra="allow")


class Client:
    """The client of one request."""

    def __init__(self, context: ServerRequestContext[Any, Any], requester: str) -> None:
        self._context = context
        #: On whose behalf the request is made.
        self.requester = requester
        self.version = str(context.protocol_version)
        #: Whether it speaks 2026-07-28.
        self.modern = self.version in MODERN_PROTOCOL_VERSIONS
        #: What it sent with `initialize`; None: it has no session.
        self.session: Any = None if self.modern else context.session.client_params
        meta = (context.params or {}).get("_meta")
        #: The `_meta` of this request.
        self.meta: Json = dict(meta) if isinstance(meta, Mapping) else {}
        own = (VERSION, CLIENT_INFO, CAPABILITIES)
        #: What each request of it says about it, since 2026-07-28.
        self.envelope = {key: self.meta[key] for key in own if key in self.meta}

    @property
    def named(self) -> object:
        """What the request's header says that it is about (SEP-2243); None over stdio."""
        request = self._context.request
        if request is None:
            return None
        sent = request.headers.get(MCP_NAME_HEADER)
        return "" if sent is None else decode_header_value(sent)

    @property
    def request_id(self) -> int | str | None:
        sent: int | str | None = self._context.request_id
        return sent

    async def notify(self, method: str, params: Json | None, *, related: bool) -> None:
        """Pass a notification on; `related`: it belongs to the request."""
        message: Any = _Raw(method=method, params=params)
        with suppress(Exception):  # it is gone; its call goes on without it
            await self._context.session.send_notification(
                message, related_request_id=self.request_id if related else None
            )

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        if (token := self.meta.get("progressToken")) is None:
            return
        told = {"total": total, "message": message}
        params = {"progressToken": token, "progress": progress}
        given = {key: one for key, one in told.items() if one is not None}
        await self.notify("notifications/progress", {**params, **given}, related=True)

    async def ask(self, method: str, params: Json | None) -> Json:
        """Pass a server's own request on."""
        message: Any = _Raw(method=method, params=params)
        related = ServerMessageMetadata(related_request_id=self.request_id)
        result = await self._context.session.send_request(message, _RawResult, metadata=related)
        given: Json = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return given
