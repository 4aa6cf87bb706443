"""Stops through the command line, on a real broker: what a stop says that it found, who may stop
and resume, and what is refused.
"""

import asyncio
from shlex import split

import program
import pytest
from program import approvals, ask, until, until_listed
from shop import rule

from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.server import EmbeddedServer
from ayes.schemas import events as e
from ayes.schemas.slots import CallRef, StopRef
from ayes.schemas.tools import ToolSpec

#: In the workspace `guarded` two leads must resume what somebody on call stopped.
GUARDED = (
    'may_stop = ["oncall"]\nmay_resume = ["lead-*"]\nresumes_needed = 2\n'
    + rule("looks", "allow", tools="look")
)  # fmt: skip
POLICY = rule("looks", "allow", tools="look") + rule("money", "ask", 'voters = ["ana", "ben"]')


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    with program.shop(folder, POLICY, ("look", "pay"), "guarded") as store:
        (folder / "guarded.toml").write_text(GUARDED)
        applied = ("policy", "apply", folder / "guarded.toml", "-w", "guarded")
        assert approvals(*applied, store=store).code == 0
        yield store


def test_a_stop_says_what_it_found(shop, within):
    """What ran and goes on, what is in doubt, what waits; nothing starts until it is resumed."""
    runs, doubtful, held, waits, done = (CallRef("shop", "found", one) for one in "rdhwx")
    for call in (runs, doubtful, held, done):
        ask(shop, call, "look")
    for call in (runs, doubtful):
        assert within("start", call, store=shop).code == 0
    assert within("doubt", doubtful, store=shop).code == 0
    assert within("finish", done, "--output", "5", store=shop).code == 0
    ask(shop, waits)
    until_listed(shop, waits)
    said = ("--reason", "A wrong account.", "--name", "s1", "--as", "ana")
    stopped = within("stop", "shop", *said, store=shop)
    assert (stopped.code, stopped.out) == (0, "")
    lines = stopped.err.splitlines()
    assert lines[0] == "shop/ana/s1  in force  shop: A wrong account.  0 of 1 resumed"
    assert lines[2] == "1 running. They go on: no tool is interrupted:"
    assert lines[3].startswith(f"  {runs}  look, since ")
    assert lines[4] == "1 in doubt. See ayes pending --in-doubt:"
    assert lines[5].startswith(f"  {doubtful}  look, since ")
    assert lines[6] == "1 approved and not started. They wait:"
    assert lines[7].startswith(f"  {held}  look, since ")
    assert lines[8:] == [
        "1 waiting for people, who may deny. Nothing is approved meanwhile.",
        "",
        "Next: ayes resume shop/ana/s1 --as NAME",
    ]

    # Repeating it is safe, and is as of the same moment.
    again = within("stop", "shop", *said, "--json", store=shop).one
    for kind, call in (("running", runs), ("in_doubt", doubtful), ("held", held)):
        assert [one["call"] for one in again[kind]] == [str(call)]
    assert (again["pending"], again["looked_since"]) == (1, None)
    refused = within("start", held, store=shop)
    assert refused.code == 1
    assert "may not start: stopped in workspace shop by ana" in refused.err
    assert within("finish", runs, "--output", "5", store=shop).code == 0
    approved = within("approve", waits, "--as", "ben", store=shop)
    assert approved.code == 8
    assert "It is stopped in workspace shop by ana" in approved.err

    [listed] = within("stops", "-w", "shop", "--json", store=shop).lines
    assert listed == {name: again[name] for name in listed}
    resumed = within("resume", "shop/ana/s1", "--as", "ben", "--reason", "Mended.", store=shop)
    assert (resumed.code, resumed.out) == (0, "")
    assert resumed.err == "shop/ana/s1 has ended. What waited starts within a minute.\n"
    assert within("start", held, store=shop).code == 0
    until(shop, waits.decided)
    ended = within("stops", "-w", "shop", "--json", store=shop).one
    assert (ended["status"], ended["resumed_by"], ended["ended_why"]) == (
        "ended",
        ["ben"],
        "Mended.",
    )
    for name in ("ben", "ana"):
        again = within("resume", "shop/ana/s1", "--as", name, store=shop)
        assert (again.code, "has ended" in again.err) == (1, True)


def test_it_is_as_of_its_moment(shop, within):
    """What ended before it is not listed, and what ended since is."""
    before, since, other = (CallRef("shop", "moment", one) for one in "bso")
    for call in (before, since):
        ask(shop, call, "look", requester="mona")
        assert within("start", call, store=shop).code == 0
    ask(shop, other, "look", requester="otto")
    assert within("start", other, store=shop).code == 0
    assert within("finish", before, "--output", "5", store=shop).code == 0
    said = ("--requester", "mo*", "--reason", "Why.", "--name", "s2", "--as", "ana", "--json")
    first = within("stop", "shop", *said, store=shop).one
    assert within("finish", since, "--output", "5", store=shop).code == 0
    again = within("stop", "shop", *said, store=shop).one
    assert first["running"] == again["running"]
    assert [one["call"] for one in again["running"]] == [str(since)]
    assert (again["requesters"], again["tools"]) == (["mo*"], ["*"])
    assert within("resume", "shop/ana/s2", "--as", "ana", store=shop).code == 0


def test_only_the_end_of_a_long_log_is_looked_at(shop, within, monkeypatch):
    """It says from when on. A call with a lease is in the index and is listed nevertheless."""
    monkeypatch.setattr("ayes.ops.actions.stops.LOOK_BACK", 1)
    leased, plain = CallRef("shop", "long", "l"), CallRef("shop", "long", "p")
    for call in (leased, plain):
        ask(shop, call, "look")

    async def started():
        async with Ledger.connect(shop) as ledger:
            await ledger.start(leased, claim_id="1", lease_s=3600)
            await ledger.start(plain)

    asyncio.run(started())
    ask(shop, CallRef("shop", "long", "x"))
    said = ("--tool", "look", "--reason", "Why.", "--name", "s3", "--as", "ana")
    stopped = within("stop", "shop", *said, "--json", store=shop).one
    assert str(leased) in [one["call"] for one in stopped["running"]]
    assert str(plain) not in [one["call"] for one in stopped["running"]]
    assert stopped["looked_since"]
    assert (
        f"before {stopped['looked_since'][:10]} " in within("stop", "shop", *said, store=shop).err
    )
    assert within("resume", "shop/ana/s3", "--as", "ana", store=shop).code == 0


def test_two_people_must_resume(shop, within):
    """Those whom the policy names; who is missing is told, with the exit code of what waits."""
    ana = within("stop", "guarded", "--reason", "No.", "--as", "ana", store=shop)
    assert (ana.code, "may_stop in the policy names others" in ana.err) == (4, True)
    said = ("--reason", "A leak.", "--as", "oncall", "--json")
    stop = within("stop", "guarded", *said, "--for", "8h", store=shop).one
    assert stop["stop"].startswith("guarded/oncall/s-")
    assert (stop["resumes_needed"], stop["ends_at"] is None) == (2, False)
    assert within("resume", stop["stop"], "--as", "ana", store=shop).code == 4
    first = within("resume", stop["stop"], "--as", "lead-1", store=shop)
    assert first.code == 8
    assert f"{stop['stop']} is in force: lead-1 resumed, and 1 more person must." in first.err
    second = within("resume", stop["stop"], "--as", "lead-2", "--json", store=shop)
    assert (second.code, second.one["status"]) == (0, "ended")
    assert second.one["resumed_by"] == ["lead-1", "lead-2"]
    assert second.one["ended_at"] < second.one["ends_at"]


def test_all_workspaces_at_once(shop, within):
    """Its name says so, and the list of each workspace has it."""
    said = ("--all-workspaces", "--agent", "nobody", "--reason", "A leak.", "--as", "ana")
    stop = within("stop", *said, "--name", "all", "--json", store=shop).one
    assert stop["stop"] == "_organisation/ana/all"
    told = within("stops", "-w", "guarded", store=shop).out
    assert "_organisation/ana/all  in force  all workspaces, agent nobody: A leak.  0 of 1" in told
    ended = within("resume", stop["stop"], "--as", "ana", "--json", store=shop)
    assert (ended.code, ended.one["status"]) == (0, "ended")


def test_without_a_gate_it_holds_and_does_not_end(tmp_path, within, monkeypatch):
    """A stop counts by itself. That nobody ends it is said, and is exit code 8."""
    monkeypatch.setattr("ayes.ops.actions.stops.GATE_S", 0.1)
    store = tmp_path / "store"

    async def served():
        async with EmbeddedServer(store):
            return await asyncio.to_thread(words)

    def words():
        assert within("setup", store=store).code == 0
        stop = within("stop", "shop", "--reason", "Why.", "--as", "ana", "--json", store=store)
        return stop, within("resume", stop.one["stop"], "--as", "ana", store=store)

    stop, resumed = asyncio.run(served())
    assert (stop.code, stop.one["status"], resumed.code) == (0, "in force", 8)
    assert "is in force until a gate ends it. Does one run? See ayes status." in resumed.err


def test_an_approval_whose_time_is_over_is_not_held(tmp_path, within):
    """Also before a gate has recorded that it lapsed: none runs here."""
    store = tmp_path / "store"
    valid, over = CallRef("shop", "t", "valid"), CallRef("shop", "t", "over")

    async def served():
        async with EmbeddedServer(store):
            assert (await asyncio.to_thread(within, "setup", store=store)).code == 0
            async with Ledger.connect(store, role="admin") as ledger:
                await ledger.declare("shop", ToolSpec(name="look", schema='{"type":"object"}'))
                for call, valid_for_s in ((valid, 86_400), (over, 1e-6)):
                    digest = (await ledger.request(call, "look", {}, requester="rita")).digest
                    rule = {"ground": "policy", "rule": "looks", "policy_version": 1}
                    approved = e.Approved(digest=digest, valid_for_s=valid_for_s, **rule)
                    await ledger.append(call.decided, approved)
            said = ("--reason", "Why.", "--as", "ana", "--json")
            return await asyncio.to_thread(within, "stop", "shop", *said, store=store)

    assert [one["call"] for one in asyncio.run(served()).one["held"]] == [str(valid)]


def test_a_stop_by_somebody_without_the_right_is_listed_as_ended(shop, within):
    """A raw client's: the gate says why."""
    forged = StopRef("guarded", "eve", "s1")

    async def recorded():
        async with Ledger.connect(shop, role="reviewer-eve") as ledger:
            await ledger.append(forged.given, e.Stopped(reason="Mine."))

    assert within("stop", "guarded", "--reason", "No.", "--as", "eve", store=shop).code == 4
    asyncio.run(recorded())
    until(shop, forged.ended)
    [told] = [
        one for one in within("stops", store=shop).out.splitlines() if one.startswith(str(forged))
    ]
    assert told.endswith("UTC: eve may not stop guarded.")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("stop shop --as ana", 2, "Missing option '--reason'"),
        ("stop shop --as ana --reason ''", 2, "a stop needs a reason"),
        ("stop --as ana --reason x", 2, "name one WORKSPACE, or give --all-workspaces."),
        ("stop shop --all-workspaces --as ana --reason x", 2, "or give --all-workspaces."),
        ("stop _organisation --as ana --reason x", 2, "'_organisation'"),
        ("stop 'a b' --as ana --reason x", 2, "'a b'"),
        ("stop shop --as ana --reason x --agent ''", 2, "--agent is empty"),
        ("stop shop --as ana --reason x --tool a --tool ''", 2, "--tool is empty"),
        ("stop shop --as ana --reason x --requester ''", 2, "--requester is empty"),
        ("stop shop --as ana --reason x --tool 'a b'", 2, "'a b'"),
        ("stop shop --as ana --reason x --for 8", 2, "--for 8 has no unit"),
        ("stop shop --as ana --reason x --for soon", 2, "is not a valid duration"),
        ("stop shop --as ana --reason x --for 0s", 2, "--for '0s' is too short"),
        ("stop shop --as ana --reason x --name a.b", 2, "'a.b'"),
        ("resume shop/ana --as ana", 2, "'shop/ana'"),
        ("resume shop/ana/none --as ana", 2, "there is no stop shop/ana/none. `ayes stops` shows"),
        ("stops -w 'a b'", 2, "'a b'"),
    ],
)
def test_bad_input_is_refused(shop, within, words, code, says):
    """In one sentence, and nothing is recorded."""
    before = program.last_seq(shop)
    ended = within(*split(words), store=shop)
    assert (ended.code, ended.out) == (code, "")
    assert says in ended.err
    assert program.last_seq(shop) == before
