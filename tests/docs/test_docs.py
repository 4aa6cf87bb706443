"""What the docs show is run: every Python block, every command, every policy, against a real broker
(B84).

How a page is read: its blocks are a story, in their order, on a broker of their own.

* `python` blocks run: as a program of their own if they start an event loop, else with a connected
  `ledger` at hand.
* `sh` blocks run line by line; `# exit 5` at the end of a line is the exit code that it must have.
  Commands that run for ever, or that name another host, are only held against the command line's
  options.
* `toml` blocks are read as what they say they are, and written to the file that their first line
  names.
* `json` blocks after "Send to `subject`:" are sent there by a plain NATS client; `sql` blocks are
  asked of DuckDB.

`docs/commands.md` is written by `python tests/docs/test_docs.py`.
"""

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import nats
import pytest
from long import sampled
from pages import CLI, Block, blocks, parse, piped
from paths import ROOT
from ports import free_port
from program import Started, started, up
from pydantic import BaseModel
from sections import settings_file
from until import recorded, until

from ayes import Ledger, spec_of
from ayes.interfaces.cli.settings import Settings
from ayes.ledger.nats.credentials import Store
from ayes.ops.broker import accounts
from ayes.ops.broker.server import ensure_account, find_binary
from ayes.ops.broker.setup import apply_policy
from ayes.schemas import errors, slots
from ayes.schemas.errors import Refused
from ayes.schemas.events import InDoubt, ToolStarted
from ayes.schemas.policy import Budget, Policy, Rule, read_policy
from ayes.schemas.settings import read_settings
from ayes.schemas.slots import CallRef

README = ROOT / "README.md"
PAGES = [
    README,
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
]
#: For operators, by what they are about to do.
OPERATORS = (
    "running.md", "settings.md", "people.md", "policies.md", "telling.md", "watching.md",
    "stopping.md", "recovering.md",
)  # fmt: skip
#: For who begins, or meets a problem.
BEGINNERS = ("install.md", "first-week.md", "testing.md", "runbook.md")
#: Those that somebody follows from top to bottom.
STORIES = [
    README,
    *(
        ROOT / "docs" / name
        for name in ("services.md", "reviewers.md", *OPERATORS, "cluster.md", "asking.md")
    ),
]
COMMANDS = ROOT / "docs" / "commands.md"


def refund(order: str, amount: int) -> str:
    """Give money back for an order."""
    return f"{amount} given back for order {order}"


def close_account(account: str) -> str:
    return f"{account} is closed"


# --------------------------------------------------------------------------------- the command line


def commands(group: Any = CLI, *path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


@cache
def _by_name() -> dict[str, Any]:
    return dict(commands())


def written_commands() -> str:
    """The page of all commands, as the program itself describes them."""
    lines = [
        "# Every command and option",
        "",
        (
            "`ayes COMMAND --help` says the same. `--store` and `--url` say which broker; see "
            "[running.md](running.md)."
        ),
        "",
    ]
    for name, command in commands():
        lines += [
            f"## `ayes {name}`",
            "",
            inspect.cleandoc(command.help or "").replace("\n", " "),
            "",
        ]
        lines += ["| | |", "|---|---|"]
        for one in command.params:
            if one.param_type_name == "option":
                names = ", ".join(f"`{option}`" for option in (*one.opts, *one.secondary_opts))
            else:
                names = f"`{one.metavar or one.name}`"
            lines.append(f"| {names} | {getattr(one, 'help', None) or ''} |")
        lines.append("")
    return "\n".join(lines)


def test_every_command_and_option_is_documented():
    """The page of commands is what the program says; if not: python tests/docs/test_docs.py"""
    assert COMMANDS.read_text() == written_commands(), (
        "write it anew: PYTHONPATH=tests/support .venv/bin/python tests/docs/test_docs.py"
    )


def test_every_command_is_explained():
    """Each command occurs on a page that people read, not only in the list."""
    # Their commands are run by tests/adapters, with servers of their own, and by tests/ops.
    names = ("mcp.md", "aap.md", "adapters.md", "nats.md", "seals.md", "keys.md", "receipts.md",
             "secrets.md", "packing.md")  # fmt: skip
    others = [ROOT / "docs" / name for name in names]
    told = "\n".join(page.read_text() for page in (*STORIES, *others))
    assert [name for name, _ in commands() if f"ayes {name}" not in told and name != "demo"] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_documented_command_exists(page):
    """Whatever follows the word `ayes` in code is a command, and has the options that are shown."""
    by_name = _by_name()
    for span in re.findall(r"`ayes ([^`\n]+)`", page.read_text()):
        words = span.split()
        if words[0] == "COMMAND":
            continue
        known = [name for name in by_name if span.startswith(name)]
        assert known, f"ayes {span}"
        options = by_name[max(known, key=len)].params
        given = {word for word in words if word.startswith("--")}
        assert given <= {opt for one in options for opt in (*one.opts, *one.secondary_opts)} | {
            "--help"
        }, span


def test_the_readme_shows_both_commands():
    """`make demo` and `make test` are shown, and are targets."""
    shown = set(
        re.findall(
            r"^make (\w+)", "\n".join(block.text for block in blocks(README, "sh")), re.MULTILINE
        )
    )
    assert {"demo", "test"} <= shown
    assert shown <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Every link to a file of ours leads to one."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_files_that_contributors_are_told_of_exist():
    told = re.findall(r"`([a-z_]+/[\w/.]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(told) > 20
    assert [name for name in told if not (ROOT / name).exists()] == []


# ---------------------------------------------------------------- tables that the code knows better


def table(page: str, heading: str) -> dict[str, str]:
    """A table by its heading's first two cells: the first column to the second."""
    text = (ROOT / "docs" / page).read_text()
    _, _, rest = text.partition(heading)
    assert rest, f"{page} has no table {heading!r}"
    rows = rest.split("\n\n", 1)[0].splitlines()[2:]
    return {cells[1].strip(): cells[2].strip() for cells in (row.split("|") for row in rows)}


def test_each_attacker_is_played_by_a_test():
    """Each row of the table of attackers names tests, and these exist."""
    attackers = (ROOT / "SECURITY.md").read_text().partition("| tried by |")[2]
    rows = attackers.partition("\n\n")[0].splitlines()[2:]
    every = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert every.issuperset(named), row


def test_the_roles_are_as_documented():
    """Who may write what, in the operators' table, is what the broker is told."""
    told = {
        role.strip("`"): set(re.findall(r"`([^`]+)`", may))
        for role, may in table("people.md", "| role | may record |").items()
    }
    head = f"{slots.ROOT}.*."

    def short(subject: str) -> str:
        rest = subject.removeprefix(head)
        return rest if rest.startswith("_") else rest.removeprefix("*.")

    known = {
        role: {
            short(one)
            for one in accounts.permissions(role).publish
            if one.startswith(f"{slots.ROOT}.")
        }
        for role in (*accounts.ROLES, "reviewer-NAME")
    }
    assert told == known


def test_the_slots_are_as_documented():
    """Every slot, and what may fill it."""
    told = {
        name.strip("`"): [one.strip() for one in kinds.split(",")]
        for name, kinds in table("services.md", "| under `ledger.<workspace>.<thread>.` |").items()
        if name.startswith("`")
    }
    assert told == {
        ".".join(shape): [kind.__name__ for kind in kinds]
        for shape, kinds in slots.FILLED_BY.items()
    }


def test_the_errors_are_as_documented():
    """Every error that a service can meet has a row."""

    def below(kind: type) -> Iterator[str]:
        for one in kind.__subclasses__():
            # What a command keeps to itself is defined where it is used.
            if one.__module__ == errors.__name__:
                yield one.__name__
            yield from below(one)

    told = [name.strip("`") for name in table("services.md", "| error | means |")]
    assert sorted(told) == sorted(below(errors.ApprovalsError))


def test_the_exit_codes_are_as_documented():
    """Each exit code of the command line's own list, and that of Ctrl-C."""
    known = set(
        map(
            int,
            re.findall(
                r"(\d+) [a-z]",
                inspect.getdoc(sys.modules["ayes.interfaces.cli.main"]).partition("exit codes")[2],
            ),
        )
    )
    assert set(map(int, table("reviewers.md", "| exit code | means |"))) == known | {130}


def test_the_environment_is_as_documented():
    """Each variable that the code reads, and no other."""
    code = "\n".join(
        file.read_text()
        for folder in ("ledger", "ops", "consumers", "interfaces")
        for file in (ROOT / folder).rglob("*.py")
    )
    read = set(re.findall(r"\bAYES_[A-Z_]+\b|\bNATS_SERVER_[A-Z0-9]+\b|\bNO_COLOR\b", code))
    assert {name.strip("`") for name in table("running.md", "| variable | is |")} == read


# ---------------------------------------------------------------------------------- files they show


def settings_of_block(block: Block, folder: Path) -> Settings:
    """The settings that it shows, with a value for each secret that they name."""
    (folder / "oidc-secret").write_text("secret")
    named = re.findall(r'"env:(\w+)"', block.text)
    known = {name: f"{name} of {'x' * 32}" for name in named}
    known |= dict.fromkeys(("MAIL_URL", "NTFY_URL"), "json://shop.example/{address}")
    known |= {"SLACK_APP_TOKEN": "xapp-1", "SLACK_BOT_TOKEN": "xoxb-1"}
    known["ANA_CALENDAR"] = "https://calendar.example/ana.ics"
    return read_settings(Settings, settings_file(folder, block.text), Settings.model_fields, known)


def test_the_page_of_settings_has_all_sections_and_keys(tmp_path):
    """In one file that can be read, so that nobody has to look for a key anywhere else."""
    [block] = blocks(ROOT / "docs" / "settings.md", "toml")
    lacking: dict[type[BaseModel], set[str]] = {}

    def shown(value: object) -> None:
        if isinstance(value, BaseModel):
            kind = type(value)
            lacking.setdefault(kind, {*kind.model_fields}).difference_update(value.model_fields_set)
            value = dict(value)
        for one in value.values() if isinstance(value, dict) else ():
            shown(one)
        for one in value if isinstance(value, tuple) else ():
            shown(one)

    shown(settings_of_block(block, tmp_path))
    assert {kind: keys for kind, keys in lacking.items() if keys} == {}


@pytest.mark.parametrize("kind", [Policy, Rule, Budget], ids=lambda kind: kind.__name__)
def test_every_key_of_a_policy_is_explained(kind):
    """In a table, or as a section."""
    told = (ROOT / "docs" / "policies.md").read_text() + (
        ROOT / "docs" / "reviewers.md"
    ).read_text()
    keys = {field.alias or name for name, field in kind.model_fields.items()}
    assert [key for key in sorted(keys) if f"`{key}`" not in told and f"[{key}]" not in told] == []


def test_policies_and_scripts_can_be_read(tmp_path):
    """Each TOML block is what its name says: settings, or else a policy."""
    count = 0
    for page in STORIES:
        for block in blocks(page, "toml"):
            count += 1
            first = block.text.splitlines()[0]
            if "ayes.toml" in first:
                settings_of_block(block, tmp_path)
            else:
                read_policy(block.text, str(page))
    assert count >= 2
    assert read_policy((ROOT / "examples" / "airline.toml").read_text(), "airline.toml").rules


def test_the_readmes_service_is_the_example():
    """It is the file, in fewer than 30 lines; so are the executor's tools and the receiver."""
    [block] = blocks(README, "python")
    assert block.text == (ROOT / "examples" / "service.py").read_text()
    assert len(block.text.splitlines()) < 30
    shown = [block.text for block in blocks(ROOT / "docs" / "services.md", "python")]
    for name in ("shop_tools.py", "webhook_receiver.py"):
        assert (ROOT / "examples" / name).read_text() in shown


# ------------------------------------------------------------------------------------- running them


@contextmanager
def at_work(here: Path, *options: str) -> Iterator[dict[str, str]]:
    """A broker and workers; yields the environment in which everything finds them."""
    here.mkdir(exist_ok=True)
    (here / "examples").symlink_to(ROOT / "examples")
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    with up(here / "store", *options):
        # A program in the store's folder must not import this repository from anywhere else.
        yield kept | {
            "AYES_STORE": str(here / "store"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }


async def run(
    command: list[str],
    cwd: Path,
    environment: dict[str, str],
    *,
    within_s: float = 60,
    typed: str = "",
) -> tuple[int, str, str]:
    """Its exit code and what it wrote. `ayes` is forked: 40 starts a page would take long."""
    program = Started if command[0] in {"ayes", sys.executable} else subprocess.Popen

    def ended() -> tuple[int, str, str]:
        with program(
            command, cwd=cwd, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(typed, within_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return process.returncode, out, err

    return await asyncio.to_thread(ended)


FOREVER = ("up", "cluster up", "console", "monitor", "work", "watch", "demo")


async def run_line(line: str, cwd: Path, environment: dict[str, str]) -> None:
    """One line of a `sh` block."""
    shown = line
    wanted = int(found[1]) if (found := re.search(r"#.*\bexit (\d+)", line)) else 0
    runs = True
    pieces = piped(line)
    for words in pieces:
        if not words or words[0] == "make":
            return
        if words[0] == "ayes":
            name = parse(words[1:])
            runs = runs and name not in FOREVER and "--watch" not in words
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), line
            runs = runs and words[1] == "examples/own_nats.py"
        elif shutil.which(words[0]) is None:
            runs = False
    if not runs or "nats.example" in line:
        return
    code, out, err = 0, "", ""
    if pieces[0][0] == "ayes":  # forked; what it writes is piped to the rest of the line
        code, out, err = await run(pieces.pop(0), cwd, environment)
        line = " | ".join(map(shlex.join, pieces))
    if pieces:
        rest = ["bash", "-o", "pipefail", "-c", line]
        last, out, more = await run(rest, cwd, environment, typed=out)
        code, err = last or code, err + more
    assert code == wanted, f"{shown}\nended with {code}, not {wanted}\n{out}{err}"


async def run_python(
    block: Block, cwd: Path, environment: dict[str, str], names: dict[str, Any]
) -> None:
    if "asyncio.run(" in block.text or "start_blocking_portal(" in block.text:
        code, out, err = await run([sys.executable, "-c", block.text], cwd, environment)
        assert code == 0, f"{block}\n{out}{err}"
        return
    compiled = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with asyncio.timeout(60):
        waiting = eval(compiled, names)
        if inspect.iscoroutine(waiting):
            await waiting


async def prepare(store: str) -> None:
    """What the pages take for granted: tools that are declared."""
    async with Ledger.connect(store, name="billing") as ledger:
        await ledger.declare("shop", spec_of(refund))
        await ledger.declare("shop", spec_of(close_account))
        await ledger.declare("shop", spec_of(refund, name="payout"))


async def leave_in_doubt(store: str) -> None:
    """The call that docs/reviewers.md reconciles."""
    async with Ledger.connect(store, name="billing") as ledger:
        call = await ledger.request(
            "shop/order-22/payout-1", "payout", {"order": "A-22", "amount": 48}
        )
        call = await ledger.decision(call.ref)
        started = ToolStarted(digest=call.wish.digest, idempotency_key=str(call.ref))
        await ledger.try_append(call.ref.client_claim(1), started)
        await ledger.try_append(call.ref.client_finished, InDoubt(attempt=1, text="Nobody knows."))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[tuple[Path, dict[str, str]]]:
    """A broker, workers, tools of the workspace `shop`, and a file `shop.toml`."""
    policy = next(
        block
        for block in blocks(ROOT / "docs" / "reviewers.md", "toml")
        if "shop.toml" in block.text
    )
    free = tmp_path / "free.toml"
    free.write_text('[[rule]]\nname = "free"\ntools = ["payout"]\nthen = "allow"\n')
    here = tmp_path / "here"
    with at_work(here, "--policy", str(free), "-w", "shop") as environment:
        (here / "shop.toml").write_text(policy.text)
        await prepare(environment["AYES_STORE"])
        yield here, environment


@asynccontextmanager
async def ana_approves(store: str) -> AsyncIterator[None]:
    """Ana, at her desk, says yes to whatever waits in the shop."""
    await ensure_account(store, "reviewer-ana")
    async with Ledger.connect(store, role="reviewer-ana") as ana:
        voting = asyncio.create_task(_says_yes(ana))
        try:
            yield
        finally:
            voting.cancel()
            await asyncio.gather(voting, return_exceptions=True)


async def _says_yes(ana: Ledger) -> None:
    async with aclosing(ana.watch(1, "ledger.shop.*.call.*.gated")) as questions:
        async for question in questions:
            ref = question.slot.call_ref
            assert ref
            await asyncio.sleep(_THINKS_S)
            with suppress(Refused):  # it was withdrawn meanwhile
                await ana.reviewer("ana").approve(ref)


#: So that whoever asks is told first that it waits.
_THINKS_S = 1.0


async def request_refund(store: str, call: str) -> None:
    async with Ledger.connect(store) as ledger:
        await ledger.request(call, "refund", {"order": "A-17", "amount": 480}, requester="ben")


async def follow(
    page: Path,
    here: Path,
    environment: dict[str, str],
    ledger: Ledger,
    instead: dict[str, str] | None = None,
) -> None:
    """A page from top to bottom; `instead` has what its commands name otherwise."""
    import duckdb

    names: dict[str, Any] = {"ledger": ledger, "__name__": "docs"}
    database = duckdb.connect()
    for block in blocks(page, "python", "sh", "sql", "toml"):
        match block.language:
            case "toml":
                if named := re.match(r"# (\w+\.toml)\n", block.text):
                    (here / named[1]).write_text(block.text)
            case "python":
                await run_python(block, here, environment, names)
            case "sql":
                text = block.text.replace("'facts.jsonl'", f"'{here / 'facts.jsonl'}'")
                answered = database.execute(text).fetchall()
                assert answered or text.startswith("CREATE"), f"{block} finds nothing"
            case "sh":
                for line in block.text.splitlines():
                    for shown, used in (instead or {}).items():
                        line = line.replace(shown, used)  # noqa: PLW2901 - the same line
                    await run_line(line, here, environment)


@pytest.mark.long
async def test_the_services_page_works(shop):
    """docs/services.md, while ana approves."""
    here, environment = shop
    store = environment["AYES_STORE"]
    async with ana_approves(store), Ledger.connect(store, name="billing") as ledger:
        await dies_while_it_runs("shop/order-19/refund-1", here, environment)
        await follow(ROOT / "docs" / "services.md", here, environment, ledger)
        assert (await ledger.call(CallRef.parse("shop/order-17/refund-7"))).status == "returned"
        assert (await ledger.call(CallRef.parse("shop/order-19/refund-1"))).status == "in_doubt"


async def dies_while_it_runs(call: str, here: Path, environment: dict[str, str]) -> None:
    """A service as on the page, whose tool never comes back."""
    program = f"""
import asyncio, os
from ayes import Ledger

async def main():
    async with Ledger.connect(name="billing") as ledger:
        await ledger.request({call!r}, "refund", {{"order": "A-19", "amount": 5}})
        await ledger.decision({call!r})
        await ledger.run({call!r}, lambda order, amount: os._exit(9))

asyncio.run(main())
"""
    code, _, err = await run([sys.executable, "-c", program], here, environment)
    assert code == 9, err


@pytest.mark.parametrize(
    "name",
    sampled(
        ["reviewers.md", *OPERATORS, "cluster.md", "upgrading.md", *BEGINNERS],
        "stopping.md",
        "install.md",
    ),
)
async def test_the_page_works(shop, name):
    """Each command of the page does what the page says."""
    here, environment = shop
    if name == "reviewers.md":
        await leave_in_doubt(environment["AYES_STORE"])
    async with Ledger.connect(environment["AYES_STORE"]) as ledger:
        if name != "telling.md":
            await follow(ROOT / "docs" / name, here, environment, ledger)
            return
        async with receiver(here) as (port, received):
            await follow(ROOT / "docs" / name, here, environment, ledger, {"8425": port})
        assert "ayes.webhooks.test crm" in received()


@asynccontextmanager
async def receiver(here: Path) -> AsyncIterator[tuple[str, Callable[[], list[str]]]]:
    """The receiver of webhooks of docs/services.md; yields its port, and what it has received."""
    port = free_port()
    words = (here / "received.txt").open("w")
    with (
        words,
        subprocess.Popen(  # noqa: ASYNC220 - it is not waited for
            [sys.executable, "examples/webhook_receiver.py", str(port)],
            cwd=here,
            stdout=words,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            await until(lambda: listens(port))
            yield str(port), lambda: (here / "received.txt").read_text().splitlines()
        finally:
            process.terminate()


@pytest.mark.long
async def test_the_analysts_page_works(shop):
    """docs/asking.md, after some calls were approved and denied."""
    here, environment = shop
    for order, verdict in (("17", "approve"), ("18", "deny")):
        call = f"shop/order-{order}/refund-1"
        await request_refund(environment["AYES_STORE"], call)
        code, _, err = await run(
            ["ayes", verdict, call, "--as", "ana", "--reason", "As agreed."], here, environment
        )
        assert code == 0, err
    async with Ledger.connect(environment["AYES_STORE"]) as ledger:
        await follow(ROOT / "docs" / "asking.md", here, environment, ledger)


async def test_the_readme_works(tmp_path):
    """The README's service asks, ana approves, it runs; `ayes watch` sees it all from outside."""
    here = tmp_path / "here"
    call = "shop/order-17/refund-1"
    with at_work(here) as environment, watched(environment, until="ToolReturned") as seen:
        service = asyncio.create_task(
            run([sys.executable, "examples/service.py"], here, environment)
        )
        await until(lambda: waits_for_people(call, environment))
        for block in blocks(README, "sh"):
            for line in block.text.splitlines():
                await run_line(line, here, environment)
        code, out, err = await service
        assert (code, "480 given back for order A-17" in out) == (0, True), err
        kinds = [
            "ToolDeclared", "ToolRequested", "ApprovalRequested", "Voted", "Approved",
            "ToolStarted", "ToolReturned",
        ]  # fmt: skip
        assert [fact["event"]["type"] for fact in await seen] == kinds
        # Started again, it finds that all is done.
        code, out, err = await run([sys.executable, "examples/service.py"], here, environment)
        assert (code, out.strip()) == (0, f"{call}: returned"), err


async def waits_for_people(call: str, environment: dict[str, str]) -> bool:
    async with Ledger.connect(environment["AYES_STORE"], role="observer") as observer:
        return await is_gated(observer, call)


@contextmanager
def watched(
    environment: dict[str, str], until: str
) -> Iterator[asyncio.Task[list[dict[str, Any]]]]:
    """What `ayes watch` prints in a process of its own, from the first fact to one of this type."""
    store = environment["AYES_STORE"]
    with started("watch", "--from", "1", "--json", AYES_STORE=store) as watching:

        def read() -> list[dict[str, Any]]:
            seen: list[dict[str, Any]] = []
            assert watching.stdout
            while not seen or seen[-1]["event"]["type"] != until:
                seen.append(json.loads(watching.stdout.readline()))
            return seen

        yield asyncio.create_task(asyncio.to_thread(read))


async def test_another_language_can_do_it(shop):
    """The JSON of docs/services.md, sent by a NATS client without this package, runs a call."""
    _, environment = shop
    store = environment["AYES_STORE"]
    sent = []
    for block in blocks(ROOT / "docs" / "services.md", "json"):
        found = re.findall(r"Send to `([^`]+)`:\s*$", block.before)
        assert found, f"{block} says nowhere where it goes"
        sent.append((found[-1], block.text.encode()))
    login = Store(store).login("service")
    client = await nats.connect(
        login.url, user=login.user, password=login.password, inbox_prefix=b"_INBOX.service._"
    )
    async with ana_approves(store), Ledger.connect(store, role="observer") as observer:
        for subject, payload in sent:
            answer = json.loads((await client.request(subject, payload, timeout=60)).data)
            assert answer["stream"] == "LEDGER", answer
            if subject.endswith("requested"):
                await observer.decision("shop/order-17/refund-8", timeout_s=60)
        call = await observer.call(CallRef.parse("shop/order-17/refund-8"))
        assert call.status == "returned"
        assert call.wish.digest == json.loads(sent[1][1])["digest"]
        again = json.loads((await client.request(sent[-1][0], sent[-1][1])).data)
        assert again["error"]["err_code"] == 10077
        missing = await client.request(
            "$JS.API.DIRECT.GET.LEDGER.ledger.shop.order-17.call.refund-9.decided", b"", timeout=60
        )
        assert (missing.headers or {})["Status"] == "404"
    await client.close()


async def test_the_executor_works(tmp_path):
    """The tools of examples/shop_tools.py run, once approved, in an executor that has them."""
    tools = ("--tools", "examples.shop_tools:tools", "-w", "shop")
    with at_work(tmp_path / "here", *tools) as environment:
        store = environment["AYES_STORE"]
        async with ana_approves(store), Ledger.connect(store) as ledger:
            call = await ledger.request(
                "shop/order-17/letter-1", "send_letter", {"to": "ben", "text": "Sorry."}
            )
            [fact] = await recorded(ledger, call.ref.finished.subject)
            assert fact.event.output == "sent 6 characters to ben"


async def test_a_server_of_ones_own_works(tmp_path):
    """The accounts, configuration and streams of docs/running.md, on a server started by hand."""
    page = ROOT / "docs" / "running.md"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = dict(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    environment.pop("AYES_STORE", None)
    own = [sys.executable, "examples/own_nats.py"]
    assert (await run([*own, "ana"], tmp_path, environment))[0] == 0
    passwords = json.loads((tmp_path / "passwords.json").read_text())
    [config] = [block.text for block in blocks(page, "text") if "nats.conf" in block.text]
    port = free_port()
    (tmp_path / "nats.conf").write_text(config.replace("4222", str(port)))
    server = subprocess.Popen(  # noqa: ASYNC220 - it is not waited for
        [str(find_binary()), "-c", "nats.conf"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def url(role: str) -> str:
        return f"nats://{role}:{passwords[role]}@127.0.0.1:{port}"

    async def does(*words: str, role: str) -> None:
        code, out, err = await run(["ayes", *words, "--url", url(role)], tmp_path, environment)
        assert code == 0, out + err

    try:
        await until(lambda: listens(port))
        await does("setup", role="admin")
        await does("doctor", role="admin")
        policy = '[[rule]]\nname = "all"\ntools = ["*"]\nthen = "ask"\n'
        async with Ledger.connect(url=url("operator"), role="operator") as operator:
            assert await apply_policy(operator, "shop", policy, "shop.toml") == 1
        with (
            started("work", "gate", "--url", url("gate")),
            started("work", "queue", "--url", url("queue")),
        ):
            async with Ledger.connect(url=url("service")) as ledger:
                await ledger.declare("shop", spec_of(refund))
                await ledger.request(
                    "shop/order-17/refund-1", "refund", {"order": "A-17", "amount": 480}
                )
                await until(lambda: is_gated(ledger, "shop/order-17/refund-1"))
            await does("approve", "shop/order-17/refund-1", "--as", "ana", role="reviewer-ana")
            await does("status", role="operator")
        # A login with a key, in the store of a broker elsewhere.
        address = {"url": f"nats://127.0.0.1:{port}", "passwords": passwords}
        (tmp_path / "address.json").write_text(json.dumps(address))
        add = ["ayes", "auth", "add", "billing", "--role", "service", "--store", "."]
        for words in (add, [*own, "ana"]):
            code, out, err = await run(words, tmp_path, environment)
            assert code == 0, out + err
        server.send_signal(signal.SIGHUP)
        file = str(tmp_path / "billing.login")
        async with asyncio.timeout(60):
            while True:
                with suppress(errors.BrokerRefused):
                    async with Ledger.connect(url=file) as ledger:
                        await ledger.declare("shop", spec_of(refund))
                    break
    finally:
        server.terminate()
        server.wait()


async def is_gated(ledger: Ledger, call: str) -> bool:
    return (await ledger.call(CallRef.parse(call))).gated is not None


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


if __name__ == "__main__":
    COMMANDS.write_text(written_commands())
