"""Who makes a request, as the parameter of handlers."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import Depends, Request

from ayes.interfaces.api.backend import Backend
from ayes.interfaces.api.feed import EventFilter, LookingToo, Sent
from ayes.interfaces.api.scope import ScopedPending, scoped, scoped_events
from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.grants import Grant
from ayes.ops.actions.secrets import secrets_in
from ayes.ops.actions.votes import state_of
from ayes.ops.visitors import Role, Visitor
from ayes.projections.pending import Entry, PendingIndex
from ayes.projections.views.call import CallState
from ayes.projections.views.secrets import WHOLE, Secrets
from ayes.schemas.codec import Fact
from ayes.schemas.slots import CallRef

__all__ = ["Operating", "Reading", "Reviewing", "Role", "Serving", "Visit", "Visitor"]


class Visit(NamedTuple):
    """A request of a visitor, and the connections to the broker on which it is handled.

    On these there is nothing of workspaces that the visitor may not see (scope.py).
    """

    request: Request
    #: Whom the security middleware has found.
    visitor: Visitor
    #: What is in it of the ledger is of all workspaces: handlers take it from here, or from `site`.
    backend: Backend

    @property
    def name(self) -> str:
        return self.visitor.name

    @property
    def reading(self) -> Ledger:
        """Reads. Every visitor may."""
        return self._seen(self.backend.reading)

    @property
    def lake(self) -> Path:
        """Where the lake is, if there is one. It only says which calls to look at."""
        return self.backend.lake

    @property
    def waiting(self) -> PendingIndex | ScopedPending:
        """The pending calls, kept up to date; errors as of `Backend.waiting`."""
        found, workspaces = self.backend.waiting, self.visitor.workspaces
        return ScopedPending(found, workspaces) if workspaces else found

    def events(
        self, chosen: EventFilter, after: int | None, shown: CallRef | None = None
    ) -> AsyncGenerator[list[Sent]]:
        """As of `Feed.events`.

        Args:
            shown: the call that the visitor's page shows.
        """
        feed, workspaces = self.backend.feed, self.visitor.workspaces
        if shown is None or not self.visitor.sees(shown.workspace):
            events = feed.events(chosen, after)
        else:
            looking, call, me = self.backend.looking, str(shown), self.visitor.person
            events = feed.events(chosen, after, lambda: LookingToo(call, looking.people(call, me)))
            if self.visitor.kind == "session":  # a program does not look
                events = looking.during(events, call, me)
        return scoped_events(events, workspaces, self._waiting) if workspaces else events

    @property
    def site(self) -> Backend:
        """What is about the site as a whole.

        Raises:
            NotAllowed: the visitor may see some workspaces only.
        """
        self.visitor.require_all()
        return self.backend

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncGenerator[Ledger]:
        """A connection of its own that reads, for another event loop."""
        async with self.backend.alone(name) as ledger:
            yield scoped(ledger, self.visitor.workspaces)

    async def secrets(self, *shown: Call | Entry | Fact | Grant) -> Secrets:
        """What of these the visitor is not shown. A program that requests and runs calls is shown
        everything.
        """
        return WHOLE if self.visitor.is_service else await secrets_in(self.reading, *shown)

    async def state_of(self, call: Call) -> CallState:
        """A call as the visitor is shown it."""
        return await state_of(self.reading, call, await self.secrets(call))

    async def service(self) -> Ledger:
        """A connection that may request and run calls, in the visitor's name."""
        return self._seen(await self.backend.service(self.visitor.author))

    async def operator(self) -> Ledger:
        """A connection that may apply policies, in the visitor's name."""
        return self._seen(await self.backend.operator(self.visitor.name))

    async def as_reviewer(self) -> Ledger:
        """A connection on the visitor's own credentials."""
        return self._seen(await self.backend.as_reviewer(self.visitor.name))

    async def reviewer(self) -> Reviewer:
        """The methods of the visitor as a reviewer, with their own credentials."""
        return (await self.as_reviewer()).reviewer(self.visitor.name)

    def _seen(self, ledger: Ledger) -> Ledger:
        return self.backend.scoped(ledger, self.visitor.workspaces)

    def _waiting(self) -> ScopedPending:
        return ScopedPending(self.backend.waiting, self.visitor.workspaces)


async def _visit(request: Request) -> Visit:
    return Visit(request, request.state.visitor, request.app.state.backend)


def _having(role: Role) -> Callable[[Visit], Awaitable[Visit]]:
    async def check(visit: Annotated[Visit, Depends(_visit)]) -> Visit:
        visit.visitor.require(role)
        return visit

    return check


#: Parameters of a handler: the visitor, who must have that role.
Reading = Annotated[Visit, Depends(_visit)]
Reviewing = Annotated[Visit, Depends(_having(Role.REVIEWER))]
Operating = Annotated[Visit, Depends(_having(Role.OPERATOR))]
Serving = Annotated[Visit, Depends(_having(Role.SERVICE))]
