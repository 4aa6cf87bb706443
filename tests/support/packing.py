"""Packs the threads of a log, as a packer would, and fills again what they left."""

from msgspec.structs import replace

from ayes.ledger import packs
from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.log import EventLog, RawMessage, Recorded
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import streams
from ayes.ledger.subscriptions import LEDGER
from ayes.schemas import events as e
from ayes.schemas.codec import encode
from ayes.schemas.ids import new_id
from ayes.schemas.slots import ROOT, Slot, ThreadRef, stops


async def let_remove(port: EventLog) -> None:
    """Make the empty log anew, so that facts may be removed from it. No worker is waited for."""
    if isinstance(port, JetStream):
        there = (await port.api.call(f"STREAM.INFO.{LEDGER}"))["config"]
        await port.api.call(f"STREAM.DELETE.{LEDGER}", {})
        declared = streams(there["num_replicas"], packed=True)[LEDGER]
        config = declared | {"name": LEDGER, "max_bytes": there["max_bytes"]}
        await port.api.call(f"STREAM.CREATE.{LEDGER}", config)
        port._is_packed = None


async def pack(ledger: Ledger, thread: ThreadRef) -> int:
    """Pack what may be packed; returns the number of the thread's last pack."""
    subjects = (thread.subjects, thread.packs, *stops(thread.workspace))
    found = await ledger.log.read_few(*subjects)
    assert found is not None
    there = sorted((one for one in found if packs.number_of(one.subject)), key=lambda one: one.seq)
    last = packs.pack_in(there[-1]) if there else None
    new = packs.packs_of(packs.packable(thread, found), last)
    for number, one in enumerate(new, len(there) + 1):
        event = ledger.with_envelope(one)
        answer = await ledger.log.append(thread.packed(number), encode(event), event.id)
        assert isinstance(answer, Recorded)
    return len(there) + len(new)


async def in_stream(port: EventLog) -> list[RawMessage]:
    """What the stream itself has."""
    if isinstance(port, JetStream):
        return [one async for page in port.in_stream() for one in page]
    assert isinstance(port, Memory)
    return [port._raw[place] for place in port._places(f"{ROOT}.>")]


async def removed(ledger: Ledger, *threads: ThreadRef) -> None:
    """Pack what may be packed of these threads, and remove it."""
    for thread in threads:
        for number in range(1, await pack(ledger, thread) + 1):
            await ledger.log.remove(thread, number)


async def refill(port: EventLog, slot: Slot, event: e.Event) -> int:
    """Fill a slot past the condition of appends; returns the number of the fact."""
    raw = encode(replace(event, id=new_id()))
    if isinstance(port, JetStream):
        ack = await port.api.publish(slot.subject, raw)
        assert ack.error is None, ack.error
        return ack.seq
    assert isinstance(port, Memory)
    assert slot.subject not in {one.subject for one in await in_stream(port)}
    return await port._record(slot.subject, raw)
