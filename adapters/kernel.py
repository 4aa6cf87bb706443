"""What every adapter does with a tool call: request it, read the next step, claim it, run it once.

    kernel = Kernel(ledger, "shop", requester="ben")
    settled = await kernel.settle(AskedCall("order-17", "call_9", "refund", arguments), spec, run)

`settle` is the whole of it, and it may be repeated at any time, in any process: after a crash, a
resume, or by two processes at once. Whoever claims the call runs the tool, once. Everybody else
gets the recorded result, or is told that the call was started and that its result is not known.

**It fails closed.** Nothing runs unless this process holds a claim that counts. If the ledger
raises, or does not answer within `answer_s`, `settle` raises `Unavailable`, and the tool has not
run. Once it runs, its result is written down for as long as it takes.
"""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from ayes.adapters.names import AskedCall, has_ended, may_be, search, thread_name
from ayes.adapters.next_step import Answer, NextStep, Run, Say, Wait, next_step, of_earlier
from ayes.adapters.outputs import kept, output_text, recordable, with_bytes
from ayes.ledger.call import Call
from ayes.ledger.clients.services import LEASE_S, Ledger
from ayes.ledger.lifecycle import Status
from ayes.ledger.tool_runner import ToolFunction, in_a_thread
from ayes.projections import refusal_texts
from ayes.schemas import events as e
from ayes.schemas.backoff import Backoff
from ayes.schemas.errors import (
    AlreadyFilled,
    BadArguments,
    BadInput,
    BrokerAway,
    NotOpen,
)
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.toml_files import mistakes
from ayes.schemas.tools import ToolSpec

#: How long the ledger may take to answer before nothing runs.
ANSWER_S: Final = 15.0
#: The pause before a call is read again that another task or process has just taken.
_AGAIN: Final = Backoff(0.05, 1.0)
#: How long the gate may take to judge a request before the agent pauses.
_JUDGED_S: Final = 2.0

#: Runs the tool with the approved arguments, decoded.
type Runner = Callable[[dict[str, Any]], Awaitable[Any]]


class Ran(Struct, frozen=True):
    """This process ran the tool, with the arguments of the model. The result is recorded."""

    #: What the tool returned, as it is.
    value: Any


class Raised(Struct, frozen=True):
    """This process ran the tool, which raised. That is recorded; the framework may have its own
    way to tell the model.
    """

    problem: Exception


#: What became of a call: never `Run`.
type Settled = Ran | Raised | Say | Answer | Wait


class Kernel:
    """Settles the tool calls of one requester's agents in one workspace."""

    def __init__(
        self,
        ledger: Ledger,
        workspace: str,
        *,
        requester: str = "",
        agent: str = "",
        labels: Mapping[str, str] | None = None,
        expires_in_s: float | None = None,
        patience_s: float = 0.0,
        answer_s: float = ANSWER_S,
        lease_s: float = LEASE_S,
    ) -> None:
        """Bind a connection to a workspace.

        Args:
            ledger: connected in the role `service`.
            requester: as of `Ledger.request`, as are `agent`, `labels` and `expires_in_s`.
            patience_s: how long to wait in place for a decision, and for the result of a call that
                another process runs. 0: do not wait.
            answer_s: how long the ledger may take to answer before nothing runs.
            lease_s: how long this process may be silent before a call that it runs is in doubt.

        Raises:
            BadInput: a number of seconds is negative, or 0 where something must be awaited.
        """
        if patience_s < 0:
            raise BadInput(f"patience_s is {patience_s}: give a number of seconds, or 0.")
        for name, seconds in (("answer_s", answer_s), ("lease_s", lease_s)):
            if not seconds > 0:
                raise BadInput(f"{name} is {seconds}: give a number of seconds over 0.")
        self.ledger = ledger
        self.workspace = workspace
        self.requester, self.agent, self.labels = requester, agent, dict(labels or {})
        self.expires_in_s = expires_in_s
        self.patience_s, self.answer_s, self.lease_s = patience_s, answer_s, lease_s
        self._declared: dict[str, tuple[ToolSpec, e.ToolRef]] = {}

    async def settle(
        self,
        asked: AskedCall,
        spec: ToolSpec,
        run: Runner,
        *,
        output: Callable[[Any], e.Content] = output_text,
    ) -> Settled:
        """Request the call if nobody did, and run the tool if it is approved and nobody did.

        Args:
            spec: the tool as the framework has it. A changed one is declared as a new version.
            run: called at most once, and by one process only.
            output: the result as the model reads it, to be recorded; by default a string as it is,
                anything else as JSON. It may raise anything: then a summary is recorded.

        Raises:
            Unavailable: the ledger does not answer. Nothing has run; do the same again.
            Refused: the ledger does not take the call. Nothing has run.
        """
        try:
            call = await self.request(asked, spec)
        except BadArguments as problem:
            return Say(refusal_texts.bad_arguments(asked.tool, str(problem)))
        if asked.call_id and asked.earlier is None and has_ended(call):
            return of_earlier(await self._read(call))
        version = (await self.declare(spec)).version
        call = await self.wait(call)
        pauses, waited_s = _AGAIN.pauses(), 0.0
        while True:
            try:
                return await self.run(call, run, version=version, output=output)
            except (AlreadyFilled, NotOpen):
                # It was claimed or revoked meanwhile, or another task here claims it.
                if waited_s > self.answer_s:
                    raise
            pause_s = next(pauses)
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            call = await self.wait(await self.look(call.ref))

    async def run(
        self,
        call: Call,
        run: Runner,
        *,
        version: str | None = None,
        output: Callable[[Any], e.Content] = output_text,
    ) -> Settled:
        """Run the tool if the call is approved and nobody did.

        Args:
            version: of the tool as it is declared now. What was approved for another one does not
                run. None: it was asked for just now.
            run, output: as of `settle`.

        Raises:
            AlreadyFilled: somebody else has claimed it.
            NotOpen: it may not be started any more.
            Unavailable: the ledger does not answer. Nothing has run; do the same again.
        """
        match next_step(call, version):
            case Run() as approved:
                return await self._run(call, approved, run, output)
            case Answer():
                return await self._read(call)
            case other:
                return other

    async def next_step(self, asked: AskedCall, spec: ToolSpec) -> tuple[CallRef | None, NextStep]:
        """Request the call if nobody did, and say what to do with it, without running anything.

        For clients that run the tool themselves, in another program. They claim with
        `Ledger.start`. There is no reference if the arguments break the tool's schema.

        Raises:
            Unavailable: the ledger does not answer.
            Refused: as of `settle`.
        """
        try:
            call = await self.wait(await self.request(asked, spec))
        except BadArguments as problem:
            return None, Say(refusal_texts.bad_arguments(asked.tool, str(problem)))
        return call.ref, next_step(call)

    async def declare(self, spec: ToolSpec) -> e.ToolRef:
        """Declare the tool, once for each contract.

        Raises:
            BadInput: it seals values. A call is known again by its plain arguments here, of which
                its name may have a digest.
            Unavailable: the ledger does not answer.
        """
        if spec.sealed:
            raise BadInput(
                f"{spec.name} seals {spec.sealed[0]}, which no adapter can: request it with "
                "Ledger.request. Nothing was recorded."
            )
        known = self._declared.get(spec.name)
        if known is None or known[0] != spec:
            async with self.in_time("the declaration of a tool"):
                known = spec, await self.ledger.declare(self.workspace, spec)
            self._declared[spec.name] = known
        return known[1]

    async def request(
        self, asked: AskedCall, spec: ToolSpec, *, labels: Mapping[str, str] | None = None
    ) -> Call:
        """The call with all that is recorded about it; requested now if nobody did.

        Args:
            labels: of this call alone, beside those of all calls.

        Raises:
            BadArguments: they break the tool's schema. Nothing was requested.
            Unavailable: the ledger does not answer.
            Refused: as of `settle`.
        """
        tool = await self.declare(spec)
        told = self.labels | dict(labels or {})
        async with self.in_time(f"the request for {asked.tool}"):
            while True:
                found = await self._find(asked, tool)
                if found.requested is not None:
                    # The recorded call: another requester or version makes no other one.
                    return found
                try:
                    return await self.ledger.request(
                        found.ref,
                        tool,
                        asked.arguments,
                        requester=self.requester,
                        agent=self.agent,
                        labels=told or None,
                        expires_in_s=self.expires_in_s,
                    )
                except AlreadyFilled:
                    pass  # Somebody was quicker: it may be this call or another one.

    async def _find(self, asked: AskedCall, tool: e.ToolRef) -> Call:
        """The call; one without facts if nobody requested it. While one of an earlier turn goes on,
        it is that one.
        """
        for earlier in range((asked.earlier or 0) - 1, -1, -1):
            last = await self._named(replace(asked, earlier=earlier), tool)
            if last.requested is None:
                continue
            if may_be(replace(asked, call_id=""), last, tool.version):
                return last
            break
        return await self._named(asked, tool)

    async def _named(self, asked: AskedCall, tool: e.ToolRef) -> Call:
        """The call under the name that is its own."""
        thread = ThreadRef(self.workspace, thread_name(asked.thread))
        looked: dict[str, Call] = {}
        searching = search(asked)
        name = next(searching)
        while True:
            looked[name] = await self.ledger.call(thread.call(name))
            try:
                name = searching.send(may_be(asked, looked[name], tool.version))
            except StopIteration as found:
                return looked[found.value]

    async def look(self, ref: CallRef) -> Call:
        """The call as it is recorded now.

        Raises:
            UnknownCall: it was never requested.
            Unavailable: the ledger does not answer.
        """
        async with self.in_time(str(ref)):
            return await self.ledger.known_call(ref)

    async def wait(self, call: Call) -> Call:
        """Wait in place, for `patience_s` at most, while the call is undecided or runs elsewhere;
        and a moment for the gate in any case.

        Raises:
            Unavailable: the ledger does not answer.
        """
        call = await judged(self.ledger, call)
        if self.patience_s <= 0:
            return call
        return await self.ledger.until(
            call,
            lambda one: one.status is not Status.RUNNING and not isinstance(next_step(one), Wait),
            self.patience_s,
        )

    async def with_bytes(self, call: Call) -> Call:
        """The call with the bytes of the stored files in its output (`outputs.with_bytes`).

        Raises:
            Unavailable: the ledger does not answer.
        """
        async with self.in_time(f"the files of {call.ref}", "Do the same again to read them."):
            return await with_bytes(self.ledger.log, call)

    async def _read(self, call: Call) -> Say | Answer:
        """What is recorded about a call that does not run (any more)."""
        read = next_step(await self.with_bytes(call))
        assert isinstance(read, Say | Answer), "a call that ended does not run again"
        return read

    async def _run(
        self, call: Call, approved: Run, run: Runner, output: Callable[[Any], e.Content]
    ) -> Settled:
        ended: list[Ran | Raised] = []
        cancelled: list[asyncio.CancelledError] = []
        what = f"the claim of {call.ref}"
        async with self.in_time(what, "Nothing has run; do the same again.") as limit:

            async def function(**arguments: Any) -> e.Content:
                limit.reschedule(None)  # it is claimed; the tool takes as long as it takes
                try:
                    value = await run(arguments)
                except Exception as problem:
                    ended.append(Raised(problem))
                    raise
                ended.append(Ran(value))
                content = recordable(value, output)
                try:
                    return await kept(self.ledger.log, self.workspace, content)
                except asyncio.CancelledError as problem:
                    cancelled.append(problem)  # takes effect once the result is recorded
                    return content

            outcome = await self.ledger.run(call.ref, function, lease_s=self.lease_s)
        if cancelled:
            raise cancelled[0]
        # What the model reads now is what it reads whenever this is asked again.
        known = await self._ended(call.ref)
        if ended and not approved.edited and _is_end(known, outcome):
            return ended[0]
        # Others ended it meanwhile; or its arguments were changed, or were no object.
        return await self._read(known)

    async def _ended(self, ref: CallRef) -> Call:
        async with self.in_time(str(ref), "It has run; do the same again to read its result."):
            return await self.ledger.call(ref, must_include=ref.client_finished)

    @asynccontextmanager
    async def in_time(self, what: str, then: str = "") -> AsyncIterator[asyncio.Timeout]:
        """Within this the ledger must answer about something; `then` says what to do else.

        Raises:
            BrokerAway: it did not within `answer_s`.
        """
        try:
            async with asyncio.timeout(self.answer_s) as limit:
                yield limit
        except TimeoutError:
            if not limit.expired():
                raise
            late = f"the ledger did not answer within {self.answer_s:g} s about {what}."
            raise BrokerAway(f"{late} {then or 'Nothing has run.'}") from None


async def judged(ledger: Ledger, call: Call) -> Call:
    """The call once the gate has judged it, or after a moment: no agent should pause for a call
    that is allowed.

    Raises:
        Unavailable: the ledger does not answer.
    """
    return await ledger.until(call, lambda one: one.status is not Status.REQUESTED, _JUDGED_S)


def _is_end(call: Call, outcome: e.ToolReturned | e.ToolFailed | e.InDoubt) -> bool:
    """Whether a call ended with this: it may have been put in doubt while its tool ran."""
    match outcome, call.finished and call.finished.event:
        case e.ToolReturned(output=ours), e.ToolReturned(output=recorded):
            return ours == recorded
        case e.ToolFailed(error=ours), e.ToolFailed(error=recorded):
            return ours == recorded
        case _:
            return False


def calling(function: ToolFunction) -> Runner:
    """Calls a function with the named arguments; a synchronous one in a thread of its own."""

    async def call(arguments: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        value = await in_a_thread(functools.partial(function, **arguments))
        return await value if inspect.isawaitable(value) else value

    return call


@functools.lru_cache(maxsize=4096)
def spec_from_schema(name: str, description: str, schema: str) -> ToolSpec:
    """A tool of a framework, which has the JSON Schema of its parameters.

    Args:
        schema: raw JSON text.

    Raises:
        BadInput: the name cannot be a tool's, or the schema is not a valid one.
    """
    try:
        return ToolSpec(name=name, description=description, schema=schema)
    except ValidationError as problem:
        said = " ".join(sentence for _, sentence in mistakes(problem))
        raise BadInput(f"tool {name!r} cannot be declared: {said}") from None
