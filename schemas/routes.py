"""Routes of notices: the tables of a policy that say who is told, when, and through what.

    [contacts]                                  # channels in order of preference, and the address
    ana = ["mail:ana@example.org", "ntfy:ana-topic"]

    [rooms]                                     # places that people share
    ops = "chat:C0123"
    default = "mail:desk@example.org"           # hears of people who have no contact

    [[notify]]                                  # the first that matches a call counts
    rules = ["changes a booking"]               # names of rules, or patterns; absent: any
    tools = ["book_*"]                          # absent: any; so are workspaces, agents, labels
    on = ["asked", "reminder"]                  # absent: every occasion
    people = true                               # false: only the rooms are told
    rooms = ["ops"]                             # told as well
    via = ["ntfy"]                              # only these channels of people; absent: any
    outcome_to = ["requester"]                  # requester | asked: who hears of the outcome
    digest_s = 900                              # one message for all notices of this time
    remind_before_s = 3600                      # before the deadline; absent: no reminder
    quiet = {from = "20:00", to = "07:00", timezone = "Europe/Berlin"}

The policy is public in the log, so it names channels and addresses; passwords are in the notifier's
own file (`ayes.consumers.notices.channels`). A broken glass, and a question whose deadline would
pass while it waits for the end of a digest or of quiet hours, are told at once.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from ayes.schemas.errors import BadId
from ayes.schemas.events import Occasion, ToolRequested
from ayes.schemas.ids import token
from ayes.schemas.toml_files import TomlModel, checked_token, mistake

#: The room that hears of people who have no contact.
DEFAULT_ROOM: Final = "default"
_TIME_OF_DAY: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]", re.ASCII)
OCCASIONS: Final[tuple[Occasion, ...]] = (
    "asked",
    "escalated",
    "handed",
    "reminder",
    "decided",
    "expired",
    "broken-glass",
    "in-doubt",
    "void",
    "signed",
)


def _checked_contact(contact: str) -> str:
    channel, colon, address = contact.partition(":")
    if not colon or not address.strip():
        raise ValueError(
            f"{contact!r} is not a contact. Write the name of a channel, a colon and the address, "
            'as in "mail:ana@example.org".'
        )
    if any(not one.isprintable() or one in " ,;" for one in address):
        raise ValueError(
            f"the address in {contact!r} is not one address: it has blanks, commas or semicolons."
        )
    checked_token("channel", channel)
    return contact


def _checked_time(text: str) -> str:
    if not _TIME_OF_DAY.fullmatch(text):
        raise ValueError(f"{text!r} is not a time of day. Write hours and minutes: 20:00.")
    return text


def _checked_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"{name!r} is not a time zone here. Write one as in Europe/Berlin, or UTC."
        ) from None
    return name


#: A channel and the address in it, such as `mail:ana@example.org`.
type Contact = Annotated[str, AfterValidator(_checked_contact)]
type Contacts = Annotated[tuple[Contact, ...], Field(strict=False, min_length=1)]
type _TimeOfDay = Annotated[str, AfterValidator(_checked_time)]
type Zone = Annotated[str, AfterValidator(_checked_zone)]
type _Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
#: At most a year.
type _Seconds = Annotated[float, Field(gt=0, le=31_622_400, allow_inf_nan=False)]


class Quiet(TomlModel):
    """Hours of each day in which nobody is told anything that can wait."""

    begins: _TimeOfDay = Field(alias="from")
    ends: _TimeOfDay = Field(alias="to")
    timezone: Zone = "UTC"

    @model_validator(mode="after")
    def _is_a_part_of_the_day(self) -> "Quiet":
        if self.begins == self.ends:
            raise ValueError(f"quiet hours from {self.begins} to {self.ends} have no end.")
        return self

    def end(self, at: datetime) -> datetime:
        """When the quiet hours end that this moment is in; the moment itself outside of them."""
        zone = ZoneInfo(self.timezone)
        local = at.astimezone(zone)
        begins, ends = time.fromisoformat(self.begins), time.fromisoformat(self.ends)
        now = local.time()
        over_midnight = ends < begins
        if not (now >= begins or now < ends if over_midnight else begins <= now < ends):
            return at
        is_next_day = over_midnight and now >= begins
        day: date = local.date() + timedelta(days=1 if is_next_day else 0)
        return max(at, datetime.combine(day, ends, zone).astimezone(UTC))


class Route(TomlModel):
    """Who is told about the calls that it matches, when, and through what."""

    rules: _Names = ("*",)
    tools: _Names = ("*",)
    workspaces: _Names = ("*",)
    agents: _Names = ("*",)
    labels: dict[str, str] = Field(default_factory=dict)
    on: Annotated[tuple[Occasion, ...], Field(strict=False)] = OCCASIONS
    people: bool = True
    rooms: Annotated[tuple[str, ...], Field(strict=False)] = ()
    via: Annotated[tuple[str, ...], Field(strict=False)] = ()
    outcome_to: Annotated[tuple[Literal["requester", "asked"], ...], Field(strict=False)] = (
        "requester",
    )
    digest_s: _Seconds | None = None
    remind_before_s: _Seconds | None = None
    quiet: Quiet | None = None

    def fits(self, workspace: str, rule: str, wish: ToolRequested) -> bool:
        """Whether it is for this call, which that rule put to people."""
        return (
            _any(self.workspaces, workspace)
            and _any(self.rules, rule)
            and _any(self.tools, wish.tool)
            and _any(self.agents, wish.agent)
            and all(
                name in wish.labels and fnmatchcase(wish.labels[name], value)
                for name, value in self.labels.items()
            )
        )

    def due(self, at: datetime) -> datetime:
        """When something is told that happened at this time and can wait."""
        if self.digest_s is not None:
            # Windows begin at the same times everywhere, so that two workers agree.
            windows = -(-at.timestamp() // self.digest_s)
            at = max(at, datetime.fromtimestamp(windows * self.digest_s, UTC))
        return self.quiet.end(at) if self.quiet is not None else at


def check_routing(
    contacts: Mapping[str, object], rooms: Mapping[str, object], routes: Sequence[Route]
) -> None:
    """Report, in a validator of a policy, bad names and rooms that are not there."""
    _check_names("contacts", contacts)
    _check_names("rooms", rooms)
    for index, route in enumerate(routes):
        for room in route.rooms:
            if room not in rooms:
                known = ", ".join(rooms) or "none"
                raise mistake(
                    f"there is no room {room!r}. The rooms are: {known}. Write it below [rooms].",
                    "notify",
                    index,
                    "rooms",
                )


def _check_names(what: str, named: Mapping[str, object]) -> None:
    for name in named:
        try:
            token(what, name)
        except BadId as problem:
            raise mistake(str(problem), what, name) from None


def _any(patterns: tuple[str, ...], name: str) -> bool:
    return any(name == one or fnmatchcase(name, one) for one in patterns)
