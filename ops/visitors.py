"""Visitors of the console, and their roles.

The roles of a visitor decide which pages and resources answer. They do not replace the broker's
permissions: each fact is written with the credentials of the role or person whose slot it fills.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.people import People
from ayes.schemas.errors import BrokerAway, NotAllowed


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

    @property
    def is_service(self) -> bool:
        """Whether it is a program that requests and runs calls."""
        return self.kind == "token" and Role.SERVICE in self.roles

    def sees(self, workspace: str) -> bool:
        return not self.workspaces or workspace in self.workspaces

    def within(self, workspaces: tuple[str, ...]) -> "Visitor | None":
        """The same visitor in those of their workspaces that are among these (none: all are). None
        if that leaves no workspace: a visitor without any would see all of them.
        """
        if not (self.workspaces and workspaces):
            return replace(self, workspaces=self.workspaces or workspaces)
        both = tuple(one for one in self.workspaces if one in workspaces)
        return replace(self, workspaces=both) if both else None

    def as_person(self, people: People | None) -> "Visitor | None":
        """The same visitor in the workspaces of the person who they are, if they are one; None if
        that leaves no workspace.

        Raises:
            BrokerAway: it is not known yet who is a person.
        """
        if not self.person:
            return self
        if people is None:
            raise BrokerAway("it is not known yet who is a person. Try again in a moment.")
        return self.within(people.workspaces(self.person))

    def require_all(self) -> None:
        """Refuse a visitor who may see some workspaces only.

        Raises:
            NotAllowed: they are one.
        """
        if self.workspaces:
            raise NotAllowed(
                f"{self.name} may not see this: it is about all workspaces, and theirs are "
                f"{', '.join(self.workspaces)}."
            )

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
