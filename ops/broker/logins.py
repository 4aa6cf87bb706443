"""Connections to the broker on the credentials of many people and roles, kept open while in use.

A program that speaks for several people signs on as each of them with that person's own
credentials. So the broker, and not the program, keeps ana from voting as ben.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Self

from msgspec import Struct

from ayes.ledger.clients.reviewers import Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.accounts import ADMIN, REVIEWER
from ayes.ops.broker.server import ensure_account
from ayes.schemas.ids import token
from ayes.schemas.people import plain

#: How many connections are open at once. Beyond that, those are closed that no task uses, the one
#: unused for longest first.
_MAX_OPEN: Final = 200


class _Connection(Struct):
    """A connection with somebody's credentials."""

    ledger: Ledger
    stack: AsyncExitStack
    #: The tasks that have asked for it, each until it has ended: a request or a click has its own.
    users: set[asyncio.Task[Any]]

    @property
    def is_closed(self) -> bool:
        log = self.ledger.log
        return isinstance(log, JetStream) and log.connection.closed.is_set()

    @property
    def workspaces(self) -> tuple[str, ...]:
        log = self.ledger.log
        return log.connection.login.workspaces if isinstance(log, JetStream) else ()

    def used(self) -> Ledger:
        if (task := asyncio.current_task()) is not None and task not in self.users:
            self.users.add(task)
            task.add_done_callback(self.users.discard)
        return self.ledger


class Logins:
    """The connections of one program to the broker of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[tuple[str, str], _Connection] = {}
        self._opening = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def of(cls, store: Store) -> AsyncGenerator[Self]:
        """For as long as the block lasts."""
        logins = cls(store)
        try:
            yield logins
        finally:
            for one in logins._open.values():
                await one.stack.aclose()

    async def reviewer(self, name: str) -> Reviewer:
        """The methods of this person, with their own credentials.

        Raises:
            BadId: it cannot be a reviewer's name.
            BrokerRefused: the store has no account of theirs.
            BrokerAway: no broker answers.
        """
        return (await self.as_reviewer(name)).reviewer(name)

    async def as_reviewer(self, name: str) -> Ledger:
        """A connection on this person's own credentials; errors as of `reviewer`."""
        return await self.connection(REVIEWER + token("reviewer", name))

    async def connection(self, role: str, name: str = "") -> Ledger:
        """A connection of this role, as this author."""
        async with self._opening:
            found = self._open.pop((role, name), None)
            if found is not None and (
                found.is_closed  # the broker refuses them, or did
                or found.workspaces != self._store.read().scope(role)
            ):
                await found.stack.aclose()
                found = None
            if found is None:
                if role.startswith(REVIEWER):
                    await self._ensure_account(role)
                stack = AsyncExitStack()
                connecting = Ledger.connect(self._store.path, role=role, name=name)
                found = _Connection(await stack.enter_async_context(connecting), stack, set())
            self._open[role, name] = found  # the newest is last
            ledger = found.used()
            await self._close_unused()
        return ledger

    async def drop(self, name: str) -> None:
        """Close the connections of a person who was removed."""
        async with self._opening:
            for key in [key for key in self._open if plain(key[0]) == plain(f"{REVIEWER}{name}")]:
                await self._open.pop(key).stack.aclose()

    async def _close_unused(self) -> None:
        unused = [key for key, one in self._open.items() if not one.users]
        for key in unused[: max(0, len(self._open) - _MAX_OPEN)]:
            await self._open.pop(key).stack.aclose()

    async def _ensure_account(self, role: str) -> None:
        """Add a person, where the store is that of the broker itself and not a copy of a part."""
        known = self._store.read().passwords
        if role not in known and ADMIN in known:
            await ensure_account(self._store.path, role)
