"""`ayes replay --verify`: clean where all is well, and it really finds what is not.

A check that cannot fail says nothing. So each thing that it looks for is done here, by an
administrator who may do anything, behind the back of the ledger.
"""

import asyncio
import json
import logging
from collections import Counter
from datetime import UTC, timedelta

import pytest
from msgspec import structs
from paths import AIRLINE as POLICY
from paths import SMALL
from stories import CALL, REF, SETTLED, UNSETTLED, WISH, approval, life, question, request
from until import until
from workers import at_work, tell

from ayes.interfaces.cli import replay as replaying
from ayes.interfaces.cli.command import Session
from ayes.ledger.clients.services import Ledger
from ayes.ops.audit import verify
from ayes.ops.audit.verify import rebuild
from ayes.ops.broker.setup import apply_policy
from ayes.ops.workers import KINDS
from ayes.schemas import events as e
from ayes.schemas.errors import Unavailable
from ayes.schemas.slots import ThreadRef
from ayes.schemas.tools import ToolSpec
from bench.rehearsal.rehearse import read_recordings, rehearse, review
from bench.rehearsal.scripted_reviewer import Script

OTHER_DIGEST = "0" * 64


@pytest.fixture
def replay(store, capsys, monkeypatch):
    """What `ayes replay` ends with, and what it writes to stdout; to stderr it writes nothing."""
    # Workers here report void facts, perhaps to a stream that an earlier test has closed.
    monkeypatch.setattr(logging, "raiseExceptions", False)

    async def replayed(*, verify=False, until=None, json=False):
        code = await replaying.verified(Session(store, json=json), verify=verify, until=until)
        told = capsys.readouterr()
        assert told.err == ""
        return code, told.out

    return replayed


async def rehearsed(store, admin, workspace="rehearsal", otherwise="approve"):
    """The small file through the real thing, all workers in this process."""
    recorded = read_recordings(str(SMALL))
    await apply_policy(admin, workspace, POLICY.read_text(), str(POLICY))
    async with at_work(
        store, *KINDS, recordings={name: one for name, (_, one) in recorded.items()}
    ):
        voting = asyncio.create_task(review(admin, workspace, Script(otherwise=otherwise)))
        try:
            return await rehearse(admin, workspace, recorded)
        finally:
            voting.cancel()
            await asyncio.gather(voting, return_exceptions=True)


# -------------------------------------------------------------------------------------- all is well


async def test_a_rehearsal_is_borne_out(store, admin):
    """Everything is counted, every history is as its model had it, nothing differs (I11)."""
    summary = await rehearsed(store, admin)
    rebuilt = await rebuild(admin, verify=True)
    assert rebuilt.differences == ()
    assert rebuilt.facts == rebuilt.until == await admin.log.last_seq()
    assert (rebuilt.threads, rebuilt.pending) == (summary.conversations, 0)
    assert rebuilt.calls == {"refused": 1, "returned": 6}
    assert rebuilt.histories == sum(one.turns for _, one in read_recordings(str(SMALL)).values())
    again = await rebuild(admin, verify=True)
    assert {**as_dict(again), "seconds": 0} == {**as_dict(rebuilt), "seconds": 0}


async def test_no_honest_story_is_accused(store, admin):
    """However a call ends, or waits: queue and promises agree with the log."""
    async with at_work(store, "queue"):
        for number, ending in enumerate(sorted({*SETTLED, *UNSETTLED} - {"edited"})):
            last = await tell(admin, life(REF.call(f"c{number}"), WISH, ending))
        rebuilt = await rebuild(admin, verify=True)
    assert (rebuilt.until, rebuilt.differences) == (last, ())


async def test_what_waits_is_compared_too(store, admin):
    """An open question stands in the live queue, byte for byte as the log gives it."""
    async with at_work(store, "queue"):
        await tell(admin, [(CALL.requested, request(WISH)), (CALL.gated, question(WISH, 3600.0))])
        rebuilt = await rebuild(admin, verify=True)
        assert (rebuilt.pending, rebuilt.calls, rebuilt.differences) == (1, {"pending": 1}, ())
        assert await admin.log.pending.entries()


async def test_replay_stops_where_it_is_told_to(store, admin):
    """At a sequence number, or at a time: the same facts, whichever names the place."""
    await rehearsed(store, admin)
    facts = [fact async for fact in admin.replay()]
    for index in (0, len(facts) // 2, len(facts) - 1):
        there = facts[index]
        by_number = await rebuild(admin, until=there.seq, verify=True)
        assert (by_number.facts, by_number.until) == (index + 1, there.seq)
        assert by_number.differences == ()
        by_time = await rebuild(admin, until=there.recorded_at, verify=True)
        assert {**as_dict(by_time), "seconds": 0} == {**as_dict(by_number), "seconds": 0}
    nothing = await rebuild(admin, until=facts[0].recorded_at - timedelta(seconds=1), verify=True)
    assert (nothing.facts, nothing.until, nothing.calls, nothing.differences) == (0, 0, {}, ())


async def test_facts_may_come_while_it_looks(store, admin):
    """The queue moves all the time, and no difference is reported that is none (I13)."""
    async with Ledger.connect(store, role="operator") as operator:
        rehearsing = asyncio.create_task(_rehearse_often(store, admin))
        found = []
        while not rehearsing.done():
            found.append(await rebuild(operator, verify=True))
        await rehearsing
    assert [one.differences for one in found if one.differences] == []
    assert len({one.until for one in found}) > 1


async def _rehearse_often(store, admin):
    for verdict in ("approve", "deny"):
        await rehearsed(store, admin, f"rehearsal-{verdict}", verdict)


# -------------------------------------------------------------------------------- what can be wrong


STARTED = e.ToolStarted(digest=request(WISH).digest, idempotency_key=str(CALL))
ELSEWHERE = e.ToolStarted(digest=OTHER_DIGEST, idempotency_key=str(CALL))
ASKED = ((CALL.requested, request(WISH)), (CALL.gated, question(WISH)))
APPROVED = (CALL.decided, approval(WISH))
FOR_OTHER_BYTES = e.Approved(
    digest=OTHER_DIGEST, ground="people", rule="money", policy_version=1, voters=("ana",)
)
DENIED = e.Denied(ground="people", rule="money", policy_version=1, voters=("ana",))
RETURNED = (CALL.finished, e.ToolReturned(output="done"))

BROKEN = {
    # the facts in their order; the number of the one that is named; what is said about it
    "approved for other bytes": (
        [*ASKED, (CALL.decided, FOR_OTHER_BYTES), (CALL.claim(1), ELSEWHERE)],
        3,
        "is for other bytes than it holds",
    ),
    "started twice": (
        [*ASKED, APPROVED, (CALL.claim(1), STARTED), (CALL.claim(2), STARTED), RETURNED],
        5,
        "was started 2 times and is not repeatable",
    ),
}


@pytest.mark.parametrize(("facts", "number", "said"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_promise_is_found(store, admin, facts, number, said):
    """What should never be recorded and is: the fact, and what is wrong (I1, B61)."""
    async with at_work(store, "queue"):
        await tell(admin, facts)
        rebuilt = await rebuild(admin, verify=True)
    (difference,) = rebuilt.differences
    assert difference.startswith(f"fact {number}: ")
    assert str(CALL) in difference
    assert said in difference


VOID = {
    # the facts in their order; the status; the number of the one that is void; why
    "started, asked about, not decided": (
        [*ASKED, (CALL.claim(1), STARTED)], "pending", 3, "not decided before it",
    ),
    "started and then approved": (
        [*ASKED, (CALL.claim(1), STARTED), APPROVED], "approved", 3, "not decided before it",
    ),
    "denied and started": (
        [*ASKED, (CALL.decided, DENIED), (CALL.claim(1), STARTED)], "denied", 4,
        "not approved, but denied",
    ),
    "started, never requested": (
        [(CALL.claim(1), STARTED)], "unknown", 1, "not requested before it",
    ),
    "started with other bytes": (
        [*ASKED, APPROVED, (CALL.claim(1), ELSEWHERE)], "approved", 4,
        "other bytes than were approved",
    ),
    "started and refused": (
        [
            *ASKED,
            APPROVED,
            (CALL.claim(1), STARTED),
            (CALL.finished, e.ToolRefused(ending="revoked", text="No.")),
        ],
        "running", 5, "the call was started before it",
    ),
    "a result from nowhere": ([*ASKED, APPROVED, RETURNED], "approved", 4, ("attempt 1 was not "
                                                                           "started")),
    "a result in spite of a no": (
        [*ASKED, (CALL.decided, DENIED), RETURNED], "denied", 4, "attempt 1 was not started",
    ),
}  # fmt: skip


async def test_what_is_void_is_listed_and_is_no_difference(store, admin, replay):
    """What rests on nothing is named with its writer and why; the log is verified (R4)."""
    named = []
    async with at_work(store, "queue"):
        for case, (facts, status, number, _) in enumerate(VOID.values()):
            there = ThreadRef(REF.workspace, f"t{case}")
            own = [(structs.replace(slot, thread=there.thread), event) for slot, event in facts]
            last = await tell(admin, own)
            named.append((last - len(facts) + number, own[number - 1][0].subject))
            assert (await admin.call(there.call("c1"))).status == status
        rebuilt = await rebuild(admin, verify=True)
        assert rebuilt.calls == Counter(status for _, status, *_ in VOID.values())
        assert rebuilt.differences == ()
        assert [(void.seq, void.subject) for void in rebuilt.void] == named
        for void, (facts, _, number, why) in zip(rebuilt.void, VOID.values(), strict=True):
            assert type(facts[number - 1][1]).__name__ in void.what
            assert why in void.why
        code, told = await replay(verify=True)
        assert code == 0
        assert all(f"{void}\n" in told for void in rebuilt.void)
        assert "verified: " in told
        code, told = await replay(json=True)
        assert [one["seq"] for one in json.loads(told)["void"]] == [seq for seq, _ in named]
        assert code == 0


async def test_a_repeatable_tool_may_start_again(store, admin):
    """Declared so, a second start breaks no promise (I7)."""
    ref = await admin.declare(
        REF.workspace, ToolSpec(name="refund", schema='{"type":"object"}', repeatable=True)
    )
    wish = request(WISH, ref.version)
    started = e.ToolStarted(digest=wish.digest, idempotency_key=str(CALL))
    approved = e.Approved(digest=wish.digest, ground="policy", rule="money", policy_version=1)
    async with at_work(store, "queue"):
        await tell(admin, [(CALL.requested, wish), (CALL.decided, approved)])
        await tell(admin, [(CALL.claim(1), started), (CALL.claim(2), started), RETURNED])
        assert (await rebuild(admin, verify=True)).differences == ()


async def test_a_reply_to_another_history_is_found(store, admin):
    """A model that was sent something else than the log gives."""
    last = await tell(
        admin,
        [
            (REF.opened, e.ThreadOpened(requester="rita")),
            (REF.said("1"), e.Said(role="user", text="Refund A-17, please.")),
            (REF.asked(1, 1), e.ModelAsked(model="test:model")),
            (REF.replied(1), e.ModelReplied(parts=(e.Text("No."),), history_digest=OTHER_DIGEST)),
        ],
    )
    rebuilt = await rebuild(admin, verify=True)
    (difference,) = rebuilt.differences
    assert difference.startswith(
        f"fact {last}: turn 1 of {REF} was asked with a history of digest {OTHER_DIGEST[:16]}"
    )
    assert rebuilt.histories == 1
    assert (await rebuild(admin, until=last - 1, verify=True)).differences == ()


FOREIGN = {
    # no JSON, malformed, in another's slot, no slot
    CALL.requested.subject: b"no JSON",
    REF.call("c2").requested.subject: b'{"type":"Approved","digest":5}',
    REF.said("m1").subject: b'{"type":"ToolReturned","output":"x"}',
    "ledger.what.ever.is.this": b"{}",
}


async def test_foreign_bytes_are_void(store, admin, replay):
    """What is in the log and is no fact is named by number; the rest is folded (B14, R4)."""
    await tell(admin, [(REF.opened, e.ThreadOpened(requester="rita"))])
    for subject, raw in FOREIGN.items():
        await admin.log.connection.client.request(subject, raw, timeout=60)
    rebuilt = await rebuild(admin)
    assert [(void.seq, void.subject, void.what) for void in rebuilt.void] == [
        (seq, subject, "not a fact") for seq, subject in enumerate(FOREIGN, 2)
    ]
    assert all(void.why for void in rebuilt.void)
    assert (rebuilt.facts, rebuilt.threads, rebuilt.differences) == (1 + len(FOREIGN), 1, ())
    code, told = await replay()
    assert (code, told.count(" is void (")) == (0, len(FOREIGN))


async def test_many_void_facts_are_counted(store, admin, replay):
    """Ten are told of; the JSON output has them all."""
    await tell(admin, [(CALL.claim(number), STARTED) for number in range(1, 14)])
    code, told = await replay()
    assert (code, told.count("is void"), "and 3 more that are void" in told) == (0, 10, True)
    code, told = await replay(json=True)
    assert (code, len(json.loads(told)["void"])) == (0, 13)


async def _at_rest(admin):
    """Wait until the queue's worker has looked at its entries once more, and mends nothing now."""

    async def rests():
        seen = await admin.log.progress("queue")
        return not (seen.waiting or seen.in_hand)

    await until(rests)


async def test_a_queue_that_shows_something_else_is_found(store, admin, replay):
    """An entry changed, taken away or invented is named, both versions; exit code 1."""
    gone = REF.call("c2")
    async with at_work(store, "queue"):
        await tell(admin, [*ASKED, (gone.requested, request(WISH)), (gone.gated, question(WISH))])
        bucket = admin.log.pending
        await until(lambda: _holds(bucket, 2))
        await _at_rest(admin)
        entry, revision = await bucket.get("acme.t1.c1")
        assert await bucket.put("acme.t1.c1", entry.replace(b"A-17", b"A-18"), revision)
        assert await bucket.delete("acme.t1.c2", (await bucket.get("acme.t1.c2"))[1])
        assert await bucket.put("acme.t9.c9", entry, 0)
        differences = (await rebuild(admin, verify=True)).differences
        for difference, (key, said) in zip(
            sorted(differences),
            {
                "acme.t1.c1": ("A-18", "but the log gives", "A-17"),
                "acme.t1.c2": ("live is no entry, but the log gives {",),
                "acme.t9.c9": ("but the log gives no entry",),
            }.items(),
            strict=True,
        ):
            assert difference.startswith(f"pending entry {key}: ")
            for part in said:
                assert part in difference
        # Up to a place in the past there is no live queue to compare with.
        assert (await rebuild(admin, until=2, verify=True)).differences == ()
        assert (await rebuild(admin)).differences == ()
        code, told = await replay(verify=True, json=True)
        assert (code, json.loads(told)["differences"]) == (1, [*differences])
        code, told = await replay(verify=True)
        assert code == 1
        assert f"differs: {differences[0]}\nand 2 more; --json lists them\n" in told
        assert "verified" not in told


async def _holds(bucket, count):
    return len(await bucket.entries()) == count


async def test_a_queue_that_stands_still_is_not_compared(store, admin, monkeypatch):
    """Nobody keeps the queue: that is no difference, and no agreement either."""
    monkeypatch.setattr(verify, "_CATCH_UP_S", 0.2)
    await tell(admin, ASKED)
    with pytest.raises(
        Unavailable,
        match="the queue's worker is 1 facts behind, so there is nothing to compare yet",
    ):
        await rebuild(admin, verify=True)


async def test_until_is_a_number_or_a_time(store, admin, replay):
    """As people write them; a time without a zone is UTC."""
    await tell(admin, ASKED)
    first = await anext(admin.replay())
    at = first.recorded_at.astimezone(UTC)
    for when in (
        "1",
        at.isoformat(),
        at.replace(tzinfo=None).isoformat(),
        f"{at:%Y-%m-%dT%H:%M:%S.%fZ}",
    ):
        code, told = await replay(until=when, json=True)
        found = json.loads(told)
        assert (code, found["facts"], found["until"]) == (0, 1, 1)


def as_dict(rebuilt):
    return {name: getattr(rebuilt, name) for name in rebuilt.__struct_fields__}
