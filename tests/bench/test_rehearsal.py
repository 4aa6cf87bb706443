"""Rehearsals: recorded conversations through the real thing, from the first word to a history that
is the same.

The small file is our own and holds what is awkward: nothing but talk, a tool-call id that comes
twice, two calls in one turn, arguments that are no JSON. The large one is real; its tests say so
where it is absent.
"""

import asyncio
import base64
import json
import os
import re
import signal
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from paths import AIRLINE as POLICY
from paths import CHANGING, DATA, SMALL
from pictures import PDF, PNG, png
from program import REHEARSAL, approvals, last_seq, started, until, up
from simulated_time import simulated
from stories import life

from ayes.consumers.model import with_bytes
from ayes.ledger.clients.services import Ledger
from ayes.ledger.lifecycle import Status
from ayes.projections.formats import FORMATS
from ayes.projections.formats.common import data_url
from ayes.projections.formats.conversation import read_conversations
from ayes.projections.history import files_in, history
from ayes.projections.thread import thread_of
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.content import attached
from ayes.schemas.slots import ThreadRef
from bench.rehearsal.rehearse import _FactsByTurn, _notice

#: The recorded tool was given arguments that are no JSON, and complained. Here no tool is ever
#: given such.
BROKEN = "broken-arguments"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The store of a running `ayes up`; each test rehearses in a workspace of its own."""
    with up(tmp_path_factory.mktemp("rehearse") / "store") as ready:
        yield Path(ready["store"])


@pytest.fixture
def workspace(request):
    return request.node.name.replace("[", "-").rstrip("]")[:64]


def rehearsed(store, workspace, *options, file=SMALL, policy=POLICY):
    """Rehearse with --json to its end, on the running store."""
    where = ("-w", workspace, "--store", store)
    return run(file, "--policy", policy, *where, "--json", *options, timeout_s=110)


def run(*words, **given):
    return approvals("run", *words, program=REHEARSAL, **given)


def test_its_policy_may_come_by_a_pipe(store, workspace):
    """What was checked before anything was recorded is the policy that is in force (B1)."""
    options = ("--policy", "/dev/stdin", "-w", workspace, "--store", store, "--json")
    rules = POLICY.read_text()
    ended = run(SMALL, *options, typed=rules, timeout_s=110)
    assert ended.code == 0, ended.err
    assert approvals("policy", "show", "-w", workspace, store=store).out == rules


def facts_of(store, workspace):
    """Every fact in the threads of a workspace, by thread."""

    async def read():
        found = {}
        async with Ledger.connect(store, role="observer") as ledger:
            async for fact in ledger.replay(1, f"ledger.{workspace}.>"):
                if fact.slot.thread:
                    found.setdefault(fact.slot.thread, []).append(fact)
        return found

    return asyncio.run(read())


def threads_of(store, workspace):
    found = facts_of(store, workspace)
    return {
        name: thread_of(ThreadRef(workspace, name), tuple(facts)) for name, facts in found.items()
    }


def written(thread, provider="openai-chat"):
    return FORMATS[provider].write(history(thread).entries)["messages"]


def assert_valid(threads):
    """Whole, and nothing that a provider would turn down."""
    for thread in threads.values():
        found = history(thread)
        assert found.stopped_at is None
        for name, provider in FORMATS.items():
            assert provider.check(provider.write(found.entries)) == [], (thread.ref, name)


def assert_denied(threads, gated):
    """Each call that people were asked about was refused once, and none of the tools in question
    was started.
    """
    calls = [call for thread in threads.values() for call in thread.calls.values()]
    asked = [call for call in calls if call.gated is not None]
    assert len(asked) == gated
    for call in asked:
        assert isinstance(call.decided.event, e.Denied)
        assert isinstance(call.finished.event, e.ToolRefused)
        assert call.claims == call.late == ()
    assert all(call.wish.tool in CHANGING for call in asked)
    assert not any(call.claims for call in calls if call.wish.tool in CHANGING)
    assert all(call.status in {Status.RETURNED, Status.REFUSED} for call in calls)


# ----------------------------------------------------------------------------------- the small file


def test_approved_it_comes_out_as_it_was(store, workspace):
    """Each history is the recorded one, although a tool-call id comes twice; a tool is never given
    what is no JSON (B17, B20).
    """
    ended = rehearsed(store, workspace)
    assert ended.code == 0, ended.err
    assert ended.one | {"facts": 0, "seconds": 0} == {
        "conversations": 4,
        "calls": 7,
        "gated": 4,
        "approved": 4,
        "denied": 0,
        "finished": 7,
        "identical": 3,
        "different": 1,
        "skipped": 0,
        "facts": 0,
        "seconds": 0,
    }
    assert ended.one["facts"] == sum(map(len, facts_of(store, workspace).values()))
    threads = threads_of(store, workspace)
    for conversation in read_conversations(SMALL):
        ours = written(threads[conversation.id])
        if conversation.id != BROKEN:
            assert ours == conversation.messages
            continue
        differing = [
            new for new, old in zip(ours, conversation.messages, strict=True) if new != old
        ]
        assert [(one["role"], one["tool_call_id"]) for one in differing] == [("tool", "call_x")]
        assert "cannot be read: it is no JSON" in differing[0]["content"]
    assert_valid(threads)


def test_files_go_out_and_in_again(store, workspace, tmp_path):
    """Recorded conversations with a picture that is stored, a small one and a page in each: their
    histories are the recorded ones, and every provider takes them (B17, B18, I11).
    """
    large = base64.b64encode(png(600, 400, level=0)).decode()
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{large}"}},
        {
            "type": "image_url",
            "image_url": {"url": data_url(attached(PNG, "image/png")), "detail": "low"},
        },
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": data_url(attached(PDF, "application/pdf"))},
        },
    ]
    file = tmp_path / "pictures.jsonl"
    lines = [json.loads(line) for line in SMALL.read_text().split("\n") if line]
    for line in lines:
        asked = next(one for one in line["messages"] if one["role"] == "user")
        asked["content"] = [{"type": "text", "text": asked["content"]}, *parts]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = rehearsed(store, workspace, file=file)
    assert ended.code == 0, ended.err
    assert (ended.one["identical"], ended.one["different"]) == (3, 1)  # as without files

    async def shown():
        async with Ledger.connect(store, role="observer") as ledger:
            for line in lines:
                ref = ThreadRef(workspace, line["id"])
                entries = history(thread_of(ref, await ledger.read(ref))).entries
                kept = [media.source for media in files_in(entries)]
                assert [type(one) for one in kept] == [e.Stored, e.Inline, e.Inline]
                told = await with_bytes(ledger, ref, entries)
                assert files_in(told)[0].source == e.Inline(large)
                for name, provider in FORMATS.items():
                    assert provider.check(provider.write(told)) == [], (ref, name)

    asyncio.run(shown())
    verified = approvals("replay", "--verify", "--store", store)
    assert verified.code == 0, verified.err


def test_denied_nothing_runs_and_every_conversation_ends(store, workspace):
    """Each gated call is refused once, with the tool's real name and that a person said no (B2, B5,
    B33).
    """
    ended = rehearsed(store, workspace, "--reviewer", "deny")
    assert ended.code == 0, ended.err
    assert {
        name: ended.one[name] for name in ("conversations", "calls", "gated", "approved", "denied")
    } == {
        "conversations": 4,
        "calls": 7,
        "gated": 4,
        "approved": 0,
        "denied": 4,
    }
    assert ended.one["finished"] == 7
    threads = threads_of(store, workspace)
    assert_denied(threads, gated=4)
    assert_valid(threads)
    told = [one["content"] for one in written(threads["same-id-twice"]) if one["role"] == "tool"]
    assert len(told) == 2
    assert all("`cancel_reservation` did not run: a person reviewed" in text for text in told)


def test_a_reviewer_who_answers_and_edits(store, workspace, tmp_path):
    """The file's votes count in its order: an answer stands in place of a result, an edit is what
    ran (B61).
    """
    reviewer = tmp_path / "reviewer.toml"
    reviewer.write_text(
        """
        name = "ana"
        otherwise = "deny"

        [[vote]]
        tools = ["cancel_*"]
        verdict = "answer"
        answer = "I have cancelled it by hand."

        [[vote]]
        tools = ["send_certificate", "cancel_reservation"]
        verdict = "approve"
        reason = "A smaller one."
        arguments = '{"user_id": "carol_1042", "amount": 1}'
        """
    )
    policy = tmp_path / "policy.toml"
    policy.write_text(
        POLICY.read_text().replace('then = "ask"', 'then = "ask"\neditor_counts = true')
    )
    ended = rehearsed(store, workspace, "--reviewer", reviewer, policy=policy)
    assert ended.code == 0, ended.err
    assert (ended.one["gated"], ended.one["approved"], ended.one["denied"]) == (4, 1, 1)
    threads = threads_of(store, workspace)
    assert_valid(threads)
    first, second = (threads["same-id-twice"].calls[name] for name in ("1-0", "2-0"))
    for call in (first, second):
        assert isinstance(call.decided.event, e.Answered)
        assert call.claims == ()
        assert "I have cancelled it by hand." in call.finished.event.text
    bags, certificate = (threads["two-at-once"].calls[name] for name in ("2-0", "2-1"))
    assert isinstance(bags.decided.event, e.Denied)
    assert certificate.decided.event.voters == ("ana",)
    assert certificate.arguments == '{"user_id": "carol_1042", "amount": 1}'
    assert (
        certificate.claims[0].event.digest
        == certificate.decided.event.digest
        != certificate.wish.digest
    )


def test_rehearsed_again_nothing_new_is_recorded(store, workspace):
    """The second time everything is there already: no new fact, the same summary (B48)."""
    first = rehearsed(store, workspace)
    before = last_seq(store)
    again = rehearsed(store, workspace)
    assert last_seq(store) == before
    assert (again.code, again.one | {"seconds": 0}) == (0, first.one | {"seconds": 0})


def test_without_a_policy_everything_is_asked_about(store, workspace):
    """No rule means ask (I4): even the tools that only read wait for the reviewer."""
    ended = run(SMALL, "-w", workspace, "--store", store, "--json")
    assert (ended.code, ended.one["gated"], ended.one["identical"]) == (0, 6, 3), ended.err


def test_another_conversation_of_the_same_name_is_not_mixed_in(store, workspace, tmp_path):
    """What stands in the thread is another conversation, in its words, turns or tools: a sentence
    that names it, and its facts stay as they are.
    """
    assert rehearsed(store, workspace).code == 0
    before = facts_of(store, workspace)
    other = tmp_path / "other.jsonl"
    answer = (
        ', {"role": "user", "content": "Nothing, thanks."}, {"role": "assistant", "content": ""}'
    )
    for old, new in (
        ("Nothing, thanks.", "Nothing at all."),
        (answer, ""),
        ("calculate", "compute"),
    ):
        text = SMALL.read_text().replace(old, new)
        assert text != SMALL.read_text()
        other.write_text(text)
        ended = rehearsed(store, workspace, file=other)
        assert (ended.code, ended.out) == (1, ""), old
        assert ended.problem["error"] == "AlreadyFilled"
        assert "Choose another workspace with -w." in ended.problem["message"]
        assert workspace in ended.problem["message"]
        assert facts_of(store, workspace) == before


def test_another_rehearsal_is_not_answered_by_the_first(store, workspace, tmp_path):
    """With another reviewer, policy or recorded output in the same workspace it is refused in a
    sentence, and nothing is recorded, the other policy least of all; the first may be said again
    (A9).
    """
    assert rehearsed(store, workspace, "--reviewer", "deny").one["approved"] == 0
    before = last_seq(store)
    stricter, other = tmp_path / "policy.toml", tmp_path / "other.jsonl"
    stricter.write_text('[[rule]]\nname = "none"\ntools = ["*"]\nthen = "block"\n')
    text = SMALL.read_text()
    other.write_text(text.replace("Nothing, thanks.", "Nothing."))
    ana = tmp_path / "reviewer.toml"
    ana.write_text('name = "ana"\notherwise = "approve"\n')
    for options, why in (
        ({}, "reviewer voted otherwise on "),
        ({"reviewer": ana}, "where this reviewer says approve"),
        ({"reviewer": "deny", "policy": stricter}, "of the policy, which is another one"),
        ({"reviewer": "deny", "file": other}, "differs from the recording"),
    ):
        reviewer = options.pop("reviewer", "approve")
        ended = rehearsed(store, workspace, "--reviewer", reviewer, **options)
        assert (ended.code, ended.problem["error"]) == (1, "AlreadyFilled"), ended.err
        assert why in ended.problem["message"]
        assert "Choose another workspace with -w." in ended.problem["message"]
        assert last_seq(store) == before
    assert rehearsed(store, workspace, "--reviewer", "deny").code == 0


def test_a_variable_names_no_place_to_rehearse_in(store, workspace):
    """Where `AYES_STORE` or `AYES_URL` points, nothing is recorded: only where --store or --url
    says (A8).
    """
    before = last_seq(store)
    words = (SMALL, "--policy", POLICY, "-w", workspace, "--json")
    ended = run(*words, store=store, timeout_s=110)
    assert (ended.code, ended.one["identical"]) == (0, 3), ended.err
    assert last_seq(store) == before


def test_a_reviewer_who_may_not_vote_is_told_so(store, workspace, tmp_path):
    """Nobody would ever decide: the rehearsal ends with who may vote (4), instead of waiting for
    ever (B67).
    """
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nname = "all"\ntools = ["*"]\nthen = "ask"\nvoters = ["ana"]\n')
    ended = rehearsed(store, workspace, policy=policy)
    assert (ended.code, ended.out) == (4, "")
    assert ended.problem["error"] == "NotAllowed"
    assert "reviewer is none of those who may vote on" in ended.problem["message"]
    assert "Rule 'all' asks ana." in ended.problem["message"]


def test_stopped_and_started_again_it_goes_on(store, workspace, tmp_path):
    """A call that the reviewer leaves open keeps it waiting; stopped (130) and started with
    another, it ends (B53).
    """
    hesitant = tmp_path / "reviewer.toml"
    hesitant.write_text('[[vote]]\ntools = ["cancel_reservation"]\nverdict = "approve"\n')
    options = ("--policy", POLICY, "-w", workspace, "--store", store)
    with started("run", SMALL, "--reviewer", hesitant, *options, program=REHEARSAL) as process:
        until(store, ThreadRef(workspace, "two-at-once").wish(2, 1).gated)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Start it again with the same --store to continue." in err
    ended = rehearsed(store, workspace)
    assert (ended.code, ended.one["identical"], ended.one["approved"]) == (0, 3, 4)


NOBODY = ("", '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "ask"\n')
TOO_FEW = (
    'otherwise = "approve"\n',
    '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "ask"\nvotes_needed = 2\n',
)


@pytest.mark.parametrize(
    ("script", "rules", "as_json"),
    [
        pytest.param(*NOBODY, False, id="nobody votes"),
        pytest.param(*TOO_FEW, True, id="too few vote, json", marks=pytest.mark.long),
    ],
)
def test_it_says_that_calls_wait_for_people(tmp_path, script, rules, as_json):
    """How many, and the command that shows them, on stderr in one sentence; decided by hand it ends
    as ever (B67).
    """
    store = tmp_path / "store"
    reviewer, policy, file = (
        tmp_path / name for name in ("reviewer.toml", "policy.toml", "one.jsonl")
    )
    reviewer.write_text(script)
    policy.write_text(rules)
    file.write_text(SMALL.read_text().split("\n")[1] + "\n")
    options = ("--reviewer", reviewer, "--policy", policy, "--store", store)
    options += ("--json",) if as_json else ()
    with started("run", file, *options, program=REHEARSAL) as process:
        sentence = next(line for line in process.stderr if "call waits" in line)
        assert sentence.startswith("1 call waits for people and nothing else happens: ")
        assert sentence.endswith(f"ayes pending -w rehearsal --store {store}\n")
        shown = approvals(*sentence.split("ayes ")[1].split(), "--json")
        assert [one["call"] for one in shown.lines] == ["rehearsal/same-id-twice/1-0"]
        for call in ("1-0", "2-0"):
            until(store, ThreadRef("rehearsal", "same-id-twice").call(call).gated)
            hand = ("approve", f"rehearsal/same-id-twice/{call}", "--as", "hand")
            assert approvals(*hand, "--store", store).code == 0
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    identical = (
        json.loads(out)["identical"]
        if as_json
        else dict(map(str.split, out.splitlines()))["identical"]
    )
    assert int(identical) == 1


@simulated
async def test_each_silence_is_told_once():
    """Several calls that wait are counted; only another fact, and silence after it, is told again;
    none when all is decided.
    """
    ref = ThreadRef("shop", "t")
    seen, told = _FactsByTurn(), []
    noticing = asyncio.create_task(_notice(seen, told.append, 0.02))

    async def recorded(*facts, then):
        for slot, event in facts:
            seen.add(Fact(seen.count + 1, datetime(2026, 1, 1, tzinfo=UTC), slot, event))
        await asyncio.sleep(0.2)
        assert told == then

    wish = e.Wish("refund", "{}", "a")
    lives = [life(ref.call(name), wish, "returned") for name in ("a", "b", "c")]
    await recorded(lives[0][0], then=[])
    await recorded(*lives[0][:2], *lives[1][:2], then=[2])
    await recorded(lives[2][0], then=[2, 2])
    await recorded(*lives[0], then=[2, 2, 1])
    await recorded(*lives[1], then=[2, 2, 1])
    assert not noticing.done()
    noticing.cancel()


@pytest.fixture
def other(tmp_path):
    """The same conversations under other names."""
    file = tmp_path / "other.jsonl"
    file.write_text(
        SMALL.read_text()
        .replace('{"id": "', '{"id": "other-')
        .replace('{"id": "other-call', '{"id": "call')
    )
    assert [one.id for one in read_conversations(file)] == [
        f"other-{one.id}" for one in read_conversations(SMALL)
    ]
    return file


def test_another_rehearsal_leaves_its_threads_alone(store, workspace, tmp_path, other):
    """Stopped in the midst, then another file is rehearsed on the same broker: it takes no turn of
    the first, which then ends well.
    """
    nobody = tmp_path / "reviewer.toml"
    nobody.write_text("")
    options = ("--reviewer", nobody, "--policy", POLICY, "-w", workspace, "--store", store)
    with started("run", SMALL, *options, program=REHEARSAL) as process:
        thread = ThreadRef(workspace, "two-at-once")
        both = (thread.wish(2, 0), thread.wish(2, 1))
        until(store, *(call.gated for call in both))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    # Decided while nobody rehearses: what follows is handed to whoever comes next.
    for call in both:
        approve(store, call)
    second = rehearsed(store, f"{workspace[:60]}-2", file=other)
    assert (second.code, second.one["identical"]) == (0, 3), second.err
    for call in both:
        assert threads_of(store, workspace)["two-at-once"].call(call).claims == ()
    first = rehearsed(store, workspace)
    assert (first.code, first.one["identical"], first.one["finished"]) == (0, 3, 7), first.err


def approve(store, call):
    async def voted():
        async with Ledger.connect(store, role="admin") as ledger:
            await ledger.reviewer("ana").approve(call)

    asyncio.run(voted())
    until(store, call.decided)


def test_in_a_store_of_its_own_the_facts_stay(tmp_path):
    """With --store DIR where nothing runs it starts a broker there, which ends with it; the facts
    are found again.
    """
    store = tmp_path / "store"
    options = ("--policy", POLICY, "--store", store)
    first = run(SMALL, *options, "--json")
    assert first.code == 0, first.err
    again = run(SMALL, *options)
    assert again.code == 0
    counted = dict(line.split() for line in again.out.splitlines())
    assert counted["facts"] == str(first.one["facts"])
    assert counted["identical"] == "3"
    assert "facts/s" in again.err
    assert "no broker runs in" in approvals("status", "--store", store).err


#: Two users in a row, a system message in the midst, the model speaks first, and twice.
CANNOT = (
    (["user", "user", "assistant"], "before the model answers"),
    (["user", "assistant", "system", "user", "assistant"], "in the middle of it"),
    (["assistant"], "without having been spoken to"),
    (["user", "assistant", "assistant"], "without having been spoken to"),
)


def test_what_did_not_go_turn_by_turn_is_skipped(store, workspace, tmp_path):
    """No live conversation could go that way again. The line and the id are named, the others are
    rehearsed, and the exit code says that some were not.
    """
    file = tmp_path / "odd.jsonl"
    odd = [
        {"id": f"odd-{one}", "messages": [{"role": role, "content": "hm"} for role in roles]}
        for one, (roles, _) in enumerate(CANNOT)
    ]
    file.write_text(SMALL.read_text() + "".join(json.dumps(one) + "\n" for one in odd))
    ended = rehearsed(store, workspace, file=file)
    whole = len(read_conversations(SMALL))
    assert (ended.code, ended.one["conversations"], ended.one["skipped"]) == (2, whole, len(CANNOT))
    for one, (_, why) in enumerate(CANNOT):
        said = rf"Skipped: {file}, line {whole + 1 + one} \(odd-{one}\): .*{why}"
        assert re.search(said, ended.err), ended.err
    assert ended.err.count("It cannot be rehearsed.") == len(CANNOT)


# ------------------------------------------------------------------------------------ the real file


class Real(NamedTuple):
    """Real conversations, and what is known of them."""

    conversations: int
    calls: int
    gated: int
    #: Repeat one that was denied just before.
    repeated: int


EVERY = bool(os.environ.get("CHAOS"))
#: Of all of them 37 use a tool-call id twice, of every fifth six.
REAL = Real(150, 862, 184, 7) if EVERY else Real(30, 164, 33, 3)


@pytest.fixture
def real(tmp_path):
    """The real conversations: all of them in `make kills`, or else every fifth."""
    if not DATA.exists():
        pytest.skip(f"the recorded conversations are not here: {DATA}")
    lines = DATA.read_text().splitlines(keepends=True)
    file = tmp_path / DATA.name
    file.write_text("".join(lines if EVERY else lines[4::5]))
    return file


@pytest.fixture
def own(tmp_path):
    with up(tmp_path / "store") as ready:
        yield Path(ready["store"])


@pytest.mark.timeout(240)
@pytest.mark.long
def test_approved_each_real_history_is_the_recorded_one(own, workspace, real):
    """All finished, all identical, and the log bears it out; some use a tool-call id twice (B20,
    I11).
    """
    ended = rehearsed(own, workspace, file=real)
    assert ended.code == 0, ended.err
    assert ended.one | {"facts": 0, "seconds": 0} == {
        "conversations": REAL.conversations,
        "calls": REAL.calls,
        "gated": REAL.gated,
        "approved": REAL.gated,
        "denied": 0,
        "finished": REAL.calls,
        "identical": REAL.conversations,
        "different": 0,
        "skipped": 0,
        "facts": 0,
        "seconds": 0,
    }
    verified = approvals("replay", "--verify", "--json", store=own)
    assert (verified.code, verified.one["differences"]) == (0, [])
    assert verified.one["calls"] == {"returned": REAL.calls}


@pytest.mark.timeout(240)
@pytest.mark.long
def test_denied_no_real_tool_runs_and_every_real_conversation_ends(own, workspace, real):
    """Each of the calls is refused once, none of the six tools is started, every history is valid
    (B1, B2).

    Some repeat one that was denied just before, one in other bytes: nobody is asked about these
    again (B76, R13).
    """
    asked = REAL.gated - REAL.repeated
    ended = rehearsed(own, workspace, "--reviewer", "deny", file=real)
    assert ended.code == 0, ended.err
    assert {
        name: ended.one[name] for name in ("conversations", "calls", "gated", "approved", "denied")
    } == {
        "conversations": REAL.conversations,
        "calls": REAL.calls,
        "gated": asked,
        "approved": 0,
        "denied": asked,
    }
    assert ended.one["finished"] == REAL.calls
    threads = threads_of(own, workspace)
    assert len(threads) == REAL.conversations
    assert_denied(threads, gated=asked)
    decided = [call.decided.event for thread in threads.values() for call in thread.calls.values()]
    denied = Counter(event.ground for event in decided if isinstance(event, e.Denied))
    assert denied == {"people": asked, "repeated": REAL.repeated}
    assert_valid(threads)
