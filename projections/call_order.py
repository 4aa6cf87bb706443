"""In which order pending calls are listed, and which of them together."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Self

from msgspec import Struct

from ayes.projections.call_query import Path, Seen, number_of
from ayes.schemas.errors import BadInput

#: The fields by which calls can stand together.
GROUPS: Final = ("tool", "agent", "requester", "rule")
_FIELD: Final = "field:"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PageCursor(Struct, frozen=True, forbid_unknown_fields=True):
    """The position of an entry in an order."""

    #: Of its approval request.
    seq: int
    key: str
    #: By what it is sorted, if not by age: a number; None: it has none, and comes last.
    value: str | None = None
    group: str = ""


class CallOrder(Struct, frozen=True):
    """By age, the oldest first, unless it says otherwise."""

    #: `age`, `due`, or `field:` and the path of an argument.
    by: str = "age"
    #: The newest, latest or greatest first.
    reverse: bool = False
    #: One of `GROUPS`; empty: calls do not stand together.
    group: str = ""

    @classmethod
    def parse(cls, sort: str, group: str = "") -> Self:
        """The order of these parameters.

        Raises:
            BadInput: one is not an order.
        """
        by = sort.removeprefix("-") or "age"
        if by not in {"age", "due"} and not (by.startswith(_FIELD) and by != _FIELD):
            raise BadInput(
                f"sort={sort[:100]!r} is not an order. Write age, due, or field:amount for the "
                "argument of that name; with a - before it, the other way round."
            )
        if group not in ("", *GROUPS):
            raise BadInput(f"group={group[:100]!r} is not one of {', '.join(GROUPS)}.")
        return cls(by, sort.startswith("-"), group)

    @property
    def searches(self) -> bool:
        """Whether it looks at arguments, of which some may be secret."""
        return self.by.startswith(_FIELD)

    def cursors(self, seen: Seen) -> Callable[[Any, str], PageCursor]:
        """The position of an entry by its key."""
        path = Path.of(self.by.removeprefix(_FIELD))

        def value(entry: Any) -> str | None:
            if self.by == "age":
                return None
            if self.by == "due":
                due = entry.due_at
                return None if due is None else str((due - _EPOCH).total_seconds())
            numbers = [number_of(one) for one in path.values(entry, seen)]
            return max((str(one) for one in numbers if one is not None), key=Decimal, default=None)

        return lambda entry, key: PageCursor(
            entry.seq, key, value(entry), getattr(entry, self.group) if self.group else ""
        )

    def place(self, at: PageCursor) -> tuple[str, bool, Decimal, int, str]:
        """What an order sorts by; the earlier asked first among equals."""
        value = Decimal(at.value or 0)
        is_newest_first = self.reverse and self.by == "age"
        return (
            at.group,
            at.value is None,
            -value if self.reverse else value,
            -at.seq if is_newest_first else at.seq,
            at.key,
        )


OLDEST: Final = CallOrder()
