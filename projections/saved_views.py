"""Searches of pending calls that people have saved under a name.

The views of a person are in one document (`kept.py`): so each name is there once, one view at most
is the first page, and there are no more than `MOST`.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.projections.call_order import CallOrder
from ayes.projections.call_query import OF_DECIDED, CallQuery, folded
from ayes.schemas.errors import BadInput

#: Of one person.
MOST: Final = 50
_MAX_NAME: Final = 80
_MAX_SORT: Final = 200


class SavedView(Struct, frozen=True, kw_only=True):
    """A search under a name."""

    #: Its name, which no other view of its author has.
    name: str
    #: The query; empty: all calls.
    q: str = ""
    #: The order, as of `GET /calls`.
    sort: str = ""
    #: `tool`, `agent`, `requester` or `rule`: such calls stand together.
    group: str = ""
    #: Everybody who may see this workspace sees the view, with the calls of the workspace; empty:
    #: only its author does.
    workspace: str = ""
    #: Whether it is the first page of its author.
    first: bool = False

    @property
    def query(self) -> CallQuery:
        """The calls that it shows.

        Raises:
            BadInput: the query has what is not a word, or what such calls do not have.
        """
        query = CallQuery.parse(self.q).only("pending calls", *OF_DECIDED)
        if not self.workspace:
            return query
        # The name of another workspace is not for all who see this one.
        within = query.only(f"calls of {self.workspace} alone", "workspace")
        return within & CallQuery.of(workspace=self.workspace)

    def listing(self, workspace: str) -> dict[str, str]:
        """The parameters that list its calls: of its own workspace, else of this one."""
        within = self.workspace or workspace
        return {"q": self.q, "sort": self.sort, "group": self.group, "workspace": within}

    @property
    def flaw(self) -> str:
        """Why it cannot be applied; empty if it can."""
        try:
            _ = self.query, CallOrder.parse(self.sort, self.group)
        except BadInput as problem:
            return str(problem)
        return ""


def with_view(
    views: Iterable[SavedView], new: SavedView, before: str = ""
) -> tuple[SavedView, ...]:
    """These views with a new one, in place of that of the same name.

    Args:
        before: its name until now, if it is renamed.

    Raises:
        BadInput: it cannot be applied, its name is not one or is that of another view, or there are
            too many.
    """
    new = replace(new, name=new.name.strip())
    if not 0 < len(new.name) <= _MAX_NAME:
        raise BadInput(f"a view has a name of 1 to {_MAX_NAME} characters.")
    if problem := new.flaw:
        raise BadInput(f"{problem} The view was not saved.")
    if len(new.sort) > _MAX_SORT:
        raise BadInput(f"sort may have {_MAX_SORT} characters, not {len(new.sort)}.")
    kept = [one for one in views if one.name != (before or new.name)]
    if any(one.name == new.name for one in kept):
        raise BadInput(f"you have a view {new.name!r} already. Choose another name.")
    if len(kept) >= MOST:
        raise BadInput(f"you have {MOST} views already. Remove one first.")
    kept = [replace(one, first=one.first and not new.first) for one in kept]
    return tuple(sorted((*kept, new), key=lambda one: (folded(one.name), one.name)))
