"""The level of a log: a program that does not know it neither reads nor writes it."""

import asyncio
from importlib.metadata import version

import pytest
from program import approvals
from stories import CALL

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats import streams
from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import Connection
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.drift import differences
from ayes.ledger.nats.streams import LEVEL, PACKED_LEVEL, described, level_of
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.server import ensure_account
from ayes.schemas.errors import NewerLog

SENTENCE = (
    f"this log is at level 99; this program (ayes {version('ayes')}) knows levels up to "
    f"{PACKED_LEVEL}: upgrade it."
)


async def at_level(store, level: str | None) -> None:
    """Set the level of the log as a newer program does; None: a log of an older program."""
    connection = Connection(Store(store).login("admin"))
    await connection.open(name="test")
    requests = Api(connection)
    await requests.start()
    stream = await streams.info(requests, f"STREAM.INFO.{LEDGER}")
    metadata = {
        key: value for key, value in stream["config"]["metadata"].items() if key != "ayes-level"
    }
    body = stream["config"] | {"metadata": metadata | ({"ayes-level": level} if level else {})}
    await requests.call(f"STREAM.UPDATE.{LEDGER}", body)
    await connection.close()


async def test_nobody_connects_to_a_log_of_an_unknown_level(store):
    """Library, worker and reviewer alike refuse it before they read or write anything. A level that
    cannot be read is not known.
    """
    await ensure_account(store, "reviewer-ana")
    await at_level(store, "99")
    for role in ("service", "reviewer-ana", "gate", "observer", "operator"):
        with pytest.raises(NewerLog, match="level 99"):
            await Ledger.connect(store, role=role).__aenter__()
    for level in ("0", "x", str(PACKED_LEVEL + 1)):
        await at_level(store, level)
        with pytest.raises(NewerLog):
            await Ledger.connect(store).__aenter__()


COMMANDS = [
    ("work", "gate"),
    ("work", "executor"),
    ("setup",),
    ("request", CALL, "refund", "{}", "--requester", "rita"),
    ("approve", CALL, "--as", "ana"),
    ("pending",),
    ("status",),
    ("doctor",),
    ("parked", "ls"),
]


async def test_each_command_refuses_a_log_of_an_unknown_level(store):
    """Services, workers, reviewers and operators are told the same sentence, and what to do."""
    await ensure_account(store, "reviewer-ana")
    await at_level(store, "99")
    ran = [asyncio.to_thread(approvals, *command, store=store) for command in COMMANDS]
    for command, ended in zip(COMMANDS, await asyncio.gather(*ran), strict=True):
        assert ended == (NewerLog.exit_code, "", f"error: {SENTENCE}\n"), command


async def test_a_log_without_a_level_is_of_the_first(store):
    """Logs of earlier versions are read and written as before; a new log says its level."""
    async with Ledger.connect(store, role="admin") as admin:
        stream = await streams.info(admin.log.api, f"STREAM.INFO.{LEDGER}")
        assert level_of(stream) == str(LEVEL)
        await at_level(store, None)
        assert differences(await described(admin.log.api)) == []
    async with Ledger.connect(store) as service:
        assert await service.log.last_seq() == 0
