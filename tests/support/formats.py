"""What every format is tested with: random lives with its own opaque parts."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from paths import DATA
from stories import REF, facts_of, lives

from ayes.projections.formats.conversation import (
    RecordedConversation,
    read_conversations,
)
from ayes.projections.history import Assistant, Entry, Outcome, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact

#: An opaque part of the random lives.
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
_SIGNED = {"thoughtSignature": "c2ln"}
_THOUGHT = {"text": "hm", "thought": True}
_REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
#: By format: opaque parts of its own, good ones and bad ones.
_OWN: dict[str, list[Any]] = {
    "gemini": [
        *(_SIGNED, _SIGNED, _THOUGHT, {**_THOUGHT, **_SIGNED}, {"thoughtSignature": "no base64!"}),
        {"executableCode": {"language": "PYTHON", "code": "1+1"}},
        *({"text": "hi"}, {"text": "", "thought": True}, {"functionCall": {"name": "x"}}, [], {}),
    ],
    "openai-responses": [
        *(_REASONING, {**_REASONING, "id": "rs_2"}, {"type": "reasoning"}, [], {"id": "x"}),
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search"},
        },
        *({"id": "fc_1"}, {"id": "msg_1", "status": "completed"}, {"phase": "commentary"}),
        {"type": "computer_call"},
    ],
}


def wish(tool="refund", arguments='{"order":"A-17"}', provider_id="call_a") -> e.Wish:
    return e.Wish(tool=tool, arguments=arguments, provider_id=provider_id)


def turn(number: int, *parts: e.Part, text="done", is_error=False) -> list[Entry]:
    """A turn whose calls all ended in the same way."""
    wishes = [part for part in parts if isinstance(part, e.Wish)]
    kind = "failed" if is_error else "returned"
    return [
        Assistant(number, parts),
        *(
            Outcome(f"{number}-{index}", one.tool, one.provider_id, kind, text, is_error)
            for index, one in enumerate(wishes)
        ),
    ]


def entries_of(facts: list[Fact]) -> tuple[Entry, ...]:
    return history(thread_of(REF, facts)).entries


@cache
def conversations() -> list[RecordedConversation]:
    if not DATA.exists():
        pytest.skip(f"the recorded conversations are not at {DATA}")
    found = read_conversations(DATA)
    assert len(found) == 150
    return found


def recorded_entries(conversation: RecordedConversation) -> tuple[Entry, ...]:
    return entries_of(facts_of(conversation.messages))


@st.composite
def own_lives(draw: st.DrawFn, name: str) -> list[Fact]:
    """Random lives in which opaque parts of this format occur, if it has any."""

    def swapped(part: e.Part) -> e.Part:
        if name not in _OWN or not isinstance(part, e.Opaque):
            return part
        own = draw(st.sampled_from(_OWN[name]))
        return e.Opaque(name, json.dumps(own, separators=(",", ":")))

    facts = []
    for fact in draw(lives()):
        event = fact.event
        if isinstance(event, e.ModelReplied):
            event = msgspec.structs.replace(event, parts=tuple(map(swapped, event.parts)))
        facts.append(msgspec.structs.replace(fact, event=event))
    return facts


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything in a JSON value that can be exchanged: what holds it, and its key there."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])
