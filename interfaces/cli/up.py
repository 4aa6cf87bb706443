"""The command that runs a broker and its workers."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, NamedTuple

import typer

from ayes.consumers.tools import load
from ayes.interfaces.cli import completion, console
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.notify import channels_of, default_file, notifying_of
from ayes.interfaces.cli.options import (
    AcceptLogOption,
    AcceptReasonOption,
    AckWaitOption,
    AgentsOption,
    ChannelsOption,
    ConsoleUrlOption,
    JsonOption,
    MaxBytesOption,
    PersonOption,
    PolicyOption,
    SlackOption,
    StoreOption,
    ToolsOption,
    WebhooksOption,
    WorkspaceOption,
)
from ayes.interfaces.cli.policy_versions import apply_text
from ayes.interfaces.cli.run import (
    ack_wait_of,
    agents_of,
    bytes_of,
    declare_agents,
    declare_tools,
    kinds_of,
    webhooks_file,
    witnessed,
)
from ayes.interfaces.cli.terminal.output import print_json, print_message
from ayes.ledger.nats.credentials import Store
from ayes.ledger.patience import while_away
from ayes.ops.broker.server import EmbeddedServer
from ayes.ops.broker.setup import check_policy, declare_streams
from ayes.ops.inspection.probes import ListenAddress, monitored
from ayes.ops.slack_settings import settings_file, settings_of, slack_of
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
    policy: PolicyOption = None,
    tools: ToolsOption = None,
    workspace: WorkspaceOption = "default",
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            metavar="KINDS",
            help="Comma-separated: gate,queue,model,executor; or none.",
            autocompletion=completion.one_of("gate,queue", "gate,queue,executor", "none"),
        ),
    ] = "gate,queue,model,executor",
    ack_wait: AckWaitOption = "30s",
    agents_file: AgentsOption = None,
    webhooks: WebhooksOption = None,
    sync: Annotated[
        str,
        typer.Option(
            "--sync", help="Flush to disk: always (before each ack), or an interval such as 2m."
        ),
    ] = "always",
    max_bytes: MaxBytesOption = None,
    accept_log: AcceptLogOption = False,
    reason: AcceptReasonOption = "",
    channels: ChannelsOption = None,
    console_url: ConsoleUrlOption = "",
    slack: SlackOption = None,
    with_console: Annotated[
        bool, typer.Option("--console/--no-console", help="Serve the web console too.")
    ] = True,
    console_port: Annotated[
        int | None,
        typer.Option(
            "--console-port",
            min=0,
            max=65535,
            help="By default the same as the last time; 8420 at first, if it is free.",
            show_default=False,
        ),
    ] = None,
    monitor: Annotated[
        str | None,
        typer.Option(
            "--monitor",
            metavar="[HOST:]PORT",
            help="Serve /livez, /readyz and /metrics there too, as `ayes monitor` does.",
            show_default=False,
        ),
    ] = None,
    person: PersonOption = "",
    json: JsonOption = False,
) -> None:
    """Run a broker, all workers and the console in this process, until Ctrl-C."""
    ack_wait_s = ack_wait_of(ack_wait)
    sync = sync if sync == "always" else f"{parse_duration('--sync', sync, least=0.001):f}s"
    most = bytes_of(max_bytes)
    registry = load(tools) if tools is not None else None
    listen = ListenAddress.parse("--monitor", monitor) if monitor is not None else None
    chosen = kinds_of([] if workers == "none" else workers.split(","))
    here = Session(store)
    endpoints = webhooks_file(webhooks, store)
    if chosen == [*KINDS] and is_there(endpoints.path):
        chosen.append("webhooks")
    if (channels := channels or default_file(here)) is not None and "notifier" not in chosen:
        chosen.append("notifier")
    told = channels_of(here, channels) if "notifier" in chosen else None
    if (slack := slack or settings_file(store, None)) is not None and "slack" not in chosen:
        chosen.append("slack")
    slack_settings = settings_of(store, None, slack) if "slack" in chosen else None
    if agents_file is not None and "delegator" not in chosen:
        chosen.append("delegator")
    agents = agents_of(agents_file) if "delegator" in chosen else None
    rules = read_text(policy) if policy is not None else ""
    if policy is not None:
        check_policy(rules, policy)  # before anything is started
    async with (
        EmbeddedServer(store, sync=sync) as server,
        supervised(server) as supervisor,
    ):
        own = Session(server.store.path)
        notifying = notifying_of(own, told, console_url, None) if told else None
        asking = slack_of(store, slack_settings, console_url, None) if slack_settings else None
        started = reactions(
            chosen,
            tools=registry,
            notifying=notifying,
            slack=asking,
            webhooks=endpoints,
            agents=agents,
        )

        declare = partial(declare_streams, own.store, ack_wait_s=ack_wait_s, also=durables(started))

        async def begin() -> _Begun:
            async with AsyncExitStack() as stack:
                await declare(max_bytes=most)
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
                )
                failed = await stack.enter_async_context(run)
                link = probes = None
                if listen is not None:
                    probes = await stack.enter_async_context(monitored(own.store, listen))
                if with_console:
                    name = person or own_name()
                    beside = console.beside(server.store, name, console_port)
                    link = await stack.enter_async_context(beside)
                return _Begun(stack.pop_all(), [failed, *watched.ends], link, probes)

        # The broker may end between any two steps. Each of them may be taken again.
        begun = await while_away(begin, unless=supervisor.broken)
        async with begun.stack:
            await until_signalled(
                supervisor.broken,
                *begun.ends,
                ready=lambda: _greet(server, chosen, begun.link, begun.probes, json=json),
            )


class _Begun(NamedTuple):
    """All that `up` runs beside its broker."""

    stack: AsyncExitStack
    #: They fail when it cannot go on.
    ends: list[asyncio.Future[None]]
    link: str | None
    probes: str | None


def _greet(
    server: EmbeddedServer,
    kinds: Sequence[str],
    link: str | None,
    probes: str | None,
    *,
    json: bool,
) -> None:
    if json:
        ready = {
            "url": server.url,
            "store": str(server.store.path),
            "workers": kinds,
            "pid": server.pid,
            "console": link or None,
            "monitor": probes,
        }
        print_json(ready)
        return
    where = "" if server.store.path == Store().path else f" --store {server.store.path}"
    print_message(f"broker   {server.url}")
    print_message(f"store    {server.store.path}")
    print_message(f"workers  {', '.join(kinds) or 'none'}")
    if link is not None:
        print_message(f"console  {link or f'not installed: {console.INSTALL}'}")
    if probes is not None:
        print_message(f"monitor  {probes}/readyz  {probes}/metrics")
    print_message(f"next     ayes pending --watch{where}")
    print_message(f"         ayes status{where}")
    print_message("Ctrl-C ends it, once the current work is done. Nothing is lost.")
