"""Who makes a request, as the parameter of handlers."""

from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple

from fastapi import Depends, Request

from ayes.interfaces.api.backend import Backend
from ayes.ledger.clients.reviewers import Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.ops.visitors import Role, Visitor

__all__ = ["Operating", "Reading", "Reviewing", "Role", "Serving", "Visit", "Visitor"]


class Visit(NamedTuple):
    """A request of a visitor, and the connections to the broker on which it is handled."""

    request: Request
    #: Whom the security middleware has found.
    visitor: Visitor
    backend: Backend

    @property
    def name(self) -> str:
        return self.visitor.name

    @property
    def reading(self) -> Ledger:
        """Reads. Every visitor may."""
        return self.backend.reading

    async def service(self) -> Ledger:
        """A connection that may request and run calls, in the visitor's name."""
        return await self.backend.service(self.visitor.author)

    async def operator(self) -> Ledger:
        """A connection that may apply policies, in the visitor's name."""
        return await self.backend.operator(self.visitor.name)

    async def as_reviewer(self) -> Ledger:
        """A connection on the visitor's own credentials."""
        return await self.backend.as_reviewer(self.visitor.name)

    async def reviewer(self) -> Reviewer:
        """The methods of the visitor as a reviewer, with their own credentials."""
        return await self.backend.reviewer(self.visitor.name)


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
