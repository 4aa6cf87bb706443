"""Sealing the arguments of a request, opening those of an approved call, and leaving them out of
what is recorded of its end.

Whoever requests seals, and whoever runs opens; nobody between them has a key. Both ask the leader
of the log whether the thread is being forgotten, each time: nothing is cached that would have to be
forgotten too.
"""

from typing import Final, Literal

from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.clients.client import LedgerClient
from ayes.ledger.sealed_values import Opened, Unopened, commitment, seal, unseal
from ayes.schemas import events as e
from ayes.schemas import sealed, strict_json
from ayes.schemas.errors import BadArguments, BadFile, BadInput, NotOpen
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.tools import Tool

_log: Final = get_logger("ayes.ledger.clients.sealing")

#: Why the arguments of a call are not opened. `away`: the key is not here, and may be elsewhere.
type Closed = Literal["forgotten", "unopened", "misfit", "away"]

#: The same in words, for whoever runs the call itself.
CLOSED: Final[dict[Closed, str]] = {
    "forgotten": "its thread was forgotten, so what was sealed in it cannot be opened",
    "unopened": "a value in it cannot be opened under the key of its thread",
    "misfit": "what was sealed in it does not fit the schema of its tool",
    "away": "the key of its thread is not here. Connect with the directory of keys that has it",
}

#: Stands in the place of a text that may have what was forgotten.
_WITHHELD: Final = "Its text is not recorded, since what was sealed in its thread was forgotten."


async def with_seals(ledger: LedgerClient, ref: CallRef, tool: Tool, arguments: str) -> str:
    """The arguments of a request, each value sealed that its tool seals.

    Raises:
        BadArguments: they do not fit the schema of the tool.
        BadInput: there is no key to seal with.
        NotOpen: the thread is forgotten.
    """
    if not tool.declared.sealed:
        return arguments
    try:
        value = strict_json.read(arguments)
    except strict_json.BadJson:
        raise BadArguments(f"The arguments of {tool.name} cannot be read as JSON.") from None
    places = [*sealed.bare(value, tool.declared.sealed)]
    if not places:  # they are sealed already, or not there
        return arguments
    is_plain = len(places) == len(_there(arguments, tool))  # and nothing is sealed already
    if is_plain and (bad := tool.misfits_opened(arguments)):
        where = ", ".join(one or "the top" for one in bad)
        raise BadArguments(f"The arguments of {tool.name} do not fit its schema: at {where}.")
    key = await _key_to_seal(ledger, ref.thread_ref, tool, places[0])
    for place in places:
        raw = sealed.raw_at(arguments, place)
        assert raw is not None
        if raw[:1] in "{[tfn":
            raise BadArguments(f"{place} of {tool.name} is sealed, so it is a text or a number.")
        token = seal(key, ref.requested.subject, place, raw)
        arguments = sealed.with_raw(arguments, place, f'"{token}"')
    return arguments


async def opened(ledger: LedgerClient, call: Call, tool: Tool) -> Opened | Closed:
    """The arguments that an approved call runs with, opened; or why they are not."""
    found = await _opened(ledger, call, tool)
    if isinstance(found, Opened) and tool.misfits_opened(found.arguments):
        return "misfit"
    return found


async def _opened(ledger: LedgerClient, call: Call, tool: Tool) -> Opened | Closed:
    ref, arguments = call.ref, call.arguments
    values = {}
    if places := _there(arguments, tool):
        if await ledger.log.latest(ref.thread_ref.forgetting.subject) is not None:
            return "forgotten"
        keyed = await ledger.log.latest(ref.thread_ref.keyed.subject)
        try:
            key = ledger.keys.key(ref.thread_ref) if ledger.keys is not None else None
        except (BadFile, BadInput, OSError) as problem:
            _log.error("the key of a thread cannot be read", call=str(ref), problem=str(problem))
            return "away"
        if key is None:
            return "away"
        if keyed is None or not isinstance(keyed.event, e.Keyed):
            return "unopened"
        try:
            for place in places:
                token = strict_json.read(sealed.raw_at(arguments, place) or "")
                values[place] = unseal(
                    key, keyed.event.commitment, ref.requested.subject, place, token
                )
                arguments = sealed.with_raw(arguments, place, values[place])
        except Unopened as problem:
            _log.error("a sealed value is not opened", call=str(ref), problem=str(problem))
            return "unopened"
    return Opened(arguments, values)


async def scrubbed[E: e.ToolReturned | e.ToolFailed | e.InDoubt](
    ledger: LedgerClient, call: Call, outcome: E
) -> E:
    """The outcome that a program reports of a call, without what is sealed in the call.

    The program may have opened the values before, so what cannot be opened now is no reason to
    record its text. A program without a directory of keys has opened nothing.

    Raises:
        NotOpen: the values cannot be opened at the moment, so nobody can tell whether they are in
            it.
    """
    if ledger.keys is None:
        return outcome
    tool = await ledger.tool_of(call)
    if tool is not None and not tool.declared.sealed:
        return outcome
    if tool is None and sealed.shown(call.arguments) == call.arguments:
        return outcome
    found = await _opened(ledger, call, tool) if tool is not None else "unopened"
    if isinstance(found, Opened):
        return found.scrubbed(outcome)
    if found == "forgotten":
        return _withheld(outcome)
    raise NotOpen(
        f"the end of {call.ref} is not recorded: what is sealed in the call may be in its text, "
        f"and cannot be opened with the keys in {ledger.keys.folder}. Restore them and report the "
        "same again, or record without a reason that the call is in doubt."
    )


def _withheld[E: e.ToolReturned | e.ToolFailed | e.InDoubt](outcome: E) -> E:
    """The outcome without its text."""
    match outcome:
        case e.ToolReturned():
            return replace(outcome, output=f"It ran. {_WITHHELD}")
        case e.ToolFailed():
            return replace(outcome, error=f"It failed. {_WITHHELD}")
        case _:
            return replace(outcome, text=f"Nobody knows how it ended. {_WITHHELD}")


async def _key_to_seal(ledger: LedgerClient, thread: ThreadRef, tool: Tool, place: str) -> bytes:
    keys = ledger.keys
    if keys is None:
        raise BadInput(
            f"{tool.name} seals {place}, and this program has no keys. Request it in Python, with "
            "Ledger.connect(keys=ThreadKeys(DIRECTORY)): no other client seals. Nothing was "
            "recorded."
        )
    await _refuse_forgotten(ledger, thread)
    keyed = await ledger.log.latest(thread.keyed.subject)
    # A key that is made although the thread has one elsewhere would open nothing.
    key = keys.key(thread) if keyed is not None else keys.made(thread)
    if keyed is None and key is not None:
        first = await ledger.try_append(thread.keyed, e.Keyed(commitment=commitment(key)))
        keyed = first or await ledger.log.latest(thread.keyed.subject)
    committed = getattr(keyed and keyed.event, "commitment", "")
    if key is None or commitment(key) != committed:
        raise BadInput(
            f"the key of {thread} is not in {keys.folder}: another directory of keys has it. Seal "
            "with that one, or use another thread. Nothing was requested."
        )
    # It may have been made while the thread was being forgotten: then it seals nothing.
    await _refuse_forgotten(ledger, thread)
    return key


async def _refuse_forgotten(ledger: LedgerClient, thread: ThreadRef) -> None:
    if await ledger.log.latest(thread.forgetting.subject) is not None:
        raise NotOpen(
            f"{thread} is forgotten, so nothing is sealed in it any more. Use another thread."
        )


def _there(arguments: str, tool: Tool) -> list[str]:
    """The places of these arguments, which fit, in which a value is sealed or to be sealed."""
    return [one for one in tool.declared.sealed if sealed.raw_at(arguments, one) is not None]
