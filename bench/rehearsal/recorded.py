"""Answering from a recording: a model and tools that repeat what was recorded.

For rehearsals: everything between the model and the tools is real. Recorded tools have no effect,
so they are declared repeatable, and a rehearsal that was killed can be resumed.

Several rehearsals may share a broker, and then its consumers. Each also receives threads of the
others and leaves them alone: they are redelivered until the process with their recording gets them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from ayes.consumers.effects import Effect, Perform
from ayes.consumers.executor import ClaimedRun, Executor, ExecutorState
from ayes.consumers.model import Ask, ModelReply, ModelRequest, ModelWorker
from ayes.consumers.tools import Registered
from ayes.consumers.worker import Reaction
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Delivered
from ayes.projections.formats import conversation as recorded
from ayes.projections.thread import Thread
from ayes.schemas import events as e
from ayes.schemas.errors import BadFile, BadInput, Unavailable
from ayes.schemas.slots import ThreadRef
from ayes.schemas.tools import ToolSpec

#: The provider of a rehearsed thread's model, and the group that runs its tools.
PROVIDER: Final = "recorded"


class Exchange(Struct, frozen=True):
    """One turn of a recording: the messages before it, the reply, the outputs of its tools."""

    said: tuple[recorded.Spoken, ...]
    #: `None` if the recording ends with messages that the model did not answer.
    reply: recorded.RecordedReply | None
    outputs: tuple[recorded.Output, ...] = ()


class Recording(Struct, frozen=True):
    """A conversation as turns. The n-th exchange with a reply is turn n."""

    id: str
    exchanges: tuple[Exchange, ...]

    @property
    def turns(self) -> int:
        return sum(one.reply is not None for one in self.exchanges)

    @property
    def outputs(self) -> dict[str, recorded.Output]:
        """The tools' outputs, by call."""
        return {
            f"{turn}-{index}": output
            for turn, one in enumerate(self.exchanges, 1)
            for index, output in enumerate(one.outputs)
        }

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(
            sorted({wish.tool for one in self.exchanges if one.reply for wish in one.reply.wishes})
        )


def recording(
    name: str,
    steps: Sequence[recorded.ConversationStep],
    path: str,
    place: str,
) -> Recording:
    """Cut a conversation into turns: one user's message before a reply, system messages only at the
    very beginning.

    Args:
        place: its place in the file at `path`.

    Raises:
        BadFile: it is not a sequence of turns, so no live conversation could go the same way.
    """

    def refuse(problem: str) -> BadFile:
        return BadFile(path, f"{place} ({name})", f"{problem} It cannot be rehearsed.")

    exchanges: list[Exchange] = []
    said: list[recorded.Spoken] = []
    for step in steps:
        match step:
            case recorded.Spoken(role):
                if said and said[-1].role == "user":
                    raise refuse(
                        "something is said after a user's message and before the model answers."
                    )
                if exchanges and exchanges[-1].outputs:
                    raise refuse("a tool's output is followed by something said, not by the model.")
                if exchanges and role == "system":
                    raise refuse("a system message is in the middle of it.")
                said.append(step)
            case recorded.RecordedReply():
                goes_on = exchanges and exchanges[-1].outputs
                if not goes_on and all(one.role != "user" for one in said):
                    raise refuse("the model speaks without having been spoken to.")
                exchanges.append(Exchange(tuple(said), step))
                said = []
            case recorded.Output():
                last = exchanges.pop()
                exchanges.append(Exchange(last.said, last.reply, (*last.outputs, step)))
    if said:
        exchanges.append(Exchange(tuple(said), None))
    return Recording(name, tuple(exchanges))


def message_id(exchange: int, number: int) -> str:
    """The id of the n-th message before an exchange's reply, both counted from 0."""
    return f"{exchange}-{number}"


def recorded_spec(tool: str) -> ToolSpec:
    """A recorded tool's contract. Any JSON object is valid as its arguments."""
    return ToolSpec(
        name=tool,
        description="Answers from a recording.",
        schema='{"type":"object"}',
        repeatable=True,
        run_by=PROVIDER,
    )


#: The durable consumers of the workers below.
DURABLES: Final = ("model-recorded", "executor-recorded")


class RecordedModel:
    """Replies in each turn of a thread as in the recording."""

    def __init__(self, recordings: Mapping[str, Recording]) -> None:
        self._replies = {
            (name, turn): one.reply
            for name, found in recordings.items()
            for turn, one in enumerate(found.exchanges, 1)
            if one.reply is not None
        }

    async def reply(self, question: ModelRequest) -> ModelReply:
        said = self._replies.get((question.thread.thread, question.turn))
        if said is None:
            raise BadInput(f"the recording of {question.thread} has no turn {question.turn}")
        return ModelReply(parts=said.parts)


class RecordedModelWorker(ModelWorker):
    """Asks the recorded model about the threads of its recordings."""

    def __init__(
        self, recordings: Mapping[str, Recording], *, durable: str = "model-recorded"
    ) -> None:
        super().__init__({PROVIDER: RecordedModel(recordings)}, durable=durable)
        self._known = frozenset(recordings)
        self._said_before = {
            (name, turn): frozenset(message_id(turn - 1, number) for number in range(len(one.said)))
            for name, found in recordings.items()
            for turn, one in enumerate(found.exchanges, 1)
        }

    async def load(self, ledger: Ledger, handed: Delivered) -> Thread:
        seen = await super().load(ledger, handed)
        if seen.ref.thread not in self._known and self.decide(seen, handed):
            raise _not_ours(seen.ref)
        return seen

    def decide(self, seen: Thread, handed: Delivered) -> Sequence[Effect[Ask]]:
        """As in the live worker, but not before all messages that precede the recorded reply."""
        return [step for step in super().decide(seen, handed) if not self._is_early(seen, step)]

    def _is_early(self, seen: Thread, step: Effect[Ask]) -> bool:
        if not isinstance(step, Perform):
            return False
        said = {fact.slot.tail[1] for fact in seen.said}
        return not self._said_before.get((seen.ref.thread, step.work.turn), frozenset()) <= said


class RecordedExecutor(Executor):
    """Returns for each call of a thread the output in the recording."""

    def __init__(
        self, recordings: Mapping[str, Recording], *, durable: str = "executor-recorded"
    ) -> None:
        self._outputs = {name: found.outputs for name, found in recordings.items()}
        tools = {tool for found in recordings.values() for tool in found.tools}
        registry = {tool: Registered(recorded_spec(tool), _never) for tool in sorted(tools)}
        super().__init__(registry, group=PROVIDER, durable=durable)
        self._known = frozenset(recordings)

    async def load(self, ledger: Ledger, handed: Delivered) -> ExecutorState:
        seen = await super().load(ledger, handed)
        call = seen.call
        ours = (
            call.requested is None or call.wish.run_by != PROVIDER or call.ref.thread in self._known
        )
        if not ours and self.decide(seen, handed):
            raise _not_ours(call.ref.thread_ref)
        return seen

    async def _outcome(
        self, _ledger: Ledger, _call: Call, work: ClaimedRun
    ) -> e.ToolReturned | e.ToolFailed:
        output = self._outputs.get(work.call.thread, {}).get(work.call.call)
        if output is None:
            return e.ToolFailed(
                error=f"the recording has no output for {work.call}", attempt=work.attempt
            )
        return e.ToolReturned(output=output.text, attempt=work.attempt)


def recorded_reactions(
    kinds: Sequence[str], recordings: Mapping[str, Recording]
) -> list[tuple[str, Reaction[Any, Any]]]:
    """The role and the reaction of each kind: `model`, `executor`."""
    made: dict[str, Callable[[Mapping[str, Recording]], Reaction[Any, Any]]] = {
        "model": RecordedModelWorker,
        "executor": RecordedExecutor,
    }
    if unknown := sorted(set(kinds) - set(made)):
        raise BadInput(f"no worker {unknown[0]!r} answers from a recording.")
    return [(kind, made[kind](recordings)) for kind in kinds]


def _not_ours(ref: ThreadRef) -> Unavailable:
    return Unavailable(f"{ref} is of another recording; a rehearsal of that one goes on with it.")


def _never(**_arguments: object) -> None:
    raise AssertionError("a recorded tool is looked up, not called")
