"""The command line: which commands there are, by chapter, and in which module each one is.

Data goes to stdout, everything else to stderr. With `--json` the data is JSON, one object a line,
and so is an error. A module of `ops/commands/` is imported when one of its commands is called, so
that `ayes --help` answers at once.

    exit codes   0 ok or approved   1 error   2 usage or bad input   3 wait timed out
                 4 not allowed      5 denied  6 expired              8 pending
"""

from collections import UserDict
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from ayes import __version__


class _Entry(NamedTuple):
    #: In `ops/commands/`; its `app` holds the command, or is the group.
    module: str
    #: One line of `ayes --help`.
    summary: str
    is_group: bool = False


_CHAPTERS: Final[dict[str, dict[str, _Entry]]] = {
    "Run": {
        "up": _Entry("run", "Run a broker and all workers in this process."),
        "work": _Entry("run", "Run some workers in a process of their own."),
        "demo": _Entry("demo", "A small agent asks, somebody decides, the tool runs."),
        "rehearse": _Entry("run", "Drive recorded conversations through the real workers."),
        "setup": _Entry("run", "Create the streams and consumers on a broker of your own."),
        "tool": _Entry("tools", "What can be asked for.", is_group=True),
        "policy": _Entry("policy", "What is asked about, and who is asked.", is_group=True),
    },
    "Decide": {
        "pending": _Entry("decide", "What waits for a decision, oldest first."),
        "approve": _Entry("decide", "Say yes to a call, or to all that waits."),
        "deny": _Entry("decide", "Say no to a call, or to all that waits."),
        "answer": _Entry("decide", "Answer in place of the tool, which does not run."),
        "break-glass": _Entry("decide", "Let a call run alone, in an emergency."),
        "hear": _Entry("decide", "Vote as a message of a chat says."),
        "revoke": _Entry("decide", "Take an approval back before the tool starts."),
        "reconcile": _Entry("decide", "Say what became of a call in doubt."),
        "grant": _Entry("grants", "Saying yes in advance.", is_group=True),
        "delegate": _Entry("delegations", "Another person in one's place.", is_group=True),
    },
    "Ask": {
        "request": _Entry("request", "Ask for a tool to be run, as a service does."),
        "wait": _Entry("request", "Wait until a call is decided."),
        "start": _Entry("request", "Claim an approved call that you run yourself."),
        "finish": _Entry("request", "Say how a call went that you ran yourself."),
        "doubt": _Entry("request", "Say that nobody knows how a call ended."),
        "withdraw": _Entry("request", "Take a wish back, from the requester's side."),
    },
    "Look": {
        "show": _Entry("look", "Every fact about a call."),
        "thread": _Entry("look", "Every fact in a conversation."),
        "watch": _Entry("look", "Facts as they are recorded, until Ctrl-C."),
        "history": _Entry("look", "A conversation as a model goes on from it."),
    },
    "Check": {
        "check": _Entry("look", "What a provider would turn down in a list of messages."),
        "replay": _Entry("replay", "Rebuild the projections from the log, and compare."),
        "doctor": _Entry("check", "Is everything as it should be? Exit 1 if not."),
        "status": _Entry("check", "How far each consumer is behind, and what is pending."),
        "parked": _Entry("parked", "What consumers gave up on.", is_group=True),
    },
    "Analyse": {
        "sql": _Entry("sql", "Ask the lake in SQL; a query can only read."),
        "ask": _Entry("ask", "Ask the lake a saved question."),
        "report": _Entry("report", "The lake as one page with plots."),
        "lake": _Entry("lake", "The log as tables, for analysts.", is_group=True),
    },
}
_ENTRIES: Final = {name: one for chapter in _CHAPTERS.values() for name, one in chapter.items()}


class _Commands(UserDict[str, Any]):
    """The commands by name; looking one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        entry = _ENTRIES[name]
        group = get_group(import_module(f"ayes.ops.commands.{entry.module}").app)
        if not entry.is_group:
            return group.commands[name]
        group.name, group.help = name, entry.summary
        return group


class _Chapters(TyperGroup):
    """The help by chapter, from `_CHAPTERS` alone: no command is imported for it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(_ENTRIES)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_ENTRIES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, chapter in _CHAPTERS.items():
            with formatter.section(title):
                formatter.write_dl([(name, one.summary) for name, one in chapter.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from typer._click.shell_completion import CompletionItem

        # Those of the options; the class between them would import every command for its help.
        options = super(TyperGroup, self).shell_complete(ctx, incomplete)
        found = [
            (name, one.summary) for name, one in _ENTRIES.items() if name.startswith(incomplete)
        ]
        return [*(CompletionItem(name, help=summary) for name, summary in found), *options]


app: Final = typer.Typer(
    name="ayes",
    cls=_Chapters,
    rich_markup_mode=None,
    epilog="Start with `ayes demo`, or with `ayes up` in one terminal and the rest in another.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ayes {__version__}")
        raise typer.Exit


@app.callback()
def ayes(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="The version of the program.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """An event-sourced ledger of approvals for AI agents."""


def main() -> None:
    app()


if __name__ == "__main__":
    main()
