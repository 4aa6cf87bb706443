"""A log whose answers are false: somebody answers in the broker's place."""

from ayes.ledger.in_memory import Memory
from ayes.ledger.log import AppendResult, Recorded, SlotTaken
from ayes.schemas.codec import encode
from ayes.schemas.events import Event
from ayes.schemas.slots import Slot


class Confirming(Memory):
    """Says `Recorded` to whoever comes second."""

    def __init__(self) -> None:
        super().__init__()
        #: By slot, what somebody else records there just before anybody does.
        self.first: dict[Slot, Event] = {}

    async def append(
        self, slot: Slot, raw: bytes, event_id: str, after: int | None = None
    ) -> AppendResult:
        if (rival := self.first.pop(slot, None)) is not None:
            await super().append(slot, encode(rival), rival.id)
        answer = await super().append(slot, raw, event_id, after)
        return Recorded(answer.first.seq) if isinstance(answer, SlotTaken) else answer
