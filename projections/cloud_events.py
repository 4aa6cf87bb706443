"""Facts as CloudEvents 1.0 in structured JSON, for programs elsewhere.

`id` is the number of the fact and the id of its event. The broker gives out the number, so no
writer can make two facts look like one to a receiver that drops repetitions; the id tells logs
apart that were begun anew on the same machine.
"""

import hashlib
import re
from datetime import datetime
from typing import Any, Final

import msgspec

from ayes.schemas.codec import Fact, fact_json
from ayes.schemas.events import Carried

MEDIA_TYPE: Final = "application/cloudevents+json"
#: A `traceparent` of version 00 (W3C Trace Context), as the extension "distributed tracing" has it.
_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def cloud_event(fact: Fact, origin: str, void: str = "") -> str:
    """A fact as a CloudEvent; its `data` is the fact as `--json` shows it.

    Args:
        origin: the DNS name of this ledger.
        void: why the fact does not count, if it does not.
    """
    trace = "" if isinstance(fact.event, Carried) else fact.event.trace
    attributes = _attributes(
        id=f"{fact.seq}-{fact.event.id}",
        source=f"//{origin}/{fact.slot.workspace}",
        type=f"ayes.{kind_of(fact) or 'Unreadable'}",
        subject=fact.slot.subject,
        time=fact.recorded_at,
    )
    if _TRACEPARENT.fullmatch(trace):
        attributes["traceparent"] = trace
    return _with_data(attributes, fact_json(fact, void))


def test_event(name: str, event_id: str, origin: str, at: datetime) -> str:
    """An event about no fact, with which an endpoint is tried."""
    attributes = _attributes(
        id=event_id, source=f"//{origin}/", type="ayes.webhooks.test", subject=name, time=at
    )
    return _with_data(attributes, '{"test":true}')


def kind_of(fact: Fact) -> str:
    """The type of a fact as it is in the log; empty if its bytes are not a fact."""
    event = fact.event
    return event.type if isinstance(event, Carried) else str(event.__struct_config__.tag)


def webhook_id(endpoint: str, fact: Fact) -> str:
    """The `webhook-id` of a fact for an endpoint: always the same, and without dots."""
    what = "\n".join((endpoint, str(fact.seq), fact.slot.subject, fact.event.id))
    return f"msg_{fact.seq}_{hashlib.sha256(what.encode(errors='replace')).hexdigest()[:32]}"


def _attributes(**attributes: Any) -> dict[str, Any]:
    return {"specversion": "1.0", **attributes, "datacontenttype": "application/json"}


def _with_data(attributes: dict[str, Any], data: str) -> str:
    return f'{msgspec.json.encode(attributes).decode()[:-1]},"data":{data}}}'
