"""Who is a person, and whose an account elsewhere is (docs/decisions/0054).

An account with which somebody votes or signs in belongs to the person who bound it, with that
person's own credentials. In the order of the log the first one who binds an account has it, until
the organisation says that the name stands for nobody, or for somebody else, from there on. What a
workspace says counts for nothing here.

Nothing runs on what is recorded in the name of a removed person: votes, grants and delegations do
not count. So it does not matter that a broker still accepts the old password.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.people import plain
from ayes.schemas.slots import PERSON

#: How accounts at OpenID Connect providers begin; the issuer, `#` and the subject follow.
OPENID: Final = "openid:"


class People(Struct, frozen=True):
    """The people, as of a moment."""

    #: By account: the reviewer who bound it.
    accounts: dict[str, str] = {}
    #: By name in the form of `plain`: the additions and removals, in the order of the log.
    changes: dict[str, tuple[Fact, ...]] = {}

    @property
    def removed(self) -> tuple[str, ...]:
        """The names that stand for nobody, in the form of `plain`."""
        return tuple(filter(self.is_removed, self.changes))

    def is_removed(self, name: str, before: int | None = None) -> bool:
        """Whether a name stands for nobody; with `before`, just before that number of the log."""
        return self.removal(name, before) is not None

    def removal(self, name: str, before: int | None = None) -> Fact | None:
        """The fact by which a name stands for nobody; None if it stands for somebody."""
        changes = reversed(self.changes.get(plain(name), ()))
        last = next((one for one in changes if before is None or one.seq < before), None)
        return last if last is not None and isinstance(last.event, e.PersonRemoved) else None

    def workspaces(self, name: str, before: int | None = None) -> tuple[str, ...]:
        """The workspaces that a person may see and decide in, by the last fact that says so; with
        `before`, just before that number of the log. Empty: all of them.
        """
        for one in reversed(self.changes.get(plain(name), ())):
            if isinstance(one.event, e.PersonAdded) and (before is None or one.seq < before):
                return one.event.workspaces
        return ()

    def of(self, name: str, beginning: str = "") -> tuple[str, ...]:
        """The accounts of a person that begin so, in the order in which they were bound."""
        return tuple(
            one
            for one, whose in self.accounts.items()
            if plain(whose) == plain(name) and one.startswith(beginning)
        )


def people_of(facts: Iterable[Fact]) -> People:
    """The people and their accounts, by all facts about them in the order of the log."""
    accounts: dict[str, str] = {}
    changes: dict[str, tuple[Fact, ...]] = {}
    for fact in facts:
        if fact.slot.tail[:1] != (PERSON,):
            continue
        name = fact.slot.tail[1]
        match fact.event:
            case e.AccountBound(account=account) if not People(changes=changes).is_removed(name):
                accounts.setdefault(account, name)
            case e.PersonAdded() | e.PersonRemoved():
                accounts = {
                    one: whose for one, whose in accounts.items() if plain(whose) != plain(name)
                }
                changes[plain(name)] = (*changes.get(plain(name), ()), fact)
    return People(accounts, changes)
