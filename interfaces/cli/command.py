"""How a command is registered and run: its options, its errors as one sentence and an exit code."""

import asyncio
import functools
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NamedTuple, NoReturn, get_type_hints

import typer

from ayes.interfaces.cli.options import JsonOption, StoreOption, UrlOption
from ayes.interfaces.cli.settings import thread_keys_of, trust_of
from ayes.interfaces.cli.terminal import logs
from ayes.interfaces.cli.terminal.output import (
    print_error,
    print_error_json,
    print_json,
    print_line,
    print_message,
    print_result,
)
from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import ensure_account
from ayes.ops.key_files import own_key
from ayes.schemas.errors import ApprovalsError
from ayes.schemas.ids import token

INTERRUPTED: Final = 130

type Command[**P] = Callable[P, Coroutine[Any, Any, int | None]]


class _Printing:
    """Prints results: as JSON on stdout, or for people."""

    json: bool

    def print(self, data: object, *sentences: str) -> None:
        """Print a result; for people a line for each sentence, on stderr."""
        print_result(data, *sentences, json=self.json)

    def print_rows(self, rows: Iterable[tuple[object, str]], *, if_none: str = "") -> None:
        """Print one line per row on stdout, each as JSON or for people."""
        empty = True
        for data, line in rows:
            empty = False
            if self.json:
                print_json(data)
            else:
                print_line(line)
        if empty and if_none and not self.json:
            print_message(if_none)


class _StoreOptions(NamedTuple):
    store: StoreOption = None
    json: JsonOption = False


class StoreSession(_StoreOptions, _Printing):
    """The options of a command that asks no broker: which store, and whether the output is JSON."""


class _SessionOptions(NamedTuple):
    store: StoreOption = None
    url: UrlOption = None
    json: JsonOption = False


class Session(_SessionOptions, _Printing):
    """The options of nearly every command: which broker, and whether the output is JSON."""

    def connect(self, role: str, name: str = "") -> AbstractAsyncContextManager[Ledger]:
        # A service checks what lets its calls run, and seals. The store's trust file is of the
        # store's broker.
        is_here = self.url is None or self.store is not None
        is_service = role == "service" and is_here
        trust = trust_of(self.store, None) if is_service else None
        keys = thread_keys_of(self.store, None) if is_service else None
        return Ledger.connect(
            self.store, url=self.url, role=role, name=name, trust=trust, keys=keys
        )

    @asynccontextmanager
    async def as_reviewer(self, name: str) -> AsyncGenerator[Ledger]:
        """Connect as this person, who signs if a key of theirs is here; a local store creates the
        account on first use.
        """
        role = f"reviewer-{token('reviewer', name)}"
        if self.url is None:
            await ensure_account(self.store, role)
        async with self.connect(role) as ledger:
            ledger.signer = own_key(self.store, name)
            yield ledger


def commands() -> typer.Typer:
    """A group of commands. Its help is plain text, as that of `ayes` itself."""
    return typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def command[**P](
    app: typer.Typer, name: str | None = None, *, examples: str = ""
) -> Callable[[Command[P]], Command[P]]:
    """Register an async function as a command; the function itself stays as it is.

    Its parameters are the options, its docstring is the help, and the number that it returns is
    the exit code (None: 0). A parameter whose type is a NamedTuple stands for one option per field,
    so that commands can share options.

    Args:
        name: what people type; the function's own name by default.
        examples: command lines at the end of the help, one a line.
    """

    def register(function: Command[P]) -> Command[P]:
        hints = get_type_hints(function, include_extras=True)
        groups = {one: kind for one, kind in hints.items() if hasattr(kind, "_field_defaults")}
        options: list[inspect.Parameter] = []
        for one in inspect.signature(function).parameters.values():
            defaults = groups[one.name]._field_defaults if one.name in groups else {}
            fields = get_type_hints(groups[one.name], include_extras=True) if defaults else {}
            options += [
                inspect.Parameter(
                    field,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=fields[field],
                )
                for field, default in defaults.items()
            ] or [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name])]

        @functools.wraps(function)
        def run(**given: Any) -> NoReturn:
            as_json = bool(given.get("json"))
            for parameter, group in groups.items():
                given[parameter] = group(**{field: given.pop(field) for field in group._fields})
            raise typer.Exit(_exit_code(function(**given), as_json=as_json))  # type: ignore[call-arg]

        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in options}
        lines = "\n".join(f"  {line}" for line in inspect.cleandoc(examples).splitlines())
        # The backspace tells click not to refill the lines.
        app.command(name, epilog=f"\b\nExamples:\n{lines}" if examples else None)(run)
        return function

    return register


def _exit_code(running: Coroutine[Any, Any, int | None], *, as_json: bool) -> int:
    logs.setup(verbose=bool(os.environ.get("AYES_VERBOSE")))
    try:
        return asyncio.run(running) or 0
    except ApprovalsError as problem:
        _fail(problem, as_json=as_json)
    except BaseExceptionGroup as group:
        first = _first(group)
        if first is None:
            raise
        _fail(first, as_json=as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(problem: ApprovalsError, *, as_json: bool) -> NoReturn:
    if as_json:
        print_error_json(type(problem).__name__, str(problem), problem.exit_code)
    else:
        print_error(problem)
    raise typer.Exit(problem.exit_code)


def _first(group: BaseExceptionGroup[BaseException]) -> ApprovalsError | None:
    """The first of our own errors in a group, at any depth; None if there is none."""
    for one in group.exceptions:
        found = _first(one) if isinstance(one, BaseExceptionGroup) else one
        if isinstance(found, ApprovalsError):
            return found
    return None
