"""What is logged, at every level: by default the tests' loggers drop all of it, and pytest's plugin
that keeps the log of each test, for a fiftieth of all time, is off.
"""

import io
import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from ayes.schemas import logs


@contextmanager
def heard() -> Iterator[list[MutableMapping[str, Any]]]:
    """The lines of all loggers of ours in this block."""
    every = property(
        lambda _: structlog.wrap_logger(
            None, wrapper_class=structlog.make_filtering_bound_logger(0)
        )
    )
    with pytest.MonkeyPatch.context() as patch, capture_logs() as lines:
        patch.setattr(logs._Logger, "_logger", every)
        yield lines


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """What libraries log in this block with `logging`."""
    written, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(written), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield written
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
