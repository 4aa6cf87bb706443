"""Translates a call into messages of the Agent Approval Protocol.

    in the ledger                              on the wire
    -----------------------------------------  ---------------------------------------------------
    requested, asked                           pending
    approved                                   approved, until `expires_at`
    approved, and its validity is over         approved, with an `expires_at` that has passed
    approved with other arguments              denied; the note says with which ones
    denied; revoked before the start           denied, with the reason as the note
    answered                                   denied, with the answer as the note
    expired                                    expired
    withdrawn, superseded                      cancelled
    claimed                                    approved, with a consumption
    returned, failed, reconciled               approved, with a consumption and its outcome

The protocol carries neither edits nor answers: its clients refuse a request whose arguments are not
those that they sent. So both are denials that tell the model what people said.
"""

import hashlib
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ayes.ledger.call import Call
from ayes.ledger.descriptions import FLAWS
from ayes.schemas import events as e
from ayes.schemas import strict_json
from ayes.schemas.codec import Fact
from ayes.schemas.content import words
from ayes.schemas.errors import BadInput
from ayes.schemas.times import after

#: The labels of a call that hold what the ledger has no place for, as it came.
SERVER: Final = "aap_server"
TOOL: Final = "aap_tool"
TIMEOUT: Final = "aap_timeout"
REASONING: Final = "aap_reasoning"
CONTEXT: Final = "aap_context"
#: What is recorded for an outcome without a note.
SUCCEEDED: Final = "The agent reports that it succeeded."
FAILED: Final = "The agent reports that it failed."
#: The protocol knows no approval without an end.
_FOR_EVER: Final = timedelta(days=36_500)

type Json = dict[str, Any]


class Submission(Struct, forbid_unknown_fields=True, frozen=True):
    """A request as an agent sends it. What it sent comes back as it was, byte for byte."""

    tool: str
    arguments: Raw
    timeout: str
    server: str | UnsetType = UNSET
    agent_reasoning: str | UnsetType = UNSET
    context: Raw | UnsetType = UNSET

    def labels(self) -> dict[str, str]:
        """What rules can match, and what the agent is told again."""
        found: dict[str, str] = {TOOL: self.tool, TIMEOUT: self.timeout}
        if self.server is not UNSET:
            found[SERVER] = self.server
        if self.agent_reasoning is not UNSET:
            found[REASONING] = self.agent_reasoning
        if self.context is not UNSET:
            found[CONTEXT] = bytes(self.context).decode()
        return found


class ReportedOutcome(Struct, forbid_unknown_fields=True, frozen=True):
    """The outcome of a tool, as an agent reports it."""

    status: str
    note: str = ""

    def text(self) -> str:
        return self.note or (SUCCEEDED if self.status == "succeeded" else FAILED)


def submission(raw: bytes) -> Submission:
    """Read a request.

    Raises:
        BadInput: in one sentence.
    """
    try:
        strict_json.read(raw.decode())
        found = msgspec.json.decode(raw, type=Submission)
    except (UnicodeDecodeError, strict_json.BadJson, msgspec.MsgspecError) as problem:
        raise BadInput(f"the request is not one of the protocol: {problem}") from None
    if not found.tool:
        raise BadInput("the request names no tool.")
    if not bytes(found.arguments).lstrip().startswith(b"{"):
        raise BadInput("arguments must be an object.")
    return found


def report(raw: bytes) -> ReportedOutcome:
    """Read an outcome.

    Raises:
        BadInput: in one sentence.
    """
    try:
        found = msgspec.json.decode(raw, type=ReportedOutcome)
    except msgspec.MsgspecError as problem:
        raise BadInput(f"the outcome is not one of the protocol: {problem}") from None
    if found.status not in ("succeeded", "failed"):
        raise BadInput(f"an outcome is succeeded or failed, not {found.status!r}.")
    return found


def request_id(instance: str, key: str) -> str:
    """The id of the request that an agent sent with this key: the same for the same key."""
    digest = hashlib.sha256(f"{len(instance)}:{instance}{key}".encode("utf-8", "surrogatepass"))
    return str(uuid.UUID(bytes=digest.digest()[:16], version=5))


def claim_id(call: Call, key: str) -> str:
    """The id of the claim that an agent makes with this key."""
    return request_id(f"claim {call.ref}", key)


def status(call: Call) -> str:
    """`pending`, `approved`, `denied`, `expired` or `cancelled`."""
    if call.starts:
        return "approved"
    if call.revoked is not None or call.declined is not None:
        return "denied"
    match call.decided and call.decided.event:
        case None:
            return "pending"
        case e.Approved() if call.flaw is not None or call.newer or is_edited(call):
            return "denied"
        case e.Approved():
            return "approved"
        case e.Expired():
            return "expired"
        case e.Withdrawn() | e.Superseded():
            return "cancelled"
        case _:
            return "denied"


def is_edited(call: Call) -> bool:
    decided = call.decided.event if call.decided else None
    return isinstance(decided, e.Approved) and decided.arguments is not None


def request(call: Call, deadline: datetime) -> bytes:
    """The request as an agent reads it, as JSON."""
    wish, labels = call.wish, call.wish.labels
    assert call.requested
    found: Json = {
        "id": call.ref.call,
        "tool": labels.get(TOOL, wish.tool),
        "arguments": Raw(wish.arguments.encode()),
        "timeout": labels.get(TIMEOUT, ""),
        "status": status(call),
        "created_at": stamp(call.requested.recorded_at),
        "deadline_at": stamp(deadline),
    }
    if SERVER in labels:
        found["server"] = labels[SERVER]
    if REASONING in labels:
        found["agent_reasoning"] = labels[REASONING]
    if CONTEXT in labels:
        found["context"] = Raw(labels[CONTEXT].encode())
    if (decision := _decision(call)) is not None:
        found["decision"] = decision
    if call.starts:
        outcome = _outcome(call)
        found["consumption"] = {"consumed_at": stamp(call.starts[0].recorded_at), **outcome}
    return msgspec.json.encode(found)


def _decision(call: Call) -> Json | None:
    said = status(call)
    if said == "pending" or call.decided is None:
        return None
    last = call.revoked if said == "denied" and call.revoked is not None else call.decided
    found: Json = {"status": said, "decided_at": stamp(last.recorded_at)}
    if said == "approved":
        ends = call.valid_until or after(call.decided.recorded_at, _FOR_EVER.total_seconds())
        assert ends, "a hundred years from now there are dates"
        found["expires_at"] = stamp(ends)
    if note := _note(call):
        found["note"] = note
    return found


def _note(call: Call) -> str:
    """What people said, for the model."""
    if call.starts:
        return ""
    if (given := call.answer) is not None:
        return f"A person answered in place of the tool: {given.answer}"
    if call.revoked is not None and isinstance(call.revoked.event, e.Revoked):
        why = f": {call.revoked.event.reason}" if call.revoked.event.reason else "."
        return f"The approval was taken back before the call began{why}"
    match call.decided and call.decided.event:
        case e.Approved(arguments=str(allowed)):
            return f"Allowed with exactly these arguments: {allowed}. Call it so to ask for that."
        case e.Approved() if call.flaw is not None:
            return FLAWS[call.flaw]
        case e.Denied(reason=reason) | e.Withdrawn(reason=reason) | e.Superseded(reason=reason):
            return reason
        case _:
            return ""


def _outcome(call: Call) -> Json:
    """The outcome of a consumed request; empty if nobody knows it."""
    match call.reconciled or call.finished:
        case Fact(event=e.ToolReturned(output=text), recorded_at=at):
            told = "" if text == SUCCEEDED else words(text)
            return _reported("succeeded", told, at)
        case Fact(event=e.ToolFailed(error=text), recorded_at=at):
            return _reported("failed", "" if text == FAILED else text, at)
        case Fact(event=e.Reconciled(happened=happened, output=text), recorded_at=at):
            return _reported("succeeded" if happened else "failed", words(text), at)
        case _:
            return {}


def _reported(status: str, note: str, at: datetime) -> Json:
    told = {"note": note} if note else {}
    return {"outcome": {"status": status, "reported_at": stamp(at), **told}}


def error(kind: str, code: str, message: str) -> bytes:
    """An error as the protocol has them."""
    told = {"type": kind, "code": code, "message": message, "request_id": str(uuid.uuid4())}
    return msgspec.json.encode({"error": told})


def stamp(moment: datetime) -> str:
    """A time as the protocol writes it: UTC, with microseconds."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
