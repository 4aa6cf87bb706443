"""Rehearsing conversations on the real ledger and gate; model and tools answer as recorded.

For each conversation a driver sends the user's messages when the recording has them, and waits
until the model has answered and all its calls are settled. It can be killed anywhere: every fact it
appends has a slot of its own, so a second start resumes it. A start in the same workspace with
another file, policy or reviewer would answer from facts of the first: `refuse_other` detects that
before anything is recorded.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.consumers.model import with_bytes
from ayes.consumers.pending_view import changes
from ayes.ledger.call import Call
from ayes.ledger.clients.client import same_content
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.projections.formats import openai_chat
from ayes.projections.formats.conversation import read_conversations, refused
from ayes.projections.history import history
from ayes.projections.pending import Entry
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import (
    AlreadyDecided,
    AlreadyFilled,
    BadFile,
    BadInput,
    DeadlinePassed,
    NotOpen,
)
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import ROOT, Slot, ThreadRef, policies
from bench.rehearsal.recorded import (
    PROVIDER,
    Exchange,
    Recording,
    message_id,
    recorded_spec,
    recording,
)
from bench.rehearsal.scripted_reviewer import Script, vote

_log: Final = get_logger("bench.rehearsal.rehearse")

#: Conversations that run at the same time.
AT_ONCE: Final = 64
#: After this long without a fact, it is reported that calls wait for people.
QUIET_S: Final = 3.0


class Summary(Struct, frozen=True):
    """The result. `gated`, `approved` and `denied` count calls that people were asked about."""

    conversations: int = 0
    calls: int = 0
    gated: int = 0
    approved: int = 0
    denied: int = 0
    #: Calls that are closed, whether they ran or not.
    finished: int = 0
    #: Conversations whose history is written as the messages of the file.
    identical: int = 0
    different: int = 0
    #: Conversations of the file that cannot be rehearsed.
    skipped: int = 0
    facts: int = 0
    seconds: float = 0.0


#: The messages that a conversation's history must be written as: those of the file.
type Expected = list[dict[str, Any]]


def read_recordings(
    path: str, skipped: Callable[[BadFile], None] = refused
) -> dict[str, tuple[Expected, Recording]]:
    """Read and check a whole file, by conversation id.

    Args:
        skipped: given the mistake of each bad conversation, which is left out if it returns.

    Raises:
        BadFile: with the line of the first mistake; nothing was recorded.
    """
    found: dict[str, tuple[Expected, Recording]] = {}
    for one in read_conversations(path, skipped):
        try:
            found[one.id] = one.messages, recording(one.id, one.steps, path, one.place)
        except BadFile as wrong:
            skipped(wrong)
    return found


async def rehearse(
    service: Ledger,
    workspace: str,
    recorded: Mapping[str, tuple[Expected, Recording]],
    *,
    progress: Callable[[int], None] = lambda _done: None,
    stalled: Callable[[int], None] = lambda _waiting: None,
    quiet_s: float = QUIET_S,
) -> Summary:
    """Drive every conversation to its end.

    Args:
        progress: called with the number of conversations that have ended.
        stalled: called with the number of pending calls if nothing was recorded for `quiet_s`.

    Raises:
        AlreadyFilled: a thread of that name holds another conversation.
    """
    begun = time.monotonic()
    tools = {tool for _, one in recorded.values() for tool in one.tools}
    refs = {tool: await service.declare(workspace, recorded_spec(tool)) for tool in sorted(tools)}
    ended: list[Summary] = []
    room = asyncio.Semaphore(AT_ONCE)

    async def drive(expected: Expected, found: Recording, facts: "_FactsByTurn") -> None:
        async with room:
            await _drive(service, ThreadRef(workspace, found.id), found, refs, facts)
            ended.append(await _result(service, ThreadRef(workspace, found.id), expected))
            progress(len(ended))

    async with _watching(service, workspace) as facts:
        noticing = asyncio.create_task(_notice(facts, stalled, quiet_s))
        try:
            async with asyncio.TaskGroup() as drivers:
                for expected, found in recorded.values():
                    drivers.create_task(drive(expected, found, facts))
        finally:
            noticing.cancel()
            await asyncio.gather(noticing, return_exceptions=True)
    return _total(ended, time.monotonic() - begun)


async def refuse_other(
    service: Ledger,
    workspace: str,
    recorded: Mapping[str, tuple[Expected, Recording]],
    script: Script,
    policy: str | None,
) -> None:
    """Refuse to resume an earlier rehearsal with another file, policy or reviewer.

    Args:
        policy: the text that is about to be applied; `None` if the one in force stays.

    Raises:
        AlreadyFilled: the threads hold facts that this rehearsal would not record.
    """
    if await service.log.latest(f"{ROOT}.{workspace}.*.opened") is None:
        return
    applied = await service.read(policies(workspace))
    texts = {
        int(fact.slot.tail[1]): fact.event.text
        for fact in applied
        if isinstance(fact.event, e.PolicyApplied)
    }
    wanted = texts.get(max(texts, default=0), "") if policy is None else policy
    same = frozenset(version for version, text in {0: "", **texts}.items() if text == wanted)
    for _, found in recorded.values():
        ref = ThreadRef(workspace, found.id)
        thread = thread_of(ref, await service.read(ref))
        if other := _other(thread, found, script, same):
            raise AlreadyFilled(
                f"{ref} was rehearsed before, and {other}. Choose another workspace with -w."
            )


def _other(thread: Thread, found: Recording, script: Script, versions: frozenset[int]) -> str:
    """The first fact that this rehearsal would not record, in words; empty if there is none."""
    replies = [one for one in found.exchanges if one.reply is not None]
    for number, turn in thread.turns.items():
        said = replies[number - 1].reply if number <= len(replies) else None
        if turn.reply is not None and (said is None or turn.reply.parts != said.parts):
            return f"turn {number} is not as in the file"
    for call in thread.calls.values():
        if other := _other_call(call, found, script, versions):
            return other
    return ""


def _other_call(call: Call, found: Recording, script: Script, versions: frozenset[int]) -> str:
    for fact in (call.gated, call.decided):
        event = fact.event if fact else None
        if (
            isinstance(event, e.ApprovalRequested | e.Approved | e.Denied)
            and not event.organisation
            and event.policy_version not in versions
        ):
            judged = f"{call.ref} was judged by version {event.policy_version} of the policy"
            return f"{judged}, which is another one"
    if call.requested is None:
        return ""
    says = vote(script, call.wish.tool)
    voted = next((one.event for one in call.votes if one.slot.tail[3] == script.name), None)
    if isinstance(voted, e.Voted) and (
        says is None
        or (voted.verdict, voted.arguments, voted.answer, voted.is_error)
        != (says.verdict, says.arguments, says.answer, says.is_error)
    ):
        return f"{script.name} voted otherwise on {call.ref}: {voted.verdict}"
    decided = call.decided.event if call.decided else None
    by_people = getattr(decided, "ground", "people") == "people" and getattr(decided, "voters", ())
    if says is not None and by_people and not isinstance(decided, _COMES_TO[says.verdict]):
        return f"{call.ref} was {call.status}, where this reviewer says {says.verdict}"
    ended = call.finished.event if call.finished else None
    output = found.outputs.get(call.ref.call)
    if isinstance(ended, e.ToolReturned) and (output is None or ended.output != output.text):
        return f"{call.ref} returned another output than in the file"
    return ""


_COMES_TO: Final[dict[str, type[e.Event]]] = {
    "approve": e.Approved,
    "deny": e.Denied,
    "answer": e.Answered,
}


async def review(reviewer: Ledger, workspace: str, script: Script) -> None:
    """Vote on all pending calls of the workspace according to the script, for ever."""
    async with aclosing(changes(reviewer)) as coming:
        async for entry in (entry async for changed in coming for _, entry in changed):
            if not isinstance(entry, Entry) or entry.workspace != workspace:
                continue
            says = vote(script, entry.tool)
            if says is None:
                continue
            # Decided meanwhile, or voted on before a restart. A vote that is not allowed must fail
            # here: nobody else would vote, and the rehearsal would wait for ever.
            with suppress(AlreadyDecided, AlreadyFilled, NotOpen, DeadlinePassed):
                typed = entry.tool if says.verdict == "approve" else ""
                await reviewer.reviewer(script.name).vote(entry.ref, replace(says, typed=typed))


#: A thread and the number of one of its turns; `None` for facts outside of turns.
type _Turn = tuple[ThreadRef, int | None]


class _FactsByTurn:
    """The facts of each turn and its calls, and a way to wait for its end."""

    def __init__(self) -> None:
        self._turns: defaultdict[_Turn, list[Fact]] = defaultdict(list)
        self._grown: defaultdict[_Turn, asyncio.Event] = defaultdict(asyncio.Event)
        self.count = 0

    @property
    def waiting(self) -> int:
        """The number of pending calls."""
        threads = (thread_of(ref, facts) for (ref, _turn), facts in self._turns.items())
        calls = (call for thread in threads for call in thread.calls.values())
        return sum(call.status is Status.PENDING for call in calls)

    def add(self, fact: Fact) -> None:
        self.count += 1
        turn = (fact.slot.thread_ref, _turn_of(fact.slot))
        self._turns[turn].append(fact)
        self._grown[turn].set()

    async def until_over(self, ref: ThreadRef, turn: int) -> None:
        """Wait until the model has replied in that turn and all its calls are settled."""
        while not _is_over(thread_of(ref, self._turns[ref, turn]), turn):
            self._grown[ref, turn].clear()
            await self._grown[ref, turn].wait()


def _turn_of(slot: Slot) -> int | None:
    """The turn of the facts in this slot; `None` if they are outside of turns."""
    if slot.tail[0] == "turn":
        return int(slot.tail[1])
    call = slot.call_ref
    return call.wish[0] if call and call.wish else None


@asynccontextmanager
async def _watching(service: Ledger, workspace: str) -> AsyncGenerator[_FactsByTurn]:
    by_turn = _FactsByTurn()

    async def watch() -> None:
        async with aclosing(service.watch(1, f"{ROOT}.{workspace}.>")) as facts:
            async for fact in facts:
                if fact.slot.thread:
                    by_turn.add(fact)

    watching = asyncio.create_task(watch())
    try:
        yield by_turn
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _notice(facts: _FactsByTurn, stalled: Callable[[int], None], quiet_s: float) -> None:
    """Report each silence in which calls are pending, once: perhaps nobody will decide them."""
    reported = 0
    while True:
        before = facts.count
        await asyncio.sleep(quiet_s)
        if facts.count == before != reported and (waiting := facts.waiting):
            stalled(waiting)
            reported = before


async def _drive(
    service: Ledger,
    ref: ThreadRef,
    found: Recording,
    tools: Mapping[str, e.ToolRef],
    facts: _FactsByTurn,
) -> None:
    """Start or resume one conversation, and drive it to its end."""
    opened = e.ThreadOpened(
        requester="recorded-user",
        agent=PROVIDER,
        model=f"{PROVIDER}:{found.id}",
        tools=tuple(tools[tool] for tool in found.tools),
        max_turns=found.turns,
    )
    first = await service.try_append(ref.opened, opened)
    if first is not None and not _is_same(opened, first.event):
        raise AlreadyFilled(
            f"thread {ref} exists and is not a rehearsal of this {found.id}. Choose another "
            "workspace with -w."
        )
    turn = 0
    for place, exchange in enumerate(found.exchanges):
        await _say(service, ref, exchange, place)
        if exchange.reply is not None:
            turn += 1
            await facts.until_over(ref, turn)


def _is_same(opened: e.ThreadOpened, there: object) -> bool:
    """Whether a thread was opened for this recording: another one of the same name has other turns
    or tools.
    """
    return isinstance(there, e.ThreadOpened) and all(
        getattr(there, field) == getattr(opened, field) for field in ("model", "tools", "max_turns")
    )


async def _say(service: Ledger, ref: ThreadRef, exchange: Exchange, place: int) -> None:
    for number, said in enumerate(exchange.said):
        slot = ref.said(message_id(place, number))
        event = e.Said(role=said.role, text=said.text)
        first = await service.try_append(slot, event)
        if first is not None and not same_content(first.event, event):
            raise AlreadyFilled(
                f"{slot.subject} differs from the recording. Choose another workspace with -w."
            )


def _is_over(thread: Thread, turn: int) -> bool:
    taken = thread.turns.get(turn)
    if taken is None or taken.replied is None:
        return False
    if isinstance(taken.replied.event, e.ModelFailed):
        raise BadInput(f"{thread.ref}, turn {turn}: {taken.replied.event.error}")
    return not thread.unsettled(turn)


async def _result(service: Ledger, ref: ThreadRef, expected: Expected) -> Summary:
    """Read the whole thread back from the ledger and compare it with the recording."""
    facts = await service.read(ref)
    thread = thread_of(ref, facts)
    entries = await with_bytes(service, ref, history(thread).entries)
    same = openai_chat.write(entries)["messages"] == expected
    calls: Sequence[Call] = tuple(thread.calls.values())
    gated = [call for call in calls if call.gated is not None]
    return Summary(
        conversations=1,
        calls=len(calls),
        gated=len(gated),
        approved=sum(_decided(call, e.Approved) for call in gated),
        denied=sum(_decided(call, e.Denied) for call in gated),
        finished=sum(call.finished is not None for call in calls),
        identical=int(same),
        different=int(not same),
        facts=len(facts),
    )


def _decided(call: Call, kind: type[e.Event]) -> bool:
    return call.decided is not None and isinstance(call.decided.event, kind)


def _total(ended: Sequence[Summary], seconds: float) -> Summary:
    counts = {
        field: sum(getattr(one, field) for one in ended)
        for field in Summary.__struct_fields__
        if field != "seconds"
    }
    return Summary(**counts, seconds=round(seconds, 3))
