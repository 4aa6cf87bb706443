"""The command that runs a broker and its workers."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from typing import Annotated, NamedTuple

from ayes.consumers.tools import load
from ayes.interfaces.cli import completion, console
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    AcceptLogOption,
    AcceptReasonOption,
    AckWaitOption,
    JsonOption,
    MaxBytesOption,
    PersonOption,
    PolicyOption,
    SettingsOption,
    StoreOption,
    ToolsOption,
    WebhooksOption,
    WorkspaceOption,
    option,
)
from ayes.interfaces.cli.pack import settled_for_of
from ayes.interfaces.cli.policy_versions import apply_text
from ayes.interfaces.cli.run import (
    SECTIONS,
    ack_wait_of,
    bytes_of,
    declare_agents,
    declare_tools,
    kinds_of,
    tellers,
    webhooks_file,
    witnessed,
)
from ayes.interfaces.cli.settings import needed, settings_of, thread_keys_of, trust_of
from ayes.interfaces.cli.terminal.output import print_result
from ayes.ledger.nats.credentials import Store
from ayes.ledger.patience import while_away
from ayes.ops.actions.packing import packing
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import check_policy, declare_streams
from ayes.ops.inspection.probes import ListenAddress, monitored
from ayes.ops.sealing import files as seal_files
from ayes.ops.sealing.copier import copying
from ayes.ops.sealing.sealer import sealing
from ayes.ops.supervisor import supervised
from ayes.ops.tokens import own_name
from ayes.ops.traces import exporting
from ayes.ops.workers import KINDS, durables, reactions, until_signalled, working
from ayes.schemas.durations import parse_duration
from ayes.schemas.files import is_there
from ayes.schemas.toml_files import read_text

app = commands()


@command(
    app,
    examples="""
    ayes up
    ayes up --store ./store --policy shop.toml -w shop --tools shop_tools:tools
    """,
)
@exporting()
async def up(
    store: StoreOption = None,
    settings: SettingsOption = None,
    policy: PolicyOption = None,
    tools: ToolsOption = None,
    workspace: WorkspaceOption = "default",
    workers: Annotated[
        str,
        option(
            "--workers",
            "KINDS",
            "Comma-separated: gate,queue,model,executor; or none.",
            autocompletion=completion.one_of("gate,queue", "gate,queue,executor", "none"),
        ),
    ] = "gate,queue,model,executor",
    ack_wait: AckWaitOption = "30s",
    webhooks: WebhooksOption = None,
    sync: Annotated[
        str, option("--sync", "Flush to disk: always (before each ack), or an interval such as 2m.")
    ] = "always",
    max_bytes: MaxBytesOption = None,
    pack_after: Annotated[
        str | None,
        option(
            "--pack-after",
            "DURATION",
            "Pack each hour what has been settled for so long, such as 30d; makes a new log so.",
        ),
    ] = None,
    accept_log: AcceptLogOption = False,
    reason: AcceptReasonOption = "",
    with_console: Annotated[
        bool, option("--console/--no-console", "Serve the web console too.")
    ] = True,
    console_port: Annotated[
        int | None,
        option(
            "--console-port",
            "By default the same as the last time; 8420 at first, if it is free.",
            min=0,
            max=65535,
        ),
    ] = None,
    monitor: Annotated[
        str | None,
        option(
            "--monitor",
            "[HOST:]PORT",
            "Serve /livez, /readyz and /metrics there too, as `ayes monitor` does.",
        ),
    ] = None,
    person: PersonOption = "",
    json: JsonOption = False,
) -> None:
    """Run a broker, all workers and the console in this process, until Ctrl-C."""
    ack_wait_s = ack_wait_of(ack_wait)
    sync = sync if sync == "always" else f"{parse_duration('--sync', sync, least=0.001):f}s"
    most = bytes_of(max_bytes)
    settled_for = settled_for_of("--pack-after", pack_after) if pack_after is not None else None
    registry = load(tools) if tools is not None else None
    listen = ListenAddress.parse("--monitor", monitor) if monitor is not None else None
    chosen = kinds_of([] if workers == "none" else workers.split(","))
    endpoints = webhooks_file(webhooks, store)
    if chosen == [*KINDS]:
        beside = {"webhooks": endpoints.path, "sealer": Store(store).path / seal_files.KEY}
        chosen += [kind for kind, file in beside.items() if is_there(file)]
    sign_in = ("openid",) if with_console else ()
    said = settings_of(store, settings, "console", "seal", *sign_in, *chain(*SECTIONS.values()))
    for kind, sections in SECTIONS.items():
        if kind in chosen:
            needed(said.first_of(sections), sections[0], f"the worker {kind}")
        elif said.first_of(sections):
            chosen.append(kind)
    agents, trust = said.sub_agents, trust_of(store, settings)
    keys = thread_keys_of(store, settings)
    rules = read_text(policy) if policy is not None else ""
    if policy is not None:
        check_policy(rules, policy)  # before anything is started
    async with (
        EmbeddedServer(store, sync=sync) as server,
        supervised(server) as supervisor,
    ):
        own = Session(server.store.path)
        notifying, asking = tellers(own, said)
        started = reactions(
            chosen,
            tools=registry,
            notifying=notifying,
            slack=asking,
            webhooks=endpoints,
            agents=agents,
            absences=said.absence,
            schedules=said.oncall,
        )

        declare = partial(declare_streams, own.store, ack_wait_s=ack_wait_s, also=durables(started))

        async def begin() -> _Begun:
            async with AsyncExitStack() as stack:
                await declare(max_bytes=most, packed=settled_for is not None)
                watched = await stack.enter_async_context(
                    witnessed(own, chosen, accept_log=accept_log, reason=reason)
                )
                await supervisor.watch_log()
                if policy is not None:
                    await apply_text(rules, policy, workspace, own)
                if registry is not None:
                    await declare_tools(registry, workspace, own)
                if agents is not None:
                    await declare_agents(agents, workspace, own)
                run = working(
                    started,
                    store=own.store,
                    ack_wait_s=ack_wait_s,
                    declare=declare,
                    each=watched.hear,
                    trust=trust,
                    keys=keys,
                )
                failed = await stack.enter_async_context(run)
                await stack.enter_async_context(sealing(chosen, said.seal, store=own.store))
                await stack.enter_async_context(copying(chosen, said.copies, store=own.store))
                await stack.enter_async_context(packing(settled_for, store=own.store))
                link = probes = None
                notes: list[str] = []
                if listen is not None:
                    probes = await stack.enter_async_context(monitored(own.store, listen))
                if with_console:
                    name = person or own_name()
                    beside = console.beside(
                        server.store,
                        name,
                        port=console_port,
                        public_url=said.console_url,
                        sign_in=said.openid,
                        trust=trust,
                        sign_page=said.sign_page,
                    )
                    served = await stack.enter_async_context(beside)
                    link = served.link or served.url if served else ""
                    notes = served.notes if served else []
                return _Begun(stack.pop_all(), [failed, *watched.ends], link, notes, probes)

        # The broker may end between any two steps. Each of them may be taken again.
        begun = await while_away(begin, unless=supervisor.broken)
        async with begun.stack:
            await until_signalled(
                supervisor.broken,
                *begun.ends,
                ready=lambda: _greet(server, chosen, begun, json=json),
            )


class _Begun(NamedTuple):
    """All that `up` runs beside its broker."""

    stack: AsyncExitStack
    #: They fail when it cannot go on.
    ends: list[asyncio.Future[None]]
    #: To the console; empty: it is not installed.
    link: str | None
    #: About the console.
    notes: list[str]
    probes: str | None


def _greet(server: EmbeddedServer, kinds: Sequence[str], begun: _Begun, *, json: bool) -> None:
    link, probes = begun.link, begun.probes
    ready = {
        "url": server.url,
        "store": str(server.store.path),
        "workers": kinds,
        "pid": server.pid,
        "console": link or None,
        "monitor": probes,
    }
    shown = "" if link is None else f"console  {link or f'not installed: {console.INSTALL}'}"
    monitor = "" if probes is None else f"monitor  {probes}/readyz  {probes}/metrics"
    where = "" if server.store.path == Store().path else f" --store {server.store.path}"
    sentences = (
        f"broker   {server.url}",
        f"store    {server.store.path}",
        f"workers  {', '.join(kinds) or 'none'}",
        shown,
        *begun.notes,
        monitor,
        f"next     ayes pending --watch{where}",
        f"         ayes status{where}",
        "Ctrl-C ends it, once the current work is done. Nothing is lost.",
    )
    print_result(ready, *filter(None, sentences), json=json)
