"""Starting workers, each with the credentials of its role, until they are stopped.

All of them run in one process (`ayes up`), or each in its own (`ayes work gate`): they share only
the ledger. The queue's process also keeps the index of calls in doubt (consumers/doubt.py).
"""

import asyncio
import importlib
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ayes.consumers.absence.schedules import Schedule
from ayes.consumers.absence.worker import Absence, Absences
from ayes.consumers.delegator import Delegator, SubAgent
from ayes.consumers.doubt import keep_index
from ayes.consumers.executor import Executor
from ayes.consumers.gate import Gate
from ayes.consumers.model import Model, ModelReply, ModelRequest, ModelWorker
from ayes.consumers.notices.channels import Channels
from ayes.consumers.notices.notifier import CONCURRENCY as SENDING
from ayes.consumers.notices.notifier import LinkTo, Notifier
from ayes.consumers.pending_projector import PendingProjector
from ayes.consumers.supervision import keep_running
from ayes.consumers.tools import Tools
from ayes.consumers.webhooks.endpoints import EndpointFile
from ayes.consumers.webhooks.requests import Sender
from ayes.consumers.webhooks.worker import Webhooks
from ayes.consumers.worker import CONCURRENCY, Reaction, Worker
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import RawMessage
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.replica import ReadReplica
from ayes.ledger.subscriptions import ACK_WAIT_S
from ayes.ledger.thread_keys import ThreadKeys
from ayes.ledger.trust import Trust
from ayes.ops.actions.forgetting import destroy_forgotten
from ayes.ops.broker.logins import Logins
from ayes.schemas.errors import BrokerAway, LogLost
from ayes.schemas.logs import get_logger

if TYPE_CHECKING:
    from ayes.consumers.slack.clicks import SlackClicks
    from ayes.consumers.slack.questions import SlackQuestions

_log: Final = get_logger("ayes.ops.workers")

#: The kinds of workers; most are also the role whose credentials they use.
KINDS: Final[tuple[str, ...]] = ("gate", "queue", "model", "executor")
#: Those that run only where they are configured.
OPTIONAL_KINDS: Final[tuple[str, ...]] = (
    "webhooks", "notifier", "slack", "delegator", "absence", "sealer",
    "copier",
)  # fmt: skip
#: The roles of the kinds that have none of their own.
_ROLES: Final = {"delegator": "service", "sealer": "observer", "copier": "observer"}


def role_of(kind: str) -> str:
    """The role whose credentials a worker of this kind uses."""
    return _ROLES.get(kind, kind)


#: What a notifier sends through, and how it makes links.
type Notifying = tuple[Channels, LinkTo]


def reactions(
    kinds: Sequence[str],
    *,
    models: Mapping[str, Model] | None = None,
    tools: Tools | None = None,
    notifying: Notifying | None = None,
    slack: "SlackQuestions | None" = None,
    webhooks: EndpointFile | None = None,
    agents: Mapping[str, SubAgent] | None = None,
    absences: Mapping[str, Absence] | None = None,
    login: str = "",
    schedules: Mapping[str, Schedule] | None = None,
) -> list[tuple[str, Reaction[Any, Any]]]:
    """The role and the reactions of each kind.

    An executor without tools closes calls that never run, and leaves approved ones to others.

    Args:
        login: that of an executor or a model with some workspaces, which runs its own tools, and
            answers its own threads, alone.
    """

    def of(kind: str) -> list[Reaction[Any, Any]]:
        match kind:
            case "gate":
                return [Gate()]
            case "queue":
                return [PendingProjector()]
            case "model":
                return [ModelWorker(models or _providers(), login=login)]
            case "executor" if tools is not None:
                return [Executor(tools, group=login or "executor")]
            case "executor":
                return [Executor({}, group="", durable="executor" if login else "closer")]
            case "notifier" if notifying is not None:
                channels, link_to = notifying
                return [Notifier(channels, link_to=link_to, later=later) for later in (False, True)]
            case "slack" if slack is not None:
                return [slack]
            case "webhooks" if webhooks is not None:
                return [Webhooks(webhooks, Sender())]
            case "delegator" if agents is not None:
                return [Delegator(agents)]
            case "absence" if absences is not None or schedules is not None:
                return [Absences(absences or {}, schedules=schedules)]
            case "sealer" | "copier":  # `ops/sealing`: they read alone
                return []
            case _:
                raise KeyError(kind)

    return [(role_of(kind), reaction) for kind in kinds for reaction in of(kind)]


def durables(started: Sequence[tuple[str, Reaction[Any, Any]]]) -> list[str]:
    """The durable consumers of these reactions."""
    return [durable for _, reaction in started for durable in reaction.durables]


@asynccontextmanager
async def working(
    started: Sequence[tuple[str, Reaction[Any, Any]]],
    *,
    store: Path | str | None = None,
    url: str | None = None,
    ack_wait_s: float = ACK_WAIT_S,
    declare: Callable[[], Awaitable[None]] | None = None,
    each: Callable[[list[RawMessage]], None] = lambda _facts: None,
    trust: Trust | None = None,
    keys: ThreadKeys | None = None,
) -> AsyncGenerator[asyncio.Future[None]]:
    """Run these reactions for as long as the block does; then finish the work in progress.

    Args:
        declare: creates the durables of these workers again, should one be deleted meanwhile; None:
            another process must.
        each: called with all facts that the replica receives, as raw messages.
        trust: by what they judge signatures.
        keys: with which executors open what is sealed; those of forgotten threads are destroyed.

    Raises:
        BadInput: it is of another log.

    Yields a future that fails when the broker refuses a right that a worker needs, or is gone for
    good. A task that fails in another way is restarted.
    """
    async with AsyncExitStack() as stack:
        workers: list[Worker[Any, Any]] = []
        running: list[asyncio.Task[None]] = []
        replica: ReadReplica | None = None
        for role, reaction in started:
            connecting = JetStream.connect(store, url=url, role=role)
            log = await stack.enter_async_context(connecting)
            log.declare = declare
            ledger = Ledger.on(log, role)
            await ledger.trust_in(trust)
            if keys is not None and role == "executor":
                ledger.keys = keys
                if found := await destroy_forgotten(ledger, keys):
                    _log.warning("keys of forgotten threads were here", threads=[*map(str, found)])
            is_whole = not log.connection.login.workspaces
            if replica is None and is_whole and not reaction.replaces:
                # Every role may read everything, so one replica serves all.
                replica = ReadReplica(log, each=each)
                # Without it the broker is read instead, so only a log that lost its end ends it.
                reading = keep_running("replica", replica.run, ends=(LogLost,))
                running.append(asyncio.create_task(reading, name="replica"))
            worker = Worker(
                ledger,
                reaction,
                ack_wait_s=ack_wait_s,
                replica=replica,
                concurrency=SENDING if isinstance(reaction, Notifier) else CONCURRENCY,
            )
            workers.append(worker)
            running.append(asyncio.create_task(worker.run(), name=f"worker {role}"))
            running.append(asyncio.create_task(gone(log), name=f"connection {role}"))
            beside: dict[str, Callable[[], Awaitable[None]]] = {}
            if role == "slack":
                logins = await stack.enter_async_context(Logins.of(Store(store)))
                beside["listening to Slack"] = _clicks(reaction, ledger, logins).listen
            if role == "queue":
                beside["index"] = partial(keep_index, ledger)
            if isinstance(reaction, Absences):
                beside["calendars"] = partial(reaction.keep, ledger)
            if isinstance(reaction, Webhooks):
                beside["webhooks"] = partial(reaction.send, ledger, replica)
            for what, run in beside.items():
                running.append(asyncio.create_task(keep_running(what, run), name=what))
        failed = asyncio.ensure_future(_first_failure(running))
        try:
            yield failed
        finally:
            for worker in workers:
                worker.stop()
            failed.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await failed
            for task in running:
                if not task.get_name().startswith("worker"):
                    task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            _log.debug("workers stopped", kinds=[role for role, _ in started])


async def until_signalled(
    *ends: asyncio.Future[Any], ready: Callable[[], None] = lambda: None
) -> None:
    """Wait for Ctrl-C or SIGTERM, or for one of `ends`, whose failure is raised.

    Args:
        ready: called once signals are handled; before that, one would kill the process.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    signalled = asyncio.create_task(stop.wait())
    try:
        ready()
        done, _ = await asyncio.wait({signalled, *ends}, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        signalled.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _first_failure(running: Sequence[asyncio.Task[None]]) -> None:
    never = asyncio.create_task(asyncio.Event().wait())  # with no tasks, nothing can fail
    try:
        done, _ = await asyncio.wait({never, *running}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        never.cancel()


async def gone(log: JetStream) -> None:
    """Wait until the connection can never be made again, and fail with `BrokerAway`."""
    await log.connection.closed.wait()
    raise BrokerAway(
        f"the connection to {log.connection.login.url} is gone for good. Start this again."
    )


def _clicks(questions: Any, ledger: Ledger, logins: Logins) -> "SlackClicks":
    """The votes of people in Slack; its packages are imported only where it runs."""
    from ayes.consumers.slack.clicks import SlackClicks

    return SlackClicks(questions, ledger, logins.reviewer)


def _providers() -> Mapping[str, Model]:
    """All providers of pydantic-ai, if it is installed."""
    if find_spec("pydantic_ai") is None:
        _log.info("no model providers: install ayes[agents] to have threads answered by one")
        return {}
    return dict.fromkeys(_PYDANTIC_AI, _Providers())


class _Providers:
    """Loads pydantic-ai when a model is first asked: that takes two seconds, and few need it."""

    async def reply(self, question: ModelRequest) -> ModelReply:
        answer: ModelReply = await (await self._loaded()).reply(question)
        return answer

    async def stream(self, question: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        answer: ModelReply = await (await self._loaded()).stream(question, on_text)
        return answer

    async def _loaded(self) -> Any:
        providers = await asyncio.to_thread(
            importlib.import_module, "ayes.consumers.pydantic_ai_model"
        )
        return providers.PydanticAI()


#: The part before the colon in the model names of pydantic-ai.
_PYDANTIC_AI: Final = (
    "anthropic", "azure", "bedrock", "cerebras", "cohere", "deepseek", "fireworks", "google",
    "google-gla", "google-vertex", "grok", "groq", "heroku", "huggingface", "litellm", "mistral",
    "moonshotai", "ollama", "openai", "openai-chat", "openai-responses", "openrouter", "together",
    "vercel", "xai",
)  # fmt: skip
