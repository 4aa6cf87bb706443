"""Which calls are in doubt: read from the log, with an index so that not all of it is read.

The bucket `running` has five kinds of keys:

* `<workspace>.<thread>.<call>`: a call that may be in doubt;
* `_void.<workspace>.<thread>.<call>`: a call with a void start or result, and why it is void. It
  stays for `VOID_S`, so that an alarm ends (docs/decisions/0059);
* `_upto`: the fact up to which the log was examined for such calls;
* `_renewed.<workspace>.<thread>.<call>`: written by the service that runs it, to renew its claim;
* `_channel.<name>`: a channel of notices that fails (channels.py). This file skips these keys.

A reader takes the calls of the index, adds those that the facts after `_upto` name, reads all of
them and lets the facts decide (`projections/doubt.py`). So the result is that of the whole log,
however old the index is. The queue's worker alone writes the index (`keep_index`). It skips a call
that was claimed a moment ago, so that short runs cost nothing here.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from datetime import datetime
from itertools import batched
from operator import attrgetter
from typing import Final

from msgspec import Struct

from ayes.ledger import validity
from ayes.ledger.call import Call
from ayes.ledger.clients.services import CHANNEL, RENEW_AFTER_S, RENEWED, Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Written
from ayes.ledger.validity import call_of
from ayes.projections import pending
from ayes.projections.doubt import SUBJECTS, CallInDoubt, doubt_of, opens
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadId, BadSlot, Unavailable
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef, matches

_log: Final = get_logger("ayes.consumers.doubt")

#: How often the queue's worker brings the index up to date.
EVERY_S: Final = 30.0
#: The value of an entry, and the key of the position.
_FOUND: Final = b"claimed"
_UPTO: Final = "_upto"
_VOID: Final = "_void."
#: How long a void start or result is an alarm: a week.
VOID_S: Final = 7 * 86_400.0
#: Facts after which a long examination of the log saves the index.
_SAVE_EVERY: Final = 50_000
#: Calls read with one request.
_TOGETHER: Final = 50


class _Index(Struct):
    """The calls that may be in doubt, by key, as of the fact `upto`."""

    upto: int
    entries: dict[str, Written]
    renewals: dict[str, Written]
    #: The calls after `entries`, with the number and the time of the fact that opened each.
    opened: dict[str, tuple[int, datetime]]
    #: The calls with void starts or results, and those with starts or results after `upto`.
    void: dict[str, Written]
    ran: dict[str, None]


async def in_doubt(ledger: Ledger, workspace: str = "") -> list[CallInDoubt]:
    """The calls in doubt of one workspace, or of all: those first that are so the longest.

    Raises:
        BrokerRefused: the broker has no bucket `running`. `ayes up` and `ayes setup` create it.
    """
    found = [doubt for _, doubt in await claimed(ledger, workspace) if doubt is not None]
    return sorted(found, key=attrgetter("since", "workspace", "thread", "call"))


async def claimed(ledger: Ledger, workspace: str = "") -> list[tuple[Call, CallInDoubt | None]]:
    """The calls in doubt, each with its doubt; and those that run with a lease, which services
    renew.

    Raises:
        BrokerRefused: as of `in_doubt`.
    """
    index = await _load(ledger)
    async for _ in _examine(ledger, index):
        pass
    now = await ledger.log.clock()
    keys = dict.fromkeys((*index.entries, *index.opened))
    found: list[tuple[Call, CallInDoubt | None]] = []
    async for call in _calls(ledger, [key for key in keys if _is_of(workspace, key)]):
        renewal = index.renewals.get(pending.key(call.ref))
        doubt = doubt_of(call, renewal.at if renewal else None, now)
        if doubt is not None or call.status is Status.RUNNING:
            found.append((call, doubt))
    return found


async def void_runs(ledger: Ledger) -> dict[str, str]:
    """The calls with a void start or result that was found within `VOID_S`, as
    `workspace/thread/call`, and why it is void.

    Raises:
        BrokerRefused: as of `in_doubt`.
    """
    found = (await _load(ledger)).void
    return {key.replace(".", "/"): one.value.decode(errors="replace") for key, one in found.items()}


async def keep_index(ledger: Ledger) -> None:
    """Bring the index up to date, for ever."""
    while True:
        try:
            await update_index(ledger)
        except Unavailable as problem:
            _log.warning("the index of calls in doubt is not updated", problem=str(problem))
        await asyncio.sleep(EVERY_S)


async def update_index(ledger: Ledger) -> None:
    index = await _load(ledger)
    async for _ in _examine(ledger, index):
        await _save(ledger, index)


async def _load(ledger: Ledger) -> _Index:
    written = await ledger.log.running.written()
    upto = written.pop(_UPTO, None)
    for key in [*written]:
        if key.startswith(CHANNEL):
            del written[key]
    renewals, void = (
        {key.removeprefix(kind): written.pop(key) for key in [*written] if key.startswith(kind)}
        for kind in (RENEWED, _VOID)
    )
    at = int(upto.value) if upto and upto.value.isdigit() else 0
    return _Index(at, written, renewals, {}, void, {})


async def _examine(ledger: Ledger, index: _Index) -> AsyncGenerator[None]:
    """Examine the facts after the index; yields now and then, and at the end."""
    last = await ledger.log.last_seq()
    if last < index.upto:  # the log has lost its end since
        index.upto = 0
    end = await ledger.log.at(last) if last > index.upto else None
    if end is None:
        return
    unsaved = 0
    following = ledger.log.follow(_up_to(end.subject), index.upto + 1, until_end=True)
    async with aclosing(following) as batches:
        async for facts in batches:
            for fact in facts:
                _examine_fact(index, fact)
            index.upto = facts[-1].seq
            unsaved += len(facts)
            if unsaved >= _SAVE_EVERY:
                unsaved = 0
                yield
    yield


def _up_to(last: str) -> tuple[str, ...]:
    """What to follow: `SUBJECTS`, and the subject of the log's last fact.

    A replica that is behind may answer. That it delivers the last fact shows that it is not; else
    the position stays where its facts end.
    """
    is_plain = last.isascii() and not set(last) & set("*>\\ ")
    is_followed = any(matches(one, last) for one in SUBJECTS)
    return SUBJECTS if is_followed or not is_plain else (*SUBJECTS, last)


def _examine_fact(index: _Index, fact: Fact) -> None:
    may_be, ref = opens(fact), fact.slot.call_ref
    if ref is not None:
        index.ran[pending.key(ref)] = None
    if may_be is None or ref is None:
        return
    index.opened.pop(pending.key(ref), None)
    if may_be:
        index.opened[pending.key(ref)] = fact.seq, fact.recorded_at


async def _save(ledger: Ledger, index: _Index) -> None:
    """Write the index, up to the first call that is too young to have an entry."""
    now = await ledger.log.clock()
    young = {
        key: seq
        for key, (seq, at) in index.opened.items()
        if key not in index.entries and (now - at).total_seconds() < RENEW_AFTER_S
    }
    bucket = ledger.log.running
    async for call in _calls(ledger, index.ran):
        if (found := validity.void_runs(call)) and pending.key(call.ref) not in index.void:
            await bucket.overwrite(_VOID + pending.key(call.ref), found[0].why.encode())
            _log.error("a void start or result", call=str(call.ref), why=found[0].why)
    index.ran.clear()
    for key, noted in index.void.items():
        if (now - noted.at).total_seconds() > VOID_S:
            await bucket.delete(_VOID + key, noted.revision)
    known = dict.fromkeys((*index.entries, *index.renewals, *index.opened))
    async for call in _calls(ledger, [key for key in known if key not in young]):
        key = pending.key(call.ref)
        entry, renewal = index.entries.get(key), index.renewals.get(key)
        if call.status in (Status.RUNNING, Status.IN_DOUBT):
            if entry is None:
                await bucket.overwrite(key, _FOUND)
            continue
        if entry is not None:
            await bucket.delete(key, entry.revision)
        if renewal is not None:
            await bucket.delete(f"{RENEWED}{key}", renewal.revision)
    upto = min(index.upto, *(seq - 1 for seq in young.values())) if young else index.upto
    await bucket.overwrite(_UPTO, str(upto).encode())


async def _calls(ledger: Ledger, keys: Collection[str]) -> AsyncGenerator[Call]:
    for together in batched(keys, _TOGETHER, strict=False):
        refs = [ref for key in together if (ref := _ref(key)) is not None]
        facts = await ledger.read(*refs) if refs else ()
        for ref in refs:
            yield call_of(ref, facts)


def _ref(key: str) -> CallRef | None:
    try:
        return CallRef.parse(key.replace(".", "/"))
    except (BadId, BadSlot):  # nobody can have claimed it
        return None


def _is_of(workspace: str, key: str) -> bool:
    return not workspace or key.startswith(f"{workspace}.")
