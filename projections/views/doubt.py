"""A call in doubt as everybody outside sees it."""

from datetime import datetime

from msgspec import Struct

from ayes.ledger.call import Call
from ayes.projections.doubt import CallInDoubt
from ayes.projections.views.copied import copied
from ayes.projections.views.secrets import Secrets
from ayes.schemas import events as e
from ayes.schemas.content import words


class LateResult(Struct, frozen=True):
    """What a tool reported when its call was in doubt already."""

    #: Whether it returned; else it failed.
    returned: bool
    text: str


class Doubt(Struct, frozen=True):
    """Why nobody knows how a call ended."""

    #: When the doubt was recorded; else the last sign of life of the service that runs it.
    since: datetime
    #: The service that claimed it, by its own account.
    claimed_by: str
    claimed_at: datetime
    #: Whether it is recorded. If not, the service stopped renewing its claim: record the doubt
    #: before the call is reconciled.
    recorded: bool
    #: Why, as it was recorded; empty if it is not.
    reason: str
    #: None if there is none, or if several differ.
    late: LateResult | None


class DoubtfulCall(Doubt, frozen=True):
    """A call in doubt."""

    call: str
    workspace: str
    thread: str
    tool: str
    #: What ran, or did not.
    arguments: str
    #: Whether the visitor may say what became of it.
    mine: bool


def doubt(found: CallInDoubt) -> Doubt:
    return copied(Doubt, found, late=_late(found.late))


def doubtful_call(found: CallInDoubt, call: Call, secrets: Secrets, *, mine: bool) -> DoubtfulCall:
    """A call in doubt.

    Args:
        mine: whether the visitor may say what became of it.
    """
    return copied(
        DoubtfulCall,
        found,
        call=str(call.ref),
        arguments=secrets.call(call).arguments,
        mine=mine,
        late=_late(found.late),
    )


def _late(result: e.ToolReturned | e.ToolFailed | None) -> LateResult | None:
    match result:
        case e.ToolReturned(output=output):
            return LateResult(returned=True, text=words(output))
        case e.ToolFailed(error=text):
            return LateResult(returned=False, text=text)
        case None:
            return None
