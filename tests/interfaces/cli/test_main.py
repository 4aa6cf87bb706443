"""The command line as people and scripts meet it: the real program, a real broker, nothing in
between.

Data on stdout, words on stderr, the exit code says how it ended; what is wrong is said in a
sentence, and then nothing is recorded.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import msgspec
import program
import pytest
import typer
from long import sampled
from program import (
    AYES,
    FIVE,
    approvals,
    ask,
    at_a_terminal,
    environment,
    last_seq,
    piped,
    record,
    started,
    until,
    up,
)
from sections import settings_file
from shop import rule

import ayes
from ayes.interfaces.cli import main as cli
from ayes.ledger.clients.services import Ledger
from ayes.ledger.judging.chain import thread_below
from ayes.ops.broker.server import EmbeddedServer
from ayes.schemas import events as e
from ayes.schemas.errors import BrokerAway
from ayes.schemas.slots import CallRef

POLICY = (
    rule("looks", "allow", tools="look")
    + rule("never", "block", 'reason = "Nobody drops tables here."', tools="drop")
    + rule("money", "ask", 'voters = ["ana", "ben", "rita"]', 'reason = "It moves money."',
           tools="pay")
    + rule("much money", "ask", 'voters = ["ana", "ben"]', "votes_needed = 2", tools="wire")
    + rule("soon", "ask", "expires_in_s = 0.2", tools="coupon")
)  # fmt: skip
TOOLS = ("look", "drop", "pay", "wire", "coupon")

# ------------------------------------------------------------------------------------ how it starts


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    with program.shop(tmp_path_factory.mktemp("shop"), POLICY, TOOLS) as store:
        yield store


@pytest.fixture
def call(request):
    """A call that no other test has."""
    return CallRef("shop", request.node.name.replace("[", "-").rstrip("]"), "c")


def kinds(ended):
    return [line["event"]["type"] for line in ended.lines]


# --------------------------------------------------------------------------------------------- help


def imported(*command):
    """The modules that this Python program imports."""
    said = subprocess.run(
        [sys.executable, "-X", "importtime", *command], capture_output=True, text=True, check=False
    ).stderr
    lines = (line for line in said.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


def test_help_is_quick():
    """`ayes --help` loads nothing but the command line, so it answers in under half a second."""
    names = {name.partition(".")[0] for name in imported(AYES, "--help")}
    assert "typer" in names
    assert not names & {
        *("asyncio", "cel", "duckdb", "jsonschema_rs", "msgspec", "nats", "opentelemetry"),
        *("pyarrow", "pydantic", "pydantic_ai", "rich", "structlog"),
        *("ledger", "projections", "consumers"),
    }


@pytest.mark.long
def test_a_client_and_a_command_load_what_they_need(tmp_path):
    """Until something is logged not structlog either, which imports all of rich: a third of it."""
    client = imported("-c", "import ayes; ayes.Ledger")
    command = imported(AYES, "pending", "--store", tmp_path / "none")
    assert "ayes.ledger.clients.client" in client & command
    unneeded = {
        *("cel", "duckdb", "fastapi", "httpx", "opentelemetry", "pyarrow", "pydantic_ai"),
        *("pygments", "rich.traceback", "structlog"),
    }
    assert not client & {*unneeded, "rich", "typer"}
    assert not command & unneeded


def test_every_command_says_what_it_does_and_has_json(within):
    """Each command has a help of its own with a sentence, and each takes --json."""
    told = within("--help").out
    for chapter in ("Run:", "Decide:", "Ask:", "Look:", "Check:"):
        assert f"\n{chapter}\n" in told
    for words in every_command(typer.main.get_command(cli.app)):
        helped = within(*words, "--help")
        assert helped.code == 0
        assert "--json" in helped.out, words


def test_it_says_which_version_it_is(within):
    """`ayes --version` is the version of the installed package, and of `ayes.__version__`."""
    ended = within("--version")
    assert (ended.code, ended.out, ended.err) == (0, f"ayes {ayes.__version__}\n", "")


def test_the_list_of_commands_is_whole():
    """`ayes --help` is a table of its own: it has every command of every module, one line each."""
    group = typer.main.get_command(cli.app)
    listed = {name: one.module for name, one in cli._ENTRIES.items()}
    for module in {one.module for one in cli._ENTRIES.values() if not one.is_group}:
        found = typer.main.get_group(import_module(f"ayes.interfaces.cli.{module}").app).commands
        assert set(found) == {name for name, where in listed.items() if where == module}
    for name, command in group.commands.items():
        assert command.name == name
        assert len(cli._ENTRIES[name].summary) <= 62


def every_command(group, *words):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, *words, name)
        else:
            yield *words, name


# ---------------------------------------------------------------------------------------------- run


@pytest.mark.parametrize("stop", sampled([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_up_ends_when_told_to(tmp_path, stop):
    """On SIGTERM and Ctrl-C it finishes with its broker; the store says that none runs (0)."""
    store = tmp_path / "store"
    with started("up", "--store", store, "--json", log=tmp_path / "log") as process:
        ready = json.loads(process.stdout.readline())
        assert ready["store"] == str(store)
        assert ready["workers"] == ["gate", "queue", "model", "executor"]
        assert last_seq(store) == 0
        process.send_signal(stop)
        assert process.wait(20) == 0
        assert process.stdout.read() == ""
    assert not Path(f"/proc/{ready['pid']}").exists()
    assert "no broker runs in" in approvals("status", store=store).err


def test_up_greets_people_on_stderr(tmp_path):
    """Without --json it tells where it is and what to do next, as words."""
    with started("up", "--store", tmp_path / "store", "--workers", "gate,queue") as process:
        told = ""
        while "Ctrl-C" not in told:
            told += process.stderr.readline()
        assert "nats://127.0.0.1:" in told
        assert str(tmp_path / "store") in told
        assert "gate, queue" in told
        assert "ayes pending --watch" in told
        process.terminate()
        assert process.wait(20) == 0
        assert process.stdout.read() == ""


def test_up_runs_sub_agents_too(tmp_path):
    """With a section of them it has a delegator, which declares their tools; a delegator without
    one is refused with one sentence before anything is started.
    """
    store = tmp_path / "store"
    refused = approvals("up", "--workers", "gate,delegator", "--store", store)
    assert (refused.code, refused.out) == (2, "")
    assert "the worker delegator needs the section [sub_agents]" in refused.err
    file = settings_file(
        tmp_path, '[sub_agents.ask_researcher]\nagent = "researcher"\nmodel = "openai:gpt-4o"\n'
    )
    with up(store, "--settings", file, "--workers", "gate", "-w", "shop") as ready:
        assert ready["workers"] == ["gate", "delegator"]
        listed = approvals("tool", "list", "-w", "shop", "--json", store=store)
        assert [json.loads(line)["tool"] for line in listed.out.splitlines()] == ["ask_researcher"]


def test_work_waits_for_its_broker(tmp_path):
    """Workers that were started first wait, say so, and begin when the broker is there (D9)."""
    store, log = tmp_path / "store", tmp_path / "log"
    with started("work", "gate", "--store", store, "--json", log=log) as process:
        while "waiting for the broker" not in log.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        with up(store, "--workers", "none"):
            assert json.loads(process.stdout.readline()) == {"workers": ["gate"]}
            process.terminate()
            assert process.wait(20) == 0


async def test_work_that_comes_before_the_streams_makes_them(tmp_path):
    """As that of somebody who starts `up` and `work` together (D9)."""
    store = tmp_path / "store"
    async with EmbeddedServer(store, sync="2m"):
        with started("work", "gate", "--store", store, "--json", log=tmp_path / "log") as process:
            line = await asyncio.to_thread(process.stdout.readline)
            assert json.loads(line) == {"workers": ["gate"]}, (tmp_path / "log").read_text()


def test_after_kill_9_the_store_is_not_believed(tmp_path):
    """`address.json` still names the killed broker: readers are told so; `up` goes on (B53)."""
    store = tmp_path / "store"
    with started("up", "--store", store, "--json", log=tmp_path / "log") as process:
        ready = json.loads(process.stdout.readline())
        program.declare(store, TOOLS, "shop")
        before = last_seq(store)
        process.kill()
        process.wait()
    assert json.loads((store / "address.json").read_text())["url"] == ready["url"]
    ended = approvals("pending", store=store)
    assert (ended.code, ended.out) == (75, "")
    assert f"no NATS broker answers at {ready['url']}" in ended.err
    assert "ayes up" in ended.err
    with up(store):
        assert last_seq(store) == before


def test_without_a_gate_nothing_is_taken_for_a_yes(tmp_path):
    """Nobody judges what is asked: it stays open, and the next step is named (8, I4)."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    with up(tmp_path / "store", "--workers", "none", "--policy", policy, "-w", "shop") as ready:
        store = Path(ready["store"])
        program.declare(store, TOOLS, "shop")
        ended = approvals("request", "shop/t/c", "look", FIVE, store=store)
        assert ended.code == 8
        assert ended.out == ""
        assert "not judged yet. Does a gate run? See ayes status." in ended.err
        # With one in a process of its own it goes on.
        with started("work", "gate", "--store", store, "--json", log=tmp_path / "log") as gate:
            assert json.loads(gate.stdout.readline()) == {"workers": ["gate"]}
            assert approvals("wait", "shop/t/c", "--timeout", "20", store=store).code == 0
            gate.terminate()
            assert gate.wait(20) == 0


def test_demo_shows_a_call_from_wish_to_result_by_itself():
    """Without a terminal it ends by itself: --json as facts and the history, else as words."""
    with started("demo", "--json") as machine, started("demo", "-v") as person:
        facts, words = machine.communicate(timeout=60)
        shown, told = person.communicate(timeout=60)
        assert (machine.returncode, person.returncode) == (0, 0), words + told
    *lines, last = [json.loads(line) for line in facts.splitlines()]
    types = [line["event"]["type"] for line in lines if "call." in line["subject"]]
    asked = {"ApprovalRequested", "Voted", "Approved", "ToolStarted", "ToolReturned"}
    assert asked | {"Denied", "ToolRefused"} <= set(types)
    assert json.loads(shown) == last["history"]
    assert "ayes up" in told
    assert "\x1b" not in shown + told
    story = [
        'The agent asks to run delete_file {"name":"cache.tmp"}.',
        'delete_file {"name":"cache.tmp"} waits for ana. A deleted file does not come back.',
        'ana approved delete_file {"name":"cache.tmp"}.',
        'delete_file {"name":"cache.tmp"} ran.',
        "The model reads:",
    ]
    assert [line for line in told.splitlines() if line in story] == story


def test_demo_holds_everything_while_it_asks(tmp_path):
    """Neither y nor n: it asks again; no fact is printed over the question; the rest follows."""
    with at_a_terminal("demo", store=tmp_path) as terminal:
        terminal.read_until("Approve it? [y/n]")
        terminal.type("maybe")
        terminal.read_until("Please answer y or n; Ctrl-D ends the demo.\r\n  Approve it? [y/n]")
        terminal.type("y")
        terminal.read_until('"draft-report.tmp"} waits for ana.')
        answered = [
            *["maybe", "Please", "answer", "y", "or", "n;", "Ctrl-D", "ends", "the", "demo."],
            *["Approve", "it?", "[y/n]", "y"],
        ]
        told = terminal.told.partition("Approve it? [y/n]")[2].split()
        assert told[: len(answered)] == answered
        terminal.type("n")
        terminal.read_until("Why not?")
        terminal.type("I need it.")
        assert terminal.ended() == 0
    assert 'ana denied delete_file {"name":"draft-report.tmp"}: I need it.' in terminal.told
    assert "Their reason: I need it." in terminal.told


def test_demo_ends_with_the_input(tmp_path):
    """Ctrl-D in place of an answer ends it: the call stays open and does not run."""
    with at_a_terminal("demo", store=tmp_path) as terminal:
        terminal.read_until("Approve it? [y/n]")
        terminal.type_end()
        assert terminal.ended() == 0
    assert "You left it open, so it did not run." in terminal.told
    assert " ran." not in terminal.told.partition("waits for ana")[2]


def test_policies_are_versions(shop, tmp_path, within):
    """Applying one says its number; applying it again changes nothing."""
    policy = tmp_path / "policy.toml"
    policy.write_text(NEVER)
    ended = within("policy", "apply", policy, "-w", "other", "--json", store=shop)
    assert (ended.code, ended.one, ended.err) == (0, {"workspace": "other", "version": 1}, "")
    ended = within("policy", "apply", policy, "-w", "other", store=shop)
    assert (ended.code, ended.out) == (0, "")
    assert "is version 1 of the policy of other" in ended.err


def test_a_policy_says_what_it_changes(shop, tmp_path, within):
    """Without -w nothing is recorded, nor with --dry-run, which shows the lines that differ."""
    policy = tmp_path / "policy.toml"
    policy.write_text(rule("none", "block"))
    before = last_seq(shop)
    unnamed = within("policy", "apply", policy, store=shop)
    assert (unnamed.code, unnamed.out) == (2, "")
    assert "Name the workspace with -w" in unnamed.err
    tried = within("policy", "apply", policy, "-w", "diffs", "--dry-run", store=shop)
    assert (tried.code, last_seq(shop)) == (0, before)
    assert "There is no version yet" in tried.err
    assert within("policy", "apply", policy, "-w", "diffs", store=shop).code == 0
    policy.write_text(rule("none", "ask"))
    before = last_seq(shop)
    tried = within("policy", "apply", policy, "-w", "diffs", "--dry-run", store=shop)
    assert tried.code == 0
    assert {'-then = "block"', '+then = "ask"'} <= set(tried.out.splitlines())
    assert "Version 1 stays in force" in tried.err
    told = within("policy", "apply", policy, "-w", "diffs", "--dry-run", "--json", store=shop).one
    assert (told["workspace"], told["in_force"]) == ("diffs", 1)
    assert last_seq(shop) == before
    applied = within("policy", "apply", policy, "-w", "diffs", store=shop)
    assert '+then = "ask"' in applied.err
    assert "is version 2 of the policy of diffs" in applied.err
    night = 'expires_in_s = 9\non_timeout = "escalate"\nstages = [{voters = ["oncall:night"]}]'
    policy.write_text(rule("none", "ask", night))
    tried = within("policy", "apply", policy, "-w", "diffs", "--dry-run", store=shop)
    assert "warning: oncall:night asks nobody: nothing is recorded of its calendar." in tried.err


@pytest.mark.parametrize("said", sampled(["approve", "deny", "withdraw"], "approve"))
def test_what_no_gate_has_recorded_yet_is_said_so(tmp_path, within, said):
    """With the gate away nobody is missing, nothing was edited, and no sentence says so (B27)."""
    call = CallRef("shop", "t1", "c1")
    wish = e.ToolRequested(tool="refund", arguments="{}", digest="d" * 64, requester="rita")
    asking = e.ApprovalRequested(
        digest="d" * 64, rule="all", policy_version=1, reason="", excluded=("rita",)
    )
    with up(tmp_path / "store", "--workers", "none") as ready:
        store = Path(ready["store"])
        record(store, (call.requested, wish), (call.gated, asking))
        if said == "withdraw":
            record(store, (call.withdrawn, e.Withdrawn()))
            ended = within("wait", call, "--timeout", "0", store=store)
        else:
            ended = within(said, call, "--as", "ana", "--yes", store=store)
    assert ended.code == 8, ended.err
    assert "That is decided, but no gate has recorded it yet: see ayes status." in ended.err
    assert not {"edited", "Missing", "for people"} & set(re.findall(r"for people|\w+", ended.err))


NEVER = rule("never", "block", tools="drop")


def shown(within, store, *words):
    """The text of the policy in force."""
    return within("policy", "show", *words, store=store).out


def test_a_policy_may_come_by_a_pipe(shop, within):
    """A pipe is read once: what is checked and shown is what is recorded, or proposed (B1).

    A second look at a pipe finds nothing, so that an empty policy was recorded, with exit code 0.
    """
    with piped(NEVER) as pipe:
        ended = within("policy", "apply", pipe, "-w", "piped", store=shop)
    assert (ended.code, shown(within, shop, "-w", "piped")) == (0, NEVER), ended.err
    with piped(f"# newer\n{NEVER}") as pipe:
        ended = within("policy", "apply", pipe, "-w", "piped", "--dry-run", store=shop)
    assert [line for line in ended.out.splitlines() if line[0] in "-+"][2:] == ["+# newer"]
    words = ("-w", "piped", "--propose", "--requester", "olga", "--json")
    with piped(f"# newer\n{NEVER}") as pipe:
        call = within("policy", "apply", pipe, *words, store=shop).one["proposal"]
    asked = within("show", call, "--json", store=shop).lines[0]["event"]["arguments"]
    assert json.loads(asked)["text"] == f"# newer\n{NEVER}"


def test_a_policy_may_come_by_the_standard_input(shop, within, tmp_path):
    """`/dev/stdin`, `<(...)` of a real shell and a named pipe are read once too."""
    ended = approvals("policy", "apply", "/dev/stdin", "-w", "stdin", store=shop, typed=NEVER)
    assert (ended.code, shown(within, shop, "-w", "stdin")) == (0, NEVER), ended.err
    line = 'exec "$0" policy apply <(printf %s "$1") -w substituted'
    given = environment(AYES_STORE=str(shop))
    subprocess.run(["bash", "-c", line, str(AYES), NEVER], env=given, check=True)
    assert shown(within, shop, "-w", "substituted") == NEVER
    fifo = tmp_path / "policy.toml"
    os.mkfifo(fifo)
    writing = threading.Thread(target=fifo.write_text, args=(NEVER,), daemon=True)
    writing.start()
    assert within("policy", "apply", fifo, "-w", "named", store=shop).code == 0
    writing.join()
    assert shown(within, shop, "-w", "named") == NEVER


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n"])
def test_an_empty_policy_is_refused_unless_it_is_meant(shop, within, text):
    """A generator that failed writes nothing; that takes no rule away. `--empty` does (H5)."""
    workspace = ("-w", f"empty{len(text)}")
    with piped(NEVER) as pipe:
        assert within("policy", "apply", pipe, *workspace, store=shop).code == 0
    before = last_seq(shop)
    for more in ((), ("--dry-run",), ("--propose", "--requester", "olga")):
        with piped(text) as pipe:
            ended = within("policy", "apply", pipe, *workspace, *more, store=shop)
        assert (ended.code, ended.out, last_seq(shop)) == (2, "", before)
        assert "is empty" in ended.err
        assert "ayes policy apply --empty" in ended.err
    with piped(text) as pipe:
        ended = within("policy", "apply", pipe, *workspace, "--empty", store=shop)
    assert (ended.code, shown(within, shop, *workspace).strip()) == (0, text.strip()), ended.err


def test_up_reads_each_of_its_files_once(tmp_path, within):
    """Files of `ayes up` may be pipes: the policy and the settings (B1)."""
    files = {
        "policy": NEVER,
        "settings": '[notices.mail]\nurl = "json://localhost:1/{address}"\n'
        '[sub_agents.research]\nagent = "r"\nmodel = "test:test"\n'
        '[absence.ana]\ncalendar = "file:none"\nto = "ben"\n',
    }
    options = " ".join(f'--{name} <(printf %s "${name}")' for name in files)
    store = tmp_path / "store"
    command = f'exec "$0" up --store "$1" -w shop --no-console --json {options}'
    with subprocess.Popen(
        ["bash", "-c", command, str(AYES), str(store)],
        env=environment(**files),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            ready = process.stdout.readline()
            assert ready, process.stderr and process.stderr.read()
            assert {"notifier", "delegator", "absence"} <= set(json.loads(ready)["workers"])
            assert shown(within, store, "-w", "shop") == NEVER
        finally:
            process.terminate()


@pytest.mark.parametrize(
    "words",
    [
        ("tool", "declare", "tools.toml"),
        ("hear", "approve c", "--as", "ana"),
        ("delegate", "give", "ben", "--as", "ana", "--from", "2026-01-01", "--until", "2099-01-01"),
        ("grant", "give", "--tool", "pay", "--any-arguments", "--duration", "1h", "--as", "ana"),
    ],
)
def test_what_writes_asks_for_the_workspace(shop, within, words):
    """No workspace by default where something would be recorded: exit 2, and -w is named."""
    before = last_seq(shop)
    ended = within(*words, store=shop)
    assert (ended.code, last_seq(shop)) == (2, before)
    assert "-w" in ended.err


def test_arguments_may_come_from_stdin(shop, call):
    """`request CALL TOOL -` reads them there: a shell's argument ends long before a fact does."""
    words = ("request", call, "look", "-", "--json")
    done = approvals(*words, store=shop, typed='{"amount": 7}\n')
    assert done.code == 0, done.err
    assert done.one["arguments"] == '{"amount": 7}'


def test_a_grant_is_given_for_a_time_with_its_unit(shop, within):
    """`--duration 8` would be eight seconds, which nobody means: exit 2, nothing is recorded."""
    before = last_seq(shop)
    grant = ("grant", "give", "--tool", "pay", "--any-arguments", "-w", "shop", "--as", "ana")
    ended = within(*grant, "--duration", "8", store=shop)
    assert (ended.code, last_seq(shop)) == (2, before)
    assert "--duration 8 has no unit. Write 8h" in ended.err


def test_tools_are_declared_from_a_file(shop, within, tmp_path):
    """Each tool in it, under a version that is the same for the same contract."""
    file = tmp_path / "tools.toml"
    file.write_text('[[tool]]\nname = "refund"\nschema = \'{"type": "object"}\'\n')
    first = within("tool", "declare", file, "-w", "shop", "--json", store=shop)
    assert (first.code, first.one["workspace"], first.one["tool"]) == (0, "shop", "refund")
    before = last_seq(shop)
    again = within("tool", "declare", file, "-w", "shop", store=shop)
    assert (again.code, again.out) == (0, "")
    assert f"refund is declared in shop, version {first.one['version']}" in again.err
    assert last_seq(shop) == before


def test_setting_up_what_is_there_changes_nothing(shop, within):
    """Streams and consumers are named; facts are none of its business."""
    before = last_seq(shop)
    ended = within("setup", "--json", store=shop)
    assert (ended.code, ended.err) == (0, "")
    assert "LEDGER" in ended.one["streams"]
    assert "gate" in ended.one["consumers"]
    assert "ayes doctor" in within("setup", store=shop).err
    assert last_seq(shop) == before


# ----------------------------------------------------------------------------------- ask and decide


def test_a_call_from_wish_to_decision_in_json(shop, call):
    """request, pending, approve, wait, show: each tells the call in JSON, not in words (B86)."""
    asked = approvals("request", call, "pay", FIVE, "--requester", "rita", "--json", store=shop)
    assert (asked.code, asked.err) == (8, "")
    assert asked.one["status"] == "pending"
    assert asked.one["arguments"] == FIVE
    assert (asked.one["votes"], asked.one["votes_needed"]) == (0, 1)

    waiting = approvals("pending", "-w", "shop", "--json", store=shop)
    assert waiting.code == 0
    (entry,) = [one for one in waiting.lines if one["thread"] == call.thread]
    assert (entry["call"], entry["digest"]) == (str(call), asked.one["digest"])
    assert entry["arguments"] == FIVE
    assert (entry["voters"], entry["excluded"]) == (["ana", "ben", "rita"], ["rita"])

    voted = approvals("approve", call, "--as", "ana", "--reason", "Fine.", "--json", store=shop)
    assert (voted.code, voted.err) == (0, "")
    assert (voted.one["decision"], voted.one["voters"]) == ("Approved", ["ana"])
    assert approvals("wait", call, "--json", store=shop).one == voted.one

    shown = approvals("show", call, "--json", store=shop)
    assert kinds(shown) == ["ToolRequested", "ApprovalRequested", "Voted", "Approved"]
    assert shown.lines[0]["event"]["requester"] == "rita"
    assert [line["seq"] for line in shown.lines] == sorted(line["seq"] for line in shown.lines)
    assert approvals("thread", f"shop/{call.thread}", "--json", store=shop).out == shown.out
    until(shop, call.decided)
    still = approvals("pending", "--json", store=shop)
    assert call.thread not in {one["thread"] for one in still.lines}


def test_a_call_from_wish_to_decision_in_words(shop, call):
    """The same for people: tables and histories on stdout, sentences on stderr."""
    asked = approvals("request", call, "pay", FIVE, "--requester", "rita", store=shop)
    assert (asked.code, asked.out) == (8, "")
    assert asked.err == f"{call} waits for people: 0 of 1 approvals. Missing: one of ana and ben.\n"
    waiting = approvals("pending", "-w", "shop", store=shop)
    assert waiting.code == 0
    assert str(call) in waiting.out
    assert "    amount  5\n" in waiting.out
    assert "ayes approve CALL --as NAME" in waiting.err
    voted = approvals("approve", call, "--as", "ana", store=shop)
    assert (voted.code, voted.out) == (0, "")
    shown, arguments, told = voted.err.splitlines()
    assert (shown.split()[:2], arguments) == ([str(call), "pay"], "    amount  5")
    assert told.startswith(f"{call}: Approved by ana at 20")
    assert approvals("wait", call, store=shop) == (0, "", f"{told}\n")
    shown = approvals("show", call, store=shop)
    assert shown.code == 0
    for word in (
        "ToolRequested",
        "ApprovalRequested",
        "Voted",
        "Approved",
        FIVE,
        "    amount  5\n",
    ):
        assert word in shown.out
    assert "Approved" in approvals("thread", f"shop/{call.thread}", store=shop).out
    nothing = approvals("pending", "-w", "nobody", store=shop)
    assert nothing == (0, "", "No pending call matches workspace:nobody.\n")


def test_a_comment_stands_in_the_record(shop, within, call):
    """Whole, with its author, and it decides nothing."""
    ask(shop, call)
    text = f"I have asked the shop. {'It is slow. ' * 20}".strip()
    [said] = within("comment", call, text, "--as", "ben", "--json", store=shop).lines
    assert [(one["author"], one["text"]) for one in said] == [("ben", text)]
    shown = within("show", call, store=shop).out
    assert text in shown
    assert "(reviewer ben)" in shown


def test_a_call_is_handed_to_a_colleague(shop, within, call):
    """`pending` names the colleague, and the call leaves the list of its giver."""
    ask(shop, call)
    [said] = within(
        "hand", call, "ben", "--reason", "Yours.", "--as", "ana", "--json", store=shop
    ).lines
    assert [(one["by"], one["to"]) for one in said] == [("ana", "ben")]
    while not (found := within("pending", f"call:{call} for:ben", "--json", store=shop).lines):
        pass
    assert found[0]["handed"] == {"ana": "ben"}
    own = within("pending", f"call:{call} is:mine", "--as", "ana", "--json", store=shop)
    assert own.lines == []
    assert "handed to ben by ana" in within("pending", f"call:{call}", store=shop).out
    assert "to ben: Yours." in within("show", call, store=shop).out


def test_two_votes_are_needed(shop, within, call):
    """The first of two votes leaves it open (8), the second decides (0) (B39)."""
    ask(shop, call, "wire")
    first = within("approve", call, "--as", "ana", "--json", store=shop)
    assert (first.code, first.one["votes"], first.one["votes_needed"]) == (8, 1, 2)
    second = within("approve", call, "--as", "ben", "--json", store=shop)
    assert (second.code, second.one["voters"]) == (0, ["ana", "ben"])


def test_waiting_has_an_end(shop, within, call):
    """Nobody decides: 3 when the time is up, and 8 for whoever only looks. It stays open."""
    ask(shop, call)
    timed_out = within("wait", call, "--timeout", "2", store=shop)
    assert (timed_out.code, timed_out.out) == (3, "")
    assert f"{call} is not decided after 2 s. It stays open." in timed_out.err
    looked = within("wait", call, "--timeout", "0", "--json", store=shop)
    assert (looked.code, looked.one["status"]) == (8, "pending")


def test_denied(shop, within, call):
    """Who denies succeeds (0); who waits hears 5 and why; asking again asks nobody (B32, B76)."""
    ask(shop, call)
    denied = within("deny", call, "--as", "ben", "--reason", "Too much.", "--json", store=shop)
    assert (denied.code, denied.one["decision"]) == (0, "Denied")
    waited = within("wait", call, "--json", store=shop)
    assert (waited.code, waited.one["reason"], waited.one["voters"]) == (5, "Too much.", ["ben"])
    until(shop, call.finished)
    before = last_seq(shop)
    assert within("request", call, "pay", FIVE, "--requester", "rita", store=shop).code == 5
    assert last_seq(shop) == before
    assert kinds(within("show", call, "--json", store=shop))[-2:] == ["Denied", "ToolRefused"]


def test_expired(shop, within, call):
    """Nobody decided in time: 6, for who waits and for who comes too late (I5, B36)."""
    ask(shop, call, "coupon")
    waited = within("wait", call, "--json", store=shop)
    assert (waited.code, waited.one["decision"]) == (6, "Expired")
    until(shop, call.finished)
    before = last_seq(shop)
    late = within("approve", call, "--as", "ana", store=shop)
    assert late.code == 6
    assert "already decided: Expired at" in late.err
    assert last_seq(shop) == before


def test_expired_for_its_requester(shop, within, call):
    """`--expires-in` ends a question sooner than the policy does; a wait must be one (B36)."""
    words = ("request", call, "pay", FIVE, "--requester", "rita", "--expires-in")
    bad = within(*words, "0", store=shop)
    assert (bad.code, "which is no time to wait" in bad.err) == (2, True)
    assert within(*words, "0.2s", store=shop).code in {6, 8}
    waited = within("wait", call, "--json", store=shop)
    assert (waited.code, waited.one["decision"]) == (6, "Expired")


def test_judged_by_the_policy_alone(shop, within, call):
    """The allowed is approved at once (0), the blocked denied at once (5): nobody is asked."""
    allowed = within("request", call, "look", FIVE, "--json", store=shop)
    assert (allowed.code, allowed.one["decision"]) == (0, "Approved")
    blocked = within("request", f"{call}-2", "drop", FIVE, "--json", store=shop)
    assert (blocked.code, blocked.one["reason"]) == (5, "Nobody drops tables here.")


def test_answered_in_place_of_the_tool(shop, within, call):
    """An answer meets the wish (0), and the model reads it; the tool does not run."""
    ask(shop, call)
    answered = within("answer", call, "Paid by hand.", "--as", "ana", "--json", store=shop)
    assert (answered.code, answered.one["decision"]) == (0, "Answered")
    assert within("wait", call, store=shop).code == 0
    until(shop, call.finished)
    last = within("show", call, "--json", store=shop).lines[-1]["event"]
    assert (last["type"], last["ending"]) == ("ToolRefused", "answered")
    assert "Paid by hand." in last["text"]


def test_approved_with_other_arguments(shop, within, call):
    """An edit that somebody else agrees to will run, and whoever waits is told so (B61)."""
    ask(shop, call)
    edited = within("approve", call, "--as", "ana", "--edit", '{"amount": 4}', "--json", store=shop)
    assert (edited.code, edited.one["edits"]) == (8, {'{"amount": 4}': "ana"})
    edited = within("approve", call, "--as", "ben", "--edit", '{"amount": 4}', "--json", store=shop)
    assert (edited.code, edited.one["arguments"]) == (0, '{"amount": 4}')
    assert within("wait", call, "--json", store=shop).one["arguments"] == '{"amount": 4}'


def test_withdrawn(shop, within, call):
    """The requester takes its wish back (0); whoever waits hears no (5), not a denial (I5)."""
    ask(shop, call)
    ended = within("withdraw", call, "--reason", "Changed my mind.", "--json", store=shop)
    assert (ended.code, ended.one["decision"]) == (0, "Withdrawn")
    assert ended.one["reason"] == "Changed my mind."
    waited = within("wait", call, store=shop)
    assert waited.code == 5
    assert f"{call}: Withdrawn" in waited.err


def test_withdrawn_while_it_runs(shop, within, call):
    """The calls below it are withdrawn (0), and the call is not reported as approved."""
    below = CallRef("shop", call.below.thread, "pay")

    async def delegated():
        async with Ledger.connect(shop) as ledger:
            await ledger.request(call, "look", FIVE, requester="rita")
            await ledger.decision(call, timeout_s=60)
            thread, opened = thread_below(await ledger.start(call), agent="helper")
            await ledger.append(thread.opened, opened)

    asyncio.run(delegated())
    assert within("request", str(below), "pay", FIVE, store=shop).code == 8
    ended = within("withdraw", call, "--json", store=shop)
    assert (ended.code, ended.one["status"]) == (0, "running")
    until(shop, below.decided)
    assert "Withdrawn" in kinds(within("show", str(below), "--json", store=shop))
    call = CallRef("shop", f"{call.thread}-2", "c")
    asyncio.run(delegated())
    said = within("withdraw", call, store=shop)
    goes_on = f"{call} goes on. The calls that its sub-agents asked for are withdrawn.\n"
    assert said == (0, "", goes_on)


def test_revoked(shop, within, call):
    """An approval is taken back before the tool starts; then nobody can start it (I6)."""
    ask(shop, call, "look")
    revoked = within("revoke", call, "--as", "ben", "--reason", "Not now.", store=shop)
    assert revoked == (0, "", f"{call} will not run.\n")
    until(shop, call.finished)
    assert kinds(within("show", call, "--json", store=shop))[-2:] == ["Revoked", "ToolRefused"]
    again = within("revoke", call, "--as", "ben", "--json", store=shop)
    assert (again.code, again.problem["error"]) == (1, "AlreadyFilled")
    assert again.problem["exit_code"] == 1


@pytest.mark.parametrize("happened", [True, False])
def test_reconciled(shop, within, call, happened):
    """Its runner is gone: the call is in doubt, and settled by whoever finds out; once (I7)."""
    digest = ask(shop, call, "look")
    record(shop, (call.client_claim(1), e.ToolStarted(digest=digest, idempotency_key=str(call))))
    doubted = within("doubt", call, "--reason", "The machine burnt down.", "--json", store=shop)
    assert (doubted.code, doubted.one["status"]) == (0, "in_doubt")
    found = "--happened" if happened else "--did-not-happen"
    words = ("reconcile", call, "--as", "ana", found)
    settled = within(*words, "--output", "done", "--json", store=shop)
    assert (settled.code, settled.one["status"]) == (0, "reconciled")
    last = within("show", call, "--json", store=shop).lines[-1]["event"]
    assert (last["type"], last.get("happened", False)) == ("Reconciled", happened)
    assert last["output"] == "done"
    again = within(*words, store=shop)
    assert again.code == 1
    assert "Reconciled" in again.err


@pytest.mark.parametrize(
    ("late", "said", "happened", "text"),
    [
        (e.ToolReturned(output="5 paid"), "It returned later: 5 paid.", True, "5 paid"),
        (e.ToolFailed(error="no money"), "It failed with later: no money.", False, "no money"),
    ],
    ids=["returned", "failed"],
)
def test_a_late_result_is_offered_and_accepted(shop, within, call, late, said, happened, text):
    """Whoever reconciles is shown it, and accepts it in a word. (D15)"""
    digest = ask(shop, call, "look")
    record(shop, (call.client_claim(1), e.ToolStarted(digest=digest, idempotency_key=str(call))))
    within("doubt", call, store=shop)
    settle = ("reconcile", call, "--as", "ana")
    assert "say what you found out" in within(*settle, store=shop).err
    too_early = within(*settle, "--late", store=shop)
    assert (too_early.code, "has no late result" in too_early.err) == (1, True)
    record(shop, (call.client_late(1), late))
    offered = within(*settle, store=shop)
    assert offered.code == 2
    assert f"{said} Accept this result with --late" in offered.err
    assert said.removesuffix(".") in within("pending", "--in-doubt", store=shop).out
    assert within(*settle, "--late", store=shop).code == 0
    last = within("show", call, "--json", store=shop).lines[-1]["event"]
    assert (last["type"], last.get("happened", False)) == ("Reconciled", happened)
    assert last["output"] == text


def test_calls_in_doubt_are_listed(shop, within, call):
    """Recorded or only silent: since when, who claimed it, and what to do next. (D15)"""
    silent = CallRef("shop", call.thread, "silent")
    for one in (call, silent):
        started = e.ToolStarted(
            digest=ask(shop, one, "look"),
            idempotency_key=str(one),
            lease_s=0.001,
            by=e.Author(kind="service", name="billing"),
        )
        record(shop, (one.client_claim(1), started))
    within("doubt", call, "--reason", "The bank did not answer.", store=shop)
    listed = {
        one["call"]: (one["tool"], one["claimed_by"], one["recorded"], one["late"])
        for one in within("pending", "--in-doubt", "-w", "shop", "--json", store=shop).lines
    }
    assert listed[str(call)] == ("look", "billing", True, None)
    assert listed[str(silent)] == ("look", "billing", False, None)
    words = within("pending", "--in-doubt", store=shop).out
    assert f"{call}  look\n    in doubt since " in words
    assert f"{silent}  look\n    no sign of life since " in words
    assert "claimed by billing at " in words
    assert "The bank did not answer." in words
    assert f"Next: ayes reconcile {call} --as NAME\n" in words
    assert f"Next: ayes doubt {silent}, and then ayes reconcile {silent} --as NAME\n" in words
    assert len(within("pending", "--in-doubt", "--limit", 1, "--json", store=shop).lines) == 1
    none = within("pending", "--in-doubt", "-w", "empty", store=shop)
    assert none.err == "No call is in doubt.\n"
    within("doubt", silent, store=shop)
    for one in (call, silent):
        assert within("reconcile", one, "--as", "ana", "--did-not-happen", store=shop).code == 0
    assert call.thread not in within("pending", "--in-doubt", store=shop).out


# --------------------------------------------------------------------------------------------- look


def test_the_queue_can_be_watched(shop, within, call):
    """`pending --watch` begins with what waits and goes on until Ctrl-C (130)."""
    ask(shop, call)
    with (
        started("pending", "--watch", "-w", "shop", "--json", "--store", shop) as machine,
        started("pending", "--watch", "-w", "shop", "--store", shop) as person,
    ):
        entry = line_about(machine, call)
        assert (entry["open"]["call"], entry["open"]["arguments"]) == (str(call), FIVE)
        assert words_about(person, call).startswith(f"asked    {call}  pay  amount: 5  ")
        assert within("approve", call, "--as", "ana", store=shop).code == 0
        assert line_about(machine, call) == {"call": str(call), "open": None}
        decided = words_about(person, call)
        assert re.fullmatch(rf"decided  {call}  \w+ by [^\n]*, after \d+ s\n", decided), decided
        for process in (machine, person):
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read() == ""


def test_the_log_can_be_watched(shop, within, call):
    """`watch --from` begins there and goes on with each fact as it is recorded."""
    start = last_seq(shop) + 1
    with (
        started("watch", "--from", start, "--json", "--store", shop) as machine,
        started("watch", "--from", start, "--store", shop) as person,
    ):
        ask(shop, call)
        for kind, slot in (("ToolRequested", call.requested), ("ApprovalRequested", call.gated)):
            fact = json.loads(machine.stdout.readline())
            assert (fact["event"]["type"], fact["subject"]) == (kind, slot.subject)
            told = person.stdout.readline()
            assert kind in told
            assert slot.subject in told
        assert within("deny", call, "--as", "ana", store=shop).code == 0
        assert json.loads(machine.stdout.readline())["event"]["type"] == "Voted"


def test_the_log_can_be_read_to_its_end(shop, within, call):
    """`watch --from --until-now` is every fact there is by now, and then ends."""
    start = last_seq(shop) + 1
    ask(shop, call)
    told = within("watch", "--from", start, "--until-now", "--json", store=shop)
    assert (told.code, told.err, kinds(told)) == (0, "", ["ToolRequested", "ApprovalRequested"])


def test_whoever_reads_may_stop_reading(shop, call):
    """A closed pipe, as of `| head -1`, ends it quietly."""
    ask(shop, call)
    with started("watch", "--from", 1, "--json", "--store", shop) as process:
        assert process.stdout.readline()
        process.stdout.close()
        ask(shop, CallRef(call.workspace, call.thread, "another"))
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_a_history_is_what_a_model_goes_on_from(shop, within, call):
    """JSON either way, and a word where it stops before a call that is not settled."""
    thread = call.thread_ref
    wish = e.Wish(tool="pay", arguments=FIVE, provider_id="call_1")
    record(
        shop,
        (thread.opened, e.ThreadOpened(requester="rita")),
        (thread.said("1"), e.Said(role="user", text="Pay five.")),
        (thread.replied(1), e.ModelReplied(parts=(e.Text("Here it comes."), wish))),
    )
    for provider in ("openai-chat", "anthropic"):
        words = ("history", thread, "--format", provider)
        compact, pretty = within(*words, "--json", store=shop), within(*words, store=shop)
        assert (compact.code, pretty.code) == (0, 0)
        assert compact.one == json.loads(pretty.out)
        assert compact.one["messages"][0]["role"] == "user"
        assert "not settled: no provider takes a call without its result" in pretty.err


def test_a_call_without_a_conversation_has_no_history(shop, within, call):
    """The messages are none, and a sentence says where to look instead."""
    ask(shop, call)
    told = within("history", call.thread_ref, store=shop)
    assert (told.code, json.loads(told.out)) == (0, {"messages": []})
    assert f"There is no conversation in {call.thread_ref}." in told.err


def test_the_declared_tools_are_listed(shop, within):
    """`tool list`: each tool of the workspace once; where there are none, how to declare one."""
    listed = within("tool", "list", "-w", "shop", "--json", store=shop).lines
    assert {*TOOLS} <= {one["tool"] for one in listed}
    assert len(listed) == len({one["tool"] for one in listed})
    nothing = within("tool", "list", "-w", "nobody", store=shop)
    assert (nothing.code, nothing.out) == (0, "")
    assert "ayes tool declare FILE.toml -w nobody" in nothing.err


def test_what_is_checked_is_data(shop, within, call):
    """replay, doctor and status answer on stdout, with and without --json."""
    ask(shop, call)
    replayed = within("replay", "--verify", "--json", store=shop)
    assert (replayed.code, replayed.err, replayed.one["differences"]) == (0, "", [])
    assert replayed.one["facts"] == replayed.one["until"] >= 4
    told = within("replay", "--verify", store=shop)
    assert (told.code, told.err) == (0, "")
    assert "verified: the live queue is what the log gives" in told.out

    checks = within("doctor", "--json", store=shop)
    # Other tests leave calls in doubt in this shop.
    bad = {line["check"] for line in checks.lines if not line["ok"]}
    assert (checks.code, checks.err) == (len(bad), ""), checks.out
    assert bad <= {"in doubt"}
    told = within("doctor", store=shop)
    assert (told.code, told.err) == (len(bad), "")
    assert sum(not line.startswith(" ") for line in told.out.splitlines()) == len(checks.lines)

    stands = within("status", "--json", store=shop)
    assert (stands.code, stands.err) == (0, "")
    assert stands.one["facts"] == stands.one["last_seq"]
    assert {"gate", "queue", "model"} <= {one["name"] for one in stands.one["consumers"]}
    told = within("status", store=shop)
    assert (told.code, told.err) == (0, "")
    assert "gate-timers" in told.out


def test_colours_are_for_terminals_that_want_them(shop, call):
    """At a terminal there are escape codes; with NO_COLOR there are none, of any kind."""
    ask(shop, call)
    with (
        at_a_terminal("show", call, store=shop) as coloured,
        at_a_terminal("show", call, store=shop, NO_COLOR="1") as plain,
    ):
        assert (coloured.ended(), plain.ended()) == (0, 0)
    assert "\x1b[" in coloured.told
    assert "\x1b" not in plain.told
    assert "ApprovalRequested" in plain.told


def line_about(process, call):
    while (line := json.loads(process.stdout.readline()))["call"] != str(call):
        pass
    return line


def words_about(process, call):
    while str(call) not in (line := process.stdout.readline()):
        pass
    return line


# ---------------------------------------------------------------------------------------- bad input

FILES = {
    "policy.toml": POLICY,
    "policy-key.toml": '[[rule]]\nname = "x"\ntools = ["pay"]\nthen = "ask"\nvoterz = ["ana"]\n',
    "policy-pattern.toml": '[[rule]]\nname = "x"\ntools = ["pay now"]\nthen = "ask"\n',
    "policy-huge.toml": "deny_repeats = 3\n" + "#" * 600_000,
    "tools.toml": '[[tool]]\nname = "re fund"\nschema = "{}"\n',
    "empty.jsonl": "",
}

OPEN, TWO, DECIDED, EXPIRED = (f"shop/t/{name}" for name in ("open", "two", "decided", "expired"))
ANA = ("--as", "ana")


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A store in which nothing moves any more: a call that waits, one that waits for a second vote,
    one decided, one expired.
    """
    folder = tmp_path_factory.mktemp("calm")
    for name, content in FILES.items():
        (folder / name).write_text(content)
    with up(folder / "store", "--policy", folder / "policy.toml", "-w", "shop") as ready:
        store = Path(ready["store"])
        program.declare(store, TOOLS, "shop")
        ask(store, CallRef.parse(OPEN))
        ask(store, CallRef.parse(TWO), "wire")
        ask(store, CallRef.parse(DECIDED))
        ask(store, CallRef.parse(EXPIRED), "coupon")
        asyncio.run(_ana_votes(store))
        until(store, CallRef.parse(DECIDED).decided, CallRef.parse(EXPIRED).finished)
        yield store, ready


async def _ana_votes(store):
    async with Ledger.connect(store, role="admin") as ledger:
        await ledger.reviewer("ana").approve(TWO)
        await ledger.reviewer("ana").approve(DECIDED)


BAD_INPUT = [
    # what is done, how it ends, what must be said
    ("policy apply missing.toml -w shop", 2, "missing.toml: cannot be read"),
    ("policy apply policy-key.toml -w shop", 2,
     "policy-key.toml, line 5, rule 'x': unknown key 'voterz'. The keys are"),
    ("policy apply policy-pattern.toml -w shop", 2,
     "policy-pattern.toml, line 3, rule 'x': |'pay now' is not a valid pattern"),
    ("policy apply policy-huge.toml -w shop", 2, "over the limit of 524,288"),
    ("policy apply policy.toml -w _shop", 2, "workspace '_shop' cannot be used"),
    ("tool declare tools.toml -w shop", 2, "tools.toml, line 2, tool 're fund': "),
    (f"doubt {OPEN}", 1, "shop/t/open is pending, so it cannot be put in doubt"),
    ("up", 75,
     "is held by process {up}, which runs a broker from it|name another store with --store"),
    ("up --store .", 2,
     "holds files that are not ours and is left alone. Name an empty or a new directory"),
    ("up --store empty.jsonl", 2, "empty.jsonl cannot be a store: |Name another with --store."),
    ("up --store new --workers gate,nothing", 2,
     "there is no worker 'nothing'. There are: gate, queue, model"),
    ("up --store new --policy policy-key.toml", 2, "policy-key.toml, line 5"),
    ("up --store new --tools no_such_module:tools", 2, "no_such_module"),
    ("work nothing", 2, "there is no worker 'nothing'. There are: gate, queue, model, executor"),
    ("request shop/t/new nail {}", 2,
     "no tool 'nail' is declared in workspace 'shop'. Declared are: coupon, drop"),
    ("request elsewhere/t/new pay {}", 2, "no tool 'pay' is declared in workspace 'elsewhere'"),
    ("request shop/t/new pay {}", 2,
     'The arguments of pay do not fit its schema: |"amount" is a required'),
    ("request shop/t/new pay {", 2, "The arguments of pay cannot be read: it is no JSON"),
    (f'request {OPEN} pay {{"amount":6}}', 1,
     "already requested with other arguments|Choose another call id"),
    ("request shop/t/a.b pay {}", 2,
     "call 'a.b' cannot be used: an id is 1 to 64 characters of A-Z a-z 0-9 _ -"),
    ("request shop/t%20t/a pay {}", 2,
     "thread 't t' cannot be used: an id is|Rename it, without dots, spaces"),
    ("request shop/t pay {}", 2, "'shop/t' is not of the form workspace/thread/call"),
    (f"approve {OPEN} --as eve", 4,
     "eve is none of those who may vote on shop/t/open. Rule 'money' asks ana, ben, rita."),
    (f"approve {OPEN} --as rita", 4,
     "rita asked for shop/t/open, or is behind the agent that did, and does not count."),
    (f"approve {OPEN} --as a.b", 2, "reviewer 'a.b' cannot be used"),
    (f"approve {OPEN} --as ana --edit {{}}", 2,
     'do not fit its schema: |"amount" is a required property'),
    (f"approve {OPEN} --as ana --edit [", 2, "The arguments of pay cannot be read: it is no JSON"),
    (f"approve {TWO} --as ana", 1,
     "ana has already voted on shop/t/two: Voted by ana at 20|Nothing was recorded."),
    (f"deny {TWO} --as ana", 1,
     "ana has already voted on shop/t/two: Voted by ana at 20|Nothing was recorded."),
    (f"approve {DECIDED} --as ben", 1,
     "already decided: Approved by ana at 20|Nothing was recorded."),
    (f"deny {DECIDED} --as ben", 1, "already decided: Approved by ana at 20|Nothing was recorded."),
    (f"approve {EXPIRED} --as ana", 6, "already decided: Expired at 20|Nothing was recorded."),
    ("approve shop/t/nobody --as ana", 1,
     "shop/t/nobody was never requested. `ayes pending` lists"),
    ("deny shop/t/constructor --as ana", 1, "shop/t/constructor was never requested"),
    ("approve shop/t/1-0-call_abc --as ana", 1, "was never requested"),
    (f"withdraw {DECIDED}", 1, "already decided: Approved by ana at 20"),
    ("withdraw shop/t/nobody", 1, "was never requested"),
    (f"revoke {OPEN} --as ana", 1, "shop/t/open is pending, so it cannot be revoked"),
    (f"reconcile {OPEN} --as ana --happened", 1,
     "shop/t/open is pending, so it cannot be reconciled"),
    ("wait shop/t/nobody", 1, "was never requested"),
    ("show shop/t/nobody", 1, "was never requested"),
    ("thread shop/nobody", 1, "nothing was ever recorded in shop/nobody"),
    ("thread shop", 2, "'shop' is not of the form workspace/thread"),
    ("history shop/nobody", 1, "nothing was ever recorded in shop/nobody"),
    ("history shop/t --format nobody", 2,
     "there is no provider 'nobody'. Known are: openai-chat, openai-responses, anthropic"),
    ("pending -w a.b", 2, "workspace 'a.b' cannot be used"),
    ("replay --until tomorrow", 2,
     "--until 'tomorrow' is neither a sequence number nor an ISO time such as 20"),
    ("pending --url nats://", 2, "An example is nats://127.0.0.1:4222."),
    ("pending --url nats://127.0.0.1:1", 75,
     "no NATS broker answers at nats://127.0.0.1:1. |ayes up"),
    ("pending --store missing", 75, "no broker runs in |start one with `ayes up --store "),
    ("doctor --store .", 75, "no broker runs in |start one with `ayes up --store "),
    # what the command line itself finds
    ("pendin", 2, "No such command 'pendin'. Did you mean 'pending'?"),
    (f"approve {OPEN}", 2, "Missing option '--as'"),
    (f"wait {OPEN} --timeout -1", 2, "--timeout '-1' is not a valid duration."),
    (f"wait {OPEN} --timeout soon", 2,
     "--timeout 'soon' is not a valid duration. Write a number and its unit, as in 90s"),
    ("work gate --store missing --wait 0.5s", 75, "no broker runs in "),
    ("work gate --wait soon", 2, "--wait 'soon' is not a valid duration."),
    ("up --store new --ack-wait 0.1s", 2, "--ack-wait '0.1s' is too short: 0.5s at least."),
    ("up --store new --sync sometimes", 2, "--sync 'sometimes' is not a valid duration."),
    ("watch --from 0", 2, "'--from'"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "said"), BAD_INPUT, ids=[row[0] for row in BAD_INPUT])
def test_bad_input_is_told_and_not_recorded(calm, within, monkeypatch, line, code, said):
    """A sentence on stderr: what is wrong, where, and what to do; and nothing recorded."""
    store, ready = calm
    before = last_seq(store)
    monkeypatch.chdir(store.parent)
    ended = within(*(word.replace("%20", " ") for word in line.split()), store=store)
    for part in said.split("|"):
        assert part.replace("{up}", str(ready["up"])) in ended.err
    assert (ended.code, ended.out) == (code, "")
    assert last_seq(store) == before
    assert not (store.parent / "new").exists()
    assert not (store.parent / "missing").exists()


def test_a_wrong_password_is_not_a_broker_away(calm, within):
    """The credentials are wrong, and starting another broker would not help (4)."""
    _, ready = calm
    url = ready["url"].replace("//", "//observer:wrong@")
    ended = within("pending", "--url", url, "--json")
    assert (ended.code, ended.out) == (4, "")
    assert ended.problem["error"] == "BrokerRefused"
    assert "does not accept the credentials of 'observer'" in ended.problem["message"]
    assert "wrong" not in ended.err


def test_a_login_may_not_do_more_than_its_role(calm, within):
    """With --url one is who the URL says: an observer cannot vote (4); nothing is recorded."""
    store, ready = calm
    before = last_seq(store)
    password = msgspec.json.decode((store / "address.json").read_bytes())["passwords"]["observer"]
    url = ready["url"].replace("//", f"//observer:{password}@")
    assert within("pending", "--json", "--url", url).lines
    ended = within("approve", OPEN, "--as", "ben", "--url", url, "--json")
    assert (ended.code, ended.problem["error"]) == (4, "BrokerRefused")
    assert last_seq(store) == before


def test_errors_are_json_for_programs(calm):
    """With --json an error is one line of JSON on stderr: its kind, the sentence, the exit code."""
    store, _ = calm
    ended = approvals("approve", DECIDED, "--as", "ben", "--json", store=store)
    assert (ended.code, ended.out) == (1, "")
    message = ended.problem["message"]
    assert ended.problem == {"error": "AlreadyDecided", "message": message, "exit_code": 1}
    assert "already decided: Approved by ana" in message


def test_a_broker_that_says_nothing_is_away():
    """Somebody listens there, and is silent."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]

        async def connecting():
            url = f"nats://127.0.0.1:{port}"
            async with asyncio.timeout(60), Ledger.connect(url=url, timeout_s=1):
                pass

        with pytest.raises(BrokerAway, match="no NATS broker answers at"):
            asyncio.run(connecting())
