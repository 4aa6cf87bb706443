"""Conversations over HTTP: the list, one of them, and what a model's provider is sent."""

import asyncio
import json

import msgspec
from anything import fact, logs
from console_client import REFUND
from console_client import listed as waiting
from hypothesis import given, settings
from stories import Story, facts_of
from until import recorded, until

from ayes.consumers.live import LiveReply
from ayes.ledger.clients.services import Ledger
from ayes.ops.visitors import Role, Visitor
from ayes.projections.formats import FORMATS
from ayes.projections.history import history
from ayes.projections.thread import thread_of
from ayes.projections.timeline import timeline
from ayes.projections.views.secrets import Secrets
from ayes.projections.views.thread import ThreadCycle, thread_item
from ayes.schemas import events as e
from ayes.schemas.content import attached
from ayes.schemas.events import Text
from ayes.schemas.slots import ThreadRef

THREAD = "/api/v1/threads/shop/order-17"
PROGRAM = Visitor("desk", frozenset({Role.SERVICE}), "token")


async def say(shop, thread, text, message="m1"):
    return await shop.service.say(f"shop/{thread}", text, message=message)


async def listed(client, query=""):
    """The threads of a page, and its cursor."""
    found = (await client.get(f"/api/v1/threads{query}")).json()
    return [one["thread"] for one in found["threads"]], found["next"]


async def test_the_list_begins_with_the_newest_activity(shop, client):
    """Each thread once, by its last fact; a page goes on where the one before ended."""
    for number in range(5):
        await say(shop, f"t{number}", f"message {number}")
    await say(shop, "t1", "once more", "m2")
    assert (await listed(client))[0] == [f"shop/t{number}" for number in (1, 4, 3, 2, 0)]
    found, cursor = await listed(client, "?limit=2")
    assert found == ["shop/t1", "shop/t4"]
    # What happens meanwhile moves a thread to a page that was shown already.
    await say(shop, "t3", "later", "m2")
    found, cursor = await listed(client, f"?limit=2&before={cursor}")
    assert found == ["shop/t2", "shop/t0"]
    assert await listed(client, f"?limit=2&before={cursor}") == ([], None)


async def test_a_list_is_of_one_workspace_and_says_what_was_last(shop, client):
    await shop.ask("shop/order-17/refund-1")
    await say(shop, "order-17", "Hurry " + "please " * 100)
    await shop.service.say("bank/t1", "elsewhere", message="m1")
    [one] = (await client.get("/api/v1/threads?workspace=shop")).json()["threads"]
    assert one["thread"] == "shop/order-17"
    assert (one["latest"], len(one["said"])) == ("Said", 200)
    assert one["latest_words"].startswith("user: Hurry")
    await shop.ask("shop/order-18/refund-1")
    [newest, _] = (await client.get("/api/v1/threads?workspace=shop")).json()["threads"]
    assert (newest["latest"], newest["latest_words"]) == (
        "ApprovalRequested",
        "People are asked: rule 'large refunds' asks anybody",
    )
    assert (await listed(client, "?workspace=bank"))[0] == ["bank/t1"]
    assert (await listed(client, "?workspace=none"))[0] == []
    assert (await client.get("/api/v1/threads?workspace=a.b")).status_code == 422


async def test_many_facts_of_one_thread_do_not_hide_the_others(shop, client, monkeypatch):
    """The log is read in chunks, and a page may end before it has found a thread."""
    monkeypatch.setattr("ayes.interfaces.api.windows._WIDTH", 3)
    monkeypatch.setattr("ayes.interfaces.api.windows._FEW", 0)
    monkeypatch.setattr("ayes.interfaces.api.threads._MAX_FACTS", 4)
    await say(shop, "quiet", "first")
    for number in range(9):
        await say(shop, "busy", "again", f"m{number}")
    found, cursor = await listed(client)
    assert found == ["shop/busy"]
    while cursor is not None:
        more, cursor = await listed(client, f"?before={cursor}")
        found += more
    assert found == ["shop/busy", "shop/quiet"]


async def told(shop, story: Story) -> None:
    """Record the facts of a story as the broker's administrator."""
    async with Ledger.connect(shop.server.store.path, role="admin") as admin:
        for fact in story.facts:
            await admin.append(fact.slot, fact.event)


async def test_a_conversation_is_its_messages_turns_and_folded_calls(shop, client):
    """Each call is one item with its facts, next to the turn that wished for it (B3, B4, B86)."""
    tool = await shop.service.declare("shop", REFUND)
    story = Story(ThreadRef("shop", "order-17"))
    opened = e.ThreadOpened(requester="rita", model="test:model", tools=(tool,))
    story.tell(story.ref.opened, opened)
    story.say("I want my money back")
    wish = e.Wish("refund", '{"order":"A-17","amount":480}', "call_a")
    story.turn(1, e.Text("Let me see."), wish)
    await told(shop, story)
    ref = story.ref.wish(1, 0)
    [gated] = await recorded(shop.service, ref.gated.subject)
    digest = gated.event.digest
    await say(shop, "order-17", "Hurry", "later")
    vote = {"verdict": "approve", "digest": digest, "arguments": '{"order":"A-17","amount":400}'}
    for name in ("ana", "ben"):  # an edit needs somebody besides its editor
        shop.visitor = Visitor(name, frozenset({Role.REVIEWER}))
        voted = await client.post(f"/api/v1/calls/{ref}/votes", json=vote)
        assert voted.status_code == 200, voted.text
    await shop.service.decision(ref, timeout_s=60)
    await shop.service.start(ref)
    await shop.service.finish(ref, output="400 given back")
    found = (await client.get(THREAD)).json()
    assert (found["requester"], found["model"]) == ("rita", "test:model")
    assert [one["kind"] for one in found["items"]] == ["message", "reply", "call", "message"]
    assert found["items"][1]["texts"] == ["Let me see."]
    call = found["items"][2]
    assert (call["status"], call["arguments"]) == ("returned", wish.arguments)
    assert call["edited"] == vote["arguments"]
    assert "400 given back" in call["result"]
    assert [step["fact"] for step in call["steps"]] == [
        "ToolRequested", "ApprovalRequested", "Voted", "Voted", "Approved", "ToolStarted",
        "ToolReturned",
    ]  # fmt: skip
    openings = [step["words"].partition(" ")[0] for step in call["steps"]]
    assert openings == ["Asked", "People", "Vote", "Vote", "Approved", "Started:", "Returned:"]
    assert found["stopped_at"] is None
    last = (await client.get(f"{THREAD}?limit=1")).json()
    assert ([one["kind"] for one in last["items"]], last["previous"]) == (["message"], 3)
    before = (await client.get(f"{THREAD}?limit=2&before=3")).json()
    assert [one["kind"] for one in before["items"]] == ["reply", "call"]


async def test_a_pending_call_stands_where_the_history_stops(shop, client):
    """The page goes on where no provider would take a call without its result."""
    await shop.ask("shop/order-17/refund-1")
    found = (await client.get(THREAD)).json()
    [call] = found["items"]
    assert (call["kind"], call["status"], call["result"]) == ("call", "pending", None)
    assert call["call"] == "shop/order-17/refund-1"


async def test_a_history_is_what_the_command_line_prints(shop, client):
    """The payload of each provider's format."""
    story = Story(ThreadRef("shop", "order-17"))
    story.facts = facts_of(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], story.ref
    )
    await told(shop, story)
    entries = history(thread_of(story.ref, story.facts)).entries
    for name, form in FORMATS.items():
        answer = await client.get(f"{THREAD}/history?format={name}")
        assert answer.status_code == 200, answer.text
        assert answer.content == msgspec.json.encode(form.write(entries))
        assert "ayes-stopped-at" not in answer.headers


async def test_what_is_not_there_is_said(client):
    """And how a conversation begins."""
    for path in (THREAD, f"{THREAD}/history"):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert answer.json()["detail"] == "nothing was ever recorded in shop/order-17."
    answer = await client.get(f"{THREAD}/history?format=smoke-signals")
    assert answer.status_code == 422
    assert "openai-chat, openai-responses" in answer.json()["detail"]
    page = await client.get("/conversations")
    assert "No conversation yet" in page.text
    assert "ayes request" in page.text
    assert (await client.get("/conversations/shop/order-17")).status_code == 404


async def test_a_service_says_something_once(shop, client):
    """The same message again is the same fact; a reviewer may not say anything."""
    shop.visitor = PROGRAM
    new = {"text": "Hello", "message": "m1"}
    first = (await client.post(f"{THREAD}/messages", json=new)).json()
    again = (await client.post(f"{THREAD}/messages", json=new)).json()
    assert (first["text"], first["seq"]) == ("Hello", again["seq"])
    other = await client.post(f"{THREAD}/messages", json=new | {"text": "Goodbye"})
    assert other.status_code == 409
    shop.visitor = Visitor("ana", frozenset({Role.REVIEWER}))
    assert (await client.post(f"{THREAD}/messages", json=new)).status_code == 403


async def test_the_pages_show_a_conversation_as_text(shop, client):
    """Text of agents is never HTML, and hidden characters are marked."""
    await say(shop, "order-17", "<script>alert(1)</script> \u202ereversed")
    await shop.ask("shop/order-17/refund-1")
    await waiting(client, 1)
    page = await client.get("/conversations/shop/order-17?format=anthropic")
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    assert "U+202E" in page.text
    assert "<details" in page.text
    assert 'id="history"' in page.text
    listing = await client.get("/conversations")
    assert "1 waiting" in listing.text
    assert "&lt;script&gt;" in listing.text


@given(logs(ThreadRef("acme", "t1")))
@settings(max_examples=25, deadline=None)
def test_whatever_is_recorded_can_be_thread_item(raws):
    """Void facts, facts of newer programs and broken bytes are items like others (B14, I12)."""
    thread = thread_of(ThreadRef("acme", "t1"), [fact(raw) for raw in raws])
    items = [thread_item(item, Secrets({})) for item in timeline(thread)]
    recorded = {one.seq for call in thread.calls.values() for one in call.facts}
    steps = [step.seq for item in items if isinstance(item, ThreadCycle) for step in item.steps]
    assert sorted(steps) == sorted(recorded)


async def test_a_reply_is_followed_as_it_is_given(shop, client):
    """Each piece once, then that it is recorded."""
    thread = ThreadRef.parse("shop/live-1")
    path = shop.server.store.path
    async with (
        Ledger.connect(path, role="admin") as ledger,
        Ledger.connect(path, role="model") as model,
    ):
        await ledger.append(thread.opened, e.ThreadOpened(requester="rita"))
        async with LiveReply.of(model, thread, 1, 1) as live:
            speaking = asyncio.create_task(_speak(live, ledger, thread))
            answer = await client.get("/api/v1/threads/shop/live-1/reply", timeout=60)
            await speaking
    events = [block.split("\n")[0] for block in answer.text.strip().split("\n\n")]
    assert events[-1] == "event: ended"
    assert (events[0], set(events[1:-1])) == ("event: turn", {"event: text"})
    said = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert "".join(one.get("text", "") for one in said) == "On its way."
    missing = await client.get("/api/v1/threads/shop/never/reply", timeout=60)
    assert missing.status_code == 404


async def test_a_client_that_was_cut_off_follows_the_same_turn(shop, client):
    """Also if the turn has ended meanwhile: by `Last-Event-ID`, as a browser sends it."""
    thread = ThreadRef.parse("shop/live-2")
    async with Ledger.connect(shop.server.store.path, role="admin") as ledger:
        await ledger.append(thread.opened, e.ThreadOpened(requester="rita"))
        await ledger.append(thread.asked(1, 1), e.ModelAsked(model="test:m"))
        await ledger.append(thread.replied(1), e.ModelReplied(parts=(e.Text("On its way."),)))
    cut = {"Last-Event-ID": "1"}
    answer = await client.get("/api/v1/threads/shop/live-2/reply", headers=cut, timeout=60)
    events = [block.splitlines() for block in answer.text.strip().split("\n\n")]
    assert [event[0] for event in events] == ["event: turn", "event: text", "event: ended"]
    assert all("id: 1" in event for event in events)


async def test_a_visitor_follows_only_so_many_replies_at_a_time(shop, client, monkeypatch):
    """Others follow as before, and so does this visitor once a reply has ended."""
    monkeypatch.setattr("ayes.interfaces.api.threads._FOLLOWED", 2)
    thread = ThreadRef.parse("shop/live-3")
    where = "/api/v1/threads/shop/live-3/reply"
    name, followed = shop.visitor.name, shop.app.state.backend.followed
    async with Ledger.connect(shop.server.store.path, role="admin") as ledger:
        await ledger.append(thread.opened, e.ThreadOpened(requester="rita"))
        following = [asyncio.create_task(client.get(where, timeout=60)) for _ in range(2)]
        await until(lambda: followed[name] >= 2)
        refused = await client.get(where)
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:ayes:error:Unavailable")
        shop.visitor = Visitor("ben", frozenset({Role.REVIEWER}))
        following.append(asyncio.create_task(client.get(where, timeout=60)))
        await until(lambda: followed["ben"])
        await ledger.append(thread.asked(1, 1), e.ModelAsked(model="test:m"))
        await ledger.append(thread.replied(1), e.ModelReplied(parts=(e.Text("Yes."),)))
        assert [(await one).status_code for one in following] == [200] * 3
    assert not followed
    assert (await client.get(f"{where}?turn=1", timeout=60)).status_code == 200


async def test_many_requests_at_once_follow_no_more_replies(shop, client, monkeypatch):
    """All of them arrive before the first one follows."""
    monkeypatch.setattr("ayes.interfaces.api.threads._FOLLOWED", 2)
    thread = ThreadRef.parse("shop/live-4")
    where = "/api/v1/threads/shop/live-4/reply"
    followed, most = shop.app.state.backend.followed, 0
    async with Ledger.connect(shop.server.store.path, role="admin") as ledger:
        await ledger.append(thread.opened, e.ThreadOpened(requester="rita"))
        asking = [asyncio.create_task(client.get(where, timeout=60)) for _ in range(20)]
        async with asyncio.timeout(60):
            while sum(not one.done() for one in asking) > 2 and most <= 2:
                await asyncio.sleep(0.01)
                most = max(most, followed[shop.visitor.name])
        await ledger.append(thread.asked(1, 1), e.ModelAsked(model="test:m"))
        await ledger.append(thread.replied(1), e.ModelReplied(parts=(e.Text("Yes."),)))
        answers = [await one for one in asking]
    assert most == 2
    assert sum("event: ended" in one.text for one in answers) == 2


async def _speak(live, ledger, thread):
    live.publish("On its ")
    await asyncio.sleep(1.2)  # the whole text is published each second
    await ledger.append(thread.asked(1, 1), e.ModelAsked(model="test:m"))
    await ledger.append(thread.replied(1), e.ModelReplied(parts=(e.Text("On its way."),)))


async def test_a_stored_file_is_fetched_by_its_digest(shop, client):
    """As an attachment, by the name that it has, and only one that the conversation names."""
    data = b"<script>alert(1)</script>" * 4000
    page = attached(data, "text/html", 'über"alles\r\n.html')
    said = (await say(shop, "order-17", (Text("See here."), page))).event.text
    digest = said[1].source.digest
    await shop.service.say("shop/other", "Hello", message="m1")
    found = (await client.get(THREAD)).json()["items"]
    assert found[0]["files"] == [
        {
            "digest": digest,
            "media_type": "text/html",
            "name": page.name,
            "size": len(data),
            "place": said[1].source.place,
        }
    ]
    assert found[0]["text"].startswith("See here.\n\n[text/html 'über\"alles")
    fetched = await client.get(f"{THREAD}/files/{digest}")
    assert fetched.content == data
    assert fetched.headers["content-type"] == "application/octet-stream"
    assert fetched.headers["x-content-type-options"] == "nosniff"
    named = "attachment; filename*=UTF-8''%C3%BCber%22alles%5Cu000d%5Cu000a.html"
    assert fetched.headers["content-disposition"] == named
    assert (await client.get(f"/api/v1/threads/shop/other/files/{digest}")).status_code == 404
    assert (await client.get(f"{THREAD}/files/{'0' * 64}")).status_code == 404
    assert (await client.get(f"{THREAD}/files/not-a-digest")).status_code == 422
    assert f"/api/v1/threads/shop/order-17/files/{digest}" in (
        (await client.get("/conversations/shop/order-17")).text
    )
    assert (await client.get("/conversations")).status_code == 200
    assert (await client.get("/api/v1/threads")).status_code == 200


async def test_a_page_has_no_bytes_of_stored_files(shop, client):
    """Some large files of an agent would make it hundreds of megabytes. By itself it has them."""
    page = attached(b"x" * 100_000, "application/pdf", "page.pdf")
    await say(shop, "order-17", (Text("See here."), page))
    shown = (await client.get("/conversations/shop/order-17?format=openai-responses")).text
    assert "[application/pdf &#39;page.pdf&#39;, 100,000 bytes]" in shown
    assert "file_data" not in shown
    whole = (await client.get(f"{THREAD}/history?format=openai-responses")).json()
    assert whole["input"][0]["content"][1]["file_data"].startswith("data:application/pdf;base64,")


async def test_the_name_of_a_download_hides_nothing(shop, client):
    """Neither behind a character that reorders others, nor by a length that no browser takes."""
    page = attached(b"x" * 100_000, "text/html", "x" * 9_000 + "\u202egnp.html")
    digest = (await say(shop, "order-17", (page,))).event.text[0].source.digest
    fetched = await client.get(f"{THREAD}/files/{digest}")
    name = fetched.headers["content-disposition"].removeprefix("attachment; filename*=UTF-8''")
    assert name.endswith("x%5Cu202egnp.html")
    assert len(name) < 250
