"""Names of tools: what MCP allows and nothing else, and one token for each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ayes.projections.formats.common import TOOL_NAME, named_tools, tool_name
from ayes.schemas import tool_names
from ayes.schemas.errors import BadId, BadInput, BadSlot, BadToolName
from ayes.schemas.policy import read_policy
from ayes.schemas.slots import Slot, declarations, matches, tool_slot
from ayes.schemas.tools import ToolSpec, spec_of

NAMES = st.text("aZ09_-./", min_size=1, max_size=128)
TOKENS = [
    ("refund", "refund"),
    ("files.read", "files=2Eread"),
    ("github/create_issue", "github=2Fcreate_issue"),
    ("_internal", "=5Finternal"),
    ("a__b", "a__b"),
    ("..", "=2E=2E"),
    ("x" * 128, "x" * 128),
]
BAD = [
    "", "a b", "a\x00b", "a\nb", "a*", "a>b", "a=2Fb", "ü", "a\u202eb", "a\\b", "a:b", "x" * 129,
    7, None,
]  # fmt: skip


@pytest.mark.parametrize(("name", "token"), TOKENS)
def test_a_name_has_one_token(name: str, token: str):
    """Which is the name itself where it was one before, so that older logs read as they did."""
    assert tool_names.tool_token(name) == token
    assert tool_names.tool_of_token(token) == name
    slot = tool_slot("shop", name, "v1")
    assert Slot.parse(slot.subject).tool == (name, "v1")
    assert matches(declarations("shop", name), slot.subject)
    assert matches(declarations("shop"), slot.subject)


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_two_tools_never_share_a_token_or_a_providers_name(names: list[str]):
    """Neither in a subject, nor in a provider's history, whence each is found again."""
    assert len({*map(tool_names.tool_token, names)}) == 2
    assert [*map(tool_names.tool_of_token, map(tool_names.tool_token, names))] == names
    known = named_tools(names)
    assert [known[tool_name(name)] for name in names] == names


@given(st.text(max_size=200), st.text(max_size=200))
def test_whatever_a_model_makes_up_has_a_name_of_its_own(one: str, other: str):
    """And what was written is written the same again."""
    for text in (one, other):
        assert TOOL_NAME.fullmatch(tool_name(text))
        assert tool_name(tool_name(text)) == tool_name(text)
    assert (tool_name(one) == tool_name(other)) == (one == other)


def test_a_tool_in_the_name_of_another_is_not_offered():
    """Somebody declares the very name that is made for another tool."""
    made = tool_name("github/create_issue")
    assert made == "github_create_issue-zqkedtvdwh4xjuxy"
    for names in ([made, "github/create_issue"], ["github/create_issue", made]):
        assert named_tools(names) == {made: "github/create_issue"}


@pytest.mark.parametrize("bad", BAD)
def test_any_other_name_is_refused_in_one_sentence(bad: object):
    """At each door."""
    with pytest.raises(
        BadToolName, match=r"1 to 128 characters of A-Z a-z 0-9 _ - \. /"
    ) as refused:
        tool_slot("shop", bad, "v1")
    assert len(str(refused.value)) < 350
    if not isinstance(bad, str):
        return
    with pytest.raises(ValueError, match="cannot be used: a tool's name"):
        ToolSpec(name=bad, schema="{}")
    if bad != "":
        with pytest.raises(BadInput, match="cannot be used: a tool's name"):
            spec_of(lambda: None, name=bad)
    with pytest.raises(BadToolName):
        declarations("shop", bad or " ")


@pytest.mark.parametrize(
    "token", ["_x", "a=2eb", "a=5Fb", "=5F=5F", "a=", "a=2", "=41", "a%2Fb", "x" * 385]
)
def test_a_token_that_is_not_the_one_form_of_a_name_is_no_slot(token: str):
    """A raw client cannot declare a tool twice, under two subjects."""
    with pytest.raises(BadId):
        tool_names.tool_of_token(token)
    with pytest.raises(BadSlot):
        Slot.parse(f"ledger.shop._tool.{token}.v1")


def test_patterns_are_over_the_whole_name():
    """`*` stands for any text, with slashes and dots."""
    policy = read_policy(
        '[[rule]]\nname = "a"\ntools = ["github/*", "*.read"]\nthen = "allow"\n', "p.toml"
    )
    named = [
        one
        for one in ("github/x", "github/a/b.c", "github", "gitlab/x", "files.read", "a/b.read")
        if policy.about(one)
    ]
    assert named == ["github/x", "github/a/b.c", "files.read", "a/b.read"]
