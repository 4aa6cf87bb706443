"""What the API returns and accepts. Times are the broker's; arguments are raw JSON text."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from fastapi import Depends, Path
from pydantic import Field

from ayes.consumers.pending_client import PageRequest
from ayes.interfaces.api.base import ApiModel
from ayes.interfaces.api.content import HeldFile, held_in_content
from ayes.ledger.call import Call
from ayes.ledger.judging.votes import Tally
from ayes.ledger.lifecycle import Status
from ayes.ledger.validity import voids
from ayes.projections.doubt import CallInDoubt
from ayes.projections.history import Outcome, told
from ayes.projections.pending import Entry, PageCursor, PendingFilter
from ayes.projections.views.call import call_json
from ayes.projections.views.fact import Wishes, fact_row, voids_of, wishes_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import words
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Wish
from ayes.schemas.slots import CallRef

#: What a visitor may do about a call. `edit` approves it with other arguments; `doubt` records that
#: nobody knows how it ended.
type Action = Literal[
    "approve",
    "deny",
    "answer",
    "edit",
    "break_glass",
    "revoke",
    "reconcile",
    "withdraw",
    "doubt",
]

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


class CallFilter(ApiModel):
    """Which calls to list. An empty field matches everything."""

    status: Status | Literal["decided"] = Status.PENDING
    """As it is now; `decided` for all calls that are decided."""
    order: Literal["oldest", "newest"] = "oldest"
    workspace: str = ""
    thread: str = ""
    """As `workspace/thread`."""
    tool: str = ""
    """A name, or a pattern with `*` and `?`."""
    rule: str = ""
    """The rule that asks or has decided; not for calls in doubt."""
    mine: bool = False
    """Only those that the visitor may decide; only for pending calls and those in doubt."""
    overdue: bool = False
    """Only those that nobody decided in time; only for pending calls."""
    after: str = ""
    """`next` of the page before."""
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
    def pending(self) -> PendingFilter:
        """The filter by workspace, thread and tool.

        Raises:
            BadInput: it is not a valid name of a workspace or thread.
        """
        return PageRequest(self.workspace, self.thread, self.tool).chosen

    @property
    def cursor(self) -> PageCursor | None:
        """The cursor; None for the first page.

        Raises:
            BadInput: it is not one that a page has.
        """
        if not self.after:
            return None
        if (found := _CURSOR.fullmatch(self.after)) is None:
            raise BadInput(
                f"after={self.after[:100]!r} is not a cursor. Take `next` of the page before."
            )
        return PageCursor(int(found[1]), found[2])


_CURSOR: Final = re.compile(r"([0-9]{1,18})-([A-Za-z0-9_.-]{1,256})", re.ASCII)


def cursor_text(cursor: PageCursor | None) -> str | None:
    """A cursor as the API writes it."""
    return f"{cursor.seq}-{cursor.key}" if cursor else None


class AskedQuorum(ApiModel):
    voters: tuple[str, ...]
    votes_needed: int


class CallAbove(ApiModel):
    """A call in whose run something is asked."""

    call: str
    """As `workspace/thread/call`."""
    tool: str
    agent: str
    """The agent that made the call."""


class PendingCall(ApiModel):
    """A call that waits for people."""

    call: str
    """As `workspace/thread/call`."""
    workspace: str
    thread: str
    tool: str
    arguments: str
    """Byte for byte what would run."""
    digest: str
    """A vote must name it, so that it is about these bytes."""
    flaw: str
    """Why the entry must not be decided by; empty if it may."""
    rule: str
    reason: str
    requester: str
    agent: str
    voters: tuple[str, ...]
    """Names, or patterns with `*`."""
    excluded: tuple[str, ...]
    votes_needed: int
    also: tuple[AskedQuorum, ...]
    requested_at: datetime
    gated_at: datetime
    expires_at: datetime | None
    due_at: datetime | None
    asked_as_well: tuple[str, ...]
    """The people asked later, because nobody decided in time."""
    chain: tuple[CallAbove, ...]
    """The calls in whose runs it is asked, the outermost first."""
    seq: int
    """The position of the approval request in the log."""
    mine: bool
    """Whether the visitor was asked, or a person who delegated to them, and has not voted."""
    voted: bool
    """Whether the visitor has voted, and others are missing."""

    @classmethod
    def of(cls, entry: Entry, *, mine: bool, voted: bool) -> Self:
        found = {name: getattr(entry, name) for name in cls.model_fields if hasattr(entry, name)}
        also = (*entry.also, *entry.besides)
        chain = entry.chain or ()
        more = {
            "call": str(entry.ref),
            "also": also,
            "chain": chain,
            "mine": mine and not voted,
            "voted": voted,
        }
        return cls.model_validate(found | more)


class Waiting(ApiModel):
    """A page of pending calls."""

    status: Literal["pending"] = "pending"
    calls: list[PendingCall]
    waiting: int
    """The number of matching calls, on this page and on others."""
    next: str | None
    """The cursor of the next page; None on the last one."""
    unreadable: list[str] = Field(default_factory=list)
    """Why entries of the queue are left out, which cannot be read. Only on the first page."""


class LateResult(ApiModel):
    """What a tool reported when its call was in doubt already."""

    returned: bool
    """Whether it returned; else it failed."""
    text: str

    @classmethod
    def of(cls, result: e.ToolReturned | e.ToolFailed | None) -> Self | None:
        match result:
            case e.ToolReturned(output=output):
                return cls(returned=True, text=words(output))
            case e.ToolFailed(error=text):
                return cls(returned=False, text=text)
            case None:
                return None


class Doubt(ApiModel):
    """Why nobody knows how a call ended."""

    since: datetime
    """When the doubt was recorded; else the last sign of life of the service that runs it."""
    claimed_by: str
    claimed_at: datetime
    recorded: bool
    """Whether it is recorded. If not, the service stopped renewing its claim: record the doubt
    before the call is reconciled.
    """
    reason: str
    """Why, as it was recorded; empty if it is not."""
    late: LateResult | None
    """None if there is none, or if several differ."""

    @classmethod
    def of(cls, found: CallInDoubt, **more: object) -> Self:
        known = {name: getattr(found, name) for name in Doubt.model_fields}
        return cls.model_validate(known | {"late": LateResult.of(found.late)} | more)


class DoubtfulCall(Doubt):
    """A call in doubt."""

    call: str
    """As `workspace/thread/call`."""
    workspace: str
    thread: str
    tool: str
    arguments: str
    """What ran, or did not."""
    mine: bool
    """Whether the visitor may say what became of it."""


class Doubtful(ApiModel):
    """A page of calls in doubt."""

    status: Literal["in_doubt"] = "in_doubt"
    calls: list[DoubtfulCall]
    in_doubt: int
    """The number of matching calls, on this page and on others."""
    next: str | None
    """The cursor of the next page; None on the last one."""


class ModelResult(ApiModel):
    """What the model reads as the result of a call."""

    text: str
    """Its files in words."""
    is_error: bool
    files: list[HeldFile]

    @classmethod
    def of(cls, ended: Outcome | None) -> Self | None:
        if ended is None:
            return None
        files = held_in_content(ended.text)
        return cls(text=words(ended.text), is_error=ended.is_error, files=files)


class CallState(ApiModel):
    """A call: its request, its status, the vote and the decision."""

    call: str
    status: str
    tool: str
    arguments: str
    """Those that run: the approved ones, if a reviewer changed them."""
    digest: str
    asked: bool = False
    """Whether it was put to people, whatever came of it."""
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
    missing: tuple[AskedQuorum, ...] = ()
    edits: dict[str, str] = Field(default_factory=dict)
    expires_at: datetime | None = None
    valid_until: datetime | None = None
    """Until when the approval lets the call start; None: for ever, or it is not approved."""
    result: ModelResult | None = None
    """Of a call that has ended or will not run: a recorded result, an answer, or why it did not
    run.
    """

    @classmethod
    def of(cls, call: Call, stands: Tally | None) -> Self:
        ended = told(call, Wish(tool=call.wish.tool, arguments=call.wish.arguments))
        more = {"result": ModelResult.of(ended), "asked": call.gated is not None}
        return cls.model_validate(call_json(call, stands) | more)


class RecordedFact(ApiModel):
    """A fact as it stands in the log."""

    seq: int
    recorded_at: datetime
    subject: str
    event: dict[str, Any] | None = None
    """The event, with its kind in `type`; of one that this program cannot read, the kind alone."""
    raw: str = ""
    """The bytes of an event that this program cannot read, as text."""
    problem: str = ""
    """Why it cannot read them."""
    void: str = ""
    """Why it does not count; empty if it does."""
    by: str
    """Its author, by its own account: kind and name."""
    what: str
    """Its most important fields in a line; long ones are shortened here, and whole in `event`."""


class Question(ApiModel):
    """Why people are asked, and whom; frozen when they are asked."""

    digest: str
    """A vote must name it, so that it is about these bytes."""
    rule: str
    policy_version: int
    organisation: bool
    """Whether rule and version are the organisation's, and not the workspace's."""
    reason: str
    """The rule's reason."""
    voters: tuple[str, ...]
    """Names, or patterns with `*`."""
    excluded: tuple[str, ...]
    """The requester, and the people behind the agent, whose votes never count."""
    votes_needed: int
    also: tuple[AskedQuorum, ...]
    denials_needed: int
    may_break_glass: tuple[str, ...]
    editor_counts: bool
    """Whether somebody who edits counts towards their edit."""
    valid_for_s: float | None
    """How long an approval will be valid; None: for ever."""
    confirm: Literal["typed"] | None
    """`typed`: whoever approves it types the name of the tool."""
    asked_as_well: tuple[str, ...]
    """The people asked later, because nobody decided in time."""
    chain: tuple[CallAbove, ...]
    """The calls in whose runs it is asked, the outermost first."""
    asked_at: datetime
    due_at: datetime | None
    """When more people are asked or it expires; None if neither happens."""
    expires_at: datetime | None
    """None if it never expires."""

    @classmethod
    def of(cls, call: Call) -> Self | None:
        asking = call.approval_request
        if asking is None or call.gated is None:
            return None
        found = {name: getattr(asking, name) for name in cls.model_fields if hasattr(asking, name)}
        more = {
            "also": (*asking.also, *asking.besides),
            "asked_as_well": call.escalated_to(),
            "asked_at": call.gated.recorded_at,
            "due_at": call.due,
            "expires_at": call.deadline,
        }
        return cls.model_validate(found | more)


class Ballot(ApiModel):
    """A vote, in the order of the log."""

    reviewer: str
    verdict: e.Verdict
    reason: str
    arguments: str | None
    """The edit, as raw JSON text; None if there is none."""
    answer: str
    is_error: bool
    """Whether the model is to read the answer as the tool's error."""
    halt: bool
    """Whether the model is to wait for a user."""
    on_behalf_of: str
    """The person in whose place they voted; empty: in their own."""
    voted_at: datetime
    seq: int
    void: str
    """Why it does not count; empty if it does."""

    @classmethod
    def of(cls, fact: Fact, void: str) -> Self:
        shown = ("verdict", "reason", "arguments", "answer", "is_error", "halt", "on_behalf_of")
        found = {name: getattr(fact.event, name) for name in shown}
        place = {"reviewer": fact.slot.tail[3], "voted_at": fact.recorded_at, "seq": fact.seq}
        return cls.model_validate(found | place | {"void": void})


class EarlierCall(ApiModel):
    """A call that was requested before in the same thread."""

    call: str
    tool: str
    arguments: str
    """Those that ran, or would have."""
    status: str
    decision: str | None
    """The kind of its decision, such as `Denied`; None: it is not decided."""
    voters: tuple[str, ...]
    """Who voted for its decision."""
    requested_at: datetime


class Permission(ApiModel):
    """Whether the visitor may do something about the call now."""

    action: Action
    refusal: str
    """Why not, in a sentence; empty if they may."""


class Record(ApiModel):
    """A call with every fact about it, in the order of the log."""

    state: CallState
    requester: str
    """The person on whose behalf it was requested, who never decides about it."""
    agent: str
    labels: dict[str, str]
    tool_version: str
    tool_description: str
    """The tool's description and JSON Schema (raw text); empty if it is not declared."""
    tool_schema: str
    run_by: str
    """The group of executors that runs it; `client` if the requesting program does."""
    requested_at: datetime
    question: Question | None
    """None: the policy decided alone, or has not judged it yet."""
    votes: list[Ballot]
    doubt: Doubt | None
    may: list[Permission]
    """Every action, with the reason why the visitor may not take it."""
    earlier: list[EarlierCall]
    """The calls of the same thread before it, oldest first; the ten newest of them."""
    facts: list[RecordedFact]

    @property
    def seq(self) -> int:
        """The last fact that is included for certain."""
        return self.facts[-1].seq if self.facts else 0


def recorded(facts: Sequence[Fact]) -> list[RecordedFact]:
    """Facts as they stand in the log, in words too, with the reason of each that does not count."""
    voids, wishes = voids_of(facts), wishes_of(facts)
    return [_recorded(fact, voids.get(fact.seq, ""), wishes) for fact in facts]


def _recorded(fact: Fact, void: str, wishes: Wishes) -> RecordedFact:
    row, event = fact_row(fact, wishes=wishes), fact.event
    more: dict[str, Any]
    if isinstance(event, e.Carried):  # it may have any form, and be nested as deeply as it likes
        more = {
            "event": {"type": event.type} if event.type else None,
            "raw": event.raw.decode(errors="replace"),
            "problem": event.problem or "it is of a newer program",
        }
    else:
        more = {"event": msgspec.to_builtins(event)}
    return RecordedFact(
        seq=fact.seq,
        recorded_at=fact.recorded_at,
        subject=fact.slot.subject,
        void=void,
        by=row.by,
        what=row.what,
        **more,
    )


def ballots(call: Call) -> list[Ballot]:
    why = {one.fact.seq: one.why for one in voids(call)}
    return [
        Ballot.of(vote, why.get(vote.seq, ""))
        for vote in call.votes
        if isinstance(vote.event, e.Voted)
    ]


def earlier_call(call: Call) -> EarlierCall:
    assert call.requested
    decision = call.decided.event if call.decided else None
    return EarlierCall(
        call=str(call.ref),
        tool=call.wish.tool,
        arguments=call.arguments,
        status=str(call.status),
        decision=type(decision).__name__ if decision else None,
        voters=getattr(decision, "voters", ()),
        requested_at=call.requested.recorded_at,
    )
