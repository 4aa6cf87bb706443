"""`ayes scorecard`: each guard switched off in turn, and the line turns (docs/scorecard.md).

The page has the table of a site with one policy and two tools. It is written anew by
`PYTHONPATH=tests/support .venv/bin/python tests/ops/test_scorecard.py`.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import program
import pytest
from brokers import running
from long import sampled
from paths import ROOT
from shop import rule

from ayes.consumers import gate
from ayes.ledger import validity
from ayes.ledger.call import Call
from ayes.ledger.clients.client import LedgerClient
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging import budgets, chain, policies, policy_rules, verdict
from ayes.ledger.judging.policies import STRICTNESS
from ayes.ledger.lifecycle import MAY_FOLLOW, NOT_RUN, Status
from ayes.ledger.nats.jetstream import JetStream
from ayes.ledger.nats.streams import LEDGER
from ayes.ledger.stops import Stop
from ayes.ops.actions.stops import stops_in
from ayes.ops.broker import accounts, callout
from ayes.ops.broker.setup import apply_policy
from ayes.ops.inspection import attacks, trials
from ayes.ops.inspection.checks import overview
from ayes.ops.inspection.scorecard import LINES, Evidence, LineAnswer, Site
from ayes.ops.inspection.trials import WORKSPACE, Attempt
from ayes.ops.inspection.witness import place_of
from ayes.ops.workers import reactions, working
from ayes.schemas import tools, visible
from ayes.schemas.policy import Policy, read_policy
from ayes.schemas.slots import ORGANISATION

PAGE = ROOT / "docs" / "scorecard.md"
POLICY = rule("looks", "allow", tools="look") + rule("money", "ask", 'voters = ["ana", "ben"]')
BY_NUMBER = {line.number: line for line in LINES}
BARE = Site(policies=[], organisation=Policy(), tools=[], unlike="")


class Held(defaultdict[str, Attempt]):
    """Attempts of which all that are not named were held off."""

    def __init__(self, **named: Attempt) -> None:
        super().__init__(lambda: Attempt(held=True, said="held"), named)


def answer(number: str, found: dict[str, Attempt], site: Site = BARE) -> LineAnswer:
    return BY_NUMBER[number].judge(Evidence(Held(**found), site))


# -------------------------------------------------------------------------------------- the table


def test_it_has_the_lines_of_the_chapter():
    """34 of them, in their order."""
    sections = {1: 3, 2: 10, 3: 8, 4: 4, 5: 6, 6: 3}
    wanted = [f"9.{section}.{n + 1}" for section, count in sections.items() for n in range(count)]
    assert [line.number for line in LINES] == wanted
    levels = "112" + "1222222333" + "11222223" + "2233" + "222223" + "123"
    assert "".join(str(line.level) for line in LINES) == levels


@pytest.mark.parametrize(
    ("number", "site", "wanted"),
    [
        ("9.1.2", {}, "partly"),
        ("9.1.2", {"policies": [read_policy("calls_per_thread = 5", "")]}, "yes"),
        ("9.4.4", {}, "partly"),
        ("9.4.4", {"unlike": "it is shorter"}, "no"),
        ("9.5.1", {}, "partly"),
        ("9.5.1", {"policies": [read_policy(POLICY, "")]}, "yes"),
    ],
)
def test_what_the_site_has_counts(number, site, wanted):
    """A guard that nothing uses here is a part."""
    assert answer(number, {}, msgspec.structs.replace(BARE, **site)).answer == wanted


# --------------------------------------------------------------------------- guards, switched off

type Switch = Callable[[pytest.MonkeyPatch], None]


def off(owner: Any, name: str, value: Any) -> Switch:
    return lambda patch: patch.setattr(owner, name, value)


def _few(cases: list[tuple[Any, ...]]) -> Any:
    """The first and the last in `make test`."""
    each = [pytest.param(*one) for one in cases]
    return sampled(each, each[0], each[-1])


def nothing(*_: Any, **__: Any) -> None:
    return None


def never(*_: Any, **__: Any) -> bool:
    return False


def always(*_: Any, **__: Any) -> bool:
    return True


#: Each guard of the rules, how it is switched off, and the line that turns to no.
OF_RULES: list[tuple[str, Switch, str]] = [
    ("a claim needs an approval", off(validity, "void", nothing), "9.2.1"),
    ("a claim needs an approval", off(validity, "void", nothing), "9.4.2"),
    ("a claim is about the approved bytes", off(validity, "_void_claim", nothing), "9.2.2"),
    ("a vote is about the shown bytes", off(validity, "_void_vote", nothing), "9.2.8"),
    ("the requester does not count", off(validity, "_void_vote", nothing), "9.2.1"),
    ("what is hidden is spelled out", off(visible, "_is_hidden", never), "9.2.2"),
    ("a budget has a limit", off(budgets.Sum, "fits", always), "9.1.1"),
    ("a budget has a limit", off(budgets.Sum, "fits", always), "9.1.2"),
    ("a chain has an end", off(chain, "MAX_DEPTH", 99), "9.1.2"),
    ("a thread is below its parent", off(verdict, "disowned", nothing), "9.5.5"),
    ("a tool that governs is asked about", off(verdict, "_governs", never), "9.2.5"),
    ("a tool is declared", off(verdict, "_invalid", nothing), "9.3.7"),
    ("a stop covers calls", off(Stop, "covers", never), "9.1.3"),
    ("a stop covers models", off(Stop, "covers_thread", never), "9.6.1"),
    ("a class is part of a version", off(tools, "version_of", lambda *_: "v1"), "9.2.3"),
    ("a rule looks at the class", off(policy_rules, "covers", always), "9.2.4"),
    (
        "the highest class counts",
        off(policies, "highest_class", lambda classes: next(iter(classes))),
        "9.2.10",
    ),
]


@pytest.mark.parametrize(("guard", "switch", "number"), OF_RULES)
async def test_a_line_turns_without_its_rule(monkeypatch, guard, switch, number):
    """With all else as it is."""
    before = answer(number, await trials.trials()).answer
    switch(monkeypatch)
    after = answer(number, await trials.trials())
    assert (before in ("yes", "partly"), after.answer) == (True, "no"), guard
    assert after.why.startswith("not so: ")


CALL = "ledger.*.*.call.*"
#: Each permission of the broker that is too wide, and the lines that turn to no.
OF_THE_BROKER = [
    ("model", f"{CALL}.decided", ["9.2.1", "9.2.9", "9.5.1", "9.5.3"]),
    ("service", f"{CALL}.vote.*", ["9.2.1", "9.2.9", "9.5.3"]),
    ("reviewer-ana", f"{CALL}.vote.*", ["9.2.1", "9.2.9"]),
    ("model", f"{CALL}.claim.*", ["9.5.3"]),
    ("model", f"{CALL}.requested", ["9.4.1", "9.5.3"]),
    ("service", "ledger.*._policy.*", ["9.2.5"]),
    ("model", "ledger.*.*.said.*", ["9.2.5"]),
    ("executor", "ledger.*._stop.*.*.given", ["9.6.3"]),
    ("service", "_INBOX.gate.>", ["9.2.9", "9.4.1"]),
]


@pytest.mark.parametrize(("role", "subject", "numbers"), _few(OF_THE_BROKER))
async def test_a_line_turns_if_the_broker_allows_more(
    monkeypatch, tmp_path, role, subject, numbers
):
    """One role and one subject more; nothing of it is recorded."""
    slots, permissions = accounts.slots_of, callout.permissions

    def loosened(of: str, *args: Any, **named: Any) -> accounts.Permissions:
        may = permissions(of, *args, **named)
        return msgspec.structs.replace(may, subscribe=(*may.subscribe, *more(of, "_INBOX")))

    def more(of: str, begin: str) -> tuple[str, ...]:
        return (subject,) if of == role and subject.startswith(begin) else ()

    monkeypatch.setattr(accounts, "slots_of", lambda of: (*slots(of), *more(of, "ledger")))
    monkeypatch.setattr(callout, "permissions", loosened)
    monkeypatch.setattr(attacks, "_ATTACKS", ())
    async with running(tmp_path / "store") as server:
        found = await attacks.attempts(server.store, "ana")
        async with Ledger.connect(server.store.path, role="observer") as ledger:
            recorded = await ledger.read("ledger.>")
    turned = {line.number for line in LINES if answer(line.number, found).answer == "no"}
    tried = await trials.trials()
    without = {line.number for line in LINES if answer(line.number, tried).answer == "no"}
    assert turned - without == {*numbers}
    assert {fact.slot.tail[0] for fact in recorded} == {"_policy", "_tool"}


def stale(patch: pytest.MonkeyPatch) -> None:
    """Let all readers keep the first policy that they saw."""
    read, known = LedgerClient._in_force, dict[str, Any]()

    async def first(self: LedgerClient, workspace: str, before: int | None = None) -> Any:
        found = await read(self, workspace, before)
        return known.setdefault(workspace, found) if found.version else found

    patch.setattr(LedgerClient, "_in_force", first)


def lax(patch: pytest.MonkeyPatch) -> None:
    """Let every start count, and nothing be refused."""
    patch.setattr(validity, "void", nothing)
    patch.setattr(Call, "flaw", None)
    patch.setattr(LedgerClient, "check", _unchecked)


async def _unchecked(*_: Any) -> None:
    return None


def no(*numbers: str) -> dict[str, str]:
    return dict.fromkeys(numbers, "no")


#: Each guard of a site at work, its attack (the last one), and the lines that turn.
AT_WORK: list[tuple[str, Switch, str, dict[str, str]]] = [
    (
        "block beats ask",
        lambda patch: patch.setitem(STRICTNESS, "block", 0),
        "_blocked",
        no("9.5.1"),
    ),
    ("only an approved call starts", lax, "_unanswered", no("9.2.1", "9.6.2")),
    (
        "a stop covers calls",
        off(Stop, "covers", never),
        "_stopped",
        no("9.1.3", "9.6.1", "9.6.3"),
    ),
    (
        "a slot takes one fact",
        nothing,
        "_replaced",
        no("9.2.8", "9.4.2", "9.4.4"),
    ),
    ("the newest policy counts", stale, "_blocked _outdated", no("9.5.6")),
    ("an approval lapses", off(gate, "lapse", nothing), "_approved_before", {"9.5.6": "partly"}),
]


@pytest.mark.parametrize(("guard", "switch", "attack", "turned"), _few(AT_WORK))
async def test_a_line_turns_at_a_site_without_its_guard(
    monkeypatch, tmp_path, guard, switch, attack, turned
):
    """By a real call, with a gate that has no such guard either."""
    made = [getattr(attacks, one) for one in attack.split()]
    monkeypatch.setattr(attacks, "_ATTACKS", made)
    async with running(tmp_path / "store") as server:
        if attack == "_replaced":
            await keep_two_facts(server.store.path)
        async with working(reactions(["gate", "queue"]), store=server.store.path):
            before = await trials.trials()
            switch(monkeypatch)
            name = made[-1].__name__.strip("_")
            found = before | {name: (await attacks.attempts(server.store, "ana"))[name]}
    assert not found[name].held, guard
    assert "could not be tried" not in found[name].said
    assert {number: answer(number, found).answer for number in turned} == turned


async def keep_two_facts(store: Path) -> None:
    async with JetStream.connect(store, role="admin") as log:
        config = (await log.api.call(f"STREAM.INFO.{LEDGER}"))["config"]
        await log.api.call(f"STREAM.UPDATE.{LEDGER}", config | {"max_msgs_per_subject": 2})


def test_each_attempt_can_turn_a_line():
    """Lines without a guard to be switched off are those that are always no, or not ours."""
    tried = {number for _, _, number in OF_RULES}
    tried |= {number for *_, numbers in (*OF_THE_BROKER, *AT_WORK) for number in numbers}
    ours = {line.number for line in LINES if answer(line.number, {}).answer in ("yes", "partly")}
    assert ours <= tried


# ----------------------------------------------------------------------------------- a real site


async def test_it_leaves_nothing_open_and_no_alarm(tmp_path):
    """No stop holds, nobody is asked, no call is approved or runs; and twice is as once."""
    async with running(tmp_path / "store") as server:
        store = server.store
        async with working(reactions(["gate", "queue"]), store=store.path):
            first, second = [await attacks.attempts(store, "ana") for _ in range(2)]
            assert first == second
            async with JetStream.connect(store.path, role="operator") as log:
                look = await overview(log, store, place_of(store.path, None))
                assert [one for one in look.alarms if "consumers" not in one] == []
                ledger = Ledger.on(log, "operator")
                stops, now = await stops_in(ledger), await log.clock()
                facts = await ledger.read(f"ledger.{WORKSPACE}.>")
    assert [stop.holds(now) for stop in stops] == [False, False]
    refs = {fact.slot.call_ref for fact in facts} - {None}
    statuses = {validity.call_of(ref, facts).status for ref in refs if ref}
    assert statuses <= {one for one in Status if not MAY_FOLLOW[one]} | NOT_RUN
    assert not any(validity.void_runs(validity.call_of(ref, facts)) for ref in refs if ref)


@pytest.mark.parametrize(
    ("kinds", "organisation", "why"),
    [
        ([], "", "no gate judged a call within 0.2 s"),
        (["gate"], "policies_need_approval = true", "the organisation wants policies approved"),
        (["gate"], 'may_stop = ["eve"]\n', "ana may not stop scorecard"),
        (
            ["gate"],
            rule("all", "ask", tools="*"),
            "the policy of scorecard allows is put to people",
        ),
    ],
)
async def test_what_cannot_be_tried_is_no(monkeypatch, tmp_path, kinds, organisation, why):
    """With the reason, and without an alarm."""
    if not kinds:
        monkeypatch.setattr(attacks, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(attacks, "_ATTACKS", (attacks._stopped,))
    async with running(tmp_path / "store") as server:
        store = server.store.path
        if organisation:
            async with Ledger.connect(store, role="organisation") as above:
                await apply_policy(above, ORGANISATION, organisation, "")
        async with working(reactions(kinds), store=store):
            found = answer("9.1.3", await attacks.attempts(server.store, "ana"))
        async with Ledger.connect(store, role="observer") as ledger:
            assert await ledger.alarms() == ()
    assert found.answer == "no"
    assert "(it could not be tried: " in found.why
    assert why in found.why


@contextmanager
def scored() -> Iterator[str]:
    """The table of the page, on a site with one policy and two tools."""
    with (
        tempfile.TemporaryDirectory() as folder,
        program.shop(Path(folder), POLICY, ("look", "pay")) as store,
    ):
        ended = program.approvals("scorecard", "--as", "ana", "--json", store=store)
        assert ended.code == 0, ended.err
        *scores, counts = ended.lines
        rows = (f"| {' | '.join(str(one[name]) for name in COLUMNS)} |\n" for one in scores)
        yield f"{HEAD}{''.join(rows)}\n{', '.join(f'{n} {what}' for what, n in counts.items())}.\n"


COLUMNS = ("number", "level", "requirement", "answer", "evidence")
HEAD = f"| {' | '.join(COLUMNS)} |\n|---|---|---|---|---|\n"


def written(table: str) -> str:
    """The page with this table in place of the one that it has."""
    before, _, rest = PAGE.read_text().partition(HEAD)
    _, _, after = rest.partition(" not ours.\n")
    return f"{before}{table}{after}"


def test_the_page_has_the_answers():
    """Of a real `ayes up`; no evidence has a time in it."""
    with scored() as table:
        assert PAGE.read_text() == written(table), "write it anew, as the top of this file says"


def test_a_url_is_one_login(tmp_path):
    """So it is refused, and it says what to do."""
    ended = program.approvals("scorecard", "--url", "nats://127.0.0.1:1")
    assert (ended.code, "Name the store with --store instead" in ended.err) == (2, True)
    away = program.approvals("scorecard", "--json", store=tmp_path / "none")
    assert (away.code, away.problem["error"]) == (75, "BrokerAway")


if __name__ == "__main__":
    with scored() as found:
        PAGE.write_text(written(found))
