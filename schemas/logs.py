"""Logging by a library: through the standard library, so that the program that uses it decides.

Without any configuration only warnings appear, on stderr. The command line configures structlog
(`interfaces/cli/terminal/logs.py`), and the same loggers then write what it says.
"""

import logging

import structlog
from structlog.typing import FilteringBoundLogger


def get_logger(name: str) -> FilteringBoundLogger:
    """A structured logger of that name, below the standard logger `ayes`."""
    logger: FilteringBoundLogger = structlog.wrap_logger(logging.getLogger(name))
    return logger
