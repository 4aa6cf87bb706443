"""The pending approvals: one entry for each call that was put to people and is not decided.

The live queue is the KV bucket `pending`: a key for each open approval, put when the gate asks and
deleted when it decides. Any NATS client can watch it. The ledger holds everything in it, and
`OPEN_APPROVALS` rebuilds it from the log, byte for byte.

An entry changes only when more people are asked, or it is handed to somebody: votes go into the
ledger, not into the queue.
Entries are kept in the order of their approval requests, oldest first, and never change places.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import EVENTS_BY_PLACE, Status
from ayes.ledger.log import Change
from ayes.ledger.validity import call_of
from ayes.projections.call_order import OLDEST, CallOrder, PageCursor
from ayes.projections.call_query import ALL, NOTHING, CallQuery, Seen, text_of
from ayes.projections.fold import Key, ProjectedRow, Projection
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadId, TooLarge
from ayes.schemas.events import Link, Mode, Quorum, Undoing
from ayes.schemas.people import is_excluded
from ayes.schemas.quorums import is_among
from ayes.schemas.slots import CallRef, Slot


class Entry(Struct, frozen=True):
    """An open approval, with everything that a reviewer needs. Times are the broker's, in UTC."""

    workspace: str
    thread: str
    call: str
    tool: str
    #: The raw JSON text of the request.
    arguments: str
    #: A vote without it does not count.
    digest: str
    rule: str
    #: The reason for asking, from the policy.
    reason: str
    #: On whose behalf the agent acts.
    requester: str
    agent: str
    #: Names, or patterns with `*`.
    voters: tuple[str, ...]
    excluded: tuple[str, ...]
    votes_needed: int
    requested_at: datetime
    gated_at: datetime
    #: None if it never expires.
    expires_at: datetime | None
    #: When more people are asked or it expires; None if neither happens.
    due_at: datetime | None
    #: Quorums that must agree too.
    also: tuple[Quorum, ...]
    besides: tuple[Quorum, ...]
    denials_needed: int
    may_break_glass: tuple[str, ...]
    #: The people asked later, because nobody decided in time.
    asked_as_well: tuple[str, ...]
    #: Position of the question in the log.
    seq: int
    #: The version of the tool's declaration: part of the digest.
    tool_version: str = ""
    #: The calls in whose runs it is asked, the outermost first; absent if there are none.
    chain: tuple[Link, ...] | UnsetType = UNSET
    #: Absent: four eyes.
    mode: Mode | UnsetType = UNSET
    #: The people who may confirm their own request; absent if there are none.
    own: tuple[str, ...] | UnsetType = UNSET
    #: Absent if nothing is known of it.
    undoing: Undoing | UnsetType = UNSET
    #: Of the request; absent if it has none.
    labels: dict[str, str] | UnsetType = UNSET
    #: What it does in one line, as its tool declares it; absent if it declares none.
    title: str | UnsetType = UNSET
    #: By each person who handed it over, to whom; the newest is the last. Absent if nobody did.
    handed: dict[str, str] | UnsetType = UNSET

    @property
    def ref(self) -> CallRef:
        return CallRef(self.workspace, self.thread, self.call)

    @property
    def declaration(self) -> tuple[str, str, str]:
        """Workspace, name and version of its tool."""
        return self.workspace, self.tool, self.tool_version

    @property
    def flaw(self) -> str:
        """Why the digest is not that of the shown call; empty if it is.

        An entry of an older version has no tool version, so its digest cannot be checked.
        """
        if call_digest(self.tool, self.tool_version, self.arguments) == self.digest:
            return ""
        return (
            "the digest is not of this tool and these arguments, or an older version wrote the "
            f"entry: look at `ayes show {self.ref}`, and do not decide by this entry"
        )

    def asks(self, reviewer: str, groups: Collection[str] = ()) -> bool:
        """Whether this person was asked, by name or as a member of these groups (`group:name`), and
        is not excluded.

        An entry does not have the policy's table of accounts, so a person of several accounts may
        be judged wrongly here; `objections.objection_to_voter` is not.
        """
        return self.names(reviewer, groups) and not self.excludes(reviewer)

    def names(self, reviewer: str, groups: Collection[str] = ()) -> bool:
        """Whether this person is among those who were asked, excluded or not; as `asks`."""
        others = (voter for one in (*self.also, *self.besides) for voter in one.voters)
        voters = (*self.voters, *others, *self.asked_as_well)
        return any(is_among(one, voters) for one in (reviewer, *groups))

    def excludes(self, reviewer: str) -> bool:
        """Whether this person asked for the call, or is behind the agent that did; as `asks`."""
        return _is_excluded(reviewer, self.excluded)

    @property
    def awaits(self) -> tuple[str, ...]:
        """The people to whom it was handed, and who did not hand it on."""
        handed = self.handed or {}
        return tuple(dict.fromkeys(to for to in handed.values() if to not in handed))

    def confirms(self, reviewer: str) -> bool:
        """Whether it is this person's own request, and they may vote on it all the same."""
        return _is_excluded(reviewer, self.own or ())


# Many entries exclude the same people.
_is_excluded: Final = lru_cache(maxsize=8192)(is_excluded)


class BadEntry(Struct, frozen=True):
    """A value of the bucket that is not an entry of this version."""

    key: str
    problem: str

    def __str__(self) -> str:
        return (
            f"entry {self.key} of the queue cannot be read and is left out: {self.problem}. "
            "`ayes replay --projection pending --swap` makes it again from the log."
        )


def entry(call: Call) -> Entry | None:
    """The entry of this call; None if it must not be in the queue."""
    asking = call.approval_request
    if call.status is not Status.PENDING or not call.requested or not call.gated or not asking:
        return None
    return Entry(
        workspace=call.ref.workspace,
        thread=call.ref.thread,
        call=call.ref.call,
        tool=call.wish.tool,
        arguments=call.wish.arguments,
        digest=asking.digest,
        rule=asking.rule,
        reason=asking.reason,
        requester=call.wish.requester,
        agent=call.wish.agent,
        voters=asking.voters,
        excluded=asking.excluded,
        votes_needed=asking.votes_needed,
        requested_at=call.requested.recorded_at.astimezone(UTC),
        gated_at=call.gated.recorded_at.astimezone(UTC),
        expires_at=call.deadline and call.deadline.astimezone(UTC),
        due_at=call.due and call.due.astimezone(UTC),
        also=asking.also,
        besides=asking.besides,
        denials_needed=asking.denials_needed,
        may_break_glass=asking.may_break_glass,
        asked_as_well=call.escalated_to(),
        seq=call.gated.seq,
        tool_version=call.wish.tool_version,
        chain=asking.chain or UNSET,
        mode=UNSET if asking.mode == "four_eyes" else asking.mode,
        own=asking.own or UNSET,
        undoing=asking.undoing or UNSET,
        labels=call.wish.labels or UNSET,
        title=asking.title or UNSET,
        handed=call.handed_to or UNSET,
    )


def encode(entry: Entry) -> bytes:
    """Encode the value under `key`: JSON, the fields in the order of the class."""
    return _encoder.encode(entry)


def decode(raw: bytes) -> Entry:
    return _decoder.decode(raw)


def read(key: str, raw: bytes) -> Entry | BadEntry:
    """Decode the value under this key, whatever it is."""
    try:
        found = decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
        return BadEntry(key, str(problem) or type(problem).__name__)
    if f"{found.workspace}.{found.thread}.{found.call}" != key:
        return BadEntry(key, "it says that it is about another call")
    try:
        CallRef(found.workspace, found.thread, found.call)
    except BadId as problem:
        return BadEntry(key, str(problem).rstrip("."))
    return found


def key(ref: CallRef) -> str:
    """The key in the bucket. Ids hold no dots: it is unique, and `acme.>` watches a workspace."""
    return f"{ref.workspace}.{ref.thread}.{ref.call}"


class Page(Struct, frozen=True, omit_defaults=True):
    """A page of pending approvals."""

    #: The number of matching entries, on this page and on others.
    waiting: int
    #: The bytes in the bucket.
    entries: tuple[msgspec.Raw, ...]
    #: Whether more entries follow.
    more: bool
    #: The cursor of the last entry, after which the next page begins; None on an empty page.
    after: PageCursor | None
    #: Unreadable values of the bucket: not counted, and only on the first page.
    unreadable: tuple[BadEntry, ...] = ()
    #: The groups of its entries, each with its number of matching entries.
    groups: dict[str, int] = {}


class Listed(NamedTuple):
    """Pending entries, and the values that cannot be read."""

    entries: list[Entry]
    #: The number of matching entries, listed or not.
    waiting: int
    unreadable: list[BadEntry]


def index_of(values: Mapping[str, bytes]) -> "PendingIndex":
    """The entries of the bucket."""
    index = PendingIndex()
    index.apply(Change(dict(values), whole=True))
    return index


def oldest(values: Mapping[str, bytes], most: int | None = None, chosen: CallQuery = ALL) -> Listed:
    """The matching entries of the bucket, oldest first, by a query without time and reader."""
    index = index_of(values)
    entries = index.oldest(None, chosen)
    return Listed(entries[:most], len(entries), index.unreadable(chosen))


class PendingIndex:
    """The pending entries in order, kept up to date change by change."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, Entry]] = {}
        #: Age and key of each entry, in order; `_entries` has the same order.
        self._ages: list[tuple[int, str]] = []
        self._entries: list[Entry] = []
        #: What is searched of entries.
        self._texts: dict[str, str] = {}
        #: The unreadable values of the bucket, by key.
        self._bad: dict[str, BadEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def oldest(
        self,
        most: int | None = None,
        chosen: CallQuery = ALL,
        seen: Seen = NOTHING,
        order: CallOrder = OLDEST,
    ) -> list[Entry]:
        """The matching entries, oldest first unless the order is another: at most `most`, or all.

        Args:
            seen: what the query and the order rest on.
        """
        if (chosen, order) == (ALL, OLDEST):
            return self._entries[:most]
        places, _ = self._behind(self._fitting(chosen, seen), None, order, seen)
        return [self._entries[place] for place in places[:most]]

    def selecting(self, chosen: CallQuery, seen: Seen) -> Callable[[Entry], bool]:
        """Whether the query selects an entry. What is searched of an entry is kept while it waits,
        once it was needed.
        """

        def text(entry: Entry) -> str:
            place = f"{entry.workspace}.{entry.thread}.{entry.call}"
            found = self._texts.get(place)
            if found is None:
                found = text_of(entry, seen)
                if seen.secret(entry) is not None:  # or its arguments are missing in it
                    self._texts[place] = found
            return found

        return chosen.selecting(seen, text)

    def page(
        self,
        most: int,
        room: int,
        chosen: CallQuery = ALL,
        after: PageCursor | None = None,
        *,
        seen: Seen = NOTHING,
        order: CallOrder = OLDEST,
        within: Collection[str] = (),
    ) -> Page:
        """A page of the matching entries.

        Args:
            most: the maximal number of entries.
            room: the maximal number of bytes, with a comma after each entry.
            after: the cursor after which the page begins.
            seen: what the query and the order rest on.
            within: the workspaces of which alone there are any; none: all of them.

        Raises:
            BadInput: the query rests on what is not seen.
            TooLarge: the first entry alone exceeds `room`.
        """
        fitting = self._fitting(chosen, seen, within)
        left, groups = self._behind(fitting, after, order, seen)
        cursor = order.cursors(seen)
        taken: list[msgspec.Raw] = []
        last: PageCursor | None = None
        for place in left[:most]:
            key = self._ages[place][1]
            raw, entry = self._held[key]
            room -= len(raw) + 1
            if room < 0:
                if last is None:
                    raise TooLarge(
                        f"{key} has {len(raw):,} bytes, too many for an answer. Read its key."
                    )
                break
            taken.append(msgspec.Raw(raw))
            last = cursor(entry, key)
        return Page(
            len(fitting),
            tuple(taken),
            len(taken) < len(left),
            last,
            tuple(self.unreadable(chosen, within)) if after is None else (),
            groups,
        )

    def _fitting(
        self, chosen: CallQuery, seen: Seen, within: Collection[str] = ()
    ) -> Sequence[int]:
        places: Sequence[int] = range(len(self._ages))
        if within:
            places = [place for place in places if self._entries[place].workspace in within]
        if chosen != ALL:
            selects = self.selecting(chosen, seen)
            places = [place for place in places if selects(self._entries[place])]
        return places

    def _behind(
        self, places: Sequence[int], after: PageCursor | None, order: CallOrder, seen: Seen
    ) -> tuple[Sequence[int], Counter[str]]:
        """Those of these places that come after a cursor, in the order of the pages; and how many
        of them all are in each group.
        """
        if order.by == "age" and not order.group:
            if order.reverse:
                end = len(self._ages) if after is None else bisect_left(self._ages, _age(after))
                return places[: bisect_left(places, end)][::-1], Counter()
            begin = 0 if after is None else bisect_right(self._ages, _age(after))
            return places[bisect_left(places, begin) :], Counter()
        cursor = order.cursors(seen)
        cursors = [cursor(self._entries[place], self._ages[place][1]) for place in places]
        begun = None if after is None else order.place(after)
        ranked = ((order.place(at), place) for at, place in zip(cursors, places, strict=True))
        left = sorted(one for one in ranked if begun is None or one[0] > begun)
        groups = Counter(at.group for at in cursors) if order.group else Counter()
        return [place for _, place in left], groups

    def unreadable(self, chosen: CallQuery = ALL, within: Collection[str] = ()) -> list[BadEntry]:
        """The unreadable values of the bucket, by key."""
        found = [one for key, one in sorted(self._bad.items()) if chosen.covers(key)]
        return [one for one in found if not within or one.key.split(".")[0] in within]

    def apply(self, change: Change) -> list[tuple[str, Entry | BadEntry | None]]:
        """Apply a change, and return the keys that it changed, each once.

        First removed keys with None, then unreadable values, then entries by age.
        """
        came = {key: raw for key, raw in change.entries.items() if raw}
        gone = [
            key
            for key in ((*self._held, *self._bad) if change.whole else change.entries)
            if (key in self._held or key in self._bad) and key not in came
        ]
        new: list[tuple[str, bytes, Entry]] = []
        bad: list[BadEntry] = []
        for key, raw in came.items():
            if key in self._held and self._held[key][0] == raw:
                continue
            found = read(key, raw)
            if isinstance(found, Entry):
                new.append((key, raw, found))
            elif self._bad.get(key) != found:
                bad.append(found)
        new.sort(key=lambda one: (one[2].seq, one[0]))
        for key in gone:
            self._remove(key)
        for one in bad:
            self._remove(one.key)
            self._bad[one.key] = one
        for key, raw, entry in new:
            self._remove(key)
            self._insert(key, raw, entry)
        return [
            *((key, None) for key in gone),
            *((one.key, one) for one in bad),
            *((key, entry) for key, _, entry in new),
        ]

    def _insert(self, key: str, raw: bytes, entry: Entry) -> None:
        age = (entry.seq, key)
        place = bisect_left(self._ages, age)
        self._ages.insert(place, age)
        self._entries.insert(place, entry)
        self._held[key] = (raw, entry)

    def _remove(self, key: str) -> None:
        self._bad.pop(key, None)
        if key not in self._held:
            return
        _, entry = self._held.pop(key)
        self._texts.pop(key, None)
        place = bisect_left(self._ages, (entry.seq, key))
        del self._ages[place], self._entries[place]


def _age(cursor: PageCursor) -> tuple[int, str]:
    return cursor.seq, cursor.key


class ApprovalFacts:
    """The facts of a call that may become pending, in the order of the log."""

    def __init__(self, _stops: Sequence[Fact] = ()) -> None:
        self.facts: list[Fact] = []
        self.is_complete = False

    def apply(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.is_complete = self.is_complete or isinstance(fact.event, EVENTS_BY_PLACE["decided"])


def _key(slot: Slot) -> Key | None:
    """Only these facts can change the queue."""
    match slot.tail:
        case ("call", call, "requested" | "gated" | "escalated" | "handed" | "decided", *_) if (
            not slot.is_surplus
        ):
            return slot.workspace, slot.thread, call
        case _:
            return None


def _row(question: ApprovalFacts) -> ProjectedRow | None:
    ref = question.facts[0].slot.call_ref
    assert ref, "the key lets only facts about calls come here"
    found = entry(call_of(ref, question.facts))
    return ProjectedRow(key(ref), encode(found)) if found else None


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Entry)

#: The queue over the whole log.
OPEN_APPROVALS: Final = Projection[ApprovalFacts](
    name="pending",
    key=_key,
    begin=ApprovalFacts,
    begins=lambda slot: slot.tail[2] == "requested",
    resumes=lambda _slot: False,
    row=_row,
    keep_complete=0,
)
