"""For whoever decides, and for whoever asks: what waits, saying yes or no, and waiting for it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

from ledger.client import Ledger
from ledger.lifecycle import Call, describe
from ledger.votes import tally
from ops import output
from ops.output import out, say
from ops.server import ensure_account
from projections import pending as queue
from schemas import events as e
from schemas.errors import AlreadyDecided, DeadlinePassed
from schemas.ids import token
from schemas.slots import CallRef

DENIED: Final = 5
EXPIRED: Final = 6
PENDING: Final = 8
_WANTED: Final[dict[str, type[e.Event]]] = {"approve": e.Approved, "deny": e.Denied, "answer": e.Answered}
#: The gate decides within milliseconds. What is not decided after this waits for something.
GATE_S: Final = 3.0


async def pending(workspace: str, *, watch: bool, store: Path | None, url: str | None, json: bool) -> None:
    if workspace:
        token("workspace", workspace)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        if watch:
            await _watch_pending(ledger, workspace, json=json)
            return
        found = [queue.decode(value) for value in (await ledger.port.pending.entries()).values()]
        entries = sorted((one for one in found if workspace in ("", one.workspace)), key=lambda one: one.seq)
    if json:
        for entry in entries:
            out(queue.encode(entry).decode())
    elif entries:
        output.print_pending(entries, output.console())
        say(f"\n{len(entries)} waiting. Next: approvals approve CALL --as NAME (or deny, or answer)")
    else:
        say("Nothing waits for a decision.")


async def _watch_pending(ledger: Ledger, workspace: str, *, json: bool) -> None:
    async with aclosing(ledger.port.pending.watch()) as changes:
        async for key, value in changes:
            call = key.replace(".", "/")
            if workspace and not key.startswith(f"{workspace}."):
                continue
            if json:
                out(f'{{"call":"{call}","open":{value.decode() if value else "null"}}}')
            elif value:
                entry = queue.decode(value)
                out(f"asked    {call}  {entry.tool} {output.visible(entry.arguments)}")
            else:
                out(f"decided  {call}")


async def vote(
    call: str,
    name: str,
    verdict: str,
    *,
    reason: str,
    arguments: str | None = None,
    answer: str = "",
    store: Path | None,
    url: str | None,
    json: bool,
) -> int:
    ref = CallRef.parse(call)
    async with _as_reviewer(name, store, url) as ledger:
        try:
            await ledger.vote(ref, name, verdict, reason=reason, arguments=arguments, answer=answer)
        except AlreadyDecided as problem:
            # Expired is expired, whether the gate has recorded it yet or not (B36).
            decided = (await ledger.call(ref)).decided
            if decided is not None and isinstance(decided.event, e.Expired):
                raise DeadlinePassed(str(problem)) from None
            raise
        return await _end(ledger, ref, _WANTED[verdict], json=json)


async def revoke(
    call: str, name: str, *, reason: str, store: Path | None, url: str | None, json: bool
) -> None:
    async with _as_reviewer(name, store, url) as ledger:
        _tell(await ledger.revoke(call, name, reason=reason), f"{call} will not run.", json=json)


async def reconcile(
    call: str, name: str, *, happened: bool, output: str, store: Path | None, url: str | None, json: bool
) -> None:
    async with _as_reviewer(name, store, url) as ledger:
        known = await ledger.reconcile(call, name, happened=happened, output=output)
        _tell(known, f"{call} is settled: it {'happened' if happened else 'did not happen'}.", json=json)


async def request(
    call: str, tool: str, arguments: str, *, requester: str, store: Path | None, url: str | None, json: bool
) -> int:
    ref = CallRef.parse(call)
    async with Ledger.connect(store, url=url, role="service") as ledger:
        await ledger.request(ref, tool, arguments, requester=requester)
        return await _end(ledger, ref, e.Approved, json=json)


async def withdraw(call: str, *, reason: str, store: Path | None, url: str | None, json: bool) -> int:
    ref = CallRef.parse(call)
    async with Ledger.connect(store, url=url, role="service") as ledger:
        await ledger.withdraw(ref, reason)
        return await _end(ledger, ref, e.Withdrawn, json=json)


async def doubt(call: str, *, reason: str, store: Path | None, url: str | None, json: bool) -> None:
    async with Ledger.connect(store, url=url, role="service") as ledger:
        _tell(
            await ledger.doubt(call, reason),
            f"{call} is in doubt. Next: approvals reconcile {call}",
            json=json,
        )


async def wait(call: str, *, timeout_s: float | None, store: Path | None, url: str | None, json: bool) -> int:
    ref = CallRef.parse(call)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        known = await (
            ledger.known_call(ref) if timeout_s == 0 else ledger.decision(ref, timeout_s=timeout_s)
        )
    _tell(known, _standing(known), json=json)
    return _code(known, e.Approved)


@asynccontextmanager
async def _as_reviewer(name: str, store: Path | None, url: str | None) -> AsyncGenerator[Ledger]:
    """Connected as this person. On a store of one's own the account is made when it is first used."""
    role = f"reviewer-{token('reviewer', name)}"
    if url is None:
        await ensure_account(store, role)
    async with Ledger.connect(store, url=url, role=role) as ledger:
        yield ledger


async def _end(ledger: Ledger, ref: CallRef, wanted: type[e.Event], *, json: bool) -> int:
    """Say how the call stands once the gate has seen what we did, and whether that is what was wanted."""
    known = await ledger.known_call(ref)
    waits_for_more = known.asking is not None and tally(known).verdict is None and known.withdrawn is None
    if known.decided is None and not waits_for_more:
        known = await _seen_by_gate(ledger, ref)
    _tell(known, _standing(known), json=json)
    return _code(known, wanted)


async def _seen_by_gate(ledger: Ledger, ref: CallRef) -> Call:
    """Wait for the question or the decision: whichever the gate comes to."""
    async with aclosing(ledger.watch(1, ref.gated.subject, ref.decided.subject)) as facts:
        try:
            async with asyncio.timeout(GATE_S):
                async for fact in facts:
                    known = await ledger.call(ref, having=fact.slot)
                    if known.decided is not None or (
                        known.withdrawn is None and tally(known).verdict is None
                    ):
                        return known
        except TimeoutError:
            pass
    return await ledger.known_call(ref)


def _tell(call: Call, sentence: str, *, json: bool) -> None:
    if json:
        out(output.call_json(call))
    else:
        say(sentence)


def _standing(call: Call) -> str:
    if call.decided is not None:
        return f"{call.ref}: {describe(call.decided)}."
    if call.asking is not None:
        stands = tally(call)
        return f"{call.ref} waits for people: {stands.approvals} of {stands.needed} approvals."
    return f"{call.ref} is requested and not judged yet. Does a gate run? See approvals status."


def _code(call: Call, wanted: type[e.Event]) -> int:
    """0 when it was decided as wanted, else the code for how it stands."""
    if call.decided is None:
        return PENDING
    match call.decided.event:
        case decision if isinstance(decision, wanted):
            return 0
        case e.Answered() if wanted is e.Approved:
            return 0  # the wish was met, by a person
        case e.Expired():
            return EXPIRED
        case e.Denied() | e.Withdrawn() | e.Superseded():
            return DENIED
        case _:
            return 1
