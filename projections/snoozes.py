"""Pending calls that a person has put aside until a time.

Such a call comes back by itself: at that time, and before it once the person is asked anew. While
it waits it is known that it was away.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from ayes.projections.call_query import AWAKE, CallQuery
from ayes.projections.pending import Entry
from ayes.schemas.errors import BadInput

#: Of one person.
MOST: Final = 100
#: For how much of the time until its deadline a call may be away.
_SHARE: Final = 3 / 4


class Snooze(Struct, frozen=True):
    """That a call was put aside."""

    #: As `workspace/thread/call`.
    call: str
    until: datetime
    #: What asked the person then, as of `question_of`.
    question: str


def question_of(entry: Entry, person: str) -> str:
    """A digest of what asks this person: the call, whoever was asked later, and who handed it to
    the person. With another one they are asked anew.
    """
    givers = sorted(by for by, to in (entry.handed or {}).items() if to == person)
    asking = msgspec.json.encode((entry.digest, entry.asked_as_well, givers))
    return sha256(asking).hexdigest()[:32]


def latest(entry: Entry, now: datetime) -> datetime | None:
    """Until when a call can be put aside: a quarter of the time until its deadline is left then.
    None: it has no deadline.
    """
    return entry.due_at and now + (entry.due_at - now) * _SHARE


def with_snooze(
    snoozes: Iterable[Snooze],
    entry: Entry,
    person: str,
    until: datetime,
    *,
    now: datetime,
    waiting: Collection[str],
) -> tuple[Snooze, ...]:
    """A person's snoozes with that of this call, in place of an earlier one.

    Args:
        waiting: the calls that are pending; snoozes of others are left out.

    Raises:
        BadInput: the time is past or too late, or there are too many.
    """
    call, last = str(entry.ref), latest(entry, now)
    if until <= now:
        raise BadInput(f"{until:%Y-%m-%d %H:%M} UTC is past. {call} was not put aside.")
    if last is not None and until > last:
        raise BadInput(
            f"{call} is due at {entry.due_at:%Y-%m-%d %H:%M} UTC, and comes back when a quarter of "
            f"the time until then is left: put it aside until {last:%Y-%m-%d %H:%M} UTC at the "
            "latest."
        )
    kept = [one for one in snoozes if one.call in waiting and one.call != call]
    if len(kept) >= MOST:
        raise BadInput(f"you have put {MOST} calls aside already. Bring one back first.")
    return (*kept, Snooze(call, until.astimezone(UTC), question_of(entry, person)))


class Snoozed:
    """What a person has put aside, at one moment."""

    def __init__(self, snoozes: Iterable[Snooze], person: str, now: datetime) -> None:
        self._of = {tuple(one.call.split("/")): one for one in snoozes}
        self._person, self._now = person, now

    def __bool__(self) -> bool:
        """Whether any call may be away."""
        return self.back_at is not None

    def left_out_of(self, query: CallQuery) -> CallQuery:
        """The query without what is away, unless it says itself what of that it selects."""
        return query & AWAKE if self and not query.needs("snoozed") else query

    @property
    def back_at(self) -> datetime | None:
        """When the next call comes back at the latest; None: none is away."""
        return min((one.until for one in self._of.values() if one.until > self._now), default=None)

    def until(self, entry: Entry) -> datetime | None:
        """Until when a call is away; None: it is not."""
        found = self._of.get((entry.workspace, entry.thread, entry.call))
        if found is None or found.until <= self._now:
            return None
        return found.until if found.question == question_of(entry, self._person) else None

    def holds(self, entry: Entry) -> bool:
        """Whether a call is away."""
        return self.until(entry) is not None

    def is_back(self, entry: Entry) -> bool:
        """Whether a call was away, and has come back."""
        return (entry.workspace, entry.thread, entry.call) in self._of and not self.holds(entry)


#: Of those who have put nothing aside.
NOTHING: Final = Snoozed((), "", datetime.min.replace(tzinfo=UTC))
