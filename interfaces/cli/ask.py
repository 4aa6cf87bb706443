"""The saved questions of the lake, for analysts."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

from rich.table import Table
from rich.text import Text

from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import JsonOption, StoreOption, ToOption, argument, option
from ayes.interfaces.cli.terminal import output
from ayes.interfaces.cli.terminal.output import print_json, print_line, print_message
from ayes.interfaces.cli.terminal.tables import print_table
from ayes.ops.lake.catalog import QueryRow, connect
from ayes.ops.lake.sync import default_directory
from ayes.ops.lake.writer import read_manifest
from ayes.projections.lake.queries import IN_FORCE, QUESTIONS, SavedQuery, uncited
from ayes.schemas.errors import BadFile, BadInput

app: Final = commands()

_NONE: Final = "-"


@command(app, examples="ayes ask who-decides")
async def ask(
    name: Annotated[
        str | None,
        argument(
            "NAME", "The question; by default all are listed.", autocompletion=completion.questions
        ),
    ] = None,
    show: Annotated[
        bool, option("--list", "Do not ask: list the questions, or show the SQL of one.")
    ] = False,
    to: ToOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Ask the lake a saved question: who decides and how fast, what is denied, what is pending."""
    if name is None:
        _list(json=json)
    elif show:
        _show(_named(name), json=json)
    else:
        question = _named(name)
        lake = (to or default_directory(store)) / "lake"
        rows = answer(lake, question)
        if json:
            for row in rows:
                print_json({column: _plain(value) for column, value in row.items()})
            return
        until = read_manifest(lake).until
        print_message(f"{question.title} (the log up to {until:,})")
        if rows:
            if left_out := _print(rows):
                print_message(f"{left_out} --json gives all of them.")
        else:
            print_message(f"No rows, in a lake that has the log up to fact {until:,}.")


def answer(lake: Path, question: SavedQuery) -> list[QueryRow]:
    """The rows of the answer, each by its columns."""
    with connect(lake) as rows:
        found = rows(question.sql)
        if question.name != "rules":
            return found
        return sorted([*found, *_uncited(rows(IN_FORCE), found)], key=lambda row: row["policy"])


def _uncited(policies: Sequence[QueryRow], cited: Sequence[QueryRow]) -> list[QueryRow]:
    found: list[QueryRow] = []
    for policy in policies:
        of = policy["policy"]
        try:
            found += uncited(
                of, policy["text"], [row["rule"] for row in cited if row["policy"] == of]
            )
        except BadFile as problem:
            print_message(f"The rules that are never cited are unknown: {problem}")
    return found


def _named(name: str) -> SavedQuery:
    if name not in QUESTIONS:
        raise BadInput(f"there is no question {name!r}. There are: {', '.join(QUESTIONS)}.")
    return QUESTIONS[name]


def _list(*, json: bool) -> None:
    if json:
        for one in QUESTIONS.values():
            print_json({"name": one.name, "title": one.title})
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    for one in QUESTIONS.values():
        table.add_row(Text(one.name, style="bold"), Text(one.title))
    output.console().print(table)


def _show(question: SavedQuery, *, json: bool) -> None:
    if json:
        print_json(question)
    else:
        print_line(f"-- {question.title}")
        for one in f"{question.sql.strip()};".split("\n"):
            print_line(one)


def _plain(value: object) -> object:
    """A value for JSON: DuckDB's times are UTC, but carry no time zone."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def _print(rows: Sequence[QueryRow]) -> str:
    """The rows as a table; a sentence on the columns that were left out."""
    names = list(rows[0])
    numbers = [any(isinstance(row[name], int | float) for row in rows) for name in names]
    cells = [[_words(name, row[name]) for name in names] for row in rows]
    return print_table([name.replace("_", " ") for name in names], cells, numbers)


def _words(column: str, value: object) -> str:
    match value:
        case None:
            return _NONE
        case bool():
            return "yes" if value else "no"
        case int():
            return str(value) if column == "hour" else f"{value:,}"
        case float() if column.endswith("_share"):
            return f"{value:.1%}"
        case float():
            return f"{value:,.1f}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)
