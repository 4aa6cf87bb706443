"""Messages about a call in Slack: what people see there, as Slack's blocks.

Pure: the same call gives the same message. The rules of this file:

* The words are those of `notices.py`. They stand in rich text, in which nothing is markup; where
  Slack would read markup, `escape` prevents it.
* A click must not decide more than the message shows. So there is a button to approve only if the
  message has all arguments as they are, nothing cut, secret or hard to see, and the rule asks for
  no more than a vote. Else the console approves, and the message says so.
* After the decision a message has no buttons and no arguments, only the outcome, and who took an
  approval back.
* Slack's limits hold, and what is cut is said.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from ayes.ledger.call import Call
from ayes.ledger.descriptions import author_of, describe_lapse
from ayes.ledger.lifecycle import Status
from ayes.projections.notices import CUT, NOT_SHOWN, Notice, notice
from ayes.schemas import events as e
from ayes.schemas.redaction import REDACTED
from ayes.schemas.sealed import SEALED
from ayes.schemas.visible import flags, visible

#: The names of the buttons, of the form for a reason, and of its fields.
APPROVE: Final = "ayes_approve"
DENY: Final = "ayes_deny"
OPEN: Final = "ayes_open"
REASON: Final = "ayes_reason"
_CHOSEN: Final = "ayes_chosen"
#: Of the text of a block, in characters (Slack: 3,000), and of a reason in the form.
MAX_BLOCK: Final = 2900
MAX_REASON: Final = 1000
#: Votes that a message lists.
_MAX_VOTES: Final = 20
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"

type Block = dict[str, Any]


class SlackMessage(Struct, frozen=True):
    """A message: its blocks, and the text for notifications and screen readers."""

    text: str
    blocks: tuple[Block, ...]


def message(
    call: Call, *, approve: str, deny: str, secret: tuple[str, ...] | None, page: str = ""
) -> SlackMessage:
    """The message about a call as it is now.

    Args:
        call: one that people were asked about.
        approve, deny: the values of its buttons.
        secret: the places that its tool declares as secret; None: they are unknown.
        page: where the console shows the call; empty: people are told the commands.
    """
    words = notice(call, _occasion(call), secret=secret)
    is_open = call.status is Status.PENDING
    body = words.body if len(words.body) <= MAX_BLOCK else f"{words.body[:MAX_BLOCK]}\n{CUT}"
    blocks = [_words(Notice(words.subject, body)), *_votes(call), *_revocation(call)]
    if is_open:
        whole = is_whole(call, Notice(words.subject, body))
        if not whole:
            blocks.append(_note(_WHY_NOT if page else f"{_WHY_NOT} {_HOW}"))
        blocks.append(_buttons(approve if whole else "", deny, page))
    elif page:
        blocks.append({"type": "actions", "elements": [_open(page)]})
    return SlackMessage(escape(words.subject), tuple(blocks))


def is_whole(call: Call, words: Notice) -> bool:
    """Whether a click is enough to approve: nothing is left out, and nothing more is asked."""
    asking = call.approval_request
    if asking is None or asking.confirm is not None or asking.signed or flags(call.arguments):
        return False
    # Arguments that contain these words only cost a visit to the console.
    left_out = any(one in words.body for one in (REDACTED, SEALED, CUT, NOT_SHOWN))
    return not left_out and not any(line.endswith(_ELLIPSIS) for line in words.body.splitlines())


def reason_form(button: str, about: str, reasons: Sequence[str] = ()) -> Block:
    """The form that asks for the reason of a denial.

    Args:
        about: the call, as people name it.
        reasons: those that the rule offers.
    """
    options = [{"text": {"type": "plain_text", "text": one}, "value": one} for one in reasons]
    choice = {"type": "static_select", "action_id": _CHOSEN, "options": options}
    text = {
        "type": "plain_text_input",
        "action_id": REASON,
        "multiline": True,
        "max_length": MAX_REASON,
    }
    return {
        "type": "modal",
        "callback_id": REASON,
        "private_metadata": button,
        "title": {"type": "plain_text", "text": "Deny this call"},
        "submit": {"type": "plain_text", "text": "Deny"},
        "close": {"type": "plain_text", "text": "Cancel"},
        "blocks": [
            _note(about),
            *([_optional("One of the reasons of the rule", choice)] if reasons else []),
            _optional("Why? The agent reads it.", text),
        ],
    }


def reason_given(view: Block) -> str:
    """The reason in a form that was sent: the chosen one, and what was typed below it."""
    values = view["state"]["values"]
    chosen = values.get(_CHOSEN, {}).get(_CHOSEN, {}).get("selected_option") or {}
    return "\n".join(filter(None, (chosen.get("value"), values[REASON][REASON].get("value"))))


def escape(text: str) -> str:
    """Text of others, where Slack reads markup: no mention, no link, no command."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_WHY_NOT: Final = (
    "This message cannot show all that would run, or the rule asks for more than a click. "
    "So it is approved in the console."
)
_HOW: Final = "Or with the command above."


def _occasion(call: Call) -> e.Occasion:
    if call.status is Status.PENDING:
        return "escalated" if call.escalated else "asked"
    expired = call.decided is not None and isinstance(call.decided.event, e.Expired)
    return "expired" if expired else "decided"


def _words(words: Notice) -> Block:
    return {
        "type": "rich_text",
        "elements": [
            {
                "type": "rich_text_section",
                "elements": [{"type": "text", "text": words.subject, "style": {"bold": True}}],
            },
            {
                "type": "rich_text_preformatted",
                "elements": [{"type": "text", "text": words.body}],
            },
        ],
    }


def _votes(call: Call) -> list[Block]:
    cast = [
        f"{fact.slot.tail[3]}: {fact.event.verdict.replace('_', ' ')}"
        for fact in call.votes
        if isinstance(fact.event, e.Voted)
    ]
    if not cast:
        return []
    more = f" and {len(cast) - _MAX_VOTES} more" if len(cast) > _MAX_VOTES else ""
    return [_note(f"Votes: {', '.join(cast[:_MAX_VOTES])}{more}")]


def _revocation(call: Call) -> list[Block]:
    if call.lapsed is not None and isinstance(call.lapsed.event, e.Lapsed):
        why = visible(describe_lapse(call.lapsed.event)[:MAX_REASON])
        return [_note(f"The approval is valid no longer, and the call was not started: {why}.")]
    if call.revoked is None or not isinstance(call.revoked.event, e.Revoked):
        return []
    reason = visible(call.revoked.event.reason[:MAX_REASON])
    why = f": {reason}" if reason else "."
    answered = " and answered in its place" if call.answer else ""
    return [_note(f"{author_of(call.revoked)} took the approval back before it ran{answered}{why}")]


def _optional(label: str, element: Block) -> Block:
    """A field of a form, which may stay empty."""
    return {
        "type": "input",
        "block_id": element["action_id"],
        "optional": True,
        "label": {"type": "plain_text", "text": label},
        "element": element,
    }


def _note(text: str) -> Block:
    return {"type": "context", "elements": [{"type": "plain_text", "text": text, "emoji": False}]}


def _buttons(approve: str, deny: str, page: str) -> Block:
    elements = [_button(APPROVE, "Approve", "primary", approve)] if approve else []
    elements.append(_button(DENY, f"Deny{_ELLIPSIS}", "danger", deny))
    return {"type": "actions", "elements": [*elements, *([_open(page)] if page else [])]}


def _button(name: str, text: str, style: str, value: str) -> Block:
    shown = {"type": "plain_text", "text": text}
    return {"type": "button", "action_id": name, "text": shown, "style": style, "value": value}


def _open(page: str) -> Block:
    shown = {"type": "plain_text", "text": "Open in the console"}
    return {"type": "button", "action_id": OPEN, "text": shown, "url": page}
