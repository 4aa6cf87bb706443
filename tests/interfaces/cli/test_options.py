"""What all commands share: help, examples, usage errors, stdin, completion."""

import asyncio
import os
import shlex
import signal
from pathlib import Path

import pytest
from pages import CLI, parse
from program import approvals, ask, at_a_terminal, until_listed, up

from ayes.interfaces.cli.terminal.tables import print_table
from ayes.ledger.clients.services import Ledger
from ayes.schemas.durations import parse_duration
from ayes.schemas.errors import BadInput
from ayes.schemas.slots import CallRef
from ayes.schemas.tools import ToolSpec

OPEN = CallRef("shop", "t", "open")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A store without a policy, where everybody is asked about everything."""
    with up(tmp_path_factory.mktemp("options") / "store") as ready:
        store = Path(ready["store"])

        async def declare():
            async with Ledger.connect(store) as ledger:
                await ledger.declare("shop", ToolSpec(name="pay", schema='{"type": "object"}'))

        asyncio.run(declare())
        ask(store, OPEN)
        yield store


@pytest.fixture
def call(request):
    return CallRef("shop", request.node.name.replace("[", "-").rstrip("]")[:60], "c")


# --------------------------------------------------------------------------------------------- help


def test_alone_it_shows_its_help(within):
    """`ayes` alone is a question about it, not a mistake: exit 0."""
    alone, asked = within(), within("--help")
    assert (alone.code, alone.err, alone.out) == (0, "", asked.out)


def test_help_is_a_command_too(within):
    """`ayes help grant give` is `ayes grant give --help`."""
    assert within("help").out == within("--help").out
    assert within("help", "grant", "give") == within("grant", "give", "--help")


def test_examples_are_valid_command_lines(within):
    """The main commands end their help with examples, which the command line accepts."""
    shown = {}

    def collect(group):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                collect(command)
            elif command.epilog:
                shown[name] = [
                    line.strip() for line in command.epilog.splitlines() if "ayes " in line
                ]

    collect(CLI)
    assert {"up", "request", "pending", "approve", "deny", "wait", "apply", "give"} <= set(shown)
    for line in (line for lines in shown.values() for line in lines):
        words = shlex.split(line[line.index("ayes ") :].split("&&")[0].split(" < ")[0])
        parse(words[1:])
    assert "  ayes approve shop/order-17/refund-1 --as ana\n" in within("approve", "--help").out


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("approve", "shop/t/c"), "Missing option '--as'"),
        (("pendin",), "No such command 'pendin'."),
        (("pending", "--nope"), "No such option: --nope"),
        (("status", "--url", ""), "it is empty. Name a broker"),
    ],
)
def test_usage_errors_are_json_for_programs(within, words, said):
    """With --json, what the command line itself finds is one line of JSON as well."""
    ended = within(*words, "--json")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert said in ended.problem["message"]
    assert (ended.problem["error"], ended.problem["exit_code"]) == ("BadInput", 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status", "--url", ""), "it is empty. Name a broker"),
        (("status", "--store", ""), "it is empty. Name a directory"),
        (("reconcile", OPEN, "--as", "ana", "--late", "--happened"), "leave out --happened"),
        (("pending", "--in-doubt", "--watch"), "--in-doubt goes without --watch"),
        (("lake", "sync", "--store", "typo"), "there is no store in "),
    ],
)
def test_mistakes_are_named(within, tmp_path, monkeypatch, words, said):
    """Empty values of a script, half an option, and a store that is not there: exit 2."""
    monkeypatch.chdir(tmp_path)
    ended = within(*words)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_named_store_overrides_the_environments_url(shop, within, monkeypatch):
    """What is typed counts more than a variable; of two variables, the broker's URL does."""
    monkeypatch.setenv("AYES_URL", "nats://127.0.0.1:1")
    assert within("show", str(OPEN), "--store", str(shop)).code == 0
    monkeypatch.setenv("AYES_STORE", str(shop))
    assert "127.0.0.1:1" in within("show", str(OPEN)).err


def test_a_duration_may_be_too_long():
    with pytest.raises(BadInput, match=r"--duration '999d' is too long: 366d at most"):
        parse_duration("--duration", "999d", most=366 * 86400)


def test_the_doctor_says_whose_login_it_needs(shop, within):
    """With an observer's login it cannot look: exit 4, and the login that can is named."""
    login = Ledger.connect(shop, role="observer")

    async def url():
        async with login as ledger:
            return ledger.log.connection.login

    found = asyncio.run(url())
    named = found.url.replace("://", f"://observer:{found.password}@")
    ended = within("doctor", "--url", named)
    assert (ended.code, ended.out) == (4, "")
    assert "`ayes doctor` needs the login of `admin`" in ended.err


# -------------------------------------------------------------------------------------------- stdin


def test_a_dash_reads_stdin(shop, call):
    """For an edit, an answer, a chat message, a result and a policy's arguments alike."""
    ask(shop, call)
    edited = approvals(
        *("approve", call, "--as", "ana", "--edit", "-", "--json"), store=shop, typed='{"a": 7}\n'
    )
    assert edited.one["edits"] == {'{"a": 7}': "ana"} or edited.one["arguments"] == '{"a": 7}'
    answered = CallRef("shop", call.thread, "answered")
    ask(shop, answered)
    ended = approvals("answer", answered, "-", "--as", "ana", store=shop, typed="by phone")
    assert ended.code == 0
    assert "by phone" in approvals("show", answered, store=shop).out
    heard = CallRef("shop", call.thread, "heard")
    ask(shop, heard)
    message = f"approve {heard}"
    assert approvals("hear", "-", "-w", "shop", "--as", "ana", store=shop, typed=message).code == 0


def test_an_arguments_file_is_judged(tmp_path):
    (tmp_path / "policy.toml").write_text('[[rule]]\nname = "a"\ntools = ["*"]\nthen = "allow"\n')
    ended = approvals(
        *("policy", "test", tmp_path / "policy.toml", "--tool", "pay", "--arguments", "-"),
        typed='{"a": 7}',
    )
    assert (ended.code, 'pay {"a": 7}' in ended.out) == (0, True)


# ------------------------------------------------------------------------------------------- output


def test_facts_carry_their_date(shop, within):
    """Of last week's call nobody knows the day from the time alone."""
    (line, *_) = within("show", OPEN, store=shop).out.splitlines()
    assert line.split()[1].startswith("20")


def test_long_arguments_are_laid_out(shop, within, call):
    """They are shown whole, but not as one line of a hundred thousand characters."""
    text = "x" * 300
    ask(shop, call, arguments=f'{{"a":"{text}","b":1}}')
    until_listed(shop, call)
    lines = within("pending", store=shop).out.splitlines()
    assert "    b  1" in lines
    assert sum(line.count("x") for line in lines if not line.strip(" x│a")) == 300


def test_a_long_cell_does_not_widen_the_others(capsys):
    print_table(["name", "text"], [["a", "x" * 1000], ["b", "y"]], [False, False])
    assert capsys.readouterr().out.splitlines()[2] == "b     y"


def test_who_withdrew_is_named(shop, within, call):
    """The gate only records what others did."""
    ask(shop, call)
    ended = within("withdraw", call, store=shop)
    assert f"{call}: Withdrawn by service at 20" in ended.err


def test_replay_reports_a_bucket_as_json(shop, within):
    """`--into` writes the rows elsewhere, so programs get a line about it."""
    into = within("replay", "--projection", "pending", "--into", "copy", "--json", store=shop)
    assert (into.code, into.one["bucket"]) == (0, "copy")


# ---------------------------------------------------------------------------------------- the shell


def completed(line: str, store: Path) -> list[str]:
    """What bash would offer for the last word."""
    words = line.split(" ")
    ended = approvals(
        store=store,
        _AYES_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) - 1),
        _TYPER_COMPLETE_ARGS=line,
    )
    return [one.rpartition(",")[2] for one in ended.out.split()]


def test_the_shell_completes_names(shop):
    """Commands, names of pending calls, questions, formats and workers."""
    assert "approve" in completed("ayes app", shop)
    assert str(OPEN) in completed("ayes approve shop/t", shop)
    assert "who-decides" in completed("ayes ask who", shop)
    assert completed("ayes history shop/t --format anth", shop) == ["anthropic"]
    assert completed("ayes work ga", shop) == ["gate"]


def test_without_a_broker_no_call_is_completed(tmp_path):
    assert completed("ayes approve shop/t", tmp_path) == []


# --------------------------------------------------------------------------------------------- demo


def test_a_closed_terminal_leaves_no_demo_behind(tmp_path):
    """SIGHUP ends the demo in order: its temporary store is removed."""
    with at_a_terminal("demo", store=tmp_path, TMPDIR=str(tmp_path)) as terminal:
        terminal.read_until("Approve it? [y/n]")
        assert list(tmp_path.glob("approvals-demo-*"))
        os.kill(terminal.process.pid, signal.SIGHUP)
        assert terminal.ended() == 128 + signal.SIGHUP
    assert not list(tmp_path.glob("approvals-demo-*"))
