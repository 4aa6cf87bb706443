"""What a tool returned, as the ledger records it; and what it recorded, with the bytes of files.

    the tool's value ──► output_of ──► recordable ──► kept ──► ToolReturned.output
                         texts and     at most the    large files are in
                         files         limits         the store
    the recorded call ──► with_bytes ──► next step ──► the adapter's own form

Each framework has its own objects for images and other files. Its adapter says which item of a
result is a file (`ReadFile`), and writes the recorded parts back. The rest is the same for all:
a result without files is recorded as one text.

A tool that has run must not look like one that failed, and its call must not stay open. So what
cannot be recorded is replaced by words, and a file that the store does not take is too.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pydantic_core
from msgspec.structs import replace

from ayes.ledger.call import Call
from ayes.ledger.files import fetched, keep_media
from ayes.ledger.log import Files
from ayes.ledger.patience import while_away
from ayes.schemas import events as e
from ayes.schemas.codec import MAX_BYTES
from ayes.schemas.content import (
    content_of,
    decoded,
    described,
    files_in,
    parts_of,
    problem_of,
    to_store,
    with_files,
)
from ayes.schemas.errors import BadInput, BrokerAway, BrokerRefused, LedgerFull, OutcomeUnknown
from ayes.schemas.logs import get_logger

_log: Final = get_logger("ayes.adapters.outputs")

#: Longer texts of an output are recorded as a summary with their digest; JSON may have to escape
#: them.
MAX_OUTPUT: Final = MAX_BYTES // 4
_BEGINNING: Final = 1_000

#: The file that an item of a result is; None if it is none. It may raise BadInput for a file that
#: cannot be recorded as one.
type ReadFile = Callable[[Any], e.Media | None]


def output_text(value: Any) -> str:
    """A tool's result as one text: a string as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return pydantic_core.to_json(value, inf_nan_mode="strings", serialize_unknown=True).decode()


def output_of(value: Any, read_file: ReadFile) -> e.Content:
    """A tool's result: its texts and files in their order if it is or lists a file, else one text.

    An item that is neither is recorded as JSON. A blank text beside files stays what it is.
    """
    items = value if isinstance(value, list | tuple) else [value]
    files = [_file(item, read_file) for item in items]
    if not any(files):
        return output_text(value)
    return tuple(file or _text(item) for item, file in zip(items, files, strict=True))


def _file(item: Any, read_file: ReadFile) -> e.Media | None:
    if isinstance(item, e.Media):  # `ayes.schemas.content.attached`
        return item
    try:
        return read_file(item)
    except BadInput:
        return None


def _text(item: Any) -> e.Text:
    match item:
        case {"type": "text", "text": str(text)}:
            return e.Text(text)
        case _:
            return e.Text(output_text(item))


def recordable(value: Any, output: Callable[[Any], e.Content]) -> e.Content:
    """The output to record for what a tool returned.

    A file that cannot be recorded is described. Texts that exceed `MAX_OUTPUT` together, and a
    value without JSON, are summarised.

    Args:
        output: makes the content of the value; it may raise anything.
    """
    try:
        parts = tuple(map(_sound, parts_of(output(value))))
    except Exception as problem:  # noqa: BLE001 - a result may have any class
        return _summary({"type": type(value).__name__, "not_recorded": type(problem).__name__})
    text = "\n\n".join(part.text for part in parts if isinstance(part, e.Text))
    raw = text.encode()
    if len(raw) <= MAX_OUTPUT:
        return content_of(parts)
    digest = hashlib.sha256(raw).hexdigest()
    summary = _summary({"begins": text[:_BEGINNING], "bytes": len(raw), "sha256": digest})
    return content_of((e.Text(summary), *(one for one in parts if isinstance(one, e.Media))))


def _sound(part: e.Text | e.Media) -> e.Text | e.Media:
    if isinstance(part, e.Media):
        problem = problem_of(part)
        part = e.Text(f"{described(part)} was not recorded: {problem}") if problem else part
    if isinstance(part, e.Text):
        # Half a surrogate pair cannot be recorded; the text around it can.
        return e.Text(part.text.encode("utf-8", "replace").decode())
    return part


def _summary(about: dict[str, Any]) -> str:
    return msgspec.json.encode({"recorded": "a summary of the result", **about}).decode()


async def kept(log: Files, workspace: str, content: e.Content) -> e.Content:
    """The content with its large files in the store.

    A store that has no room, or takes no files from this program, must not keep a call open whose
    tool has run: such a file is described, with its digest. A broker that is away is waited for, as
    it is when the output is recorded.
    """
    if isinstance(content, str):
        return content
    large = to_store(part for part in content if isinstance(part, e.Media))
    stored = {media: await _kept(log, workspace, media) for media in dict.fromkeys(large)}
    return content_of(
        stored.get(part, part) if isinstance(part, e.Media) else part for part in content
    )


async def _kept(log: Files, workspace: str, media: e.Media) -> e.Media | e.Text:
    try:
        return await while_away(
            lambda: keep_media(log, workspace, media), of=(BrokerAway, OutcomeUnknown)
        )
    except (BadInput, BrokerRefused, LedgerFull) as problem:
        _log.warning("a file is not stored", file=described(media), problem=str(problem))
        assert isinstance(media.source, e.Inline)
        digest = hashlib.sha256(decoded(media.source) or b"").hexdigest()
        return e.Text(f"{described(media)} could not be stored. Its SHA-256 is {digest}.")


async def with_bytes(log: Files, call: Call) -> Call:
    """The call with the bytes of the stored files in its output.

    Raises:
        Unavailable: a file cannot be read now.
    """
    if call.finished is None or not isinstance(event := call.finished.event, e.ToolReturned):
        return call
    if not (found := await fetched(log, call.ref.workspace, files_in(event))):
        return call
    return replace(call, finished=replace(call.finished, event=with_files(event, found)))
