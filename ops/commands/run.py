"""For whoever keeps it running: the broker and the workers, policies, rehearsals."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec
from rich.table import Table

from ayes.consumers.tools import Tools, load
from ayes.consumers.worker import Reaction
from ayes.ledger.in_force import policy_in_force
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import streams
from ayes.ledger.services import Ledger
from ayes.ledger.subscriptions import DURABLES
from ayes.ops.broker import witness
from ayes.ops.broker.guard import guard
from ayes.ops.broker.server import EmbeddedServer, ensure_account, is_running
from ayes.ops.broker.setup import apply_policy, apply_proposal, declare_streams, propose_policy
from ayes.ops.commands.decide import PENDING
from ayes.ops.rehearsal.rehearse import Summary, read_recordings, refuse_other, review
from ayes.ops.rehearsal.rehearse import rehearse as drive
from ayes.ops.rehearsal.scripted_reviewer import script_for
from ayes.ops.terminal import output
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.ops.terminal.progress import bar
from ayes.ops.workers import KINDS, durables, reactions, until_signalled, working
from ayes.schemas.errors import BadInput, BrokerAway
from ayes.schemas.events import PolicyApplied
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import ORGANISATION, CallRef, policies
from ayes.schemas.toml_files import read_text
from ayes.schemas.tools import read_tools


async def up(
    store: Path | None,
    *,
    policy: str | None,
    workspace: str,
    kinds: str,
    ack_wait_s: float,
    sync: str,
    tools: str | None,
    max_bytes: int | None,
    accept_log: bool,
    json: bool,
) -> None:
    registry = load(tools) if tools is not None else None
    chosen = _kinds([] if kinds == "none" else kinds.split(","))
    if policy is not None:
        read_policy(read_text(policy), policy)  # before anything is started
    async with EmbeddedServer(store, sync=sync) as server:
        started = reactions(chosen, tools=registry)
        await declare_streams(
            server.store.path, ack_wait_s=ack_wait_s, also=durables(started), max_bytes=max_bytes
        )
        async with witnessed(server.store, chosen, accept_log=accept_log) as watched, guarded(server.store):
            if policy is not None:
                await policy_apply(policy, workspace, store=server.store.path, url=None, json=False)
            if registry is not None:
                await _declare(registry, workspace, store=server.store.path, url=None)
            async with working(
                started, store=server.store.path, ack_wait_s=ack_wait_s, each=watched.hear
            ) as failed:
                gone = asyncio.ensure_future(_broker_gone(server))
                try:
                    await until_signalled(
                        failed, gone, *watched.ends, ready=lambda: _greet(server, chosen, json=json)
                    )
                finally:
                    gone.cancel()


async def work(
    kinds: Sequence[str],
    *,
    recording: str | None,
    tools: str | None,
    workspace: str,
    ack_wait_s: float,
    accept_log: bool,
    store: Path | None,
    url: str | None,
    json: bool,
) -> None:
    chosen = _kinds(kinds)
    registry = load(tools) if tools is not None else None
    recordings = (
        None if recording is None else {name: one for name, (_, one) in read_recordings(recording).items()}
    )
    if registry is not None:
        await _declare(registry, workspace, store=store, url=url)
    started = reactions(chosen, tools=registry, recordings=recordings)
    await _declare_missing(started, store=store, url=url, ack_wait_s=ack_wait_s)
    async with (
        witnessed(Store(store) if url is None else None, chosen, accept_log=accept_log) as watched,
        working(started, store=store, url=url, ack_wait_s=ack_wait_s, each=watched.hear) as failed,
    ):
        await until_signalled(failed, *watched.ends, ready=lambda: _tell_working(chosen, json=json))


async def setup(
    *, replicas: int, max_bytes: int | None, store: Path | None, url: str | None, json: bool
) -> None:
    await declare_streams(store, url=url, replicas=replicas, also=tuple(DURABLES), max_bytes=max_bytes)
    if json:
        there = {"streams": list(streams()), "consumers": list(DURABLES)}
        print_data(msgspec.json.encode(there).decode())
    else:
        print_message("The streams and consumers are there. Next: ayes doctor")


async def tool_declare(file: str, workspace: str, *, store: Path | None, url: str | None, json: bool) -> None:
    specs = read_tools(read_text(file), file)
    async with Ledger.connect(store, url=url, role="service") as ledger:
        declared = [await ledger.declare(workspace, spec) for spec in specs]
    for ref in declared:
        if json:
            print_data(
                msgspec.json.encode(
                    {"workspace": workspace, "tool": ref.tool, "version": ref.version}
                ).decode()
            )
        else:
            print_message(f"{ref.tool} is declared in {workspace}, version {ref.version}.")


async def policy_apply(
    file: str,
    workspace: str,
    *,
    organisation: bool = False,
    store: Path | None,
    url: str | None,
    json: bool,
) -> None:
    role = "organisation" if organisation else "operator"
    if url is None and organisation:
        await ensure_account(store, role)  # a store that was made before there was such a role
    async with Ledger.connect(store, url=url, role=role) as ledger:
        version = await apply_policy(ledger, ORGANISATION if organisation else workspace, file)
    if json:
        whose = {"organisation": True} if organisation else {"workspace": workspace}
        print_data(msgspec.json.encode(whose | {"version": version}).decode())
    else:
        print_message(f"{file} is version {version} of {_whose(workspace, organisation=organisation)}.")


async def policy_propose(
    file: str, workspace: str, requester: str, *, store: Path | None, url: str | None, json: bool
) -> int:
    """Propose a version, and say which call people approve. The exit code says that it waits."""
    async with Ledger.connect(store, url=url, role="service") as ledger:
        call = await propose_policy(ledger, workspace, file, requester)
    if json:
        print_data(msgspec.json.encode({"workspace": workspace, "proposal": str(call.ref)}).decode())
    else:
        print_message(
            f"{file} is proposed for workspace {workspace!r}. Once somebody else has approved {call.ref}: "
            f"ayes policy apply --proposal {call.ref}"
        )
    return PENDING


async def policy_apply_proposal(proposal: str, *, store: Path | None, url: str | None, json: bool) -> None:
    ref = CallRef.parse(proposal)
    async with (
        Ledger.connect(store, url=url, role="service") as service,
        Ledger.connect(store, url=url, role="operator") as operator,
    ):
        version = await apply_proposal(operator, service, ref)
    if json:
        print_data(msgspec.json.encode({"workspace": ref.workspace, "version": version}).decode())
    else:
        print_message(f"{ref} is version {version} of {_whose(ref.workspace, organisation=False)}.")


async def policy_show(
    workspace: str,
    version: int | None,
    *,
    organisation: bool,
    store: Path | None,
    url: str | None,
    json: bool,
) -> None:
    owner = ORGANISATION if organisation else workspace
    whose = _whose(workspace, organisation=organisation)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        facts = [fact for fact in await ledger.read(policies(owner)) if fact.slot.workspace]
        if not facts:
            raise BadInput(
                f"there is no version of {whose}. Until one is applied, "
                f"{'it says nothing' if organisation else 'every call is asked about'}."
            )
        numbered = {int(fact.slot.tail[1]): fact for fact in facts}
        newest = policy_in_force(facts).version or max(numbered)
        if version is not None and version not in numbered:
            raise BadInput(
                f"there is no version {version} of {whose}. The versions are 1 to {max(numbered)}."
            )
        fact = numbered[version or newest]
    text = fact.event.text if isinstance(fact.event, PolicyApplied) else ""
    if json:
        print_data(output.fact_json(fact))
    else:
        print_message(
            f"Version {fact.slot.tail[1]} of {whose}, applied {fact.recorded_at:%Y-%m-%d %H:%M:%S} UTC."
        )
        for one in text.rstrip("\n").split("\n"):
            print_line(one)


def _whose(workspace: str, *, organisation: bool) -> str:
    return "the organisation's policy" if organisation else f"the policy of {workspace}"


async def rehearse(
    file: str,
    *,
    form: str | None,
    policy: str | None,
    reviewer: str,
    workspace: str,
    with_workers: bool,
    ack_wait_s: float,
    store: Path | None,
    url: str | None,
    json: bool,
) -> int:
    if form is not None and not with_workers:
        raise BadInput(
            "`ayes work --recording` reads no other form than our own. Leave out --no-workers, or --form."
        )
    # All three files are read before anything is recorded.
    recorded = read_recordings(file, form)
    script = script_for(reviewer)
    rules = None
    if policy is not None:
        rules = read_text(policy)
        read_policy(rules, policy)
    async with AsyncExitStack() as stack:
        kinds = ["model", "executor"] if with_workers else []
        # Without --store it never touches the user's own.
        if url is None and (store is None or not await is_running(store)):
            store, kinds = await stack.enter_async_context(_own_server(store)), list(KINDS)
        started = reactions(kinds, recordings={name: one for name, (_, one) in recorded.items()})
        also = (*durables(started), "model-recorded", "executor-recorded")
        if url is None:
            await declare_streams(store, ack_wait_s=ack_wait_s, also=also)
        service = await stack.enter_async_context(Ledger.connect(store, url=url, name="rehearsal"))
        await refuse_other(service, workspace, recorded, script, rules)
        if policy is not None:
            await policy_apply(policy, workspace, store=store, url=url, json=False)
        role = f"reviewer-{script.name}"
        if url is None:
            await ensure_account(store, role)
        failed = await stack.enter_async_context(
            working(started, store=store, url=url, ack_wait_s=ack_wait_s)
        )
        person = await stack.enter_async_context(Ledger.connect(store, url=url, role=role))
        with bar(len(recorded)) as progress:
            task = progress.add_task("rehearsing", total=len(recorded))
            driving = asyncio.ensure_future(
                drive(
                    service,
                    workspace,
                    recorded,
                    progress=lambda done: progress.update(task, completed=done),
                    stalled=lambda waiting: _tell_stalled(waiting, workspace, store, url),
                )
            )
            voting = asyncio.ensure_future(review(person, workspace, script))
            try:
                await until_signalled(driving, voting, failed)
            finally:
                for one in (driving, voting):
                    one.cancel()
                await asyncio.gather(driving, voting, return_exceptions=True)
    if driving.cancelled():
        print_message("Stopped. Start it again with the same --store to go on where it stood.")
        return 130
    _report(driving.result(), json=json)
    return 0


# ------------------------------------------------------------------------------------------------- helpers


async def _declare_missing(
    started: Sequence[tuple[str, Reaction[Any, Any]]],
    *,
    store: Path | None,
    url: str | None,
    ack_wait_s: float,
) -> None:
    """On a broker of one's own, create what these read from. Elsewhere an administrator did: `ayes setup`."""
    if url is None:
        await declare_streams(store, ack_wait_s=ack_wait_s, also=durables(started))


async def _declare(tools: Tools, workspace: str, *, store: Path | None, url: str | None) -> None:
    async with Ledger.connect(store, url=url, role="executor") as ledger:
        await tools.declare(ledger, workspace)


def _kinds(named: Sequence[str]) -> list[str]:
    if unknown := [kind for kind in named if kind not in KINDS]:
        raise BadInput(f"there is no worker {', '.join(map(repr, unknown))}. There are: {', '.join(KINDS)}.")
    return list(named)


@asynccontextmanager
async def witnessed(
    store: Store | None, kinds: Sequence[str], *, accept_log: bool
) -> AsyncGenerator[witness.Watched]:
    """Refuse workers on a store whose log is not the one that was seen; keep what a gate sees."""
    if store is None:
        yield witness.Watched()
        return
    if kinds or accept_log:
        await witness.check(store, accept=accept_log)
    else:
        await witness.tell(store)
    if "gate" not in kinds:
        yield witness.Watched()
        return
    async with witness.keeping(store) as watched:
        yield watched


@asynccontextmanager
async def guarded(store: Store) -> AsyncGenerator[None]:
    """Look each minute whether the broker is as declared."""
    async with JetStream.connect(store.path, role="admin") as log:
        task = asyncio.create_task(guard(log), name="guard")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _own_server(store: Path | None) -> AsyncGenerator[Path]:
    """A broker for as long as the block: in `store`, which stays, or in a temporary one, which goes."""
    async with AsyncExitStack() as stack:
        if store is None:
            store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="approvals-"))) / "store"
        server = await stack.enter_async_context(EmbeddedServer(store))
        yield server.store.path


async def _broker_gone(server: EmbeddedServer) -> None:
    code = await server.exited()
    raise BrokerAway(
        f"the broker ended by itself (exit code {code}). The last it said:\n{server.last_words()}"
    )


def _greet(server: EmbeddedServer, kinds: Sequence[str], *, json: bool) -> None:
    if json:
        ready = {"url": server.url, "store": str(server.store.path), "workers": kinds, "pid": server.pid}
        print_data(msgspec.json.encode(ready).decode())
        return
    where = "" if server.store.path == Store().path else f" --store {server.store.path}"
    print_message(f"broker   {server.url}")
    print_message(f"store    {server.store.path}")
    print_message(f"workers  {', '.join(kinds) or 'none'}")
    print_message(f"next     ayes pending --watch{where}")
    print_message(f"         ayes status{where}")
    print_message("Ctrl-C ends it, after what is in hand. Nothing is lost.")


def _tell_working(kinds: Sequence[str], *, json: bool) -> None:
    if json:
        print_data(msgspec.json.encode({"workers": kinds}).decode())
    else:
        print_message(f"working: {', '.join(kinds)}. Ctrl-C ends it, after what is in hand.")


def _tell_stalled(waiting: int, workspace: str, store: Path | None, url: str | None) -> None:
    calls = "1 call waits" if waiting == 1 else f"{waiting:,} calls wait"
    where = " --url URL" if url else "" if store in {None, Store().path} else f" --store {quote(str(store))}"
    print_message(
        f"{calls} for people and nothing else goes on: the script leaves this open, or more votes are needed. "
        f"To decide by hand: ayes pending -w {workspace}{where}"
    )


def _report(summary: Summary, *, json: bool) -> None:
    if json:
        print_data(msgspec.json.encode(summary).decode())
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name in Summary.__struct_fields__:
        table.add_row(name, f"{getattr(summary, name):,}")
    output.console().print(table)
    if summary.seconds:
        print_message(
            f"{summary.facts / summary.seconds:,.0f} facts/s, {summary.conversations / summary.seconds:,.1f} conversations/s"
        )
