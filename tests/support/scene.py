"""A shop in the middle of a day: everything that a page of the console can show."""

from base64 import b64encode
from datetime import timedelta
from typing import Any, Final

import msgspec
from console_client import Site
from pictures import png
from until import recorded

from ayes.ledger import clock
from ayes.ledger.clients.reviewers import Ballot, Reviewer
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Parked
from ayes.schemas import events as e
from ayes.schemas.content import attached
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, ThreadRef, policy_slot
from ayes.schemas.tools import ToolSpec

FIRST_POLICY: Final = """\
# Reading is free. The rest is asked about.
[[rule]]
name = "only reads"
tools = ["get_*"]
then = "allow"

[[rule]]
name = "refunds"
tools = ["refund"]
then = "ask"
reason = "It gives money away."
"""
POLICY: Final = """\
# Reading is free. The rest is asked about.
may_reconcile = ["ana", "lea"]

[groups]
leads = ["lea", "cai"]

[[rule]]
name = "only reads"
tools = ["get_*"]
then = "allow"

[[rule]]
name = "large refunds"
tools = ["refund"]
when = "args.amount > 100"
then = "ask"
voters = ["ana", "ben"]
also = [{voters = ["@leads"]}]
expires_in_s = 3600
reason = "It gives money away."

[[rule]]
name = "small refunds"
tools = ["refund"]
when = "args.amount <= 100"
then = "ask"
editor_counts = true
expires_in_s = 28800

[[rule]]
name = "changes a booking"
tools = ["cancel_reservation"]
then = "ask"
expires_in_s = 0.2
on_timeout = "stay"
reason = "A cancelled booking is gone."

[[rule]]
name = "commands"
tools = ["run_shell"]
then = "ask"
mode = "requester_confirms"
break_glass = ["ana"]
reason = "It runs on the build server."
"""


def _schema(**fields: Any) -> str:
    found = {
        name: field if isinstance(field, dict) else {"type": field}
        for name, field in fields.items()
    }
    schema = {
        "type": "object",
        "properties": found,
        "required": [name for name, field in found.items() if "default" not in field],
        "additionalProperties": False,
    }
    return msgspec.json.encode(schema).decode()


TOOLS: Final = (
    ToolSpec(
        name="refund",
        description="Pay money back for an order.",
        schema=_schema(
            order="string",
            amount={"type": "integer", "minimum": 1, "description": "In euros."},
            reason={"type": "string", "enum": ["damaged", "late", "wrong size"], "default": "late"},
        ),
        title="Refund {amount} EUR for {order}",
        **{"class": "reversible_outside", "undo": "reclaim", "undo_within_s": 14 * 86_400.0},
    ),
    ToolSpec(
        name="get_order",
        description="Look an order up.",
        schema=_schema(order="string"),
        **{"class": "reads"},
    ),
    ToolSpec(
        name="cancel_reservation",
        description="Cancel a booking.",
        schema=_schema(reservation="string"),
    ),
    ToolSpec(name="run_shell", description="Run a command.", schema=_schema(command="string")),
    ToolSpec(name="payout", description="Pay a supplier.", schema=_schema(invoice="string")),
    ToolSpec(name="send_mail", description="Send a message.", schema='{"type":"object"}'),
    ToolSpec(
        name="send_newsletter",
        description="Write to many customers at once.",
        schema=_schema(
            subject={
                "type": "string",
                "title": "First line",
                "description": "What they see first.",
            },
            body="string",
            at={"type": "string", "format": "date-time"},
            picture="string",
            query="string",
            customers={"type": "array"},
        ),
        title="Write {subject}",
    ),
)
COMMAND: Final = """\
set -eu
git fetch --prune origin
for branch in $(git branch --remotes --merged origin/main | grep -v main); do
  git push --delete origin "${branch#origin/}"
done
"""
#: Everything that must be shown as text: markup, a script, text that changes its direction or is
#: hidden, a terminal's escapes, and a link whose host is not what it seems.
HOSTILE: Final = {
    "to": "ana@corp.example\u200b",
    "subject": '<img src=x onerror="alert(1)"><script>alert(2)</script>',
    "body": "</pre></code><h1 style='color:red'>Approved</h1>\n"
    "Pay \u202e008\u202c euros \u2066now\u2069, \x1b[31mat once\x1b[0m.\n"
    "{{ 7 * 7 }} <a href='javascript:alert(3)'>here</a>",
    "link": "https://bank.example@evil.example/pay?to=A-17#<b>",
}
#: What has a form of its own.
NEWSLETTER: Final = {
    "subject": "Winter boots",
    "body": "# Winter boots\n\nThey are **back**:\n\n1. lined ones\n2. *tall* ones\n\n"
    "See [the shop](https://shop.example@evil.example/boots).",
    "at": "2026-12-01T09:00:00Z",
    "picture": f"data:image/png;base64,{b64encode(png(240, 80)).decode()}",
    "query": "-- who bought boots\nselect id, name from customers where bought = 'boots'",
    "customers": [
        {"id": 100 + number, "name": f"Customer {number}", "paid": 40.50 * (number % 7)}
        for number in range(120)
    ],
}
CONVERSATION: Final = ThreadRef("shop", "order-17")
#: The refund of that conversation, which waits.
REFUND: Final = CONVERSATION.wish(2, 0)
SHELL: Final = CallRef("shop", "repo-9", "clean-1")
MAIL: Final = CallRef("shop", "mail-2", "send-1")
LETTER: Final = CallRef("shop", "mail-3", "send-1")
EDITED: Final = CallRef("shop", "order-21", "refund-1")
DOUBTFUL: Final = CallRef("shop", "invoice-4", "payout-1")

#: Every page, by the name of its picture.
PAGES: Final = {
    "waiting": "/", "mine": "/?q=is:mine", "call": f"/calls/{REFUND}",
    "call-command": f"/calls/{SHELL}", "call-hostile": f"/calls/{MAIL}",
    "call-forms": f"/calls/{LETTER}",
    "record": f"/calls/{EDITED}", "edit": f"/calls/{REFUND}/edit",
    "bulk": f"/bulk?call={SHELL}&call={MAIL}", "doubt": "/doubt", "decided": "/decided",
    "conversations": "/conversations", "conversation": f"/conversations/{CONVERSATION}",
    "grants": "/grants", "stops": "/stops", "policy": "/policy/shop", "operations": "/operations",
    "devices": "/devices",
    "sign-in": "/sign-in",
}  # fmt: skip


class Scene:
    """Fills a site, through its services, reviewers and workers."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.service: Ledger = site.service

    async def fill(self) -> None:
        async with Ledger.connect(self.site.server.store.path, role="admin") as admin:
            await admin.append(policy_slot("shop", 2), applied(POLICY))
            refs = [await self.service.declare("shop", spec) for spec in TOOLS]
            await self._conversation(admin, tuple(refs))
            await self._park(admin)
        await self._waiting()
        await self._decided()
        await self._doubtful()
        await self._given()

    async def reviewer(self, name: str) -> Reviewer:
        return await self.site.app.state.backend.reviewer(name)

    async def ask(self, ref: CallRef, tool: str, arguments: Any, **more: str) -> None:
        """Request a call, and wait until people are asked or the policy has decided."""
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        await self.service.request(ref, tool, text, requester="rita", **more)
        await recorded(self.service, ref.gated.subject, ref.decided.subject)

    async def _conversation(self, admin: Ledger, tools: tuple[e.ToolRef, ...]) -> None:
        """A model looks an order up, is denied a refund, and asks for another."""
        thread = CONVERSATION
        opened = e.ThreadOpened(
            requester="rita", agent="desk-1", model="demo:desk", tools=tools, labels={"tier": "vip"}
        )
        await admin.append(thread.opened, opened)
        text = "I want my money back for order A-17: the shoes are too small, and I paid 480 euros."
        shoes = attached(png(320, 240), "image/png", "shoes.png")
        await admin.append(thread.said("m1"), e.Said(role="user", text=(e.Text(text), shoes)))
        await self._turn(admin, 1, "I will look the order up.", "get_order", {"order": "A-17"})
        looked = thread.wish(1, 0)
        await recorded(self.service, looked.decided.subject)
        await self.service.start(looked)
        await self.service.finish(looked, output='{"order": "A-17", "paid": 480, "sent": true}')
        refund = {"order": "A-17", "amount": 480, "reason": "wrong size"}
        await self._turn(admin, 2, "The order was paid. I ask for a refund.", "refund", refund)
        await recorded(self.service, REFUND.gated.subject)
        await (await self.reviewer("lea")).approve(REFUND, reason="The shoes came back yesterday.")

    async def _turn(self, admin: Ledger, turn: int, text: str, tool: str, arguments: Any) -> None:
        wish = e.Wish(tool=tool, arguments=msgspec.json.encode(arguments).decode())
        await admin.append(CONVERSATION.asked(turn, 1), e.ModelAsked(model="demo:desk"))
        replied = e.ModelReplied(parts=(e.Text(text), wish), model="demo:desk")
        await admin.append(CONVERSATION.replied(turn), replied)

    async def _park(self, admin: Ledger) -> None:
        subject = CallRef("shop", "order-3", "refund-1").requested.subject
        parked = Parked("gate", 3, subject, "KeyError: 'limits'", 5, clock.now())
        await admin.log.park(parked)

    async def _waiting(self) -> None:
        booking = CallRef("shop", "airline-3", "cancel-1")
        await self.ask(booking, "cancel_reservation", {"reservation": "ZFA04Y"}, agent="desk-2")
        await self.ask(SHELL, "run_shell", {"command": COMMAND}, agent="builder")
        await self.ask(MAIL, "send_mail", HOSTILE)
        await self.ask(LETTER, "send_newsletter", NEWSLETTER)
        for number in range(3):
            ref = CallRef("shop", f"order-{30 + number}", "refund-1")
            await self.ask(ref, "refund", {"order": f"B-{30 + number}", "amount": 20 + number})

    async def _decided(self) -> None:
        ana, ben = await self.reviewer("ana"), await self.reviewer("ben")
        await self.ask(EDITED, "refund", {"order": "A-21", "amount": 90, "reason": "damaged"})
        less = '{"order":"A-21","amount":45,"reason":"damaged"}'
        await ana.approve(EDITED, arguments=less, reason="Half of it is damaged.")
        await self.service.decision(EDITED, timeout_s=60)
        await self.service.start(EDITED)
        await self.service.finish(EDITED, output="45 euros were paid.")
        denied = CallRef("shop", "order-22", "refund-1")
        await self.ask(denied, "refund", {"order": "A-22", "amount": 70})
        await ben.deny(denied, reason="This order was refunded in spring.")
        answered = CallRef("shop", "mail-1", "send-1")
        await self.ask(answered, "send_mail", {"to": "rita@corp.example", "subject": "Hello"})
        await ana.vote(answered, Ballot("answer", answer="Do not write to rita. Ring her up."))
        withdrawn = CallRef("shop", "order-23", "refund-1")
        await self.ask(withdrawn, "refund", {"order": "A-23", "amount": 12})
        await self.service.withdraw(withdrawn, "The customer called.")
        for ref in (denied, answered, withdrawn):
            await self.service.decision(ref, timeout_s=60)

    async def _doubtful(self) -> None:
        await self.ask(DOUBTFUL, "payout", {"invoice": "I-2044"})
        await (await self.reviewer("ben")).approve(DOUBTFUL)
        await self.service.decision(DOUBTFUL, timeout_s=60)
        await self.service.start(DOUBTFUL)
        await self.service.doubt(DOUBTFUL, "The connection to the bank broke after the order.")

    async def _given(self) -> None:
        ana, ben = await self.reviewer("ana"), await self.reviewer("ben")
        await ana.grant(
            "shop/ana/small",
            "refund",
            for_s=28_800,
            uses=20,
            when="args.amount < 20",
            reason="Small refunds need nobody today.",
        )
        await self.ask(
            CallRef("shop", "order-24", "refund-1"), "refund", {"order": "A-24", "amount": 5}
        )
        stop = "shop/ana/mails"
        await ana.stop(stop, reason="Messages went to old addresses.", tools=("send_*",))
        await ben.resume(stop, reason="The addresses are right again.")
        now = clock.now()
        await ben.delegate(
            "shop/ben/away",
            "cai",
            starts_at=now,
            ends_at=now + timedelta(days=7),
            tools=("refund",),
        )
