"""Logging to stderr: readable text at a terminal, JSON lines elsewhere.

The program sets it up once; everything else calls `get_logger` of `schemas/logs.py`.
"""

import io
import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TextIO

from ayes.schemas.logs import configure_with
from ayes.schemas.visible import line

if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger


def setup(*, verbose: bool = False, json: bool | None = None) -> None:
    """Send structlog and the standard library's logging (nats-py uses it) to stderr in one form.

    Args:
        verbose: include debug messages.
        json: one JSON object a line; by default if stderr is not a terminal.
    """
    level = logging.DEBUG if verbose else logging.INFO
    configured = cache(lambda: _configured(level, json=json))
    configure_with(configured)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(configured))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # At info these report every reconnection, selector and request; a URL may hold a secret.
    for chatty in ("nats", "asyncio", "httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(level if verbose else logging.WARNING)
    logging.getLogger("asyncio").addFilter(_is_meant)


class _Formatter(logging.Formatter):
    """One that is made for the first message."""

    def __init__(self, made: Callable[[], logging.Formatter]) -> None:
        super().__init__()
        self._made = made

    def format(self, record: logging.LogRecord) -> str:
        return self._made().format(record)


def _configured(level: int, *, json: bool | None) -> logging.Formatter:
    """Configure structlog. Returns the form of all messages."""
    import structlog

    terminal = sys.stderr.isatty()
    as_json = not terminal if json is None else json
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # https://no-color.org: any value means no.
        colors = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        last += [
            _visible,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback),
        ]
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=common, processors=last)


def _is_meant(record: logging.LogRecord) -> bool:
    # nats-py upgrades a connection to TLS in a way that asyncio warns of when it is closed.
    return not record.getMessage().startswith("returning true from eof_received()")


def _visible(_logger: "WrappedLogger", _method: str, event: "EventDict") -> "EventDict":
    """Make texts visible, which may come from a fact; our own colours are added later."""
    return {
        line(name): line(value) if isinstance(value, str) else value
        for name, value in event.items()
    }


def _traceback(out: TextIO, problem: "ExcInfo") -> None:
    """Without local variables, which may hold private text; the message may come from a fact."""
    import structlog

    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, problem)
    out.write("\n".join(map(line, plain.getvalue().split("\n"))))
