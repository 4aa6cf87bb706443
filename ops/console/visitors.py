"""Visitors of the console, and their roles.

The roles of a visitor decide which pages and resources answer. They do not replace the broker's
permissions: each fact is written with the credentials of the role or person whose slot it fills.
"""

from enum import StrEnum
from typing import Literal

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
