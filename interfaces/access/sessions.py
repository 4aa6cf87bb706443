"""Sessions of people who have signed in, and how often somebody may try to.

Both are in memory: when the console ends, everybody signs in again. The browser has a secret of 256
random bits, and the console only its hash, so what leaks from the console signs nobody in. A lookup
compares hashes, so its duration says nothing about a secret.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from ayes.interfaces.access.openid import ProviderAccount
from ayes.ops.tokens import hash_of, new_secret
from ayes.ops.visitors import Visitor
from ayes.schemas.addresses import client_of
from ayes.schemas.people import plain

#: A session ends after so many seconds without a request, and after so many seconds in any case.
IDLE_S: Final = 8 * 3600.0
LONGEST_S: Final = 24 * 3600.0
#: Beyond so many sessions, the one that began first ends.
_MAX_SESSIONS: Final = 10_000

#: What one client may do within `WINDOW_S`: send a wrong code, and begin to sign in elsewhere.
WINDOW_S: Final = 60.0
WRONG: Final = 10
BEGUN: Final = 100
#: Beyond so many clients, the one that is known for longest is forgotten.
_MAX_CLIENTS: Final = 50_000

#: Seconds since the epoch. A monotonic clock stands still while a machine sleeps.
type Clock = Callable[[], float]


class _Session(Struct):
    visitor: Visitor
    begun_at: float
    used_at: float
    #: Of somebody who has signed in at a provider.
    account: ProviderAccount | None


class Sessions:
    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock
        #: By the hash of the secret, in the order in which they began.
        self._open: dict[str, _Session] = {}

    def begin(self, visitor: Visitor, account: ProviderAccount | None = None) -> str:
        """Begin a session, and return its secret."""
        secret, now = new_secret(), self._clock()
        while self._open and (
            len(self._open) >= _MAX_SESSIONS or self._oldest_began() < now - LONGEST_S
        ):
            del self._open[next(iter(self._open))]
        self._open[hash_of(secret)] = _Session(visitor, now, now, account)
        return secret

    def find(self, secret: str, *, use: bool = True) -> Visitor | None:
        """Whose session it is; None if there is no such session any more.

        Args:
            use: whether this counts as a request of the visitor's, so that the session lasts.
        """
        key, now = hash_of(secret), self._clock()
        found = self._open.get(key)
        if found is None:
            return None
        if now - found.used_at > IDLE_S or now - found.begun_at > LONGEST_S:
            del self._open[key]
            return None
        if use:
            found.used_at = now
        return found.visitor

    def account(self, secret: str) -> ProviderAccount | None:
        """The account at the provider of whoever has this session; None if there is none."""
        found = self._open.get(hash_of(secret))
        return found.account if found is not None else None

    def end(self, secret: str) -> None:
        self._open.pop(hash_of(secret), None)

    def end_all(self, name: str, before: float) -> None:
        """End the sessions of a person that began before that time."""
        for key, one in tuple(self._open.items()):
            if plain(one.visitor.name) == plain(name) and one.begun_at <= before:
                del self._open[key]

    def _oldest_began(self) -> float:
        return self._open[next(iter(self._open))].begun_at


class Attempts:
    """The recent attempts of each client, as a sliding window. Nobody's limit anybody else.

    Args:
        most: attempts of one client within `WINDOW_S`.
    """

    def __init__(self, most: int, clock: Clock = time.time) -> None:
        self._clock = clock
        self._recent: dict[str, deque[float]] = {}
        self._most = most

    def wait_s(self, address: str) -> int:
        """Count an attempt from this address: 0 if it may go on, else the seconds until it may."""
        now, client = self._clock(), client_of(address)
        own = self._recent.setdefault(client, deque(maxlen=self._most))
        while own and own[0] <= now - WINDOW_S:
            own.popleft()
        if len(own) >= self._most:
            return max(1, math.ceil(own[0] + WINDOW_S - now))
        own.append(now)
        while len(self._recent) > _MAX_CLIENTS:
            del self._recent[next(iter(self._recent))]
        return 0
