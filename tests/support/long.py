"""Cases that take long: `make test` has a sample of them, and `make test-long` the others."""

from collections.abc import Collection, Iterable

import pytest

_PARAM = type(pytest.param())


def sampled[T](values: Iterable[T], *samples: T) -> Collection[object]:
    """The values of a parameter, of which only the samples run in `make test`."""
    return [one if one in samples else _long(one) for one in values]


def _long(value: object) -> object:
    if isinstance(value, _PARAM):
        return pytest.param(*value.values, marks=[*value.marks, pytest.mark.long], id=value.id)
    return pytest.param(value, marks=pytest.mark.long)


#: What runs on any log: in memory, and in `make test-long` on a real broker too.
IN_MEMORY_FIRST = pytest.mark.log(*sampled(("memory", "jetstream"), "memory"))
