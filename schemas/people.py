"""People and their accounts.

A reviewer is named by a token of the subject to which only that reviewer's credentials can publish.
A requester is named by the application, in any form: `Ben`, `ben `, `ben@corp.example`. Both are
compared as people: without case, without white space, and through a table of the policy:

    [people]
    ben = ["ben@corp.example", "slack:U17"]     # the accounts of the reviewer `ben`

An account that is not in the table and could not be a reviewer's name is *unmapped*: its person is
unknown, and could not be kept from approving their own request.
"""

import functools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from ayes.schemas.events import Quorum
from ayes.schemas.ids import is_token
from ayes.schemas.quorums import is_among, is_plain

#: By account in the form of `plain`: its person.
type Accounts = Mapping[str, str]
NO_ACCOUNTS: Final[Accounts] = MappingProxyType({})


@functools.lru_cache(maxsize=4096)
def plain(account: str) -> str:
    """An account without case and white space, in one form of Unicode (NFKC)."""
    if not account.isascii():  # ASCII is in that form already
        account = unicodedata.normalize("NFKC", account)
    return "".join(account.casefold().split())


def person(account: str, accounts: Accounts = NO_ACCOUNTS) -> str:
    """The person of an account in the form of `plain`: by the table, else the account itself."""
    name = plain(account)
    return plain(accounts.get(name, name))


def is_mapped(account: str, accounts: Accounts = NO_ACCOUNTS) -> bool:
    """Whether the person of an account could be a reviewer. Not so if it is empty."""
    return is_token(person(account, accounts))


def is_excluded(account: str, excluded: Iterable[str], accounts: Accounts = NO_ACCOUNTS) -> bool:
    """Whether an account belongs to one of these people, or matches one of these patterns."""
    if not excluded:
        return False
    names = {plain(account), person(account, accounts)}
    for one in excluded:
        if is_plain(one):
            if person(one, accounts) in names:
                return True
        # Only * and ? are wildcards here; a bracket is a bracket.
        elif any(fnmatchcase(name, plain(one).replace("[", "[[]")) for name in names):
            return True
    return False


def by_person(
    quorums: Sequence[Quorum], names: Iterable[str], accounts: Accounts
) -> tuple[Sequence[Quorum], list[str]]:
    """The quorums and names with people instead of accounts.

    Two accounts of one person then fill one seat: that of either, if it is among these names. A
    table alone fills nobody's.
    """
    names = tuple(names)
    if not accounts:
        return quorums, list(dict.fromkeys(names))

    def of_people(quorum: Quorum) -> Quorum:
        people = (person(name, accounts) for name in names if is_among(name, quorum.voters))
        patterns = (voter for voter in quorum.voters if not is_plain(voter))
        voters = tuple(dict.fromkeys((*patterns, *people)))
        return Quorum(voters, quorum.votes_needed, quorum.name)

    people = dict.fromkeys(person(name, accounts) for name in names)
    return [of_people(one) for one in quorums], list(people)
