"""What led to a call: the last messages before it, and the model's words beside its wish."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from msgspec import Struct

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.queries import Named
from ayes.ledger.clients.services import Ledger
from ayes.projections.views.content import HeldFile, held_files, held_in
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, fact_of
from ayes.schemas.content import spoken, words
from ayes.schemas.slots import ROOT, ThreadRef

router: Final = ApiRouter(tags=["calls"])


class EarlierMessage(Struct, frozen=True):
    """A message of a conversation, or what its model wrote."""

    seq: int
    recorded_at: datetime
    #: `user`, `system`, `note` or `assistant`.
    role: str
    #: The author, if a thread has several users; of a reply the model.
    name: str
    #: Its files in words.
    text: str
    files: list[HeldFile]


class Context(Struct, frozen=True):
    #: In the order of the log: the user's last message before the call, those after it, and the
    #: model's words in the reply that wished for the call.
    messages: list[EarlierMessage]


@router.get("/calls/{workspace}/{thread}/{call}/context")
async def context(ref: Named, visit: Reading) -> Context:
    """What led to a call. Of a long conversation only the newest message is considered."""
    ledger = visit.reading
    known = await ledger.known_call(ref)
    assert known.requested, "`known_call` raises otherwise"
    said = [*_last_words(await _said(ledger, ref.thread_ref), known.requested.seq)]
    wished = await ledger.read(ref.thread_ref.replied(ref.wish[0])) if ref.wish else ()
    return Context(messages=[*said, *_replied(wished)])


async def _said(ledger: Ledger, ref: ThreadRef) -> list[Fact]:
    """The messages in the order of the log; of over 1,000 only the newest, to bound the work."""
    subjects = f"{ROOT}.{ref.workspace}.{ref.thread}.said.*"
    found = await ledger.log.read_few(subjects)
    if found is None:
        newest = await ledger.reading.latest(subjects)
        return [newest] if newest else []
    facts = (fact_of(raw.seq, raw.recorded_at, raw.subject, raw.data) for raw in found)
    return sorted(facts, key=lambda fact: fact.seq)


def _last_words(said: Iterable[Fact], before: int) -> Iterator[EarlierMessage]:
    """From the user's last message on."""
    heard = [
        EarlierMessage(
            seq=fact.seq,
            recorded_at=fact.recorded_at,
            role=fact.event.role,
            name=fact.event.name,
            text=words(fact.event.text),
            files=held_in(fact.event),
        )
        for fact in said
        if fact.seq < before and isinstance(fact.event, e.Said)
    ]
    users = [place for place, one in enumerate(heard) if one.role == "user"]
    yield from heard[users[-1] if users else -1 :]


def _replied(facts: Iterable[Fact]) -> Iterator[EarlierMessage]:
    for fact in facts:
        if isinstance(fact.event, e.ModelReplied):
            for part in fact.event.parts:
                if text := spoken(part):
                    yield EarlierMessage(
                        seq=fact.seq,
                        recorded_at=fact.recorded_at,
                        role="assistant",
                        name=fact.event.model,
                        text=text,
                        files=held_files([part] if isinstance(part, e.Media) else []),
                    )
