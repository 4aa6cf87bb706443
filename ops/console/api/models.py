"""What the API returns and accepts. Times are the broker's; arguments are raw JSON text."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from ayes.ledger.lifecycle import Call
from ayes.ledger.votes import Tally
from ayes.ops.terminal import output
from ayes.projections.pending import Entry
from ayes.schemas.codec import Fact


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class Quorum(Model):
    voters: tuple[str, ...]
    votes_needed: int


class PendingCall(Model):
    """A call that waits for people."""

    #: As `workspace/thread/call`.
    call: str
    workspace: str
    thread: str
    tool: str
    #: Byte for byte what would run.
    arguments: str
    #: A vote must name it, so that it is about these bytes.
    digest: str
    #: Why the entry must not be decided by; empty if it may.
    flaw: str
    rule: str
    reason: str
    requester: str
    agent: str
    #: Names, or patterns with `*`.
    voters: tuple[str, ...]
    excluded: tuple[str, ...]
    votes_needed: int
    also: tuple[Quorum, ...]
    requested_at: datetime
    gated_at: datetime
    expires_at: datetime | None
    due_at: datetime | None
    #: The position of the approval request in the log.
    seq: int

    @classmethod
    def of(cls, entry: Entry) -> Self:
        found = {name: getattr(entry, name) for name in cls.model_fields if hasattr(entry, name)}
        return cls.model_validate(
            found
            | {"call": str(entry.ref), "flaw": entry.flaw, "also": (*entry.also, *entry.besides)}
        )


class Waiting(Model):
    """A page of pending calls, oldest first."""

    calls: list[PendingCall]
    #: The number of matching calls, on this page and on others.
    waiting: int
    #: The cursor of the next page; None on the last one.
    next: str | None


class CallState(Model):
    """A call: its request, its status, the vote and the decision."""

    call: str
    status: str
    tool: str
    #: Those that run: the approved ones, if a reviewer changed them.
    arguments: str
    digest: str
    decision: str | None
    decided_at: datetime | None
    voters: tuple[str, ...]
    on_behalf_of: dict[str, str]
    ground: str
    grants: tuple[str, ...]
    reason: str
    edited: bool = False
    requested_arguments: str = ""
    requested_digest: str = ""
    votes: int | None = None
    votes_needed: int | None = None
    agree: tuple[str, ...] = ()
    missing: tuple[Quorum, ...] = ()
    edits: dict[str, str] = Field(default_factory=dict)
    expires_at: datetime | None = None

    @classmethod
    def of(cls, call: Call, stands: Tally | None) -> Self:
        return cls.model_validate(output.call_json(call, stands))


class RecordedFact(Model):
    """A fact as it stands in the log."""

    seq: int
    recorded_at: datetime
    subject: str
    #: The event, with its kind in `type`.
    event: dict[str, Any] | None = None
    #: Why bytes that this program cannot read are not an event.
    problem: str = ""
    #: Why it does not count; empty if it does.
    void: str = ""


class Record(Model):
    """A call with every fact about it, in the order of the log."""

    state: CallState
    facts: list[RecordedFact]

    @classmethod
    def of(cls, call: Call, stands: Tally | None, facts: Sequence[Fact]) -> Self:
        voids = output.voids_of(facts)
        return cls(
            state=CallState.of(call, stands),
            facts=[
                RecordedFact.model_validate(
                    msgspec.json.decode(output.fact_json(fact, voids.get(fact.seq, "")))
                )
                for fact in facts
            ],
        )
