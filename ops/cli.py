"""The command line: every command, its options, and how it ends. What it does is in `ops/commands/`.

Data goes to stdout, everything else to stderr. With `--json` the data is JSON, one object a line, and so is an error.
Nothing heavy is imported here, so that `ayes --help` answers at once.

    exit codes   0 ok or approved   1 error   2 usage or bad input   3 wait timed out
                 4 not allowed      5 denied  6 expired              8 pending
"""

import functools
import json as jsonlib
import os
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from ayes.ops.terminal.times import parse_duration
from ayes.schemas.errors import ApprovalsError, BadInput


class _Chapters(TyperGroup):
    """Help as plain text, the commands by chapter. Rich's boxes would take longer to load than all the rest."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        chapters: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            chapter = chapters.setdefault(command.rich_help_panel, [])  # type: ignore[attr-defined]
            chapter.append((name, command.help or ""))
        for title, commands in chapters.items():
            with formatter.section(title):
                formatter.write_dl(commands)


app: Final = typer.Typer(
    name="ayes",
    cls=_Chapters,
    rich_markup_mode=None,
    help="An event-sourced ledger of approvals for AI agents.",
    epilog="Start with `ayes demo`, or with `ayes up` in one terminal and the rest in another.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
policy_app: Final = typer.Typer(no_args_is_help=True)
tool_app: Final = typer.Typer(no_args_is_help=True)
grant_app: Final = typer.Typer(no_args_is_help=True)
delegate_app: Final = typer.Typer(no_args_is_help=True)
lake_app: Final = typer.Typer(no_args_is_help=True)
parked_app: Final = typer.Typer(no_args_is_help=True)
app.add_typer(lake_app, name="lake", help="The log as tables, for analysts.", rich_help_panel="Analyse")
app.add_typer(tool_app, name="tool", help="What can be asked for.", rich_help_panel="Run")
app.add_typer(policy_app, name="policy", help="What is asked about, and who is asked.", rich_help_panel="Run")

_INTERRUPTED: Final = 130


def main() -> None:
    app()


def _runs[**P](function: Callable[P, Coroutine[Any, Any, int | None]]) -> Callable[P, None]:
    """Run an async command to its end, and turn what went wrong into a sentence and an exit code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        import asyncio

        from ayes.ops.terminal import logs

        logs.setup(verbose=bool(os.environ.get("AYES_VERBOSE")))
        try:
            code = asyncio.run(function(*args, **kwargs))
        except ApprovalsError as problem:
            _fail(problem, as_json=bool(kwargs.get("json")))
        except BaseExceptionGroup as group:
            first = _first(group)
            if first is None:
                raise
            _fail(first, as_json=bool(kwargs.get("json")))
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output has had enough. Nothing more can be written, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        raise typer.Exit(code or 0)

    return run


def _fail(problem: ApprovalsError, *, as_json: bool) -> NoReturn:
    told = {"error": type(problem).__name__, "message": str(problem), "exit_code": problem.exit_code}
    from ayes.ops.terminal.output import print_message, say_error

    if as_json:
        print_message(jsonlib.dumps(told))
    else:
        say_error(problem)
    raise typer.Exit(problem.exit_code)


def _ack_wait_s(text: str) -> float:
    return parse_duration("--ack-wait", text, least=0.5)


def _bytes(text: str | None) -> int | None:
    """Read a number of bytes, such as 20GB.

    Raises:
        BadInput: it is not a number of bytes.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,15})\s*(KB|MB|GB|TB|KiB|MiB|GiB|TiB|B)?", text.strip())
    if found is None:
        raise BadInput(f"--max-bytes {text!r} is not a number of bytes. It looks like 20GB or 500MiB.")
    number, unit = found.groups(default="B")
    base = 1024 if "i" in unit else 1000
    size = int(number)
    for _ in range("BKMGT".index(unit[0])):
        size *= base
    return size


def _first(group: BaseExceptionGroup[BaseException]) -> ApprovalsError | None:
    """The first of ours in a group, however deep; None when there is none."""
    for one in group.exceptions:
        found = _first(one) if isinstance(one, BaseExceptionGroup) else one
        if isinstance(found, ApprovalsError):
            return found
    return None


StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        envvar="AYES_STORE",
        help="The directory that the broker runs from; yours by default.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="AYES_URL",
        help="A broker that runs elsewhere, as nats://user:password@host:port.",
        show_default=False,
    ),
]
#: Of a command that must not write where a variable of the environment points: only where it is told to.
GivenStoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="DIR", help="Keep it in this store; else it is thrown away.", show_default=False
    ),
]
GivenUrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", help="A broker that runs elsewhere, as nats://user:password@host:port.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]
MaxBytesOption = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        help="The most that the log may hold, such as 50GB; 16 GiB where nothing is said.",
        show_default=False,
    ),
]
AcceptLogOption = Annotated[
    bool, typer.Option("--accept-log", help="Go on with a log that is not the one that was seen before.")
]
WorkspaceOption = Annotated[str, typer.Option("-w", "--workspace", metavar="WS", help="The workspace.")]
CallArgument = Annotated[
    str, typer.Argument(metavar="CALL", help="workspace/thread/call", show_default=False)
]
ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="workspace/thread", show_default=False)]
AsOption = Annotated[
    str,
    typer.Option("--as", metavar="NAME", envvar="AYES_AS", help="The reviewer: you.", show_default=False),
]
ReasonOption = Annotated[str, typer.Option("--reason", help="In words. A model that is denied reads it.")]
WhyOption = Annotated[str, typer.Option("--reason", help="In words.")]
MaybeCallArgument = Annotated[
    str | None,
    typer.Argument(metavar="CALL", help="workspace/thread/call; or --all", show_default=False),
]
AllOption = Annotated[bool, typer.Option("--all", help="All that waits, or what the next three leave of it.")]
AllToolOption = Annotated[
    str, typer.Option("--tool", metavar="PATTERN", help="With --all: only calls of such a tool.")
]
AllWorkspaceOption = Annotated[
    str, typer.Option("-w", "--workspace", metavar="WS", help="With --all: only this workspace.")
]
AllThreadOption = Annotated[
    str, typer.Option("--thread", metavar="THREAD", help="With --all: only this one, workspace/thread.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]
DigestOption = Annotated[
    str,
    typer.Option(
        "--digest",
        metavar="HEX",
        help="Do not ask, and vote only if what waits has this digest: 12 hex digits of it or more.",
    ),
]
BehalfOption = Annotated[
    str,
    typer.Option(
        "--for", metavar="NAME", help="Whose vote it is, by their delegation; else found by itself."
    ),
]
NamedOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="What to call it; else a name is made up.")
]
OrganisationOption = Annotated[
    bool, typer.Option("--organisation", help="The one that holds in every workspace.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="FILE.toml", help="Apply this policy first.", show_default=False),
]
RecordingOption = Annotated[
    str | None,
    typer.Option("--recording", metavar="FILE.jsonl", help="Model and executor answer from this recording."),
]

ToolsOption = Annotated[
    str | None,
    typer.Option("--tools", metavar="MODULE:NAME", help="The executor's tools; declared in the workspace."),
]

NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", help="As `parked ls` shows it.", show_default=False)
]
NumbersArgument = Annotated[
    list[int], typer.Argument(metavar="NUMBER...", help="As `parked ls` shows them.", show_default=False)
]

# ------------------------------------------------------------------------------------------------------ run


@app.command(rich_help_panel="Run")
@_runs
async def up(
    store: StoreOption = None,
    policy: PolicyOption = None,
    tools: ToolsOption = None,
    workspace: WorkspaceOption = "default",
    workers: Annotated[
        str,
        typer.Option(
            "--workers", metavar="KINDS", help="Comma-separated: gate,queue,model,executor; or none."
        ),
    ] = "gate,queue,model,executor",
    ack_wait: Annotated[
        str,
        typer.Option("--ack-wait", metavar="DURATION", help="A worker silent for so long is taken for dead."),
    ] = "30s",
    sync: Annotated[
        str,
        typer.Option("--sync", help="Flush to disk: always (before each ack), or an interval such as 2m."),
    ] = "always",
    max_bytes: MaxBytesOption = None,
    accept_log: AcceptLogOption = False,
    json: JsonOption = False,
) -> None:
    """Run a broker and all workers in this process, until Ctrl-C."""
    from ayes.ops.commands import run

    await run.up(
        store,
        policy=policy,
        tools=tools,
        workspace=workspace,
        kinds=workers,
        ack_wait_s=_ack_wait_s(ack_wait),
        sync=sync if sync == "always" else f"{parse_duration('--sync', sync, least=0.001):f}s",
        max_bytes=_bytes(max_bytes),
        accept_log=accept_log,
        json=json,
    )


@app.command(rich_help_panel="Run")
@_runs
async def work(
    kinds: Annotated[list[str], typer.Argument(metavar="KIND...", help="gate, queue, model, executor")],
    recording: RecordingOption = None,
    tools: ToolsOption = None,
    workspace: WorkspaceOption = "default",
    ack_wait: Annotated[
        str, typer.Option("--ack-wait", metavar="DURATION", help="As `up` was told.")
    ] = "30s",
    accept_log: AcceptLogOption = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Run some workers in a process of their own, beside a broker that runs already."""
    from ayes.ops.commands import run

    await run.work(
        kinds,
        recording=recording,
        tools=tools,
        workspace=workspace,
        ack_wait_s=_ack_wait_s(ack_wait),
        accept_log=accept_log,
        store=store,
        url=url,
        json=json,
    )


@app.command(rich_help_panel="Run")
@_runs
async def demo(json: JsonOption = False) -> None:
    """A small agent asks, somebody decides, the tool runs. Nothing to set up; under 15 seconds."""
    from ayes.ops.commands import demo

    await demo.demo(json=json)


@app.command(rich_help_panel="Run")
@_runs
async def rehearse(
    file: Annotated[
        str, typer.Argument(metavar="FILE.jsonl", help="Conversations, one a line: id and messages.")
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--form",
            metavar="PROVIDER",
            help="FILE as another system keeps it: openai-chat, openai-responses, anthropic, gemini, ai-sdk, ai-sdk-ui, pydantic-ai",
            show_default=False,
        ),
    ] = None,
    policy: PolicyOption = None,
    reviewer: Annotated[
        str,
        typer.Option("--reviewer", metavar="approve|deny|FILE.toml", help="How the scripted reviewer votes."),
    ] = "approve",
    workspace: WorkspaceOption = "rehearsal",
    workers: Annotated[
        bool,
        typer.Option("--workers/--no-workers", help="Answer from the recording here, or in `ayes work`."),
    ] = True,
    ack_wait: Annotated[str, typer.Option("--ack-wait", metavar="DURATION", help="As for `up`.")] = "30s",
    store: GivenStoreOption = None,
    url: GivenUrlOption = None,
    json: JsonOption = False,
) -> int:
    """Drive recorded conversations through the real thing: model and tools answer as they once did."""
    from ayes.ops.commands import run

    return await run.rehearse(
        file,
        form=form,
        policy=policy,
        reviewer=reviewer,
        workspace=workspace,
        with_workers=workers,
        ack_wait_s=_ack_wait_s(ack_wait),
        store=store,
        url=url,
        json=json,
    )


@app.command(rich_help_panel="Run")
@_runs
async def setup(
    replicas: Annotated[
        int, typer.Option("--replicas", help="Copies of each stream: 1, or 3 on a cluster.", min=1, max=5)
    ] = 1,
    max_bytes: MaxBytesOption = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Create the streams and consumers on a broker of your own, as its administrator. `up` does it by itself."""
    from ayes.ops.commands import run

    await run.setup(replicas=replicas, max_bytes=_bytes(max_bytes), store=store, url=url, json=json)


@tool_app.command("declare")
@_runs
async def tool_declare(
    file: Annotated[
        str, typer.Argument(metavar="FILE.toml", help="[[tool]] tables: name, description, schema.")
    ],
    workspace: WorkspaceOption = "default",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Declare tools that services or scripts run themselves, so that they can be requested."""
    from ayes.ops.commands import run

    await run.tool_declare(file, workspace, store=store, url=url, json=json)


@policy_app.command("apply")
@_runs
async def policy_apply(
    file: Annotated[str | None, typer.Argument(metavar="FILE.toml", show_default=False)] = None,
    workspace: WorkspaceOption = "default",
    organisation: OrganisationOption = False,
    propose: Annotated[
        bool, typer.Option("--propose", help="Only propose it: somebody else must approve it first.")
    ] = False,
    requester: Annotated[
        str,
        typer.Option(
            "--for", metavar="NAME", help="With --propose: whose proposal it is; they cannot vote on it."
        ),
    ] = "",
    proposal: Annotated[
        str | None,
        typer.Option(
            "--proposal", metavar="CALL", help="Apply what was proposed and approved, in place of a file."
        ),
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Make a file the policy of a workspace from now on. What was asked before stays as it was asked."""
    from ayes.ops.commands import run

    if (file is None) == (proposal is None):
        raise BadInput(
            "a policy is applied from FILE.toml or as it was proposed with --proposal: give one of them."
        )
    if (propose and (proposal or organisation or not requester)) or (requester and not propose):
        raise BadInput(
            "--propose goes with FILE.toml, -w and --for NAME, whose proposal it is; --for with it alone."
        )
    _one_owner(workspace, organisation=organisation)
    if proposal is not None:
        await run.policy_apply_proposal(proposal, store=store, url=url, json=json)
    elif propose and file is not None:
        return await run.policy_propose(file, workspace, requester, store=store, url=url, json=json)
    elif file is not None:
        await run.policy_apply(file, workspace, organisation=organisation, store=store, url=url, json=json)
    return 0


@policy_app.command("show")
@_runs
async def policy_show(
    workspace: WorkspaceOption = "default",
    organisation: OrganisationOption = False,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="This one; else the one in force.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """A policy as it was applied: the one in force, or an older version."""
    from ayes.ops.commands import run

    _one_owner(workspace, organisation=organisation)
    await run.policy_show(workspace, version, organisation=organisation, store=store, url=url, json=json)


def _one_owner(workspace: str, *, organisation: bool) -> None:
    if organisation and workspace != "default":
        raise BadInput("the organisation's policy holds in every workspace. Leave out -w or --organisation.")


@policy_app.command("test")
@_runs
async def policy_test(
    file: Annotated[str, typer.Argument(metavar="FILE.toml")],
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="NAME", help="What would it say to a call of this tool?")
    ] = None,
    arguments: Annotated[str, typer.Option("--arguments", metavar="JSON", help="Of that call.")] = "{}",
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Whose agent wishes it.")] = "",
    requester: Annotated[
        str, typer.Option("--requester", metavar="NAME", help="On whose behalf: they cannot vote on it.")
    ] = "",
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Of its thread.")
    ] = None,
    workspace: WorkspaceOption = "default",
    json: JsonOption = False,
) -> None:
    """Read a policy file as `apply` does, without a broker; with --tool, say what it would say to such a call."""
    from ayes.ops.commands import policy

    await policy.test(
        file,
        tool=tool,
        arguments=arguments,
        agent=agent,
        requester=requester,
        labels=labels or (),
        workspace=workspace,
        json=json,
    )


@policy_app.command("explain")
@_runs
async def policy_explain(
    call: CallArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Why a call stands as it does: its rule, who must agree and who is missing; and what would be said now."""
    from ayes.ops.commands import policy

    await policy.explain(call, store=store, url=url, json=json)


@policy_app.command("backtest")
@_runs
async def policy_backtest(
    file: Annotated[str, typer.Argument(metavar="FILE.toml")],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="CONVERSATIONS.jsonl",
            help="The wishes of this file instead of the ledger's calls; needs no broker.",
        ),
    ] = None,
    form: Annotated[str | None, typer.Option("--form", metavar="PROVIDER", help="As for `rehearse`.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="SEQ|TIME", help="From there on: a number, or an ISO time (UTC)."),
    ] = None,
    workspace: Annotated[
        str, typer.Option("-w", "--workspace", metavar="WS", help="Only this workspace.")
    ] = "",
    organisation: Annotated[
        bool,
        typer.Option("--organisation", help="Try it as the organisation's, beside each workspace's own."),
    ] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Try a policy on every call that was ever made: what it would have asked, allowed, blocked. Nothing is recorded."""
    from ayes.ops.commands import policy

    await policy.backtest(
        file,
        on=on,
        form=form,
        since=since,
        workspace=workspace,
        organisation=organisation,
        store=store,
        url=url,
        json=json,
    )


# --------------------------------------------------------------------------------------------------- decide


@app.command(rich_help_panel="Decide")
@_runs
async def pending(
    workspace: Annotated[
        str, typer.Option("-w", "--workspace", metavar="WS", help="Only this workspace.")
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on with what is asked and decided, as it comes.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Only the N oldest.")] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """What waits for a decision, oldest first."""
    from ayes.ops.commands import decide

    await decide.pending(workspace, watch=watch, limit=limit, store=store, url=url, json=json)


@app.command(rich_help_panel="Decide")
@_runs
async def approve(
    name: AsOption,
    call: MaybeCallArgument = None,
    edit: Annotated[
        str | None, typer.Option("--edit", metavar="JSON", help="Run it with these arguments instead.")
    ] = None,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    every: AllOption = False,
    tool: AllToolOption = "",
    workspace: AllWorkspaceOption = "",
    thread: AllThreadOption = "",
    yes: YesOption = False,
    digest: DigestOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Say yes to a call, with exactly the arguments that it shows; or to all that waits."""
    from ayes.ops.commands import decide
    from ayes.projections.pending import PendingFilter

    ballot = decide.VoteInput("approve", reason, arguments=edit, behalf=behalf)
    chosen = PendingFilter(workspace, thread, tool)
    if _is_for_all(call, chosen, every=every, digest=digest):
        return await decide.vote_on_all(name, ballot, chosen, sure=yes, store=store, url=url, json=json)
    return await decide.vote(
        call or "", name, ballot, sure=yes, digest=digest, store=store, url=url, json=json
    )


@app.command(rich_help_panel="Decide")
@_runs
async def deny(
    name: AsOption,
    call: MaybeCallArgument = None,
    halt: Annotated[
        bool, typer.Option("--halt", help="The model is not asked again before a user says something.")
    ] = False,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    every: AllOption = False,
    tool: AllToolOption = "",
    workspace: AllWorkspaceOption = "",
    thread: AllThreadOption = "",
    yes: YesOption = False,
    digest: DigestOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Say no to a call; or to all that waits."""
    from ayes.ops.commands import decide
    from ayes.projections.pending import PendingFilter

    ballot = decide.VoteInput("deny", reason, behalf=behalf, halt=halt)
    chosen = PendingFilter(workspace, thread, tool)
    if _is_for_all(call, chosen, every=every, digest=digest):
        return await decide.vote_on_all(name, ballot, chosen, sure=yes, store=store, url=url, json=json)
    return await decide.vote(
        call or "", name, ballot, sure=yes, digest=digest, store=store, url=url, json=json
    )


def _is_for_all(call: str | None, chosen: tuple[str, ...], *, every: bool, digest: str) -> bool:
    if (call is None) != every:
        raise BadInput("name one CALL, or give --all for all that waits.")
    if not every and any(chosen):
        raise BadInput("--tool, --workspace and --thread go with --all. Here one call is named.")
    if every and digest:
        raise BadInput("--digest is of one call. Name it instead of giving --all.")
    return every


@app.command(rich_help_panel="Decide")
@_runs
async def answer(
    call: CallArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model gets as the tool's output.")],
    name: AsOption,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    yes: YesOption = False,
    digest: DigestOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Answer in place of the tool, which does not run."""
    from ayes.ops.commands import decide

    ballot = decide.VoteInput("answer", reason, answer=text, behalf=behalf)
    return await decide.vote(call, name, ballot, sure=yes, digest=digest, store=store, url=url, json=json)


@app.command("break-glass", rich_help_panel="Decide")
@_runs
async def break_glass(
    call: CallArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why nobody else can be asked.")],
    name: AsOption,
    yes: YesOption = False,
    digest: DigestOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Let a call run alone, in an emergency, where the policy lets you. It is announced before it is decided."""
    from ayes.ops.commands import decide

    ballot = decide.VoteInput("break_glass", reason)
    return await decide.vote(call, name, ballot, sure=yes, digest=digest, store=store, url=url, json=json)


@app.command(rich_help_panel="Decide")
@_runs
async def hear(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="As somebody wrote it in a chat.")],
    name: AsOption,
    workspace: WorkspaceOption = "default",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Vote as a message says, if all of it is a verdict: `approve CALL`, `deny CALL: why`. Anything else is none."""
    from ayes.ops.commands import decide

    return await decide.hear(message, name, workspace, store=store, url=url, json=json)


@app.command(rich_help_panel="Decide")
@_runs
async def revoke(
    call: CallArgument,
    name: AsOption,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Take an approval back before the tool starts."""
    from ayes.ops.commands import decide

    await decide.revoke(call, name, reason=reason, store=store, url=url, json=json)


@app.command(rich_help_panel="Decide")
@_runs
async def reconcile(
    call: CallArgument,
    name: AsOption,
    happened: Annotated[bool, typer.Option("--happened/--did-not-happen", help="What you found out.")],
    output: Annotated[str, typer.Option("--output", metavar="TEXT", help="What the model reads.")] = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Say what became of a call in doubt: it was started, and nobody knows how it ended."""
    from ayes.ops.commands import decide

    await decide.reconcile(call, name, happened=happened, output=output, store=store, url=url, json=json)


app.add_typer(grant_app, name="grant", help="Saying yes in advance.", rich_help_panel="Decide")
app.add_typer(delegate_app, name="delegate", help="Another person in one's place.", rich_help_panel="Decide")


@grant_app.command("give")
@_runs
async def grant_give(
    name: AsOption,
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="Until then: 90s, 15m, 8h, 7d.")],
    call: Annotated[
        str | None,
        typer.Argument(metavar="CALL", help="Calls like this: workspace/thread/call", show_default=False),
    ] = None,
    uses: Annotated[int, typer.Option("--uses", metavar="N", help="So many calls, 1 to 1,000.")] = 1,
    any_arguments: Annotated[
        bool, typer.Option("--any-arguments", help="With any arguments; else with exactly the call's.")
    ] = False,
    when: Annotated[
        str, typer.Option("--when", metavar="CONDITION", help="With arguments that this CEL holds for.")
    ] = "",
    any_thread: Annotated[
        bool, typer.Option("--any-thread", help="In any thread; else in the call's.")
    ] = False,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="PATTERN", help="By such an agent; else by the call's, or any."),
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="TOOL", help="Without a call: of this tool.")
    ] = None,
    workspace: WorkspaceOption = "default",
    named: NamedOption = "",
    reason: WhyOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Allow calls like this one until then, so many times. It is your vote, given early; on this call it is given now."""
    from ayes.ops.commands import grants

    like = grants.Like(call, tool, workspace, any_arguments, when, agent, any_thread)
    await grants.give(
        like,
        name,
        for_s=parse_duration("--for", duration),
        uses=uses,
        named=named,
        reason=reason,
        store=store,
        url=url,
        json=json,
    )


@grant_app.command("list")
@_runs
async def grant_list(
    workspace: WorkspaceOption = "default",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Every grant of a workspace: in force, revoked, ended or used up; how many uses are left, and until when."""
    from ayes.ops.commands import grants

    await grants.show_grants(workspace, store=store, url=url, json=json)


@grant_app.command("revoke")
@_runs
async def grant_revoke(
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="workspace/giver/name")],
    name: AsOption,
    reason: WhyOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Take a grant back, whoever gave it."""
    from ayes.ops.commands import grants

    await grants.revoke(grant, name, reason=reason, store=store, url=url, json=json)


@delegate_app.command("give")
@_runs
async def delegate_give(
    to: Annotated[str, typer.Argument(metavar="NAME", help="Who votes in your place.")],
    name: AsOption,
    starts: Annotated[str, typer.Option("--from", metavar="TIME", help="ISO, UTC: 2026-11-21T08:00.")],
    ends: Annotated[str, typer.Option("--until", metavar="TIME", help="The same.")],
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", metavar="PATTERN", help="Only for such tools; may be repeated."),
    ] = None,
    workspace: WorkspaceOption = "default",
    named: NamedOption = "",
    reason: WhyOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Let another person vote in your place for a time. Their decisions say: ben for ana."""
    from ayes.ops.commands import grants

    await grants.delegate(
        to,
        workspace,
        name,
        starts=starts,
        ends=ends,
        tools=tuple(tool or ("*",)),
        named=named,
        reason=reason,
        store=store,
        url=url,
        json=json,
    )


@delegate_app.command("list")
@_runs
async def delegate_list(
    workspace: WorkspaceOption = "default",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Every delegation of a workspace: who votes for whom, from when until when."""
    from ayes.ops.commands import grants

    await grants.show_delegations(workspace, store=store, url=url, json=json)


@delegate_app.command("end")
@_runs
async def delegate_end(
    delegation: Annotated[str, typer.Argument(metavar="DELEGATION", help="workspace/giver/name")],
    name: AsOption,
    reason: WhyOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """End your delegation before its time."""
    from ayes.ops.commands import grants

    await grants.end_delegation(delegation, name, reason=reason, store=store, url=url, json=json)


# ------------------------------------------------------------------------------------------------------ ask


@app.command(rich_help_panel="Ask")
@_runs
async def request(
    call: CallArgument,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="A tool declared in the workspace.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments.")] = "{}",
    requester: Annotated[
        str, typer.Option("--for", metavar="NAME", help="On whose behalf: they cannot vote on it.")
    ] = "",
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent that wishes it.")] = "",
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="What rules may ask for.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Ask for a tool to be run, as a service does. Then: ayes wait CALL."""
    from ayes.ops.commands import decide

    return await decide.request(
        call,
        tool,
        arguments,
        requester=requester,
        agent=agent,
        labels=labels or (),
        store=store,
        url=url,
        json=json,
    )


@app.command(rich_help_panel="Ask")
@_runs
async def wait(
    call: CallArgument,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Such as 90s; for ever by default.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Wait until a call is decided: exit 0 approved, 5 denied, 6 expired, 3 timed out (8 with --timeout 0)."""
    from ayes.ops.commands import decide

    timeout_s = None if timeout is None else parse_duration("--timeout", timeout)
    return await decide.wait(call, timeout_s=timeout_s, store=store, url=url, json=json)


@app.command(rich_help_panel="Ask")
@_runs
async def start(
    call: CallArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Claim an approved call that you run yourself: only when this ends with 0 may you run it. Then: ayes finish."""
    from ayes.ops.commands import decide

    await decide.start(call, store=store, url=url, json=json)


@app.command(rich_help_panel="Ask")
@_runs
async def finish(
    call: CallArgument,
    text: Annotated[
        str | None, typer.Option("--output", metavar="TEXT", help="What the model reads; - for stdin.")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="It ran and failed with this; - for stdin.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Say how a call went that you ran yourself. Claims it first, if `ayes start` did not."""
    from ayes.ops.commands import decide

    await decide.finish(call, text, error, store=store, url=url, json=json)


@app.command(rich_help_panel="Ask")
@_runs
async def doubt(
    call: CallArgument,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Say that whoever ran a call is gone, and nobody knows how it ended. Then a person reconciles it."""
    from ayes.ops.commands import decide

    await decide.doubt(call, reason=reason, store=store, url=url, json=json)


@app.command(rich_help_panel="Ask")
@_runs
async def withdraw(
    call: CallArgument,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Take a wish back, from the requester's side."""
    from ayes.ops.commands import decide

    return await decide.withdraw(call, reason=reason, store=store, url=url, json=json)


# ----------------------------------------------------------------------------------------------------- look


@app.command(rich_help_panel="Look")
@_runs
async def show(
    call: CallArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Every fact about a call."""
    from ayes.ops.commands import look

    await look.show(call, store=store, url=url, json=json)


@app.command(rich_help_panel="Look")
@_runs
async def thread(
    thread: ThreadArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Every fact in a conversation."""
    from ayes.ops.commands import look

    await look.thread(thread, store=store, url=url, json=json)


@app.command(rich_help_panel="Look")
@_runs
async def watch(
    start: Annotated[
        int | None,
        typer.Option("--from", metavar="SEQ", help="From this fact on; default: only what comes.", min=1),
    ] = None,
    until_now: Annotated[bool, typer.Option("--until-now", help="End with the last one there is.")] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Facts as they are recorded, until Ctrl-C; or with --from 1 --until-now, all that there are."""
    from ayes.ops.commands import look

    await look.watch(start, until_now=until_now, store=store, url=url, json=json)


@app.command(rich_help_panel="Look")
@_runs
async def history(
    thread: ThreadArgument,
    provider: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PROVIDER",
            help="openai-chat, openai-responses, anthropic, gemini, ai-sdk, ai-sdk-ui, pydantic-ai",
        ),
    ] = "openai-chat",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """A conversation as a model goes on from it: the messages of that provider's API, as JSON."""
    from ayes.ops.commands import look

    await look.history_of(thread, provider, store=store, url=url, json=json)


# ---------------------------------------------------------------------------------------------------- check


@app.command(rich_help_panel="Check")
@_runs
async def check(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON: the messages, or the request with them; - for stdin.")
    ],
    provider: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="PROVIDER",
            help="openai-chat, openai-responses, anthropic, gemini, ai-sdk, ai-sdk-ui, pydantic-ai",
        ),
    ],
    json: JsonOption = False,
) -> int:
    """What that provider would turn down in a list of messages, and what to do; exit 1 if there is anything."""
    from ayes.ops.commands import look

    return await look.check_messages(file, provider, json=json)


@app.command(rich_help_panel="Check")
@_runs
async def replay(
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare what is rebuilt with what is live.")
    ] = False,
    projection: Annotated[
        str | None,
        typer.Option(
            "--projection",
            metavar="NAME",
            help="Show the rows of one of them: pending, histories, calls.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="SEQ|TIME", help="Stop there: a number, or an ISO time (UTC)."),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="BUCKET",
            help="Put the rows into a key-value bucket of this name, beside the live one.",
            show_default=False,
        ),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Say where the live queue is not what the log gives; then exit 1.")
    ] = False,
    swap: Annotated[bool, typer.Option("--swap", help="Make the live queue what the log gives.")] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Rebuild every projection from the first fact, or one; with --verify, exit 1 at the first difference."""
    from ayes.ops.commands import replay as replaying
    from ayes.schemas.errors import BadInput

    if projection is None:
        if into is not None or diff or swap:
            raise BadInput(
                "--into, --diff and --swap need to know of which projection: add --projection pending."
            )
        return await replaying.verified(verify=verify, until=until, store=store, url=url, json=json)
    if verify:
        raise BadInput("--verify looks at every projection, so it goes without --projection.")
    return await replaying.projected(
        projection, until=until, into=into, diff=diff, swap=swap, store=store, url=url, json=json
    )


@app.command(rich_help_panel="Check")
@_runs
async def doctor(
    deep: Annotated[bool, typer.Option("--deep", help="Look at the whole log, however long it is.")] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Is everything as it should be? Server, streams, consumers, permissions. Exit 1 if not."""
    from ayes.ops.commands import check

    return await check.doctor(deep=deep, store=store, url=url, json=json)


@app.command(rich_help_panel="Check")
@_runs
async def status(store: StoreOption = None, url: UrlOption = None, json: JsonOption = False) -> None:
    """How much there is, how far each consumer is behind, what is parked and what is pending."""
    from ayes.ops.commands import check

    await check.status(store=store, url=url, json=json)


app.add_typer(parked_app, name="parked", help="What consumers gave up on.", rich_help_panel="Check")


@parked_app.command("ls")
@_runs
async def parked_ls(
    every: Annotated[bool, typer.Option("--all", help="Also what was settled or dropped since.")] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """What consumers gave up on, and why, oldest first."""
    from ayes.ops.commands import parked

    await parked.ls(every=every, store=store, url=url, json=json)


@parked_app.command("show")
@_runs
async def parked_show(
    number: NumberArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """One of them, with the payload of its fact as the log has it."""
    from ayes.ops.commands import parked

    await parked.show(number, store=store, url=url, json=json)


@parked_app.command("retry")
@_runs
async def parked_retry(
    numbers: NumbersArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Have its consumer handle it again, at once or as soon as one works."""
    from ayes.ops.commands import parked

    await parked.mark("retry", numbers, store=store, url=url, json=json)


@parked_app.command("drop")
@_runs
async def parked_drop(
    numbers: NumbersArgument,
    reason: WhyOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Say that it was seen, and take it off the list. The fact stays in the log."""
    from ayes.ops.commands import parked

    await parked.mark("drop", numbers, reason=reason, store=store, url=url, json=json)


# -------------------------------------------------------------------------------------------------- analyse

ToOption = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="DIR",
        envvar="AYES_ARCHIVE",
        help="The archive; by default `archive` in the store.",
        show_default=False,
    ),
]


@lake_app.command("sync")
@_runs
async def lake_sync(
    to: ToOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as facts come, until Ctrl-C.")] = False,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Bring the tables up to the log: from a running broker, or from a store that nobody has open."""
    from ayes.ops.commands import lake

    return await lake.sync(to=to, follow=follow, store=store, url=url, json=json)


@lake_app.command("verify")
@_runs
async def lake_verify(
    to: ToOption = None, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> int:
    """Is every file what was written, and every row what the log has? Exit 1 if not."""
    from ayes.ops.commands import lake

    return await lake.verify(to=to, store=store, url=url, json=json)


@app.command("sql", rich_help_panel="Analyse")
@_runs
async def sql_(
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="QUERY", help="A SELECT; without one it is read from stdin.", show_default=False
        ),
    ] = None,
    csv: Annotated[
        bool,
        typer.Option(
            "--csv",
            help="CSV, with a line of names; an apostrophe before text that a spreadsheet would take for a formula.",
        ),
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="With --csv: the text exactly as it is.")] = False,
    parquet: Annotated[
        Path | None,
        typer.Option(
            "--parquet", metavar="FILE", help="Write the rows to this file instead.", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="A query that takes longer is stopped.")
    ] = "30s",
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="A query that needs more is stopped.")
    ] = "2GB",
    to: ToOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Ask the lake in SQL. Whatever the query says, it can only read."""
    from ayes.ops.commands import sql

    if json + csv + (parquet is not None) > 1:
        raise BadInput("--json, --csv and --parquet are one choice. Name one of them.")
    if raw and not csv:
        raise BadInput("--raw goes with --csv.")
    await sql.sql(
        query,
        form="json" if json else "raw csv" if raw else "csv" if csv else "table",
        parquet=parquet,
        to=to,
        timeout_s=parse_duration("--timeout", timeout, least=0.1),
        memory=sql.bytes_of("--memory", memory),
        store=store,
    )


@app.command(rich_help_panel="Analyse")
@_runs
async def ask(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Which question; else all are listed.", show_default=False),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Do not ask it: show what is asked, its SQL with a name.")
    ] = False,
    to: ToOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Ask the lake a saved question: who decides and how fast, what is denied, what waits, what nobody read."""
    from ayes.ops.commands import ask as asking

    await asking.ask(name, show=show, to=to, store=store, json=json)


@app.command(rich_help_panel="Analyse")
@_runs
async def report(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page.")],
    title: Annotated[str, typer.Option("--title", help="Its heading.")] = "Approvals",
    to: ToOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """The lake as one page with plots: readable offline, in light and in dark, and nothing in it runs."""
    from ayes.ops.commands import report as reporting

    await reporting.write(output, title=title, to=to, store=store, json=json)


if __name__ == "__main__":
    main()
