"""`ayes check`: what a provider would reject in a list of messages, without a broker."""

import json

import pytest
import typer.main
from program import Ended, approvals

from ayes.interfaces.cli import look
from ayes.interfaces.cli.main import app
from ayes.projections.formats import FORMATS
from ayes.schemas.errors import BadFile

HELLO = {"role": "user", "content": "hi"}
CHAT = [
    HELLO,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "refund", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "refund", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "done"},
    {"role": "tool", "tool_call_id": "b", "content": "done"},
]
CLAUDE = [
    HELLO,
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "a", "name": "refund", "input": {}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "done"}]},
]


@pytest.fixture
def check(tmp_path, capsys):
    """The command's body, on a file with this in it."""

    async def check(content, provider="openai-chat", *, json_=False) -> Ended:
        file = tmp_path / "messages.json"
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        code = await look.check(str(file), provider, json=json_)
        return Ended(code, *capsys.readouterr())

    return check


# ---------------------------------------------------------------------------------- what it answers


@pytest.mark.parametrize(
    ("content", "provider"),
    [
        (CHAT, "openai-chat"),
        (CLAUDE, "anthropic"),
        ({"messages": CHAT}, "openai-chat"),
        ({"system": "be kind", "model": "some", "messages": CLAUDE}, "anthropic"),
    ],
)
async def test_what_a_provider_would_take_is_no_data(check, content, provider):
    """The list, or the request that it stands in: nothing on stdout, a sentence on stderr, 0."""
    found = await check(content, provider)
    assert found == Ended(0, "", f"{provider} would accept it.\n")


async def test_every_problem_is_told(check):
    """Each with its rule, the index of the message, and what to do; 1 (B1)."""
    found = await check([CHAT[0], CHAT[1], HELLO, CHAT[2]])
    assert found.code == 1
    assert found.out == (
        "message 1: 'a' has no result directly after it. Wait for it, and send the turn whole. "
        "(rule 1)\n"
        "message 1: 'b' has no result directly after it. Wait for it, and send the turn whole. "
        "(rule 1)\n"
        "message 3: the result of 'a' does not follow an assistant message with that call. "
        "Put it there, or drop it. (rule 2)\n"
    )
    assert found.err == "openai-chat would reject it: 3 problems.\n"


async def test_every_problem_is_one_object_a_line(check):
    """For programs: rule, message and problem, in the order of the messages."""
    found = await check([*CHAT[:3], HELLO, {"role": "assistant", "content": None}], json_=True)
    assert found.lines == [
        {
            "rule": 1,
            "message": 1,
            "problem": "'b' has no result directly after it. Wait for it, and send the turn whole.",
        },
        {
            "rule": 8,
            "message": 4,
            "problem": "the content must be text. Write an empty text where there is none.",
        },
    ]
    assert (await check(CHAT, json_=True)).out == ""


@pytest.mark.parametrize(
    ("content", "asked", "right", "index"),
    [(CLAUDE, "openai-chat", "anthropic", 1), (CHAT, "anthropic", "openai-chat", 1)],
)
async def test_another_providers_messages_are_recognised(check, content, asked, right, index):
    """The first message that gives them away is named, and whose they are."""
    found = await check(content, asked, json_=True)
    assert found.code == 1
    assert found.lines[0]["message"] == index
    assert f"--format {right}" in found.lines[0]["problem"]
    assert right in found.err


async def test_what_a_terminal_would_not_show_is_spelled_out(check):
    """An id that would turn the line around, or end it, is told so that it can be read."""
    hidden = [HELLO, {"role": "tool", "tool_call_id": "a\u202eb\nc", "content": ""}]
    found = await check(hidden)
    assert found.out.count("\n") == 1
    assert "\u202e" not in found.out


# ------------------------------------------------------------------------------ what it cannot read


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ": is empty"),
        (b" \n", ": is empty"),
        (json.dumps(CHAT, indent=1).encode()[:300], ", line 22: it is no JSON"),
        (b'[\n {"role": "user",\n  "content": }\n]', ", line 3: it is no JSON"),
        (b'[\n\n"\xff"]', ", line 3: not UTF-8: byte 0xff"),
        (b"\xef\xbb\xbf[]", ", line 1: it is no JSON"),
        (b'{"messages": []}\n{"messages": []}', ", line 2: it is no JSON: Extra data"),
        (b'[{"role": "user", "role": "tool"}]', 'the key "role" stands twice'),
        (b'[{"content": NaN}]', "NaN is no JSON number"),
        (b'["\\ud800"]', "half a surrogate pair"),
        (b"[" * 100_000, "nested deeper than 100 levels"),
        (b"[" * 200 + b"]" * 200, "nested deeper than 100 levels"),
        (b"3", "neither a JSON array"),
        (b'"hi"', "neither a JSON array"),
        (b"null", "neither a JSON array"),
    ],
)
async def test_what_cannot_be_read_is_named(check, content, said):
    """Undecodable bytes, a truncated file, two readings: the file, and the line if any (B14)."""
    with pytest.raises(BadFile) as raised:
        await check(content)
    assert said in str(raised.value)
    assert "messages.json" in str(raised.value)


# ------------------------------------------------------------------------------------- as a program


def test_the_program_needs_no_broker(tmp_path):
    """Where no broker is and no store was ever made, it answers all the same, and makes none."""
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(CHAT[:3]))
    store = tmp_path / "store"
    broken = approvals("check", file, "--format", "openai-chat", "--json", store=store)
    assert (broken.code, [one["rule"] for one in broken.lines]) == (1, [1])
    file.write_text(json.dumps(CHAT))
    assert approvals("check", file, "--format", "openai-chat", store=store).code == 0
    assert not store.exists()


def test_the_program_says_what_it_cannot_read(tmp_path):
    """A missing file, a broken one or an unknown provider is 2; with --json it is an object."""
    file = tmp_path / "messages.json"
    missing = approvals("check", file, "--format", "openai-chat")
    assert (missing.code, missing.out) == (2, "")
    assert "cannot be read" in missing.err
    file.write_text('[{"role": "user"')
    broken = approvals("check", file, "--format", "openai-chat", "--json")
    assert (broken.code, broken.out) == (2, "")
    assert broken.problem["error"] == "BadFile"
    assert "line 1" in broken.problem["message"]
    unknown = approvals("check", file, "--format", "some-ai")
    assert (unknown.code, unknown.out) == (2, "")
    assert "'some-ai'" in unknown.err
    assert "openai-chat" in unknown.err


@pytest.mark.parametrize(("sent", "code"), [(json.dumps(CHAT), 0), ("[]", 1), ("", 2), ("[", 2)])
def test_the_program_reads_stdin(sent, code):
    """`-` is what is piped in, and is called so."""
    done = approvals("check", "-", "--format", "openai-chat", typed=sent)
    assert done.code == code, done.err
    assert code != 2 or done.err.startswith("error: stdin")


def test_the_help_names_every_provider():
    """Whoever reads the help knows what can be said after --format."""
    command = typer.main.get_command(app).commands["check"]
    (option,) = [one for one in command.params if "--format" in one.opts]
    assert sorted(option.help.partition(": ")[2].split(", ")) == sorted(FORMATS)
