"""Forgetting: what was sealed in a thread is made unreadable by destroying the thread's key.

    1  ForgettingBegan is recorded    from here on nothing is sealed or opened in the thread
    2  the key is destroyed           in five steps of its own (`ledger/thread_keys.py`)
    3  Forgotten is recorded

A crash between any two of them leaves what the next run finishes, of this thread or of another one.
"""

import re
from typing import Final

from msgspec import Struct

from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.thread_keys import ThreadKeys
from ayes.ledger.validity import call_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadInput
from ayes.schemas.sealed import TOKEN
from ayes.schemas.slots import FORGETTING, KEYED, ThreadRef

#: What forgetting leaves, for whoever is responsible for the rest.
STAYS: Final = (
    "names in subjects: workspace, thread and call, and reviewers' names in their votes",
    "times, digests, and that a value was sealed, with its length to 32 bytes",
    "the requester, the labels and all arguments that are not sealed",
    "what was written in messages, reasons, comments, answers and outputs",
    "copies with model providers, and ids with those whom the tools called",
    "notices, chat messages and webhooks that were sent",
    "lakes, exports and backups of the log, which have the same tokens",
    "backups of the keys: until the last one with this key is gone, the thread can be read from it",
)
#: The statuses of a call that may still start.
_OPEN: Final = (Status.REQUESTED, Status.PENDING, Status.APPROVED)
#: Names of threads and workspaces that look like a mail address, or like a telephone number.
_PERSONAL: Final = re.compile(
    r"(?i).*[a-z0-9][_-]at[_-][a-z0-9].*|.*[_-](?:com|net|org)|(?:00|[1-9])(?:[_-]?[0-9]){9,14}"
)


class ForgottenThread(Struct, frozen=True):
    """A thread whose key is destroyed."""

    thread: str
    #: The calls with sealed values that will not run any more: they are declined once approved.
    open: tuple[str, ...]
    #: Those that run, and hold what they have opened until they end.
    running: tuple[str, ...]
    stays: tuple[str, ...] = STAYS


async def forget(ledger: Ledger, keys: ThreadKeys, thread: ThreadRef) -> ForgottenThread:
    """Destroy the key of a thread. Safe to repeat, after a crash at any step too.

    Args:
        ledger: with the operator's rights.

    Raises:
        BadInput: nothing is sealed in the thread, or this is not the directory of its key.
        BadFile: as of `ThreadKeys`.
    """
    keyed = await ledger.log.latest(thread.keyed.subject)
    if keyed is None:
        raise BadInput(
            f"nothing is sealed in {thread}, so there is no key to destroy. What is recorded there "
            "unsealed cannot be forgotten (docs/secrets.md). Nothing was recorded."
        )
    if not keys.knows(thread):
        raise BadInput(
            f"the key of {thread} is not in {keys.folder}. Name the directory that has it in "
            "[secrets] of the settings. Nothing was recorded."
        )
    await ledger.try_append(thread.forgetting, e.ForgettingBegan())
    await destroy_forgotten(ledger, keys)
    for one in filter(keys.knows, await _forgetting(ledger)):  # others' are elsewhere
        if await ledger.log.latest(one.forgotten.subject) is None:
            await ledger.try_append(one.forgotten, e.Forgotten())
    return await _left(ledger, thread)


async def destroy_forgotten(ledger: Ledger, keys: ThreadKeys) -> tuple[ThreadRef, ...]:
    """Destroy the keys here of all threads that are forgotten by the log, as after a backup of
    keys was restored. Returns the threads of which there was one.
    """
    forgotten = await _forgetting(ledger)
    found = tuple(one for one in forgotten if keys.holds(one))
    keys.destroy(forgotten)  # also if none is here: it finishes what a crash left
    return found


async def personal_names(ledger: Ledger) -> list[str]:
    """The threads with sealed values whose names, or those of their workspaces, look like a
    person's address or number, which forgetting leaves.
    """
    threads = [str(one) for one in _threads(await ledger.read(KEYED))]
    return [one for one in threads if any(map(_PERSONAL.fullmatch, one.split("/")))]


async def _forgetting(ledger: Ledger) -> list[ThreadRef]:
    await ledger.log.last_seq()  # as of the leader: a replica may not know it yet
    return _threads(await ledger.log.read(FORGETTING))


def _threads(facts: tuple[Fact, ...]) -> list[ThreadRef]:
    # A wildcard matches the workspace's own subjects too, which are not slots.
    return [fact.slot.thread_ref for fact in facts if fact.slot.thread]


async def _left(ledger: Ledger, thread: ThreadRef) -> ForgottenThread:
    facts = await ledger.read(thread, must_include=thread.forgetting)
    refs = dict.fromkeys(ref for fact in facts if (ref := fact.slot.call_ref) is not None)
    calls = [call_of(ref, [one for one in facts if one.slot.call_ref == ref]) for ref in refs]
    sealed = [one for one in calls if one.requested is not None and TOKEN.search(one.arguments)]
    return ForgottenThread(
        str(thread),
        tuple(str(one.ref) for one in sealed if one.status in _OPEN),
        tuple(str(one.ref) for one in sealed if one.status is Status.RUNNING),
    )
