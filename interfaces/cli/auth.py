"""Commands for logins with a name and a key: what programs sign on at the broker with."""

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import StoreSession, command, commands
from ayes.interfaces.cli.options import (
    LISTED,
    WhyOption,
    WorkspacesOption,
    argument,
    option,
    workspaces_of,
)
from ayes.ledger.nats.credentials import LoginFile, RegisteredLogin, Store
from ayes.ops.actions import logins
from ayes.ops.broker.accounts import REVIEWER
from ayes.schemas.durations import parse_duration
from ayes.schemas.errors import BadInput
from ayes.schemas.files import write_atomically
from ayes.schemas.ids import token

app: Final = commands()

_REVIEWER: Final = REVIEWER.rstrip("-")
_ROLES: Final = (*logins.OF_LOGINS, _REVIEWER)
_LONGEST_S: Final = 366 * 86400.0

NameArgument = Annotated[str, argument("NAME", "The login's name.")]
ExpiresOption = Annotated[str, option("--expires", "DURATION", "After 366d at most.")]
OutOption = Annotated[
    Path | None, option("--out", "FILE", "The login's file; NAME.login by default.")
]


@command(
    app,
    examples="""
    ayes auth add billing --role service --workspaces shop,desk
    ayes auth add ana-laptop --role reviewer --person ana --expires 30d --out ana.login
    """,
)
async def add(
    name: NameArgument,
    role: Annotated[
        str,
        option(
            "--role",
            "ROLE",
            f"What it may do: {', '.join(_ROLES)}.",
            autocompletion=completion.one_of(*_ROLES),
        ),
    ],
    person: Annotated[
        str, option("--person", "NAME", "With --role reviewer: the person who votes with it.")
    ] = "",
    workspaces: WorkspacesOption = None,
    expires: ExpiresOption = "90d",
    out: OutOption = None,
    reason: WhyOption = "",
    *,
    session: StoreSession,
) -> None:
    """Make a login, and write the file with which a program signs on as it."""
    if role not in _ROLES:
        raise BadInput(f"a login has no role {role!r}. There are: {', '.join(_ROLES)}.")
    if bool(person) != (role == _REVIEWER):
        raise BadInput("--person and --role reviewer go together: a person votes with that login.")
    if person:
        role = f"{REVIEWER}{token('reviewer', person)}"
    file = _file(name, out)
    if file.exists():
        raise BadInput(f"{file} is there already. Name another file with --out.")
    scope, now = workspaces_of(workspaces) or (), datetime.now(UTC)
    new = RegisteredLogin(role, "", _end(expires), now, scope)
    store = Store(session.store)
    _written(session, store, file, await logins.add(store, name, new, reason))


@command(app, "list")
async def show_logins(session: StoreSession) -> None:
    """List the logins that have keys, and how often each is connected."""
    store = Store(session.store)
    counted = await logins.connections(store)
    known = store.read().logins
    session.print_rows(
        [_row(name, known[name], counted[name]) for name in sorted(counted)],
        if_none="There are no logins with keys. `ayes auth add` makes one.",
    )


@command(app)
async def rotate(
    name: NameArgument,
    expires: ExpiresOption = "90d",
    out: OutOption = None,
    *,
    session: StoreSession,
) -> None:
    """Give a login a new key and write its file anew. The old key and its connections end."""
    store = Store(session.store)
    _written(session, store, _file(name, out), await logins.rotate(store, name, _end(expires)))


@command(app, examples="ayes auth revoke billing --reason 'Its file was copied.'")
async def revoke(name: NameArgument, reason: WhyOption = "", *, session: StoreSession) -> None:
    """Revoke a login. Its key is refused from now on, and its connections end."""
    store = Store(session.store)
    await logins.revoke(store, name, reason)
    is_done = logins.asks(store)
    then = "Its connections have ended." if is_done else f"{LISTED}the key is accepted."
    session.print({"name": name, "ended": is_done}, f"{name} is revoked. {then}")


def _written(session: StoreSession, store: Store, file: Path, made: LoginFile) -> None:
    """Write a login's file, and say how it is used."""
    try:
        write_atomically(file, msgspec.json.format(msgspec.json.encode(made)))
    except OSError as problem:
        raise BadInput(
            f"{file} cannot be written: {problem.strerror}. The login is there: write its file "
            f"elsewhere with `ayes auth rotate {made.name} --out FILE`."
        ) from None
    row = {"name": made.name, "role": made.role, "workspaces": made.workspaces}
    session.print(
        row | {"ends_at": made.ends_at.isoformat(), "file": str(file)},
        f"{file} is the login {made.name}, until {made.ends_at:%Y-%m-%d %H:%M} UTC. Move it to the "
        f"program that is to have it, and start that with AYES_LOGIN={shlex.quote(str(file))}.",
        *(() if logins.asks(store) else [f"{LISTED}this key is refused."]),
    )


def _file(name: str, out: Path | None) -> Path:
    file = out or Path(f"{token('login', name)}.login")
    if not file.parent.is_dir():
        raise BadInput(f"there is no directory {file.parent} for {file.name}. Make it first.")
    return file


def _end(expires: str) -> datetime:
    lasts_s = parse_duration("--expires", expires, least=1, most=_LONGEST_S)
    return (datetime.now(UTC) + timedelta(seconds=lasts_s)).replace(microsecond=0)


def _row(name: str, one: RegisteredLogin, connected: int) -> tuple[dict[str, object], str]:
    ends = "ended" if one.ends_at <= datetime.now(UTC) else "ends"
    where = ", ".join(one.workspaces) or "all workspaces"
    data = {
        "name": name,
        "role": one.role,
        "workspaces": one.workspaces,
        "key": one.key,
        "added_at": one.added_at.isoformat(),
        "ends_at": one.ends_at.isoformat(),
        "connections": connected,
    }
    until = f"{ends} {one.ends_at:%Y-%m-%d %H:%M} UTC"
    return data, f"{name}  {one.role}  {where}  {until}  connected {connected}x"
