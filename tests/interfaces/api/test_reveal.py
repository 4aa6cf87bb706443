"""Who is shown what is secret in a call (docs/secrets.md)."""

from datetime import timedelta

import pytest
from shop import conclude, rule

from ayes.interfaces.api.permissions import check_reveal
from ayes.ledger.clients.services import Ledger
from ayes.ops.visitors import Role, Visitor
from ayes.schemas import events as e
from ayes.schemas.errors import NotAllowed
from ayes.schemas.policy import applied
from ayes.schemas.slots import CallRef, account_slot, policy_slot
from ayes.schemas.tools import ToolSpec

pytestmark = pytest.mark.log("memory")

CALL = CallRef("shop", "t1", "c1")
LOGIN = ToolSpec(name="login", schema='{"type":"object"}', secret=("/note",))
ISSUER = "https://login.example"
MIA = Visitor("mia", frozenset({Role.REVIEWER}))
ZOE = Visitor("zoe", frozenset({Role.REVIEWER}))
AUDITOR = Visitor("mia", frozenset({Role.AUDITOR}))


async def test_a_member_of_a_group_that_was_asked_sees_it_after_the_decision_too(ledger: Ledger):
    """As long as what the provider said of their groups counts; and as a reviewer."""
    policy = rule("logins", "ask", 'voters = ["group:finance"]', tools="login")
    await ledger.append(policy_slot("shop", 1), applied(policy))
    await ledger.declare("shop", LOGIN)
    await ledger.request(CALL, "login", '{"note":"zircon"}', requester="rita")
    await conclude(ledger, CALL)
    now = ledger.now()
    for name, group in (("mia", "finance"), ("zoe", "guests")):
        account = e.AccountBound(account=f"openid:{ISSUER}#{name}")
        await ledger.append(account_slot(name, 1), account)
        read = e.GroupsRead(ISSUER, name, (group,), now, now + timedelta(minutes=15))
        await ledger.record_groups(name, read)
    for status in ("pending", "denied"):
        call = await ledger.with_origin(await ledger.known_call(CALL))
        assert call.status == status
        await check_reveal(ledger, call, MIA)
        for other in (ZOE, AUDITOR):
            with pytest.raises(NotAllowed, match="may not see what is secret"):
                await check_reveal(ledger, call, other)
        if status == "pending":
            await ledger.reviewer("mia").deny(CALL)
            await conclude(ledger, CALL)
    later = Ledger(ledger.log, ledger.author, now=lambda: now + timedelta(hours=1))
    with pytest.raises(NotAllowed, match="may not see what is secret"):
        await check_reveal(later, call, MIA)
