"""The worker for webhooks, against a real broker and real endpoints: what is sent, when, and how
often.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from brokers import running
from long import sampled
from msgspec.structs import replace as with_fields
from program import started
from receivers import Receiver, endpoint, receiving
from until import until

from ayes.consumers.webhooks.endpoints import EndpointFile, check
from ayes.consumers.webhooks.requests import Sender
from ayes.consumers.webhooks.worker import Webhooks, replay
from ayes.consumers.worker import Worker
from ayes.ledger import clock
from ayes.ledger.clients.services import Ledger
from ayes.ledger.log import Mark, Parked
from ayes.schemas.errors import BadId
from ayes.schemas.events import (
    AccountBound,
    ModelReplied,
    PersonAdded,
    Said,
    Stopped,
    ToolStarted,
)
from ayes.schemas.policy import applied
from ayes.schemas.slots import (
    ORGANISATION,
    CallRef,
    StopRef,
    ThreadRef,
    account_slot,
    person_slot,
    policy_slot,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory) -> AsyncIterator[Path]:
    """One broker for all tests; each has a workspace of its own, and its own file of endpoints."""
    async with running(tmp_path_factory.mktemp("webhooks") / "store") as server:
        yield server.store.path


@pytest_asyncio.fixture(loop_scope="module")
async def admin(broker) -> AsyncIterator[Ledger]:
    async with Ledger.connect(broker, role="admin") as ledger:
        yield ledger


@pytest.fixture
def workspace(request: pytest.FixtureRequest) -> str:
    return request.node.name.partition("[")[0][-60:]


@pytest.fixture
def file(tmp_path: Path) -> EndpointFile:
    return EndpointFile(tmp_path / "webhooks.json")


def added(file: EndpointFile, receiver: Receiver, workspace: str, name: str = "crm", **fields):
    """An endpoint that agreed."""
    one = endpoint(receiver, name, workspaces=(workspace,), **fields)
    file.add(one)
    file.verify(name, clock.now())
    return file.named(name)


@asynccontextmanager
async def at_work(broker: Path, file: EndpointFile, drain_s: float = 30) -> AsyncIterator[Webhooks]:
    """The worker, as `ayes work webhooks` runs it, until the block ends."""
    async with Ledger.connect(broker, role="webhooks") as ledger:
        webhooks = Webhooks(file, Sender(), drain_s)
        worker = Worker(ledger, webhooks, drain_s=drain_s)
        tasks = [asyncio.create_task(one) for one in (worker.run(), webhooks.send(ledger))]
        try:
            yield webhooks
        finally:
            worker.stop()
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def said(admin: Ledger, workspace: str, *texts: str) -> list[int]:
    """Record messages; returns their numbers in the log."""
    thread = ThreadRef(workspace, "t1")
    for text in texts:
        assert await admin.try_append(thread.said(text), Said(role="user", text=text)) is None
    facts = await admin.read(thread)
    return [fact.seq for fact in facts if fact.slot.tail[-1] in texts]


def texts(receiver: Receiver) -> list[str]:
    return [one.event["data"]["event"]["text"] for one in receiver.posts]


async def parked_when(admin: Ledger, seq: int, is_so) -> list[Parked]:
    """The entries about this fact, once they are so."""
    found: list[Parked] = []

    async def are_so() -> bool:
        found[:] = [one for one in await admin.log.parked("webhooks") if one.seq == seq]
        return bool(is_so(found))

    await until(are_so)
    return found


async def retry(admin: Ledger, parked: Parked) -> None:
    """As `ayes parked retry`."""
    await admin.log.mark(Mark("webhooks", parked.number, "retry", clock.now()))


async def test_a_fact_is_sent_signed_as_a_cloud_event(broker, admin, file, workspace):
    """CloudEvents 1.0 in structured JSON, with the fact as `--json` shows it, byte for byte."""
    thread = ThreadRef(workspace, "t1")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with receiving() as receiver, at_work(broker, file):
        added(file, receiver, workspace)
        fact = await admin.try_append(thread.said("m1"), Said(role="user", text="hi", trace=trace))
        assert fact is None
        await receiver.until(lambda: receiver.posts)
    [fact] = await admin.read(thread)
    [request] = receiver.posts
    event = request.verified()
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": f"{fact.seq}-{fact.event.id}",
        "source": f"//ayes.test/{workspace}",
        "type": "ayes.Said",
        "subject": f"ledger.{workspace}.t1.said.m1",
        "time": fact.recorded_at.isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "traceparent": trace,
    }
    raw = await admin.log.at(fact.seq)
    assert (raw.data in request.body, data["seq"]) == (True, fact.seq)
    assert data["event"]["text"] == "hi"


async def test_an_endpoint_is_sent_what_it_asked_for(broker, admin, file, workspace):
    """Types and workspaces choose; and only facts since it agreed are sent."""
    thread = ThreadRef(workspace, "t1")
    await said(admin, workspace, "before")
    async with receiving() as all_, receiving() as some, receiving() as none:
        added(file, all_, workspace)
        added(file, some, workspace, "some", types=("ModelReplied",))
        added(file, none, "elsewhere", "none")
        file.add(endpoint(none, "unverified", workspaces=(workspace,)))
        async with at_work(broker, file):
            await said(admin, workspace, "m1")
            replied = ModelReplied(parts=())
            assert await admin.try_append(thread.replied(1), replied) is None
            await said(admin, workspace, "m2")
            await all_.until(lambda: len(all_.posts) == 3)
        assert sorted(all_.types) == ["ModelReplied", "Said", "Said"]
        assert some.types == ["ModelReplied"]
        assert none.requests == []


async def test_what_is_the_organisations_goes_to_endpoints_of_all_workspaces(
    broker, admin, file, workspace
):
    """People, policies and stops of the organisation are nobody's who was promised one workspace;
    neither live, nor by a replay, nor with a type that they have (I7).
    """
    start = await admin.log.last_seq() + 1
    of_all = {
        person_slot("ana", 1): PersonAdded(),
        account_slot("ana", 1): AccountBound(account="slack:T/U"),
        policy_slot(ORGANISATION, 1): applied(""),
        StopRef(ORGANISATION, "ana", "s1").given: Stopped(reason="An incident."),
    }
    async with receiving() as all_, receiving() as some, receiving() as typed:
        one = endpoint(all_, "all")
        file.add(one)
        file.verify("all", clock.now())
        added(file, some, workspace, "some")
        added(file, typed, workspace, "typed", types=("PersonAdded", "Stopped", "PolicyApplied"))
        async with at_work(broker, file):
            for slot, event in of_all.items():
                assert await admin.try_append(slot, event) is None
            await said(admin, workspace, "m1")
            await all_.until(lambda: len(all_.posts) == len(of_all) + 1)
            await some.until(lambda: some.posts)
        replayed = replay(admin, Sender(), file.named("some"), start, None, ())
        assert [one.fact.event.text async for one in replayed] == ["m1"]
        assert some.types == ["Said", "Said"]
        assert typed.posts == []
        with pytest.raises(BadId):
            check(endpoint(some, "sly", workspaces=(ORGANISATION,)))


async def test_a_void_fact_says_so(broker, admin, file, workspace):
    """A claim of a call that nobody requested changes nothing, and a receiver learns why."""
    slot = CallRef(workspace, "t1", "c1").claim(1)
    async with receiving() as receiver, at_work(broker, file):
        added(file, receiver, workspace)
        forged = ToolStarted(digest="0" * 64, idempotency_key="x")
        assert await admin.try_append(slot, forged) is None
        await receiver.until(lambda: receiver.posts)
    assert receiver.posts[0].event["data"]["void"] == "the call was not requested before it"


async def test_a_failing_endpoint_is_retried_and_then_receives_the_rest(
    broker, admin, file, workspace
):
    """After the one that failed, in the order of the log; others are not delayed."""
    async with receiving() as receiver, receiving() as other, at_work(broker, file):
        failures = iter([500, 503])
        receiver.answer = lambda _request: (next(failures, 204), {})
        added(file, receiver, workspace)
        added(file, other, workspace, "other")
        await said(admin, workspace, "m1")
        await until(lambda: file.standings.read().of("crm").failing_since)
        await said(admin, workspace, "m2", "m3")
        await receiver.until(lambda: len(receiver.posts) == 5)
        await until(lambda: not file.standings.read().of("crm").failing_since)
        assert sorted(texts(other)) == ["m1", "m2", "m3"]
    assert texts(receiver)[:3] == ["m1"] * 3
    assert sorted(texts(receiver)[3:]) == ["m2", "m3"]
    assert len({*receiver.ids}) == 3
    standing = file.standings.read().of("crm")
    assert (standing.failing_since, standing.why, standing.parked) == (None, "", {})
    assert standing.last_success is not None


async def test_a_dead_endpoint_is_parked_and_tried_again(broker, admin, file, workspace):
    """As often as configured, with growing pauses; others have long been served. What is tried
    again goes to the endpoint that lacks it, and to no other.
    """
    async with receiving() as dead, receiving() as other, at_work(broker, file):
        dead.answer = lambda _request: (500, {})
        added(file, dead, workspace, tries=3)
        added(file, other, workspace, "other")
        [seq] = await said(admin, workspace, "m1")
        await other.until(lambda: other.posts)
        [parked] = await parked_when(admin, seq, bool)
        assert len(dead.posts) == 3
        assert len({*dead.ids}) == 1
        assert parked.tries == 3
        assert parked.reason == "crm: it answered 500 Internal Server Error"
        standing = file.standings.read().of("crm")
        assert (standing.parked.keys(), standing.failing_since is not None) == ({seq}, True)
        await retry(admin, parked)  # while it is still dead

        def once_more(found: list[Parked]) -> bool:
            return (found[0] != parked, found[0].state, found[0].mark) == (True, "parked", None)

        [again] = await parked_when(admin, seq, once_more)
        assert again.reason == parked.reason
        dead.answer = lambda _request: (204, {})
        await retry(admin, again)
        await parked_when(admin, seq, lambda found: not found)
        assert file.standings.read().of("crm").failing_since is None
        assert file.standings.read().of("crm").parked == {}
        assert len({*dead.ids}) == 1
        assert len(other.posts) == 1


async def test_the_rest_follows_what_was_parked(broker, admin, file, workspace):
    """A fact that is never taken does not hold those after it."""
    async with receiving() as receiver, at_work(broker, file):
        receiver.answer = lambda one: (400 if b"poison" in one.body else 204, {})
        added(file, receiver, workspace, tries=2)
        [seq] = await said(admin, workspace, "poison")
        await said(admin, workspace, "m1", "m2")
        await receiver.until(lambda: {"m1", "m2"} <= {*texts(receiver)})
        await until(lambda: not file.standings.read().of("crm").failing_since)
        assert await parked_when(admin, seq, bool)


async def test_two_endpoints_park_one_fact(broker, admin, file, workspace):
    """The entry names both reasons, and a retry goes to both."""
    async with receiving() as one, receiving() as two, at_work(broker, file):
        one.answer = lambda _request: (500, {})
        two.answer = lambda _request: (404, {})
        added(file, one, workspace, "one", tries=1)
        added(file, two, workspace, "two", tries=2)
        [seq] = await said(admin, workspace, "m1")
        [parked] = await parked_when(admin, seq, lambda found: found and "; " in found[0].reason)
        assert "one: it answered 500" in parked.reason
        assert "two: it answered 404" in parked.reason
        one.answer = two.answer = lambda _request: (204, {})
        before = len(one.posts), len(two.posts)
        await retry(admin, parked)
        await one.until(lambda: len(one.posts) > before[0])
        await two.until(lambda: len(two.posts) > before[1])


async def test_gone_is_for_good(broker, admin, file, workspace):
    """410: nothing more is sent, and its standing says so and what it lacks."""
    async with receiving() as receiver, receiving() as other, at_work(broker, file):
        receiver.answer = lambda _request: (410, {})
        added(file, receiver, workspace)
        added(file, other, workspace, "other")
        [seq] = await said(admin, workspace, "m1")
        await until(lambda: file.standings.read().of("crm").gone)
        await said(admin, workspace, "m2")
        await other.until(lambda: len(other.posts) == 2)
        assert texts(receiver) == ["m1"]
        gone = file.standings.read().of("crm").gone
        assert gone.startswith("it answered 410 Gone at 20")
        assert gone.endswith(f"it lacks facts from {seq} on")


async def test_it_is_left_alone_for_as_long_as_it_asks(broker, admin, file, workspace):
    """`Retry-After` counts for more than the pause."""
    async with receiving() as receiver, at_work(broker, file):
        clock_ = asyncio.get_running_loop()
        at = []

        def busy(_request):
            at.append(clock_.time())
            return (429, {"retry-after": "1"}) if len(at) < 3 else (204, {})

        receiver.answer = busy
        added(file, receiver, workspace)
        await said(admin, workspace, "m1")
        await receiver.until(lambda: len(receiver.posts) == 3)
    assert min(at[1] - at[0], at[2] - at[1]) >= 1.0


async def test_many_facts_at_once(broker, admin, file, workspace):
    """More than an endpoint takes at a time: no more requests than that, and it lacks nothing."""
    async with receiving() as slow, receiving() as other, at_work(broker, file):
        slow.takes_s = 0.05
        added(file, slow, workspace)
        added(file, other, workspace, "other")
        names = [f"m{number}" for number in range(40)]
        await said(admin, workspace, *names)
        await slow.until(lambda: {*texts(slow)} == {*names})
        await other.until(lambda: {*texts(other)} == {*names})
        await until(lambda: not file.standings.read().of("crm").failing_since)
        assert file.standings.read().of("crm").parked == {}
        assert slow.most_at_once <= 16


async def test_a_dead_endpoint_does_not_delay_the_others(broker, admin, file, workspace):
    """One that accepts connections and never answers: the facts of the others pass it."""
    async with receiving() as silent, receiving() as other, at_work(broker, file, drain_s=0):
        silent.answer = lambda _request: None
        added(file, silent, workspace, timeout_s=60)
        added(file, other, workspace, "other")
        names = [f"m{number}" for number in range(200)]
        begun = asyncio.get_running_loop().time()
        await said(admin, workspace, *names)
        await other.until(lambda: {*texts(other)} == {*names})
        assert asyncio.get_running_loop().time() - begun < 20
        assert len(silent.posts) <= 32


async def test_a_worker_that_is_killed_repeats_the_id(tmp_path, file, workspace):
    """Between what it sent and its acknowledgement: nothing is lost, and the repetition has the id
    by which a receiver drops it.
    """
    ack_wait_s = 1.0  # a killed worker's work is delivered again after that
    async with (
        running(tmp_path / "store", ack_wait_s) as server,
        Ledger.connect(server.store.path, role="admin") as admin,
        receiving() as receiver,
    ):
        receiver.answer = lambda _request: None
        added(file, receiver, workspace, timeout_s=60.0)
        work = (
            *("work", "webhooks", "--webhooks", file.path, "--store", server.store.path),
            *("--ack-wait", f"{ack_wait_s}s", "--json"),
        )
        with started(*work) as process:
            assert await asyncio.to_thread(process.stdout.readline)
            await said(admin, workspace, "m1")
            await receiver.until(lambda: receiver.posts)
            process.kill()
            await asyncio.to_thread(process.wait, 20)
        receiver.answer = lambda _request: (204, {})
        with started(*work):
            await receiver.until(lambda: len(receiver.posts) == 2)
    assert len({*receiver.ids}) == 1


async def test_what_an_endpoint_lacks_survives_its_worker(broker, admin, file, workspace):
    """The next worker goes on where the last one was."""
    async with receiving() as receiver:
        receiver.answer = lambda _request: (500, {})
        added(file, receiver, workspace, backoff_s=60.0)
        async with at_work(broker, file):
            await said(admin, workspace, "m1", "m2")
            await until(lambda: file.standings.read().of("crm").failing_since)
        receiver.answer = lambda _request: (204, {})
        async with at_work(broker, EndpointFile(file.path)):
            await receiver.until(lambda: {"m1", "m2"} <= {*texts(receiver)[1:]})


async def test_what_was_taken_is_not_sent_again(broker, admin, file, workspace):
    """The next worker begins where the last one ended, though everything went well."""
    async with receiving() as receiver:
        added(file, receiver, workspace)
        async with at_work(broker, file):
            await said(admin, workspace, "m1", "m2")
            await receiver.until(lambda: len(receiver.posts) == 2)
        async with at_work(broker, EndpointFile(file.path)):
            await said(admin, workspace, "m3")
            await receiver.until(lambda: "m3" in texts(receiver))
    assert sorted(texts(receiver)) == ["m1", "m2", "m3"]


async def test_a_log_that_was_begun_anew_is_sent_from_its_beginning(broker, admin, file, workspace):
    """The place in the log before it is after the end of this one."""
    async with receiving() as receiver:
        added(file, receiver, workspace)
        file.note("crm", lambda before: with_fields(before, next=1_000_000))
        await said(admin, workspace, "m1")
        async with at_work(broker, file):
            await receiver.until(lambda: receiver.posts)
    assert texts(receiver) == ["m1"]


async def test_two_workers_on_one_file(broker, admin, file, workspace):
    """One of them sends, and the other one when that one has ended."""
    async with receiving() as receiver:
        failures = iter([500] * 3)
        receiver.answer = lambda _request: (next(failures, 204), {})
        added(file, receiver, workspace, tries=9)
        async with at_work(broker, file), at_work(broker, EndpointFile(file.path)):
            names = [f"m{number}" for number in range(20)]
            await said(admin, workspace, *names)
            await receiver.until(lambda: {*texts(receiver)} == {*names})
            await until(lambda: not file.standings.read().of("crm").failing_since)
            assert len(receiver.posts) == 23


async def test_a_running_worker_sees_changes(broker, admin, file, workspace):
    """An endpoint that is added is sent the next fact; one that is removed is not."""
    async with receiving() as receiver, receiving() as other, at_work(broker, file):
        added(file, other, workspace, "other")
        await said(admin, workspace, "m1")
        await other.until(lambda: other.posts)
        added(file, receiver, workspace)
        await said(admin, workspace, "m2")
        await receiver.until(lambda: receiver.posts)
        file.remove("crm")
        await said(admin, workspace, "m3")
        await other.until(lambda: len(other.posts) == 3)
        assert texts(receiver) == ["m2"]
        assert "crm" not in file.standings.read().endpoints


async def test_one_that_was_made_anew_is_not_sent_what_the_one_before_lacked(
    broker, admin, file, workspace
):
    """It agreed to nothing yet, when a request for the one before was just to be sent."""
    async with receiving() as receiver:
        before = added(file, receiver, workspace)
        await said(admin, workspace, "m1")
        [fact] = await admin.read(ThreadRef(workspace, "t1").said("m1"))
        file.remove("crm")
        added(file, receiver, workspace)
        answer = await Webhooks(file, Sender())._post(admin, before, fact)
        assert (answer.is_gone, receiver.posts) == (True, [])


async def test_replay_repeats_ids_in_order(broker, admin, file, workspace):
    """From a number or a time, up to one; only the types that are asked for."""
    thread = ThreadRef(workspace, "t1")
    early = await said(admin, workspace, "m1")
    async with receiving() as receiver, at_work(broker, file):
        one = added(file, receiver, workspace)
        seqs = early + await said(admin, workspace, "m2", "m3")
        assert await admin.try_append(thread.replied(1), ModelReplied(parts=())) is None
        await receiver.until(lambda: len(receiver.posts) == 3)
    known = {request.event["data"]["seq"]: request.id for request in receiver.posts}

    async def again(start, until_=None, types=()) -> list[tuple[int, str]]:
        async with receiving() as second:
            to = with_fields(one, url=second.url)
            async for sent in replay(admin, Sender(), to, start, until_, types):
                assert sent.why == ""
            return [(request.event["data"]["seq"], request.id) for request in second.posts]

    whole = await again(1)
    assert [seq for seq, _ in whole] == [*seqs, seqs[-1] + 1]
    assert all(known[seq] == id_ for seq, id_ in whole[1:])
    assert await again(seqs[1], seqs[1]) == [(seqs[1], known[seqs[1]])]
    assert [seq for seq, _ in await again(1, types={"ModelReplied"})] == [seqs[-1] + 1]
    [fact] = [fact for fact in await admin.read(thread) if fact.seq == seqs[2]]
    assert next(seq for seq, _ in await again(fact.recorded_at)) in (seqs[1], seqs[2])
    assert await again(clock.now()) == []


async def test_replay_ends_with_what_is_not_taken(broker, admin, file, workspace):
    """After as many tries as the endpoint allows; what was sent before is known."""
    seqs = await said(admin, workspace, "m1", "m2", "m3")
    async with receiving() as receiver:
        receiver.answer = lambda request: (500 if b'"text":"m2"' in request.body else 204, {})
        one = added(file, receiver, workspace, tries=2)
        found = [
            (sent.fact.seq, sent.why) async for sent in replay(admin, Sender(), one, 1, None, ())
        ]
    assert found == [(seqs[0], ""), (seqs[1], "it answered 500 Internal Server Error")]
    assert texts(receiver) == ["m1", "m2", "m2"]


@pytest.mark.parametrize("seed", sampled((1, 2), 1))
async def test_nothing_is_lost(broker, admin, file, workspace, seed):
    """An endpoint that fails at random, and workers that end and begin at random: each fact is
    taken or parked, and each with one id.
    """
    lot = random.Random(seed)
    async with receiving() as receiver, at_work(broker, file):
        taken: set[int] = set()

        def flaky(request):
            if lot.random() < 0.3:
                return lot.choice([(500, {}), (429, {"retry-after": "0"})])
            taken.add(request.event["data"]["seq"])
            return 204, {}

        receiver.answer = flaky
        space = f"{workspace[:50]}{seed}"
        added(file, receiver, space, tries=2, backoff_s=0.05)
        seqs: list[int] = []
        for part in range(4):
            async with at_work(broker, EndpointFile(file.path)):
                for n in range(10):
                    seqs += await said(admin, space, f"p{part}n{n}")
                    await asyncio.sleep(lot.random() / 100)
        await until(lambda: not file.standings.read().of("crm").failing_since)
        parked = {one.seq for one in await admin.log.parked("webhooks")}
        await until(lambda: {*seqs} <= taken | parked | {*file.standings.read().of("crm").parked})
    ids = {(one.event["data"]["seq"], one.id) for one in receiver.posts}
    assert len(ids) == len({seq for seq, _ in ids})
