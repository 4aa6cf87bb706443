"""The file of a gateway, the names that it makes, and how it keeps results: pure tables."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.request_state import AESGCMRequestStateCodec
from pages import blocks
from paths import ROOT
from sections import section

from ayes.interfaces.mcp import names
from ayes.interfaces.mcp.runs import Asked
from ayes.interfaces.mcp.wire import (
    labels_of,
    recorded,
    spec_of_tool,
    text_result,
    without_tasks,
)
from ayes.schemas.errors import BadFile, BadInput
from ayes.schemas.settings import NAME
from ayes.schemas.slots import CallRef
from ayes.schemas.tool_names import is_tool_name
from ayes.schemas.tools import Tool, declaration, judged_class

SERVER = '[[mcp.server]]\nname = "shop"\ncommand = ["shop"]\n'
HEAD = '[mcp]\nworkspace = "desk"\nrequester = "ben"\n'
CLIENT = f'[[mcp.client]]\ntoken = "{"t" * 32}"\n'

WRONG = [
    ("[mcp]", "line 1, [mcp]: 'workspace' is missing"),
    (HEAD, "'server' is missing"),
    (f'{HEAD}hold = "1h"\n{SERVER}', "is not a wait of 1s to 10m"),
    (f'{HEAD}color = "red"\n{SERVER}', "unknown key 'color'"),
    (f'[mcp]\nworkspace = "a.b"\n{SERVER}', "'workspace'"),
    (f"{HEAD}{SERVER}{SERVER}", "another server has the name 'shop' already"),
    (f'{HEAD}[[mcp.server]]\nname = "shop"\n', "give either a command or a url"),
    (f'{HEAD}{SERVER}url = "https://a"\n', "give either a command or a url"),
    (f'{HEAD}[[mcp.server]]\nname = "s"\nurl = "http://a.example"\n', "must begin with https://"),
    (f'{HEAD}[[mcp.server]]\nname = "s"\nurl = "shop"\n', "is not a URL"),
    (f'{HEAD}{SERVER}headers = {{ A = "b" }}\n', "headers are for a url"),
    (f'{HEAD}{SERVER}environment = {{ A = "env:NOBODY_SET" }}\n', "NOBODY_SET is not set"),
    (
        f'{HEAD}{SERVER}[[mcp.client]]\nrequester = "ana"\ntoken = "short"\n',
        "fewer than 32 characters",
    ),
    (
        f'{HEAD}{SERVER}{CLIENT}requester = "ana"\n{CLIENT}requester = "eve"\n',
        "two clients have the same token",
    ),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_each_mistake_in_the_file_is_one_sentence(tmp_path: Path, text: str, said: str):
    """It says what is wrong and where."""
    with pytest.raises(BadFile) as raised:
        section("mcp", tmp_path, text, {})
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{tmp_path / NAME}, line ")
    assert "[mcp]" in str(raised.value)


def test_a_file_with_a_secret_in_it_is_its_owners_alone(tmp_path: Path):
    """A secret in a variable may be named in a file that others read."""
    written = f'{HEAD}{SERVER}environment = {{ A = "secret" }}\n'
    with pytest.raises(BadFile, match="chmod 600"):
        section("mcp", tmp_path, written, {}, 0o644)
    named = f'{HEAD}{SERVER}environment = {{ A = "env:KNOWN" }}\n'
    found = section("mcp", tmp_path, named, {"KNOWN": "secret"}, 0o644)
    assert found.servers[0].environment == {"A": "secret"}


def test_the_file_in_the_docs_is_valid(tmp_path: Path):
    """The page shows one."""
    [shown] = blocks(ROOT / "docs" / "mcp.md", "toml")
    known = {"GITHUB_TOKEN": "a", "SHOP_AUTHORIZATION": "b"}
    found = section("mcp", tmp_path, shown.text, known)
    assert [one.name for one in found.servers] == ["github", "shop"]


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_of_tools_differ(one: str, other: str):
    """Whatever servers call their tools has a name in the ledger, after the server's, and two never
    have the same; nor has one with the very name that was made for another.
    """
    made = names.tool_name("desk", one)
    assert is_tool_name(made)
    assert made.startswith("desk/")
    assert (made == names.tool_name("desk", other)) == (one == other)
    assert (made == names.tool_name("desk", made.removeprefix("desk/"))) == (made == f"desk/{one}")


def test_a_tool_is_named_after_its_server():
    """So rules can be for a server: `github/*`. Of no two pairs the names are the same."""
    assert names.tool_name("github", "create_issue") == "github/create_issue"
    assert names.tool_name("github", "files/read.v2") == "github/files/read.v2"
    assert names.tool_name("a", "b/c") != names.tool_name("a-b", "c")


def test_an_id_is_one_requesters_and_for_one_purpose():
    """Sealed for one, it is nothing for another."""
    codec = AESGCMRequestStateCodec([b"k" * 32])
    ref = CallRef("shop", "t", "c")
    given_id = names.sealed(codec, "task", "rita", ref)
    assert names.unsealed(codec, "task", "rita", given_id) == ref
    other = AESGCMRequestStateCodec([b"o" * 32])
    for wrong in ((codec, "wait", "rita"), (codec, "task", "ana"), (other, "task", "rita")):
        with pytest.raises(names.BadSeal):
            names.unsealed(*wrong, given_id)


def test_text_alone_is_kept_as_text():
    """Anything else is JSON below one key; a text that looks like it is, too."""
    text = {"content": [{"type": "text", "text": "done"}], "isError": False}
    assert recorded(text | {"_meta": {"a": 1}, "resultType": "complete"}) == "done"
    assert recorded(text | {"isError": True}) == "done"
    kept = recorded(text | {"structuredContent": {"a": 1}})
    assert kept.startswith('{"mcp_result":{')
    sly = {"content": [{"type": "text", "text": '{"mcp_result":{"content":[]}}'}]}
    assert recorded(sly).startswith('{"mcp_result":{"content":[{')


def test_a_schema_of_an_older_draft_is_declared_as_it_is():
    """As every server of the TypeScript SDK writes it: the arguments are checked (B66)."""
    old = "http://json-schema.org/draft-07/schema#"
    tool = {"name": "a/b", "inputSchema": {"$schema": old, "type": "object", "required": ["c"]}}
    spec = spec_of_tool("desk", tool)
    assert spec.name == "desk/a/b"
    assert old in spec.schema_text
    assert spec.description == ""
    assert Tool(spec.name, *declaration(spec)).problems("{}")


def test_a_schema_that_cannot_be_checked_is_refused_by_its_word():
    """Nothing takes any object instead: people would approve what nobody checked (I7)."""
    tool = {"name": "a", "inputSchema": {"$schema": "http://a.example/b", "type": "object"}}
    with pytest.raises(
        BadInput, match=r"'desk/a' cannot be declared: .*a\.example/b, which is not"
    ):
        spec_of_tool("desk", tool)


TOLD = {
    "name": "a",
    "description": "Reads.",
    "title": "A",
    "annotations": {"readOnlyHint": True},
    "outputSchema": {"type": "object"},
}


@pytest.mark.parametrize(
    "changed",
    [
        {"title": "B"},
        {"annotations": {"readOnlyHint": False}},
        {"outputSchema": {"type": "object", "required": ["b"]}},
        {"description": "Writes."},
    ],
)
def test_all_that_a_server_says_of_a_tool_is_in_its_version(changed: dict[str, object]):
    """What people were told of a tool cannot change between their approval and the run (I1)."""
    one, other = (spec_of_tool("desk", tool) for tool in (TOLD, TOLD | changed))
    assert declaration(one)[0] != declaration(other)[0]


@pytest.mark.parametrize("is_true", [True, False])
def test_what_a_server_says_of_its_tool_is_never_its_class(is_true: bool):
    """Its hints are labels. The tool declares no class, so it counts as irreversible (I4)."""
    hints = ("readOnlyHint", "destructiveHint", "idempotentHint")
    tool = TOLD | {"annotations": dict.fromkeys(hints, is_true), "class": "reads"}
    spec = spec_of_tool("desk", tool)
    declared = Tool(spec.name, *declaration(spec))
    assert (spec.tool_class, spec.undo, judged_class(declared)) == (None, "", "undeclared")
    assert labels_of("desk", tool)["readOnlyHint"] == str(is_true).lower()


def test_servers_do_not_learn_of_tasks():
    """The extension is taken out of what a client declares, and the rest stays."""
    key, tasks = "io.modelcontextprotocol/clientCapabilities", "io.modelcontextprotocol/tasks"
    meta = {key: {"sampling": {}, "extensions": {tasks: {}, "x/y": {}}}, "other": 1}
    assert without_tasks(meta) == {
        key: {"sampling": {}, "extensions": {"x/y": {}}},
        "other": 1,
    }
    assert without_tasks({key: {"extensions": {tasks: {}}}}) == {key: {}}


def test_a_result_has_values_only_if_there_are_any():
    """A client checks what stands in `structuredContent`, also null."""
    assert text_result("done") == {"content": [{"type": "text", "text": "done"}], "isError": False}
    assert text_result("done", structured={})["structuredContent"] == {}


def test_what_a_client_has_answered_is_not_asked_again():
    """The other questions of the server stay."""
    asked = Asked({"inputRequests": {"name": {}, "age": {}}})
    asked.given = {"name": {"action": "decline"}}
    assert asked.open == {"age": {}}
    assert Asked({}).open == {}


def test_no_tool_takes_the_name_that_is_made_for_another():
    """A tool whose name ends as if it had been made here gets one that is made, too."""
    made = names.tool_name("shop", "a b")
    assert is_tool_name(made)
    assert names.tool_name("shop", made.removeprefix("shop/")) != made
    assert names.tool_name("shop", "a-b") == "shop/a-b"


def test_no_server_takes_the_name_of_anothers_tool():
    """Not by its name after a server's, by the separator in a name, or by a digest's name."""
    twice = [("github", "x"), ("gitlab", "x"), ("other", "github__x")]
    [guessed, *_] = names.offered_names(twice, frozenset())
    for tools in (
        twice,
        [*twice, ("other", guessed)],
        [("a", "b__c"), ("a__b", "c"), ("d", "c"), ("e", "b__c")],
    ):
        offered = names.offered_names(tools, frozenset())
        assert len({*offered}) == len(tools)
    assert names.offered_names([("a", "x"), ("b", "y")], frozenset()) == ["x", "y"]
