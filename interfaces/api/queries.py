"""Which calls a request is about: one that its path names, or those that its query selects."""

import base64
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, ClassVar, Final, Literal, Protocol

import msgspec
from fastapi import Depends, Path, Query
from pydantic import Field

from ayes.interfaces.api.base import ApiModel
from ayes.ledger.lifecycle import Status
from ayes.projections.call_order import GROUPS, CallOrder, PageCursor
from ayes.projections.call_query import MINE, CallQuery, Word, number_of
from ayes.schemas.base64url import base64url
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import is_token, token
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


class Queried(ApiModel):
    """What is searched."""

    q: str = ""
    workspace: str = ""

    @property
    def typed(self) -> CallQuery:
        """The query as it was typed.

        Raises:
            BadInput: it has what is not a word.
        """
        return CallQuery.parse(self.q)

    @property
    def chosen(self) -> CallQuery:
        """The query, within the workspace.

        Raises:
            BadInput: it has what is not a word, or the workspace is not a valid name.
        """
        return self.typed & within(self.workspace)

    @property
    def parts(self) -> list[tuple[Word, str]]:
        """Each word with the query that is left without it; none of what cannot be understood."""
        with suppress(BadInput):
            query = self.typed
            return [(word, str(query.without(word))) for word in query.words]
        return []

    @property
    def names_a_call(self) -> bool:
        """Whether it could be the name of a call, which need not be in any list."""
        names = self.q.split("/")
        return len(names) == 3 and all(map(is_token, names))


class Listing(Queried):
    """Which calls to list (the parameters in `base.py`). An empty field matches everything."""

    status: Status | Literal["decided"] = Status.PENDING
    sort: str = ""
    group: str = ""
    after: str = ""
    limit: int = Field(default=50, ge=1, le=200)

    groups: ClassVar = GROUPS

    @property
    def is_mine(self) -> bool:
        """Whether it is all that the visitor may decide, and nothing else."""
        return self.q == str(MINE)

    @property
    def order(self) -> CallOrder:
        """The order.

        Raises:
            BadInput: it is not one.
        """
        return CallOrder.parse(self.sort, self.group)

    @property
    def is_newest_first(self) -> bool:
        """Of calls that are ordered by age only.

        Raises:
            BadInput: another order is wanted.
        """
        if self.order.by != "age" or self.group:
            raise BadInput(
                f"calls with the status {self.status} are sorted by age, or by -age. Leave out "
                "sort and group."
            )
        return self.order.reverse

    @property
    def cursor(self) -> PageCursor | None:
        """The cursor; None for the first page.

        Raises:
            BadInput: it is not one that a page has.
        """
        if not self.after:
            return None
        try:
            padded = f"{self.after}{'=' * (-len(self.after) % 4)}"
            cursor = _cursor.decode(base64.b64decode(padded, b"-_", validate=True))
            if cursor.value is None or number_of(cursor.value) is not None:
                return cursor
        except (ValueError, RecursionError):  # msgspec's and base64's among them
            pass
        raise _not_a_cursor(self.after)


_cursor: Final = msgspec.json.Decoder(PageCursor)


def within(workspace: str) -> CallQuery:
    """The calls of this workspace; of all if it is empty.

    Raises:
        BadId: it is not a valid name.
    """
    return CallQuery.of(workspace=workspace and token("workspace", workspace))


def naming(key: str, name: str) -> str:
    """The query for the calls that have this name in this field."""
    return str(Word(key, ":", name))


def cursor_text(cursor: PageCursor | None) -> str | None:
    """A cursor as the API writes it."""
    return None if cursor is None else _text_of(cursor)


def _text_of(cursor: PageCursor) -> str:
    return base64url(msgspec.json.encode(cursor))


def behind(seq: int) -> str:
    """The cursor after which the calls come that people were asked about after this fact."""
    return _text_of(PageCursor(seq + 1, ""))


def read_cursor(form: re.Pattern[str], after: str) -> re.Match[str]:
    """The parts of a cursor.

    Raises:
        BadInput: it is not one that a page has.
    """
    if (found := form.fullmatch(after)) is None:
        raise _not_a_cursor(after)
    return found


def _not_a_cursor(after: str) -> BadInput:
    return BadInput(f"after={after[:100]!r} is not a cursor. Take `next` of the page before.")


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
