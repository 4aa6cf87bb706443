"""Pauses between tries, each longer than the one before."""

import random
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

#: More tries make no pause longer: the power stays a number.
_MAX_GROWTHS: Final = 64


class Backoff(Struct, frozen=True):
    """How long to wait between tries. `Backoff(0)` does not wait, for tests."""

    first_s: float
    #: No pause is longer. 0: all are as the first.
    most_s: float = 0.0
    #: By what each pause is longer than the one before.
    growth: float = 2.0
    #: The share of a pause by which it may be shorter, at random, so that not all try at once.
    jitter: float = 0.0

    def pause_s(self, tries: int) -> float:
        """The pause after so many tries, from 1 on."""
        grown_s = self.first_s * self.growth ** min(tries - 1, _MAX_GROWTHS)
        pause_s = min(grown_s, self.most_s or self.first_s)
        if not self.jitter:
            return pause_s
        return pause_s * random.uniform(1 - self.jitter, 1)  # noqa: S311 - not a secret

    def pauses(self) -> Iterator[float]:
        """The pauses, without end."""
        tries = 0
        while True:
            tries += 1
            yield self.pause_s(tries)
