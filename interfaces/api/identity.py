"""Who makes a request, as parameters of handlers."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request

from ayes.ops.visitors import Role, Visitor

__all__ = ["Operating", "Reading", "Reviewing", "Role", "Serving", "Visitor", "current_visitor"]


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
