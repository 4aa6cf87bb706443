"""The searches that a person has saved, or that others share with them, as the console tells."""

from typing import Final

import msgspec
from msgspec import Struct

from ayes.ledger.clients.services import Ledger
from ayes.ledger.nats.jetstream import JetStream
from ayes.ops.broker.accounts import API_SERVICE
from ayes.projections.saved_views import SavedView
from ayes.schemas.errors import BadInput, BrokerAway, BrokerRefused


class _Told(Struct):
    """The part of `GET /views` that is read."""

    views: list[SavedView]


_decoder: Final = msgspec.json.Decoder(_Told)


async def saved_view(ledger: Ledger, reader: str, name: str) -> SavedView:
    """The view of this name that a person may see, their own before another person's.

    Args:
        ledger: on the person's own login.

    Raises:
        BadInput: there is none.
        BrokerAway: no console answers, which keeps the views.
        BrokerRefused: it does not tell them.
    """
    assert isinstance(ledger.log, JetStream), "a person's login is at a broker"
    scope = "+".join(ledger.log.connection.login.workspaces)
    whose = f"{API_SERVICE}.reviewer.{reader}{scope and f'.{scope}'}"
    try:
        answer = await ledger.log.api.ask(f"{whose}.views", b"{}", repeat=True)
    except BrokerAway:
        raise BrokerAway(
            "the console keeps the views, and none answers. `ayes up` and `ayes console` serve one."
        ) from None
    if refusal := answer.headers.get("Nats-Service-Error"):
        raise BrokerRefused(f"the console does not tell its views: {refusal}")
    found = _decoder.decode(answer.data).views
    for one in found:
        if one.name == name:
            return one
    names = ", ".join(repr(one.name) for one in found) or "none"
    raise BadInput(f"there is no view {name!r} for {reader}. There are: {names}.")
