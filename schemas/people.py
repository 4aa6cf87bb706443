"""People and the accounts that they have: who is the same person as whom.

A reviewer is named by a token, which stands in the subject that only that reviewer's credentials can
publish. A requester is named by the application, in any form: `Ben`, `ben `, `ben@corp.example`. Both
are compared as people: without case, without white space, and through a table of the policy:

    [people]
    ben = ["ben@corp.example", "slack:U17"]     # the accounts of the reviewer `ben`

An account that is not in the table and could not be a reviewer's name is *unmapped*: nobody can say
whose it is, so nobody could be kept from approving their own request.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from schemas.errors import BadId
from schemas.ids import token
from schemas.quorums import is_plain

#: An account, as `plain` writes it, to the person whose it is.
type Accounts = Mapping[str, str]
NO_ACCOUNTS: Final[Accounts] = MappingProxyType({})


def plain(account: str) -> str:
    """An account without case and white space, in one form of Unicode (NFKC)."""
    return "".join(unicodedata.normalize("NFKC", account).casefold().split())


def person(account: str, accounts: Accounts = NO_ACCOUNTS) -> str:
    """The person behind an account: the one that the table names, else the account itself, plainly."""
    name = plain(account)
    return plain(accounts.get(name, name))


def is_mapped(account: str, accounts: Accounts = NO_ACCOUNTS) -> bool:
    """Whether an account leads to somebody who could be a reviewer. An empty one does not."""
    try:
        token("person", person(account, accounts))
    except BadId:
        return False
    return True


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
