"""The model worker: asks the model when it is its turn, and records the reply.

    said ─────────────┐
    a turn's last call├──► turn.<n>.asked.1 ──► the model ──► turn.<n>.replied
    is settled ───────┘

The gate requests the tool calls of the reply (`consumers/gate.py`); the model worker cannot request
anything by itself.

The claim is the cut: the model is sent the history before `asked.1`, so the same log always gives
the same question. Asking twice does no harm, so a claim whose worker died is followed by the next
attempt; the slot `replied` takes one answer.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import compress
from typing import Any, Final, Protocol, runtime_checkable

from msgspec import Struct

from ayes.consumers.effects import Append, Effect, HandedOn, Perform
from ayes.consumers.holding import held
from ayes.consumers.live import LiveReply
from ayes.ledger import tracing
from ayes.ledger.clients.client import LedgerClient
from ayes.ledger.clients.services import Ledger
from ayes.ledger.files import fetched, with_files_kept
from ayes.ledger.judging.policies import Origin, wished
from ayes.ledger.log import Delivered
from ayes.ledger.tool_runner import format_exception
from ayes.projections.history import Entry, are_sent, digest, files_in, history, with_files
from ayes.projections.thread import Thread, Turn, thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.errors import Unavailable
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import ThreadRef
from ayes.schemas.tools import Tool

_log: Final = get_logger("ayes.consumers.model")

#: Attempts for one turn: only crashes use them up.
MAX_ATTEMPTS: Final = 3


class ModelRequest(Struct, frozen=True):
    """The input of a model."""

    thread: ThreadRef
    turn: int
    #: `provider:name`, as the thread was opened with.
    model: str
    #: With the bytes of its stored files.
    history: tuple[Entry, ...]
    tools: tuple[Tool, ...]


class ModelReply(Struct, frozen=True):
    """The answer of a model."""

    parts: tuple[e.Part, ...]
    usage: e.Usage = e.Usage()
    finish_reason: str = ""


class Model(Protocol):
    """A provider, a recording or a script. If it raises, the turn has failed."""

    async def reply(self, question: ModelRequest) -> ModelReply: ...


@runtime_checkable
class StreamingModel(Model, Protocol):
    """A model that gives its text while it answers."""

    async def stream(self, question: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """As `reply`; calls `on_text` with each piece of text. The returned reply counts."""
        ...


class Ask(Struct, frozen=True):
    """The work behind a claim."""

    thread: ThreadRef
    turn: int
    attempt: int


class ModelWorker:
    """Asks the models it has, by provider: the part of the thread's `model` before the colon.

    Args:
        login: that of a worker with some workspaces. It answers only threads whose `model` is
            `LOGIN/provider:name`, and no other worker does.
    """

    replaces = False

    def __init__(
        self, models: Mapping[str, Model], *, durable: str = "model", login: str = ""
    ) -> None:
        self.durables = (durable,)
        self._before = f"{login}/" if login else ""
        self._models = {f"{self._before}{provider}": one for provider, one in models.items()}

    async def load(self, ledger: Ledger, handed: Delivered) -> Thread:
        assert isinstance(handed, Fact)
        ref = handed.slot.thread_ref
        thread = thread_of(ref, await ledger.read(ref, must_include=handed.slot))
        last = thread.turns.get(thread.latest)
        if thread.is_model_due or (last is not None and last.replied is None):
            await _check_not_stopped(ledger, thread)
        return thread

    def decide(self, seen: Thread, handed: Delivered) -> Sequence[Effect[Ask]]:
        thread = seen
        opened = thread.opened.event if thread.opened else None
        if not isinstance(opened, e.ThreadOpened) or _provider(opened.model) not in self._models:
            return ()
        last = thread.turns.get(thread.latest)
        if last is not None and last.replied is None:
            return _asked_again(thread, last, handed)
        if not thread.is_model_due:
            return ()
        return [_ask(thread, opened.model, thread.latest + 1, attempt=1)]

    async def execute(self, ledger: Ledger, work: Ask) -> Append:
        asked = work.thread.asked(work.turn, work.attempt)
        thread = thread_of(work.thread, await ledger.read(work.thread, must_include=asked))
        opened = thread.opened.event if thread.opened else None
        assert isinstance(opened, e.ThreadOpened)
        slot = work.thread.replied(work.turn)
        await _check_not_stopped(ledger, thread)
        above = (await ledger.with_chain(Origin(thread.opened))).chain
        if above.over:  # what it asked for would be withdrawn, turn after turn
            return Append(slot, e.ModelFailed(error=above.over, attempt=work.attempt))
        try:
            entries = history(thread, before_turn=work.turn).entries
            tools = [
                await ledger.tool(work.thread.workspace, one.tool, one.version)
                for one in opened.tools
            ]
            sent = await with_bytes(ledger, work.thread, entries)
            name = opened.model.removeprefix(self._before)
            question = ModelRequest(work.thread, work.turn, name, sent, tuple(tools))
            model = self._models[_provider(opened.model)]
            async with _replying(ledger, model, question, work) as replying:
                reply = await tracing.asking(opened.model, work.thread, replying)
            replied = await with_files_kept(
                ledger.log,
                work.thread.workspace,
                e.ModelReplied(
                    parts=reply.parts,
                    attempt=work.attempt,
                    model=opened.model,
                    usage=reply.usage,
                    finish_reason=reply.finish_reason,
                    history_digest=digest(entries),
                ),
            )
            # A reply that cannot be recorded, or whose requests cannot be, is a failed turn: asking
            # again would not help.
            for event in (replied, *(wished(opened, wish) for wish in _wishes(reply))):
                encode(ledger.with_envelope(event, replied))
        except Unavailable:
            raise  # the ledger could not be read; the next attempt may succeed
        except Exception as problem:  # noqa: BLE001 - a provider may raise anything
            _log.warning("the model gave no answer", problem=str(problem), turn=work.turn)
            return Append(
                slot, e.ModelFailed(error=format_exception(problem), attempt=work.attempt)
            )
        return Append(slot, replied)


async def _check_not_stopped(ledger: Ledger, thread: Thread) -> None:
    """Hand the delivery on while a stop covers everything that the model could wish for.

    Raises:
        HandedOn: one does.
    """
    opened = thread.opened.event if thread.opened else None
    if not thread.stops or not isinstance(opened, e.ThreadOpened):
        return
    now = await ledger.log.clock()
    for stop in thread.stops:
        if stop.holds(now) and stop.covers_thread(opened):
            raise HandedOn(held(stop, now))


async def with_bytes(
    ledger: LedgerClient, ref: ThreadRef, entries: Sequence[Entry]
) -> tuple[Entry, ...]:
    """The history of a thread as a provider is sent it: stored files with their bytes, of many
    large ones the newest (`are_sent`).

    Raises:
        Unavailable: a file cannot be read now. One that is missing or damaged is read in words.
    """
    files = files_in(entries)
    sent = are_sent(files)
    whole = await fetched(ledger.log, ref.workspace, compress(files, sent))
    places = zip(files, sent, strict=True)
    return with_files(entries, (whole.get(one, one) if is_sent else one for one, is_sent in places))


@asynccontextmanager
async def _replying(
    ledger: Ledger, model: Model, question: ModelRequest, work: Ask
) -> AsyncGenerator[Coroutine[Any, Any, ModelReply]]:
    """The model's work on its reply; followers receive its text if the model streams it, and else
    that it is being asked.
    """
    async with LiveReply.of(ledger, work.thread, work.turn, work.attempt) as live:
        if isinstance(model, StreamingModel):
            yield model.stream(question, live.publish)
        else:
            yield model.reply(question)


def _asked_again(thread: Thread, turn: Turn, handed: Delivered) -> Sequence[Effect[Ask]]:
    """The steps if the model was asked and has not answered. If this same delivery caused the
    claim, the worker that made it is dead.
    """
    claim = turn.asked[-1].event
    if (
        not isinstance(handed, Fact)
        or not isinstance(claim, e.ModelAsked)
        or claim.cause != handed.event.id
    ):
        return ()
    attempt = len(turn.asked) + 1
    if attempt > MAX_ATTEMPTS:
        failed = e.ModelFailed(
            error=f"asked {MAX_ATTEMPTS} times, and each time the worker died", attempt=attempt - 1
        )
        return [Append(thread.ref.replied(turn.number), failed)]
    return [_ask(thread, claim.model, turn.number, attempt)]


def _ask(thread: Thread, model: str, turn: int, attempt: int) -> Perform[Ask]:
    claim = Append(thread.ref.asked(turn, attempt), e.ModelAsked(model=model))
    return Perform(claim, Ask(thread.ref, turn, attempt))


def _wishes(reply: ModelReply) -> tuple[e.Wish, ...]:
    return tuple(part for part in reply.parts if isinstance(part, e.Wish))


def _provider(model: str) -> str:
    return model.partition(":")[0]
