"""How many examples the properties are tried on that name a number of their own."""

from hypothesis import settings


def examples(count: int) -> int:
    """This many in `make test-long`; as much fewer elsewhere as the profile there has fewer."""
    return max(1, count * min(60, settings().max_examples) // 60)
