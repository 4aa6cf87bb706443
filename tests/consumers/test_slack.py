"""Questions in Slack, against a stand-in that speaks its formats: what is posted, what a click does
and what it does not (B27, B29, B36, B39, B40, B75).
"""

import asyncio
import re
import time
from contextlib import asynccontextmanager
from functools import partial

import pytest
import pytest_asyncio
from aiohttp import web
from brokers import running
from heard import logged
from slack_stand_in import APP_TOKEN, BOT_TOKEN, CHANNEL, TEAM, slack_stand_in
from until import recorded, until

from ayes.consumers.slack.api import SlackApi
from ayes.consumers.slack.buttons import Button, Buttons
from ayes.consumers.slack.questions import SlackQuestions
from ayes.ledger.clients.services import Ledger
from ayes.ledger.stops import stops_of
from ayes.ops.broker.logins import Logins
from ayes.ops.broker.server import ensure_account
from ayes.ops.workers import reactions, working
from ayes.projections.slack_messages import APPROVE, DENY, OPEN
from ayes.schemas import events as e
from ayes.schemas.errors import NotAllowed
from ayes.schemas.links import BIND_LASTS_S, account_of
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    ORGANISATION,
    ROOT,
    STOP,
    CallRef,
    account_slot,
    person_slot,
    policy_slot,
)
from ayes.schemas.tools import ToolSpec

KEY = bytes(range(32))
CONSOLE = "https://ayes.example"
#: What a worker that ends leaves undone is delivered to the other one after this.
ACK_WAIT_S = 5.0
ORGANISATIONS = f"""
[people]
ana = ["slack:U0ANA"]
ben = ["slack:{TEAM}/U0BEN"]
cai = ["slack:T0999/U0CAI"]
olga = ["slack:U0OLGA"]

[[rule]]
name = "payments"
tools = ["pay"]
then = "ask"
voters = ["ana", "ben"]
votes_needed = 2
ask_in = ["slack:{CHANNEL}"]
"""
POLICY = f"""
[people]
ana = ["slack:U0EVIL001"]
ben = ["slack:U0EVIL002"]

[[rule]]
name = "refunds"
tools = ["refund"]
then = "ask"
voters = ["ana", "ben", "cai"]
reasons = ["Duplicate", "Wrong amount"]
ask_in = ["slack:{CHANNEL}"]

[[rule]]
name = "payouts"
tools = ["payout"]
then = "ask"
voters = ["ana", "ben"]
votes_needed = 2
ask_in = ["slack:{CHANNEL}"]

[[rule]]
name = "typed"
tools = ["wipe"]
then = "ask"
confirm = "typed"
ask_in = ["slack:{CHANNEL}"]

[[rule]]
name = "soon over"
tools = ["brief"]
then = "ask"
expires_in_s = 0.3
ask_in = ["slack:{CHANNEL}"]

[[rule]]
name = "soon more"
tools = ["climb"]
then = "ask"
expires_in_s = 0.3
on_timeout = "escalate"
stages = [{{voters = ["olga"]}}]
voters = ["ana"]
ask_in = ["slack:{CHANNEL}"]

[[rule]]
name = "nowhere"
tools = ["lost"]
then = "ask"
ask_in = ["slack:C0NOWHERE"]

[[rule]]
name = "quiet"
tools = ["quiet"]
then = "ask"
"""

#: One broker for all of them: each test has calls of its own.
pytestmark = pytest.mark.asyncio(loop_scope="module")


class Site:
    """A workspace `shop`, its workers, and Slack."""

    def __init__(self, store, slack, service, logins):
        self.store = store
        self.slack = slack
        self.service = service
        self.logins = logins
        self.buttons = Buttons(KEY)

    def reaction(self):
        api = SlackApi(BOT_TOKEN, APP_TOKEN, self.slack.url)
        return "slack", SlackQuestions(api, KEY, lambda: CONSOLE)

    async def request(self, name, tool="refund", arguments='{"order":"A-17"}'):
        # In a thread of its own: what was denied is denied again in the same thread.
        ref = CallRef("shop", name, "call-1")
        await self.service.request(ref, tool, arguments, requester="rita")
        return ref

    async def ask(self, name, tool="refund", arguments='{"order":"A-17"}'):
        """Request a call; returns it and its message, once the log knows the message."""
        ref = await self.request(name, tool, arguments)
        return ref, await self.message(ref)

    async def message(self, ref):
        posted = await self.fact(ref.posted(CHANNEL))
        [found] = self.messages(ref)
        assert found["ts"] == posted.event.message
        return found

    def messages(self, ref):
        return [one for one in self.slack.messages[CHANNEL] if one["text"].endswith(f": {ref}")]

    async def fact(self, slot):
        return (await recorded(self.service, slot.subject))[0]

    async def parked(self, ref):
        async with Ledger.connect(self.store, role="operator") as operator:

            async def found():
                return [one for one in await operator.log.parked() if ref.thread in one.subject]

            return (await until(found))[0]

    async def votes(self, ref):
        facts = await self.service.read(ref)
        return [(one.slot.tail[3], one.event) for one in facts if isinstance(one.event, e.Voted)]

    async def whisper(self, user, count=1):
        """The last thing that only this user was told, once there are so many."""

        def told():
            heard = [text for _, whom, text in self.slack.whispers if whom == user]
            return heard[count - 1 :]

        return (await self.slack.until(told))[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slack")
    async with running(folder / "store", ACK_WAIT_S) as server, slack_stand_in() as slack:
        store = server.store.path
        async with (
            Ledger.connect(store, role="operator") as operator,
            Ledger.connect(store, name="desk") as service,
            Logins.of(server.store) as logins,
        ):
            made = Site(store, slack, service, logins)
            await operator.append(policy_slot("shop", 1), applied(POLICY))
            async with Ledger.connect(store, role="organisation") as above:
                await above.append(policy_slot(ORGANISATION, 1), applied(ORGANISATIONS))
            for name in ("pay", "refund", "payout", "wipe", "brief", "climb", "lost", "quiet"):
                spec = ToolSpec(name=name, run_by="client", schema='{"type":"object"}')
                await service.declare("shop", spec)
            started = [*reactions(["gate", "queue"]), made.reaction()]
            async with working(started, store=store, ack_wait_s=ACK_WAIT_S):
                await slack.until(lambda: slack.sockets)
                yield made


@pytest.fixture
def slack(site):
    site.slack.whispers.clear()
    site.slack.views.clear()
    site.slack.asked.clear()
    return site.slack


def buttons(message):
    return [
        one["action_id"]
        for block in message["blocks"]
        if block["type"] == "actions"
        for one in block["elements"]
    ]


def words(message):
    """Everything that a message shows."""
    found = []

    def collect(value):
        if isinstance(value, dict):
            found.extend(
                one for key, one in value.items() if key == "text" and isinstance(one, str)
            )
            for one in value.values():
                collect(one)
        elif isinstance(value, list):
            for one in value:
                collect(one)

    collect(message["blocks"])
    return "\n".join(found)


async def ended(site, message):
    """Wait until a message has no buttons to decide."""
    await site.slack.until(lambda: not {APPROVE, DENY} & {*buttons(message)})


# ------------------------------------------------------------------------------------------ posting


async def test_a_question_is_posted_once_with_buttons(site, slack):
    """What it says, and that it is a fact. A rule without a channel posts nothing."""
    ref, message = await site.ask("posted")
    assert buttons(message) == [APPROVE, DENY, OPEN]
    assert f"refund needs approval: {ref}" in message["text"]
    assert '"order": "A-17"' in words(message)
    [link] = [one["url"] for one in message["blocks"][-1]["elements"] if "url" in one]
    assert link == f"{CONSOLE}/calls/{ref}"
    quiet = await site.request("silent", "quiet")
    await site.fact(quiet.gated)
    await site.ask("posted-next")
    assert len(site.messages(ref)) == 1
    assert not site.messages(quiet)


async def test_the_values_of_buttons_say_nothing(site, slack):
    """B75: they are opaque, and differ by verdict, call, digest and channel."""
    ref, message = await site.ask("opaque")
    values = [one["value"] for one in message["blocks"][-1]["elements"] if "value" in one]
    digest = (await site.fact(ref.gated)).event.digest
    assert len({*values}) == 2
    for value in values:
        assert re.fullmatch(r"[A-Za-z0-9_=-]{50,2000}", value)
        assert site.buttons.open(value).call == str(ref)
        assert site.buttons.open(value).digest == digest
        assert Buttons(bytes(32)).open(value) is None
        assert site.buttons.open(value[:-8] + "AAAAAAA=") is None
    for junk in ("", "x", "ä", "AAAA", "=" * 100):
        assert site.buttons.open(junk) is None


# ------------------------------------------------------------------------------------------- clicks


async def test_a_click_is_the_vote_of_its_person(site, slack):
    """With ana's own credentials, about the digest that was shown; the message says who did."""
    ref, message = await site.ask("approved")
    [took] = await slack.click(message, APPROVE, "U0ANA")
    assert took < 3
    decided = await site.fact(ref.decided)
    assert decided.event.voters == ("ana",)
    [(name, vote)] = await site.votes(ref)
    assert (name, vote.verdict, vote.by.kind, vote.by.name) == ("ana", "approve", "reviewer", "ana")
    assert vote.digest == (await site.fact(ref.gated)).event.digest
    await ended(site, message)
    assert "was approved" in message["text"]
    assert "by ana" in words(message)
    assert slack.whispers == []


async def test_a_command_stops_and_resumes(site, slack):
    """In the person's own name, once however often Slack delivers it; others are refused, in words
    that only they see.
    """

    async def stops():
        return stops_of(await site.service.read(f"{ROOT}.*.{STOP}.>"))

    async def answer(text, user, times=1):
        heard = len(slack.whispers)
        await slack.command(text, user, times=times)
        await slack.until(lambda: len(slack.whispers) == heard + times)
        return slack.whispers[-1][2]

    said = await answer("stop shop A wrong account.", "U0ANA", times=2)
    [stop] = await stops()
    assert (stop.ref.workspace, stop.ref.giver) == ("shop", "ana")
    assert stop.stopped.reason == "A wrong account."
    assert (stop.given.event.by.kind, stop.given.event.by.name) == ("reviewer", "ana")
    assert said.endswith(f"/ayes resume {stop.ref}")
    await answer(f"resume {stop.ref} Right again.", "U0BEN")
    assert (await site.fact(stop.ref.ended)).event.resumed_by == ("ben",)
    assert "belongs to no reviewer" in await answer("stop shop Now.", "U0EVIL001")
    assert "/ayes stop WORKSPACE REASON" in await answer("stop shop", "U0ANA")
    assert "sh.op" in await answer("stop sh.op Now.", "U0ANA")
    assert "has ended" in await answer(f"resume {stop.ref}", "U0ANA")
    assert len(await stops()) == 1
    said = await answer("stop all An incident.", "U0ANA")
    [_, everywhere] = await stops()
    assert said.startswith("Everything is stopped")
    assert (everywhere.ref.workspace, everywhere.ref.giver) == (ORGANISATION, "ana")
    await answer(f"resume {everywhere.ref}", "U0BEN")
    assert (await site.fact(everywhere.ref.ended)).event.resumed_by == ("ben",)


async def test_a_denial_asks_for_the_reason(site, slack):
    """The model reads it: one that the rule offers, and what somebody types."""
    ref, message = await site.ask("denied")
    await slack.click(message, DENY, "U0BEN")
    [view] = await slack.until(lambda: slack.views)
    assert await site.votes(ref) == []
    [took] = await slack.submit(view, "It was paid in May.", "U0BEN", chosen=1)
    assert took < 3
    decided = await site.fact(ref.decided)
    reason = "Wrong amount\nIt was paid in May."
    assert (decided.event.voters, decided.event.reason) == (("ben",), reason)
    await ended(site, message)
    assert "was denied" in message["text"]


async def test_a_denial_needs_no_reason(site, slack):
    ref, message = await site.ask("denied-bare")
    await slack.click(message, DENY, "U0ANA")
    [view] = await slack.until(lambda: slack.views)
    await slack.submit(view, None, "U0ANA")
    assert (await site.fact(ref.decided)).event.reason == ""


async def test_a_click_is_acknowledged_before_the_work(site, slack):
    """Slack waits three seconds, and what follows may take longer."""
    _, message = await site.ask("slow")
    slack.held["views.open"] = asyncio.Event()
    try:
        [took] = await slack.click(message, DENY, "U0ANA")
        assert slack.views == []
        assert took < 3
    finally:
        slack.held.pop("views.open").set()
    await slack.until(lambda: slack.views)


async def test_a_call_that_is_decided_elsewhere_changes_its_message(site, slack):
    """B28: nobody is shown buttons for a call that is over."""
    ref, message = await site.ask("elsewhere")
    await (await site.logins.reviewer("ben")).approve(ref)
    await ended(site, message)
    assert "was approved" in message["text"]
    assert "by ben" in words(message)


async def test_an_approval_that_is_taken_back_changes_its_message(site, slack):
    """A room that read "approved" must not go on believing it."""
    ref, message = await site.ask("revoked")
    ben = await site.logins.reviewer("ben")
    await ben.approve(ref)
    await ended(site, message)
    await ben.revoke(ref, reason="wrong customer")
    await slack.until(lambda: "ben took the approval back" in words(message))


@pytest.mark.parametrize(("tool", "said"), [("brief", "expired"), ("refund", "withdrawn")])
async def test_a_call_that_ends_by_itself_changes_its_message(site, slack, tool, said):
    ref, message = await site.ask(f"ends-{said}", tool)
    if said == "withdrawn":
        await site.service.withdraw(ref, "The customer called.")
    await ended(site, message)
    assert said in message["text"]


async def test_an_escalation_changes_its_message(site, slack):
    """And those who are asked then may click."""
    ref, message = await site.ask("escalated", "climb")
    await slack.until(lambda: "Escalated" in message["text"])
    await slack.click(message, APPROVE, "U0OLGA")
    assert (await site.fact(ref.decided)).event.voters == ("olga",)


async def test_a_late_click_is_told_who_decided(site, slack):
    """B29, B36: it changes nothing."""
    ref, message = await site.ask("late")
    before = {"blocks": message["blocks"], "channel": CHANNEL, "ts": message["ts"]}
    await (await site.logins.reviewer("ben")).deny(ref, reason="No.")
    await ended(site, message)
    await slack.click(before, APPROVE, "U0ANA")
    assert "Denied by ben at" in await site.whisper("U0ANA")
    await slack.click(before, DENY, "U0ANA")
    assert "Denied by ben at" in await site.whisper("U0ANA", 2)
    assert slack.views == []
    assert [name for name, _ in await site.votes(ref)] == ["ben"]


async def test_a_repeated_delivery_is_one_vote(site, slack):
    """B39: Slack delivers a click again if it missed the acknowledgement; and people click twice.
    The message counts the votes that are missing.
    """
    ref, message = await site.ask("twice", "payout")
    await slack.click(message, APPROVE, "U0ANA", times=2)
    await asyncio.gather(*(slack.click(message, APPROVE, "U0ANA") for _ in range(3)))
    assert "recorded already" in await site.whisper("U0ANA")
    assert [name for name, _ in await site.votes(ref)] == ["ana"]
    await slack.until(lambda: "Votes: ana: approve" in words(message))
    assert (await site.service.call(ref)).decided is None
    await slack.click(message, APPROVE, "U0BEN")
    assert {*(await site.fact(ref.decided)).event.voters} == {"ana", "ben"}


async def test_a_second_thought_is_no_second_vote(site, slack):
    """Somebody who has approved cannot deny any more, and is told so."""
    ref, message = await site.ask("second", "payout")
    await slack.click(message, APPROVE, "U0ANA")
    await site.fact(ref.vote("ana"))
    await slack.click(message, DENY, "U0ANA")
    assert "ana" in await site.whisper("U0ANA")
    assert slack.views == []
    assert [vote.verdict for _, vote in await site.votes(ref)] == ["approve"]


@pytest.mark.parametrize(
    ("user", "team", "why"),
    [
        ("U0EVE", TEAM, "belongs to no reviewer"),
        # The same id in another team is somebody else.
        ("U0ANA", "T0999", "belongs to no reviewer"),
        ("U0OLGA", TEAM, "olga is none of those who may vote"),
    ],
)
@pytest.mark.parametrize("action", [APPROVE, DENY])
async def test_who_may_not_vote_is_told_so(site, slack, user, team, why, action):
    """B40: nothing is recorded."""
    ref, message = await site.ask(f"not-{user}-{team}-{action}")
    await slack.click(message, action, user, team=team)
    assert why in await site.whisper(user)
    assert slack.views == []
    assert await site.votes(ref) == []


async def test_a_workspaces_policy_says_nothing_about_whose_an_account_is(site, slack):
    """B27, B40, I7: its operator gives his own accounts to ana and to ben, whom the organisation
    asks. Neither click is a vote, and each is told how to bind the account that it came from.
    """
    ref, message = await site.ask("operator", "pay")
    for user in ("U0EVIL001", "U0EVIL002"):
        await slack.click(message, APPROVE, user)
        assert "belongs to no reviewer" in await site.whisper(user)
    assert await site.votes(ref) == []


async def code_for(site, slack, user, name):
    """The code that an unknown account is given."""
    _, message = await site.ask(name)
    await slack.click(message, APPROVE, user)
    said = await site.whisper(user)
    [code] = re.findall(rf"{CONSOLE}/bind/(\S+) ", said)
    assert f"`ayes people bind {code} --as YOUR-NAME`" in said
    return code


async def test_an_account_votes_for_the_person_who_bound_it(site, slack):
    """B40: once that person has opened the link that the click was answered with, signed in."""
    code = await code_for(site, slack, "U0DAVE", "stranger")
    account = account_of(KEY, code, time.time())
    assert account == f"slack:{TEAM}/U0DAVE"
    assert account_of(KEY, code, time.time() + BIND_LASTS_S) == ""
    assert account_of(bytes(32), code, time.time()) == ""
    for other in ("", "x", "a.b.c", code[1:], code[:-4] + "AAAA", "ä" + code[1:]):
        assert account_of(KEY, other, time.time()) == ""
    ben, cai = await site.logins.reviewer("ben"), await site.logins.reviewer("cai")
    await ben.bind(account)
    await ben.bind(account)
    ref, message = await site.ask("bound-to-ben")
    await slack.click(message, APPROVE, "U0DAVE")
    assert (await site.fact(ref.decided)).event.voters == ("ben",)
    # It is his. Another one's word comes too late, also one that is recorded past the client.
    with pytest.raises(NotAllowed, match="is ben's, who bound it first"):
        await cai.bind(account)
    async with Ledger.connect(site.store, role="reviewer-cai") as raw:
        await raw.append(account_slot("cai", 1), e.AccountBound(account=account))
    assert (await site.service.people()).accounts[account] == "ben"


async def test_a_person_of_other_workspaces_is_told_nothing(site, slack):
    """B40, I7: a click, a stop and a resumption have one answer, whether there is such a place."""
    await ensure_account(site.store, "reviewer-hal")
    async with Ledger.connect(site.store, role="organisation") as above:
        one_of_hr = e.PersonAdded(workspaces=("hr",))
        await above.record_person(partial(person_slot, "hal"), one_of_hr)
    await (await site.logins.reviewer("hal")).bind(f"slack:{TEAM}/U0HAL")
    ref, message = await site.ask("not-hals")
    for action in (APPROVE, DENY):
        await slack.click(message, action, "U0HAL")
    for words in ("stop shop x", "stop nowhere x", "resume shop/ana/x", "stop all x"):
        await slack.command(words, "U0HAL")
    await slack.until(lambda: len(slack.whispers) == 6)
    places = {text.partition(" is not yours to decide in, so ")[0] for *_, text in slack.whispers}
    assert places == {"shop", "nowhere", "all workspaces"}
    assert (slack.views, await site.votes(ref)) == ([], [])


async def test_an_account_that_two_people_have_is_nobodys(site, slack):
    """The organisation gives it to olga, and cai has bound it. What is uncertain is no yes."""
    await (await site.logins.reviewer("cai")).bind(f"slack:{TEAM}/U0OLGA")
    ref, message = await site.ask("whose", "refund")
    await slack.click(message, APPROVE, "U0OLGA")
    assert "belongs to several people" in await site.whisper("U0OLGA")
    assert await site.votes(ref) == []


async def test_somebody_of_another_team_votes_by_their_full_account(site, slack):
    """As in a channel that two companies share."""
    ref, message = await site.ask("shared")
    await slack.click(message, APPROVE, "U0CAI", team="T0999")
    assert (await site.fact(ref.decided)).event.voters == ("cai",)


async def test_a_button_counts_for_what_it_was_made_for(site, slack):
    """B75: another digest, another channel, another key, and what was made up."""
    ref, message = await site.ask("bound")
    digest = (await site.fact(ref.gated)).event.digest
    good = Button("approve", str(ref), digest, CHANNEL)
    for count, (value, why) in enumerate(
        [
            (site.buttons.seal(Button("approve", str(ref), "0" * 64, CHANNEL)), "waits with the"),
            (site.buttons.seal(Button("approve", str(ref), digest, "C0456EFGH")), "not made for"),
            (Buttons(bytes(32)).seal(good), "not made for"),
            (f"{ref}", "not made for"),
            ("", "not made for"),
        ],
        start=1,
    ):
        action = {"action_id": APPROVE, "value": value}
        await slack.deliver(slack.block_actions(message, action, "U0ANA"))
        assert why in await site.whisper("U0ANA", count)
    unknown = Button("approve", "shop/order-17/never", digest, CHANNEL)
    action = {"action_id": APPROVE, "value": site.buttons.seal(unknown)}
    await slack.deliver(slack.block_actions(message, action, "U0ANA"))
    assert "shop/order-17/never" in await site.whisper("U0ANA", 6)
    assert await site.votes(ref) == []


async def test_what_needs_more_than_a_click_has_no_button_for_it(site, slack):
    """The rule wants the tool's name typed, so the console approves. A click may deny; and one that
    approves all the same is refused.
    """
    ref, message = await site.ask("typed", "wipe")
    assert buttons(message) == [DENY, OPEN]
    assert "approved in the console" in words(message)
    digest = (await site.fact(ref.gated)).event.digest
    value = site.buttons.seal(Button("approve", str(ref), digest, CHANNEL))
    action = {"action_id": APPROVE, "value": value}
    await slack.deliver(slack.block_actions(message, action, "U0ANA"))
    assert "wants the name of the tool typed" in await site.whisper("U0ANA")
    assert await site.votes(ref) == []
    await slack.click(message, DENY, "U0ANA")
    [view] = await slack.until(lambda: slack.views)
    await slack.submit(view, "No.", "U0ANA")
    assert isinstance((await site.fact(ref.decided)).event, e.Denied)


# ----------------------------------------------------------------------------- Slack's own troubles


@pytest.mark.parametrize("way", ["refresh", "drop"])
async def test_a_socket_that_is_closed_is_opened_again(site, slack, way):
    """Slack closes each after some hours, mostly after saying so."""
    before = slack.connections
    await getattr(slack, way)()
    await slack.until(lambda: slack.connections > before and slack.sockets)
    ref, message = await site.ask(f"again-{way}")
    await slack.click(message, APPROVE, "U0ANA")
    assert (await site.fact(ref.decided)).event.voters == ("ana",)


def unavailable(_request):
    return web.json_response({"ok": False, "error": "service_unavailable"}, status=503)


def too_many(_request):
    refused = {"ok": False, "error": "ratelimited"}
    return web.json_response(refused, status=429, headers={"Retry-After": "0"})


def no_json(_request):
    return web.Response(status=502, text="<html>Bad Gateway</html>", content_type="text/html")


@pytest.mark.parametrize("trouble", [unavailable, too_many, no_json])
async def test_a_post_that_fails_is_tried_again(site, slack, trouble):
    slack.next["chat.postMessage"].append(trouble)
    ref, _ = await site.ask(f"trouble-{trouble.__name__.replace('_', '-')}")
    assert len(site.messages(ref)) == 1
    assert not slack.next["chat.postMessage"]


async def test_a_message_whose_answer_was_lost_is_found(site, slack):
    """It is there, so it is not posted again."""

    async def posts_and_hangs_up(request):
        slack.chat_postMessage(slack.asked["chat.postMessage"][-1])
        request.transport.close()
        return web.Response()

    slack.next["chat.postMessage"].append(posts_and_hangs_up)
    ref, _ = await site.ask("lost-answer")
    assert len(site.messages(ref)) == 1
    assert len(slack.asked["chat.postMessage"]) == 1


async def test_an_app_that_may_not_read_posts_all_the_same(site, slack):
    slack.lacking.add("conversations.history")
    api = SlackApi(BOT_TOKEN, APP_TOKEN, slack.url)
    try:
        ref = await site.request("unread")
        gated = await site.fact(ref.gated)
        assert await api.find(CHANNEL, "x", gated.recorded_at) == ""
        await site.message(ref)
        asked = len(slack.asked["conversations.history"])
        assert await api.find(CHANNEL, "x", gated.recorded_at) == ""
        assert len(slack.asked["conversations.history"]) == asked  # it has learned
    finally:
        slack.lacking.clear()


async def test_a_channel_that_is_wrong_is_parked_with_advice(site, slack):
    """The others go on."""
    ref = await site.request("nowhere", "lost")
    found = await site.parked(ref)
    assert "channel_not_found" in found.reason
    assert "invite the app" in found.reason
    await site.ask("somewhere")


async def test_a_message_that_somebody_deleted_is_left_alone(site, slack):
    ref, message = await site.ask("deleted")
    slack.messages[CHANNEL].remove(message)
    await (await site.logins.reviewer("ben")).deny(ref)
    await site.fact(ref.decided)
    await slack.until(
        lambda: [one for one in slack.asked["chat.update"] if one["ts"] == message["ts"]]
    )
    await site.ask("after-deleted")
    assert not site.messages(ref)


# ----------------------------------------------------------------------------- several, and crashes


@asynccontextmanager
async def alone(site):
    """A second worker for the same messages, as another process has it."""
    async with working([site.reaction()], store=site.store, ack_wait_s=ACK_WAIT_S):
        yield


async def test_the_last_change_is_right_whoever_makes_it(site, slack):
    """A change that is held up and arrives after a newer one is corrected."""
    ref, message = await site.ask("overtaken", "payout")
    async with alone(site):
        slack.held["chat.update"] = asyncio.Event()
        try:
            for user in ("U0ANA", "U0BEN"):
                await slack.click(message, APPROVE, user)
            await site.fact(ref.decided)
            await slack.until(lambda: slack.asked["chat.update"])
        finally:
            slack.held.pop("chat.update").set()
        await ended(site, message)
    assert "was approved" in message["text"]
    await site.ask("after-overtaken")
    assert "was approved" in message["text"]


async def test_no_log_has_a_token(site, slack):
    """Neither ours nor the library's, however much is logged."""
    with logged() as written:
        async with alone(site):
            _, message = await site.ask("logged")
            await slack.click(message, APPROVE, "U0ANA")
            await ended(site, message)
            await slack.refresh()
            await slack.until(lambda: slack.sockets)
    for token in (BOT_TOKEN, APP_TOKEN, "ticket="):
        assert token not in written.getvalue()
