"""The demo: everything for real, in a temporary store, in a few seconds."""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from ayes.interfaces.cli import console, demo_agent
from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import JsonOption, option
from ayes.interfaces.cli.terminal import output
from ayes.interfaces.cli.terminal.output import print_data, print_json, print_message
from ayes.interfaces.cli.terminal.prompt import read_line
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import apply_policy, declare_streams
from ayes.ops.workers import KINDS, durables, reactions, working
from ayes.projections.formats import openai_chat
from ayes.projections.history import Outcome, history
from ayes.projections.thread import Thread, thread_of
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, fact_json
from ayes.schemas.errors import AlreadyDecided, AlreadyFilled
from ayes.schemas.slots import CallRef, ThreadRef

app: Final = commands()

THREAD: Final = ThreadRef("demo", "tidy-up")
REVIEWER: Final = "ana"
#: How long the scripted reviewer takes, if nobody is at a terminal.
THINKS_S: Final = 1.5
#: A closed terminal, and `kill`.
_ENDS: Final = (signal.SIGHUP, signal.SIGTERM)


class _Left(Exception):
    """The person at the terminal ended the input (Ctrl-D) instead of answering."""


@command(app)
async def demo(
    verbose: Annotated[
        bool, option("-v", "--verbose", "Each fact too, and the messages that the model reads.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Run a small agent that asks before it acts. Nothing to set up; under 15 seconds."""
    playing = asyncio.ensure_future(_play(verbose=verbose, json=json))
    ended: list[int] = []

    def end(number: int) -> None:  # in order, so that the temporary store is removed
        ended.append(number)
        playing.cancel()

    for number in _ENDS:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        await playing
    except asyncio.CancelledError:
        if not ended:  # Ctrl-C
            raise
        return 128 + ended[0]
    return 0


async def _play(*, verbose: bool, json: bool) -> None:
    async with AsyncExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="approvals-demo-")))
        files = here / "files"
        files.mkdir()
        demo_agent.fill(files)

        server = await stack.enter_async_context(EmbeddedServer(here / "store"))
        store = server.store.path
        tools = demo_agent.tools_in(files)
        started = reactions(
            KINDS, models={demo_agent.PROVIDER: demo_agent.DemoAgent()}, tools=tools
        )
        await declare_streams(store, also=durables(started))
        await server.ensure_account(f"reviewer-{REVIEWER}")
        async with Ledger.connect(store, role="operator") as operator:
            await apply_policy(operator, THREAD.workspace, demo_agent.POLICY, "the demo")
        await stack.enter_async_context(working(started, store=store))
        service = await stack.enter_async_context(Ledger.connect(store, name="demo"))
        person = await stack.enter_async_context(Ledger.connect(store, role=f"reviewer-{REVIEWER}"))

        at_terminal = sys.stdin.isatty() and not json
        if not json:
            if verbose:
                print_message(
                    f"A broker runs at {server.url}, with a gate, a queue, a model and an executor."
                )
            print_message(f"An agent works for ben, who asks it: {demo_agent.TASK!r}")
            print_message(
                f"The policy lets it look; before it deletes a file, {REVIEWER} is asked."
            )
            if at_terminal:
                served = await stack.enter_async_context(console.beside(server.store, REVIEWER))
                print_message(
                    f"You are {REVIEWER}. Answer here{' or in a browser:' if served else '.'}"
                )
                print_message(
                    f"  {served.link}" if served else f"  (In a browser too: {console.INSTALL})"
                )
            else:
                print_message(f"A script answers as {REVIEWER}.")
            print_message()
        refs = await tools.declare(service, THREAD.workspace)
        opened = e.ThreadOpened(
            requester="ben", agent="tidier", model=f"{demo_agent.PROVIDER}:tidier", tools=refs
        )
        await service.try_append(THREAD.opened, opened)
        await service.try_append(THREAD.said("1"), e.Said(role="user", text=demo_agent.TASK))
        try:
            thread = await _decided(
                service, person, at_terminal=at_terminal, verbose=verbose, json=json
            )
        except _Left:
            print_message()
            print_message("You left it open, so it did not run. The store is removed.")
            return
        entries = history(thread).entries
        messages = openai_chat.write(entries)["messages"]
        if json:
            print_json({"history": messages})
            return
        print_message()
        print_message("The model reads:")
        for one in entries:
            if isinstance(one, Outcome):
                print_message(f"  {one.tool}: {one.text}")
        if verbose:
            print_message()
            print_message("The same as OpenAI Chat messages:")
            print_data(msgspec.json.format(msgspec.json.encode(messages)).decode())
        print_message()
        print_message(
            f"Left in the folder: {', '.join(sorted(file.name for file in files.iterdir()))}."
        )
    _print_next()


def _print_next() -> None:
    ayes = _program()
    print_message("The store is removed. To keep one:")
    print_message()
    for arguments, what in (
        ("up", "a broker and all workers, until Ctrl-C"),
        ("pending --watch", "the queue, live, in another terminal"),
    ):
        print_message(f"  {f'{ayes} {arguments}':<{len(ayes) + 21}}  {what}")


def _program() -> str:
    """How to call the command line from here: by its name, or by its path if PATH lacks it."""
    ours = Path(sys.executable).with_name("ayes")
    if shutil.which("ayes") or not ours.exists():
        return "ayes"
    try:
        return str(ours.relative_to(Path.cwd()))
    except ValueError:
        return str(ours)


async def _decided(
    service: Ledger, person: Ledger, *, at_terminal: bool, verbose: bool, json: bool
) -> Thread:
    """Report each fact and decide the pending calls, until the agent has nothing more to do.

    While a question is open, later facts are held back.

    Raises:
        _Left: the input ended instead of an answer.
    """
    console = output.console(stderr=True)
    wishes: dict[CallRef, str] = {}
    async with aclosing(_facts(service)) as threads:
        async for fact, thread in threads:
            if json:
                print_data(fact_json(fact))
            elif verbose:
                output.print_facts([fact], console, WHOLE)
            ref, event = fact.slot.call_ref, fact.event
            if ref is not None and isinstance(event, e.ToolRequested):
                wishes[ref] = f"{event.tool} {event.arguments}"
            if not json and (sentence := _sentence(event, wishes[ref] if ref else "")):
                print_message(sentence)
            if ref is not None and isinstance(event, e.ApprovalRequested):
                asking = _asked() if at_terminal else _scripted(wishes[ref])
                if (answer := await _unless_decided(asking, service, ref)) is not None:
                    verdict, reason = answer
                    with suppress(AlreadyDecided, AlreadyFilled):  # in the browser, a moment ago
                        await person.reviewer(REVIEWER).vote(
                            ref, Ballot(verdict, reason, digest=event.digest)
                        )
            last = thread.turns.get(thread.latest)
            if last is not None and last.replied is not None and not last.wishes:
                return thread
    raise AssertionError("watching never ends by itself")


async def _unless_decided[T](
    asking: Coroutine[Any, Any, T], service: Ledger, ref: CallRef
) -> T | None:
    """The answer that is typed; None if the call was decided in the browser before."""
    answer = asyncio.create_task(asking)
    decision = asyncio.create_task(service.decision(ref))
    try:
        await asyncio.wait({answer, decision}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for one in (answer, decision):
            one.cancel()
        await asyncio.gather(answer, decision, return_exceptions=True)


async def _facts(service: Ledger) -> AsyncGenerator[tuple[Fact, Thread]]:
    """Each fact of the thread, and the thread up to it."""
    seen: list[Fact] = []
    async with aclosing(service.watch(1, THREAD.subjects)) as facts:
        async for fact in facts:
            seen.append(fact)
            yield fact, thread_of(THREAD, seen)


def _sentence(event: object, wish: str) -> str:
    """A fact in a sentence for newcomers; empty for the intermediate ones."""
    match event:
        case e.ToolRequested():
            return f"The agent asks to run {wish}."
        case e.ApprovalRequested(reason=why):
            return f"{wish} waits for {REVIEWER}. {why}"
        case e.Approved(ground="policy"):
            return f"The policy allows {wish}."
        case e.Approved():
            return f"{REVIEWER} approved {wish}."
        case e.Denied(reason=why):
            return f"{REVIEWER} denied {wish}{f': {why}' if why else '.'}"
        case e.ToolReturned():
            return f"{wish} ran."
        case e.ToolRefused():
            return f"{wish} did not run."
        case _:
            return ""


async def _asked() -> tuple[Literal["approve", "deny"], str]:
    """Verdict and reason of the person at the terminal; anything else is asked again.

    Raises:
        _Left: the input ended.
    """
    while True:
        print_message("  Approve it? [y/n]")
        match (await _line()).lower():
            case "y" | "yes":
                return "approve", ""
            case "n" | "no":
                print_message("  Why not? The model reads it.")
                return "deny", await _line()
            case _:
                print_message("  Please answer y or n; Ctrl-D ends the demo.")


async def _line() -> str:
    line = await read_line()
    if line is None:
        raise _Left
    return line


async def _scripted(wish: str) -> tuple[Literal["approve", "deny"], str]:
    await asyncio.sleep(THINKS_S)
    if "draft" in wish:
        return "deny", "That is a draft which I still need."
    return "approve", ""
