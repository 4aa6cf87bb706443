"""Who may sign on at the broker of a store as a reviewer, and how a person is removed.

A removal takes the password, ends open connections, and records the fact by which consoles and
workers elsewhere learn of it. Doing it again does what is left.
"""

from functools import partial
from typing import Final

import msgspec

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Address, Store
from ayes.ledger.people import People
from ayes.ops.actions import logins
from ayes.ops.broker.accounts import REVIEWER, SYSTEM
from ayes.ops.broker.open_connections import end_connections
from ayes.ops.broker.server import alone
from ayes.ops.tokens import AccessFile
from ayes.schemas import events as e
from ayes.schemas.ids import token
from ayes.schemas.people import plain
from ayes.schemas.slots import person_slot

#: The role that says who is a person.
_ROLE: Final = "organisation"


async def say(
    store: Store, name: str, event: e.PersonAdded | e.WorkspacesSet | e.PersonRemoved
) -> People:
    """Record that a name stands for a person, where, or for nobody, from here on."""
    async with Ledger.connect(store.path, role=_ROLE) as ledger:
        return await ledger.record_person(partial(person_slot, name), event)


async def admit(store: Store, name: str) -> None:
    """Let a name that was removed have an account again. Call it before `ensure_account`."""
    async with alone(_own(store, name).path):
        address = store.read()
        removed = tuple(one for one in address.removed if plain(one) != plain(name))
        store.write(msgspec.structs.replace(address, removed=removed))


async def remove(store: Store, name: str, reason: str) -> bool:
    """Remove a person. Returns whether the broker refuses them from now on; otherwise it lists its
    users, and somebody has to write its accounts anew.

    Raises:
        BadInput: it is not the store of the broker itself.
        BrokerAway: no broker runs there; it accepts the password no more all the same.
        BrokerRefused: an earlier version started it, which cannot end the open connections.
    """
    async with alone(_own(store, name).path):
        address = store.read()
        keys = logins.of_person(address, name)
        left = {one: word for one, word in address.passwords.items() if not _is(one, name)}
        removed = tuple(dict.fromkeys((*address.removed, name)))
        others = {one: login for one, login in address.logins.items() if one not in keys}
        store.write(
            msgspec.structs.replace(address, passwords=left, removed=removed, logins=others)
        )
    AccessFile(store).end_all(name)
    await say(store, name, e.PersonRemoved(reason=reason))
    for one in keys:
        await logins.say(store, one, e.LoginRevoked(reason=f"{name} was removed."))
    return await _end(store, address, name)


async def limit(store: Store, name: str, workspaces: tuple[str, ...]) -> bool:
    """Let a person see and decide in these workspaces only (none: in all of them). What they have
    open ends, so that it begins anew with these. Returns as of `remove`.
    """
    async with alone(_own(store, name).path):
        address = store.read()
        others = {one: scope for one, scope in address.scopes.items() if not _is(one, name)}
        theirs = {plain(f"{REVIEWER}{name}"): workspaces} if workspaces else {}
        store.write(msgspec.structs.replace(address, scopes=others | theirs))
    return address.scope(f"{REVIEWER}{name}") == workspaces or await _end(store, address, name)


async def _end(store: Store, address: Address, name: str) -> bool:
    """End the connections that a person had by this address, if the broker asks about logins."""
    if not logins.asks(store):
        return False
    users = {one for one in address.passwords if _is(one, name)} or {f"{REVIEWER}{name}"}
    await end_connections(store.login(SYSTEM), {*users, *logins.of_person(address, name)})
    return True


def _is(role: str, name: str) -> bool:
    return plain(role) == plain(f"{REVIEWER}{name}")


def _own(store: Store, name: str) -> Store:
    token("reviewer", name)
    return logins.own(store)
