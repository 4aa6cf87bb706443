"""Logging by a library: through the standard library, so that the program that uses it decides.

Without any configuration only warnings appear, on stderr. The command line configures structlog
(`interfaces/cli/terminal/logs.py`), and the same loggers then write what it says.

Structlog imports rich and pygments, a third of all that most commands import. So it is imported
with the first message.
"""

import logging
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_waiting: Final[list[Callable[[], object]]] = []


def get_logger(name: str) -> "FilteringBoundLogger":
    """A structured logger of that name, below the standard logger `ayes`."""
    return cast("FilteringBoundLogger", _Logger(name))


def configure_with(configure: Callable[[], object]) -> None:
    """Configure structlog with this function: now, or when it is imported for a first message."""
    _waiting[:] = [configure]
    if "structlog" in sys.modules:
        _configure()


def _configure() -> None:
    while _waiting:
        _waiting.pop()()


class _Logger:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        _configure()
        return getattr(self._logger, method)

    @cached_property
    def _logger(self) -> "FilteringBoundLogger":
        import structlog

        logger: FilteringBoundLogger = structlog.wrap_logger(logging.getLogger(self._name))
        return logger
