"""A call as everybody outside sees it."""

import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from ayes.ledger.call import Call, mode_of
from ayes.ledger.descriptions import describe_on_call, mode_words
from ayes.ledger.judging.votes import Tally, asked, with_members
from ayes.ledger.validity import voids
from ayes.projections.history import told
from ayes.projections.pending import Entry
from ayes.projections.snoozes import Snoozed
from ayes.projections.views.content import HeldFile, held_in_content
from ayes.projections.views.copied import copied
from ayes.projections.views.secrets import Secrets, declaration
from ayes.schemas import events as e
from ayes.schemas.content import words
from ayes.schemas.digest import call_digest
from ayes.schemas.people import is_excluded
from ayes.schemas.quorums import everybody, is_among, seated
from ayes.schemas.visible import visible

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
#: Hex digits of a digest that people are shown, and the fewest that they can name one by.
SHORT: Final = 12


class AskedQuorum(Struct, frozen=True):
    """People of whom some must agree."""

    #: Names, or patterns with `*`.
    voters: tuple[str, ...]
    votes_needed: int


class CallAbove(Struct, frozen=True):
    """A call in whose run something is asked."""

    call: str
    tool: str
    #: The agent that made the call.
    agent: str
    #: Of its tool; None: no policy spoke of classes.
    tool_class: e.JudgedClass | None = msgspec.field(name="class")


class ModelResult(Struct, frozen=True):
    """What the model reads as the result of a call."""

    #: Its files in words.
    text: str
    is_error: bool
    files: list[HeldFile]


class CallState(Struct, frozen=True, kw_only=True):
    """A call: its request, its status, the vote and the decision."""

    call: str
    status: str
    #: The same, but of a call that never ran always why, such as `denied`, and never `refused`.
    outcome: str
    tool: str
    #: Those that run: the approved ones, if a reviewer changed them.
    arguments: str
    digest: str
    #: Whether it was put to people, whatever came of it.
    asked: bool = False
    #: The kind of its decision, such as `Denied`; None: it is not decided.
    decision: str | None
    decided_at: datetime | None
    #: The people on whose votes the decision rests.
    voters: tuple[str, ...]
    #: In whose place some of them voted, by voter.
    on_behalf_of: dict[str, str]
    ground: str
    #: Of an approval by people's votes, or of the question while it is open; else None.
    mode: e.Mode | None
    #: The grants that the decision used, as `giver/grant`.
    grants: tuple[str, ...]
    reason: str
    #: By which groups of a provider some of them counted, and who named these, of whom and when.
    memberships: tuple[e.Membership, ...] = ()
    #: Whether it was approved with other arguments than those requested.
    edited: bool = False
    #: If it was: the requested arguments.
    requested_arguments: str = ""
    #: If it was: the digest of the request.
    requested_digest: str = ""
    #: The approvals of a call that waits for people; else None.
    votes: int | None = None
    #: How many approvals it needs; None if it does not wait for people.
    votes_needed: int | None = None
    #: The people who approve it as it is.
    agree: tuple[str, ...] = ()
    #: The quorums that are incomplete, each with those who can complete it.
    missing: tuple[AskedQuorum, ...] = ()
    #: Other arguments that were voted for, each with its editor; and with the digest, where not all
    #: of them is shown.
    edits: dict[str, str] = {}
    #: When it expires, if it waits for people; None: never.
    expires_at: datetime | None = None
    #: Until when the approval lets the call start; None: for ever, or it is not approved.
    valid_until: datetime | None = None
    #: Its class, and how it can be undone; None: its tool declares nothing of it.
    undoing: e.Undoing | None = None
    #: Until when; None: no end is known, or it has not returned.
    undo_until: datetime | None = None
    #: Of a call that has ended or will not run: a recorded result, an answer, or why it did not
    #: run.
    result: ModelResult | None = None


def call_state(call: Call, secrets: Secrets, stands: Tally | None = None) -> CallState:
    """A call, its status and its decision; while it is open, the state of the vote."""
    wish, shown = call.wish, secrets.call(call)
    decision = call.decided.event if call.decided else None
    asking = call.approval_request
    more: dict[str, Any] = {}
    if is_edited(call):
        more |= {
            "edited": True,
            "requested_arguments": shown.wish.arguments,
            "requested_digest": wish.digest,
        }
    if stands is not None and not decision:
        more |= {
            "votes": stands.approvals,
            "votes_needed": stands.needed,
            "agree": stands.people,
            "missing": _quorums_shown(missing(call, stands)),
            "edits": _edits_shown(call, secrets, stands.edits),
            "expires_at": call.deadline,
        }
    ended = told(shown, e.Wish(wish.tool, shown.wish.arguments))
    return CallState(
        call=str(call.ref),
        status=str(call.status),
        outcome=str(call.outcome),
        tool=wish.tool,
        arguments=shown.arguments,
        digest=call.digest,
        asked=call.gated is not None,
        decision=type(decision).__name__ if decision else None,
        decided_at=call.decided.recorded_at if call.decided else None,
        voters=getattr(decision, "voters", ()),
        on_behalf_of=getattr(decision, "on_behalf_of", {}),
        ground=getattr(decision, "ground", ""),
        mode=asking.mode if asking and not decision else mode_of(decision),
        grants=getattr(decision, "grants", ()),
        reason=getattr(decision, "reason", ""),
        memberships=getattr(decision, "memberships", ()),
        valid_until=call.valid_until,
        undoing=call.undoing,
        undo_until=call.undo_until,
        result=ModelResult(words(ended.text), ended.is_error, held_in_content(ended.text))
        if ended
        else None,
        **more,
    )


def _edits_shown(call: Call, secrets: Secrets, edits: Mapping[str, str]) -> dict[str, str]:
    """Those that differ only in what is not shown stand together, each with its digest."""
    found: dict[str, str] = {}
    for raw, editor in edits.items():
        shown, said = secrets.arguments(declaration(call), raw), editor
        if shown != raw:
            digest = call_digest(call.wish.tool, call.wish.tool_version, raw)
            said = f"{editor} (digest {digest[:SHORT]})"
        found[shown] = f"{found[shown]}, {said}" if shown in found else said
    return found


def _quorums_shown(quorums: Iterable[e.Quorum]) -> tuple[AskedQuorum, ...]:
    return tuple(AskedQuorum(one.voters, one.votes_needed) for one in quorums)


class PendingCall(Struct, frozen=True):
    """A call that waits for people."""

    call: str
    workspace: str
    thread: str
    tool: str
    #: Byte for byte what would run, but for values that the tool declares as secret.
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
    mode: e.Mode
    votes_needed: int
    #: The other quorums that must agree too.
    also: tuple[AskedQuorum, ...]
    requested_at: datetime
    #: When people were asked.
    gated_at: datetime
    expires_at: datetime | None
    due_at: datetime | None
    #: The people asked later, because nobody decided in time.
    asked_as_well: tuple[str, ...]
    #: The calls in whose runs it is asked, the outermost first.
    chain: tuple[CallAbove, ...]
    #: As in `CallState`.
    undoing: e.Undoing | None
    #: What it does in one line, as its tool declares it; empty: it declares none.
    title: str
    #: The position of the approval request in the log.
    seq: int
    labels: dict[str, str]
    #: By each person who handed it over, to whom; the newest is the last.
    handed: dict[str, str]
    #: Whether the visitor was asked, or a person who delegated to them, and has neither voted nor
    #: handed it over.
    mine: bool
    #: Whether the visitor has voted, and others are missing.
    voted: bool
    #: Whether the visitor asked for it, or is behind its agent, and may confirm it.
    may_confirm: bool
    #: Until when the visitor has put it aside; None: they have not.
    snoozed_until: datetime | None
    #: Whether the visitor had put it aside, and it has come back.
    is_back: bool


def pending_call(
    entry: Entry, secrets: Secrets, *, mine: bool, voted: bool, confirms: bool, snoozed: Snoozed
) -> PendingCall:
    return copied(
        PendingCall,
        entry,
        call=str(entry.ref),
        arguments=secrets.arguments(entry.declaration, entry.arguments),
        also=_quorums_shown((*entry.also, *entry.besides)),
        chain=_above(entry.chain or ()),
        undoing=entry.undoing or None,
        title=entry.title or "",
        mine=mine and not voted,
        voted=voted,
        may_confirm=mine and not voted and confirms,
        snoozed_until=snoozed.until(entry),
        is_back=snoozed.is_back(entry),
        mode=entry.mode or "four_eyes",
        labels=entry.labels or {},
        handed=entry.handed or {},
    )


def _above(chain: Iterable[e.Link]) -> tuple[CallAbove, ...]:
    return tuple(copied(CallAbove, one) for one in chain)


class Question(Struct, frozen=True):
    """Why people are asked, and whom; frozen when they are asked."""

    #: A vote must name it, so that it is about these bytes.
    digest: str
    rule: str
    policy_version: int
    organisation: bool
    #: The rule's reason.
    reason: str
    #: Names, or patterns with `*`.
    voters: tuple[str, ...]
    #: The requester, and the people behind the agent, whose votes never count.
    excluded: tuple[str, ...]
    mode: e.Mode
    #: With `requester_confirms`: the people whom `excluded` would name otherwise.
    own: tuple[str, ...]
    votes_needed: int
    #: The other quorums that must agree too.
    also: tuple[AskedQuorum, ...]
    denials_needed: int
    may_break_glass: tuple[str, ...]
    #: Whether somebody who edits counts towards their edit.
    editor_counts: bool
    #: How long an approval will be valid; None: for ever.
    valid_for_s: float | None
    #: `typed`: whoever approves it types the name of the tool.
    confirm: e.Confirm | None
    #: How many seconds the console holds a vote before it sends it, so that it can be undone.
    undo_s: int
    #: Reasons that are offered to people who deny or answer.
    reasons: tuple[str, ...]
    #: Whether votes other than denials count only if their voters signed them.
    signed: bool
    #: The people asked later, because nobody decided in time.
    asked_as_well: tuple[str, ...]
    #: Who of them was on call, or why nobody was asked who is.
    on_call: tuple[str, ...]
    #: The calls in whose runs it is asked, the outermost first.
    chain: tuple[CallAbove, ...]
    asked_at: datetime
    due_at: datetime | None
    #: None if it never expires.
    expires_at: datetime | None


def question(call: Call) -> Question | None:
    """None: nobody was asked."""
    asking = call.approval_request
    if asking is None or call.gated is None:
        return None
    return copied(
        Question,
        asking,
        also=_quorums_shown((*asking.also, *asking.besides)),
        asked_as_well=call.escalated_to(),
        on_call=tuple(map(describe_on_call, call.on_call)),
        chain=_above(asking.chain),
        asked_at=call.gated.recorded_at,
        due_at=call.due,
        expires_at=call.deadline,
    )


class RecordedVote(Struct, frozen=True):
    """A vote, in the order of the log."""

    reviewer: str
    verdict: e.Verdict
    reason: str
    #: The edit, as raw JSON text; None if there is none.
    arguments: str | None
    #: What the model reads in place of the tool's output.
    answer: str
    #: Whether the model is to read the answer as the tool's error.
    is_error: bool
    #: Whether the model is to wait for a user.
    halt: bool
    #: The person in whose place they voted; empty: in their own.
    on_behalf_of: str
    #: When the broker recorded it.
    voted_at: datetime
    seq: int
    void: str
    #: Whether it counts by its signature; not asked where votes need none.
    signed: bool


def recorded_votes(call: Call, secrets: Secrets) -> list[RecordedVote]:
    whys = {one.fact.seq: one.why for one in voids(call)}
    return [
        copied(
            RecordedVote,
            secrets.event(vote.event, call.ref.workspace, call.wish),
            reviewer=vote.slot.tail[3],
            voted_at=vote.recorded_at,
            seq=vote.seq,
            void=whys.get(vote.seq, ""),
            signed=call.signatures is not None
            and vote.event.verdict != "deny"
            and bool(vote.event.signature)
            and vote.seq not in whys,
        )
        for vote in call.votes
        if isinstance(vote.event, e.Voted)
    ]


class Comment(Struct, frozen=True):
    """What a person said about a call. It counts for nothing."""

    #: The person who said it.
    author: str
    text: str
    #: When the broker recorded it.
    commented_at: datetime
    seq: int


def comments(call: Call) -> list[Comment]:
    """In the order of the log."""
    return [
        Comment(fact.slot.tail[3], fact.event.text, fact.recorded_at, fact.seq)
        for fact in call.comments
        if isinstance(fact.event, e.Commented)
    ]


class Handover(Struct, frozen=True):
    """A person asked a colleague to decide, which changes nobody's right to vote."""

    #: The person who asked.
    by: str
    #: The colleague.
    to: str
    #: Why; may be empty.
    reason: str
    #: When the broker recorded it.
    handed_at: datetime
    seq: int


def handovers(call: Call) -> list[Handover]:
    """In the order of the log."""
    return [
        Handover(fact.slot.tail[3], fact.event.to, fact.event.reason, fact.recorded_at, fact.seq)
        for fact in call.handed
        if isinstance(fact.event, e.HandedOver)
    ]


class EarlierCall(Struct, frozen=True):
    """A call that was requested before in the same thread."""

    call: str
    tool: str
    #: Those that ran, or would have.
    arguments: str
    status: str
    #: As in `CallState`.
    outcome: str
    #: The kind of its decision, such as `Denied`; None: it is not decided.
    decision: str | None
    #: Who voted for its decision.
    voters: tuple[str, ...]
    requested_at: datetime


def earlier_call(call: Call, secrets: Secrets) -> EarlierCall:
    assert call.requested
    at = call.requested.recorded_at
    return copied(EarlierCall, call_state(call, secrets), requested_at=at)


class DecidedCall(Struct, frozen=True):
    """A call that was decided, as it is now."""

    call: str
    workspace: str
    thread: str
    tool: str
    #: Those that run: the approved ones, if a reviewer changed them.
    arguments: str
    #: Whether a reviewer changed them.
    edited: bool
    #: How it was decided: `approved`, `denied`, `answered`, `expired` and others.
    verdict: str
    #: What became of it since.
    status: str
    #: As in `CallState`.
    outcome: str
    #: The rule that decided, or by which people were asked.
    rule: str
    ground: str
    #: Of an approval by people's votes; else None.
    mode: e.Mode | None
    #: The people on whose votes the decision rests.
    by: tuple[str, ...]
    #: In whose place some of them voted, by voter.
    on_behalf_of: dict[str, str]
    reason: str
    requester: str
    agent: str
    requested_at: datetime
    decided_at: datetime
    finished_at: datetime | None
    #: The position of the decision in the log.
    seq: int
    labels: dict[str, str]
    #: What was asked for in one line, as its tool declares it; empty: it declares none, or people
    #: were not asked, or approved other arguments.
    title: str


def decided_call(call: Call, secrets: Secrets) -> DecidedCall:
    assert call.requested, "only requested calls are found"
    assert call.decided, "only decided calls are found"
    wish, decision, asking = call.wish, call.decided.event, call.approval_request
    return DecidedCall(
        call=str(call.ref),
        workspace=call.ref.workspace,
        thread=call.ref.thread,
        tool=wish.tool,
        arguments=secrets.call(call).arguments,
        edited=is_edited(call),
        verdict=type(decision).__name__.lower(),
        status=call.status,
        outcome=call.outcome,
        rule=rule_of(call),
        ground=getattr(decision, "ground", ""),
        mode=mode_of(decision),
        by=getattr(decision, "voters", ()),
        on_behalf_of=getattr(decision, "on_behalf_of", {}),
        reason=getattr(decision, "reason", ""),
        requester=wish.requester,
        agent=wish.agent,
        requested_at=call.requested.recorded_at,
        decided_at=call.decided.recorded_at,
        finished_at=call.finished.recorded_at if call.finished else None,
        seq=call.decided.seq,
        labels=wish.labels,
        title=asking.title if asking and not is_edited(call) else "",
    )


def rule_of(call: Call) -> str:
    """The rule that decided, or by which people were asked."""
    decision = call.decided.event if call.decided else None
    asking = call.approval_request
    return getattr(decision, "rule", "") or (asking.rule if asking else "")


def is_edited(call: Call) -> bool:
    """Whether it was approved with other arguments than those requested."""
    decision = call.decided.event if call.decided else None
    return isinstance(decision, e.Approved) and decision.arguments is not None


def edit_words(call: Call, secrets: Secrets) -> str:
    """How an approval changed the arguments, and the digest of the result; empty if it did not."""
    if not is_edited(call):
        return ""
    shown = secrets.call(call)
    said = changes(shown.wish.arguments, shown.arguments)
    return f"edited: {said} (digest {call.digest[:SHORT]})"


def changes(before: str, after: str) -> str:
    """The difference of an edit, such as `amount 5 → 4`; all new arguments if that cannot show
    it.
    """
    try:
        old, new = _fields.decode(before), _fields.decode(after)
    except (msgspec.MsgspecError, UnicodeError):
        return after
    changed = [
        f"{name} {_value(old.get(name))} → {_value(new.get(name))}"
        for name in dict.fromkeys((*old, *new))
        if _value(old.get(name)) != _value(new.get(name))
    ]
    return ", ".join(changed) or after


def _value(raw: msgspec.Raw | None) -> str:
    return "(none)" if raw is None else bytes(raw).decode()


def vote_words(call: Call, stands: Tally, secrets: Secrets) -> str:
    """The state of the vote on an open call: who agrees, and who is missing."""
    agree = f" ({', '.join(stands.people)})" if stands.people else ""
    lacking = ", and ".join(quorum_words(one) for one in missing(call, stands))
    said = f"{stands.approvals} of {stands.needed} approvals{agree}."
    if stands.verdict is not None or call.withdrawn is not None:
        return f"{said} That is decided, but no gate has recorded it yet: see ayes status."
    if lacking:
        edits = (_edit_words(call, *edit, secrets) for edit in stands.edits.items())
        asking = call.approval_request
        mode = mode_words(asking.mode) if asking else ""
        return " ".join((f"{said} Missing: {lacking}{mode}.", *edits))
    return f"{said} The edited arguments need others too: ayes policy explain {call.ref}"


def _edit_words(call: Call, arguments: str, editor: str, secrets: Secrets) -> str:
    command = f"ayes approve {call.ref} --as NAME --edit {shlex.quote(visible(arguments))}"
    if secrets.arguments(declaration(call), arguments) != arguments:
        command = f"ayes show {call.ref} --secrets has them, since some are secret"
    return (
        f"{editor} approved it with other arguments, and an editor's own vote does not count. "
        f"Somebody else must approve the same: {command}"
    )


def missing(call: Call, stands: Tally) -> tuple[e.Quorum, ...]:
    """The quorums that are still incomplete, each with the voters it may be completed by."""
    call = with_members(call, stands.members)
    asking = call.approval_request
    assert asking, "only a call that people were asked about lacks votes"
    people = set(stands.people)
    have_voted = people.union(stands.edits.values())
    anywhere = {
        person
        for vote in call.votes
        if isinstance(vote.event, e.Voted)
        and (person := vote.event.on_behalf_of or vote.slot.tail[3]) in people
        and is_among(person, call.escalated_to(vote.seq))
    }
    lacking: dict[e.Quorum, None] = {}
    for quorums in asked(asking):
        for quorum, seats in zip(quorums, seated(quorums, stands.people, anywhere), strict=True):
            left = quorum.votes_needed - len(seats)
            voters = dict.fromkeys((*quorum.voters, *call.escalated_to()))
            others = tuple(
                voter
                for voter in voters
                if voter not in have_voted
                and not is_excluded(voter, asking.excluded, asking.people)
            )
            if left > 0:
                lacking[e.Quorum(others, left)] = None
    return tuple(lacking)


def quorums_of(asking: e.ApprovalRequested | Entry) -> tuple[e.Quorum, ...]:
    return (e.Quorum(asking.voters, asking.votes_needed), *asking.also, *asking.besides)


def quorum_words(quorum: e.Quorum) -> str:
    """Who must agree: `anybody`, `ana`, `one of ana and ben`, `2 of ana, ben and ops-*`."""
    voters, needed = quorum.voters, quorum.votes_needed
    if not voters:
        return f"{'one' if needed == 1 else needed} more, and nobody is left to ask"
    if voters == ("*",):
        return "anybody" if needed == 1 else f"any {needed} people"
    named = " and ".join(filter(None, (", ".join(voters[:-1]), voters[-1])))
    if len(voters) == needed and everybody((quorum,)) is not None:
        return named
    return f"{'one' if needed == 1 else needed} of {named}"
