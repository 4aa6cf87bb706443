"""Names of calls: the thread and the call id, from what a framework gives.

    given id            ─► itself, if it can be part of a subject; else `h` and a digest of it
    its name is taken   ─► `h` and a digest of the id, the tool and its arguments
    in a later turn     ─► the same, with the number of such calls before it in the conversation
    no id               ─► `d` and a digest of the tool and its arguments
    its call has ended  ─► the same with `-2`, `-3`, ... at the end

The same call must have the same name after a crash, so nothing here is random. Two different calls
never share a name:

1. An id that looks like a name made here is itself replaced by its digest, so a client cannot
   choose the name of another call.
2. A name that holds another call is not used. Some servers give `call_0` in every turn.
3. An id that comes again in a later turn, with the same tool and arguments, is another call. The
   turn is known by the calls before it in the conversation, which are the same after a resume.
4. Without an id, two identical calls are one until the first has ended, and then the next one is a
   call of its own.

The tool's version is no part of a name. A new release that changes a description must not turn a
call that ran into another one, which would run again. But what was asked for another version and
has not started never will start, so without an id the next one is a call of its own here too.
"""

import base64
import hashlib
import re
from collections.abc import Generator
from typing import Final

from msgspec import Struct

from ayes.ledger.call import Call
from ayes.ledger.lifecycle import Status
from ayes.schemas.errors import NotOpen
from ayes.schemas.ids import is_token

#: 200 bits of a SHA-256, as lower-case base32.
_DIGEST_CHARACTERS: Final = 40
#: The forms of names that are made here.
_MADE: Final = re.compile(r"[dh][a-z2-7]{40}(-[0-9]+)?", re.ASCII)
#: The call may still be started, if the tool is as it was when it was asked for.
_NOT_STARTED: Final = frozenset({Status.REQUESTED, Status.PENDING, Status.APPROVED})
#: The call runs, or nobody knows whether it has run.
_STARTED: Final = frozenset({Status.RUNNING, Status.IN_DOUBT})


class AskedCall(Struct, frozen=True):
    """A tool call as a framework gives it. Everything in it is text from outside."""

    #: The framework's id of the conversation.
    thread: str
    #: The framework's or the provider's id of the call; empty if there is none.
    call_id: str
    tool: str
    #: Raw JSON text.
    arguments: str
    #: How many calls with this id, tool and arguments earlier turns of the conversation have. None:
    #: the framework does not say, so the call cannot be told from one of an earlier turn.
    earlier: int | None = None


def thread_name(given: str) -> str:
    """The thread for a conversation's id: itself if it fits, else `h` and a digest of it."""
    return given if _is_kept(given) else _digest("h", given)


def search(asked: AskedCall) -> Generator[str, bool, str]:
    """Find the name of a call: yields names to look at, is sent whether each may be this call's
    (`may_be`), and returns the name.

    Raises:
        NotOpen: another call holds the name that nothing but this one has.
    """
    if asked.call_id:
        for name in id_names(asked):
            if (yield name):
                return name
        raise NotOpen(
            f"the names of the call {asked.call_id!r} are taken by other calls of this thread. "
            "Give it another id."
        )
    # Calls of one name end in the order of their numbers, so the first that may be this one is
    # found in few looks.
    passed, found = 0, 1
    while not (yield numbered(asked, found)):
        passed, found = found, found * 2
    while found - passed > 1:
        middle = (passed + found) // 2
        if (yield numbered(asked, middle)):
            found = middle
        else:
            passed = middle
    return numbered(asked, found)


def id_names(asked: AskedCall) -> tuple[str, ...]:
    """The names that a call with an id may have, in the order in which they are tried."""
    if asked.earlier:
        number = str(asked.earlier)
        return (_digest("h", asked.call_id, asked.tool, asked.arguments, number),)
    first = asked.call_id if _is_kept(asked.call_id) else _digest("h", asked.call_id)
    return first, _digest("h", asked.call_id, asked.tool, asked.arguments)


def numbered(asked: AskedCall, number: int) -> str:
    """The name of a call without an id."""
    first = _digest("d", asked.tool, asked.arguments)
    return first if number == 1 else f"{first}-{number}"


def may_be(asked: AskedCall, recorded: Call, version: str) -> bool:
    """Whether the call recorded under a name is this one, or the name is free.

    Args:
        version: of the tool as it is declared now.
    """
    if recorded.requested is None:
        return not recorded.facts
    wish = recorded.wish
    if (wish.tool, wish.arguments) != (asked.tool, asked.arguments):
        return False
    if asked.call_id or recorded.status in _STARTED:
        return True
    return recorded.status in _NOT_STARTED and wish.tool_version == version


def has_ended(call: Call) -> bool:
    """Whether a call was requested, and goes on no more."""
    return call.status not in {Status.UNKNOWN, *_NOT_STARTED, *_STARTED}


def _is_kept(given: str) -> bool:
    return is_token(given) and not _MADE.fullmatch(given)


def _digest(kind: str, *parts: str) -> str:
    # Lengths before the parts, so that no two lists of parts have the same bytes. A model may send
    # half a surrogate pair, which has no bytes of its own.
    raw = [part.encode("utf-8", "surrogatepass") for part in parts]
    text = b"".join(b"%d:%b" % (len(part), part) for part in raw)
    digest = base64.b32encode(hashlib.sha256(text).digest()).decode().lower()
    return kind + digest[:_DIGEST_CHARACTERS]
