"""How far the log of a store is sealed, and how far enough witnesses have signed that."""

from datetime import timedelta
from typing import Final, Self

from msgspec import Struct

from ayes.ledger import clock
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.seal import Checkpoint
from ayes.ops.sealing.files import KEY, SealFiles
from ayes.schemas.errors import BadInput

#: A fact that is older should be sealed, and signed by witnesses.
LATE: Final = timedelta(minutes=1)
WITNESSES_LATE: Final = timedelta(minutes=10)
#: And copied, where a copier has begun: the last ones wait an hour.
COPIES_LATE: Final = timedelta(hours=2)


class SealStatus(Struct, frozen=True):
    """The seal of a log that has a key."""

    #: The facts that are sealed; and how old the first one is that is not.
    sealed: int = 0
    unsealed: timedelta = timedelta()
    #: The same of those in the last checkpoint that enough witnesses have signed.
    witnessed: int = 0
    unwitnessed: timedelta = timedelta()
    #: Who has signed the last checkpoint, and who should have; so many of these are enough.
    signed: tuple[str, ...] = ()
    witnesses: tuple[str, ...] = ()
    quorum: int = 0
    #: The facts that are copied, None without a copy; and how old the first one is that is not.
    copied: int | None = None
    uncopied: timedelta = timedelta()
    #: Why the files cannot be read.
    unreadable: str = ""

    @classmethod
    async def of(cls, store: Store | None, log: JetStream, last_seq: int) -> Self | None:
        """The seal of a store; None if it has no key, so nothing is sealed there.

        Args:
            last_seq: the number of the log's last fact.
        """
        if store is None or not (store.path / KEY).exists():
            return None
        files = SealFiles(store)
        try:
            note, policy = files.note(), files.policy()
            sealed, witnessed = _size(note), _size(files.witnessed(policy))
        except BadInput as problem:
            return cls(unreadable=f"the seal in {files.folder} cannot be read: {problem}")

        async def age_after(size: int) -> timedelta:
            fact = await log.at(size + 1) if size < last_seq else None
            return clock.now() - fact.recorded_at if fact else timedelta()

        return cls(
            sealed,
            await age_after(sealed),
            witnessed,
            await age_after(witnessed),
            tuple(policy.signed(note)),
            tuple(one.name for one in policy.witnesses),
            policy.quorum,
            copied := files.copied(),
            await age_after(last_seq if copied is None else copied),
        )

    @property
    def silent(self) -> list[str]:
        """The witnesses that have not signed the last checkpoint."""
        return [one for one in self.witnesses if one not in self.signed]

    @property
    def alarms(self) -> list[str]:
        """What is wrong, a sentence each."""
        found = [self.unreadable] if self.unreadable else []
        if self.unsealed > LATE:
            found.append(
                f"the facts after {self.sealed:,} are not sealed, although the next one is "
                f"{_seconds(self.unsealed)} old: `ayes work sealer` seals them"
            )
        elif self.quorum and self.unwitnessed > WITNESSES_LATE:
            found.append(
                f"fewer than {self.quorum} witnesses have signed the facts after "
                f"{self.witnessed:,}, although the next one is {_seconds(self.unwitnessed)} old; "
                f"silent: {', '.join(self.silent)}. The sealer logs why"
            )
        return found

    @property
    def copies_alarm(self) -> str:
        """Why the copy is not as it should be; empty if it is."""
        if self.copied is None or self.uncopied <= COPIES_LATE:
            return ""
        return (
            f"the facts after {self.copied:,} are not copied, although the next one is "
            f"{_seconds(self.uncopied)} old: `ayes work copier` copies them, or logs why not"
        )

    @property
    def copies(self) -> str:
        is_copied = self.copied is not None
        return f"{self.copied:,} facts are copied" if is_copied else NO_COPY

    def __str__(self) -> str:
        by = f", and {len(self.signed)} of {len(self.witnesses)} witnesses have signed that"
        return f"{self.sealed:,} facts are sealed{by if self.witnesses else ''}"


NO_COPY: Final = "the log is not copied (docs/copies.md)"


def _size(note: str) -> int:
    return Checkpoint.parse(note).size if note else 0


def _seconds(age: timedelta) -> str:
    return f"{age.total_seconds():,.0f} s"
