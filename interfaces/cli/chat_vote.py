"""Verdicts in chat messages: which text counts as one, and for which call.

    approve refund-1    ok 8dcc6a06f0a1    deny order-17/refund-1: the order was refunded before
    > refund {"order":"A-17"}
    ok

People write many things next to an open question, and none of them may be taken for an approval. A
message is a verdict only if the whole message is one:

* one word that says yes or no, and nothing that could take it back: no second thought, no question
  mark, no condition;
* about one call that the message identifies: by the last parts of its name, by its digest (12 hex
  digits or more), or by a quote of its question, as it is shown without what is secret. A bare word
  may have been about another call than the one that is pending now, so it is not a verdict, even if
  only one call is pending. The same holds for a quote of the tool's name alone, or of what stands
  in the place of a secret;
* after a no, a colon and a reason may follow, which the model reads; after a yes, nothing.

Anything else is not a verdict and has no effect. Nor is a reaction, which can be taken away again,
unlike a vote.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from ayes.projections.pending import Entry
from ayes.projections.views.secrets import WHOLE, Secrets
from ayes.schemas.redaction import REDACTED


class ChatVote(Struct, frozen=True):
    """A verdict in a message, and its call."""

    about: Entry
    verdict: Literal["approve", "deny"]
    reason: str = ""


_YES: Final = frozenset({"yes", "approve", "approved", "ok", "okay", "lgtm"})
_NO: Final = frozenset({"no", "deny", "denied", "reject", "rejected"})
#: Digits of a digest, so that nobody can make another call with the same beginning.
_SHORTEST: Final = 12
#: A word, the call if it is named, and after a colon the reason.
_VERDICT: Final = re.compile(
    r"(?P<word>[A-Za-z]+)(?: +(?P<ref>[A-Za-z0-9_/-]+))?(?: *: *(?P<reason>\S.*))?[.!]?", re.DOTALL
)


def parse_vote(message: str, waiting: Sequence[Entry], secrets: Secrets = WHOLE) -> ChatVote | None:
    """The verdict that the whole message is; None if it is not one, or its call is not clear.

    Args:
        secrets: what people were not shown of the questions.
    """
    lines = message.strip().splitlines()
    quoted = [
        line.strip().removeprefix(">").strip() for line in lines if line.strip().startswith(">")
    ]
    said = "\n".join(line for line in lines if not line.strip().startswith(">")).strip()
    found = _VERDICT.fullmatch(said)
    if found is None:
        return None
    word, ref, reason = found["word"].lower(), found["ref"], (found["reason"] or "").strip()
    if word not in _YES | _NO or (word in _YES and reason):
        return None
    about = [
        one
        for one in waiting
        if (_is_named(one, ref) if ref else _is_identified(one, quoted))
        and _is_quoted(one, secrets, quoted)
    ]
    if len(about) != 1:
        return None
    return ChatVote(about[0], "approve" if word in _YES else "deny", reason)


def _is_named(one: Entry, ref: str) -> bool:
    """Whether `ref` is the call's name (with or without thread and workspace) or its digest."""
    parts = str(one.ref).split("/")
    return ref in {"/".join(parts[start:]) for start in range(len(parts))} or _begins(
        one.digest, ref
    )


def _is_identified(one: Entry, quoted: Sequence[str]) -> bool:
    """Whether a quoted line identifies the call, and not only its tool or workspace."""
    others = {"", one.tool, one.workspace, REDACTED}
    return any(line.strip('"') not in others for line in quoted)


def _is_quoted(one: Entry, secrets: Secrets, quoted: Sequence[str]) -> bool:
    """Whether every quoted line is part of the question as it is shown, in whole words."""
    shown = f"{one.ref} {one.tool} {secrets.arguments(one.declaration, one.arguments)}"
    return all(_has(shown, line) or _begins(one.digest, line) for line in quoted if line)


def _has(text: str, part: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(part)}(?![\w-])", text) is not None


def _begins(digest: str, part: str) -> bool:
    return len(part) >= _SHORTEST and digest.startswith(part)
