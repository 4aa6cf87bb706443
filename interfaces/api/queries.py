"""Which calls a request is about: one that its path names, or those that its query selects."""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Final, Literal, Protocol

from fastapi import Depends, Path, Query
from pydantic import Field

from ayes.interfaces.api.base import ApiModel
from ayes.ledger.lifecycle import Status
from ayes.projections.call_filter import CallFilter
from ayes.projections.pending import PageCursor
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef

#: A part of a call's name, as `ayes.schemas.ids` has it. Our own check says what is wrong with one.
_ID: Final = Path(
    description="1 to 64 characters of A-Z a-z 0-9 _ -, the first no _",
    json_schema_extra={"pattern": "^[A-Za-z0-9-][A-Za-z0-9_-]{0,63}$"},
)


def _named(
    workspace: Annotated[str, _ID], thread: Annotated[str, _ID], call: Annotated[str, _ID]
) -> CallRef:
    return CallRef(workspace, thread, call)


#: The parameter of a handler whose path names a call: `{workspace}/{thread}/{call}`.
Named = Annotated[CallRef, Depends(_named)]


class CallQuery(ApiModel):
    """Which calls to list (the parameters in `base.py`). An empty field matches everything."""

    status: Status | Literal["decided"] = Status.PENDING
    order: Literal["oldest", "newest"] = "oldest"
    workspace: str = ""
    thread: str = ""
    tool: str = ""
    rule: str = ""
    mine: bool = False
    overdue: bool = False
    after: str = ""
    limit: int = Field(default=50, ge=1, le=200)

    def only(self, *names: str) -> None:
        """Refuse conditions that calls of this status do not have, except these.

        Raises:
            BadInput: there is another one.
        """
        other = {"rule", "mine", "overdue"}.difference(names)
        for name in sorted(other):
            if getattr(self, name):
                raise BadInput(
                    f"{name} does not select calls with the status {self.status}. Leave it out."
                )

    @property
    def chosen(self) -> CallFilter:
        """Those by workspace, thread, tool and rule.

        Raises:
            BadInput: one is not a valid name.
        """
        return CallFilter(self.workspace, self.thread, self.tool, self.rule).checked()

    @property
    def cursor(self) -> PageCursor | None:
        """The cursor; None for the first page.

        Raises:
            BadInput: it is not one that a page has.
        """
        if not self.after:
            return None
        found = read_cursor(_CURSOR, self.after)
        return PageCursor(int(found[1]), found[2])


_CURSOR: Final = re.compile(r"([0-9]{1,18})-([A-Za-z0-9_.-]{1,256})", re.ASCII)


def cursor_text(cursor: PageCursor | None) -> str | None:
    """A cursor as the API writes it."""
    return f"{cursor.seq}-{cursor.key}" if cursor else None


def read_cursor(form: re.Pattern[str], after: str) -> re.Match[str]:
    """The parts of a cursor.

    Raises:
        BadInput: it is not one that a page has.
    """
    if (found := form.fullmatch(after)) is None:
        raise BadInput(f"after={after[:100]!r} is not a cursor. Take `next` of the page before.")
    return found


# ------------------------------------------------------------------ grants, delegations and stops

#: How many grants, delegations or stops a page has at most.
Limit = Annotated[int, Query(ge=1, le=1000)]

_PLACE: Final = re.compile(r"([01])-([0-9]{1,18})", re.ASCII)


class _Given(Protocol):
    @property
    def seq(self) -> int: ...


def page_of[T: _Given](
    found: Iterable[T], is_over: Callable[[T], bool], after: str, limit: int
) -> tuple[list[T], str | None]:
    """Those after the cursor, and the next one: what has an effect or will have one, then the rest;
    the newest first.

    Raises:
        BadInput: the cursor is not one that a page has.
    """
    begin = (-1, 0)
    if after:
        cursor = read_cursor(_PLACE, after)
        begin = (int(cursor[1]), -int(cursor[2]))

    def place(one: T) -> tuple[int, int]:
        return int(is_over(one)), -one.seq

    rest = sorted((one for one in found if place(one) > begin), key=place)
    last = rest[limit - 1] if len(rest) > limit else None
    return rest[:limit], f"{place(last)[0]}-{last.seq}" if last else None
