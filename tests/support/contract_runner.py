"""Does what it reads on stdin, a step a line, with the Python client; see
tests/promises/contract. It knows nothing of the cases and keeps nothing, so it may be killed at any
moment.
"""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ops.actions.votes import state_of
from ayes.projections import pending
from ayes.projections.call_query import CallQuery
from ayes.projections.views.content import held_in
from ayes.projections.views.secrets import WHOLE
from ayes.schemas import events as e
from ayes.schemas.content import words
from ayes.schemas.errors import ApprovalsError, WaitTimedOut
from ayes.schemas.slots import CallRef


async def step(ledger: Ledger, name: str, do: str, given: dict[str, Any]) -> Any:
    call, thread = given.pop("call", ""), given.pop("thread", "")
    for content in {"text", "output"} & given.keys():
        given[content] = msgspec.convert(given[content], e.Content)
    match do:
        case "request":
            return await state(ledger, await ledger.request(call, **given))
        case "wait":
            try:
                known = await ledger.decision(call, timeout_s=given["timeout_s"])
            except WaitTimedOut:
                known = await ledger.known_call(CallRef.parse(call))
            return {"decided": known.decided is not None, "state": await state(ledger, known)}
        case "claim":
            claim_id, lease_s = given["claim"], given.get("lease_s", 0)
            return await state(ledger, await ledger.start(call, claim_id=claim_id, lease_s=lease_s))
        case "renew":
            return await state(ledger, await ledger.renew(call, given["claim"]))
        case "finish":
            return await state(ledger, await ledger.finish(call, **given))
        case "doubt":
            return await state(ledger, await ledger.doubt(call, given["reason"]))
        case "withdraw":
            return await state(ledger, await ledger.withdraw(call, given["reason"]))
        case "decide":
            return await state(ledger, await ledger.reviewer(name).vote(call, Ballot(**given)))
        case "revoke":
            return await state(ledger, await ledger.reviewer(name).revoke(call, **given))
        case "pending":
            entries = await ledger.log.pending.entries()
            found = pending.oldest(entries, 50, CallQuery.of(thread=thread))
            calls = [{"digest": one.digest, "arguments": one.arguments} for one in found.entries]
            return {"waiting": found.waiting, "calls": calls}
        case "show":
            return {"state": await state(ledger, await ledger.known_call(CallRef.parse(call)))}
        case "say":
            said = (await ledger.say(thread, **given)).event
            assert isinstance(said, e.Said)
            files = msgspec.to_builtins(held_in(said))
            return {"text": words(said.text), "role": said.role, "files": files}
    raise AssertionError(f"no case has {do}")


async def state(ledger: Ledger, call: Call) -> dict[str, Any]:
    known = await ledger.known_call(call.ref)
    return msgspec.to_builtins(await state_of(ledger, known, WHOLE))


async def main() -> None:
    world = json.loads(os.environ["AYES_CONTRACT"])
    ledgers: dict[str, Ledger] = {}
    async with AsyncExitStack() as stack:
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            role, name = asked["as"].split(":")
            try:
                if asked["as"] not in ledgers:
                    login = f"reviewer-{name}" if role == "reviewer" else role
                    connecting = Ledger.connect(world["store"], role=login, name=name)
                    ledgers[asked["as"]] = await stack.enter_async_context(connecting)
                said = {"ok": await step(ledgers[asked["as"]], name, asked["do"], asked["with"])}
            except ApprovalsError as problem:
                said = {"error": type(problem).__name__, "detail": str(problem)}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
