"""What every format is tested with: random lives with its own opaque parts, and what it
carries of a history.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import strategies as st
from paths import DATA
from stories import REF, facts_of, lives

from ayes.projections.formats.common import OPENING, tool_name
from ayes.projections.formats.conversation import (
    ConversationStep,
    Output,
    RecordedConversation,
    RecordedReply,
    Spoken,
    read_conversations,
)
from ayes.projections.history import Assistant, Entry, Note, Outcome, System, User, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas import strict_json
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


# --------------------------------------------------------------------------- what a format carries


def visible(text: str) -> str:
    return text if text.strip() else "(no text)"


def some(text: str) -> str:
    return text or "(no text)"


def value_of(arguments: str) -> str:
    """Arguments that are an object without blanks; others as they are, and nothing as an empty
    object.
    """
    try:
        value = strict_json.read(arguments or "{}")
    except strict_json.BadJson:
        return arguments
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return compact if isinstance(value, dict) else arguments


class Carries(NamedTuple):
    """What a format carries of a history without opaque parts of its own."""

    #: The ids of calls that it takes.
    takes: Callable[[str], bool] = bool
    #: A text of a user or the system, as it comes back.
    said: Callable[[str], str] = str
    #: Whether a text of the model is kept.
    keeps: Callable[[str], object] = lambda _text: True
    arguments: Callable[[str], str] = str
    #: The text of an error, as it comes back.
    error: Callable[[str], str] = str
    #: The text in place of an empty reply; None: it stays empty.
    empty: str | None = None
    #: Whether system texts keep their role anywhere, or only where they open the history.
    late_system: bool = False
    system_notes: bool = False
    #: Whether a user speaks first, and two replies in a row become one.
    opens: bool = False
    joins: bool = False
    errors: bool = True
    thinking: bool = False


_AI_SDK = Carries(
    said=visible, keeps=str.strip, arguments=value_of, error=visible, empty="(no text)"
)
CARRIES = {
    "ai-sdk": _AI_SDK,
    "ai-sdk-ui": _AI_SDK,
    "pydantic-ai": Carries(error=visible, late_system=True, thinking=True),
    "gemini": Carries(
        takes=lambda _id: True,
        said=some,
        keeps=bool,
        arguments=value_of,
        empty="(no text)",
        opens=True,
        joins=True,
    ),
    "openai-responses": Carries(
        takes=lambda id_: 1 <= len(id_) <= 64,
        empty="",
        late_system=True,
        system_notes=True,
        joins=True,
        errors=False,
    ),
}


def carried(name: str, entries: tuple[Entry, ...]) -> tuple[ConversationStep, ...]:
    """The entries as the steps that must come back from the format."""
    form, ids = CARRIES[name], _minted(entries, CARRIES[name].takes)
    steps: list[ConversationStep] = []
    for entry in entries:
        opening = all(isinstance(step, Spoken) and step.role == "system" for step in steps)
        match entry:
            case System(text) if form.opens and opening and not text:
                pass
            case System(text) if opening or form.late_system:
                steps.append(Spoken("system", form.said(text)))
            case Note(text, name) if form.system_notes:
                steps.append(Spoken("system", f"[Note from {name}] {text}" if name else text))
            case System(text) | Note(text):
                whose = getattr(entry, "name", "") or "the system"
                steps.append(Spoken("user", f"[Note from {whose}] {text}"))
            case User(text):
                steps.append(Spoken("user", form.said(text)))
            case Outcome(call=call, tool=tool, text=text, is_error=is_error):
                said = form.error(text) if is_error else text
                steps.append(Output(ids[call], tool_name(tool), said, is_error and form.errors))
            case Assistant(turn=number, parts=parts):
                if form.opens and opening:
                    steps.append(Spoken("user", OPENING))
                kept = tuple(_parts(form, number, parts, ids))
                if not kept and form.empty is not None:
                    kept = (e.Text(form.empty),)
                if form.joins and steps and isinstance(steps[-1], RecordedReply):
                    kept = (*steps.pop().parts, *kept)
                steps.append(RecordedReply(kept))
    nobody_spoke = all(isinstance(step, Spoken) and step.role == "system" for step in steps)
    return (*steps, Spoken("user", OPENING)) if form.opens and nobody_spoke else tuple(steps)


def _parts(
    form: Carries, number: int, parts: tuple[e.Part, ...], ids: dict[str, str]
) -> Iterator[e.Part]:
    index = 0
    for part in parts:
        match part:
            case e.Wish(tool, arguments):
                yield e.Wish(tool_name(tool), form.arguments(arguments), ids[f"{number}-{index}"])
                index += 1
            case e.Text(text) if form.keeps(text):
                yield part
            case e.Opaque("anthropic", data) if form.thinking and data == json.dumps(THINKING):
                yield e.Opaque("anthropic", json.dumps(THINKING, separators=(",", ":")))


def _minted(entries: tuple[Entry, ...], takes: Callable[[str], bool]) -> dict[str, str]:
    """The provider's ids that stay, or others in their place, by call. Several may be empty."""
    used: set[str] = set()
    ids: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, Outcome):
            id_ = entry.provider_id
            if not takes(id_) or id_ in used:
                id_ = f"call_{entry.call}"
            while id_ in used:
                id_ += "_"
            used |= {id_} - {""}
            ids[entry.call] = id_
    return ids
