"""Past calls with what people decided about them, read from the facts.

The calls are those of a backtest (`backtest.Calls`); here comes what is known of the question and
of its votes. The rules of this file:

* An approval counts only if each vote that it rests on came later than a rubber stamp: later than
  anybody reads the question, since it was asked and since that person's last vote on any call.
* A denial counts however quick it was. So do an edit, an answer in place of the tool, and a
  revocation: the person did not want the call to run as it was requested.
* An approval by the requester alone, in an emergency or by a grant says nothing about what others
  would decide; nor does a question that nobody decided.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.clients.services import Ledger
from ayes.ops.audit.backtest import Calls, CandidateCall, Since
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.ids import token
from ayes.schemas.slots import ROOT, TOOL

#: What people decided: the first counts for a rule that allows, the next four against it, and the
#: others for nothing. `unasked`: nobody was asked.
type Said = Literal[
    "approved",
    "denied",
    "edited",
    "answered",
    "revoked",
    "quick",
    "confirmed",
    "glass_broken",
    "undecided",
    "unasked",
]
#: By which a person kept the call from running as it was asked for.
AGAINST: Final[frozenset[Said]] = frozenset({"denied", "edited", "answered", "revoked"})
#: The fewest seconds that anybody needs to look at a question.
LOOKED_S: Final = 2.0
#: As in `ayes ask rubber-stamping`: nobody reads more characters of a question in a second.
CHARACTERS_A_SECOND: Final = 25

type _Place = tuple[str, str, str]


class PastCall(Struct, frozen=True):
    """A call of the past."""

    wished: CandidateCall
    #: When it was requested, by the broker's clock.
    at: datetime
    said: Said = "unasked"
    #: The JSON Schema of its arguments; None: its declaration cannot be read.
    schema: str | None = None
    #: The arguments that any version of its tool declares as secret or sealed, as JSON pointers;
    #: None: nobody can say, so that all of them are.
    hidden: tuple[str, ...] | None = None


class _Question(Struct):
    at: datetime
    characters: int
    #: How long the console held each vote.
    undo_s: int
    #: By reviewer, how long they had at most to look at it, in seconds.
    looked_s: dict[str, float]


class PastCalls:
    """Joins the facts of calls in the order of the log.

    Args:
        declarations: of the tools.
        opened: the openings of threads.
        looked_s: the fewest seconds after which an approval counts; 0: each counts.
    """

    def __init__(
        self,
        declarations: Iterable[Fact] = (),
        opened: Iterable[Fact] = (),
        looked_s: float = LOOKED_S,
    ) -> None:
        declarations, opened = tuple(declarations), tuple(opened)
        self._calls = Calls(declarations, opened)
        self._schemas = {
            (fact.slot.workspace, *fact.slot.tool): fact.event.schema
            for fact in declarations
            if isinstance(fact.event, e.ToolDeclared)
        }
        self._hidden = _hidden(declarations)
        self._opened = {
            (fact.slot.workspace, fact.slot.thread): fact.event
            for fact in opened
            if isinstance(fact.event, e.ThreadOpened)
        }
        self._looked_s = looked_s
        #: When each call was requested, and the version of its tool.
        self._requested: dict[_Place, tuple[datetime, str]] = {}
        self._questions: dict[_Place, _Question] = {}
        self._found: dict[_Place, PastCall] = {}
        #: When each reviewer last voted, on any call.
        self._voted: dict[str, datetime] = {}

    @property
    def unreadable(self) -> int:
        """The number of requests that this program cannot read."""
        return self._calls.unreadable

    def take(self, fact: Fact) -> None:
        """Add a fact about a call: its request, question, votes, decision or revocation."""
        slot, event = fact.slot, fact.event
        if not slot.thread or slot.tail[0] != "call":
            return
        place = (slot.workspace, slot.thread, slot.tail[1])
        match slot.tail[2], event:
            case "requested", _:
                if isinstance(event, e.ToolRequested):
                    self._requested[place] = fact.recorded_at, event.tool_version
                self._calls.take(fact)
            case "gated", e.ApprovalRequested():
                asked = _Question(fact.recorded_at, len(event.reason), event.undo_s, {})
                self._questions.setdefault(place, asked)
            case "vote", e.Voted():
                self._look(place, slot.tail[3], fact.recorded_at)
            case "decided", _:
                if isinstance(one := self._calls.take(fact), CandidateCall):
                    self._found[place] = self._past(place, one, self._decided(place, one, event))
            case "revoked", e.Revoked():
                self._take_back(place)
            case _:
                pass

    def all(self) -> tuple[PastCall, ...]:
        """The calls, in the order of their requests."""
        open_ones = {
            (one.workspace, one.thread, one.call): self._past(
                (one.workspace, one.thread, one.call), one, self._undecided(one)
            )
            for one in self._calls.left()
        }
        found = self._found | open_ones
        return tuple(found[place] for place in self._requested if place in found)

    def _look(self, place: _Place, reviewer: str, at: datetime) -> None:
        before, self._voted[reviewer] = self._voted.get(reviewer), at
        if (asked := self._questions.get(place)) is not None:
            since = asked.at if before is None else max(asked.at, before)
            asked.looked_s.setdefault(reviewer, (at - since).total_seconds() - asked.undo_s)

    def _decided(self, place: _Place, one: CandidateCall, event: object) -> Said:
        asked = self._questions.get(place)
        if asked is None:
            return "unasked"
        match one.actual:
            case "approved" if isinstance(event, e.Approved):
                if event.arguments is not None:
                    return "edited"
                return "approved" if self._is_looked_at(asked, one, event) else "quick"
            case "denied" | "answered" | "confirmed" | "glass_broken" as said:
                return said
            case _:
                return "undecided"

    def _is_looked_at(self, asked: _Question, one: CandidateCall, event: e.Approved) -> bool:
        if not self._looked_s:
            return True
        reading_s = (len(one.arguments) + asked.characters) / CHARACTERS_A_SECOND
        needed_s = max(self._looked_s, reading_s)
        slow = [asked.looked_s.get(voter, 0.0) >= needed_s for voter in event.voters]
        return bool(slow) and all(slow)

    def _undecided(self, one: CandidateCall) -> Said:
        is_asked = (one.workspace, one.thread, one.call) in self._questions
        return "undecided" if is_asked else "unasked"

    def _take_back(self, place: _Place) -> None:
        """A revocation that came too late says the same of the call."""
        found = self._found.get(place)
        if found is not None and found.said not in ("unasked", "undecided"):
            self._found[place] = replace(found, said="revoked")

    def _past(self, place: _Place, one: CandidateCall, said: Said) -> PastCall:
        at, version = self._requested[place]
        opened = self._opened.get(place[:2])
        if opened is not None:
            one = replace(
                one,
                requester=one.requester or opened.requester,
                agent=one.agent or opened.agent,
                labels=one.labels or opened.labels,
            )
        schema = self._schemas.get((place[0], one.tool, version))
        hidden = None if schema is None else self._hidden[place[0], one.tool]
        return PastCall(one, at, said, schema, hidden)


def _hidden(declarations: Iterable[Fact]) -> dict[tuple[str, str], tuple[str, ...] | None]:
    """What is hidden of the arguments of each tool; None: a declaration of it cannot be read."""
    found: dict[tuple[str, str], tuple[str, ...] | None] = {}
    for fact in declarations:
        place = (fact.slot.workspace, fact.slot.tool[0])
        before, declared = found.get(place, ()), fact.event
        if before is None or not isinstance(declared, e.ToolDeclared):
            found[place] = None
        else:
            found[place] = tuple({*before, *declared.secret, *declared.sealed})
    return found


async def past_calls(
    ledger: Ledger, workspace: str, *, since: Since = 1, looked_s: float = LOOKED_S
) -> tuple[tuple[PastCall, ...], int]:
    """The calls of a workspace, and the number of requests that cannot be read.

    Args:
        since: only calls that were requested from this fact or time on.
        looked_s: the fewest seconds after which an approval counts; 0: each counts.
    """
    where = f"{ROOT}.{token('workspace', workspace)}"
    declared = await ledger.read(f"{where}.{TOOL}.*.*")
    opened = await ledger.read(f"{where}.*.opened")
    found = PastCalls(declared, opened, looked_s)
    tails = ("requested", "gated", "vote.*", "decided", "revoked.*")
    async for fact in ledger.replay(since, *(f"{where}.*.call.*.{tail}" for tail in tails)):
        found.take(fact)
    return found.all(), found.unreadable
