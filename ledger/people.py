"""Who is a person, and whose an account elsewhere is (docs/decisions/0054).

An account with which somebody votes or signs in belongs to the person who bound it, with that
person's own credentials. In the order of the log the first one who binds an account has it, until
the organisation says that the name stands for nobody, or for somebody else, from there on. What a
workspace says counts for nothing here.
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
    #: In the form of `plain`.
    removed: frozenset[str] = frozenset()

    def is_removed(self, name: str) -> bool:
        return plain(name) in self.removed

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
    removed: set[str] = set()
    for fact in facts:
        if fact.slot.tail[:1] != (PERSON,):
            continue
        name = fact.slot.tail[1]
        match fact.event:
            case e.AccountBound(account=account) if plain(name) not in removed:
                accounts.setdefault(account, name)
            case e.PersonAdded() | e.PersonRemoved() as change:
                accounts = {
                    one: whose for one, whose in accounts.items() if plain(whose) != plain(name)
                }
                removed.discard(plain(name))
                if isinstance(change, e.PersonRemoved):
                    removed.add(plain(name))
    return People(accounts, frozenset(removed))
