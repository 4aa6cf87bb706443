"""Running a Python tool: takes the raw JSON that was approved, returns a fact about the outcome.

The executor and services that run their own tools use it.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final

import msgspec

from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.events import ToolFailed, ToolReturned

type ToolFunction = Callable[..., Any] | Callable[..., Awaitable[Any]]

#: Leaves room for the envelope of an output, which JSON may have to escape.
_MOST: Final = MAX_BYTES - 4096


#: `workspace/thread/call` of the call that is running here, the same for every attempt at it.
idempotency_key: ContextVar[str] = ContextVar("idempotency_key")


async def run_tool(
    function: ToolFunction, arguments: str, attempt: int, *, key: str = ""
) -> ToolReturned | ToolFailed:
    """Call the function with the named arguments; a synchronous one in its own thread.

    A returned string is the output, any other value becomes JSON. An exception becomes
    `ToolFailed`, except a cancellation, after which nobody knows how far the tool came.

    Args:
        key: the value of `idempotency_key.get()` in the function, for the services that it calls.
    """
    before = idempotency_key.set(key)
    try:
        named = msgspec.json.decode(arguments)
        if inspect.iscoroutinefunction(function):
            value = await function(**named)
        else:
            value = await _in_a_thread(partial(function, **named))
            if inspect.isawaitable(value):
                value = await value
        output = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        size = len(msgspec.json.encode(output))
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - a tool may raise anything, and the model must hear of it
        return ToolFailed(error=format_exception(problem), attempt=attempt)
    finally:
        idempotency_key.reset(before)
    if size > _MOST:
        return ToolFailed(
            error=f"The tool ran, but its output of {size:,} bytes is over the limit of {_MOST:,}. "
            "It must return less, or a reference.",
            attempt=attempt,
        )
    return ToolReturned(output=output, attempt=attempt)


async def _in_a_thread(function: Callable[[], Any]) -> Any:
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


def format_exception(problem: BaseException) -> str:
    """An exception in words that can be recorded."""
    text = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
    # Half a surrogate pair cannot be recorded; the sentence around it can.
    return text.encode("utf-8", "replace").decode()[: _MOST // 8]
