"""What is in force where something in the slots of a policy or of a tool cannot be read."""

from datetime import UTC, datetime

import pytest

from ayes import Ledger
from ayes.consumers.effects import Append
from ayes.consumers.gate import Gate
from ayes.ledger.in_memory import Memory
from ayes.ledger.judging.in_force import (
    policy_in_force,
    subject_of,
    tool_of,
    void_policies,
    void_tools,
)
from ayes.ledger.judging.policies import AppliedPolicy, Policies
from ayes.ledger.judging.verdict import Case
from ayes.ops.broker.setup import apply_policy
from ayes.schemas import events as e
from ayes.schemas.codec import Fact, encode
from ayes.schemas.errors import BadFact, UnknownTool
from ayes.schemas.policy import applied, read_policy
from ayes.schemas.slots import ORGANISATION, CallRef, policy_slot, tool_slot
from ayes.schemas.tools import ToolSpec, declaration, version_of

AT = datetime(2026, 1, 1, tzinfo=UTC)
BLOCK = '[[rule]]\nname = "no"\ntools = ["*"]\nthen = "block"\n'
SLOW = BLOCK + 'when = "{}true{}"\n'.format(
    "".join(f"[0,0,0].all(a{n}, " for n in range(9)), ")" * 9
)
SPEC = ToolSpec(name="pay", schema='{"type":"object"}')
VERSION, DECLARED = declaration(SPEC)


class Messy(Memory):
    """The port in memory, into which anybody can put any bytes on any subject."""

    async def put(self, subject: str, raw: bytes) -> Fact:
        return self._store(subject, raw)


@pytest.fixture
def port() -> Messy:
    return Messy()


@pytest.fixture
def ledger(port: Messy) -> Ledger:
    return Ledger(port, e.Author(kind="operator", name="olga"))


NEWER = b'{"type":"PolicyApplied","v":9,"id":"x","rules":[]}'
#: Where it stands below `_policy`, and what.
VOID = [
    pytest.param("abc", encode(applied("")), id="no number (H4)"),
    pytest.param("opened", encode(applied("")), id="no number"),
    pytest.param("01", encode(applied("")), id="another way of writing a number"),
    pytest.param("7", b"\xff\xfe", id="no fact"),
    pytest.param("7", NEWER, id="of a newer program (D13)"),
    pytest.param("7", b'{"type":"PolicyApplied","text":""}', id="without its digest (H5)"),
    pytest.param("7", encode(e.PolicyApplied(text="", digest="0" * 64)), id="another digest"),
    pytest.param("7", encode(applied("[[rule]]\nname = ")), id="cut off"),
    pytest.param("7", encode(applied("x = 1")), id="another key"),
    pytest.param("7", encode(applied(SLOW)), id="a condition beyond the limit (C3)"),
    pytest.param("7", encode(e.Said(role="user", text="x")), id="another fact"),
]


@pytest.mark.parametrize(("token", "raw"), VOID)
@pytest.mark.parametrize("owner", ["shop", ORGANISATION])
async def test_what_cannot_be_read_leaves_in_force_what_was(ledger, port, owner, token, raw):
    """A void policy neither stops the gate nor loosens, people are told, and the next one clears it
    (H4, H5, D13).
    """
    await ledger.append(policy_slot(owner, 1), applied(BLOCK))
    void = await port.put(f"ledger.{owner}._policy.{token}", raw)
    for _ in range(2):
        policies = await ledger.policies("shop")
        found = policies.organisation if owner == ORGANISATION else policies.workspace
        assert found == AppliedPolicy(1, read_policy(BLOCK, ""), owner == ORGANISATION)
    call = CallRef("shop", "t1", "c1")
    tool = await ledger.declare("shop", SPEC)
    await ledger.request(call, tool, {})
    handed = (await ledger.read(call))[0]
    seen = await Gate().load(ledger, handed)
    [step] = Gate().decide(seen, handed)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.Denied)
    [alarm] = await ledger.alarms()
    assert (alarm.seq, alarm.subject) == (void.seq, f"ledger.{owner}._policy.{token}")
    assert alarm.why
    assert await apply_policy(ledger, owner, BLOCK, "policy.toml") == 2
    assert await apply_policy(ledger, owner, BLOCK, "policy.toml") == 2
    assert await ledger.alarms() == ()


@pytest.mark.parametrize(("token", "raw"), VOID)
@pytest.mark.parametrize("owner", ["shop", ORGANISATION])
async def test_what_could_never_be_read_asks_people_about_everything(
    ledger: Ledger, port: Messy, owner: str, token: str, raw: bytes
):
    """Where nothing was ever readable nothing is allowed, by the other policy neither (H5, I4)."""
    allow = BLOCK.replace("block", "allow")
    await ledger.append(policy_slot(ORGANISATION if owner == "shop" else "shop", 1), applied(allow))
    await port.put(f"ledger.{owner}._policy.{token}", raw)
    call = CallRef("shop", "t1", "c1")
    await ledger.request(call, await ledger.declare("shop", SPEC), {})
    handed = (await ledger.read(call))[0]
    seen = await Gate().load(ledger, handed)
    assert isinstance(seen, Case)
    [step, *_] = Gate().decide(seen, handed)
    assert isinstance(step, Append)
    assert isinstance(step.event, e.ApprovalRequested)
    assert "cannot be read" in step.event.reason
    assert await apply_policy(ledger, owner, allow, "policy.toml") == 1
    assert (await ledger.policies("shop")).workspace.version == 1


async def test_a_version_is_recorded_under_the_next_free_number(ledger: Ledger, port: Messy):
    """Numbers that void facts stand under are passed over, the greatest that there is too (H4)."""
    await ledger.append(policy_slot("shop", 1), applied(BLOCK))
    for number in ("2", "3", "999999999"):
        await port.put(f"ledger.shop._policy.{number}", NEWER)
    assert await apply_policy(ledger, "shop", f"{BLOCK}\n", "policy.toml") == 4
    assert (await ledger.policies("shop")).workspace.version == 4


def test_no_fact_is_no_policy():
    """Where nothing was applied there is no alarm, and the organisation says nothing."""
    assert policy_in_force((), organisation=True) == AppliedPolicy(organisation=True)
    assert (void_policies(()), void_tools(())) == ((), ())


SQUATTED = encode(e.ToolDeclared(description="", schema='{"type":"object"}', repeatable=True))
VOID_TOOLS = [
    pytest.param("zz", SQUATTED, id="another declaration (C4)"),
    pytest.param("_v1", SQUATTED, id="no token"),
    pytest.param("zz", b"\x00", id="no fact"),
    pytest.param("zz", b'{"type":"ToolDeclared","v":9,"id":"x"}', id="of a newer program (D13)"),
]


@pytest.mark.parametrize(("token", "raw"), VOID_TOOLS)
async def test_a_void_declaration_is_passed_over(ledger, port, token, raw):
    """By name the newest that counts is found; the void version itself is unknown (C4, D13)."""
    await ledger.declare("shop", SPEC)
    await port.put(f"ledger.shop._tool.pay.{token}", raw)
    await port.put(f"ledger.shop._tool.other.{token}", raw)
    assert (await ledger.tool("shop", "pay")).version == VERSION
    assert (await ledger.tool("shop", "pay", VERSION)).version == VERSION
    with pytest.raises(
        UnknownTool, match=r"version .* is declared in workspace 'shop'. Declared are: pay\.$"
    ):
        await ledger.tool("shop", "pay", token)
    with pytest.raises(UnknownTool, match=r"Declared are: pay\.$"):
        await ledger.tool("shop", "other")
    call = await ledger.request("shop/t1/c1", "pay", {})
    assert call.wish.tool_version == VERSION
    assert {one.subject for one in await ledger.alarms()} == {
        f"ledger.shop._tool.{name}.{token}" for name in ("pay", "other")
    }


async def test_a_squatted_version_is_not_the_tool(ledger: Ledger, port: Messy):
    """What stands under another digest is unknown, so its calls are denied as invalid (C4)."""
    version, _ = declaration(ToolSpec(name="set_policy", schema='{"type":"object"}', governs=True))
    await ledger.append(
        tool_slot("shop", "set_policy", version), e.ToolDeclared(description="", schema="{}")
    )
    with pytest.raises(UnknownTool, match="Declared are: none"):
        await ledger.tool("shop", "set_policy", version)


@pytest.mark.parametrize(
    ("name", "version"), [("a.b", ""), ("", ""), ("pay", "_v1"), ("pay", "a b")]
)
async def test_a_name_that_no_tool_can_have_is_unknown(ledger: Ledger, name: str, version: str):
    """Not an error of another kind, and not a traceback (security review, 5)."""
    with pytest.raises(UnknownTool):
        await ledger.tool("shop", name, version)


async def test_a_recorded_schema_beyond_the_limit_is_not_a_declaration(ledger: Ledger):
    """What our own client refuses to declare counts no more when it is recorded by another (C3)."""
    levels = ",".join(
        f'"d{n}":{{"allOf":[{{"$ref":"#/$defs/d{n + 1}"}},{{"$ref":"#/$defs/d{n + 1}"}}]}}'
        for n in range(40)
    )
    schema = f'{{"type":"object","$ref":"#/$defs/d0","$defs":{{{levels},"d40":{{}}}}}}'
    bad = e.ToolDeclared(description="", schema=schema)
    slot = tool_slot("shop", "slow", version_of("slow", bad))
    await ledger.append(slot, bad)
    with pytest.raises(UnknownTool):
        await ledger.tool("shop", "slow")
    [fact] = await ledger.read(slot)
    with pytest.raises(BadFact, match="steps for a single value"):
        tool_of(fact)
    assert subject_of(fact) == slot.subject


@pytest.mark.parametrize(
    ("workspace", "organisation", "accounts", "whose"),
    [
        ("", 'Ana = ["slack:U17"]', ("slack:u17",), ["Ana"]),
        ("", 'ana = ["slack:T1/U17"]', ("slack:T1/U17", "slack:U17"), ["ana"]),
        ('ana = ["slack:U17"]', "", ("slack:U17",), []),
        ('ben = ["slack:U17"]', 'ana = ["slack:U17"]', ("slack:U17",), ["ana"]),
        ("", 'ana = ["slack:U17"]\nben = ["slack:T1/U17"]', ("slack:T1/U17", "slack:U17"),
         ["ana", "ben"]),
        ("", 'ana = ["slack:U17"]', ("slack:U18",), []),
        ("", 'ana = ["slack:U17"]', ("ana",), []),
        ("", "", ("slack:U17",), []),
    ],
)  # fmt: skip
def test_the_organisations_table_says_whose_an_account_is(workspace, organisation, accounts, whose):
    """Whoever clicks in a chat votes as that person. A workspace's table says nothing (B40)."""
    here, everywhere = (
        AppliedPolicy(1, read_policy(f"[people]\n{people}\n", "policy"))
        for people in (workspace, organisation)
    )
    assert Policies(here, everywhere).reviewers_of(*accounts) == whose


def test_the_organisations_table_beats_the_workspaces():
    """Who writes a workspace's policy does not decide which accounts are one person (I7)."""
    here, everywhere = (
        AppliedPolicy(1, read_policy(f'[people]\n{person} = ["benjamin"]\n', "policy"))
        for person in ("ana", "ben")
    )
    assert Policies(here, everywhere).accounts() == {"benjamin": "ben"}
