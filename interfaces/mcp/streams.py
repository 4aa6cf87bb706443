"""How a server is reached: a program over its standard streams, or a URL.

A message of a server has at most `MAX_MESSAGE` bytes and is read in time that grows with it, so
that no server keeps the others waiting. The connection to one that sends more is ended.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.interfaces.mcp.streams")

#: Of one message, in bytes: a file of 32 MiB, the largest that is recorded, has 43 MiB in base64.
MAX_MESSAGE: Final = 48 * 2**20
#: How many lines in a row may be no messages, before the connection is ended.
_NOISE: Final = 1_000
#: How long a program may take to end once its input has ended, and again after each signal. Clients
#: of ours give us four seconds.
_END_S: Final = 1.0

type _Incoming = MemoryObjectSendStream[SessionMessage | Exception]
type _Outgoing = MemoryObjectReceiveStream[SessionMessage]
#: Run in a child before its program.
type BeforeExec = Callable[[], None] | None


@asynccontextmanager
async def program(
    command: Sequence[str], environment: Mapping[str, str], before_exec: BeforeExec
) -> AsyncGenerator[tuple[Any, Any]]:
    """Start a program in a process group of its own, which ends with the connection.

    Raises:
        OSError: it cannot be started.
        ValueError: an argument has a NUL.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_MESSAGE,
        # With the harmless variables of this process only: its own logins are none of theirs.
        env=get_default_environment() | dict(environment),
        start_new_session=True,
        preexec_fn=before_exec,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    incoming, reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writes, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_read(process, process.stdout, incoming)),
        asyncio.create_task(_write(outgoing, process.stdin, incoming)),
    ]
    try:
        yield reads, writes
    finally:
        reads.close()
        writes.close()
        await asyncio.shield(asyncio.create_task(_end(process, tasks)))


async def _read(
    process: asyncio.subprocess.Process, stdout: asyncio.StreamReader, incoming: _Incoming
) -> None:
    noise = 0
    async with incoming:
        while True:
            try:
                line = await stdout.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                _log.error("a message is too long", process=process.pid, most_bytes=MAX_MESSAGE)
                _signal(process, signal.SIGKILL)
                break
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                if (noise := noise + 1) == 1:
                    start = line[:80].decode(errors="replace")
                    _log.warning("a line is not a message", process=process.pid, line=start)
                if noise > _NOISE:
                    _signal(process, signal.SIGKILL)
                    break
                await asyncio.sleep(0)  # what is in the buffer is read without a pause
                continue
            noise = 0
            try:
                await incoming.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                break
    while await stdout.read(2**16):  # so that it can end
        pass


async def _write(outgoing: _Outgoing, stdin: asyncio.StreamWriter, incoming: _Incoming) -> None:
    try:
        async with outgoing:
            async for sent in outgoing:
                text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                await stdin.drain()
    except OSError:
        await incoming.aclose()  # so that nobody waits for an answer


async def _end(process: asyncio.subprocess.Process, tasks: list[asyncio.Task[None]]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    for sent in (None, signal.SIGTERM, signal.SIGKILL):
        if sent is not None:
            _signal(process, sent)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_S)
            break
    await asyncio.wait(tasks, timeout=_END_S)  # its output is read to the end, and so closed
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # Unless another program holds it open, or there was no time. `Process` has no `close`.
    process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001


def _signal(process: asyncio.subprocess.Process, sent: signal.Signals) -> None:
    """Signal the program and those that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, sent)


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to `MAX_MESSAGE` bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            if (size := size + len(chunk)) > MAX_MESSAGE:
                raise httpx2.StreamError(f"an answer of more than {MAX_MESSAGE:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _bound(response: httpx2.Response) -> None:
    # A compressed body can be a thousand times as large as what is counted.
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("the answer is compressed, which it was asked not to be")
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        response.stream = _Bounded(response.stream)


def http_client(headers: Mapping[str, str], timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    """A client whose answers are bounded."""
    return httpx2.AsyncClient(
        headers={**headers, "accept-encoding": "identity"},
        timeout=timeout,
        event_hooks={"response": [_bound]},
    )


def website(url: str, client: httpx2.AsyncClient) -> AbstractAsyncContextManager[Any]:
    """A connection to a server over HTTP."""
    return streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE)
