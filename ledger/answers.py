"""What an append answers. There are four, and only the first two mean that the fact stands."""

from msgspec import Struct

from ayes.schemas.codec import Fact


class Recorded(Struct, frozen=True):
    """The fact stands, as number `seq`."""

    seq: int


class AlreadyRecorded(Struct, frozen=True):
    """This very event stood there before: a retry, after an answer that was lost."""

    seq: int


class SlotTaken(Struct, frozen=True):
    """Another fact was first; here it is. Nothing was recorded."""

    first: Fact


class Unconfirmed(Struct, frozen=True):
    """No answer came and the slot reads empty: the fact may still arrive. Appending it again is safe."""

    why: str


type AppendResult = Recorded | AlreadyRecorded | SlotTaken | Unconfirmed
