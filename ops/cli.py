"""The command line: every command, its options, and how it ends. What it does is in `ops/commands/`.

Data goes to stdout, everything else to stderr. With `--json` the data is JSON, one object a line, and so is an error.
Nothing heavy is imported here, so that `approvals --help` answers at once.

    exit codes   0 ok or approved   1 error   2 usage or bad input   3 wait timed out
                 4 not allowed      5 denied  6 expired              8 pending
"""

import functools
import json as jsonlib
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from schemas.errors import ApprovalsError


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
    name="approvals",
    cls=_Chapters,
    rich_markup_mode=None,
    help="An event-sourced ledger of approvals for AI agents.",
    epilog="Start with `approvals demo`, or with `approvals up` in one terminal and the rest in another.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
policy_app: Final = typer.Typer(no_args_is_help=True)
tool_app: Final = typer.Typer(no_args_is_help=True)
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

        from ops import logs

        logs.setup(verbose=bool(os.environ.get("APPROVALS_VERBOSE")))
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
    sys.stderr.write(f"{jsonlib.dumps(told) if as_json else f'error: {problem}'}\n")
    raise typer.Exit(problem.exit_code)


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
        envvar="APPROVALS_STORE",
        help="The directory that the broker runs from; yours by default.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="APPROVALS_URL",
        help="A broker that runs elsewhere, as nats://user:password@host:port.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]
WorkspaceOption = Annotated[str, typer.Option("-w", "--workspace", metavar="WS", help="The workspace.")]
CallArgument = Annotated[
    str, typer.Argument(metavar="CALL", help="workspace/thread/call", show_default=False)
]
ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="workspace/thread", show_default=False)]
AsOption = Annotated[
    str,
    typer.Option(
        "--as", metavar="NAME", envvar="APPROVALS_AS", help="The reviewer: you.", show_default=False
    ),
]
ReasonOption = Annotated[str, typer.Option("--reason", help="In words. A model that is denied reads it.")]
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
        float,
        typer.Option(
            "--ack-wait", metavar="S", help="A worker silent for so long is taken for dead.", min=0.5
        ),
    ] = 30.0,
    sync: Annotated[
        str,
        typer.Option("--sync", help="Flush to disk: always (before each ack), or an interval such as 2m."),
    ] = "always",
    json: JsonOption = False,
) -> None:
    """Run a broker and all workers in this process, until Ctrl-C."""
    from ops.commands import run

    await run.up(
        store,
        policy=policy,
        tools=tools,
        workspace=workspace,
        kinds=workers,
        ack_wait_s=ack_wait,
        sync=sync,
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
        float, typer.Option("--ack-wait", metavar="S", help="As `up` was told.", min=0.5)
    ] = 30.0,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Run some workers in a process of their own, beside a broker that runs already."""
    from ops.commands import run

    await run.work(
        kinds,
        recording=recording,
        tools=tools,
        workspace=workspace,
        ack_wait_s=ack_wait,
        store=store,
        url=url,
        json=json,
    )


@app.command(rich_help_panel="Run")
@_runs
async def demo(json: JsonOption = False) -> None:
    """A small agent asks, somebody decides, the tool runs. Nothing to set up; under 15 seconds."""
    from ops.commands import demo

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
        typer.Option(
            "--workers/--no-workers", help="Answer from the recording here, or in `approvals work`."
        ),
    ] = True,
    ack_wait: Annotated[float, typer.Option("--ack-wait", metavar="S", help="As for `up`.", min=0.5)] = 30.0,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Drive recorded conversations through the real thing: model and tools answer as they once did."""
    from ops.commands import run

    return await run.rehearse(
        file,
        form=form,
        policy=policy,
        reviewer=reviewer,
        workspace=workspace,
        with_workers=workers,
        ack_wait_s=ack_wait,
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
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Create the streams and consumers on a broker of your own, as its administrator. `up` does it by itself."""
    from ops.commands import run

    await run.setup(replicas=replicas, store=store, url=url, json=json)


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
    from ops.commands import run

    await run.tool_declare(file, workspace, store=store, url=url, json=json)


@policy_app.command("apply")
@_runs
async def policy_apply(
    file: Annotated[str, typer.Argument(metavar="FILE.toml")],
    workspace: WorkspaceOption = "default",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Make a file the policy of a workspace from now on. What was asked before stays as it was asked."""
    from ops.commands import run

    await run.policy_apply(file, workspace, store=store, url=url, json=json)


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
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """What waits for a decision, oldest first."""
    from ops.commands import decide

    await decide.pending(workspace, watch=watch, store=store, url=url, json=json)


@app.command(rich_help_panel="Decide")
@_runs
async def approve(
    call: CallArgument,
    name: AsOption,
    edit: Annotated[
        str | None, typer.Option("--edit", metavar="JSON", help="Run it with these arguments instead.")
    ] = None,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Say yes to a call, with exactly the arguments that it shows."""
    from ops.commands import decide

    return await decide.vote(
        call, name, "approve", reason=reason, arguments=edit, store=store, url=url, json=json
    )


@app.command(rich_help_panel="Decide")
@_runs
async def deny(
    call: CallArgument,
    name: AsOption,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Say no to a call."""
    from ops.commands import decide

    return await decide.vote(call, name, "deny", reason=reason, store=store, url=url, json=json)


@app.command(rich_help_panel="Decide")
@_runs
async def answer(
    call: CallArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model gets as the tool's output.")],
    name: AsOption,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Answer in place of the tool, which does not run."""
    from ops.commands import decide

    return await decide.vote(
        call, name, "answer", reason=reason, answer=text, store=store, url=url, json=json
    )


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
    from ops.commands import decide

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
    from ops.commands import decide

    await decide.reconcile(call, name, happened=happened, output=output, store=store, url=url, json=json)


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
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Ask for a tool to be run, as a service does. Then: approvals wait CALL."""
    from ops.commands import decide

    return await decide.request(call, tool, arguments, requester=requester, store=store, url=url, json=json)


@app.command(rich_help_panel="Ask")
@_runs
async def wait(
    call: CallArgument,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="S", help="Seconds; for ever by default.", min=0)
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Wait until a call is decided: exit 0 approved, 5 denied, 6 expired, 3 timed out (8 with --timeout 0)."""
    from ops.commands import decide

    return await decide.wait(call, timeout_s=timeout, store=store, url=url, json=json)


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
    from ops.commands import decide

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
    from ops.commands import decide

    return await decide.withdraw(call, reason=reason, store=store, url=url, json=json)


# ----------------------------------------------------------------------------------------------------- look


@app.command(rich_help_panel="Look")
@_runs
async def show(
    call: CallArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Every fact about a call."""
    from ops.commands import look

    await look.show(call, store=store, url=url, json=json)


@app.command(rich_help_panel="Look")
@_runs
async def thread(
    thread: ThreadArgument, store: StoreOption = None, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Every fact in a conversation."""
    from ops.commands import look

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
    from ops.commands import look

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
    from ops.commands import look

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
    from ops.commands import look

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
    from ops.commands import replay as replaying
    from schemas.errors import BadInput

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
async def doctor(store: StoreOption = None, url: UrlOption = None, json: JsonOption = False) -> int:
    """Is everything as it should be? Server, streams, consumers, permissions. Exit 1 if not."""
    from ops.commands import check

    return await check.doctor(store=store, url=url, json=json)


@app.command(rich_help_panel="Check")
@_runs
async def status(store: StoreOption = None, url: UrlOption = None, json: JsonOption = False) -> None:
    """How much there is, how far each consumer is behind, what is parked and what is pending."""
    from ops.commands import check

    await check.status(store=store, url=url, json=json)


if __name__ == "__main__":
    main()
