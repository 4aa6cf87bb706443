"""`ayes doctor` and `ayes status`: quiet where all is as declared, loud where it is not, and
without a trace.
"""

import asyncio
import json

import msgspec
import pytest
from msgspec.structs import replace
from patient import give_up_reading
from stories import CALL, WISH, question, request, told

from ayes.interfaces.cli import check
from ayes.interfaces.cli.command import Session
from ayes.ledger import clock
from ayes.ledger.log import Parked
from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.streams import DURABLES, LEDGER, PARKED, PENDING, Use
from ayes.ops.inspection import checks, progress
from ayes.ops.inspection.checks import (
    ALARMS,
    CHECKS,
    DOCTOR,
    GUARD,
    MUST_NOT,
    READY,
    Look,
    cannot,
    examined,
)
from ayes.ops.workers import reactions, working

ALWAYS = {
    name for name, durable in DURABLES.items() if not durable.optional and durable.stream != PARKED
}


@pytest.fixture
def doctor(store, capsys):
    """What the doctor finds, by check; and the exit code."""

    async def examined(url=None):
        code = await check.doctor(session=Session(None if url else store, url, json=True))
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return code, {one["check"]: one for one in found}

    return examined


@pytest.fixture
def status(store, capsys):
    async def seen():
        code = await check.status(session=Session(store, json=True))
        told = json.loads(capsys.readouterr().out)
        assert code == (1 if told["alarms"] else 0)
        told["consumers"] = {one["name"]: one for one in told["consumers"]}
        return told

    return seen


async def api(admin, subject, **body):
    """A request to JetStream, as an administrator with a client of their own makes it."""
    answer = await admin.log.connection.client.request(
        f"$JS.API.{subject}", msgspec.json.encode(body), timeout=60
    )
    told = json.loads(answer.data)
    assert "error" not in told, told
    return told


async def configured(admin, stream, **changes):
    """Change a stream behind our back."""
    config = (await api(admin, f"STREAM.INFO.{stream}"))["config"]
    await api(admin, f"STREAM.UPDATE.{stream}", **config | changes)


def bad(found):
    return {name for name, one in found.items() if not one["ok"]}


async def parked_one(admin, seq=7):
    parked = Parked("gate", seq, CALL.requested.subject, "ValueError: no idea", 5, admin.now())
    await admin.log.park(parked)
    return parked


# ------------------------------------------------------------------------------------------- doctor


def test_each_check_is_shown_somewhere():
    """A selection names checks of the list, and each of them is in one."""
    assert {*DOCTOR, *ALARMS, *READY, *GUARD} == set(CHECKS)


def test_what_cannot_be_read_is_said_once():
    """Streams that are not as declared are the alarm; otherwise the policies are."""
    unread = Look(void_facts=None, unread={"void_facts": "no answer"})
    [alone] = examined(unread, ["policies and tools"])
    assert (alone.ok, alone.detail) == (False, "policies and tools cannot be read: no answer")
    [beside] = examined(replace(unread, drift=["a stream"]), ["policies and tools"])
    assert (beside.ok, beside.detail) == (True, "cannot be read, see above")


def test_what_is_well_is_said_in_few_words(capsys):
    """Whether gate and queue are at work, or nothing waits for them; and how full streams are."""
    used = (
        Use("LEDGER", "bytes", 30_000_000, 1_000_000_000),
        Use("LEDGER", "consumers", 3, 1000),
        Use("TIMERS", "consumers", 50, 1000),
    )
    gate = progress.ConsumerStatus("gate", listening=True)
    queue = progress.ConsumerStatus("queue", listening=True)
    look = Look(room=used, consumers=(gate, queue))
    workers, room = examined(look, ["workers", "room"])
    assert (workers.ok, workers.detail) == (True, "gate and queue are at work")
    assert room.detail == "5% at most: TIMERS holds 50 of 1,000 consumers"
    assert room.uses == used
    check._print_uses(room.uses)
    assert capsys.readouterr().out.splitlines() == [
        "        LEDGER       30.0 MB of 1.0 GB, 3 of 1,000 consumers",
        "        TIMERS       50 of 1,000 consumers",
    ]
    [workers] = examined(replace(look, consumers=(gate,)), ["workers"])
    assert (workers.ok, workers.detail) == (
        True,
        "nothing waits for queue, and none is at work",
    )
    [workers] = examined(replace(look, consumers=(progress.ConsumerStatus("gate"),)), ["workers"])
    assert workers.detail.startswith("none has ever received anything here, and nothing waits.")


def test_many_subjects_are_no_fault_and_are_said_in_time():
    few, many = (examined(Look(subjects=count), ["subjects"])[0] for count in (799_999, 800_000))
    assert few.detail == "799,999 subjects with a fact, each in the broker's memory"
    assert few.ok
    assert many.ok
    assert "With more than 1,000,000 a broker that was killed reads the whole log" in many.detail
    assert "a ledger for each group of workspaces (docs/capacity.md)" in many.detail


async def test_the_subjects_of_the_log_are_counted(store, admin, doctor, monkeypatch):
    """One for each fact; of an empty log the broker says nothing of them."""
    _, found = await doctor()
    assert found["subjects"]["detail"].startswith("0 subjects")
    for one in (CALL, CALL.thread_ref.call("another")):
        await admin.append(one.requested, request(WISH))
    monkeypatch.setattr(checks, "INDEXED", 2)
    _, found = await doctor()
    assert found["subjects"]["detail"].startswith("2 subjects")
    assert "With more than 2 a broker" in found["subjects"]["detail"]


async def test_a_fresh_store_is_well(store, doctor):
    """All is as declared, no role may write what it must not; the passwords are private (0)."""
    code, found = await doctor()
    assert (code, bad(found)) == (0, set())
    assert {"server", "streams and consumers", "parked", "clock", "store is private"} <= set(found)
    assert found["server"]["detail"].startswith("nats-server 2.")
    assert {name for name in found if "cannot write" in name} == {
        f"{role} cannot write {'.'.join(subject.split('.')[3:])}" for role, subject in MUST_NOT
    }


async def test_looking_leaves_no_trace(store, admin, doctor, status):
    """Each forbidden write is really tried; nothing is recorded, in any stream."""
    before = await _everything(admin)
    await doctor()
    await status()
    assert await _everything(admin) == before


async def _everything(admin):
    streams = (await api(admin, "STREAM.LIST"))["streams"]
    return {
        one["config"]["name"]: (one["state"]["messages"], one["state"]["last_seq"])
        for one in streams
    }


async def test_a_role_that_may_too_much_is_reported_and_nothing_recorded(store, admin):
    """Where a forbidden write is let through, it is told; its header keeps it out of the log."""
    before = await _everything(admin)
    told = await cannot("admin", "ledger.doctor.t.call.1-0.decided", Store(store))
    assert not told.ok
    assert told.detail.startswith("the broker allows it: ")
    assert await _everything(admin) == before


#: Facts may age, slots be refilled, facts be dropped, nobody can read, the queue may age.
LOOSENED = (
    (LEDGER, {"max_age": 3_600_000_000_000},
     "stream LEDGER: max_age is 3600000000000, declared is 0"),
    (LEDGER, {"discard_new_per_subject": False},
     "stream LEDGER: discard_new_per_subject is None"),
    (LEDGER, {"max_msgs": 1000}, "stream LEDGER: max_msgs is 1000, declared is -1"),
    (LEDGER, {"allow_direct": False}, "stream LEDGER: allow_direct is False, declared is True"),
    (PENDING, {"max_age": 600_000_000_000}, "stream KV_pending: max_age is 600000000000"),
)  # fmt: skip


async def test_a_loosened_stream_is_an_alarm(store, admin, doctor, monkeypatch):
    """Then the doctor names the stream, the key and both values (1)."""
    give_up_reading(monkeypatch)  # a stream without direct reads answers none
    for stream, change, _ in LOOSENED:
        await configured(admin, stream, **change)
    code, found = await doctor()
    assert (code, bad(found)) == (1, {"streams and consumers"})
    for _, _, said in LOOSENED:
        assert said in found["streams and consumers"]["detail"]


async def test_a_missing_consumer_is_an_alarm(store, admin, doctor, status):
    """Nobody would judge what is asked: the consumer is named, and what creates it."""
    await api(admin, f"CONSUMER.DELETE.{LEDGER}.gate")
    code, found = await doctor()
    assert (code, bad(found)) == (1, {"streams and consumers", "workers"})
    assert (
        "consumer gate is missing; `ayes up` or `ayes setup` creates it"
        in (found["streams and consumers"]["detail"])
    )
    seen = await status()
    missing = seen["consumers"]["gate"]
    assert (missing["exists"], seen["consumers"]["queue"]["exists"]) == (False, True)
    # Nor is it frozen, which is another alarm.
    assert (missing["listening"], missing["frozen"], missing["quiet_s"]) == (False, False, 0.0)
    assert (missing["needed"], len(seen["alarms"])) == (True, 1)


async def test_status_says_by_its_exit_code_that_it_alarms(store, admin, capsys):
    """0 while all is well, 1 with an alarm, for people as for programs."""
    for code in (0, 1):
        for json_too in (False, True):
            assert await check.status(session=Session(store, json=json_too)) == code
        if not code:
            await api(admin, f"CONSUMER.DELETE.{LEDGER}.queue")
    assert "ALARM consumer queue is missing" in capsys.readouterr().out


async def test_a_consumer_that_was_used_is_missed_too(store, admin, doctor, status):
    """An executor's, a notifier's: not every ledger has them, but this one had."""
    for name in ("executor", "notifier"):
        await api(admin, f"CONSUMER.DELETE.{LEDGER}.{name}")
    code, found = await doctor()
    assert (code, bad(found)) == (1, {"streams and consumers"})
    seen = await status()
    for name in ("executor", "notifier"):
        missing = f"consumer {name} is missing; `ayes up` or `ayes setup` creates it"
        assert missing in found["streams and consumers"]["detail"]
        assert missing in seen["alarms"]
        assert seen["consumers"][name]["exists"] is False


async def test_a_rewritten_consumer_is_an_alarm(store, admin, doctor):
    """One that skips votes would never decide: its filter differs from what is declared."""
    config = (await api(admin, f"CONSUMER.INFO.{LEDGER}.gate"))["config"]
    config["filter_subjects"] = [one for one in config["filter_subjects"] if "vote" not in one]
    await api(
        admin, f"CONSUMER.CREATE.{LEDGER}.gate", stream_name=LEDGER, config=config, action="update"
    )
    code, found = await doctor()
    assert (code, bad(found)) == (1, {"streams and consumers"})
    assert "consumer gate: filter_subjects is " in found["streams and consumers"]["detail"]


async def test_what_is_stopped_is_said_and_is_no_alarm(store, admin, doctor, status):
    """Whoever wonders why nothing starts reads by whom it was stopped, and why (D1)."""
    await admin.reviewer("ana").stop("shop/ana/s1", reason="A wrong account.")
    _, found = await doctor()
    assert bad(found) == {"workers"}  # no gate runs, which would look at it
    assert found["stops"]["detail"].startswith("stopped in workspace shop by ana at")
    told = await status()
    assert told["stopped"] == [found["stops"]["detail"]]
    assert told["alarms"] == []


async def test_what_is_parked_is_an_alarm(store, admin, doctor, status):
    """What no consumer could handle: counted by the doctor, told with its reason by status."""
    parked = await parked_one(admin)
    code, found = await doctor()
    assert (code, bad(found)) == (1, {"parked"})
    assert found["parked"]["detail"].startswith("1 ")
    (told,) = (await status())["parked"]
    assert (told["consumer"], told["seq"], told["reason"]) == ("gate", 7, parked.reason)


async def test_passwords_that_others_may_read_are_an_alarm(store, doctor):
    """The store holds every role's password."""
    (store / "address.json").chmod(0o644)
    code, found = await doctor()
    assert (code, bad(found)) == (1, {"store is private"})
    assert found["store is private"]["detail"] == "others may read address.json"


async def test_with_a_url_there_is_one_login_to_look_with(store, admin, doctor):
    """An administrator's URL does for the streams; the permissions are said to be untried."""
    login = admin.log.connection.login
    code, found = await doctor(
        login.url.replace("//", f"//{login.user}:{login.password or login.seed}@")
    )
    assert (code, bad(found)) == (0, set())
    assert "not tried" in found["permissions"]["detail"]


async def test_people_read_the_same(store, admin, capsys):
    """Without --json: a line each, BAD in front of what is, and what is parked by name."""
    await parked_one(admin)
    assert await check.doctor(session=Session(store)) == 1
    told = capsys.readouterr()
    assert told.err == ""
    lines = told.out.splitlines()
    assert [line for line in lines if line.startswith("BAD")] == [
        line for line in lines if "parked" in line
    ]
    # Below the room, how full each stream is.
    assert all(line.startswith(("ok    ", "BAD   ", "      ")) for line in lines)
    await check.status(session=Session(store))
    told = capsys.readouterr()
    assert told.err == ""
    assert f"parked by gate: fact 7 ({CALL.requested.subject}), ValueError: no idea" in told.out


async def test_a_long_list_of_parked_deliveries_hides_nothing_else(store, admin, capsys):
    """The first five are shown, and where the others are; --json has all."""
    for seq in range(1, 8):
        await parked_one(admin, seq)
    await check.status(session=Session(store))
    parked = [one for one in capsys.readouterr().out.splitlines() if one.startswith("parked")]
    assert [one.split(" (")[0] for one in parked] == [
        *(f"parked by gate: fact {seq}" for seq in range(1, 6)),
        "parked: and 2 more",
    ]
    await check.status(session=Session(store, json=True))
    assert len(json.loads(capsys.readouterr().out)["parked"]) == 7


# ------------------------------------------------------------------------------------------- status


async def test_status_tells_who_is_behind(store, admin, status):
    """Two facts wait for a queue that does not run; once it runs, the entry is there."""
    await admin.try_append(CALL.requested, request(WISH))
    await admin.try_append(CALL.gated, question(WISH))
    seen = await status()
    assert (seen["facts"], seen["last_seq"], seen["pending"]) == (2, 2, 0)
    assert set(seen["consumers"]) >= ALWAYS
    assert {name: one["waiting"] for name, one in seen["consumers"].items() if one["waiting"]} == {
        "gate": 1,
        "queue": 1,
    }
    async with working(reactions(["queue"]), store=store):
        async for _ in told(admin.log.pending):
            break
        seen = await _until_acked(status, "queue")
    assert seen["pending"] == 1
    assert (seen["consumers"]["queue"]["waiting"], seen["consumers"]["queue"]["in_hand"]) == (0, 0)
    assert seen["consumers"]["gate"]["waiting"] == 1


async def _until_acked(status, consumer):
    """Nobody is told of an acknowledgement, so one can only wait on the number itself."""
    while (seen := await status())["consumers"][consumer]["ack_floor"] < seen["last_seq"]:  # noqa: ASYNC110 - as it says
        await asyncio.sleep(0.01)
    return seen


async def test_an_untouched_store_stands_still(status):
    """No last fact, nothing is frozen, and unused consumers are not listed (D17)."""
    seen = await status()
    assert set(seen["consumers"]) == ALWAYS
    assert seen["head_age_s"] is None
    for one in seen["consumers"].values():
        assert (one["exists"], one["listening"], one["waiting"], one["frozen"]) == (
            True,
            False,
            0,
            False,
        )


async def test_status_tells_how_old_the_last_fact_is(admin, status):
    """A log that stands still lags nowhere, so its age is told, on the broker's clock."""
    await admin.try_append(CALL.requested, request(WISH))
    await asyncio.sleep(0.3)
    assert (await status())["head_age_s"] >= 0.3
    before = clock.now()
    await admin.try_append(CALL.gated, question(WISH))
    age_s = (await status())["head_age_s"]
    assert age_s <= (clock.now() - before).total_seconds()


async def test_status_tells_who_listens(store, admin, status):
    """As long as its worker runs; the others' consumers have nobody."""
    async with working(reactions(["queue"]), store=store):
        await admin.try_append(CALL.requested, request(WISH))
        await admin.try_append(CALL.gated, question(WISH))
        await _until_acked(status, "queue")
        seen = await status()
        assert {name for name, one in seen["consumers"].items() if one["listening"]} == {"queue"}
        assert seen["consumers"]["queue"]["quiet_s"] < 60
    assert not (await status())["consumers"]["queue"]["listening"]


async def test_what_nobody_takes_is_frozen(store, admin, status, capsys, monkeypatch):
    """Facts wait longer than a worker may be silent; once somebody takes one, it is over."""
    monkeypatch.setattr(progress, "STALLED_S", 60.0)
    await admin.try_append(CALL.requested, request(WISH))
    await admin.try_append(CALL.gated, question(WISH))
    before = (await status())["consumers"]
    assert {name for name, one in before.items() if one["frozen"]} == set()
    monkeypatch.setattr(progress, "STALLED_S", 0.2)
    await asyncio.sleep(0.3)
    seen = (await status())["consumers"]
    assert {name for name, one in seen.items() if one["frozen"]} == {
        name for name, one in seen.items() if one["waiting"]
    }
    assert seen["queue"]["quiet_s"] > 0.2
    await check.status(session=Session(store))
    assert capsys.readouterr().out.count("nobody listens") == 2
    async with working(reactions(["queue"]), store=store):
        seen = await _until_acked(status, "queue")
    assert not seen["consumers"]["queue"]["frozen"]
    assert seen["consumers"]["gate"]["frozen"]


async def test_work_that_nobody_listens_for_is_bad(store, admin, doctor):
    """Without a gate a request waits for ever, so the doctor says so, and how to start one."""
    await admin.try_append(CALL.requested, request(WISH))
    code, found = await doctor()
    assert (code, bad(found)) == (1, {"workers"})
    assert (
        "gate: 1 waits and nobody listens; start it with `ayes work gate`"
        in found["workers"]["detail"]
    )
