"""Names of calls: the thread and the call id, from what a framework gives.

    given id      ─► itself, if it can be part of a subject; else `h` and a digest of it
    no id         ─► `d` and a digest of the tool and its arguments
    taken already ─► the same with `-2`, `-3`, ... at the end

The same call must have the same name after a crash, so nothing here is random. Two different calls
never share a name:

1. An id that looks like a name made here (`h...`, `d...`, or ending in `-2`) is itself replaced by
   its digest, so a client cannot choose the name of another call.
2. A name that holds another call is passed over. Some servers give `call_0` in every turn.
3. Without an id, a name whose call has ended is passed over too: two identical calls are one until
   the first has ended, and then the next one is a call of its own.

The tool's version makes no difference. A new release that changes a description must not turn a
call that ran into another one, which would run again.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from msgspec import Struct

from ayes.ledger.lifecycle import Call, Status
from ayes.schemas.ids import is_token

#: 200 bits of a SHA-256, as lower-case base32.
_DIGEST_CHARACTERS: Final = 40
#: Leaves room for `-999999` in the 64 characters of a token.
_MAX_KEPT: Final = 57
#: The forms of names that are made here.
_DIGEST: Final = re.compile(r"[dh][a-z2-7]{40}", re.ASCII)
_NUMBERED: Final = re.compile(r".*-(?:[2-9]|[1-9][0-9]{1,5})", re.ASCII)
#: The call may still run, runs, or nobody knows whether it has run.
_OPEN: Final = frozenset(
    {Status.REQUESTED, Status.PENDING, Status.APPROVED, Status.RUNNING, Status.IN_DOUBT}
)


class AskedCall(Struct, frozen=True):
    """A tool call as a framework gives it. Everything in it is text from outside."""

    #: The framework's id of the conversation.
    thread: str
    #: The framework's or the provider's id of the call; empty if there is none.
    call_id: str
    tool: str
    #: Raw JSON text.
    arguments: str


def thread_name(given: str) -> str:
    """The thread for a conversation's id: itself if it fits, else `h` and a digest of it."""
    return given if is_token(given) and not _DIGEST.fullmatch(given) else _digest("h", given)


def call_names(asked: AskedCall) -> Iterator[str]:
    """The names that this call may have, in the order in which they are tried."""
    if not asked.call_id:
        first = _digest("d", asked.tool, asked.arguments)
    elif _is_kept(asked.call_id):
        first = asked.call_id
    else:
        first = _digest("h", asked.call_id)
    yield first
    for occurrence in count(2):
        yield f"{first}-{occurrence}"


def may_be(asked: AskedCall, recorded: Call) -> bool:
    """Whether the call recorded under a name is this one, or the name is free."""
    if recorded.requested is None:
        return not recorded.facts
    wish = recorded.wish
    if (wish.tool, wish.arguments) != (asked.tool, asked.arguments):
        return False
    return bool(asked.call_id) or recorded.status in _OPEN


def call_name(asked: AskedCall, recorded: Callable[[str], Call]) -> str:
    """The name of a call in a thread.

    Args:
        recorded: the call under a name; one without facts if the name is free.
    """
    return next(name for name in call_names(asked) if may_be(asked, recorded(name)))


def _is_kept(given: str) -> bool:
    fits = is_token(given) and len(given) <= _MAX_KEPT
    return fits and not _DIGEST.fullmatch(given) and not _NUMBERED.fullmatch(given)


def _digest(kind: str, *parts: str) -> str:
    # Lengths before the parts, so that no two lists of parts have the same bytes. A model may send
    # half a surrogate pair, which has no bytes of its own.
    raw = [part.encode("utf-8", "surrogatepass") for part in parts]
    text = b"".join(b"%d:%b" % (len(part), part) for part in raw)
    digest = base64.b32encode(hashlib.sha256(text).digest()).decode().lower()
    return kind + digest[:_DIGEST_CHARACTERS]
