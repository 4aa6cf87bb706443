"""Who makes a request, and what they may do.

The roles of a visitor decide which pages and resources answer. They do not replace the broker's
permissions: each fact is written with the credentials of the role or person whose slot it fills.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Literal

from fastapi import Depends, Request
from msgspec import Struct

from ayes.schemas.errors import NotAllowed


class Role(StrEnum):
    #: Votes, grants and reconciles, in their own name.
    REVIEWER = "reviewer"
    #: Applies policies, and retries or drops parked deliveries.
    OPERATOR = "operator"
    #: Reads.
    AUDITOR = "auditor"
    #: Requests and runs calls: API tokens only.
    SERVICE = "service"


class Visitor(Struct, frozen=True):
    """A person with a session, or a program with an API token."""

    #: The reviewer's name; for a program, the author of what it records.
    name: str
    roles: frozenset[Role]
    kind: Literal["session", "token"] = "session"

    def require(self, *roles: Role) -> None:
        """Refuse a visitor who has none of these roles.

        Raises:
            NotAllowed: they have none of them.
        """
        if not self.roles.intersection(roles):
            wanted = " or ".join(roles)
            raise NotAllowed(
                f"{self.name} may not do this here: it needs the role {wanted}. "
                "An administrator of the console can give it."
            )


def current_visitor(request: Request) -> Visitor:
    """The visitor whom the security middleware has found. Every visitor may read."""
    found: Visitor = request.state.visitor
    return found


def _having(role: Role) -> Callable[[Visitor], Visitor]:
    def check(visitor: Annotated[Visitor, Depends(current_visitor)]) -> Visitor:
        visitor.require(role)
        return visitor

    return check


#: Parameters of a handler: the visitor, who must have that role.
Reading = Annotated[Visitor, Depends(current_visitor)]
Reviewing = Annotated[Visitor, Depends(_having(Role.REVIEWER))]
Operating = Annotated[Visitor, Depends(_having(Role.OPERATOR))]
Serving = Annotated[Visitor, Depends(_having(Role.SERVICE))]
