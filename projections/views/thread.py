"""A conversation as everybody outside sees it."""

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.descriptions import describe_decision
from ayes.ledger.validity import voids
from ayes.projections import timeline
from ayes.projections.history import outcome
from ayes.projections.thread import Turn, is_settled
from ayes.projections.views.content import HeldFile, held_in
from ayes.projections.views.fact import Wishes, fact_row, fact_sentence
from ayes.projections.views.secrets import NEWEST, Secrets, declaration
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import spoken, words


class _Item(Struct, frozen=True, tag_field="kind"):
    @property
    def kind(self) -> str:
        """`message`, `reply` or `call`."""
        return str(self.__struct_config__.tag)


class ThreadMessage(_Item, frozen=True, tag="message"):
    """A message to the model."""

    seq: int
    at: datetime
    #: `system`, `user` or `note`; empty if it cannot be read.
    role: str
    #: The author, if a thread has several users.
    name: str
    #: Its files in words.
    text: str
    files: list[HeldFile]


class ThreadReply(_Item, frozen=True, tag="reply"):
    """A turn of the model. Its calls follow it."""

    turn: int
    #: None while the model is asked.
    seq: int | None
    at: datetime | None
    #: What it says.
    texts: list[str]
    #: Whether the model has refused, in its provider's own form for that.
    refused: bool
    files: list[HeldFile]
    #: Why there is no reply; empty if there is one.
    failure: str


class Step(Struct, frozen=True):
    """A fact about a call, in words."""

    seq: int
    at: datetime
    #: The kind of the fact.
    fact: str
    by: str
    #: What happened, in a sentence.
    words: str
    void: str


class ThreadCycle(_Item, frozen=True, tag="call"):
    """A call from the wish to the result, as one item."""

    call: str
    tool: str
    #: As requested, raw JSON text; of a model's wish also text that is none.
    arguments: str
    #: What runs instead; None if no reviewer changed it.
    edited: str | None
    status: str
    #: As in `CallState`.
    outcome: str
    #: Who decided, how and when; empty while it is open.
    decided: str
    #: What the model reads as the result; None while there is none.
    result: str | None
    is_error: bool
    #: Those that the tool returned.
    files: list[HeldFile]
    #: The facts about it, in the order of the log.
    steps: list[Step]


type ThreadItem = ThreadMessage | ThreadReply | ThreadCycle


def thread_item(item: timeline.Item, secrets: Secrets) -> ThreadItem:
    """An item of a timeline."""
    match item:
        case Fact():
            return thread_message(item)
        case Turn(number=number, replied=end, reply=reply):
            parts = reply.parts if reply else ()
            return ThreadReply(
                turn=number,
                seq=end.seq if end else None,
                at=end.recorded_at if end else None,
                texts=[text for part in parts if (text := spoken(part)) is not None],
                refused=any(isinstance(part, e.Refusal) for part in parts),
                files=held_in(reply),
                failure=failure(end.event) if end else "",
            )
        case timeline.Cycle():
            return _cycle(item, secrets)


def thread_message(fact: Fact) -> ThreadMessage:
    said = fact.event if isinstance(fact.event, e.Said) else e.Said(role="note", text="")
    return ThreadMessage(
        seq=fact.seq,
        at=fact.recorded_at,
        role=said.role if said is fact.event else "",
        name=said.name,
        text=words(said.text),
        files=held_in(said),
    )


def failure(end: e.AnyEvent | e.Carried) -> str:
    """Why a turn has no reply; empty if it has one."""
    match end:
        case e.ModelFailed(error=error):
            return error or "the model failed without a reason"
        case e.Carried(problem=problem):
            return problem or "the reply is of a newer program"
        case _:
            return ""


def _cycle(item: timeline.Cycle, secrets: Secrets) -> ThreadCycle:
    call, shown = item.call, secrets.call(item.call)
    wish = _as_wish(shown)
    if item.wish is not None:
        newest = (call.ref.workspace, item.wish.tool, NEWEST)
        of = newest if call.requested is None else declaration(call)
        wish = replace(item.wish, arguments=secrets.arguments(of, item.wish.arguments))
    wishes = {call.ref: call.wish} if call.requested else {}
    end = outcome(shown, wish) if is_settled(call) else None
    decision = shown.decided.event if shown.decided else None
    why = {void.fact.seq: void.why for void in voids(call)}
    return ThreadCycle(
        call=str(call.ref),
        tool=wish.tool,
        arguments=wish.arguments,
        edited=decision.arguments if isinstance(decision, e.Approved) else None,
        status=str(call.status),
        outcome=str(call.outcome),
        decided=describe_decision(call.decided, call.withdrawn) if call.decided else "",
        result=words(end.text) if end else None,
        is_error=end.is_error if end else False,
        files=held_in(call.finished.event if call.finished else None),
        steps=[_step(fact, why.get(fact.seq, ""), secrets, wishes) for fact in call.facts],
    )


def _as_wish(call: Call) -> e.Wish:
    """The request of a service, as a model would have wished for it."""
    if call.requested is None:  # only void facts
        return e.Wish("", "")
    return e.Wish(call.wish.tool, call.wish.arguments)


def _step(fact: Fact, void: str, secrets: Secrets, wishes: Wishes) -> Step:
    row = fact_row(fact, secrets)
    return Step(
        seq=row.seq,
        at=fact.recorded_at,
        fact=row.kind,
        by=row.by,
        words=fact_sentence(fact, secrets, wishes),
        void=void,
    )
