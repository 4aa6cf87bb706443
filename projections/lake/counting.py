"""Judges while the log is read which facts of a call count, and in which place.

The rules are those of `ayes.ledger.lifecycle`. But nearly every call has the plain story
(requested, asked about, voted on, decided, started, ended), and running the lifecycle on all of
these would take half of the time of writing the lake. So `_Story` recognises plain stories: it
takes a fact only where the lifecycle is certain to count it, and declines all others. If it
declines one fact of a call, the lifecycle judges all facts of the call.

In a workspace in which anything was ever stopped (`ayes.ledger.stops`), the lifecycle judges every
start.

Whether a fact counts depends only on the facts before it, so a judgement never changes.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from ayes.ledger.lifecycle import EVENTS_BY_PLACE
from ayes.ledger.log import RawMessage
from ayes.ledger.validity import call_of, voids
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, decode, fact_of, filled_before
from ayes.schemas.digest import call_digest
from ayes.schemas.errors import BadFact
from ayes.schemas.ids import is_token
from ayes.schemas.people import is_excluded
from ayes.schemas.quorums import is_among, is_group
from ayes.schemas.slots import CLIENT, ORGANISATION, STOP
from ayes.schemas.times import after, earliest


class Judgement(NamedTuple):
    """Whether a fact counts."""

    counts: bool
    #: The place that it fills in its call's row, mostly that of its slot; None if it is not part of
    #: the row.
    stands_as: str | None = None
    #: Why it does not count; None also for a fact that a newer program may understand.
    void: str | None = None


#: Reads the earlier facts of calls and stops, in the order of the log. These are named by `_key`.
type Earlier = Callable[[Collection[str]], Iterable[RawMessage]]

#: The judgement of a fact that is not about a call.
_NOTHING: Final = Judgement(counts=False)
#: Of one that says who was told about a call, or what people said, of which no row has anything.
_ASIDE: Final = Judgement(counts=True)
#: The facts of that sort, by the beginning of their slots in a call.
_ASIDES: Final[dict[str, type[e.Event]]] = {
    "notified": e.Notified,
    "posted": e.Posted,
    "comment": e.Commented,
    "handed": e.HandedOver,
}
#: The number of open calls kept in memory. Beyond it, their facts are read again when needed.
_REMEMBERED: Final = 200_000


class Judged(NamedTuple):
    """The judgements of a batch of facts."""

    #: For each fact, the place that it fills in its call's row.
    stands_as: list[str | None]
    #: The judgements of the facts outside of plain stories, by their index in the batch.
    others: dict[int, Judgement]


class Judge:
    """Judges the facts of a log as they come.

    Args:
        odd: the calls that the lifecycle judged before, and the stops. The attribute `odd` grows
            with new ones.
    """

    def __init__(self, odd: Iterable[str] = ()) -> None:
        self.odd = dict.fromkeys(odd)
        #: The stops by workspace.
        self._stops: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for key in self.odd:
            self._note_stop(key)
        self._stories: dict[str, _Story] = {}

    def judge(self, batch: Sequence[RawMessage], earlier: Earlier) -> Judged:
        """Judge the next facts of the log."""
        if len(self._stories) > _REMEMBERED:
            self._stories.clear()
        found: list[str | None] = []
        others: dict[int, Judgement] = {}
        asked: set[str] = set()
        stories, odd = self._stories, self.odd
        for raw in batch:
            if raw.first:
                others[len(found)] = Judgement(counts=False, void=filled_before(raw.first))
                found.append(None)
                continue
            subject = raw.subject
            parts = subject.split(".", 5)
            if len(parts) < 6 or parts[3] != "call" or parts[2] == STOP:
                found.append(None)
                if parts[2:3] == [STOP]:
                    self.odd[_key(subject)] = None
                    self._note_stop(_key(subject))
                continue
            tail = parts[5]
            if _is_aside(raw, tail):
                others[len(found)] = _ASIDE
                found.append(None)
                continue
            key = subject[: -len(tail) - 1]
            place = None
            if not asked or key not in asked:
                if (story := stories.get(key)) is not None:
                    if not (self._stops and tail.startswith(_CLAIM) and self._stopped(key)):
                        place = story.take(raw, tail)
                elif (
                    tail == "requested"
                    and key not in odd
                    and _are_names(*parts[1:3])
                    and _is_name(parts[4])
                ):
                    stories[key] = story = _Story()
                    place = story.begin(raw)
            found.append(place)
            if place is None:
                asked.add(key)
            elif place == "finished":
                del stories[key]
        if asked:
            self._ask(batch, asked, earlier, others)
            for index, one in others.items():
                found[index] = one.stands_as
        return Judged(found, others)

    def _ask(
        self,
        batch: Sequence[RawMessage],
        asked: set[str],
        earlier: Earlier,
        others: dict[int, Judgement],
    ) -> None:
        stops = {key: self._stopped(key) for key in asked} if self._stops else {}
        wanted = asked.union(*stops.values())
        known: defaultdict[str, list[RawMessage]] = defaultdict(list)
        for raw in earlier(wanted):
            known[_key(raw.subject)].append(raw)
        mine: defaultdict[str, list[int]] = defaultdict(list)
        for index, raw in enumerate(batch):
            if (key := _key(raw.subject)) in wanted and not raw.first:
                mine[key].append(index)
        for key in asked:
            raws = [*known[key], *(batch[index] for index in mine[key])]
            self._stories.pop(key, None)
            stopping = [
                raw
                for stop in stops.get(key, ())
                for raw in (*known[stop], *(batch[index] for index in mine[stop]))
            ]
            may_be_plain = key not in self.odd and not (stopping and any(map(_is_claim, raws)))
            if may_be_plain and (story := _plain(raws)) is not None:
                # It was dropped from memory, or this program has just begun.
                judged, under_way = story
                if under_way is not None:
                    self._stories[key] = under_way
            else:
                self.odd[key] = None
                judged = judgements(raws, stopping)
            others |= dict(zip(mine[key], judged[len(known[key]) :], strict=True))

    def _note_stop(self, key: str) -> None:
        _, workspace, kind, *_ = key.split(".")
        if kind == STOP:
            self._stops[workspace][key] = None

    def _stopped(self, key: str) -> tuple[str, ...]:
        """The stops that hold in the workspace of a call."""
        workspace = key.split(".", 2)[1]
        places = (one for one in (workspace, ORGANISATION) if one in self._stops)
        return tuple(stop for place in places for stop in self._stops[place])


#: The beginning of the tails of starts.
_CLAIM: Final = "claim."


def _is_claim(raw: RawMessage) -> bool:
    return raw.subject.split(".", 5)[5].startswith(_CLAIM)


def _key(subject: str) -> str:
    return ".".join(subject.split(".", 5)[:5])


#: The places of a call that hold one fact.
_ALONE: Final = (
    "requested", "gated", "announced", "withdrawn", "decided", "revoked", "lapsed", "finished",
    "reconciled",
)  # fmt: skip


def judgements(raws: Iterable[RawMessage], stops: Iterable[RawMessage] = ()) -> list[Judgement]:
    """Judge all facts of one call by the lifecycle, and by the stops in its workspace."""
    facts, stopping = (
        [fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data) for raw in some]
        for some in (raws, stops)
    )
    ref = next((fact.slot.call_ref for fact in facts if fact.slot.workspace), None)
    if ref is None:
        return [_NOTHING] * len(facts)
    call = call_of(ref, (*facts, *stopping))
    void = {one.fact.seq: one.why for one in voids(call)}
    several = {
        "vote": call.votes,
        "escalated": call.escalated,
        "claim": call.claims,
        "late": call.late,
    }
    alone = {name: getattr(call, name) for name in _ALONE}
    places = {fact.seq: place for place, found in several.items() for fact in found}
    places |= {fact.seq: place for place, fact in alone.items() if fact is not None}
    told = (*call.notified, *call.posted, *call.comments, *call.handed)
    asides = {fact.seq for fact in told}
    begun = call.requested.seq if call.requested else None
    ends = (call.reconciled, call.finished)
    end = min(
        (one.seq for one in ends if one is not None and not isinstance(one.event, e.InDoubt)),
        default=None,
    )

    def judged(fact: Fact) -> Judgement:
        if fact.seq in void:
            return Judgement(counts=False, void=void[fact.seq])
        if fact.seq not in places:
            return _ASIDE if fact.seq in asides else _NOTHING
        is_of_row = begun is not None and fact.seq >= begun and (end is None or fact.seq <= end)
        return Judgement(counts=True, stands_as=places[fact.seq] if is_of_row else None)

    return [judged(fact) for fact in facts]


# ---------------------------------------------------------------------------------- the plain story


_DECISIONS: Final = frozenset(EVENTS_BY_PLACE["decided"])


class _Story:
    """An open call with a plain story."""

    __slots__ = ("asking", "awaited_until", "client", "decision", "expires_at", "started", "wish")

    def __init__(self) -> None:
        self.wish: e.ToolRequested | None = None
        self.asking: e.ApprovalRequested | None = None
        self.decision: e.AnyEvent | e.Carried | None = None
        self.started = False
        self.client = ""
        self.awaited_until: datetime | None = None
        self.expires_at: datetime | None = None

    def begin(self, raw: RawMessage) -> str | None:
        """Take the request, as `take` does the other facts."""
        try:
            wish = decode(raw.data)
        except BadFact:
            return None
        if not isinstance(wish, e.ToolRequested):
            return None
        self.wish = wish
        self.awaited_until = after(raw.recorded_at, wish.expires_in_s)
        # Clients of an older layout had no slots of their own.
        self.client = f".{CLIENT}" if wish.run_by == CLIENT and wish.layout > 1 else ""
        return "requested"

    def take(self, raw: RawMessage, tail: str) -> str | None:
        """The place that the fact fills; None if only the lifecycle can judge it."""
        try:
            event = decode(raw.data)
        except BadFact:
            return None
        if isinstance(event, e.Voted):
            counts = tail.startswith("vote.") and self._is_counted(event, tail[5:], raw.recorded_at)
            return "vote" if counts else None
        if tail == "decided":
            if self.decision is not None or type(event) not in _DECISIONS:
                return None
            if isinstance(event, e.Approved) and event.valid_for_s is not None:
                return None  # what may start then depends on times
            self.decision = event
            return tail
        if isinstance(event, e.ToolStarted):
            if self.started or tail != f"claim{self.client}.1" or not self._may_start(event):
                return None
            self.started = True
            return "claim"
        if isinstance(event, e.ToolReturned | e.ToolFailed):
            is_end = self.started and event.attempt == 1 and tail == f"finished{self.client}"
            return "finished" if is_end else None
        if isinstance(event, e.ApprovalRequested):
            return self._gated(event, raw.recorded_at) if tail == "gated" else None
        if isinstance(event, e.ToolRefused):
            return tail if tail == "finished" and self._is_refused(event) else None
        if tail == "withdrawn":
            return tail if isinstance(event, e.Withdrawn | e.Superseded) else None
        return tail if isinstance(event, e.GlassBroken) and tail == "announced" else None

    def _gated(self, asking: e.ApprovalRequested, at: datetime) -> str | None:
        if self.asking is not None or self.decision is not None:
            return None
        self.asking = asking
        self.expires_at = earliest(after(at, asking.expires_in_s), self.awaited_until)
        return "gated"

    def _is_refused(self, refusal: e.ToolRefused) -> bool:
        if self.started or self.decision is None or type(self.decision) is e.Approved:
            return False
        if isinstance(self.decision, e.Answered) and self.decision.is_error:
            return refusal.ending == "answered_with_error"
        return refusal.ending == type(self.decision).__name__.lower()

    def _is_counted(self, vote: e.Voted, reviewer: str, at: datetime) -> bool:
        asking = self.asking
        return (
            asking is not None
            and self.decision is None
            and vote.digest == asking.digest
            and not (asking.signed and vote.verdict != "deny")
            and vote.verdict != "break_glass"
            and not vote.on_behalf_of
            and (self.expires_at is None or at < self.expires_at)
            and (
                _may_vote(reviewer, asking.voters, asking.excluded)
                if not asking.people
                else _is_name(reviewer)
                and _is_asked(reviewer, asking.voters)
                and not is_excluded(reviewer, asking.excluded, asking.people)
            )
        )

    def _may_start(self, start: e.ToolStarted) -> bool:
        wish, approval = self.wish, self.decision
        if wish is None or not isinstance(approval, e.Approved) or start.digest != approval.digest:
            return False
        if self.asking is not None and approval.ground in {"policy", "grant"}:
            return False
        arguments = wish.arguments if approval.arguments is None else approval.arguments
        return call_digest(wish.tool, wish.tool_version, arguments) == start.digest


def _is_aside(raw: RawMessage, tail: str) -> bool:
    """Whether it only says who was told about a call, or where."""
    kind = _ASIDES.get(tail.partition(".")[0])
    if kind is None:
        return False
    try:
        return isinstance(decode(raw.data), kind)
    except BadFact:
        return False


def _plain(raws: Sequence[RawMessage]) -> tuple[list[Judgement], _Story | None] | None:
    """Judge the facts of a call, with its story while it is open; None if it is not plain."""
    story: _Story | None = None
    begun = False
    found: list[Judgement] = []
    for raw in raws:
        _, workspace, thread, _, call, tail = raw.subject.split(".", 5)
        if _is_aside(raw, tail):
            found.append(_ASIDE)
            continue
        if story is not None:
            place = story.take(raw, tail)
        elif tail == "requested" and not begun and _are_names(workspace, thread) and _is_name(call):
            story, begun = _Story(), True
            place = story.begin(raw)
        else:
            return None
        if place is None:
            return None
        found.append(Judgement(counts=True, stands_as=place))
        if place == "finished":
            story = None
    return found, story


@functools.lru_cache(maxsize=8192)
def _may_vote(reviewer: str, voters: tuple[str, ...], excluded: tuple[str, ...]) -> bool:
    return (
        _is_name(reviewer) and _is_asked(reviewer, voters) and not is_excluded(reviewer, excluded)
    )


def _is_asked(reviewer: str, voters: tuple[str, ...]) -> bool:
    # Who is in a group is not judged here (`validity.voids`).
    return is_among(reviewer, voters) or any(map(is_group, voters))


@functools.lru_cache(maxsize=8192)
def _are_names(workspace: str, thread: str) -> bool:
    return _is_name(workspace) and _is_name(thread)


_is_name: Final = functools.lru_cache(maxsize=8192)(is_token)
