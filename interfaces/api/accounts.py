"""Accounts elsewhere by which a reviewer votes or signs in: each is bound by its own person."""

import time
from typing import Final

from msgspec import Struct

from ayes.interfaces.api.backend import Backend
from ayes.interfaces.api.base import ApiModel, ApiRouter
from ayes.interfaces.api.identity import Reviewing, Visit
from ayes.ledger.people import OPENID
from ayes.ops.visitors import Role, Visitor
from ayes.schemas.errors import BadInput, NotAllowed
from ayes.schemas.links import account_of

router: Final = ApiRouter(tags=["accounts"])


class Account(Struct, frozen=True):
    """An account elsewhere, such as `slack:T0456/U0789`."""

    #: Such as `slack:T0456/U0789`, or `openid:<issuer>#<subject>`.
    account: str


class Code(ApiModel):
    #: As a chat has shown it to the person whose account it is.
    code: str


@router.post("/accounts")
async def bind(sent: Code, visit: Reviewing) -> Account:
    """Bind an account to the visitor, who votes with it from then on. Repeating it is safe."""
    found = offered(sent.code, visit)
    await (await visit.reviewer()).bind(found.account, visit.backend.reading)
    return found


def offered(code: str, visit: Visit) -> Account:
    """The account of a code.

    Raises:
        BadInput: it has ended, or is none of ours.
    """
    if account := account_of(visit.backend.link_key, code, time.time()):
        return Account(account=account)
    raise BadInput("this link is older than ten minutes, or is not ours. Click in the chat again.")


async def admit(backend: Backend, visitor: Visitor, issuer: str, subject: str) -> None:
    """Let in a person who has signed in at a provider; the first time binds the name to them.

    Raises:
        NotAllowed: the name is another account's there, the account is another person's here, the
            person was removed, or may see no workspace.
    """
    account, name = f"{OPENID}{issuer}#{subject}", visitor.name
    people = await backend.reading.people()
    if visitor.as_person(people) is None:
        named = ", ".join(visitor.workspaces)
        raise NotAllowed(
            f"{issuer} lets {name} see {named}, and {name} belongs to other workspaces here, "
            "so nobody is signed in. An operator can change that."
        )
    theirs = people.of(name, f"{OPENID}{issuer}#")
    if not theirs and Role.REVIEWER in visitor.roles:
        people = await (await backend.reviewer(name)).bind(account, backend.reading)
        theirs = people.of(name, f"{OPENID}{issuer}#")
    if people.is_removed(name):
        raise NotAllowed(f"{name} was removed. An operator can change that: ayes people add {name}")
    if theirs[:1] not in {(), (account,)}:
        raise NotAllowed(
            f"{issuer} calls you {name}, and another account there was {name} before, so nobody is "
            "signed in. If it is the same person, an operator says so: "
            f"ayes people release {name}"
        )
    if people.accounts.get(account, name) != name:
        raise NotAllowed(
            f"{issuer} calls you {name}, and this account was {people.accounts[account]} before, "
            "so nobody is signed in. An operator can free it: "
            f"ayes people release {people.accounts[account]}"
        )
