"""Writes histories for Gemini's `generateContent`.

This form loses the spelling of arguments (they are sent as an object; text that is not an object is
wrapped under `MALFORMED`), a user's name, an empty text (`BLANK`, or left out of a model's turn),
and the border between two turns with nothing between them. `OPENING` comes before a history that
opens with the model. System texts that open the history are the `systemInstruction`; later ones
are a user's texts, marked as notes. An id that repeats is minted again, and characters that a tool
name may not have are replaced. Files are parts (`media`) and lose their names; in a function's
response they come after its texts. Those that the provider does not take, and citations, are told
in words; a refusal is a text.

Opaque parts of other providers are left out. Ours (`Opaque.provider == "gemini"`) hold JSON:
`{"thoughtSignature": ...}`, which belongs to the part directly after it, or a whole part that only
Google understands: a thought, or the work of Google's own tools. A call without a signature, since
another model made it, gets the one that Google documents for that case, `FOREIGN`.
"""

from collections.abc import Sequence
from typing import Final

from ayes.projections.formats.common import (
    BLANK,
    OPENING,
    JsonObject,
    Payload,
    append_or_merge,
    arguments_object,
    fitting,
    is_taken,
    parse_json,
    split_opening,
    tool_name,
    user_text,
)
from ayes.projections.formats.gemini.media import part_of, takes, takes_in_responses, takes_of_model
from ayes.projections.formats.gemini.parts import FOREIGN, FUNCTION_NAME, is_base64, is_kept
from ayes.projections.formats.pairing import PairedTurn, mint_call_id, pair_turns
from ayes.projections.history import Assistant, Entry, Outcome, User
from ayes.schemas.content import spoken
from ayes.schemas.events import Media, Opaque, Refusal, Text, Wish


def write(entries: Sequence[Entry]) -> Payload:
    """`{"systemInstruction": ..., "contents": [...]}`, the first only if system texts open it."""
    opening, rest = split_opening(entries)
    system = [{"text": text} for text in opening if text]
    contents: list[JsonObject] = []
    used: set[str] = set()
    for step in pair_turns(fitting(rest, in_messages=takes, in_results=takes_in_responses)):
        match step:
            case PairedTurn(outcomes=outcomes, given=given):
                ids = {
                    one.call: one.provider_id
                    and mint_call_id(one.call, one.provider_id, used, bool)
                    for _wish, one in outcomes
                }
                turn = {"role": "model", "parts": _turn(given, ids)}
                append_or_merge(contents, turn, by="role", into="parts")
                if outcomes:
                    responses = [_response(ids[one.call], wish, one) for wish, one in outcomes]
                    contents.append({"role": "user", "parts": responses})
            case User(text=tuple(content)):
                for part in content:
                    _say(contents, part_of(part) if isinstance(part, Media) else _text(part.text))
            case said:
                _say(contents, _text(user_text(said)))
    if not contents or contents[0]["role"] != "user":
        contents.insert(0, {"role": "user", "parts": [{"text": OPENING}]})
    instruction: JsonObject = {"systemInstruction": {"parts": system}} if system else {}
    return {**instruction, "contents": contents}


def _text(text: str) -> JsonObject:
    return {"text": text or BLANK}


def _say(contents: list[JsonObject], part: JsonObject) -> None:
    """Append a part to the last content, or to a new one if that is the model's or responses."""
    if (
        contents
        and contents[-1]["role"] == "user"
        and "functionResponse" not in contents[-1]["parts"][0]
    ):
        contents[-1]["parts"].append(part)
    else:
        contents.append({"role": "user", "parts": [part]})


def _turn(assistant: Assistant, ids: dict[str, str]) -> list[JsonObject]:
    """A turn's parts in the model's order, without the calls that have no outcome."""
    pieces: list[JsonObject] = []
    signature: JsonObject = {}  # which the next part came with
    index = -1
    called = False
    for part in assistant.parts:
        match part:
            case Opaque(provider="gemini", data=data):
                kept = _kept(data)
                if kept and signature:
                    pieces.append({"text": "", **signature})
                    signature = {}
                if "thoughtSignature" in kept and len(kept) == 1:
                    signature = kept
                elif kept:
                    pieces.append(kept)
                continue
            case Opaque():
                continue
            case Media() if is_taken(part, takes_of_model):
                pieces.append({**part_of(part), **signature})
            case Text() | Refusal() | Media():
                text = spoken(part)
                if text or signature:
                    pieces.append({"text": text, **signature})
            case Wish():
                index += 1
                call = f"{assistant.turn}-{index}"
                if call in ids:
                    pieces.append(
                        _call(ids[call], part, signature or ({} if called else _UNSIGNED))
                    )
                    called = True
        signature = {}
    if signature:
        # The provider, too, sends a signature without content on an empty text.
        pieces.append({"text": "", **signature})
    return pieces or [{"text": BLANK}]


_UNSIGNED: Final = {"thoughtSignature": FOREIGN}


def _call(id_: str, wish: Wish, signature: JsonObject) -> JsonObject:
    call = {**_named(id_, wish), "args": arguments_object(wish.arguments)}
    return {"functionCall": call, **signature}


def _response(id_: str, wish: Wish, outcome: Outcome) -> JsonObject:
    named = _named(id_, wish)
    if isinstance(outcome.text, str):
        response = {"error" if outcome.is_error else "output": outcome.text}
        return {"functionResponse": {**named, "response": response}}
    texts = [part.text for part in outcome.text if isinstance(part, Text)]
    files = [part_of(part) for part in outcome.text if isinstance(part, Media)]
    response = {"output": "\n\n".join(texts)}
    return {"functionResponse": {**named, "response": response, "parts": files}}


def _named(id_: str, wish: Wish) -> JsonObject:
    return {**({"id": id_} if id_ else {}), "name": _name(wish.tool)}


def _name(wished: str) -> str:
    name = tool_name(wished)
    return name if FUNCTION_NAME.fullmatch(name) else f"_{name}"[:64]


def _kept(data: str) -> JsonObject:
    """A signature, or a whole part that only this provider understands; empty if it is neither."""
    part = parse_json(data)
    if not isinstance(part, dict) or (
        "thoughtSignature" in part and not is_base64(part["thoughtSignature"])
    ):
        return {}
    return part if set(part) == {"thoughtSignature"} or is_kept(part) else {}
