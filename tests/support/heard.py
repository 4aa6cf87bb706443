"""What is logged, at every level: by default the tests' loggers drop all of it."""

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
