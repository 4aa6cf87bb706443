"""Running a Python tool: takes the raw JSON that was approved, returns a fact about the outcome.
And asking its lookup, after a crash, whether it has run.

The executor and services that run their own tools use it. What is sealed in the arguments is left
out of all that is returned, and before anything is cut: the cut could go through a value, whose
beginning nobody would recognise afterwards.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from enum import Enum
from functools import partial
from typing import Any, Final

import msgspec

from ayes.ledger.sealed_values import NOTHING_SEALED, Opened
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.content import content_of, problem_of
from ayes.schemas.errors import BadInput
from ayes.schemas.events import Content, Event, InDoubt, Media, Text, ToolFailed, ToolReturned

type ToolFunction = Callable[..., Any] | Callable[..., Awaitable[Any]]


class NotDone(Enum):
    """The type of `NOT_DONE`."""

    NOT_DONE = "not done"


class ToolError(Exception):
    """Raised by a tool that failed: the model reads its text as it is, without the class."""


class EffectUnknown(Exception):
    """Raised by a tool that lost its connection halfway: nobody knows if it took effect. The call
    is in doubt, and the text says why.
    """


#: Returned by a tool's lookup: the call had no effect, and will have none any more.
NOT_DONE: Final = NotDone.NOT_DONE
#: How long a lookup may take.
LOOKUP_S: Final = 30.0
#: Leaves room for the envelope of an output, which JSON may have to escape.
_MAX_OUTPUT: Final = MAX_BYTES - 4096
#: Of an error, in characters. The rest of a longer one is not recorded.
MAX_ERROR: Final = _MAX_OUTPUT // 8


#: `workspace/thread/call` of the call that is running here, the same for every attempt at it.
idempotency_key: ContextVar[str] = ContextVar("idempotency_key")


async def run_tool(
    function: ToolFunction, plain: Opened, attempt: int, *, key: str = ""
) -> ToolReturned | ToolFailed | InDoubt:
    """Call the function with the named arguments; a synchronous one in its own thread.

    A returned string is the output; a file (`ayes.schemas.content.attached`), or a sequence of
    files and strings, is recorded as such; any other value becomes JSON. A value that cannot be
    recorded becomes a sentence that says so: the tool has run all the same. An exception becomes
    `ToolFailed`; `EffectUnknown` becomes `InDoubt`. A cancellation is none of these: after it
    nobody knows how far the tool came.

    Args:
        key: the value of `idempotency_key.get()` in the function, for the services that it calls.
    """
    try:
        value = await _call(function, plain.arguments, key)
    except EffectUnknown as problem:
        return InDoubt(text=format_exception(problem, plain), attempt=attempt)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - a tool may raise anything, and the model must hear of it
        return ToolFailed(error=format_exception(problem, plain), attempt=attempt)
    try:
        return plain.scrubbed(ToolReturned(output=_output(value), attempt=attempt))
    except Exception as problem:  # noqa: BLE001 - whatever it is, the tool has run
        return _unrecorded(problem, attempt, plain)


async def look_up(
    function: ToolFunction, plain: Opened, attempt: int, *, key: str = ""
) -> ToolReturned | NotDone | str:
    """Ask a tool's lookup what became of a call that was started.

    Returns the result, or `NOT_DONE` if it had no effect, or why nobody knows: the lookup raised,
    returned None, or did not answer in time.
    """
    try:
        async with asyncio.timeout(LOOKUP_S):
            value = await _call(function, plain.arguments, key)
        if isinstance(value, NotDone):
            return value
        # A function that forgot to return anything must not be taken for an answer.
        if value is None:
            return "it does not know"
        found = ToolReturned(output=_output(value), attempt=attempt, looked_up=True)
        return plain.scrubbed(found)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - as in `run_tool`
        return format_exception(problem, plain)


async def _call(function: ToolFunction, arguments: str, key: str) -> Any:
    before = idempotency_key.set(key)
    try:
        named = msgspec.json.decode(arguments)
        if inspect.iscoroutinefunction(function):
            return await function(**named)
        value = await in_a_thread(partial(function, **named))
        return await value if inspect.isawaitable(value) else value
    finally:
        idempotency_key.reset(before)


def _output(value: Any) -> Content:
    """What a tool returned, as it is recorded. It may raise anything, if the value cannot be."""
    if (parts := _parts(value)) is not None:
        for media in parts:
            if isinstance(media, Media) and (problem := problem_of(media)):
                raise BadInput(f"a file in it is not sound: {problem}")
        return content_of(parts)
    output = _sound(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
    size = len(msgspec.json.encode(output))
    if size > _MAX_OUTPUT:
        raise BadInput(
            f"its {size:,} bytes are over the limit of {_MAX_OUTPUT:,}. It must return less, or a "
            "reference."
        )
    return output


def _parts(value: Any) -> tuple[Text | Media, ...] | None:
    """The parts of an output that is made of some; None if it is another value."""
    parts = [value] if isinstance(value, Media) else value
    if not isinstance(parts, list | tuple) or not any(
        isinstance(one, Text | Media) for one in parts
    ):
        return None
    if not all(isinstance(one, str | Text | Media) for one in parts):
        return None
    return tuple(Text(one) if isinstance(one, str) else one for one in parts)


def not_recorded(outcome: Event, problem: BadInput) -> ToolReturned:
    """The end of a call whose tool has run and whose output cannot be recorded: other bytes are in
    the place of a file, or there are too many.

    Raises:
        BadInput: the problem, if the outcome is not an output.
    """
    if not isinstance(outcome, ToolReturned):
        raise problem
    return _unrecorded(problem, outcome.attempt)


def _unrecorded(problem: Exception, attempt: int, plain: Opened = NOTHING_SEALED) -> ToolReturned:
    is_ours = isinstance(problem, BadInput)
    why = plain.said(str(problem)) if is_ours else format_exception(problem, plain)
    output = f"The tool ran, but its output cannot be recorded: {why}"
    return ToolReturned(output=output, attempt=attempt)


async def in_a_thread(function: Callable[[], Any]) -> Any:
    """Run the function in a new thread.

    `asyncio.to_thread` has few threads: a claimed call could wait for one, and be in doubt after a
    crash although it never ran. The caller limits how many calls run at once.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tool")
    try:
        return await asyncio.get_running_loop().run_in_executor(
            thread, copy_context().run, function
        )
    finally:
        thread.shutdown(wait=False)


def format_exception(problem: BaseException, plain: Opened = NOTHING_SEALED) -> str:
    """An exception in words that can be recorded, without what is sealed in the arguments."""
    said, name = str(problem), type(problem).__name__
    as_it_is = isinstance(problem, ToolError | EffectUnknown)
    text = said if as_it_is and said else f"{name}: {said}" if said else name
    return _sound(plain.said(text))[:MAX_ERROR]


def _sound(text: str) -> str:
    """The text without half surrogate pairs, which cannot be recorded."""
    return text.encode("utf-8", "replace").decode()
