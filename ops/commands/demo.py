"""The demo: everything for real, in a temporary store, in a few seconds."""

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Final

import msgspec

from ayes.consumers.pending_view import changes
from ayes.ledger.services import Ledger
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import apply_policy, declare_streams
from ayes.ops.commands import demo_agent
from ayes.ops.terminal import output
from ayes.ops.terminal.output import print_data, print_message
from ayes.ops.terminal.visible import line
from ayes.ops.workers import KINDS, durables, reactions, working
from ayes.projections.formats import openai_chat
from ayes.projections.history import history
from ayes.projections.pending import Entry
from ayes.projections.thread import Thread, thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import Refused
from ayes.schemas.slots import ThreadRef

THREAD: Final = ThreadRef("demo", "tidy-up")
REVIEWER: Final = "ana"
#: How long a reviewer takes who is not at a terminal.
THINKS_S: Final = 1.5


async def demo(*, json: bool) -> None:
    async with AsyncExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="approvals-demo-")))
        files = here / "files"
        files.mkdir()
        demo_agent.fill(files)
        policy = here / "policy.toml"
        policy.write_text(demo_agent.POLICY)

        server = await stack.enter_async_context(EmbeddedServer(here / "store"))
        store = server.store.path
        tools = demo_agent.tools_in(files)
        started = reactions(KINDS, models={demo_agent.PROVIDER: demo_agent.DemoAgent()}, tools=tools)
        await declare_streams(store, also=durables(started))
        await server.ensure_account(f"reviewer-{REVIEWER}")
        async with Ledger.connect(store, role="operator") as operator:
            await apply_policy(operator, THREAD.workspace, str(policy))
        await stack.enter_async_context(working(started, store=store))
        service = await stack.enter_async_context(Ledger.connect(store, name="demo"))
        person = await stack.enter_async_context(Ledger.connect(store, role=f"reviewer-{REVIEWER}"))

        if not json:
            print_message(
                f"A broker runs at {server.url}, with a gate, a model, an executor and a queue beside it."
            )
            print_message(f"The agent is asked: {demo_agent.TASK!r}")
            print_message()
        refs = await tools.declare(service, THREAD.workspace)
        opened = e.ThreadOpened(
            requester="ben", agent="tidier", model=f"{demo_agent.PROVIDER}:tidier", tools=refs
        )
        await service.try_append(THREAD.opened, opened)
        await service.try_append(THREAD.said("1"), e.Said(role="user", text=demo_agent.TASK))

        deciding = asyncio.create_task(_decide(person, at_terminal=sys.stdin.isatty() and not json))
        try:
            thread = await _until_done(service, deciding, json=json)
        finally:
            deciding.cancel()
            await asyncio.gather(deciding, return_exceptions=True)
        written = openai_chat.write(history(thread).entries)["messages"]
        if json:
            print_data(msgspec.json.encode({"history": written}).decode())
            return
        print_message()
        print_message("What the model goes on from, as OpenAI Chat messages:")
        print_message()
        print_data(msgspec.json.format(msgspec.json.encode(written)).decode())
        print_message()
        print_message(
            f"Left in the agent's folder: {', '.join(sorted(file.name for file in files.iterdir()))}."
        )
    print_message("The store is gone again. To keep one:")
    print_message()
    print_message("  ayes up                          a broker and all workers, until Ctrl-C")
    print_message("  ayes pending --watch             the queue, live, in another terminal")
    print_message("  ayes rehearse FILE.jsonl         your own recorded conversations through all of this")


async def _until_done(service: Ledger, deciding: asyncio.Task[None], *, json: bool) -> Thread:
    """Show each fact as it comes, until the agent has nothing more to do."""
    console = output.console(stderr=True)
    seen: list[Fact] = []
    async with aclosing(service.watch(1, THREAD.subjects)) as facts:
        async for fact in facts:
            if deciding.done():
                deciding.result()
            if json:
                print_data(output.fact_json(fact))
            else:
                output.print_facts([fact], console)
            seen.append(fact)
            thread = thread_of(THREAD, seen)
            last = thread.turns.get(thread.latest)
            if last is not None and last.replied is not None and not last.wishes:
                return thread
    raise AssertionError("watching never ends by itself")


async def _decide(person: Ledger, *, at_terminal: bool) -> None:
    """Ana, at the live queue."""
    async with aclosing(changes(person)) as coming:
        async for entry in (entry async for told in coming for _, entry in told):
            if not isinstance(entry, Entry):
                continue
            verdict, reason = await (_asked(entry) if at_terminal else _by_itself(entry))
            try:
                await person.reviewer(REVIEWER).vote(entry.ref, verdict, reason=reason)
            except Refused as problem:
                print_message(f"  {problem}")


async def _asked(entry: Entry) -> tuple[e.Verdict, str]:
    said = await asyncio.to_thread(
        input, f"{line(f'  {entry.ref}: {entry.tool} {entry.arguments}')}\n  approve? [y/N] "
    )
    if said.strip().lower() in ("y", "yes"):
        return "approve", ""
    return "deny", (await asyncio.to_thread(input, "  why not? ")).strip()


async def _by_itself(entry: Entry) -> tuple[e.Verdict, str]:
    await asyncio.sleep(THINKS_S)
    if "draft" in entry.arguments:
        return "deny", "That is a draft which I still need."
    return "approve", ""
