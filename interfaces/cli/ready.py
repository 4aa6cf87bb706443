"""The command for probes: do calls get decided at the moment?"""

import asyncio
from typing import Annotated, Final, NamedTuple

from msgspec.structs import replace

from ayes.interfaces.cli import completion
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import option
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.subscriptions import OPERATOR
from ayes.ops.inspection.checks import MAX_WAITING, Wanted, glance, obstacle
from ayes.ops.inspection.health import takes_writes
from ayes.ops.inspection.nodes import explained
from ayes.ops.workers import KINDS
from ayes.schemas.errors import TRY_AGAIN, BadInput, BrokerRefused, Unavailable

app: Final = commands()

#: How long all questions to the broker may take together.
_PATIENCE_S: Final = 5.0


class WantedOptions(NamedTuple):
    """What must be so; the options of `ready` and `monitor`."""

    role: Annotated[
        list[str] | None,
        option(
            "--role",
            "KIND",
            f"Only these workers: {', '.join(KINDS)}. Repeatable.",
            autocompletion=completion.one_of(*KINDS),
        ),
    ] = None
    most_waiting: Annotated[
        int,
        option(
            "--most-waiting", "N", "Not ready while a consumer has more waiting deliveries.", min=0
        ),
    ] = MAX_WAITING

    def checked(self) -> Wanted:
        """What they say.

        Raises:
            BadInput: there is no such worker.
        """
        roles = self.role or []
        if unknown := sorted(set(roles) - set(KINDS)):
            kinds = ", ".join(KINDS)
            raise BadInput(f"there is no worker {', '.join(unknown)}. There are: {kinds}.")
        return Wanted(roles, self.most_waiting)


@command(
    app,
    examples="""
    ayes ready
    ayes ready --role gate
    """,
)
async def ready(wanted: WantedOptions, session: Session) -> int:
    """Check that calls get decided: the log takes writes, gate and queue run, and no consumer
    stands still or is far behind. Exit 75 if not, with the reason.
    """
    why = await _obstacle(wanted.checked(), session)
    session.print({"ready": not why, "why": why}, why or "ready")
    return TRY_AGAIN if why else 0


async def _obstacle(wanted: Wanted, session: Session) -> str:
    """Why calls do not get decided at the moment; empty if they do.

    Raises:
        BrokerRefused: the credentials or the level of the log, which do not mend themselves.
    """
    store = Store(session.store) if session.url is None else None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            connecting = JetStream.connect(
                session.store, url=session.url, role=OPERATOR, any_level=True
            )
            async with connecting as log, explained(log):
                found = await glance(log, wanted)
                return obstacle(replace(found, health=await takes_writes(log, store)))
    except TimeoutError:
        return f"the broker did not answer within {_PATIENCE_S:g} s."
    except BrokerRefused:
        raise
    except Unavailable as problem:
        return str(problem)
