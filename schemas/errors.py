"""Everything that can go wrong, in one tree.

    ApprovalsError
    ├── BadInput                the input is malformed; nothing was recorded
    │   ├── BadId               a token that cannot be part of a subject
    │   │   └── BadToolName     a name that no tool can have
    │   ├── BadSlot             a subject that is not a slot of the ledger
    │   ├── BadFact             bytes that are not a fact
    │   ├── BadFile             a policy, conversations or reviewer file, with the place in it
    │   ├── BadArguments        arguments that break the tool's JSON Schema
    │   ├── UnknownTool         a tool that nobody declared in this workspace
    │   └── TooLarge            a fact over the limit
    ├── Refused                 well formed, but it may not happen (now, or by you)
    │   ├── UnknownCall         no such call was ever requested
    │   ├── NotAllowed          not this person
    │   ├── NotOpen             the call is not waiting for this
    │   ├── StillPending        a pending call of the thread blocks messages
    │   ├── AlreadyDecided      somebody was first; says who, how and when
    │   ├── DeadlinePassed      the approval expired
    │   └── AlreadyFilled       the slot holds another fact; says whose
    ├── Unavailable             a fault outside of this program; the request may be valid
    │   ├── BrokerAway          no broker answered in time; or it has no leader, or lags behind
    │   ├── BrokerRefused       the broker answered no: credentials, permissions, configuration
    │   │   ├── LogLost         the log ends before a fact that was read from it already
    │   │   │   └── LogDamaged  the log has a fact that cannot be read, or lacks one in its middle
    │   │   └── NewerLog        the log is at a level that this program does not know
    │   ├── LedgerFull          the log or its disk has no room; nothing was recorded
    │   ├── StoreHeld           another process has this store
    │   ├── OutcomeUnknown      no answer came; the fact may or may not be recorded
    │   └── WaitTimedOut        the awaited event did not happen in time
    └── Defect                  a bug: something the ledger promised does not hold

Each message says what is wrong, where, and what to do next. `exit_code` is the exit code of the
command line: 1 error, 2 usage or bad input, 3 timed out, 4 not allowed, 6 expired, 75 try again
later (EX_TEMPFAIL of sysexits.h).
"""

from typing import ClassVar, Final

#: The exit code EX_TEMPFAIL of sysexits.h: nothing is to be mended, and waiting may help.
TRY_AGAIN: Final = 75


class ApprovalsError(Exception):
    exit_code: ClassVar[int] = 1


class BadInput(ApprovalsError):
    """The input is malformed; nothing was recorded."""

    exit_code = 2


class BadId(BadInput):
    """An id is 1 to 64 characters of A-Z a-z 0-9 _ - and does not start with _."""

    def __init__(self, what: str, value: object) -> None:
        self.what, self.value = what, value
        super().__init__(
            f"{what} {value!r} cannot be used: an id is 1 to 64 characters of A-Z a-z 0-9 _ - "
            "and does not start with _. Rename it, without dots, spaces or slashes."
        )


class BadToolName(BadId):
    """A tool's name is 1 to 128 characters of A-Z a-z 0-9 _ - . /"""

    def __init__(self, value: object) -> None:
        self.what, self.value = "tool", value
        BadInput.__init__(
            self,
            f"tool {_cited(value)} cannot be used: a tool's name is 1 to 128 characters of "
            "A-Z a-z 0-9 _ - . / and nothing else. Rename it.",
        )


def _cited(value: object) -> str:
    """A value in an error: what somebody else chose may be long."""
    text = repr(value)
    return text if len(text) <= 150 else f"{text[:150]}…"


class BadSlot(BadInput):
    """The subject is not a slot of the ledger."""


class BadFact(BadInput):
    """The bytes are not a fact that this ledger can read."""


class BadFile(BadInput):
    """A file that people wrote has a mistake."""

    def __init__(self, path: str, where: str, problem: str) -> None:
        self.path, self.where, self.problem = path, where, problem
        super().__init__(f"{path}, {where}: {problem}" if where else f"{path}: {problem}")


class BadArguments(BadInput):
    """The arguments break the tool's JSON Schema."""


class UnknownTool(BadInput):
    """Nobody declared this tool in the workspace."""


class TooLarge(BadInput):
    """The fact is over the size limit."""


class Refused(ApprovalsError):
    """Well formed, but it may not happen now, or not by you."""


class UnknownCall(Refused):
    """No such call was ever requested."""


class NotAllowed(Refused):
    """This person may not do this."""

    exit_code = 4


class NotOpen(Refused):
    """The call is not waiting for this."""


class StillPending(Refused):
    """A call of the thread is pending, and the policy blocks messages until it is decided."""


class AlreadyDecided(Refused):
    """Somebody was first."""


class DeadlinePassed(Refused):
    """The approval has expired."""

    exit_code = 6


class AlreadyFilled(Refused):
    """The slot holds another fact."""


class Unavailable(ApprovalsError):
    """A fault outside of this program. Where waiting helps, the exit code says so."""


class BrokerAway(Unavailable):
    """No broker answered in time, or its nodes have no leader at the moment."""

    exit_code = TRY_AGAIN


class BrokerRefused(Unavailable):
    """The broker answered no."""

    exit_code = 4


class LogLost(BrokerRefused):
    """The log ends before a fact that was read from it already: it was cut or replaced."""


class LogDamaged(LogLost):
    """A copy of the log has a fact that cannot be read, or lacks one in its middle."""

    exit_code = 1

    def __init__(self, what: str, node: str = "") -> None:
        self.node, self.what = node, f"{what}{node and f', on node {node}'}"
        super().__init__(
            f"the log is damaged: {self.what}. Nothing is decided or run "
            "by what is missing, and trying again does not help: docs/cluster.md says how to mend "
            "it."
        )


class Distrusted(Unavailable):
    """The log is not what it was, or nobody can say: trying again does not help."""

    exit_code = 1


class NewerLog(BrokerRefused):
    """The log is at a level that this program does not know: a newer program set it up."""


class LedgerFull(Unavailable):
    """The log, or its disk, has no room for further facts; nothing was recorded."""

    exit_code = TRY_AGAIN


class StoreHeld(Unavailable):
    """Another process has this store."""

    exit_code = TRY_AGAIN


class CallChanged(Unavailable):
    """A revocation of the call was recorded and not read, so its start was not recorded."""


class OutcomeUnknown(Unavailable):
    """No answer came; the fact may or may not be recorded. Appending it again is safe."""

    exit_code = TRY_AGAIN


class WaitTimedOut(Unavailable):
    """The awaited event did not happen in time."""

    exit_code = 3


class Defect(ApprovalsError):
    """A bug: something the ledger promised does not hold. Please report it with its sequence."""
