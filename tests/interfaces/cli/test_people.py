"""People, through the command line: several who must agree, in time, in advance, in another's
place, in an emergency.

The real program on a real broker with real (short) intervals: from the wish to what the gate made
of it.
"""

import asyncio
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from shlex import split

import program
import pytest
from program import FIVE, approvals, ask, at_a_terminal, entry_of, last_seq, until, until_listed
from shop import rule

from ayes.ledger.clients.services import Ledger
from ayes.ops.broker.accounts import accounts_config
from ayes.ops.broker.server import EmbeddedServer
from ayes.schemas.slots import CallRef

POLICY = (
    'never_grant = ["erase"]\n'
    '[groups]\nsecurity = ["sam", "sue"]\n'
    + rule("looks", "allow", tools="look")
    + rule("releases", "ask", 'voters = ["ana", "ben", "carol"]', "votes_needed = 2",
           'also = [{voters = ["@security"]}]', 'break_glass = ["@security"]', tools="release")
    + rule("money", "ask", 'voters = ["ana", "ben", "carol"]', "editor_counts = true", tools="pay")
    + rule("much money", "ask", 'when = "args.amount > 100"', "priority = 1", 'voters = ["carol"]',
           tools="pay")
    + rule("too much money", "block", 'when = "args.amount > 1000"', "priority = 2", tools="pay")
    + rule("two must refuse", "ask", 'voters = ["ana", "ben", "carol"]', "denials_needed = 2",
           tools="close")
    + rule("pages", "ask", 'voters = ["ana"]', "expires_in_s = 0.3", 'on_timeout = "escalate"',
           'stages = [{voters = ["lea"], expires_in_s = 600}]', tools="page")
    + rule("patient pages", "ask", 'when = "args.amount > 100"', "priority = 1", 'voters = ["ana"]',
           "expires_in_s = 600", 'on_timeout = "escalate"', 'stages = [{voters = ["lea"]}]',
           tools="page")
    + rule("pings", "ask", 'voters = ["ana"]', "expires_in_s = 0.3", 'on_timeout = "escalate"',
           'stages = [{voters = ["lea"], expires_in_s = 0.3}]', tools="ping")
    + rule("hers alone", "ask", 'voters = ["ana"]', tools="sign")
)  # fmt: skip
TOOLS = ("look", "release", "pay", "close", "page", "ping", "sign", "erase", "vault")
SIX, MUCH, TOO_MUCH = (f'{{"amount": {amount}}}' for amount in (6, 500, 5000))


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    with program.shop(folder, POLICY, TOOLS, "desk", "count") as store:
        yield store


@pytest.fixture
def thread(request):
    """A conversation that no other test has."""
    return CallRef("shop", request.node.name.split("[")[0][:60].rstrip("_"), "c").thread_ref


def kinds(ended):
    return [line["event"]["type"] for line in ended.lines]


def last(ended):
    return ended.lines[-1]["event"]


# ----------------------------------------------------------------------------------- several people


def test_two_of_three_and_one_of_security(shop, within, thread):
    """All quorums must agree; nobody counts twice, and who is missing is told (B39, B40)."""
    call = thread.call("c")
    asked = approvals("request", call, "release", FIVE, "--requester", "rita", store=shop)
    assert asked.code == 8
    assert asked.err == (
        f"{call} waits for people: 0 of 3 approvals. Missing: 2 of ana, ben and carol, and one "
        "of sam and sue.\n"
    )
    first = within("approve", call, "--as", "ana", store=shop)
    assert first.code == 8
    missing = "Missing: one of ben and carol, and one of sam and sue."
    assert f"1 of 3 approvals (ana). {missing}" in first.err
    assert within("approve", call, "--as", "ana", store=shop).code == 1
    assert within("approve", call, "--as", "lea", store=shop).code == 4
    assert within("approve", call, "--as", "rita", store=shop).code == 4
    peers = within("approve", call, "--as", "ben", "--json", store=shop)
    assert (peers.code, peers.one["votes"], peers.one["votes_needed"]) == (8, 2, 3)
    assert peers.one["agree"] == ["ana", "ben"]
    assert peers.one["missing"] == [{"voters": ["sam", "sue"], "votes_needed": 1}]
    third = within("approve", call, "--as", "carol", store=shop)
    assert third.code == 8
    assert "2 of 3 approvals (ana, ben, carol). Missing: one of sam and sue." in third.err
    decided = approvals("approve", call, "--as", "sue", "--json", store=shop)
    assert (decided.code, decided.one["decision"]) == (0, "Approved")
    assert decided.one["ground"] == "people"
    assert set(decided.one["voters"]) == {"ana", "ben", "carol", "sue"}


def test_two_must_refuse(shop, within, thread):
    """With denials_needed = 2 one no is not the end, and the model hears both reasons (B32)."""
    call = thread.call("c")
    ask(shop, call, "close")
    assert within("deny", call, "--as", "ana", "--reason", "Too soon.", store=shop).code == 8
    denied = within("deny", call, "--as", "ben", "--reason", "Too late.", "--json", store=shop)
    assert (denied.code, denied.one["voters"]) == (0, ["ana", "ben"])
    assert denied.one["reason"] == "Too soon.; Too late."


def test_an_edit_is_judged_again(shop, within, thread):
    """An edit needs the people of its own rule too; what is blocked is refused (B61, B67, I3)."""
    call = thread.call("c")
    ask(shop, call)
    before = last_seq(shop)
    blocked = within("approve", call, "--as", "ana", "--edit", TOO_MUCH, store=shop)
    assert (blocked.code, last_seq(shop)) == (4, before)
    assert "cannot run so: the policy in force blocks pay with these arguments" in blocked.err
    edited = within("approve", call, "--as", "ana", "--edit", MUCH, store=shop)
    assert edited.code == 8
    assert "0 of 1 approvals (ana). The edited arguments need others too" in edited.err
    decided = within("approve", call, "--as", "carol", "--edit", MUCH, "--json", store=shop)
    assert (decided.code, decided.one["voters"]) == (0, ["ana", "carol"])
    assert decided.one["arguments"] == MUCH


@pytest.mark.parametrize(
    ("words", "halting"),
    [
        (("deny", "--halt"), ["Voted", "Denied"]),
        (("answer", "No such order.", "--error", "--halt"), ["Voted", "Answered"]),
        (("revoke", "--halt"), ["Revoked"]),
    ],
)
def test_a_reviewer_can_stop_the_model(shop, within, words, halting):
    """`--halt` is in what they record, and in the decision, for whoever asks the model (B33)."""
    word, *more = words
    call = CallRef("shop", f"halted-by-{word}", "c")
    ask(shop, call)
    if word == "revoke":
        assert within("approve", call, "--as", "ana", store=shop).code == 0
    assert within(word, call, *more, "--as", "ana", store=shop).code == 0
    shown = [line["event"] for line in within("show", call, "--json", store=shop).lines]
    assert [event["type"] for event in shown if event.get("halt")] == halting


# ------------------------------------------------------------------------------------------ in time


def test_nobody_answers_so_others_are_asked_and_then_it_expires(shop, within, thread):
    """Each next stage: asked as well, or expired, which is no denial (I5, B36)."""
    early, answered, silent = (thread.call(name) for name in ("early", "answered", "silent"))
    ask(shop, early, "page", arguments=MUCH)
    refused = within("approve", early, "--as", "lea", store=shop)
    assert (refused.code, "lea is none of those who may vote" in refused.err) == (4, True)
    ask(shop, answered, "page")
    ask(shop, silent, "ping")
    until(shop, answered.escalated(1))
    as_well = "asks ana, and by now lea as well"
    while as_well not in within("pending", "-w", "shop", store=shop).out:
        time.sleep(0.05)  # the queue learns of it later; the test's own time limit ends this
    told = within("wait", answered, "--timeout", "0", store=shop)
    assert (told.code, "Missing: one of ana and lea." in told.err) == (8, True)
    late = within("approve", answered, "--as", "lea", "--json", store=shop)
    assert (late.code, late.one["voters"]) == (0, ["lea"])
    expired = within("wait", silent, "--timeout", "60s", "--json", store=shop)
    assert (expired.code, expired.one["decision"]) == (6, "Expired")
    assert within("approve", silent, "--as", "ana", store=shop).code == 6
    until(shop, silent.finished)
    shown = within("show", silent, "--json", store=shop)
    assert kinds(shown)[1:] == ["ApprovalRequested", "Escalated", "Expired", "ToolRefused"]
    assert last(shown)["ending"] == "expired"


# --------------------------------------------------------------------------------------- in advance


def requested(within, store, call, tool="pay", arguments=FIVE):
    ended = within("request", call, tool, arguments, "--requester", "rita", "--json", store=store)
    return ended.code, ended.one["ground"], ended.one["grants"]


def grants(within, store):
    return {
        one["grant"]: one
        for one in within("grant", "list", "-w", "shop", "--json", store=store).lines
    }


def test_a_grant_is_used_capped_revoked_and_expired(shop, within, thread):
    """A yes in advance to such calls: so often, until its end, its revocation, or a no."""
    call = thread.call("first")

    def elsewhere(name):
        return CallRef("shop", f"{thread.thread}-{name}", "c")

    ask(shop, call)
    like_this = split(
        "--duration 1h --uses 2 --as ana --name like-this --reason 'Every week.' --json"
    )
    given = approvals("grant", "give", call, *like_this, store=shop)
    assert (given.code, given.err) == (0, "")
    name = "shop/ana/like-this"
    assert (given.one["grant"], given.one["standing"], given.one["left"]) == (name, "in force", 2)
    # On the call itself it is her vote.
    assert within("wait", call, "--json", store=shop).one["voters"] == ["ana"]

    # Used: by the same arguments in the same thread, in whatever order the keys stand, and by
    # nothing else.
    assert requested(within, shop, thread.call("same")) == (0, "grant", ["ana/like-this"])
    assert requested(within, shop, thread.call("other"), arguments=SIX)[0] == 8
    assert requested(within, shop, CallRef("shop", f"{thread.thread}-b", "same"))[0] == 8
    # Capped.
    assert requested(within, shop, thread.call("again"), arguments='{"amount":5}')[0] == 0
    assert requested(within, shop, thread.call("once-more"))[0] == 8
    standing = grants(within, shop)[name]
    assert (standing["standing"], standing["left"]) == ("used up", 0)
    assert standing["used_by"] == [str(thread.call("same")), str(thread.call("again"))]
    assert "by ana (grant), rule 'money'" in within("show", thread.call("same"), store=shop).out

    # Revoked: by anybody, once.
    wide = split("--duration 8h --uses 100 --any-arguments --any-thread --as ana --name wide")
    assert within("grant", "give", call, *wide, store=shop).code == 0
    assert requested(within, shop, elsewhere("c"), arguments=SIX)[0] == 0
    revoke = split("grant revoke shop/ana/wide --as ben")
    revoked = within(*revoke, "--reason", "No.", store=shop)
    assert (revoked.code, "covers no more calls" in revoked.err) == (0, True)
    assert within(*revoke, store=shop).code == 1
    assert requested(within, shop, elsewhere("d"))[0] == 8
    standing = grants(within, shop)["shop/ana/wide"]
    assert (standing["standing"], standing["revoked_by"]) == ("revoked", "ben")

    # Of a condition.
    small = split("grant give --tool pay -w shop --when 'args.amount < 6' --uses 1 --as ben")
    assert within(*small, *split("--duration 1h --name small"), store=shop).code == 0
    assert requested(within, shop, elsewhere("e"), arguments=SIX)[0] == 8
    assert requested(within, shop, elsewhere("f"))[0] == 0

    # Expired.
    assert within(*small, *split("--duration 1s --name short"), store=shop).code == 0
    while grants(within, shop)["shop/ben/short"]["standing"] != "ended":
        time.sleep(0.05)
    assert requested(within, shop, elsewhere("g"))[0] == 8
    told = within("grant", "list", "-w", "shop", store=shop).out
    assert "shop/ben/short  ended  pay any where args.amount < 6  1 of 1 uses left" in told


def test_a_later_no_beats_an_earlier_grant(shop, within, thread):
    """People deny what a grant would cover: it covers nothing more, and says since when."""
    call = thread.call("c")
    ask(shop, call)
    wide = split("grant give --tool pay -w shop --any-arguments --duration 1h --uses 9")
    assert within(*wide, "--as", "carol", "--name", "beaten", store=shop).code == 0
    assert within("deny", call, "--as", "ben", store=shop).code == 0
    beaten = grants(within, shop)["shop/carol/beaten"]
    assert (beaten["standing"], beaten["revoked_by"]) == ("revoked", str(call))
    assert requested(within, shop, CallRef("shop", f"{thread.thread}-b", "c"))[0] == 8


def test_ben_votes_for_ana(shop, within, thread):
    """For a time one person votes in another's place, and each decision says so; then not (B40)."""
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    times = split(f"--from {now - hour:%Y-%m-%dT%H:%M:%S} --until {now + hour:%Y-%m-%dT%H:%M:%SZ}")
    first, second, third = (thread.call(name) for name in ("first", "second", "third"))
    for call in (first, second, third):
        ask(shop, call, "sign")
    assert within("approve", first, "--as", "ben", store=shop).code == 4
    give = split("delegate give ben --tool sign -w shop --as ana --name away --json")
    given = within(*give, *times, store=shop)
    assert (given.code, given.one["delegation"], given.one["to"]) == (0, "shop/ana/away", "ben")
    assert given.one["standing"] == "in force"
    found = within("approve", first, "--as", "ben", "--json", store=shop)
    assert (found.code, found.one["on_behalf_of"]) == (0, {"ben": "ana"})
    shown = within("show", first, store=shop).out
    assert "approve for ana" in shown
    assert "by ben for ana, rule 'hers alone'" in shown
    assert within("deny", second, "--as", "ben", "--on-behalf-of", "ana", store=shop).code == 0
    nobody = within("approve", third, "--as", "ben", "--on-behalf-of", "carol", store=shop)
    assert (nobody.code, "carol is none of those who may vote" in nobody.err) == (4, True)
    listed = within("delegate", "list", "-w", "shop", store=shop).out
    assert "shop/ana/away  in force  ben for ana" in listed
    foreign = within("delegate", "end", "shop/ana/away", "--as", "ben", store=shop)
    assert (foreign.code, "only ana can end shop/ana/away" in foreign.err) == (4, True)
    end = split("delegate end shop/ana/away --as ana --json")
    assert within(*end, store=shop).one["standing"] == "ended"
    assert within("approve", third, "--as", "ben", store=shop).code == 4


# ---------------------------------------------------------------------------------------- in a chat


def test_a_message_is_heard_if_it_is_a_verdict(shop, within, thread):
    """A hedge is no vote, nothing is recorded; a whole verdict about one call is one (B40, B41)."""
    call, other = thread.call("c"), thread.call("d")
    ask(shop, call, "pay")
    ask(shop, other, "pay")
    before = last_seq(shop)
    hedges = ("yes", "yes, I think", f"approve {call}?", "approve c d", f"> {call} pay\nmaybe")
    for message in hedges:
        ended = within("hear", message, "-w", "shop", "--as", "ana", store=shop)
        assert (ended.code, "this is not a verdict on one of the" in ended.err) == (2, True)
    assert within("hear", f"approve {call}", "-w", "shop", "--as", "rita", store=shop).code == 4
    assert last_seq(shop) == before
    assert within("hear", f"approve {call}", "-w", "shop", "--as", "ana", store=shop).code == 0
    denied = within(
        "hear", f"> {other}\nno: not today", "-w", "shop", "--as", "ana", "--json", store=shop
    )
    assert (denied.code, denied.one["decision"], denied.one["reason"]) == (0, "Denied", "not today")


# ---------------------------------------------------------------------------------- in an emergency


def test_the_glass_is_broken_with_a_reason_and_announced(shop, within, thread):
    """One whom the rule names lets it run alone: with a reason, announced in the log first (I1)."""
    call = thread.call("c")
    ask(shop, call, "release")
    nobody = within("break-glass", call, "--reason", "It burns.", "--as", "ana", store=shop)
    assert (nobody.code, "ana is none of those who may break the glass" in nobody.err) == (4, True)
    assert within("break-glass", call, "--reason", " ", "--as", "sam", store=shop).code == 4
    words = ("--reason", "It burns.", "--as", "sam", "--json")
    broken = approvals("break-glass", call, *words, store=shop)
    assert (broken.code, broken.one["ground"], broken.one["voters"]) == (0, "broken_glass", ["sam"])
    shown = within("show", call, "--json", store=shop)
    assert kinds(shown)[1:] == ["ApprovalRequested", "Voted", "GlassBroken", "Approved"]
    assert "sam, who broke the glass" in within("wait", call, store=shop).err
    assert "sam alone lets it run: It burns." in within("show", call, store=shop).out


# -------------------------------------------------------------------------------------- all at once


def test_all_that_waits_is_decided_at_once_and_failures_are_told_one_by_one(shop, within, thread):
    """Shown whole first, then each by itself; one that cannot be voted on stops nothing (B72)."""
    mine, yours, hers = (thread.call(name) for name in ("mine", "yours", "hers"))
    ask(shop, mine, requester="rita")
    ask(shop, hers, requester="ana")
    ask(shop, yours, requester="rita", arguments=SIX)
    others = (CallRef("shop", f"{thread.thread}-b", "c"), thread.call("signed"))
    for call, tool in zip(others, ("pay", "sign"), strict=True):
        ask(shop, call, tool)
    before = last_seq(shop)
    every = (
        "approve",
        "--all",
        "--matching",
        f"tool:p?y thread:{thread}",
        "-w",
        "shop",
        "--as",
        "ana",
    )
    shown = approvals(*every, store=shop)
    assert (shown.code, shown.out, last_seq(shop)) == (2, "", before)
    for said in (
        "amount  5",
        "amount  6",
        str(mine),
        "3 calls wait.",
        "Add --yes to approve all of them.",
    ):
        assert said in shown.err
    ended = within(*every, "--yes", "--json", store=shop)
    assert (ended.code, ended.err) == (1, "")
    found = {line["call"]: (line["status"], line["error"]) for line in ended.lines}
    assert found[str(mine)] == found[str(yours)] == ("approved", None)
    assert found[str(hers)][0] == "pending"
    assert found[str(hers)][1].startswith(f"ana asked for {hers}")
    assert [within("wait", call, "--timeout", "0", store=shop).code for call in others] == [8, 8]
    no = split(f"deny --all --matching 'thread:{thread} tool:pay' --yes --as ben")
    rest = within(*no, store=shop)
    assert rest.code == 0
    assert rest.err.startswith(f"{hers}: Denied by ben at 20")
    until_listed(shop, hers, listed=False)
    nothing = within(*every, "--yes", store=shop)
    assert nothing == (0, "", "No pending call matches. Nothing was recorded.\n")


def test_all_is_what_was_shown(shop, within, thread):
    """A queue that shows other arguments than the ledger gets nobody's yes (B61, B62)."""
    call, true = thread.call("doctored"), thread.call("true")
    for one in (call, true):
        ask(shop, one, arguments=SIX)

    async def doctored():
        async with Ledger.connect(shop, role="queue") as queue:
            key = f"{call.workspace}.{call.thread}.{call.call}"
            value, revision = await entry_of(queue.log.pending, key)
            assert await queue.log.pending.put(key, value.replace(b": 6", b": 5"), revision)

    asyncio.run(doctored())
    ended = within(
        *split(f"approve --all --matching thread:{thread} --yes --as ana --json"), store=shop
    )
    assert ended.code == 1
    told = {line["call"]: line["error"] for line in ended.lines}
    assert told[str(true)] is None
    assert told[str(call)] == f"{call} is not what was shown. Look at it by itself: ayes show."
    assert "Voted" not in kinds(within("show", call, "--json", store=shop))


def test_at_a_terminal_one_is_asked_first(shop, within, thread):
    """Only a yes is a yes; what was decided meanwhile is told as that, the others go through."""
    first, second = thread.call("first"), thread.call("second")
    for call in (first, second):
        ask(shop, call)
    every = ("approve", "--all", "--matching", f"thread:{thread}", "--as", "ana")
    before = last_seq(shop)
    with at_a_terminal(*every, store=shop) as terminal:
        terminal.read_until("2 calls wait. Approve all of them? [y/N]")
        terminal.type("")
        assert terminal.ended() == 1
    with at_a_terminal(*every, store=shop) as terminal:
        terminal.read_until("[y/N]")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 130
    assert last_seq(shop) == before
    with at_a_terminal(*every, store=shop) as terminal:
        terminal.read_until("[y/N]")
        assert re.search(r"amount\S*  \S*5", terminal.told)
        assert within("deny", second, "--as", "ben", store=shop).code == 0
        terminal.type("y")
        assert terminal.ended() == 1
    assert f"{first}: Approved by ana" in terminal.told
    assert f"{second}: error: {second} is already decided: Denied by ben" in terminal.told
    assert "1 of 2 went through." in terminal.told


# ------------------------------------------------------------------------------ who runs it oneself


def test_whoever_runs_it_says_how_it_went(shop, within, thread):
    """A call is claimed once and ends once; output and error: a word or stdin (B34, I6, I9)."""
    done, failed, waits = thread.call("done"), thread.call("failed"), thread.call("waits")
    for call in (done, failed):
        ask(shop, call, "look")
    ask(shop, waits)
    started = within("start", done, "--json", store=shop)
    assert (started.code, started.one["status"], started.one["arguments"]) == (0, "running", FIVE)
    again = within("start", done, store=shop)
    assert (again.code, "is already claimed" in again.err) == (1, True)
    words = ("finish", done, "--output", "-", "--json")
    finished = approvals(*words, store=shop, typed="two\nlines\n")
    assert (finished.code, finished.one["status"]) == (0, "returned")
    assert last(within("show", done, "--json", store=shop))["output"] == "two\nlines\n"
    late = within("finish", done, "--output", "something else", store=shop)
    assert (late.code, "has ended already" in late.err) == (1, True)
    assert within("finish", failed, "--error", "no such order", store=shop).code == 0
    assert kinds(within("show", failed, "--json", store=shop))[-2:] == ["ToolStarted", "ToolFailed"]
    early = within("finish", waits, "--output", "done", store=shop)
    assert (early.code, "is pending, so it cannot be started" in early.err) == (1, True)


# -------------------------------------------------------------------------------- the policy of all


def test_the_organisations_policy_holds_in_every_workspace(shop, within, tmp_path):
    """Its own versions and credentials; no workspace loosens it; both are shown as applied."""
    over, own = tmp_path / "over.toml", tmp_path / "own.toml"
    over.write_text('[[rule]]\nname = "vault"\ntools = ["vault"]\nthen = "block"\n')
    own.write_text('[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\npriority = 1000\n')
    missing = within("policy", "show", "--organisation", store=shop)
    assert missing.code == 2
    assert "there is no version of the organisation's policy" in missing.err
    applied = within("policy", "apply", over, "--organisation", "--json", store=shop)
    assert (applied.code, applied.one) == (0, {"organisation": True, "version": 1})
    assert within("policy", "apply", own, "-w", "desk", store=shop).code == 0
    blocked = within("request", "desk/org/a", "vault", FIVE, "--json", store=shop)
    assert (blocked.code, blocked.one["decision"]) == (5, "Denied")
    assert within("request", "desk/org/b", "look", FIVE, store=shop).code == 0
    assert within("policy", "show", "--organisation", store=shop).out == over.read_text()
    shown = within("policy", "show", "-w", "desk", "--version", "1", "--json", store=shop)
    assert shown.one["event"]["text"] == own.read_text()


def _before_callouts(known, callout):
    """Accounts that list their users, beside the one that is only needed to connect."""
    service = f"callout {{users: [{{nkey: {callout.key}}}]}}\n"
    return accounts_config(known).replace("accounts {\n", f"accounts {{\n  {service}")


def test_a_broker_of_an_earlier_version_must_be_started_again(tmp_path, monkeypatch):
    """It says so when a person is missing that it cannot add, and has them from then on."""

    async def run(*commands):
        async with EmbeddedServer(tmp_path / "store") as server:
            where = {"store": server.store.path}
            return [await asyncio.to_thread(approvals, *one, **where) for one in commands]

    approve = ("approve", "shop/t/c", "--as", "ana")
    with monkeypatch.context() as patch:
        patch.setattr("ayes.ops.broker.server.accounts_config", _before_callouts)
        (ended,) = asyncio.run(run(approve))
    assert ended.code == 4
    assert "an earlier version of ayes started the broker in" in ended.err
    assert "Stop that `ayes up` and start it again; nothing is lost." in ended.err
    _, ended = asyncio.run(run(("setup",), approve))
    assert "shop/t/c was never requested" in ended.err


# ---------------------------------------------------------------------------------------- bad input

FILES = {
    "policy.toml": POLICY,
    "group.toml": '[[rule]]\nname = "x"\ntools = ["pay"]\nthen = "ask"\nvoters = ["@nobody"]\n',
    "condition.toml": '[[rule]]\nname = "x"\ntools = ["pay"]\nthen = "block"\nwhen = "args.amount '
    '>"\n',
    "contradicts.toml": "".join(
        f'[[rule]]\nname = "{then}"\ntools = ["pay"]\nthen = "{then}"\n'
        for then in ("allow", "block")
    ),
    "unending.toml": '[[rule]]\nname = "x"\ntools = ["pay"]\nthen = "ask"\non_timeout = "stay"\n',
    "many.toml": "".join(
        f'[[rule]]\nname = "{n}"\ntools = ["t{n}"]\nthen = "ask"\n' for n in range(1001)
    ),
}
OPEN = "shop/t/open"
GIVE = "grant give --tool pay -w shop --as ana"
AWAY = "delegate give ben -w shop --as ana"


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A store in which nothing moves: one call waits."""
    folder = tmp_path_factory.mktemp("calm")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    with program.shop(folder, POLICY, TOOLS) as store:
        ask(store, CallRef.parse(OPEN))
        yield store


BAD_INPUT = [
    # what is done, how it ends, what must be said
    ("policy apply group.toml -w shop", 2,
     "group.toml, line 5, rule 'x': there is no group 'nobody'. There are none."),
    ("policy apply condition.toml -w shop", 2,
     "condition.toml, line 5, rule 'x': |is not a valid condition"),
    ("policy apply contradicts.toml -w shop", 2,
     "contradicts.toml, line 8, rule 'block': |for the same calls"),
    ("policy apply unending.toml -w shop", 2,
     "unending.toml, line 5, rule 'x': |needs expires_in_s"),
    ("policy apply many.toml -w shop", 2,
     "many.toml, line 1: |1,001 entries. It can have 1,000 at most."),
    ("policy apply policy.toml --organisation -w desk", 2,
     "holds in every workspace. Leave out -w"),
    ("policy show --version 7", 2,
     "there is no version 7 of the policy of shop. The versions are 1 to 1."),
    ("policy show -w desk", 2,
     "there is no version of the policy of desk. |every call is asked about"),
    (f"{GIVE} --duration 1h", 2,
     "which calls of the tool? Give --when CONDITION, or --any-arguments"),
    (f"{GIVE} --duration soon --any-arguments", 2,
     "--duration 'soon' is not a valid duration. Write a number and its unit"),
    (f"{GIVE} --duration -5m --any-arguments", 2, "--duration '-5m' is not a valid duration"),
    (f"{GIVE} --duration 0s --any-arguments", 2, "--duration '0s' is too short: 1s at least."),
    (f"{GIVE} --duration 400d --any-arguments", 2, "--duration '400d' is too long: 366d at most."),
    (f"{GIVE} --duration 1h --any-arguments --uses 0", 2, "a grant has 1 to 1,000 uses, not 0."),
    (f"{GIVE} --duration 1h --when args.amount>", 2, "'args.amount>' is not a valid condition"),
    (f"{GIVE} --duration 1h --when amount>5", 2, "has unknown names"),
    (f"{GIVE} --duration 1h --when args.amount>5 --any-arguments", 2,
     "say different things. Give one of them."),
    (f"{GIVE} --duration 1h --any-arguments --name a.b", 2, "name 'a.b' cannot be used"),
    (f"grant give {OPEN} --tool pay --duration 1h --as ana", 2,
     "a grant is for calls like one CALL, or for a tool"),
    ("grant give --duration 1h --any-arguments --as ana", 2,
     "a grant is for calls like one CALL, or for a tool"),
    (f"grant give {OPEN} -w desk --duration 1h --as ana", 2, "is not in workspace 'desk'. Leave"),
    ("grant give shop/t/nobody --duration 1h --as ana", 1, "shop/t/nobody was never requested"),
    ("grant give --tool nail -w shop --duration 1h --any-arguments --as ana", 2,
     "no tool 'nail' is declared"),
    ("grant give --tool erase -w shop --duration 1h --any-arguments --as ana", 4,
     ("no grant may cover erase: people look at each call of it, "
      "as never_grant in the policy says.")),
    ("grant revoke shop/ana/nothing --as ben", 2,
     "there is no grant shop/ana/nothing. `ayes grant list`"),
    ("grant revoke nothing --as ben", 2, "'nothing' is not of the form workspace/giver/name"),
    ("grant list -w a.b", 2, "workspace 'a.b' cannot be used"),
    (f"{AWAY} --from 2020-01-01 --until 2020-02-01", 2,
     "it was over at 2020-02-01 00:00 UTC. Give a later end."),
    (
        f"{AWAY} --from 2101-02-01 --until 2101-01-01",
        2,
        "it ends (2101-01-01 00:00 UTC) before it starts (2101-02-01 00:00 UTC).",
    ),
    (f"{AWAY} --from tomorrow --until 2101-01-01", 2,
     "--from 'tomorrow' is not a valid time. Write it as in 2026-11-21T"),
    (f"{AWAY} --from 2101-01-01 --until 8h", 2, "--until '8h' is not a valid time."),
    (f"{AWAY} --from 2101-01-01 --until 2102-01-01 --tool a:b", 2, "tool 'a:b' cannot be used"),
    (
        "delegate give ana -w shop --as ana --from 2101-01-01 --until 2102-01-01",
        2,
        "ana has their own vote already. Name somebody else.",
    ),
    ("delegate end shop/ana/nothing --as ana", 2, "there is no delegation shop/ana/nothing."),
    (f"approve {OPEN} --as ben --on-behalf-of ana", 4,
     "ana gave ben no vote on pay that holds now. Nothing was recorded."),
    (f"break-glass {OPEN} --as ana", 2, "Missing option '--reason'"),
    (f"break-glass {OPEN} --as ana --reason fire", 4,
     "may break the glass for shop/t/open. |asks nobody"),
    ("approve --as ana", 2, "name one CALL, or give --all for all pending calls."),
    (f"approve {OPEN} --all --as ana", 2, "name one CALL, or give --all for all pending calls."),
    (f"approve {OPEN} --matching tool:pay --as ana", 2, "go with --all, not with one CALL."),
    ("approve --all --digest 0123456789ab --as ana", 2, "--digest is for one call."),
    (f"approve {OPEN} --digest 0123 --as ana", 2,
     "--digest '0123' is not a digest. It has 12 to 64 hex digits"),
    (f"approve {OPEN} --digest 0123456789ab --as ana", 1,
     "waits with the digest |Nothing was recorded."),
    ("approve --all --edit {} --yes --as ana", 2, "--edit is for one call. Name it"),
    ("approve --all --as ana", 2,
     "1 call waits. Nobody can be asked here, so nothing was recorded. Add --yes"),
    ("deny --all --matching thread:a.b --yes --as ana", 2, "'a.b' is not the name of a thread."),
    ("approve --all --as nobody --yes", 1, "nobody is none of those who may vote on shop/t/open"),
    (f"finish {OPEN}", 2, "ends with --output TEXT or with --error TEXT: give one of them."),
    (f"finish {OPEN} --output a --error b", 2, "give one of them."),
    (f"start {OPEN}", 1, "shop/t/open is pending, so it cannot be started"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "said"), BAD_INPUT, ids=[row[0] for row in BAD_INPUT])
def test_bad_input_is_told_and_not_recorded(calm, within, monkeypatch, line, code, said):
    """A sentence on stderr: what is wrong, where, and what to do; nothing changes."""
    before = last_seq(calm)
    monkeypatch.chdir(calm.parent)
    words = line.split()
    if words[0] == "policy" and "-w" not in words:
        words += ["-w", "shop"]
    ended = within(*words, store=calm)
    for part in said.split("|"):
        assert part in ended.err
    assert (ended.code, ended.out) == (code, "")
    assert last_seq(calm) == before


def test_a_policy_is_proposed_and_applied_once_somebody_else_approved_it(shop, within, tmp_path):
    """The proposer's yes does not count; applied twice it is one version, never a later one (H7)"""
    looser = tmp_path / "looser.toml"
    looser.write_text('[[rule]]\nname = "all"\ntools = ["*"]\nthen = "allow"\n')
    words = split("-w proposing --propose --requester olga --json")
    proposed = within("policy", "apply", looser, *words, store=shop)
    assert proposed.code == 8, proposed.err
    call = proposed.one["proposal"]
    assert within("policy", "apply", "--proposal", call, store=shop).code == 1
    until(shop, CallRef.parse(call).gated)
    own = within("approve", call, "--as", "Olga", store=shop)
    assert (own.code, "asked for" in own.err) == (4, True)
    assert within("approve", call, "--as", "ana", store=shop).code == 0
    for _ in range(2):
        applied = within("policy", "apply", "--proposal", call, "--json", store=shop)
        assert (applied.code, applied.err) == (0, "")
        assert applied.one == {"workspace": "proposing", "version": 1}
    for wrong in ((), ("--proposal", call), ("--propose",), ("--requester", "olga")):
        given = (looser, *wrong) if wrong else ()
        assert within("policy", "apply", *given, store=shop).code == 2
