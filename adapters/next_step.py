"""What an adapter does next with a call: one of four steps, from the recorded facts alone.

    next step                   from the ledger                     what the adapter does
    --------------------------  ----------------------------------  -------------------------------
    Run(arguments, edited)      approved, and not started           claims it, runs it, records it
    Say(text, is_error)         it will not run, failed, is in      the model reads the text as the
                                doubt, or runs elsewhere            result; nothing runs
    Answer(content)             a result is recorded, or a person   the model reads it as the
                                answered                            result; nothing runs
    Wait(ref)                   not decided, or stopped             pauses the framework's own way

`Run` says that the call may be claimed. Only the claim says that it may run. Whatever a framework
hands back when it resumes is no part of this: it is a wake-up, and the ledger is read.
"""

from typing import Final

from msgspec import Struct

from ayes.ledger import clock
from ayes.ledger.call import Call
from ayes.ledger.descriptions import FLAWS
from ayes.ledger.lifecycle import Status
from ayes.projections import refusal_texts
from ayes.projections.history import told
from ayes.schemas import events as e
from ayes.schemas.content import words
from ayes.schemas.slots import CallRef


class Run(Struct, frozen=True):
    """The call may be claimed, and run with exactly these arguments."""

    #: Raw JSON text, as approved.
    arguments: str
    #: Whether a reviewer changed them.
    edited: bool = False


class Say(Struct, frozen=True):
    """The tool does not run. The model reads this text as the result of its call."""

    text: str
    is_error: bool = True


class Answer(Struct, frozen=True):
    """The recorded result of the call, or a person's answer in its place. The tool does not run."""

    #: Large files are as recorded, by their digests, unless they were read (`outputs.with_bytes`).
    content: e.Content

    @property
    def text(self) -> str:
        """The result for readers of text alone."""
        return words(self.content)


class Wait(Struct, frozen=True):
    """The call is not decided, or it is approved and stopped."""

    ref: CallRef


type NextStep = Run | Say | Answer | Wait

_CHANGED: Final = "its description or schema has changed since it was asked for"


def next_step(call: Call, version: str | None = None) -> NextStep:
    """What to do with a call.

    Args:
        call: all of its recorded facts.
        version: of the tool as it is declared now. What was approved for another one does not run.
            None: it will not run here.
    """
    tool = "the tool" if call.requested is None else call.wish.tool
    match call.status:
        case Status.UNKNOWN | Status.REQUESTED | Status.PENDING:
            return Wait(call.ref)
        case Status.APPROVED if call.newer:
            newer = "a newer program has recorded something about this call"
            return Say(refusal_texts.not_as_approved(tool, newer))
        case Status.APPROVED if call.flaw is not None:
            return Say(refusal_texts.not_as_approved(tool, FLAWS[call.flaw]))
        case Status.APPROVED if version is not None and call.wish.tool_version != version:
            return Say(refusal_texts.not_as_approved(tool, _CHANGED))
        # By the clock here: whether the stop has ended by itself is for the claim to find out.
        case Status.APPROVED if call.stop(clock.now()) is not None:
            return Wait(call.ref)
        case Status.APPROVED:
            return Run(call.arguments, edited=call.arguments != call.wish.arguments)
        case Status.RUNNING:
            return Say(refusal_texts.started_elsewhere(tool))
        case Status.IN_DOUBT:
            return Say(refusal_texts.in_doubt(tool))
        case _:
            ended = told(call, e.Wish(tool=tool, arguments=call.wish.arguments))
            assert ended, f"{call.ref} is {call.status}, and may run no more"
            return Say(words(ended.text)) if ended.is_error else Answer(ended.text)


def of_earlier(read: Say | Answer) -> Say | Answer:
    """The next step for a reader who may have read it before, as the result of an earlier call."""
    note = refusal_texts.MAY_BE_EARLIER
    match read:
        case Say(text, is_error):
            return Say(f"{text}\n\n{note}", is_error)
        case Answer(str(text)):
            return Answer(f"{text}\n\n{note}")
        case Answer(parts):
            return Answer((*parts, e.Text(note)))
