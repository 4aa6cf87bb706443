"""What is not shown of calls, wishes and grants, by the declarations in the log."""

import pytest

from ayes.ledger.call import Call
from ayes.ledger.clients.services import Ledger
from ayes.ops.actions import secrets
from ayes.ops.actions.secrets import secrets_in
from ayes.projections.views.call import call_state
from ayes.projections.views.fact import fact_row, recorded
from ayes.projections.views.secrets import NEWEST
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.digest import call_digest
from ayes.schemas.slots import GrantRef, ThreadRef, tool_slot
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.log("memory")

THREAD = ThreadRef("shop", "t1")
CALL = THREAD.call("c1")
LOGIN = ToolSpec(name="login", schema='{"type":"object"}', secret=("/note",))
#: Stands in all secret values, and nowhere else.
MARK = "zircon"
ARGUMENTS = f'{{"note":"{MARK}"}}'
GRANTED = e.Granted(tool="login", arguments=ARGUMENTS, uses=1, expires_in_s=60)
#: Not what its slot is named after, so it counts for nothing.
SQUATTER = e.ToolDeclared(description="", schema="{}")


async def requested(ledger: Ledger, arguments: str, version: str) -> Call:
    """A call as a model's wish records it, whatever its arguments are."""
    digest = call_digest("login", version, arguments)
    asked = e.ToolRequested("login", arguments, digest, version)
    await ledger.append(CALL.requested, asked)
    return await ledger.known_call(CALL)


async def wished(ledger: Ledger, *wishes: e.Wish) -> Fact:
    await ledger.append(THREAD.replied(1), e.ModelReplied(parts=wishes))
    return (await ledger.read(THREAD.replied(1)))[0]


@pytest.mark.parametrize(
    "arguments",
    [
        f'{{"note":"{MARK}"',
        f'{{"note":"","note":"{MARK}"}}',
        f'{{"note":"{MARK}\\ud800"}}',
        f'{{"note":"{MARK}","more":1e999999}}',
        MARK,
        f'"{{\\"note\\":\\"{MARK}\\"}}"',
        f'[{{"note":"{MARK}"}}]',
        f'"{MARK}"',
    ],
)
async def test_arguments_without_the_places_of_the_declaration_are_hidden(ledger, arguments):
    """In malformed JSON, and in JSON that is no object, the places of secrets cannot be found."""
    call = await requested(ledger, arguments, (await ledger.declare("shop", LOGIN)).version)
    reply = await wished(ledger, e.Wish("login", arguments))
    hiding = await secrets_in(ledger, call, reply, *call.facts)
    assert call_state(call, hiding).arguments == '"(secret)"'
    for shown in (recorded(call.facts, hiding), fact_row(reply, hiding)):
        assert MARK not in repr(shown)


async def test_all_is_hidden_whose_declaration_does_not_count(ledger: Ledger):
    """In a wish and a grant too, whose tool is known by its name alone."""
    await ledger.append(tool_slot("shop", "login", "v1"), SQUATTER)
    call = await requested(ledger, ARGUMENTS, "v1")
    reply = await wished(ledger, e.Wish("login", ARGUMENTS))
    await ledger.append(GrantRef("shop", "ana", "g1").given, GRANTED)
    [given] = await ledger.read(GrantRef("shop", "ana", "g1").given)
    for one in (call, reply, given):
        hiding = await secrets_in(ledger, one)
        assert [*hiding.places.values()] == [None]
    assert MARK not in call_state(call, await secrets_in(ledger, call)).arguments
    for fact in (reply, given):
        assert MARK not in repr(recorded([fact], await secrets_in(ledger, fact)))


async def test_nothing_is_secret_that_nothing_declares(ledger: Ledger):
    """Of a name that no tool can have, and of one that no tool here has."""
    reply = await wished(ledger, e.Wish("login", ARGUMENTS), e.Wish("no tool", ARGUMENTS))
    hiding = await secrets_in(ledger, reply)
    assert hiding.places == {("shop", name, NEWEST): () for name in ("login", "no tool")}
    assert [one.arguments for one in hiding.event(reply.event, "shop").parts] == [ARGUMENTS] * 2


async def test_wishes_for_more_tools_than_are_looked_up_are_hidden(ledger, monkeypatch):
    monkeypatch.setattr(secrets, "_MOST", 2)
    names = ("a", "b", "c")
    reply = await wished(ledger, *(e.Wish(name, f'{{"{MARK}":"{name}"}}') for name in names))
    hiding = await secrets_in(ledger, reply)
    shown = [one.arguments for one in hiding.event(reply.event, "shop").parts]
    assert shown == [f'{{"{MARK}":"a"}}', f'{{"{MARK}":"b"}}', '"(secret)"']
