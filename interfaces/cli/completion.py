"""Values that the shell completes: names of calls, questions, workers.

What takes long to import is imported when a completion asks for it.
"""

import asyncio
from collections.abc import Callable, Iterable

import typer

#: Pending calls that a completion offers at most, the oldest first.
_MAX_CALLS = 200


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Complete one of these values."""
    return lambda incomplete: _beginning(incomplete, values)


def questions(incomplete: str) -> list[tuple[str, str]]:
    from ayes.projections.lake.queries import QUESTIONS

    return [(one.name, one.title) for one in QUESTIONS.values() if one.name.startswith(incomplete)]


def pending_calls(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The pending calls of the broker that the command line names; none if it does not answer."""
    from ayes.ledger.clients.services import Ledger
    from ayes.projections import pending
    from ayes.schemas.errors import ApprovalsError

    async def read() -> list[tuple[str, str]]:
        store, url = ctx.params.get("store"), ctx.params.get("url")
        async with Ledger.connect(store, url=url, role="observer", timeout_s=1) as ledger:
            entries = pending.oldest(await ledger.log.pending.entries(), _MAX_CALLS).entries
        return [(str(one.ref), one.tool) for one in entries if str(one.ref).startswith(incomplete)]

    try:
        return asyncio.run(read())
    except (ApprovalsError, OSError):  # the shell has no place for an error
        return []


def _beginning(incomplete: str, values: Iterable[str]) -> list[str]:
    return [one for one in values if one.startswith(incomplete)]
