"""The command that runs workers."""

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from ayes.consumers.delegator import SubAgent
from ayes.consumers.tools import Tools, load
from ayes.consumers.webhooks import endpoints as webhook_endpoints
from ayes.consumers.webhooks.endpoints import EndpointFile
from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.notify import notifying_of
from ayes.interfaces.cli.options import (
    AcceptLogOption,
    AcceptReasonOption,
    AckWaitOption,
    LinkKeyOption,
    SettingsOption,
    ToolsOption,
    WebhooksOption,
    WorkspaceOption,
    argument,
    option,
)
from ayes.interfaces.cli.settings import Settings, needed, settings_of, thread_keys_of, trust_of
from ayes.interfaces.cli.terminal.output import print_result
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.patience import while_away
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.broker.setup import declare_streams
from ayes.ops.inspection import watching, witness
from ayes.ops.sealing.copier import copying
from ayes.ops.sealing.sealer import sealing
from ayes.ops.slack_settings import slack_of
from ayes.ops.tokens import own_name
from ayes.ops.traces import exporting
from ayes.ops.workers import (
    KINDS,
    OPTIONAL_KINDS,
    Notifying,
    durables,
    reactions,
    role_of,
    until_signalled,
    working,
)
from ayes.schemas.durations import parse_duration
from ayes.schemas.errors import BadInput

if TYPE_CHECKING:
    from ayes.consumers.slack.questions import SlackQuestions

app: Final = commands()

#: The sections that workers need: the first, or another one of these.
SECTIONS: Final = {
    "notifier": ("notices",),
    "slack": ("slack",),
    "delegator": ("sub_agents",),
    "absence": ("absence", "oncall"),
    "copier": ("copies",),
}


@command(app)
@exporting()
async def work(
    kinds: Annotated[
        list[str],
        argument(
            "KIND...",
            ", ".join((*KINDS, *OPTIONAL_KINDS)),
            autocompletion=completion.one_of(*KINDS, *OPTIONAL_KINDS),
        ),
    ],
    tools: ToolsOption = None,
    workspace: WorkspaceOption = "default",
    settings: SettingsOption = None,
    link_key: LinkKeyOption = None,
    ack_wait: AckWaitOption = "30s",
    accept_log: AcceptLogOption = False,
    reason: AcceptReasonOption = "",
    file: WebhooksOption = None,
    wait: Annotated[
        str | None,
        option(
            "--wait",
            "DURATION",
            "How long to wait for a broker at the start; by default as long as it takes.",
        ),
    ] = None,
    *,
    session: Session,
) -> None:
    """Run some workers in a process of their own, for a broker that runs elsewhere."""
    ack_wait_s = ack_wait_of(ack_wait)
    wait_s = None if wait is None else parse_duration("--wait", wait)
    chosen = kinds_of(kinds)
    registry = load(tools) if tools is not None else None
    store, url, json = session
    if "slack" in chosen and url is not None:
        raise BadInput(
            "the worker slack votes with people's own credentials, which are in a store. Name one "
            "with --store instead of --url; docs/telling.md says what it must have."
        )
    said = sections_of(store, settings, chosen)
    notifying, asking = tellers(session, said, link_key)
    endpoints = webhooks_file(file, store)
    agents, trust = said.sub_agents, trust_of(store, settings)
    thread_keys = thread_keys_of(store, settings)

    async def begin() -> tuple[AsyncExitStack, watching.Watched, asyncio.Future[None]]:
        async with AsyncExitStack() as stack:
            await _reach_leader(session, role_of(chosen[0]))
            login = own_login(session, chosen[0])
            own_tools = registry.of(login) if registry is not None and login else registry
            if own_tools is not None:
                await declare_tools(own_tools, workspace, session)
            if agents is not None:
                await declare_agents(agents, workspace, session)
            started = reactions(
                chosen,
                tools=own_tools,
                notifying=notifying,
                slack=asking,
                webhooks=endpoints,
                agents=agents,
                absences=said.absence,
                login=login,
                schedules=said.oncall,
            )
            own = Store(store) if url is None and Store(store).has_login("admin") else None
            declare = None
            if own is not None:  # elsewhere an administrator created the consumers: `ayes setup`
                declare = partial(
                    declare_streams, own.path, ack_wait_s=ack_wait_s, also=durables(started)
                )
                await declare()
            watched = await stack.enter_async_context(
                witnessed(session, chosen, accept_log=accept_log, reason=reason)
            )
            failed = await stack.enter_async_context(
                working(
                    started,
                    store=store,
                    url=url,
                    ack_wait_s=ack_wait_s,
                    declare=declare,
                    each=watched.hear,
                    trust=trust,
                    keys=thread_keys,
                )
            )
            await stack.enter_async_context(sealing(chosen, said.seal, store=store, url=url))
            await stack.enter_async_context(copying(chosen, said.copies, store=store, url=url))
            return stack.pop_all(), watched, failed

    # All of it: the broker or its leader may be gone again between two steps.
    stack, watched, failed = await while_away(begin, timeout_s=wait_s)
    async with stack:
        await until_signalled(
            failed, *watched.ends, ready=lambda: _report_working(chosen, json=json)
        )


def ack_wait_of(text: str) -> float:
    return parse_duration("--ack-wait", text, least=0.5)


def bytes_of(text: str | None) -> int | None:
    """Read a number of bytes, such as 20GB.

    Raises:
        BadInput: it is not a number of bytes.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,15})\s*(KB|MB|GB|TB|KiB|MiB|GiB|TiB|B)?", text.strip())
    if found is None:
        raise BadInput(
            f"--max-bytes {text!r} is not a number of bytes. It looks like 20GB or 500MiB."
        )
    number, unit = found.groups(default="B")
    base = 1024 if "i" in unit else 1000
    size = int(number)
    for _ in range("BKMGT".index(unit[0])):
        size *= base
    return size


async def declare_tools(tools: Tools, workspace: str, session: Session) -> None:
    async with session.connect("executor") as ledger:
        await tools.declare(ledger, workspace)


async def _reach_leader(session: Session, role: str) -> None:
    """Fail with `BrokerAway` unless there is a broker, and in a cluster a leader for the ledger. A
    broker that `up` has just started may have no stream yet.
    """
    async with JetStream.connect(session.store, url=session.url, role=role) as log:
        await log.leaders_message(LEDGER, seq=1)  # the leader alone answers this, to each role


def own_login(session: Session, kind: str) -> str:
    """The login of a worker that has some workspaces only; empty: it has all."""
    login = Store.login_for(role_of(kind), store=session.store, url=session.url)
    return login.user if login.workspaces else ""


def kinds_of(named: Sequence[str]) -> list[str]:
    known = (*KINDS, *OPTIONAL_KINDS)
    if unknown := [kind for kind in named if kind not in known]:
        raise BadInput(
            f"there is no worker {', '.join(map(repr, unknown))}. There are: {', '.join(known)}."
        )
    return list(named)


def sections_of(store: Path | None, given: Path | None, kinds: Collection[str]) -> Settings:
    """The settings of workers of these kinds.

    Raises:
        BadInput: a section that one of them needs is absent.
        BadFile: as of `settings_of`.
    """
    wanted = {kind: sections for kind, sections in SECTIONS.items() if kind in kinds}
    found = settings_of(store, given, "console", "seal", *chain(*wanted.values()))
    for kind, sections in wanted.items():
        needed(found.first_of(sections), sections[0], f"the worker {kind}")
    return found


def tellers(
    session: Session, said: Settings, link_key: Path | None = None
) -> tuple[Notifying | None, "SlackQuestions | None"]:
    """What notifier and Slack send through, where they have settings.

    Raises:
        BadInput, BadFile: as of `notifying_of` and `slack_of`.
    """
    url, store = said.console_url, session.store
    notifying = notifying_of(session, said.notices, url, link_key) if said.notices else None
    return notifying, slack_of(store, said.slack, url, link_key) if said.slack else None


async def declare_agents(agents: Mapping[str, SubAgent], workspace: str, session: Session) -> None:
    async with session.connect("service") as ledger:
        for tool, agent in agents.items():
            await ledger.declare(workspace, agent.spec(tool))


def webhooks_file(file: Path | None, store: Path | None) -> EndpointFile:
    """The file of webhooks: the one that was named, or that of the store.

    Raises:
        BadInput: the directory of the one that was named does not exist.
    """
    if file is not None and not file.parent.is_dir():
        raise BadInput(f"--webhooks {file}: {file.parent} is not a directory. Create it first.")
    return EndpointFile(file or Store(store).path / webhook_endpoints.NAME)


async def accepting(log: JetStream, session: Session, reason: str) -> None:
    """Accept the log as it is, as a fact in the organisation's name."""
    place = witness.place_of(session.store, session.url)
    async with session.connect("organisation", own_name()) as organisation:
        await witness.accept(log, place, organisation, reason)


@asynccontextmanager
async def witnessed(
    session: Session, kinds: Sequence[str], *, accept_log: bool = False, reason: str = ""
) -> AsyncGenerator[watching.Watched]:
    """Refuse workers on a log that was cut, damaged or replaced, and watch it while they run; a
    gate updates the witness.
    """
    is_gate = "gate" in kinds
    role = "gate" if is_gate else role_of(kinds[0]) if kinds else "observer"
    place = witness.place_of(session.store, session.url)
    connecting = JetStream.connect(session.store, url=session.url, role=role, name="witness")
    async with connecting as log:
        if log.connection.login.workspaces:  # it reads a part, by which no log is known
            yield watching.Watched()
            return
        if accept_log:
            await accepting(log, session, reason)
        if not (kinds or accept_log):
            await witness.tell(log, place)
            yield watching.Watched()
            return
        await witness.check(log, place)
        async with watching.keeping(log, place, is_gate=is_gate) as watched:
            yield watched


def _report_working(kinds: Sequence[str], *, json: bool) -> None:
    sentence = f"working: {', '.join(kinds)}. Ctrl-C ends it, once the current work is done."
    print_result({"workers": kinds}, sentence, json=json)
