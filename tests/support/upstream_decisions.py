"""A pytest plugin for the approval tests of frameworks: every decision goes through the ledger.

    pytest -p upstream_decisions tests/test_tools.py -k approv     # in a checkout of the framework

A framework's test hands its decision on in one place. Here that place first requests the call,
writes the decision as a reviewer's vote, reads the call back over another connection, and hands on
what the ledger says. The framework's own assertions judge. The broker, the gate and all connections
are real, and live in a thread of their own, since each test has an event loop of its own.
"""

import asyncio
import functools
import importlib.util
import json
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from running import working
from until import recorded

from ayes.adapters.kernel import Kernel
from ayes.adapters.names import AskedCall
from ayes.adapters.next_step import Answer, Run, next_step
from ayes.consumers.gate import Gate
from ayes.consumers.worker import Worker
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import declare_streams
from ayes.schemas import events as e
from ayes.schemas.policy import applied
from ayes.schemas.slots import policy_slot
from ayes.schemas.tools import ToolSpec

_POLICY = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "ask"\neditor_counts = true\n'
_TIMEOUT_S = 30.0


class Book:
    """A ledger in a thread of its own, and the number of decisions that went through it."""

    def __init__(self) -> None:
        self.decisions = 0
        self._folder = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._now(self._open())

    def _now[T](self, does: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(does, self._loop).result(_TIMEOUT_S)

    async def _open(self) -> None:
        enter = self._stack.enter_async_context
        server = await enter(EmbeddedServer(Path(self._folder.name) / "store", sync="2m"))
        store = server.store.path
        await declare_streams(store)
        admin = await enter(Ledger.connect(store, role="admin"))
        await admin.append(policy_slot("shop", 1), applied(_POLICY))
        gate = await enter(Ledger.connect(store, role="gate"))
        await enter(working(Worker(gate, Gate())))
        asking = await enter(Ledger.connect(store, role="service"))
        reading = await enter(Ledger.connect(store, role="service"))
        self._asking = Kernel(asking, "shop", requester="ben")
        self._reading = Kernel(reading, "shop", requester="ben", patience_s=_TIMEOUT_S)
        self._ana = admin.reviewer("ana")

    def close(self) -> None:
        self._now(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._folder.cleanup()

    def decide(
        self,
        tool: str,
        arguments: str,
        *,
        approved: bool,
        edit: str | None = None,
        why: str = "",
        answer: str = "",
    ) -> "asyncio.Future[tuple[bool, str]]":
        """Put a decision through the ledger, from any loop: whether the call may run, and with
        which arguments, or why not, or the answer in its place.
        """
        said = self._decided(tool, arguments, approved, edit, why, answer)
        return asyncio.run_coroutine_threadsafe(said, self._loop)  # type: ignore[return-value]

    async def _decided(
        self, tool: str, arguments: str, approved: bool, edit: str | None, why: str, answer: str
    ) -> tuple[bool, str]:
        asked = AskedCall(uuid.uuid4().hex, "call", tool, arguments)
        call = await self._asking.request(asked, ToolSpec(name=tool, schema='{"type":"object"}'))
        await recorded(self._asking.ledger, call.ref.gated.subject)
        if answer:
            await self._ana.vote(call.ref, Ballot("answer", answer=answer))
        elif approved:
            await self._ana.approve(call.ref, arguments=edit, reason=why)
        else:
            await self._ana.deny(call.ref, reason=why)
        self.decisions += 1
        known = await self._reading.wait(await self._reading.look(call.ref))
        match next_step(known):
            case Run(arguments=allowed):
                return True, allowed
            case Answer(text=text):
                return False, text
            case _:
                assert known.decided is not None
                denied = known.decided.event
                return False, denied.reason if isinstance(denied, e.Denied) else ""


_book: Book | None = None


def book() -> Book:
    global _book  # noqa: PLW0603 - one for a run of pytest, made when it is first needed
    _book = _book or Book()
    return _book


def pytest_configure() -> None:
    book()  # now, since upstream's tests refuse what blocks a loop
    if importlib.util.find_spec("pydantic_ai") is not None:
        _patch_pydantic_ai()
    if importlib.util.find_spec("agents") is not None:
        _patch_openai_agents()
    if importlib.util.find_spec("langchain") is not None:
        _patch_langchain()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    count = _book.decisions if _book else 0
    terminalreporter.write_line(f"{count} decisions went through the ledger")


def pytest_unconfigure() -> None:
    if _book is not None:
        _book.close()


# --------------------------------------------------------------------------------- the frameworks


def _patch_pydantic_ai() -> None:
    from pydantic_ai import ToolApproved, ToolDenied
    from pydantic_ai._agent_graph import UserPromptNode
    from pydantic_ai.messages import ModelResponse, ToolCallPart

    handed_on: Callable[..., Awaitable[Any]] = UserPromptNode._handle_deferred_tool_results

    async def through(approval: Any, part: ToolCallPart) -> Any:
        approved = approval is True or isinstance(approval, ToolApproved)
        override = getattr(approval, "override_args", None)
        edit = None if override is None else json.dumps(override)
        why = approval.message if isinstance(approval, ToolDenied) else ""
        default = ToolDenied().message
        future = book().decide(
            part.tool_name,
            part.args_as_json_str(),
            approved=approved,
            edit=edit,
            why="" if why == default else why,
        )
        may_run, told = await asyncio.wrap_future(future)  # type: ignore[arg-type]
        if not may_run:
            return ToolDenied(told) if told else ToolDenied()
        return ToolApproved(override_args=json.loads(told)) if edit is not None else True

    async def handle(self: Any, results: Any, messages: Any, ctx: Any) -> Any:
        parts = {
            part.tool_call_id: part
            for message in messages
            if isinstance(message, ModelResponse)
            for part in message.parts
            if isinstance(part, ToolCallPart)
        }
        for name, approval in list(results.approvals.items()):
            if name in parts:
                results.approvals[name] = await through(approval, parts[name])
        return await handed_on(self, results, messages, ctx)

    UserPromptNode._handle_deferred_tool_results = handle  # type: ignore[method-assign]


def _patch_openai_agents() -> None:
    from agents.run_state import RunState

    approve: Callable[..., None] = RunState.approve
    reject: Callable[..., None] = RunState.reject

    def decided(item: Any, *, approved: bool, why: str = "") -> tuple[bool, str] | None:
        tool, arguments = item.tool_name, item.arguments
        try:
            is_object = isinstance(json.loads(arguments or ""), dict)
        except ValueError:
            is_object = False
        if not tool or not is_object:
            return None  # the framework itself refuses it, or has no arguments to ask about
        return book().decide(tool, arguments, approved=approved, why=why).result()  # type: ignore[return-value]

    def approved_by(self: Any, item: Any, always_approve: bool = False) -> None:
        said = decided(item, approved=True)
        if said is None or said[0]:
            approve(self, item, always_approve=always_approve)
        else:
            reject(self, item)

    def rejected_by(
        self: Any, item: Any, always_reject: bool = False, *, rejection_message: str | None = None
    ) -> None:
        said = decided(item, approved=False, why=rejection_message or "")
        told = rejection_message if said is None else said[1] or rejection_message
        reject(self, item, always_reject=always_reject, rejection_message=told)

    RunState.approve = approved_by  # type: ignore[method-assign]
    RunState.reject = rejected_by  # type: ignore[method-assign]


def _patch_langchain() -> None:
    from langchain.agents.middleware import human_in_the_loop as module

    def through(action: Any, decision: Any) -> Any:
        tool, arguments = action["name"], json.dumps(action["args"])
        match decision:
            case {"type": "approve"}:
                may_run, _ = book().decide(tool, arguments, approved=True).result()
                return {"type": "approve"} if may_run else {"type": "reject"}
            case {"type": "edit", "edited_action": {"name": str(name), "args": dict(edited)}} if (
                name == tool
            ):
                changed = json.dumps(edited)
                _, told = book().decide(tool, arguments, approved=True, edit=changed).result()
                return {"type": "edit", "edited_action": {"name": name, "args": json.loads(told)}}
            case {"type": "reject", "message": str(why)} if why:
                _, told = book().decide(tool, arguments, approved=False, why=why).result()
                return {"type": "reject", "message": told}
            case {"type": "respond", "message": str(text)} if text:
                _, told = book().decide(tool, arguments, approved=False, answer=text).result()
                return {"type": "respond", "message": told}
            case _:
                return decision  # the framework itself judges it

    def asking(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def asked(*given: Any, **more: Any) -> Any:
            answered_by = module.interrupt  # upstream's own mock, while a test runs

            def interrupt(request: Any) -> Any:
                said = answered_by(request)
                actions = request["action_requests"]
                if len(said["decisions"]) != len(actions):
                    return said
                pairs = zip(actions, said["decisions"], strict=True)
                return said | {"decisions": [through(*pair) for pair in pairs]}

            module.interrupt = interrupt
            try:
                return method(*given, **more)
            finally:
                module.interrupt = answered_by

        return asked

    middleware = module.HumanInTheLoopMiddleware
    middleware.after_model = asking(middleware.after_model)  # type: ignore[method-assign]
