"""Cases that take long: `make test` has a sample of them, and `make test-long` the others."""

from collections.abc import Collection, Iterable

import pytest


def sampled[T](values: Iterable[T], *samples: T) -> Collection[object]:
    """The values of a parameter, of which only the samples run in `make test`."""
    long = pytest.mark.long
    return [one if one in samples else pytest.param(one, marks=long) for one in values]
