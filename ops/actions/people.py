"""Who may sign on at the broker of a store as a reviewer, and how a person is removed.

A removal takes the password, ends open connections, and records the fact by which consoles and
workers elsewhere learn of it. Doing it again does what is left.
"""

import asyncio
import json
from functools import partial
from typing import Any, Final

import msgspec

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.api import Api
from ayes.ledger.nats.connection import CONNECT_S, Connection
from ayes.ledger.nats.credentials import Login, Store
from ayes.ledger.nats.protocol import server_id
from ayes.ledger.people import People
from ayes.ops.broker.accounts import ADMIN, REVIEWER, SYSTEM
from ayes.ops.broker.server import alone
from ayes.ops.tokens import AccessFile
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, BrokerRefused
from ayes.schemas.ids import token
from ayes.schemas.people import plain
from ayes.schemas.slots import person_slot

#: The role that says who is a person.
_ROLE: Final = "organisation"
#: Connections of one person that are ended with one request.
_MAX_CONNECTIONS: Final = 1024


async def say(store: Store, name: str, event: e.PersonAdded | e.PersonRemoved) -> People:
    """Record that a name stands for a person, or for nobody, from here on."""
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
        theirs = {one for one in address.passwords if plain(one) == plain(f"{REVIEWER}{name}")}
        left = {one: word for one, word in address.passwords.items() if one not in theirs}
        removed = tuple(dict.fromkeys((*address.removed, name)))
        store.write(msgspec.structs.replace(address, passwords=left, removed=removed))
    AccessFile(store).end_all(name)
    await say(store, name, e.PersonRemoved(reason=reason))
    accounts = store.path / "accounts.conf"
    if not accounts.exists() or "auth_callout" not in accounts.read_text():
        return False
    await _disconnect(store.login(SYSTEM), theirs or {f"{REVIEWER}{name}"})
    return True


async def _disconnect(login: Login, users: set[str]) -> None:
    """End the connections of these users, also those whose login is under way."""
    connection = Connection(login)
    await connection.open(name="ayes people")
    try:
        api = Api(connection)
        await api.start()
        server = f"$SYS.REQ.SERVER.{server_id(connection.client)}"

        async def ask(what: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = await api.ask(f"{server}.{what}", json.dumps(body).encode(), CONNECT_S)
            found: dict[str, Any] = json.loads(answer.data)
            return found.get("data") or {}

        clock = asyncio.get_running_loop()
        until = clock.time() + CONNECT_S
        while clock.time() < until:
            for user in users:
                found = await ask("CONNZ", {"auth": True, "user": user, "limit": _MAX_CONNECTIONS})
                for one in found.get("connections") or ():
                    await ask("KICK", {"cid": one["cid"]})
            await asyncio.sleep(CONNECT_S / 10)
    except BrokerRefused:
        raise BrokerRefused(
            "an earlier version of ayes started the broker, so open connections last until it is "
            "restarted. Stop that `ayes up` and start it again; nothing is lost."
        ) from None
    finally:
        await connection.close()


def _own(store: Store, name: str) -> Store:
    token("reviewer", name)
    if not store.has_login(ADMIN):
        raise BadInput(
            f"{store.path} is not the store of the broker itself. Run this where the broker's "
            "store is; consoles and workers elsewhere learn of it by themselves."
        )
    return store
