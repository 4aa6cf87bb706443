"""The worker that asks people in Slack, and keeps its messages as the log has the call.

    gated ──► post the message ──► posted.<channel>
    vote, escalated, decided ──► change the message
    a click ──► a vote of the person whose account clicked (slack_clicks.py)

A rule opts in with `ask_in`. The rules of this file:

* A message is posted, then the fact `Posted` is appended. Before it is posted, it is looked for: a
  worker that died between the two has left one. So a crash posts nothing twice, as long as the app
  may read the channel.
* The content of a message is a function of the call alone. After each change a worker reads the
  call once more, and changes the message again if the call has changed meanwhile. So the message is
  right in the end, however many workers change it and in whatever order Slack receives the changes.
* Only the delivery of the approval request posts. The others find the message or leave it to that
  one, which reads the call again after it has posted.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct

from ayes.consumers.effects import Append, Effect, GivenUp, Perform, Reload
from ayes.consumers.slack.api import SlackApi, SlackRefused
from ayes.consumers.slack.buttons import Button, Buttons
from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.in_force import policy_of
from ayes.ledger.lifecycle import Status
from ayes.ledger.log import Delivered
from ayes.ledger.validity import call_of
from ayes.projections.slack_messages import SlackMessage, message
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.links import BIND, BIND_LASTS_S, account_code, keyed_token
from ayes.schemas.policy import Policy
from ayes.schemas.slots import ORGANISATION, CallRef, Slot, policy_slot

#: The role, the kind of worker, and its durable consumer.
ROLE: Final = "slack"
#: How the policy names its channels, and accounts of people.
PREFIX: Final = "slack:"
#: What the key in a message's metadata is for.
_PURPOSE: Final = "ayes slack message 1"
#: Messages whose last content is remembered, and policies.
_MAX_REMEMBERED: Final = 10_000
_MAX_POLICIES: Final = 1000


class Asking(Struct, frozen=True):
    """A call, and the channels in which people are asked about it."""

    call: Call
    channels: tuple[str, ...]


class Show(Struct, frozen=True):
    """Have the message in a channel say what the log says."""

    ref: CallRef
    channel: str
    #: Its `ts`; empty: it is not posted yet, as far as the log knows.
    ts: str = ""


class SlackQuestions:
    """Posts and changes messages.

    Args:
        key: that of links; also for the values of buttons.
        console_url: says where people open the console; empty: messages name commands instead.
    """

    replaces = False
    durables = (ROLE,)

    def __init__(self, slack: SlackApi, key: bytes, console_url: Callable[[], str]) -> None:
        self.buttons = Buttons(key)
        self.slack = slack
        self._key = key
        self._console_url = console_url
        #: What this process has last had each message say.
        self._shown: dict[tuple[CallRef, str], SlackMessage] = {}
        self._locks: WeakValueDictionary[tuple[CallRef, str], asyncio.Lock] = WeakValueDictionary()
        #: Policies never change.
        self._policies: dict[Slot, Policy] = {}

    def how_to_bind(self, account: str) -> str:
        """How the person whose account this is binds it."""
        code = account_code(self._key, account, int(time.time()) + BIND_LASTS_S)
        url = self._console_url()
        where = f"open {url.rstrip('/')}{BIND}{code} and sign in, or run " if url else "run "
        return f"If you are a reviewer, {where}`ayes people bind {code} --as YOUR-NAME`"

    async def load(self, ledger: Ledger, handed: Delivered) -> Asking | None:
        if not isinstance(handed, Fact):
            return None
        ref = handed.slot.call_ref
        assert ref, "its consumer has facts about calls only"
        call = call_of(ref, await ledger.read(ref, must_include=handed.slot))
        if call.requested is None or call.newer:
            return None  # nobody may act on it; a newer worker will
        return Asking(call, await self._channels(ledger, call))

    def decide(self, seen: Asking | None, handed: Delivered) -> Sequence[Effect[Show]]:
        if seen is None:
            return ()
        call = seen.call
        posted = {
            fact.slot.tail[-1]: fact.event.message
            for fact in call.posted
            if isinstance(fact.event, e.Posted)
        }
        shown = [Show(call.ref, channel, ts) for channel, ts in posted.items()]
        steps: list[Effect[Show]] = [Perform(None, one) for one in shown]
        is_question = isinstance(handed, Fact) and isinstance(handed.event, e.ApprovalRequested)
        missing = [one for one in seen.channels if one not in posted] if is_question else []
        if missing:
            steps += [Perform(None, Show(call.ref, one)) for one in missing]
            # Only while it is pending, since a call that was decided may have no message.
            if call.status is Status.PENDING:
                steps.append(Reload())
        return steps

    async def execute(self, ledger: Ledger, work: Show) -> Append | None:
        lock = self._locks.setdefault((work.ref, work.channel), asyncio.Lock())
        async with lock:
            try:
                return await (self._change if work.ts else self._post)(ledger, work)
            except SlackRefused as problem:
                raise GivenUp(f"{work.channel}: {problem}") from None

    async def _post(self, ledger: Ledger, work: Show) -> Append | None:
        call = await self._as_of_now(ledger, work)
        asking, asked = call.approval_request, call.gated
        assert asking, "its delivery is that of the approval request"
        assert asked, "which is there"
        key = keyed_token(self._key, _PURPOSE, str(work.ref), asking.digest, work.channel)
        ts = await self.slack.find(work.channel, key, asked.recorded_at)
        if not ts and call.status is not Status.PENDING:
            return None
        said = await self._message(ledger, call, work.channel)
        if ts:
            await self.slack.update(work.channel, ts, said)
        else:
            ts = await self.slack.post(work.channel, said, key)
        self._remember((work.ref, work.channel), said)
        return Append(work.ref.posted(work.channel), e.Posted(message=ts))

    async def _change(self, ledger: Ledger, work: Show) -> None:
        place = (work.ref, work.channel)
        while True:
            call = await self._as_of_now(ledger, work)
            said = await self._message(ledger, call, work.channel)
            if self._shown.get(place) == said:
                return
            await self.slack.update(work.channel, work.ts, said)
            self._remember(place, said)

    async def _as_of_now(self, ledger: Ledger, work: Show) -> Call:
        """The call as of at least the leader's last fact: a replica that is behind may not know
        what another worker has shown already.
        """
        await ledger.log.last_seq()
        slot = work.ref.posted(work.channel) if work.ts else work.ref.gated
        return await ledger.with_origin(
            call_of(work.ref, await ledger.read(work.ref, must_include=slot))
        )

    async def _message(self, ledger: Ledger, call: Call, channel: str) -> SlackMessage:
        asking = call.approval_request
        assert asking, "only calls that people were asked about have messages"
        tool = await ledger.tool_of(call)
        approve, deny = (
            self.buttons.seal(Button(verdict, str(call.ref), asking.digest, channel))
            for verdict in ("approve", "deny")
        )
        console = self._console_url().rstrip("/")
        page = f"{console}/calls/{call.ref}" if console else ""
        secret = tool.hidden if tool is not None else None
        return message(call, approve=approve, deny=deny, secret=secret, page=page)

    def _remember(self, place: tuple[CallRef, str], said: SlackMessage) -> None:
        self._shown.pop(place, None)
        self._shown[place] = said
        if len(self._shown) > _MAX_REMEMBERED:
            del self._shown[next(iter(self._shown))]

    async def _channels(self, ledger: Ledger, call: Call) -> tuple[str, ...]:
        """The channels of the rule that the approval request cites, in the version that it cites:
        a policy that is applied later moves no question.
        """
        asking = call.approval_request
        if asking is None or not asking.policy_version:
            return ()
        owner = ORGANISATION if asking.organisation else call.ref.workspace
        slot = policy_slot(owner, asking.policy_version)
        if slot not in self._policies:
            [applied] = await ledger.read(slot, must_include=slot)
            if len(self._policies) >= _MAX_POLICIES:
                self._policies.clear()
            self._policies[slot] = policy_of(applied).policy
        rules = self._policies[slot].rules
        rule = next((one for one in rules if one.name == asking.rule), None)
        return tuple(one.removeprefix(PREFIX) for one in rule.ask_in) if rule else ()
