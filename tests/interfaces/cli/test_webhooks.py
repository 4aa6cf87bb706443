"""`ayes webhooks`, and the worker as operators run it."""

import asyncio
import json
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from program import Ended, approvals, record, started, up
from receivers import SECRET, Receiver, receiving
from standardwebhooks import WebhookVerificationError
from until import until

from ayes.consumers.webhooks.endpoints import EndpointFile, Standing
from ayes.schemas.events import Said
from ayes.schemas.slots import ThreadRef

THREAD = ThreadRef("shop", "order-17")
NOW = datetime(2026, 11, 21, 8, 50, tzinfo=UTC)


class _Serving:
    """A receiver in a thread of its own, as commands run in this one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._stack = AsyncExitStack()

    def __enter__(self) -> Receiver:
        self._thread.start()
        self.receiver = self._run(self._stack.enter_async_context(receiving()))
        self.receiver.wait = lambda there: self._run(self.receiver.until(there))
        return self.receiver

    def __exit__(self, *_: object) -> None:
        self._run(self._stack.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self, waiting: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(waiting, self.loop).result(60)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with _Serving() as one:
        yield one


@pytest.fixture
def ayes(within: Callable[..., Ended], tmp_path: Path) -> Callable[..., Ended]:
    """`ayes webhooks`, on a store of the test's own that no broker runs from."""
    return lambda *words: within("webhooks", *words, "--store", tmp_path / "store")


ALLOWED = ("--allow-private", "--origin", "ayes.test")


def test_an_endpoint_is_added_and_its_secret_shown_once(ayes, receiver, tmp_path):
    """It is asked whether it agrees; the file is private, and no list has the secret."""
    added = ayes("add", "crm", receiver.url, *ALLOWED)
    assert added.code == 0, added.err
    assert added.out.startswith("whsec_")
    assert "crm agrees" in added.err
    assert [one.method for one in receiver.requests] == ["OPTIONS"]
    file = tmp_path / "store" / "webhooks.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert added.out.strip() in file.read_text()
    listed = ayes("ls", "--json").one
    assert listed["standing"] == "in step"
    assert listed["verified_at"]
    assert added.out.strip() not in json.dumps(listed)
    assert f"webhook crm is in step   all facts to {receiver.url}" in ayes("ls").out
    again = ayes("add", "crm", receiver.url, *ALLOWED)
    assert (again.code, "already" in again.err) == (2, True)


def test_one_that_does_not_agree_is_sent_nothing(ayes, receiver):
    """It stays, and is asked again by `test`; until then it cannot be replayed to either."""
    receiver.agrees = False
    added = ayes("add", "crm", receiver.url, *ALLOWED, "--json")
    assert (added.code, added.problem["error"]) == (75, "NotTaken")
    assert added.one["standing"] == "not verified"
    assert added.one["secret"].startswith("whsec_")
    assert ayes("replay", "crm", "--from", "1").code == 1
    assert ayes("test", "crm").code == 75
    receiver.agrees = True
    assert ayes("test", "crm").code == 0
    assert [one.method for one in receiver.requests] == ["OPTIONS"] * 3 + ["POST"]


def test_a_test_event_is_signed_and_answered(ayes, receiver, tmp_path):
    """With a secret from a file; what came back is shown, and made visible."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    added = ayes("add", "crm", receiver.url, *ALLOWED, "--secret-file", tmp_path / "secret")
    assert (added.code, added.out) == (0, "")
    tested = ayes("test", "crm", "--json").one
    assert (tested["status"], tested["problem"]) == (204, "")
    event = receiver.posts[0].verified(SECRET)
    assert (event["type"], event["subject"]) == ("ayes.webhooks.test", "crm")
    receiver.answer = lambda _request: (500, {})
    failed = ayes("test", "crm")
    assert (failed.code, "it answered 500" in failed.err) == (75, True)


def test_one_that_was_failing_and_takes_the_test_is_in_step_again(ayes, receiver, tmp_path):
    """So a worker that waits for its next try sends at once; its parked facts stay parked."""
    assert ayes("add", "crm", receiver.url, *ALLOWED).code == 0
    file = EndpointFile(tmp_path / "store" / "webhooks.json")
    failing = Standing(next=7, why="it answered 500", failing_since=NOW, parked={3: "no answer"})
    file.note("crm", lambda _: failing)
    assert ayes("ls", "--json").one["standing"] == "failing"
    tested = ayes("test", "crm")
    assert (tested.code, "took it: 204" in tested.out) == (0, True), tested.err
    [status] = file.statuses()
    assert (status.standing, status.problem, status.parked) == ("in step", "", [3])
    assert file.standings.read().of("crm").next == 7


def test_a_new_secret_leaves_time_to_change_the_receiver(ayes, receiver):
    """Both verify until the overlap has passed, and then the new one alone; it is shown once."""
    first = ayes("add", "crm", receiver.url, *ALLOWED).out.strip()
    rotated = ayes("rotate", "crm", "--overlap", "1h")
    assert (rotated.code, "valid until" in rotated.err) == (0, True)
    second = rotated.out.strip()
    assert ayes("test", "crm").code == 0
    for secret in (first, second):
        assert receiver.posts[0].verified(secret)
    third = ayes("rotate", "crm", "--overlap", "0s", "--json").one["secret"]
    assert ayes("test", "crm").code == 0
    assert receiver.posts[1].verified(third)
    for secret in (first, second):
        with pytest.raises(WebhookVerificationError):
            receiver.posts[1].verified(secret)
    assert len({first, second, third}) == 3


def test_a_secret_that_is_none_changes_nothing(ayes, receiver, tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    named = ("--secret-file", tmp_path / "secret")
    assert ayes("add", "crm", receiver.url, *ALLOWED, *named).code == 0
    for text, why in (("hunter2", "24 to 64 bytes"), (SECRET, "has this secret already")):
        (tmp_path / "secret").write_text(text)
        ended = ayes("rotate", "crm", *named)
        assert (ended.code, why in ended.err) == (2, True)
    assert ayes("test", "crm").code == 0
    assert receiver.posts[0].verified(SECRET)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("add", "crm", "http://127.0.0.1:1/"), "Use https://"),
        (("add", "crm", "x"), "looks like https://"),
        (("add", "a.b", "https://hooks.example.com/"), "a.b"),
        (("add", "crm", "https://hooks.example.com/", "--type", "Nope"), "'Nope'"),
        (("add", "crm", "https://hooks.example.com/", "--secret-file", "missing"), "missing"),
        (("add", "crm", "https://hooks.example.com/", "--backoff", "soon"), "--backoff"),
        (("add", "crm", "https://hooks.example.com/", "--timeout", "1h"), "--timeout"),
        (("test", "crm"), "there is no webhook 'crm'"),
        (("rm", "crm"), "There are none."),
        (("rotate", "crm"), "there is no webhook 'crm'"),
        (("replay", "crm", "--from", "x"), "--from"),
        (("ls", "--webhooks", "/nowhere/at/all.json"), "/nowhere/at is not a directory"),
    ],
)
def test_bad_input_is_one_sentence(ayes, words, problem):
    """And exit code 2; nothing is stored."""
    ended = ayes(*words)
    assert (ended.code, problem in ended.err) == (2, True), ended
    assert ayes("ls").out == ""


def test_a_name_that_leads_inside_is_not_asked(ayes):
    """Without --allow-private: `localhost` is refused for where it leads."""
    ended = ayes("add", "crm", "https://localhost:9/", "--origin", "ayes.test")
    assert ended.code == 75
    assert "a private address, where nothing is sent. Allow it with --allow-private." in ended.err


def test_one_that_is_removed_is_forgotten(ayes, receiver, tmp_path):
    """With its secret."""
    secret = ayes("add", "crm", receiver.url, *ALLOWED).out.strip()
    assert ayes("rm", "crm").code == 0
    assert secret not in (tmp_path / "store" / "webhooks.json").read_text()
    assert ayes("ls", "--json").out == ""


def test_a_broken_file_is_named(ayes, receiver, tmp_path):
    """In one sentence, without its content."""
    ayes("add", "crm", receiver.url, *ALLOWED)
    (tmp_path / "store" / "webhooks.json").write_text('{"endpoints": 5}')
    ended = ayes("ls")
    assert (ended.code, "not a file of webhooks" in ended.err) == (2, True)
    assert ayes("ls", "--webhooks", tmp_path / "none.json").code == 0


def test_up_sends_facts_and_says_how_it_goes(receiver, tmp_path):
    """`ayes up` with an endpoint runs the worker; a dead endpoint is in `ls` and `status`, its fact
    is parked, and `ayes parked retry` sends it; replay sends it again with the same id.
    """
    store = tmp_path / "store"
    options = ("--tries", "2", "--backoff", "0.05s", "-w", "shop", "--type", "Said")
    added = approvals("webhooks", "add", "crm", receiver.url, *ALLOWED, *options, store=store)
    assert added.code == 0, added.err
    receiver.answer = lambda _request: (500, {})
    with up(store) as ready:
        assert "webhooks" in ready["workers"]
        record(store, (THREAD.said("m1"), Said(role="user", text="Good day.")))
        file = EndpointFile(store / "webhooks.json")
        asyncio.run(until(lambda: file.standings.read().of("crm").parked))
        listed = approvals("webhooks", "ls", "--json", store=store).one
        assert listed["standing"] == "failing"
        assert listed["problem"] == "it answered 500 Internal Server Error"
        status = approvals("status", "--json", store=store).one
        assert status["webhooks"][0]["failing_since"]
        told = approvals("status", store=store).out
        assert "ALARM webhook crm is failing since" in told
        [parked] = [one for one in status["parked"] if one["consumer"] == "webhooks"]

        receiver.answer = lambda _request: (204, {})
        count = len(receiver.posts)
        assert approvals("parked", "retry", parked["number"], store=store).code == 0
        receiver.wait(lambda: len(receiver.posts) > count)
        asyncio.run(until(lambda: not approvals("parked", "ls", "--json", store=store).out))

        seq = str(parked["seq"])
        sent = approvals(
            "webhooks", "replay", "crm", "--from", "1", "--to", seq, "--json", store=store
        )
        assert sent.one == {"name": "crm", "sent": 1}
        assert len({*receiver.ids}) == 1
        status = approvals("status", "--json", store=store).one
        assert status["webhooks"][0]["last_success"]


def test_a_worker_of_its_own_has_a_file_of_its_own(receiver, store, tmp_path):
    """`ayes work webhooks --webhooks FILE`; two of them share the work."""
    file = tmp_path / "elsewhere.json"
    added = approvals(
        "webhooks", "add", "crm", receiver.url, *ALLOWED, "--webhooks", file, store=store
    )
    assert added.code == 0, added.err
    assert not (store / "webhooks.json").exists()
    work = ("work", "webhooks", "--webhooks", file, "--store", store, "--json")
    with started(*work) as one, started(*work) as two:
        assert one.stdout.readline() == two.stdout.readline() == '{"workers":["webhooks"]}\n'
        facts = [(THREAD.said(f"m{n}"), Said(role="user", text=str(n))) for n in range(10)]
        record(store, *facts)
        receiver.wait(lambda: len({*receiver.ids}) == 10)
    assert len(receiver.posts) == 10
