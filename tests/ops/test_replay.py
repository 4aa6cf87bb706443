"""`ayes replay --projection`: one projection folded again beside the live one, compared with it,
put in its place.

On a real broker, and mostly through the function that the command is; what it writes to stdout is
read as a script would.
"""

import asyncio
import json
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta

import msgspec
import pytest
from busy_log import busy_log, rebuilt
from nats.js.errors import NoKeysError
from program import approvals
from stories import REF, WISH, approval, life, question, request, told
from until import until
from workers import at_work, tell

from ayes.interfaces.cli import replay as replaying
from ayes.interfaces.cli.command import Session
from ayes.ledger.subscriptions import LEDGER
from ayes.ops.audit import replay, verify
from ayes.ops.audit.verify import rebuild
from ayes.projections import pending
from ayes.projections.fold import ProjectionState
from ayes.projections.histories import HISTORIES
from ayes.projections.history import history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.errors import BadInput, TooLarge, Unavailable
from ayes.schemas.slots import CallRef, ThreadRef


@pytest.fixture
def project(store, capsys):
    """What `ayes replay --projection` ends with, the data that it writes, and its words."""

    async def projected(name, *, until=None, into=None, diff=False, swap=False, json=True):
        code = await replaying.projected(
            name, Session(store, json=json), until=until, into=into, diff=diff, swap=swap
        )
        told = capsys.readouterr()
        return code, told.out, told.err

    return projected


async def recorded(admin, length=120):
    """A busy log, on the broker; its facts as the broker has them."""
    for fact in busy_log(length):
        assert await admin.try_append(fact.slot, fact.event) is None
    return [fact async for fact in admin.replay()]


def rows(out):
    """The last row of each key."""
    found = {}
    for line in out.splitlines():
        row = json.loads(line)
        found[row["key"]] = msgspec.json.encode(row["value"])
    return found


def values(found):
    return {key: msgspec.json.decode(value) for key, value in found.items()}


def plain(expected):
    """The expected rows of one projection, as JSON values."""
    return {
        key: msgspec.json.decode(value) if isinstance(value, bytes) else value
        for key, value in expected.items()
    }


async def everything(admin):
    """What each stream holds: nothing may be added by looking."""
    answer = await admin.log.connection.client.request("$JS.API.STREAM.LIST", b"", timeout=60)
    return {
        one["config"]["name"]: (one["state"]["messages"], one["state"]["last_seq"])
        for one in json.loads(answer.data)["streams"]
    }


async def asked(admin, number):
    """A call that waits for people; its key."""
    ref = CallRef("acme", f"q{number}", "c")
    await tell(admin, [(ref.requested, request(WISH)), (ref.gated, question(WISH))])
    return ref


@asynccontextmanager
async def queue_at_work(store):
    async with at_work(store, "queue"):
        yield


# ------------------------------------------------------------------------------------ what is shown


@pytest.mark.parametrize("name", ["pending", "histories", "calls"])
async def test_the_rows_are_what_each_thing_comes_to(admin, project, name):
    """Now, at a number and at a time: the rows of then; the broker changes nothing (I11)."""
    facts = await recorded(admin)
    before = await everything(admin)
    for count in (120, 1, 61):
        last = facts[count - 1]
        expected = plain(rebuilt(facts[:count])[name])
        for end in (str(last.seq), last.recorded_at.isoformat(), None):
            if end is None and count != 120:
                continue
            code, out, err = await project(name, until=end)
            assert (code, values(rows(out))) == (0, expected)
            assert f"{name}: " in err
            assert f"as of fact {count:,}" in err
    code, out, _ = await project(name, until=(facts[0].recorded_at - timedelta(days=1)).isoformat())
    assert (code, out) == (0, "")
    assert await everything(admin) == before


async def test_what_was_let_go_comes_again(admin, project, monkeypatch):
    """With hardly anything kept in hand, things are written as they come to rest, and again when
    they go on; the last row of a key counts. What is recalled is read from the broker, as it was
    then.
    """
    facts = await recorded(admin, 300)
    monkeypatch.setattr(replay, "_BATCH", 7)
    for fold in list(replay.PROJECTIONS.values()):
        monkeypatch.setitem(
            replay.PROJECTIONS, fold.name, msgspec.structs.replace(fold, keep_complete=0)
        )
    for name in ("histories", "calls"):
        for count in (177, 300):
            _, out, _ = await project(name, until=str(count))
            assert values(rows(out)) == plain(rebuilt(facts[:count])[name])
        assert len(out.splitlines()) > len(rows(out))


async def test_histories_are_those_of_the_history_command(store, admin, project, capsys):
    """For each thread exactly the entries that `ayes history` is made of."""
    facts = await recorded(admin)
    _, out, _ = await project("histories")
    found = rows(out)
    for ref in {fact.slot.thread_ref for fact in facts}:
        told = history(thread_of(ref, await admin.read(ref)))
        row = json.loads(found[f"{ref.workspace}.{ref.thread}"])
        assert msgspec.convert(row["entries"], type(told.entries), strict=False) is not None
        assert msgspec.json.encode(row["entries"]) == msgspec.json.encode(
            msgspec.json.decode(msgspec.json.encode(told.entries))
        )
        assert row["stopped_at"] == (told.stopped_at and str(told.stopped_at))


async def test_a_fact_reads_the_same_by_either_way(admin):
    """Recalled is read otherwise than replayed; the facts are equal, to the microsecond."""
    facts = await recorded(admin, 60)
    again = {fact.seq: fact for fact in facts}
    for ref in {fact.slot.thread_ref for fact in facts}:
        assert all(again[fact.seq] == fact for fact in await admin.read(ref))


# ------------------------------------------------------------------------------ beside the live one


async def test_a_bucket_beside_the_live_one(store, admin, project):
    """Any NATS client reads it; the second time it is emptied and made again."""
    facts = await recorded(admin)
    for name in ("histories", "calls", "pending"):
        code, out, err = await project(name, into=f"next-{name}", until="90")
        assert (code, json.loads(out)["bucket"]) == (0, f"next-{name}")
        assert f"in bucket next-{name}" in err
        expected = plain(rebuilt(facts[:90])[name])
        assert await _as_any_client(admin, f"next-{name}") == expected
        await project(name, into=f"next-{name}")
        expected = plain(rebuilt(facts)[name])
        assert await _as_any_client(admin, f"next-{name}") == expected
    assert await admin.log.pending.entries() == {}


async def _as_any_client(admin, bucket):
    found = await admin.log.connection.client.jetstream().key_value(bucket)
    return {key: json.loads((await found.get(key)).value) for key in await _keys(found)}


async def _keys(bucket):
    """Its keys. nats-py finds none if the broker has sent every entry before it has read the first
    (`KeyValue.watch`), so a bucket with entries is asked again.
    """
    async with asyncio.timeout(60):
        while (await bucket.status()).values:
            with suppress(NoKeysError):
                return await bucket.keys()
    return []


async def test_a_row_that_goes_on_is_put_again(admin, project, monkeypatch):
    """A thing that is let go and recalled has one entry in the bucket: the last."""
    facts = await recorded(admin)
    monkeypatch.setitem(
        replay.PROJECTIONS, "calls", msgspec.structs.replace(HISTORIES, keep_complete=0)
    )
    await project("calls", into="next")
    assert await _as_any_client(admin, "next") == plain(rebuilt(facts)["histories"])


async def test_a_foreign_bucket_is_left_alone(admin, project):
    """One not made by this, or for another projection, is refused and keeps what it holds."""
    js = admin.log.connection.client.jetstream()
    theirs = await js.create_key_value(bucket="theirs")
    await theirs.put("a", b"1")
    with pytest.raises(
        BadInput, match="there is a bucket 'theirs' already, which was not made for this"
    ):
        await project("pending", into="theirs")
    assert (await theirs.get("a")).value == b"1"
    await project("calls", into="mine")
    with pytest.raises(BadInput, match="not made for this"):
        await project("histories", into="mine")


async def test_a_row_too_large_for_a_bucket_is_said(admin, project):
    """A conversation may be larger than a message; then it can be printed and not put."""
    ref = ThreadRef("acme", "long")
    text = "x" * 400_000
    await tell(
        admin,
        [(ref.opened, e.ThreadOpened(requester="rita"))]
        + [(ref.said(f"m{number}"), e.Said(role="user", text=text)) for number in range(3)],
    )
    with pytest.raises(TooLarge, match=r"the row of acme\.long has 1,200,\d+ bytes.*--into"):
        await project("histories", into="next")
    _, out, _ = await project("histories")
    assert len(out) > 1_200_000


# -------------------------------------------------------------------------- compared, and put right


async def sabotaged(admin, calls):
    """Everything that can be wrong with the queue, done to it: the keys that differ."""
    bucket = admin.log.pending
    missing, wrong, _ = map(pending.key, calls[:3])
    value, revision = await bucket.get(missing)
    assert await bucket.delete(missing, revision)
    value, revision = await bucket.get(wrong)
    assert await bucket.put(wrong, value.replace(b"A-17", b"A-18"), revision)
    assert await bucket.put("acme.nobody.c", value, 0)
    assert await bucket.put("by-hand", b'"?"', 0)
    decided = CallRef("acme", "old", "c")
    await tell(admin, life(decided, WISH, "denied"))
    # Not before the queue's worker is done with it: what is decided it takes off, whoever put it
    # there (D2).
    await verify.caught_up(admin)
    assert await bucket.put(
        pending.key(decided), value, (await bucket.get(pending.key(decided)))[1]
    )
    return {missing, wrong, "acme.nobody.c", "by-hand", pending.key(decided)}


async def in_queue(admin, calls):
    """Wait until these stand in the live queue."""
    wanted = set(map(pending.key, calls))
    async with aclosing(told(admin.log.pending)) as changes:
        async for key, value in changes:
            wanted -= {key} if value else set()
            if not wanted:
                return


async def test_what_differs_is_named_and_put_right(store, admin, project):
    """A missing entry, a wrong one, a foreign key, one of no key at all, and one of a decided call:
    `--diff` names each and ends with 1; `--swap` puts them right, and whoever watches sees these
    change and nothing else.
    """
    async with queue_at_work(store):
        calls = [await asked(admin, number) for number in range(4)]
        await in_queue(admin, calls)
        assert (await project("pending", diff=True))[:2] == (0, "")
        differing = await sabotaged(admin, calls)
        code, out, _ = await project("pending", diff=True)
        found = {one["key"]: one for one in map(json.loads, out.splitlines())}
        assert (code, set(found)) == (1, differing)
        missing, wrong = map(pending.key, calls[:2])
        assert found[missing]["live"] is None
        assert found[missing]["log"][0]["arguments"] == WISH.arguments
        assert "A-18" in found[wrong]["live"]["arguments"]
        assert found["acme.nobody.c"]["log"] == [None]
        code, out, _ = await project("pending", diff=True, json=False)
        assert code == 1
        assert all(f"pending entry {key}: live is " in out for key in differing)

        seen = []
        watching = asyncio.create_task(_watched(admin, seen, since=await _revisions(admin)))
        code, out, err = await project("pending", swap=True)
        assert code == 0
        assert "swapped: the live queue is what the log gives; 5 entries were not" in err
        await until(lambda: len(seen) >= len(differing))
        await asyncio.sleep(0.1)
        watching.cancel()
        assert set(seen) == differing
        assert len(seen) == len(differing)
        assert (await project("pending", diff=True))[:2] == (0, "")
        # What is right is not written again.
        before = await everything(admin)
        assert (await project("pending", swap=True))[0] == 0
        assert await everything(admin) == before
    assert set(await admin.log.pending.entries()) == set(map(pending.key, calls))


async def _revisions(admin):
    return (await everything(admin))["KV_pending"][1]


async def _watched(admin, seen, since):
    batches = admin.log.messages("KV_pending", ("$KV.pending.>",), since + 1, until_end=False)
    async for one in (one async for batch in batches for one in batch):
        assert one.seq > since
        seen.append(one.subject.removeprefix("$KV.pending."))


async def test_it_is_put_right_without_its_worker(admin, project, monkeypatch):
    """Nobody keeps the queue: then there is nothing to compare, but it can be made."""
    monkeypatch.setattr(verify, "_CATCH_UP_S", 0.2)
    call = await asked(admin, 1)
    with pytest.raises(Unavailable, match="the queue's worker is 1 facts behind"):
        await project("pending", diff=True)
    assert (await project("pending", swap=True))[0] == 0
    entry = pending.entry(await admin.call(call))
    assert await admin.log.pending.entries() == {pending.key(call): pending.encode(entry)}


async def test_it_is_put_right_while_people_decide(store, admin, project):
    """Questions come and are decided all the time, the queue is broken again and again; in the end
    it is what the log gives, and no entry of a decided call is left (B77, I13).
    """
    bucket = admin.log.pending
    done = False

    async def deciding():
        for number in range(30):
            ref = await asked(admin, number)
            await tell(
                admin, [(ref.vote("ana"), e.Voted(verdict="approve", digest=request(WISH).digest))]
            )
            if number % 3:
                await tell(admin, [(ref.decided, approval(WISH))])

    async def breaking():
        while not done:
            for key in list(await bucket.entries())[:3]:
                value, revision = await bucket.get(key)
                if value:
                    await bucket.delete(key, revision)
            await asyncio.sleep(0.02)

    async with queue_at_work(store):
        working = [asyncio.create_task(deciding()), asyncio.create_task(breaking())]
        while not working[0].done():
            with suppress(Unavailable):  # it keeps changing
                assert (await project("pending", swap=True))[0] == 0
        done = True
        await asyncio.gather(*working)
        assert (await project("pending", swap=True))[0] == 0
        assert (await rebuild(admin, verify=True)).differences == ()
        assert (await project("pending", diff=True))[:2] == (0, "")
        assert len(await bucket.entries()) == 10


async def test_a_decision_while_an_entry_is_put_leaves_none(store, admin, monkeypatch):
    """The decision comes between our reading and our writing: the entry goes again (B77)."""
    call = await asked(admin, 1)
    bucket = admin.log.pending
    put = type(bucket).put
    puts = []

    async def late(self, key, value, replaces):
        if not puts:
            await tell(admin, [(call.decided, approval(WISH))])
        puts.append(key)
        return await put(self, key, value, replaces)

    monkeypatch.setattr(type(bucket), "put", late)
    await replaying._put_right(admin, pending.key(call))
    assert puts == [pending.key(call)]
    assert await bucket.entries() == {}


async def test_a_vote_meanwhile_hides_no_difference(store, admin):
    """Only what shows in the queue can make two rows right at once."""
    call = await asked(admin, 1)
    folding = ProjectionState(pending.OPEN_APPROVALS)
    await replay.replay(admin, folding)
    await tell(admin, [(call.vote("ana"), e.Voted(verdict="approve", digest=request(WISH).digest))])
    (difference,) = await verify.queue_differences(admin, folding)
    assert (difference.key, difference.live) == (pending.key(call), b"")


async def test_the_past_is_compared_with_the_present(store, admin, project):
    """With --until the queue as it was then is held against the live one."""
    async with queue_at_work(store):
        calls = [await asked(admin, number) for number in range(2)]
        await in_queue(admin, calls)
        code, out, _ = await project("pending", until="2", diff=True)
        (one,) = map(json.loads, out.splitlines())
        assert (code, one["key"], one["log"]) == (1, pending.key(calls[1]), [None])


async def test_a_message_called_gated_is_no_question(store, admin):
    """Ids are anybody's choice; only questions and decisions are waited for (B24)."""
    async with queue_at_work(store):
        call = await asked(admin, 1)
        await tell(
            admin,
            [
                (REF.opened, e.ThreadOpened(requester="rita")),
                (REF.said("gated"), e.Said(role="user", text="hello")),
                (call.vote("decided"), e.Voted(verdict="deny", digest="d")),
            ],
        )
        assert (await rebuild(admin, verify=True)).differences == ()


async def test_what_ends_twice_is_counted_once(store, admin, monkeypatch):
    """A call let go that got a late result is one call; what is wrong is wrong once."""
    for name in ("CALLS", "HISTORIES", "OPEN_APPROVALS"):
        monkeypatch.setattr(
            verify, name, msgspec.structs.replace(getattr(verify, name), keep_complete=0)
        )
    monkeypatch.setattr(replay, "_BATCH", 1)
    call = REF.call("c1")
    await tell(admin, life(call, WISH, "returned"))
    await tell(admin, [(call.late(number), e.ToolReturned(output="late")) for number in (1, 2)])
    wrong = REF.call("c2")
    *begun, start, end = life(wrong, WISH, "returned")
    await tell(admin, [*begun, start, (wrong.claim(2), start[1]), end])
    await tell(admin, [(wrong.late(1), e.ToolReturned(output="late"))])
    async with queue_at_work(store):
        found = await rebuild(admin, verify=True)
    assert found.calls == {"returned": 2}
    (difference,) = found.differences
    assert "c2 was started 2 times and is not repeatable" in difference


# --------------------------------------------------------------------------------------------- gaps


async def reconfigured(admin, **changes):
    """An administrator changes the log's stream, with a client of their own."""
    client = admin.log.connection.client
    config = json.loads(
        (await client.request(f"$JS.API.STREAM.INFO.{LEDGER}", b"", timeout=60)).data
    )["config"]
    body = msgspec.json.encode(config | changes)
    answer = json.loads(
        (await client.request(f"$JS.API.STREAM.UPDATE.{LEDGER}", body, timeout=60)).data
    )
    assert "error" not in answer, answer


async def taken_out(admin, slot):
    """No server lets deletes be allowed again, but an administrator can refill a slot."""
    await reconfigured(admin, discard="old", discard_new_per_subject=False)
    raw = msgspec.json.encode(e.Said(role="user", text="another"))
    answer = await admin.log.connection.client.request(slot.subject, raw, timeout=60)
    assert "error" not in json.loads(answer.data)


async def told_in(admin, count):
    """A conversation in which so much was said."""
    await tell(admin, [(REF.opened, e.ThreadOpened(requester="rita"))])
    await tell(
        admin, [(REF.said(f"m{one}"), e.Said(role="user", text=f"{one}")) for one in range(count)]
    )


async def test_facts_that_are_missing_are_named_and_passed_over(store, admin, project):
    """In the midst of the log: `--verify` names them; a projection goes on (I6, I13)."""
    await told_in(admin, 6)
    await project("pending")
    for number in (2, 3):
        await taken_out(admin, REF.said(f"m{number}"))
    async with queue_at_work(store):
        call = await asked(admin, 1)
        await in_queue(admin, [call])
        found = await rebuild(admin, verify=True)
        assert found.differences == ("fact 4: the log does not have it, nor any before fact 6",)
        assert found.facts == found.until - 2
        code, out, err = await project("histories")
        assert "the log does not have facts 4 to 5; see `ayes doctor`" in err
        entries = json.loads(rows(out)["acme.t1"])["entries"]
        assert [one["text"] for one in entries] == ["0", "1", "4", "5", "another", "another"]
        code, out, err = await project("pending")
        assert (code, list(rows(out))) == (0, [pending.key(call)])
        assert "the log does not have facts 4 to 5" in err
        assert "as of fact 11, 9 facts read" in err


@pytest.mark.parametrize("until", [None, "5", "2"])
async def test_a_log_without_its_beginning_is_not_whole(admin, project, until):
    """Nothing is let go here, so what is missing at the beginning is missing, too."""
    await told_in(admin, 6)
    await reconfigured(admin, discard="old", discard_new_per_subject=False, max_msgs=4)
    found = await rebuild(admin, until=replay.until(until))
    end = 4 if until != "2" else 3
    assert found.differences == (f"fact 1: the log does not have it, nor any before fact {end}",)
    _, _, err = await project("histories", until=until)
    assert f"the log does not have facts 1 to {end - 1}" in err


async def test_a_log_without_its_end_is_not_whole(admin):
    """The broker knows how many facts there were, also with none behind the missing."""
    await told_in(admin, 3)
    await reconfigured(admin, max_age=100_000_000, duplicate_window=100_000_000)
    while (await everything(admin))[LEDGER][0]:  # noqa: ASYNC110 - nobody tells when facts go
        await asyncio.sleep(0.05)
    assert (await rebuild(admin)).differences == (
        "fact 1: the log does not have it, nor any before fact 5",
    )


# ------------------------------------------------------------------------------------ wrong options

WRONG = [
    (["--into", "x"], "--into, --diff and --swap are for one projection"),
    (["--diff"], "--into, --diff and --swap are for one projection"),
    (["--swap"], "--into, --diff and --swap are for one projection"),
    (["--verify", "--projection", "pending"], "--verify is for every projection"),
    (["--projection", "votes"],
     "there is no projection 'votes'. Known are: pending, histories, calls."),
    (["--projection", "calls", "--diff"], "there is no live copy of calls to compare with"),
    (["--projection", "histories", "--swap"], "there is no live copy of histories to compare with"),
    (["--projection", "pending", "--swap", "--until", "3"],
     "would replace the present by the past"),
    (["--projection", "pending", "--into", "pending"], "'pending' is the live queue itself"),
    (["--projection", "calls", "--into", "pending"], "'pending' is the live queue itself"),
    (["--projection", "pending", "--into", "a.b"], "bucket 'a.b' cannot be used"),
    (["--projection", "pending", "--until", "soon"],
     "--until 'soon' is neither a sequence number nor"),
    (["--projection", "pending", "--until", "-1"], "--until '-1' is neither a sequence number nor"),
    (["--until", ""], "--until '' is neither a sequence number nor"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"), WRONG, ids=[" ".join(options) for options, _ in WRONG]
)
def test_wrong_options_are_said(tmp_path, within, options, said):
    """In a sentence, with exit code 2, before anything is asked of a broker: here there is none."""
    ended = within("replay", *options, "--store", tmp_path / "none")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


async def test_the_real_program_does_it(store, admin):
    """As people start it: rows to stdout, words to stderr."""
    facts = await recorded(admin, 40)

    def run(*options):
        return asyncio.to_thread(approvals, "replay", *options, store=store)

    done = await run("--projection", "calls")
    assert (done.code, values(rows(done.out))) == (0, plain(rebuilt(facts)["calls"]))
    assert "calls: " in done.err
    done = await run("--projection", "pending", "--into", "next", "--json")
    assert (done.code, done.one["bucket"]) == (0, "next")
    done = await run("--until", "1", "--json")
    assert done.one["facts"] == 1
