"""`ayes policy diff`, and what applying and proposing a policy say of it."""

import json
import sys

import program
import pytest

from ayes.schemas.slots import CallRef

SMALL = '[[rule]]\nname = "small"\ntools = ["pay"]\nthen = "allow"\nwhen = "args.amount <= 50"\n'
LARGER = SMALL.replace("50", "100")
ODD = SMALL.replace("args.amount <= 50", 'args.note.matches(\\"^[0-9]{9}$\\")')
NOTHING = "Nothing is opened: whatever {} lets through, {} lets through too."


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    with program.shop(tmp_path_factory.mktemp("opened"), SMALL, ("pay", "look")) as store:
        yield store


@pytest.fixture
def files(tmp_path):
    """The three policies as files, by name."""
    found = {"small": SMALL, "larger": LARGER, "odd": ODD}
    for name, text in found.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return {name: str(tmp_path / f"{name}.toml") for name in found}


@pytest.fixture
def without_solver(monkeypatch):
    """As if the extra were not installed."""
    monkeypatch.delitem(sys.modules, "ayes.ops.policy_diff.compare", raising=False)
    monkeypatch.setitem(sys.modules, "z3", None)


def test_two_files_are_compared_without_a_broker(files, within, tmp_path):
    """The lines that differ, the call, and the command that tries it, which then allows it."""
    store = tmp_path / "no-store"
    ended = within("policy", "diff", files["small"], files["larger"], store=store)
    assert (ended.code, ended.err) == (1, "")
    *_, first, call, trial = ended.out.splitlines()
    assert '-when = "args.amount <= 50"' in ended.out.splitlines()
    assert first == (
        f"Opened: {files['larger']} lets this call through ('small'), and {files['small']} asks "
        "people ('no rule'):"
    )
    assert json.loads(call) == {"tool": "pay", "arguments": {"amount": 51}}
    words = ["--tool", "pay", "--arguments", '{"amount":51}']
    assert trial.split() == [
        "ayes",
        "policy",
        "test",
        files["larger"],
        *words[:-1],
        f"'{words[-1]}'",
    ]
    assert "'small'" in within("policy", "test", files["larger"], *words).out
    assert not store.exists()


def test_the_exit_code_is_the_answer(files, within):
    """0: proved; 1: opened; 3: it cannot be proved, with the rule and the reason."""
    proved = within("policy", "diff", files["larger"], files["small"])
    assert (proved.code, proved.out.splitlines()[-1]) == (
        0,
        NOTHING.format(files["small"], files["larger"]),
    )
    unproved = within("policy", "diff", files["small"], files["odd"])
    assert unproved.code == 3
    assert unproved.out.splitlines()[-2:] == [
        f"It cannot be proved that {files['odd']} opens nothing:",
        f"  'small' of {files['odd']}: it has matches().",
    ]
    opened = within("policy", "diff", files["small"], files["larger"], "--json")
    assert (opened.code, opened.one["answer"]) == (1, "opened")
    assert opened.one["call"]["arguments"] == {"amount": 51}
    assert '+when = "args.amount <= 100"' in opened.one["changes"]
    assert (opened.one["covered"], opened.one["covered_before"]) == (None, None)
    unproved = within("policy", "diff", files["small"], files["odd"], "--json").one
    why = {"policy": "new", "rule": "small", "why": "it has matches()"}
    assert (unproved["answer"], unproved["unproved"]) == ("cannot_be_proved", [why])


def test_bad_input_gets_one_sentence(files, within, tmp_path, shop):
    """A file that is not there or no policy, and a version that there is not."""
    broken = tmp_path / "broken.toml"
    broken.write_text('[[rule]]\nname = "x"\n')
    missing = tmp_path / "missing.toml"
    for words, said in (
        ((missing, files["small"]), f"{missing}: cannot be read: No such file or directory."),
        ((files["small"], broken), "broken.toml"),
        (("9", files["small"], "-w", "shop"), "there is no version 9 of the policy of shop."),
        (("1", "2", "-w", "empty"), "no version 1 of the policy of empty: none was ever applied."),
        (("1", "2", "--organisation"), "no version 1 of the organisation's policy"),
        (("1", "2", "-w", "shop", "--organisation"), "Leave out -w or --organisation."),
    ):
        ended = within("policy", "diff", *words, store=shop)
        assert (ended.code, ended.out) == (2, "")
        assert said in ended.err
        assert len(ended.err.splitlines()) <= 2


def test_a_version_is_named_by_its_number(files, within, shop):
    """It stands beside the organisation's policy, and past calls show what its rules name."""
    program.ask(shop, CallRef("shop", "covered", "a"))
    program.ask(shop, CallRef("shop", "covered", "b"), "look")
    ended = within("policy", "diff", "1", files["larger"], "-w", "shop", store=shop)
    assert ended.code == 1
    assert "and version 1 asks people ('no rule'):" in ended.out
    named = "a rule names 1 of 2 past calls (50.0%)"
    assert ended.out.splitlines()[-1] == f"Coverage: {named}; under version 1 {named}."
    same = within("policy", "diff", "1", "1", "-w", "shop", "--json", store=shop)
    assert (same.code, same.one["answer"], same.one["changes"]) == (0, "nothing_opened", [])
    assert same.one["covered"] == {"named": 1, "calls": 2}


def test_applying_and_proposing_say_what_is_opened(files, within, shop):
    """Beside the lines that differ; of a first version there is nothing to say."""
    first = within("policy", "apply", files["small"], "-w", "told", store=shop)
    assert (first.code, "opened" in first.err.lower()) == (0, False)
    dry = within("policy", "apply", files["larger"], "-w", "told", "--dry-run", store=shop)
    assert '  {"tool":"pay","arguments":{"amount":51}}' in dry.out.splitlines()
    words = ("policy", "apply", files["larger"], "-w", "told", "--propose", "--requester", "olga")
    proposed = within(*words, store=shop)
    assert proposed.code == 8
    assert f"Opened: {files['larger']} lets this call through" in proposed.err
    told = within(*words, "--json", store=shop).one
    assert told["opens"]["call"]["arguments"] == {"amount": 51}
    applied = within("policy", "apply", files["larger"], "-w", "told", store=shop)
    assert '  {"tool":"pay","arguments":{"amount":51}}' in applied.err.splitlines()
    closed = within("policy", "apply", files["small"], "-w", "told", "--json", store=shop).one
    assert (closed["version"], closed["opens"]["answer"]) == (3, "nothing_opened")


def test_an_approved_proposal_says_what_it_opens(files, within, shop):
    """When it is applied too."""
    assert within("policy", "apply", files["small"], "-w", "agreed", store=shop).code == 0
    words = ("-w", "agreed", "--propose", "--requester", "olga", "--json")
    call = within("policy", "apply", files["larger"], *words, store=shop).one["proposal"]
    assert within("approve", call, "--as", "ana", store=shop).code == 0
    applied = within("policy", "apply", "--proposal", call, store=shop)
    assert applied.code == 0
    assert f"Opened: {call} lets this call through ('small'), and version 1 asks" in applied.err


def test_without_the_extra_only_the_comparison_is_missing(files, within, shop, without_solver):
    """`diff` says what to install; `apply` says so in one line, and applies."""
    install = "z3-solver, which compares policies, is not installed: pip install 'ayes[prove]'."
    ended = within("policy", "diff", files["small"], files["larger"])
    assert (ended.code, ended.out) == (2, "")
    assert install in ended.err
    assert within("policy", "apply", files["small"], "-w", "bare", store=shop).code == 0
    applied = within("policy", "apply", files["larger"], "-w", "bare", store=shop)
    assert applied.code == 0
    assert f"not compared: {install}" in applied.err.splitlines()
    assert "is version 2 of the policy of bare" in applied.err
    again = within("policy", "apply", files["small"], "-w", "bare", "--json", store=shop)
    assert (again.code, again.one, again.err) == (0, {"workspace": "bare", "version": 3}, "")
