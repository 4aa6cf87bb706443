"""What a person has the console keep, as it tells them: saved searches, and what they put aside."""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.accounts import API_SERVICE
from ayes.projections.pending import Entry
from ayes.projections.saved_views import SavedView
from ayes.schemas.errors import BadInput, BrokerAway, BrokerRefused


class _Views(Struct):
    """The part of `GET /views` that is read."""

    views: list[SavedView]


class _PutAside(Struct):
    """As of `GET /snoozed`."""

    calls: dict[str, msgspec.Raw]


_views: Final = msgspec.json.Decoder(_Views)
_put_aside: Final = msgspec.json.Decoder(_PutAside)


async def saved_view(ledger: Ledger, reader: str, name: str) -> SavedView:
    """The view of this name that a person may see, their own before another person's.

    Args:
        ledger: on the person's own login.

    Raises:
        BadInput: there is none.
        BrokerAway, BrokerRefused: as of `_told`.
    """
    found = _views.decode(await _told(ledger, reader, "views")).views
    for one in found:
        if one.name == name:
            return one
    names = ", ".join(repr(one.name) for one in found) or "none"
    raise BadInput(f"there is no view {name!r} for {reader}. There are: {names}.")


async def snoozed_by(ledger: Ledger, reader: str) -> Callable[[Entry], bool]:
    """Whether a person has put a call aside; arguments and errors as of `saved_view`."""
    calls = _put_aside.decode(await _told(ledger, reader, "snoozed")).calls
    return lambda entry: str(entry.ref) in calls


async def _told(ledger: Ledger, reader: str, endpoint: str) -> bytes:
    """What the console tells a person.

    Raises:
        BrokerAway: no console answers.
        BrokerRefused: it does not tell it.
    """
    assert isinstance(ledger.log, JetStream), "a person's login is at a broker"
    scope = "+".join(ledger.log.connection.login.workspaces)
    whose = f"{API_SERVICE}.reviewer.{reader}{scope and f'.{scope}'}"
    try:
        answer = await ledger.log.api.ask(f"{whose}.{endpoint}", b"{}", repeat=True)
    except BrokerAway:
        raise BrokerAway(
            "the console keeps views and what is put aside, and none answers. `ayes up` and "
            "`ayes console` serve one."
        ) from None
    if refusal := answer.headers.get("Nats-Service-Error"):
        raise BrokerRefused(f"the console does not tell it: {refusal}")
    return answer.data
