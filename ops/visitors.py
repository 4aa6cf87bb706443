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

    #: The reviewer's name; a program's is its own word.
    name: str
    roles: frozenset[Role]
    kind: Literal["session", "token"] = "session"
    #: The workspaces that they may see and act in; none: all of them.
    workspaces: tuple[str, ...] = ()

    @property
    def person(self) -> str:
        """The person who this is: the broker or the store's owner vouches for the names of
        reviewers, and whoever signed them in for those of sessions. Empty for all others, who may
        call themselves what they like.
        """
        return self.name if Role.REVIEWER in self.roles or self.kind == "session" else ""

    @property
    def author(self) -> str:
        """The author of what is recorded with the credentials of services: a service as it calls
        itself, anybody else with their role, such as `reviewer ana`.
        """
        role = next(one for one in (Role.SERVICE, *Role) if one in self.roles)
        return self.name if role is Role.SERVICE else f"{role} {self.name}"

    def may_see(self, workspace: str) -> bool:
        """Whether a workspace is theirs. That it exists is not told to anybody else."""
        return not self.workspaces or workspace in self.workspaces

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
