"""Answering from a recording: a model that says again what it once said, and tools that give again what they gave.

For rehearsals: everything between the model and the tools is the real thing. Recorded tools have no effect, so they
are declared repeatable, and a rehearsal that was killed goes on where it stood.

Several rehearsals may share a broker, and then its consumers. Each is handed threads of the others too, and leaves
them alone: whoever has their recording is handed them in its turn.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from consumers.executor import Executor, Run
from consumers.model import Asker, Question, Reply
from consumers.steps import Append
from consumers.tools import Registered
from ledger.client import Ledger
from ledger.lifecycle import Call
from ledger.port import Handed
from projections.thread import Thread
from schemas import conversations as recorded
from schemas import events as e
from schemas.errors import BadFile, BadInput, Unavailable
from schemas.slots import ThreadRef
from schemas.tools import ToolSpec

#: What the model of a rehearsed thread is called, and who runs its tools.
PROVIDER: Final = "recorded"


class Exchange(Struct, frozen=True):
    """One turn of a recording: what was said before it, what the model answered, what its tools gave."""

    said: tuple[recorded.Spoken, ...]
    #: None at the end: something was said, and the model was not asked again.
    reply: recorded.Reply | None
    outputs: tuple[str, ...] = ()


class Recording(Struct, frozen=True):
    """A conversation as turns. The n-th exchange with a reply is turn n."""

    id: str
    exchanges: tuple[Exchange, ...]

    @property
    def turns(self) -> int:
        return sum(one.reply is not None for one in self.exchanges)

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(sorted({wish.tool for one in self.exchanges if one.reply for wish in one.reply.wishes}))


def recording(conversation: recorded.Conversation, path: str, line: int) -> Recording:
    """Cut a conversation into turns.

    Raises:
        BadFile: it did not go turn by turn, so no live conversation could go the same way again.
    """

    def refuse(problem: str) -> BadFile:
        return BadFile(path, f"line {line} ({conversation.id})", f"{problem} It cannot be rehearsed.")

    exchanges: list[Exchange] = []
    said: list[recorded.Spoken] = []
    for step in conversation.steps:
        match step:
            case recorded.Spoken(role):
                if said and said[-1].role == "user":
                    raise refuse("something is said after a user's message and before the model answers.")
                if exchanges and exchanges[-1].outputs:
                    raise refuse("a tool's output is followed by something said, not by the model.")
                if exchanges and role == "system":
                    raise refuse("a system message stands in the midst of it.")
                said.append(step)
            case recorded.Reply():
                goes_on = exchanges and exchanges[-1].outputs
                if not goes_on and not (said and said[-1].role == "user"):
                    raise refuse("the model speaks without having been spoken to.")
                exchanges.append(Exchange(tuple(said), step))
                said = []
            case recorded.Output(text=text):
                last = exchanges.pop()
                exchanges.append(Exchange(last.said, last.reply, (*last.outputs, text)))
    if said:
        exchanges.append(Exchange(tuple(said), None))
    return Recording(conversation.id, tuple(exchanges))


def recorded_spec(tool: str) -> ToolSpec:
    """A recorded tool's contract: the arguments are whatever the recording has, so any object fits."""
    return ToolSpec(
        name=tool,
        description="Answers from a recording.",
        schema='{"type":"object"}',
        repeatable=True,
        run_by=PROVIDER,
    )


class RecordedModel:
    """Says in turn n of a thread what the recording says there."""

    def __init__(self, recordings: Mapping[str, Recording]) -> None:
        self._replies = {
            (name, turn): one.reply
            for name, found in recordings.items()
            for turn, one in enumerate(found.exchanges, 1)
            if one.reply is not None
        }

    async def reply(self, question: Question) -> Reply:
        said = self._replies.get((question.thread.thread, question.turn))
        if said is None:
            raise BadInput(f"the recording of {question.thread} has no turn {question.turn}")
        return Reply(parts=said.parts)


class RecordedAsker(Asker):
    """Asks the recorded model, about the threads of its recordings."""

    def __init__(self, recordings: Mapping[str, Recording], *, durable: str = "model-recorded") -> None:
        super().__init__({PROVIDER: RecordedModel(recordings)}, durable=durable)
        self._known = frozenset(recordings)

    async def look(self, ledger: Ledger, handed: Handed) -> Thread:
        seen = await super().look(ledger, handed)
        if seen.ref.thread not in self._known and self.react(seen, handed):
            raise _not_ours(seen.ref)
        return seen


class RecordedExecutor(Executor):
    """Gives for each call of a thread what its tool gave in the recording."""

    def __init__(self, recordings: Mapping[str, Recording], *, durable: str = "executor-recorded") -> None:
        self._outputs = {
            (name, f"{turn}-{index}"): output
            for name, found in recordings.items()
            for turn, one in enumerate(found.exchanges, 1)
            for index, output in enumerate(one.outputs)
        }
        tools = {tool for found in recordings.values() for tool in found.tools}
        registry = {tool: Registered(recorded_spec(tool), _never) for tool in sorted(tools)}
        super().__init__(registry, group=PROVIDER, durable=durable)
        self._known = frozenset(recordings)

    async def look(self, ledger: Ledger, handed: Handed) -> Call:
        seen = await super().look(ledger, handed)
        ours = seen.requested is None or seen.wish.run_by != PROVIDER or seen.ref.thread in self._known
        if not ours and self.react(seen, handed):
            raise _not_ours(seen.ref.thread_ref)
        return seen

    async def do(self, ledger: Ledger, work: Run) -> Append:
        return Append(work.call.finished, self._outcome(work), otherwise=work.call.late(work.attempt))

    def _outcome(self, work: Run) -> e.ToolReturned | e.ToolFailed:
        output = self._outputs.get((work.call.thread, work.call.call))
        if output is None:
            return e.ToolFailed(error=f"the recording has no output for {work.call}", attempt=work.attempt)
        return e.ToolReturned(output=output, attempt=work.attempt)


def _not_ours(ref: ThreadRef) -> Unavailable:
    return Unavailable(f"{ref} is of another recording; a rehearsal of that one goes on with it.")


def _never(**_arguments: object) -> None:
    raise AssertionError("a recorded tool is looked up, not called")
