"""The command line: its commands by chapter, and the module of each.

Data goes to stdout, everything else to stderr. With `--json` the data is JSON, one object a line,
and so is an error. A module of this folder is imported when one of its commands is called, so
that `ayes --help` is quick.

    exit codes   0 ok or approved   1 error   2 usage or bad input   3 wait timed out
                 4 not allowed      5 denied  6 expired              8 pending
                 75 try again later

Of `policy diff`, 1 is what a policy opens and 3 what cannot be proved.
"""

import json
import sys
from collections import UserDict
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer

# Typer ships its own copy of click, and exports neither of these two.
from typer._click.exceptions import ClickException
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup
from typer.main import get_group


class _Entry(NamedTuple):
    #: The module of this folder whose `app` contains the command, or is the group.
    module: str
    #: One line of `ayes --help`.
    summary: str
    is_group: bool = False


_CHAPTERS: Final[dict[str, dict[str, _Entry]]] = {
    "Run": {
        "up": _Entry("up", "Run a broker and all workers in this process."),
        "work": _Entry("run", "Run some workers in a process of their own."),
        "cluster": _Entry("cluster", "Run a cluster, or make the files for one.", is_group=True),
        "notify": _Entry("notify", "Try a channel through which people are told.", is_group=True),
        "console": _Entry("console", "Serve the web console and the HTTP API beside a broker."),
        "monitor": _Entry("monitor", "Serve probes, and metrics for Prometheus."),
        "people": _Entry("people", "List, add and remove people.", is_group=True),
        "trust": _Entry("trust", "Show whom the trust file trusts.", is_group=True),
        "auth": _Entry("auth", "Let programs sign on at the broker.", is_group=True),
        "token": _Entry("token", "Let programs use the HTTP API.", is_group=True),
        "webhooks": _Entry("webhooks", "Send facts to programs elsewhere.", is_group=True),
        "mcp": _Entry("mcp", "Let people decide about calls of MCP tools.", is_group=True),
        "serve": _Entry("serve", "Serve agents of other protocols.", is_group=True),
        "hook": _Entry("hook", "Let people decide about calls of coding agents.", is_group=True),
        "demo": _Entry("demo", "Run a small agent that asks before it acts."),
        "setup": _Entry("setup", "Create the streams and consumers on a broker of your own."),
        "seal": _Entry("seal", "Seal the log, so that others notice a change.", is_group=True),
        "witness": _Entry("witness", "Sign what others seal.", is_group=True),
        "forget": _Entry("forget", "Make unreadable what was sealed in a thread."),
        "backup": _Entry("backup", "Write the log into a file, while it is in use."),
        "restore": _Entry("backup", "Restore a backup into an empty ledger."),
        "pack": _Entry("pack", "Pack what was settled long ago, so that it takes less memory."),
        "tool": _Entry("tools", "Declare and list the tools of a workspace.", is_group=True),
        "policy": _Entry(
            "policy", "Apply, show, test, suggest and explain policies.", is_group=True
        ),
    },
    "Decide": {
        "pending": _Entry("decide", "List the pending calls, oldest first."),
        "inbox": _Entry("inbox", "Decide pending calls in a full screen, by keys."),
        "approve": _Entry("decide", "Approve a call, or all pending calls."),
        "deny": _Entry("decide", "Deny a call, or all pending calls."),
        "answer": _Entry("decide", "Answer in place of the tool, which does not run."),
        "break-glass": _Entry("decide", "Let a call run alone, in an emergency."),
        "hand": _Entry("colleagues", "Hand a pending call to a colleague."),
        "comment": _Entry("colleagues", "Say something about a call without deciding."),
        "hear": _Entry("decide", "Vote as a chat message says."),
        "revoke": _Entry("decide", "Revoke an approval before the tool starts."),
        "reconcile": _Entry("decide", "Say what became of a call in doubt."),
        "stop": _Entry("stops", "Let nothing start until people resume."),
        "stops": _Entry("stops", "List the stops, with their status."),
        "resume": _Entry("stops", "Say that a stop should end."),
        "grant": _Entry("grants", "Approve calls in advance.", is_group=True),
        "delegate": _Entry("delegations", "Let another person vote in your place.", is_group=True),
        "key": _Entry("keys", "Make and confirm keys that sign votes.", is_group=True),
    },
    "Ask": {
        "request": _Entry("request", "Request a call of a tool, as a service does."),
        "wait": _Entry("request", "Wait until a call is decided."),
        "start": _Entry("request", "Claim an approved call that you run yourself."),
        "finish": _Entry("request", "Report the result of a call that you ran yourself."),
        "doubt": _Entry("request", "Say that nobody knows how a call ended."),
        "withdraw": _Entry("request", "Withdraw a request, on the requester's side."),
    },
    "Look": {
        "follow": _Entry("look", "Show the model's next reply while it gives it."),
        "schema": _Entry("schema", "Print JSON Schemas of the events, or AsyncAPI."),
        "show": _Entry("look", "Show every fact about a call."),
        "thread": _Entry("look", "Show every fact in a conversation."),
        "watch": _Entry("look", "Show facts as they are recorded, until Ctrl-C."),
        "history": _Entry("look", "Print a conversation as its model continues it."),
    },
    "Check": {
        "check": _Entry("look", "Check messages for what a provider would reject."),
        "replay": _Entry("replay", "Rebuild the projections from the log, and compare them."),
        "verify": _Entry("verify", "Check that the facts are those that were sealed."),
        "prove": _Entry("receipts", "Make a receipt of a call, for others."),
        "doctor": _Entry("check", "Check that everything is as it should be."),
        "status": _Entry("check", "Show how far each consumer is behind, and what is pending."),
        "ready": _Entry("ready", "Say whether calls get decided, for probes."),
        "scorecard": _Entry("scorecard", "Judge this site by OWASP AISVS, chapter C9."),
        "files": _Entry("files", "Remove stored files that no fact names.", is_group=True),
        "parked": _Entry(
            "parked", "List, retry and drop what consumers gave up on.", is_group=True
        ),
    },
    "Analyse": {
        "sql": _Entry("sql", "Query the lake in SQL; a query can only read."),
        "ask": _Entry("ask", "Ask the lake a saved question."),
        "lake": _Entry("lake", "Write and verify the lake: the log as tables.", is_group=True),
    },
}
_ENTRIES: Final = {name: one for chapter in _CHAPTERS.values() for name, one in chapter.items()}


class _Commands(UserDict[str, Any]):
    """The commands by name; looking one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        entry = _ENTRIES[name]
        group = get_group(import_module(f"ayes.interfaces.cli.{entry.module}").app)
        if not entry.is_group:
            return group.commands[name]
        group.name, group.help = name, entry.summary
        return group


class _Chapters(TyperGroup):
    """Help by chapter, without importing a command; and usage errors as JSON."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(_ENTRIES)

    def main(self, args: Sequence[str] | None = None, *others: Any, **named: Any) -> Any:
        given = sys.argv[1:] if args is None else args
        if "--json" not in given:
            return super().main(args, *others, **named)
        try:
            named["standalone_mode"] = False
            sys.exit(super().main(args, *others, **named))
        except ClickException as problem:
            message = problem.format_message()
            error = {"error": "BadInput", "message": message, "exit_code": problem.exit_code}
            typer.echo(json.dumps(error), err=True)
            sys.exit(problem.exit_code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # `ayes help policy apply` is `ayes policy apply --help`.
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_ENTRIES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, chapter in _CHAPTERS.items():
            with formatter.section(title):
                formatter.write_dl([(name, one.summary) for name, one in chapter.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        # TyperGroup itself would import every command for its help.
        options = super(TyperGroup, self).shell_complete(ctx, incomplete)
        found = [
            (name, one.summary) for name, one in _ENTRIES.items() if name.startswith(incomplete)
        ]
        return [*(CompletionItem(name, help=summary) for name, summary in found), *options]


app: Final = typer.Typer(
    name="ayes",
    cls=_Chapters,
    rich_markup_mode=None,
    epilog="Start with `ayes demo`, or with `ayes up` in one terminal and the rest in another. "
    "`ayes help COMMAND` shows options and examples.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ayes import __version__

        typer.echo(f"ayes {__version__}")
        raise typer.Exit


@app.callback()
def ayes(
    ctx: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="The version of the program.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """An event-sourced ledger of approvals for AI agents."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    app()


if __name__ == "__main__":
    main()
