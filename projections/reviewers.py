"""How people decide: how much, how fast, and how often faster than anybody can read.

What is counted are votes, each with the question that it answers. Whoever voted in another's place is the one who
looked, so the vote counts for them.

**Reading time.** A question is its arguments and its reason. Adults read English silently at 238 words a minute
(Brysbaert 2019, a mean over 190 studies), with blanks some 23 characters a second; 25 is taken, in the reviewer's
favour, and at least two seconds, for nobody finds a question, reads it and says something in less.

**Faster than reading.** Nobody reads two at once. So a person's questions are taken in the order of their votes, each
from when it was asked or the one before was read, whichever is later; a vote that comes before its question could have been read to the end is
faster than reading. Ten votes in one second are not faster if all ten had been waiting for an hour. It is a
lower bound: it tells who cannot have read, and never that somebody did.

**Votes an hour** are per hour of the clock (UTC) in which the person voted at all, so that nights do not make anybody
slow.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from schemas import events as e
from schemas.codec import Fact
from schemas.quorums import is_among
from schemas.slots import CallRef

READ_PER_S: Final = 25
LEAST_S: Final = 2.0


class Reviewer(Struct, frozen=True):
    """What one person's votes come to."""

    name: str
    votes: int = 0
    by_verdict: dict[str, int] = {}
    #: Of these, in another's place.
    on_behalf: int = 0
    #: Hours of the clock with a vote in them.
    hours: int = 0
    #: Votes that came faster than anybody can read.
    faster: int = 0

    @property
    def votes_an_hour(self) -> float:
        return self.votes / self.hours if self.hours else 0.0

    @property
    def share_faster(self) -> float:
        return self.faster / self.votes if self.votes else 0.0


class _Question(Struct):
    """A question that is not decided, and since when whom was asked."""

    reading: timedelta
    asked: list[tuple[datetime, tuple[str, ...]]]

    def asked_at(self, person: str) -> datetime:
        return next((at for at, voters in self.asked if is_among(person, voters)), self.asked[0][0])


class Counting:
    """Counts votes, fact after fact in the order of the log. Keeps no more than the questions that are open."""

    def __init__(self) -> None:
        self._wishes: dict[CallRef, str] = {}
        self._questions: dict[CallRef, _Question] = {}
        self._found: dict[str, Reviewer] = {}
        #: When each could have read all they voted on.
        self._free: dict[str, datetime] = {}
        self._hour: dict[str, datetime] = {}

    def take(self, fact: Fact) -> None:
        ref = fact.slot.call_ref
        if ref is None:
            return
        match fact.event:
            case e.ToolRequested(arguments=arguments):
                self._wishes[ref] = arguments
            case e.ApprovalRequested() as asking:
                wish = self._wishes.pop(ref, "")
                asked = (asking.voters, *(one.voters for one in (*asking.also, *asking.besides)))
                people = tuple(voter for voters in (*asked, asking.may_break_glass) for voter in voters)
                self._questions[ref] = _Question(
                    reading_time(wish, asking.reason), [(fact.recorded_at, people)]
                )
            case e.Escalated(voters=voters) if ref in self._questions:
                self._questions[ref].asked.append((fact.recorded_at, voters))
            case e.Voted() as vote if ref in self._questions:
                self._count(fact.slot.tail[3], vote, fact.recorded_at, self._questions[ref])
            case e.Approved() | e.Denied() | e.Answered() | e.Expired() | e.Withdrawn() | e.Superseded():
                if fact.slot == ref.decided:
                    self._wishes.pop(ref, None)
                    self._questions.pop(ref, None)
            case _:
                pass

    def reviewers(self) -> tuple[Reviewer, ...]:
        """Those who voted, the busiest first."""
        return tuple(sorted(self._found.values(), key=lambda one: (-one.votes, one.name)))

    def _count(self, name: str, vote: e.Voted, at: datetime, question: _Question) -> None:
        known = self._found.get(name, Reviewer(name))
        asked_at = question.asked_at(vote.on_behalf_of or name)
        read_at = max(asked_at, self._free.get(name, asked_at)) + question.reading
        # Who did not read begins with the next one now.
        self._free[name] = min(read_at, at)
        hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        another = self._hour.get(name) != hour  # a log's times never go back by an hour
        self._hour[name] = hour
        self._found[name] = replace(
            known,
            votes=known.votes + 1,
            by_verdict=known.by_verdict | {vote.verdict: known.by_verdict.get(vote.verdict, 0) + 1},
            on_behalf=known.on_behalf + bool(vote.on_behalf_of),
            hours=known.hours + another,
            faster=known.faster + (at < read_at),
        )


def reviewers(facts: Iterable[Fact]) -> tuple[Reviewer, ...]:
    """How the people decide who voted in these facts, which are in the order of the log."""
    counting = Counting()
    for fact in facts:
        counting.take(fact)
    return counting.reviewers()


def reading_time(arguments: str, reason: str) -> timedelta:
    """The least that it takes to read a question."""
    return timedelta(seconds=max(LEAST_S, (len(arguments) + len(reason)) / READ_PER_S))
