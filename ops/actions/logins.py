"""Logins with a name and a key: how they begin, get another key, and end.

The broker's store has the public keys, so that the broker knows them (callout.py), and the log has
each change, as a fact of the organisation. The seed of a key is in the login's own file alone.
Doing something again does what is left.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Final

from msgspec.structs import replace

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.credentials import Address, LoginFile, RegisteredLogin, Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.keys import Key
from ayes.ledger.nats.scopes import FOLLOWING
from ayes.ledger.nats.streams import SCOPED, declared, dismiss, employ, info
from ayes.ledger.subscriptions import DURABLES, LEDGER, OPERATOR
from ayes.ops.broker import accounts
from ayes.ops.broker.accounts import ADMIN, MODEL, REVIEWER, ROLES, SYSTEM, permissions
from ayes.ops.broker.callout import within
from ayes.ops.broker.open_connections import count_connections, end_connections
from ayes.ops.broker.server import alone
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.ids import token
from ayes.schemas.people import plain
from ayes.schemas.slots import CLIENT, LOGIN, ORGANISATION, ROOT, login_slot

#: The roles that a login may have, beside those of reviewers.
OF_LOGINS: Final = ("service", "executor", MODEL, OPERATOR, "observer")
#: The role that records which logins there are.
_ROLE: Final = "organisation"
_TAKEN: Final = {
    *(*ROLES, ADMIN, SYSTEM),
    *(accounts.PEOPLE, accounts.CALLOUT, SCOPED, accounts.READS),
}


async def add(store: Store, name: str, new: RegisteredLogin, reason: str) -> LoginFile:
    """Register a login with a new key; returns the content of its file.

    Args:
        new: its `key` and `added_at` are given here.

    Raises:
        BadInput: it is not the store of the broker itself, there is such a login already, or it
            cannot have that name, that role or these workspaces.
        BrokerAway: no broker runs there.
    """
    token("login", name)
    if plain(name) in _TAKEN or plain(name).startswith(REVIEWER):
        raise BadInput(f"{name!r} is the name of a role. Give the login another name.")
    async with alone(own(store).path):
        address = store.read()
        if taken := [one for one in address.logins if plain(one) == plain(name)]:
            raise BadInput(
                f"there is a login {taken[0]!r} already. `ayes auth rotate {taken[0]}` gives it a "
                "new key."
            )
        follows = bool(new.workspaces) and new.role in FOLLOWING
        if follows and plain(name) == CLIENT:
            raise BadInput(f"tools of {name!r} are run by services. Name the login otherwise.")
        made = await _register(store, address, name, new, reason)
    if follows:  # last, since `revoke` finds a subscription by its login
        try:
            async with JetStream.connect(store.path, role=ADMIN) as log:
                await employ(log.api, DURABLES[new.role].of(name, new.workspaces))
        except BaseException:
            await revoke(store, name, "It got no subscription of its own.")
            raise
    return made


async def rotate(store: Store, name: str, ends_at: datetime) -> LoginFile:
    """Give a login a new key in place of its present one, which ends with its connections."""
    async with alone(own(store).path):
        address = store.read()
        before = _known(address, name)
        made = await _register(store, address, name, replace(before, ends_at=ends_at), "A new key.")
    await _end(store, {name, before.key})
    return made


async def revoke(store: Store, name: str, reason: str) -> None:
    """Let nobody sign on with a login any more, and end its connections."""
    token("login", name)
    async with alone(own(store).path):
        address = store.read()
        gone = address.logins.get(name)
        if gone is None and not await _is_recorded(store, name):
            _known(address, name)  # refuses
        left = {one: login for one, login in address.logins.items() if one != name}
        store.write(replace(address, logins=left))
    try:
        await _end(store, {name, *([gone.key] if gone else ())})
    finally:
        await _retire(store, name)
        await say(store, name, e.LoginRevoked(reason))


async def _retire(store: Store, name: str) -> None:
    """Delete the subscription that a login had for itself, if it had one."""
    async with JetStream.connect(store.path, role=ADMIN) as log:
        durables = declared(await info(log.api, f"STREAM.INFO.{LEDGER}"))
        for own in (f"{name}@{role}" for role in FOLLOWING):
            if own in durables:
                await dismiss(log.api, own)


async def connections(store: Store) -> dict[str, int]:
    """How often each login is connected."""
    logins = store.read().logins
    if not logins:
        return {}
    users = [user for name, one in logins.items() for user in (name, one.key)]
    counted = await count_connections(store.login(SYSTEM), users)
    return {name: counted[name] + counted[one.key] for name, one in logins.items()}


def of_person(address: Address, name: str) -> dict[str, RegisteredLogin]:
    """The logins that sign on as this reviewer."""
    role = plain(f"{REVIEWER}{name}")
    return {one: login for one, login in address.logins.items() if plain(login.role) == role}


def asks(store: Store) -> bool:
    """Whether the broker asks about each login; otherwise it lists them in its configuration."""
    config = store.path / "accounts.conf"
    return config.exists() and "auth_callout" in config.read_text()


def own(store: Store) -> Store:
    """Refuse a store that is not the broker's own, or that of a whole cluster."""
    if not store.has_login(ADMIN):
        raise BadInput(
            f"{store.path} is not the store of the broker itself. Run this where the broker's "
            "store is; consoles and workers elsewhere learn of it by themselves."
        )
    return store


async def _register(
    store: Store, address: Address, name: str, new: RegisteredLogin, reason: str
) -> LoginFile:
    permissions(new.role, login=name, workspaces=new.workspaces)
    removed = {plain(f"{REVIEWER}{one}") for one in address.removed}
    if plain(new.role) in removed:
        who = new.role.removeprefix(REVIEWER)
        raise BadInput(f"{who} was removed. To let them in again: ayes people add {who}")
    scope = address.scope(new.role)
    if scope and not within(new.workspaces, scope):
        raise BadInput(
            f"{new.role.removeprefix(REVIEWER)} has the workspaces {', '.join(scope)} only. Give "
            "the login some of these with --workspaces."
        )
    key, ca = Key(), (store.path / address.ca).read_text() if address.ca else ""
    added = e.LoginAdded(new.role, key.public, new.ends_at, new.workspaces, reason)
    await say(store, name, added)
    registered = replace(new, key=key.public, added_at=datetime.now(UTC))
    store.write(replace(address, logins=address.logins | {name: registered}))
    return LoginFile(address.url, name, new.role, key.seed, new.ends_at, new.workspaces, ca)


def _known(address: Address, name: str) -> RegisteredLogin:
    found = address.logins.get(name)
    if found is None:
        known = ", ".join(sorted(address.logins)) or "none"
        raise BadInput(f"there is no login {name!r}. There are: {known}.")
    return found


async def _end(store: Store, users: set[str]) -> None:
    if asks(store):
        await end_connections(store.login(SYSTEM), users)


async def say(store: Store, name: str, event: e.LoginAdded | e.LoginRevoked) -> None:
    async with Ledger.connect(store.path, role=_ROLE) as ledger:
        await ledger.record_next((_facts(name),), partial(login_slot, name), event)


async def _is_recorded(store: Store, name: str) -> bool:
    """Whether the last word about a login is that there is one."""
    async with Ledger.connect(store.path, role=_ROLE) as ledger:
        facts = await ledger.reading.read(_facts(name))
    return bool(facts) and isinstance(facts[-1].event, e.LoginAdded)


def _facts(name: str) -> str:
    return f"{ROOT}.{ORGANISATION}.{LOGIN}.{name}.*"
