"""Commands for people: who they are, their accounts elsewhere, and how they are removed."""

import time
from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    LISTED,
    AsOption,
    LinkKeyOption,
    WhyOption,
    WorkspacesOption,
    argument,
    workspaces_of,
)
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.link_key import link_key as key_of_links
from ayes.ledger.people import People
from ayes.ops.actions import people
from ayes.ops.broker.accounts import REVIEWER
from ayes.ops.broker.server import ensure_account
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput
from ayes.schemas.links import account_of
from ayes.schemas.people import plain

app: Final = commands()

NameArgument = Annotated[str, argument("NAME", "The reviewer's name.")]


@command(app, "list")
async def show_people(session: Session) -> None:
    """List the people who may sign on here, and the accounts that they have bound."""
    async with session.connect("observer") as ledger:
        known = await ledger.people()
    passwords = () if session.url else Store(session.store).read().passwords
    here = [one.removeprefix(REVIEWER) for one in passwords if one.startswith(REVIEWER)]
    names = {plain(one): one for one in (*known.removed, *known.accounts.values(), *here)}
    session.print_rows(
        [_row(known, one) for one in sorted(names.values())],
        if_none="Nobody has an account yet. `ayes people add NAME` makes one.",
    )


def _row(known: People, name: str) -> tuple[dict[str, object], str]:
    accounts, removed = known.of(name), known.is_removed(name)
    words = "removed" if removed else ", ".join(accounts) or "no account bound"
    theirs = known.workspaces(name)
    where = f"  in {', '.join(theirs)}" if theirs and not removed else ""
    row = {"name": name, "removed": removed, "accounts": accounts, "workspaces": theirs}
    return row, f"{name}  {words}{where}"


@command(app, examples="ayes people add ana --workspaces shop,desk")
async def add(
    name: NameArgument,
    workspaces: WorkspacesOption = None,
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """Let a person sign on, also one who was removed, of whose former accounts none is theirs.
    Other workspaces than before end what they have open.
    """
    store = _store(session)
    async with session.connect("observer") as ledger:
        known = await ledger.people()
    wanted = workspaces_of(workspaces)
    if wanted is None:
        wanted = known.workspaces(name)
    is_done = await people.limit(store, name, wanted)
    await people.admit(store, name)
    await ensure_account(store, f"{REVIEWER}{name}")
    if known.is_removed(name):
        known = await people.say(store, name, e.PersonAdded(reason=reason, workspaces=wanted))
    elif known.workspaces(name) != wanted:
        known = await people.say(store, name, e.WorkspacesSet(wanted, reason))
    row, words = _row(known, name)
    session.print(
        row, f"{words}: may sign on.", *(() if is_done else [f"{LISTED}their login is as it was."])
    )


@command(app, examples="ayes people remove ana --reason 'Has left.'")
async def remove(name: NameArgument, reason: WhyOption = "", *, session: Session) -> None:
    """Remove a person: no vote of theirs counts from here on. Earlier ones stay valid."""
    is_done = await people.remove(_store(session), name, reason)
    rest = (
        "Connections, sessions, tokens and accounts have ended."
        if is_done
        else f"{LISTED}the old password is accepted, and what it records lets nothing run."
    )
    session.print({"name": name, "ended": is_done}, f"{name} is removed. {rest}")


@command(app)
async def release(name: NameArgument, reason: WhyOption = "", *, session: Session) -> None:
    """Free the accounts that a person has bound, which can be bound anew. Sessions end."""
    store = _store(session)
    async with session.connect("observer") as ledger:
        theirs = (await ledger.people()).workspaces(name)
    known = await people.say(store, name, e.PersonAdded(reason=reason, workspaces=theirs))
    session.print(_row(known, name)[0], f"The accounts of {name} are free.")


@command(app)
async def bind(
    code: Annotated[str, argument("CODE", "As the chat shows it.")],
    name: AsOption,
    link_key: LinkKeyOption = None,
    *,
    session: Session,
) -> None:
    """Bind your account in a chat to you: its clicks are your votes. Take no code from others."""
    account = account_of(key_of_links(Store(session.store), link_key), code, time.time())
    if not account:
        raise BadInput("this code is older than ten minutes, or is not ours. Click again.")
    async with session.as_reviewer(name) as ledger:
        known = await ledger.reviewer(name).bind(account)
    session.print(_row(known, name)[0], f"Clicks of {account} are votes of {name} from now on.")


def _store(session: Session) -> Store:
    if session.url:
        raise BadInput("people are those of a store. Name it with --store instead of --url.")
    return Store(session.store)
