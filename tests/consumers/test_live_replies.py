"""Following a reply while the model gives it, in memory and over a real broker."""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from brokers import running
from chain import THREAD, Chain
from long import IN_MEMORY_FIRST
from simulated_time import simulated
from until import until

from ayes.consumers import live
from ayes.consumers.live import _MAX_WHOLE, LiveReply, follow_reply, live_subject
from ayes.consumers.model import ModelReply, ModelRequest
from ayes.interfaces.cli import look
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import MAX_LIVE_BYTES, EventLog
from ayes.ledger.nats import streams
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.protocol import settled
from ayes.ops.broker.accounts import ROLES
from ayes.projections.live import Discarded, Ended, Fragment
from ayes.schemas import events as e

pytestmark = IN_MEMORY_FIRST
TEXT = "Your money is on its way, and should be there on Monday."
WORDS = [f"{word} " for word in TEXT.split()[:-1]] + [TEXT.rsplit(maxsplit=1)[-1]]


class Speaker:
    """A model that says these words one by one, each when it is told to go on."""

    def __init__(self, words: list[str] = WORDS, reply: str = TEXT) -> None:
        self.words = words
        self.text = reply
        self.go_on = asyncio.Semaphore(0)
        self.attempts = 0

    async def reply(self, question: ModelRequest) -> ModelReply:
        raise AssertionError("it streams")

    async def stream(self, question: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        self.attempts += 1
        for word in self.words:
            await self.go_on.acquire()
            on_text(word)
        await self.go_on.acquire()
        return ModelReply((e.Text(self.text),))

    def say(self, count: int = 1) -> None:
        for _ in range(count):
            self.go_on.release()

    def say_all(self) -> None:
        self.say(len(self.words) + 1)


async def shown_of(ledger: Ledger, heard: list[object]) -> str:
    """Follow to the end; what is shown then."""
    text = ""
    async for one in follow_reply(ledger, THREAD, 1):
        heard.append(one)
        text = "" if one == Discarded() else text + getattr(one, "text", "")
    return text


async def shows(heard: list[object], text: str) -> None:
    """Wait until the follower shows this text."""
    await until(lambda: "".join(getattr(one, "text", "") for one in heard) == text)


async def ends(ledger: Ledger, following: asyncio.Task[str]) -> None:
    """Record the reply, which is shown in the end."""
    await ledger.append(THREAD.replied(1), e.ModelReplied(parts=(e.Text(TEXT),)))
    assert await asyncio.wait_for(following, 60) == TEXT


@pytest.mark.log("memory", "jetstream")
async def test_each_word_is_shown_as_it_is_said(port: EventLog):
    """Before anything is recorded; and in the end the record says so."""
    speaker = Speaker()
    chain = Chain(port, speaker)
    heard: list[object] = []
    async with chain.at_work("gate", "model"):
        await chain.begin()
        following = asyncio.create_task(shown_of(chain.ledger, heard))
        for number in range(1, len(WORDS) + 1):
            speaker.say()
            so_far = "".join(WORDS[:number])
            await shows(heard, so_far)
        assert THREAD.replied(1) not in [fact.slot for fact in await chain.ledger.read(THREAD)]
        speaker.say()
        assert await following == TEXT
    assert isinstance(heard[-1], Ended)
    # Whoever comes afterwards is shown it at once.
    assert await shown_of(chain.ledger, again := []) == TEXT
    assert again[:-1] == [Fragment(TEXT)]


@pytest.mark.parametrize("cut", [1, 4, len(WORDS)])
async def test_a_follower_that_was_cut_off_and_comes_back(port: EventLog, cut: int):
    """Each word once: it is shown the text so far, although it was published while it was away."""
    speaker = Speaker()
    chain = Chain(port, speaker)
    async with chain.at_work("gate", "model"):
        await chain.begin()
        speaker.say(cut)
        async with aclosing(follow_reply(chain.ledger, THREAD)) as first:
            async for one in first:
                assert TEXT.startswith(one.text)
                break  # and it is gone
        heard: list[object] = []
        following = asyncio.create_task(shown_of(chain.ledger, heard))
        so_far = "".join(WORDS[:cut])
        await shows(heard, so_far)
        speaker.say_all()
        assert await following == TEXT
    assert Discarded() not in heard


@pytest.mark.log("memory", "jetstream")
async def test_the_record_replaces_what_was_said(port: EventLog):
    """What a model returns counts, not what it said on the way."""
    chain = Chain(port, Speaker(["Never ", "mind."], TEXT))
    heard: list[object] = []
    async with chain.at_work("gate", "model"):
        await chain.begin()
        following = asyncio.create_task(shown_of(chain.ledger, heard))
        chain.model.say(2)
        await shows(heard, "Never mind.")
        chain.model.say_all()
        assert await following == TEXT
    assert Discarded() in heard


async def test_another_attempt_begins_anew(ledger: Ledger):
    """The worker died while its model spoke."""
    heard: list[object] = []
    await ledger.append(THREAD.opened, e.ThreadOpened(requester="rita"))
    following = asyncio.create_task(shown_of(ledger, heard))
    async with LiveReply.of(ledger, THREAD, 1, 1) as dying:
        async with asyncio.timeout(60):
            while not heard:  # it may not listen yet
                dying.publish("I think ")
                await asyncio.sleep(0.05)
    async with LiveReply.of(ledger, THREAD, 1, 2) as live:
        live.publish(TEXT)
        await until(lambda: heard[-1] == Fragment(TEXT))
    assert Discarded() in heard
    await ledger.append(THREAD.asked(1, 1), e.ModelAsked(model="test:m"))
    await ledger.append(THREAD.replied(1), e.ModelReplied(parts=(e.Text(TEXT),), attempt=2))
    assert await following == TEXT


async def test_who_does_not_read_slows_nobody_down(store: Path, admin: Ledger):
    """Followers that never read, on sockets of their own, while the model says 40 MB: its turn
    ends, and another follower has the whole text.
    """
    words = ["x" * 100_000] * 400
    speaker = Speaker(words, "".join(words)[:200_000])
    async with Ledger.connect(store, role="model") as model:
        chain = Chain(admin.log, speaker)
        chain.logs["model"] = model.log
        deaf = [_deaf(Store.login_for("observer", store=store)) for _ in range(3)]
        heard: list[object] = []
        async with chain.at_work("gate", "model"):
            await chain.begin()
            following = asyncio.create_task(shown_of(admin, heard))
            speaker.say_all()
            thread = await chain.answered(1)
            assert await following == speaker.text
        for one in deaf:
            one.close()
    assert thread.turns[1].reply.parts == (e.Text(speaker.text),)
    assert len("".join(words)) > 100 * _MAX_WHOLE


def _deaf(login) -> socket.socket:
    """A client that subscribes and never reads again."""
    host, port = login.servers[0].removeprefix("nats://").rsplit(":", 1)
    client = socket.create_connection((host, int(port)))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    options = {"user": login.user, "pass": login.password, "verbose": False}
    client.sendall(f"CONNECT {json.dumps(options)}\r\nSUB {live_subject(THREAD, 1)} 1\r\n".encode())
    return client


async def test_the_broker_restarts_in_the_middle(tmp_path: Path):
    """What is said meanwhile is lost on the way, and shown all the same."""
    speaker = Speaker()
    async with running(tmp_path / "store") as server:
        path = server.store.path
        async with (
            Ledger.connect(path, role="admin") as ledger,
            Ledger.connect(path, role="model") as model,
            Ledger.connect(path, role="observer") as observer,
        ):
            chain = Chain(ledger.log, speaker)
            chain.logs["model"] = model.log
            heard: list[object] = []
            async with chain.at_work("gate", "model"):
                await chain.begin()
                following = asyncio.create_task(shown_of(observer, heard))
                speaker.say(3)
                await shows(heard, "".join(WORDS[:3]))
                await server.restart()
                speaker.say_all()
                assert await asyncio.wait_for(following, 60) == TEXT
            assert Discarded() not in heard


async def test_the_command_shows_it(store: Path, admin: Ledger, capsys: pytest.CaptureFixture[str]):
    """With its line feeds, and nothing that could harm a terminal; 1 if the model failed."""
    async with Ledger.connect(store, role="model") as model:
        session = Session(store=store)
        await admin.append(THREAD.opened, e.ThreadOpened(requester="rita"))
        replied = e.ModelReplied(parts=(e.Text("On its\nway.\x1b[2J"),))
        for turn, end in enumerate((replied, e.ModelFailed(error="no")), 1):
            command = asyncio.create_task(look.follow(str(THREAD), session=session))
            said = ""
            async with LiveReply.of(model, THREAD, turn, 1) as live, asyncio.timeout(60):
                live.publish("On its\n")
                while "On its\n" not in said:
                    await asyncio.sleep(0.05)
                    said += capsys.readouterr().out
            await admin.append(THREAD.asked(turn, 1), e.ModelAsked(model="test:m"))
            await admin.append(THREAD.replied(turn), end)
            code = await command
            rest = capsys.readouterr()
            if turn == 1:
                shown = said + rest.out
                assert (code, shown.startswith("On its\nway.\\u001b[2J")) == (0, True)
                assert "\x1b" not in shown
            else:
                assert (code, rest.err.splitlines()[-1]) == (1, "The model failed: no")


async def test_the_command_says_in_a_line_of_its_own_that_a_text_is_discarded(
    store: Path, admin: Ledger, capsys: pytest.CaptureFixture[str]
):
    """As when another worker begins the reply anew."""
    async with Ledger.connect(store, role="model") as model:
        await admin.append(THREAD.opened, e.ThreadOpened(requester="rita"))
        command = asyncio.create_task(look.follow(str(THREAD), session=Session(store=store)))
        said = ""
        for attempt, text in ((1, "On its"), (2, "Late.")):
            async with LiveReply.of(model, THREAD, 1, attempt) as live, asyncio.timeout(60):
                live.publish(text)
                while text not in said:
                    await asyncio.sleep(0.05)
                    shown = capsys.readouterr()
                    said += shown.out + shown.err
        await admin.append(THREAD.asked(1, 1), e.ModelAsked(model="test:m"))
        await admin.append(THREAD.replied(1), e.ModelReplied(parts=(e.Text("Late."),)))
        assert await command == 0
    assert "\n[the text so far is discarded]\n" in said


async def test_each_role_hears_what_the_model_s_account_says(tmp_path: Path):
    """Also people, and whoever administers the ledger."""
    async with (
        running(tmp_path / "store") as server,
        Ledger.connect(server.store.path, role="model") as model,
    ):
        await server.ensure_account("reviewer-ana")
        for role in (*ROLES, "reviewer-ana", "admin"):
            if role == "model":
                continue
            async with Ledger.connect(server.store.path, role=role) as ledger:
                following = follow_reply(ledger, THREAD, 1)
                async with (
                    LiveReply.of(model, THREAD, 1, 1) as live,
                    asyncio.timeout(60),
                    aclosing(following),
                ):
                    live.publish("Hello")
                    assert await anext(following) == Fragment("Hello"), role


@pytest.mark.log("memory", "jetstream")
async def test_a_follower_that_is_cancelled_leaves_no_task(ledger: Ledger):
    """As when a browser goes away while the model thinks."""
    before = asyncio.all_tasks()

    async def follow() -> None:
        async with aclosing(follow_reply(ledger, THREAD, 1)) as following:
            await anext(following)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_reply_of_a_newer_program_ends_the_following(ledger: Ledger):
    raw = b'{"type":"ModelReplied","v":99,"id":"0000000000000000000000000z"}'
    newer = e.Carried("ModelReplied", raw, "0000000000000000000000000z", 99)
    await ledger.log.append(THREAD.replied(1), raw, newer.id)
    async with asyncio.timeout(60):
        [end] = [one async for one in follow_reply(ledger, THREAD, 1)]
    assert isinstance(end, Ended)
    assert isinstance(end.end, e.Carried)


@pytest.mark.parametrize(
    "garbage",
    [
        b"", b"[]", b'{"attempt":1,"at":0,"text":"\xff"}', b'{"attempt":0,"at":0,"text":"no"}',
        b'{"attempt":1,"at":-1,"text":"no"}', b'{"attempt":1,"at":%d,"text":"no"}' % 10**30,
        b'{"attempt":1,"at":0,"text":"no","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda garbage: garbage[:40].decode(errors="replace"),
)  # fmt: skip
async def test_what_is_no_piece_is_ignored(ledger: Ledger, garbage: bytes):
    """The text goes on behind it."""
    heard: list[object] = []
    following = asyncio.create_task(shown_of(ledger, heard))
    async with LiveReply.of(ledger, THREAD, 1, 1) as replying:
        replying.publish("On ")
        await shows(heard, "On ")
        await ledger.log.publish_live(live_subject(THREAD, 1), garbage)
        replying.publish("it.")
        await shows(heard, "On it.")
    await ends(ledger, following)


@pytest.mark.log("memory", "jetstream")
async def test_half_a_character_does_not_end_the_live_text(ledger: Ledger):
    """A provider may split an emoji of two UTF-16 units, which JSON cannot hold by halves."""
    heard: list[object] = []
    following = asyncio.create_task(shown_of(ledger, heard))
    async with LiveReply.of(ledger, THREAD, 1, 1) as live:
        for one in ("On ", "\ud83d", "\ude00", " it."):
            live.publish(one)
            await asyncio.sleep(0.01)
        await shows(heard, "On \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} it.")
    await ends(ledger, following)


async def test_followers_take_no_consumers_of_the_log(store: Path, admin: Ledger):
    """A stream has no more than 1,000, and workers and readers need them."""
    async with Ledger.connect(store, role="observer") as observer:
        consumers = await _consumers(admin)
        following = [asyncio.create_task(shown_of(observer, [])) for _ in range(100)]
        await asyncio.sleep(1)
        assert await _consumers(admin) == consumers
        await admin.append(THREAD.replied(1), e.ModelReplied(parts=(e.Text(TEXT),)))
        assert await asyncio.wait_for(asyncio.gather(*following), 60) == [TEXT] * 100


class Slow:
    """A model that does not stream, and replies after this time."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s

    async def reply(self, question: ModelRequest) -> ModelReply:
        await asyncio.sleep(self.after_s)
        return ModelReply((e.Text(TEXT),))


@pytest.mark.parametrize("word", ["so ", ""], ids=["it gives its reply", "it is quiet"])
@simulated
async def test_a_follower_does_not_ask_the_broker_while_a_model_is_asked(ledger, word, monkeypatch):
    """A thousand of them would cost the broker, and with it the workers, thousands of requests."""
    looks = _counted(ledger.log, monkeypatch)
    async with LiveReply.of(ledger, THREAD, 1, 1) as replying:
        following = asyncio.create_task(shown_of(ledger, []))
        for _ in range(30):
            if word:
                replying.publish(word)
            await asyncio.sleep(0.1)
        assert len(looks) == 1
    await ends(ledger, following)


def test_a_follower_that_waits_for_long_looks_less_often():
    """Twice a second for some seconds, then after each tenth of the silence, up to 5 s."""
    for silence_s, least_s, most_s in ((0, 0.4, 0.6), (5, 0.4, 0.6), (30, 2.4, 3.6), (1e9, 5, 5)):
        for _ in range(100):
            assert least_s <= live._pause_s(silence_s) <= most_s


@pytest.mark.parametrize("after_s", [0, 1.5], ids=["at once", "later"])
async def test_a_follower_that_waited_for_long_is_shown_the_end_soon(port, after_s, monkeypatch):
    """Also of a model that does not stream: its worker says that it is being asked."""
    monkeypatch.setattr(live, "_SHARE", 1e9)
    monkeypatch.setattr(live, "_LOOK_S", 3600.0)
    chain = Chain(port, Slow(after_s))
    following = asyncio.create_task(shown_of(chain.ledger, []))
    await asyncio.sleep(1)  # its next look is an hour away
    async with chain.at_work("gate", "model"):
        await chain.begin()
        assert await asyncio.wait_for(following, 60) == TEXT


@pytest.mark.parametrize("heard", [True, False], ids=["it follows the later", "it missed it"])
async def test_an_attempt_that_goes_on_after_the_reply_hides_no_end(ledger, heard, monkeypatch):
    """A worker may be slow rather than dead, and another one may have recorded the reply."""
    monkeypatch.setattr(live, "_LOOK_S", 3600.0 if heard else 1.0)
    news: list[object] = []
    following = asyncio.create_task(shown_of(ledger, news))
    async with LiveReply.of(ledger, THREAD, 1, 1) as slow:
        await _until_heard(slow, news)
        if heard:
            async with LiveReply.of(ledger, THREAD, 1, 2) as later:
                await _until_heard(later, news)
        await ledger.append(THREAD.replied(1), e.ModelReplied(parts=(e.Text(TEXT),), attempt=2))
        async with asyncio.timeout(60):
            while not following.done():
                slow.publish("still ")
                await asyncio.sleep(0.1)
    assert await following == TEXT


async def _until_heard(replying: LiveReply, news: list[object]) -> None:
    """Publish until a follower, which may not have subscribed yet, shows something more."""
    known = len(news)
    async with asyncio.timeout(60):
        while len(news) == known or news[-1] == Discarded():
            replying.publish("well ")
            await asyncio.sleep(0.05)


def _counted(port: EventLog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects of `latest`, as it is asked."""
    asked: list[str] = []
    latest = port.latest

    async def counted(subjects: str):
        asked.append(subjects)
        return await latest(subjects)

    monkeypatch.setattr(port, "latest", counted)
    return asked


async def _consumers(ledger: Ledger) -> int:
    assert isinstance(ledger.log, JetStream)
    found = await streams.info(ledger.log.api, "STREAM.INFO.LEDGER")
    assert found is not None
    return int(found["state"]["consumer_count"])


@pytest.mark.log("memory", "jetstream")
async def test_a_follower_that_does_not_read_holds_little(port: EventLog):
    """It has what fits; the next whole text has the rest."""
    subject = live_subject(THREAD, 1)
    async with port.subscribe_live(subject) as messages:
        for _ in range(100):
            await port.publish_live(subject, b"x" * 16_384)
        await port.last_seq()  # what is asked last is answered last
        async with asyncio.timeout(60):
            for _ in range(MAX_LIVE_BYTES // 16_384):
                assert await messages.get() == b"x" * 16_384
            await port.publish_live(subject, b"again")
            assert await messages.get() == b"again"


async def test_only_models_publish_live_text(tmp_path: Path):
    """A forged piece of any other role reaches nobody."""
    subject = live_subject(THREAD, 1)
    async with (
        running(tmp_path / "store") as server,
        Ledger.connect(server.store.path, role="model") as model,
        Ledger.connect(server.store.path, role="observer") as observer,
        observer.log.subscribe_live(subject) as messages,
    ):
        await settled(observer.log.connection.client)
        await server.ensure_account("reviewer-ana")
        for role in (*ROLES, "reviewer-ana"):
            async with Ledger.connect(server.store.path, role=role) as ledger:
                await ledger.log.publish_live(subject, role.encode())
                await settled(ledger.log.connection.client)
        await model.log.publish_live(subject, b"the end")
        async with asyncio.timeout(60):
            assert [await messages.get() for _ in range(2)] == [b"model", b"the end"]


async def test_the_command_marks_what_it_had_to_spell_out_once(store, admin, capsys):
    """Behind the text, not in the middle of it, however it was split."""
    await admin.append(THREAD.opened, e.ThreadOpened(requester="rita"))
    command = asyncio.create_task(look.follow(str(THREAD), session=Session(store=store)))
    await asyncio.sleep(0.5)
    await admin.append(THREAD.asked(1, 1), e.ModelAsked(model="test:m"))
    parts = (e.Text("On its\u200b way.\nSoon."),)
    await admin.append(THREAD.replied(1), e.ModelReplied(parts=parts))
    assert await command == 0
    shown = capsys.readouterr().out
    assert shown == "On its\\u200b way.\nSoon.  [hidden characters]\n"
