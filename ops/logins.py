"""Connections to the broker on the credentials of many people and roles, kept open while in use.

A program that speaks for several people signs on as each of them with that person's own
credentials. So the broker, and not the program, keeps ana from voting as ben.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Self

from ayes.ledger.nats.credentials import Store
from ayes.ledger.reviewers import Reviewer
from ayes.ledger.services import Ledger
from ayes.ops.broker.accounts import ADMIN, REVIEWER
from ayes.ops.broker.server import ensure_account
from ayes.schemas.ids import token

#: How many connections are open at once; the one unused for longest is closed.
_MOST: Final = 200


class Logins:
    """The connections of one program to the broker of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[tuple[str, str], tuple[Ledger, AsyncExitStack]] = {}
        self._opening = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def of(cls, store: Store) -> AsyncGenerator[Self]:
        """For as long as the block lasts."""
        logins = cls(store)
        try:
            yield logins
        finally:
            for _, stack in logins._open.values():
                await stack.aclose()

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
            if found is None:
                if role.startswith(REVIEWER):
                    await self._ensure_account(role)
                stack = AsyncExitStack()
                connecting = Ledger.connect(self._store.path, role=role, name=name)
                found = await stack.enter_async_context(connecting), stack
                if len(self._open) >= _MOST:
                    _, unused = self._open.pop(next(iter(self._open)))
                    await unused.aclose()
            self._open[role, name] = found  # the newest is last
        return found[0]

    async def _ensure_account(self, role: str) -> None:
        """Add a person, where the store is that of the broker itself and not a copy of a part."""
        known = self._store.read().passwords
        if role not in known and ADMIN in known:
            await ensure_account(self._store.path, role)
