"""Removing files that no fact names from the store (`ledger/files.py`).

A file is stored before its fact is recorded, so what was stored lately stays. Whoever records a
fact an hour or more after its files looks whether they are still there, and stores them again.
"""

import re
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final

from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import STORED
from ayes.schemas.content import PLACE
from ayes.schemas.errors import LogLost
from ayes.schemas.slots import FILES

#: In facts that this program cannot read too.
_NAMED: Final = re.compile(rb'"place"\s*:\s*"(%s)"' % PLACE.encode())


async def sweep(log: JetStream, older_than: timedelta) -> int:
    """Remove the files that no fact names, and that were stored before that long ago. Returns how
    many there were.

    Args:
        log: on the login of the administrator.

    Raises:
        LogLost: a fact is missing, so nobody can say which files are named.
        Unavailable: the broker does not answer, or does not allow it. A retry is safe.
    """
    since = await log.clock() - older_than
    until = await log.first_since(since, f"{FILES}.>", STORED)
    named, seq, removed = set[str](), 1, 0
    for place in sorted(await _places(log)):
        # What was recorded meanwhile counts too: up to the leader's last fact of this moment.
        while seq <= await log.last_seq():
            async with aclosing(log.raw(seq, until_end=True)) as batches:
                async for batch in batches:
                    for raw in batch:
                        if raw.seq != seq:
                            raise LogLost(f"fact {seq} is missing in the log: `ayes doctor`.")
                        seq += 1
                        workspace = raw.subject.split(".")[1]
                        for found in _NAMED.findall(raw.data):
                            named.add(f"{workspace}.{found.decode()}")
        if place not in named:
            answer = await log.api.call(
                f"STREAM.PURGE.{STORED}", {"filter": f"{FILES}.{place}.*", "seq": until}
            )
            removed += int(answer["purged"] > 0)
    return removed


async def _state(log: JetStream, **asked: object) -> dict[str, Any]:
    stream = await log.api.call(f"STREAM.INFO.{STORED}", asked, repeat=True)
    state: dict[str, Any] = stream["state"]
    return state


async def _places(log: JetStream) -> set[str]:
    """The stored files, as `<workspace>.<role>.<id>`."""
    found, offset = set[str](), 0
    pieces = f"{FILES}.*.*.*.*"
    while subjects := (await _state(log, subjects_filter=pieces, offset=offset)).get("subjects"):
        offset += len(subjects)
        found |= {one.removeprefix(f"{FILES}.").rpartition(".")[0] for one in subjects}
    return found
