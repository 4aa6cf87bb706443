"""Which calls somebody wants to see."""

from fnmatch import fnmatchcase
from typing import Final, Protocol, Self

from msgspec import Struct

from ayes.schemas.ids import token
from ayes.schemas.slots import ThreadRef


class OfCall(Protocol):
    """Something about a call."""

    @property
    def workspace(self) -> str: ...
    @property
    def thread(self) -> str: ...
    @property
    def tool(self) -> str: ...


class CallFilter(Struct, frozen=True):
    """Selects calls. An empty field selects all."""

    workspace: str = ""
    #: As `workspace/thread`.
    thread: str = ""
    #: A name, or a pattern with `*` and `?`.
    tool: str = ""
    #: The rule that asks or has decided.
    rule: str = ""

    def checked(self) -> Self:
        """This filter.

        Raises:
            BadInput: it has what is not a name of a workspace or thread.
        """
        if self.workspace:
            token("workspace", self.workspace)
        if self.thread:
            ThreadRef.parse(self.thread)
        return self

    def fits(self, one: OfCall) -> bool:
        return (
            (not self.workspace or self.workspace == one.workspace)
            and (not self.thread or self.thread == f"{one.workspace}/{one.thread}")
            and (not self.tool or fnmatchcase(one.tool, self.tool))
            and (not self.rule or self.rule == getattr(one, "rule", ""))
        )

    def covers(self, key: str) -> bool:
        """Whether the key `workspace.thread.call` is of this workspace and thread."""
        names = key.split(".")
        return (not self.workspace or self.workspace == names[0]) and (
            not self.thread or self.thread == "/".join(names[:2])
        )


NO_FILTER: Final = CallFilter()
