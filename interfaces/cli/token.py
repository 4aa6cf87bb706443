"""Commands for the tokens with which programs use the HTTP API."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import StoreSession, command, commands
from ayes.interfaces.cli.options import argument, option
from ayes.interfaces.cli.terminal.output import print_line
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.server import adopt
from ayes.ops.tokens import AccessFile, ApiToken
from ayes.ops.visitors import Role
from ayes.schemas.durations import parse_duration
from ayes.schemas.errors import BadInput

app: Final = commands()

_ROLES: Final = tuple(Role)
_LONGEST_S: Final = 366 * 86400.0


@command(
    app,
    examples="""
    ayes token add billing --role service
    ayes token add ana --role reviewer --expires 8h
    ayes token add shop-desk --role service --workspaces shop,returns
    """,
)
async def add(
    name: Annotated[
        str, argument("NAME", "The reviewer in whose name it votes; else the name of a program.")
    ],
    role: Annotated[
        str,
        option(
            "--role",
            "ROLE",
            f"What it may do: {', '.join(_ROLES)}. Each may read.",
            autocompletion=completion.one_of(*_ROLES),
        ),
    ],
    expires: Annotated[str, option("--expires", "DURATION", "After 366d at most.")] = "90d",
    workspaces: Annotated[
        str | None,
        option("--workspaces", "A,B", "What it may see and act in; by default, all workspaces."),
    ] = None,
    *,
    session: StoreSession,
) -> None:
    """Make a token for the HTTP API. It is printed once, and kept only as a hash."""
    if role not in _ROLES:
        raise BadInput(f"there is no role {role!r}. There are: {', '.join(_ROLES)}.")
    lasts_s = parse_duration("--expires", expires, least=1, most=_LONGEST_S)
    place = Store(session.store)
    adopt(place)
    scope = () if workspaces is None else workspaces.split(",")
    lasts = timedelta(seconds=lasts_s)
    secret, made = AccessFile(place).add_token(name, Role(role), lasts, scope)
    if not session.json:
        print_line(secret)
    session.print(
        _row(made) | {"token": secret},
        f"{_words(made)}. It is not shown again; send it as `Authorization: Bearer`.",
    )


@command(app, "list")
async def show_tokens(session: StoreSession) -> None:
    """List the tokens, without their secrets."""
    found = AccessFile(Store(session.store)).read().tokens
    session.print_rows(
        [(_row(one), _words(one)) for one in found],
        if_none="There are no tokens. `ayes token add` makes one.",
    )


@command(app)
async def revoke(
    named: Annotated[str, argument("ID", "As `ayes token list` shows it.")],
    session: StoreSession,
) -> None:
    """Revoke a token. It is refused from the next request on."""
    revoked = AccessFile(Store(session.store)).revoke(named)
    session.print(_row(revoked), f"Revoked: {_words(revoked)}.")


def _row(one: ApiToken) -> dict[str, object]:
    return {
        "id": one.id,
        "name": one.name,
        "role": one.role,
        "workspaces": one.workspaces,
        "created_at": one.created_at.isoformat(),
        "expires_at": one.expires_at.isoformat(),
    }


def _words(one: ApiToken) -> str:
    ends = "expired" if one.expires_at <= datetime.now(UTC) else "expires"
    within = f" in {', '.join(one.workspaces)}" if one.workspaces else ""
    until = f"{one.expires_at:%Y-%m-%d %H:%M} UTC"
    return f"{one.id}  {one.name} as {one.role}{within}, {ends} {until}"
