"""How a command runs: to its end, and every error as one sentence and an exit code."""

import asyncio
import functools
import json as jsonlib
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

import typer

from ayes.ops.terminal import logs
from ayes.ops.terminal.output import print_message, say_error
from ayes.schemas.errors import ApprovalsError

INTERRUPTED: Final = 130

type Command[**P] = Callable[P, Coroutine[Any, Any, int | None]]


def commands() -> typer.Typer:
    """A group of commands. Its help is plain text, as that of `ayes` itself."""
    return typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def command[**P](app: typer.Typer, name: str | None = None) -> Callable[[Command[P]], Command[P]]:
    """Register an async function as a command; the function itself stays as it is.

    Its parameters are the options, its docstring is the help, and the number that it returns is
    the exit code (None: 0).

    Args:
        name: what people type; the function's own name by default.
    """

    def register(function: Command[P]) -> Command[P]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            raise typer.Exit(
                _exit_code(function(*args, **kwargs), as_json=bool(kwargs.get("json")))
            )

        app.command(name)(run)
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
        error = {
            "error": type(problem).__name__,
            "message": str(problem),
            "exit_code": problem.exit_code,
        }
        print_message(jsonlib.dumps(error))
    else:
        say_error(problem)
    raise typer.Exit(problem.exit_code)


def _first(group: BaseExceptionGroup[BaseException]) -> ApprovalsError | None:
    """The first of our own errors in a group, at any depth; None when there is none."""
    for one in group.exceptions:
        found = _first(one) if isinstance(one, BaseExceptionGroup) else one
        if isinstance(found, ApprovalsError):
            return found
    return None
