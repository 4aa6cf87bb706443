"""Programs of tests wait a minute for a broker that is there and says nothing.

By default a program gives up connecting after three seconds, and reading after five. On a busy
machine a broker may stand still for longer, and then a test would fail that is about something
else. A broker that is not there is noticed as soon as otherwise, and so is one of several that is
silent.
"""

import functools
import inspect
import time
from typing import Any, Final

import pytest

from ayes.ledger.nats.api import PATIENCE_S, Api
from ayes.ledger.nats.connection import Connection
from ayes.schemas.errors import BrokerAway

_WAIT_S: Final = 60
_DEFAULT_S: Final = inspect.signature(Connection.open).parameters["timeout_s"].default


def wait_for_brokers(patch: pytest.MonkeyPatch) -> None:
    """Make this process, and those forked from it, wait where no other time was asked for."""
    open_ = Connection.open

    @functools.wraps(open_)
    async def opened(self: Connection, *, timeout_s: float = _DEFAULT_S, **named: Any) -> None:
        if timeout_s != _DEFAULT_S or len(self.login.servers) > 1:
            return await open_(self, timeout_s=timeout_s, **named)
        client, connect = self.client, self.client.connect

        async def patiently(*servers: Any, **options: Any) -> None:
            await connect(*servers, **options | {"connect_timeout": _WAIT_S})
            client.options["connect_timeout"] = options["connect_timeout"]  # to reconnect

        client.connect = patiently  # type: ignore[method-assign]
        return await open_(self, timeout_s=_WAIT_S, **named)

    patch.setattr(Connection, "open", opened)
    answered_ = Api._patiently

    @functools.wraps(answered_)
    async def answered(
        self: Api, once: Any, subject: str, patience_s: float, *, repeat: bool
    ) -> Any:
        is_read = repeat and patience_s == PATIENCE_S and len(self._connection.login.servers) <= 1
        until = time.monotonic() + _WAIT_S
        while True:
            try:
                return await answered_(self, once, subject, patience_s, repeat=repeat)
            except BrokerAway:
                is_there = self._client.is_connected
                if not (is_read and is_there) or time.monotonic() > until:
                    raise

    patch.setattr(Api, "_patiently", answered)


def give_up_reading(patch: pytest.MonkeyPatch) -> None:
    """Wait as long as a program does, for tests in which no answer comes."""
    patch.setattr(Api, "_patiently", inspect.unwrap(Api._patiently))
