"""For whoever decides, and for whoever asks: what waits, saying yes or no, and waiting for it.

Saying yes or no to all that waits at once is the same vote on each, about what was shown: what fails is told call by
call and stops nothing. It never edits, answers, breaks the glass or grants anything: those are about one call, looked at.

What a vote is about is read from the log and shown before the vote is cast, and the vote carries the digest of
what was shown. The queue is a copy that others could have written to; it is where people look first, and no more.
"""

import asyncio
import json as jsonlib
import re
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ayes.consumers import pending_client
from ayes.consumers.pending_view import changes
from ayes.ledger.lifecycle import Call, Status, describe
from ayes.ledger.services import Ledger
from ayes.ledger.votes import Tally
from ayes.ops.broker.server import ensure_account
from ayes.ops.commands import chat_vote
from ayes.ops.terminal import output
from ayes.ops.terminal.labels import read_labels
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.projections import pending as queue
from ayes.projections.pending import BadEntry, Entry, PendingFilter
from ayes.schemas import events as e
from ayes.schemas.errors import AlreadyDecided, ApprovalsError, BadInput, DeadlinePassed, NotOpen
from ayes.schemas.ids import token
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.toml_files import read_text

DENIED: Final = 5
EXPIRED: Final = 6
PENDING: Final = 8
_WANTED: Final[dict[str, type[e.Event]]] = {
    "approve": e.Approved,
    "deny": e.Denied,
    "answer": e.Answered,
    "break_glass": e.Approved,
}
_ASKS: Final = {
    "approve": "Approve it?",
    "deny": "Deny it?",
    "answer": "Answer it?",
    "break_glass": "Let it run, on your word alone?",
}
#: A digest, or how it begins.
_DIGEST: Final = re.compile(f"[0-9A-Fa-f]{{{output.SHORT},64}}")
#: The gate decides within milliseconds. What is not decided after this waits for something.
GATE_S: Final = 3.0


async def pending(
    workspace: str, *, watch: bool, limit: int | None = None, store: Path | None, url: str | None, json: bool
) -> None:
    """What waits, oldest first; with a limit so many of it, and how many there are."""
    if limit is not None and limit < 1:
        raise BadInput(f"--limit {limit} shows nothing. Give a number from 1 on.")
    if limit is not None and watch:
        raise BadInput(
            "--watch shows all that waits, as it comes; --limit is for the list. Give one of them."
        )
    if workspace:
        token("workspace", workspace)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        if watch:
            await _watch_pending(ledger, workspace, json=json)
            return
        entries, waiting, unreadable = await pending_client.oldest(ledger, limit, PendingFilter(workspace))
    _tell_unreadable(unreadable, json=json)
    if json:
        for entry in entries:
            print_data(queue.encode(entry).decode())
    elif entries:
        output.print_pending(entries, output.console())
        shown = "" if len(entries) == waiting else f", the oldest {len(entries)} shown"
        print_message()
        print_message(f"{waiting} waiting{shown}. Next: ayes approve CALL --as NAME (or deny, or answer)")
    else:
        print_message("Nothing waits for a decision.")


async def _watch_pending(ledger: Ledger, workspace: str, *, json: bool) -> None:
    async with aclosing(changes(ledger)) as coming:
        async for told in coming:
            for key, entry in told:
                if not workspace or key.startswith(f"{workspace}."):
                    _tell_change(key.replace(".", "/"), entry, json=json)


def _tell_unreadable(unreadable: Sequence[BadEntry], *, json: bool) -> None:
    """A sentence for each value of the queue that is not an entry; it hinders none of the others."""
    for one in unreadable:
        told = {"warning": type(one).__name__, "key": one.key, "message": str(one)}
        print_message(jsonlib.dumps(told) if json else f"warning: {one}")


def _tell_change(call: str, entry: Entry | BadEntry | None, *, json: bool) -> None:
    if isinstance(entry, BadEntry):
        _tell_unreadable([entry], json=json)
    elif json:
        print_data(f'{{"call":"{call}","open":{queue.encode(entry).decode() if entry else "null"}}}')
    elif entry:
        flaw = f"  [{entry.flaw}]" if entry.flaw else ""
        shown = f"{entry.tool} {entry.arguments}  {entry.digest[: output.SHORT]}{flaw}"
        print_line(f"asked    {call}  {shown}")
    else:
        print_line(f"decided  {call}")


class VoteInput(NamedTuple):
    """What a reviewer says."""

    verdict: e.Verdict
    reason: str = ""
    arguments: str | None = None
    answer: str = ""
    behalf: str = ""
    halt: bool = False


async def vote(
    call: str,
    name: str,
    ballot: VoteInput,
    *,
    sure: bool = False,
    digest: str = "",
    store: Path | None,
    url: str | None,
    json: bool,
) -> int:
    """Vote on one call: show what the log has, ask whoever is at the terminal, and vote on that and nothing else.

    Args:
        sure: without asking.
        digest: the same, if what waits has this digest (or one that begins so).
    """
    ref = CallRef.parse(call)
    if digest and not _DIGEST.fullmatch(digest):
        raise BadInput(
            f"--digest {digest!r} is not a digest. It has {output.SHORT} to 64 hex digits; "
            "`ayes pending` shows the first of them."
        )
    async with as_reviewer(name, store, url) as ledger:
        known = await ledger.known_call(ref)
        asked = known.approval_request.digest if known.approval_request else ""
        if known.status is Status.PENDING:
            at_terminal = sys.stdin.isatty() and sys.stderr.isatty()
            ask = at_terminal and not sure and not digest
            if ask or not json:  # errors of programs are JSON, and nothing else stands beside them
                output.print_question(known, output.console(stderr=True), ballot.arguments)
            if ask and not await _yes(_ASKS[ballot.verdict]):
                print_message("Nothing was recorded.")
                return 1
            if digest and not asked.startswith(digest.lower()):
                asked = digest
        await _vote(ledger, ref, name, ballot, asked)
        return await _end(ledger, ref, _WANTED[ballot.verdict], json=json)


async def vote_on_all(
    name: str,
    ballot: VoteInput,
    chosen: PendingFilter,
    *,
    sure: bool,
    store: Path | None,
    url: str | None,
    json: bool,
) -> int:
    """The same vote on each call that waits and was shown; 0 when all went through, 1 when some did not."""
    if ballot.arguments is not None or ballot.verdict not in {"approve", "deny"}:
        raise BadInput(
            "--all says the same to each call, with the arguments that it shows. An edit is about one call: name it."
        )
    if chosen.workspace:
        token("workspace", chosen.workspace)
    if chosen.thread:
        ThreadRef.parse(chosen.thread)
    async with as_reviewer(name, store, url) as ledger:
        shown, _, unreadable = await pending_client.oldest(ledger, chosen=chosen)
        _tell_unreadable(unreadable, json=json)
        if not shown:
            print_message("Nothing waits that fits. Nothing was recorded.")
            return 1 if unreadable else 0
        if not sure and not await _confirmed(shown, ballot.verdict):
            print_message("Nothing was recorded.")
            return 1
        problems = [await _vote_as_shown(ledger, one, name, ballot) for one in shown]
        await _tell_each(ledger, shown, problems, json=json)
    return 1 if any(problems) or unreadable else 0


async def _vote(ledger: Ledger, ref: CallRef, name: str, ballot: VoteInput, digest: str) -> None:
    try:
        await ledger.reviewer(name).vote(
            ref,
            ballot.verdict,
            reason=ballot.reason,
            arguments=ballot.arguments,
            answer=ballot.answer,
            on_behalf_of=ballot.behalf,
            halt=ballot.halt,
            digest=digest,
        )
    except AlreadyDecided as problem:
        # Expired is expired, whether the gate has recorded it yet or not (B36).
        decided = (await ledger.call(ref)).decided
        if decided is not None and isinstance(decided.event, e.Expired):
            raise DeadlinePassed(str(problem)) from None
        raise


async def _confirmed(shown: Sequence[Entry], verdict: str) -> bool:
    """Show what would be voted on, and ask whoever is at the terminal."""
    output.print_pending(shown, output.console(stderr=True))
    calls = "1 call waits" if len(shown) == 1 else f"{len(shown):,} calls wait"
    if not sys.stdin.isatty():
        raise BadInput(
            f"{calls}. Nobody can be asked here, so nothing was recorded. Add --yes to {verdict} all of them."
        )
    print_message()
    return await _yes(f"{calls}. {verdict.capitalize()} all of them?")


async def _yes(question: str) -> bool:
    """Ask whoever is at the terminal."""
    print_message(f"{question} [y/N]")
    # A thread that reads would keep Ctrl-C waiting for a line.
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


async def hear(
    message: str, name: str, workspace: str, *, store: Path | None, url: str | None, json: bool
) -> int:
    """Vote as a message of a chat says; nothing happens where it is no verdict."""
    async with as_reviewer(name, store, url) as ledger:
        chosen = PendingFilter(token("workspace", workspace))
        waiting, _, unreadable = await pending_client.oldest(ledger, chosen=chosen)
        _tell_unreadable(unreadable, json=json)
        found = chat_vote.parse_vote(message, waiting)
        if found is None:
            raise BadInput(
                f"this is no verdict on one of the {len(waiting):,} calls that wait in {workspace}. "
                "Write `approve CALL` or `deny CALL: why`, and nothing else; or quote the question and say yes or no."
            )
        if (
            problem := await _vote_as_shown(ledger, found.about, name, VoteInput(found.verdict, found.reason))
        ) is not None:
            raise problem
        return await _end(ledger, found.about.ref, _WANTED[found.verdict], json=json)


async def _vote_as_shown(ledger: Ledger, shown: Entry, name: str, ballot: VoteInput) -> ApprovalsError | None:
    """Vote on what was shown and on nothing else; why not, if not."""
    try:
        known = await ledger.known_call(shown.ref)
        digest = known.approval_request.digest if known.approval_request else ""
        if (known.wish.tool, known.wish.arguments, digest) != (shown.tool, shown.arguments, shown.digest):
            raise NotOpen(f"{shown.ref} is not what was shown. Look at it by itself: ayes show.")
        # The wish and the question stand in slots, so what was just compared is what the vote is about.
        await _vote(ledger, shown.ref, name, ballot, digest)
    except ApprovalsError as problem:
        return problem
    return None


async def _tell_each(
    ledger: Ledger, shown: Sequence[Entry], problems: Sequence[ApprovalsError | None], *, json: bool
) -> None:
    """One line a call: how it stands once the gate has seen the votes, or what went wrong with it."""
    until = time.monotonic() + GATE_S
    for one, problem in zip(shown, problems, strict=True):
        known = await ledger.call(one.ref)
        while problem is None and time.monotonic() < until and await _is_for_the_gate(ledger, known):
            await asyncio.sleep(0.02)
            known = await ledger.call(one.ref)
        if json:
            told = {
                "call": str(one.ref),
                "status": str(known.status),
                "error": None if problem is None else str(problem),
            }
            print_data(msgspec.json.encode(told).decode())
        else:
            print_message(
                f"{one.ref}: error: {problem}" if problem else _standing(known, await _stands(ledger, known))
            )
    if not json and len(shown) > 1:
        print_message()
        print_message(f"{sum(problem is None for problem in problems):,} of {len(shown):,} went through.")


async def revoke(
    call: str, name: str, *, reason: str, store: Path | None, url: str | None, json: bool
) -> None:
    async with as_reviewer(name, store, url) as ledger:
        await _tell(
            ledger,
            await ledger.reviewer(name).revoke(call, reason=reason),
            f"{call} will not run.",
            json=json,
        )


async def reconcile(
    call: str, name: str, *, happened: bool, output: str, store: Path | None, url: str | None, json: bool
) -> None:
    async with as_reviewer(name, store, url) as ledger:
        known = await ledger.reviewer(name).reconcile(call, happened=happened, output=output)
        told = f"{call} is settled: it {'happened' if happened else 'did not happen'}."
        await _tell(ledger, known, told, json=json)


async def request(
    call: str,
    tool: str,
    arguments: str,
    *,
    requester: str,
    agent: str,
    labels: Sequence[str],
    store: Path | None,
    url: str | None,
    json: bool,
) -> int:
    ref, named = CallRef.parse(call), read_labels(labels)
    async with Ledger.connect(store, url=url, role="service") as ledger:
        await ledger.request(ref, tool, arguments, requester=requester, agent=agent, labels=named)
        return await _end(ledger, ref, e.Approved, json=json)


async def withdraw(call: str, *, reason: str, store: Path | None, url: str | None, json: bool) -> int:
    ref = CallRef.parse(call)
    async with Ledger.connect(store, url=url, role="service") as ledger:
        await ledger.withdraw(ref, reason)
        return await _end(ledger, ref, e.Withdrawn, json=json)


async def doubt(call: str, *, reason: str, store: Path | None, url: str | None, json: bool) -> None:
    async with Ledger.connect(store, url=url, role="service") as ledger:
        known = await ledger.doubt(call, reason)
        await _tell(ledger, known, f"{call} is in doubt. Next: ayes reconcile {call}", json=json)


async def start(call: str, *, store: Path | None, url: str | None, json: bool) -> None:
    async with Ledger.connect(store, url=url, role="service") as ledger:
        known = await ledger.start(call)
        told = f"{call} is yours to run, with {known.arguments}. Next: ayes finish {call}"
        await _tell(ledger, known, told, json=json)


async def finish(
    call: str, output_text: str | None, error: str | None, *, store: Path | None, url: str | None, json: bool
) -> None:
    if (output_text is None) == (error is None):
        raise BadInput("a call ends with --output TEXT or with --error TEXT: give one of them.")
    ref = CallRef.parse(call)
    said = read_text("/dev/stdin") if "-" in (output_text, error) else output_text or error or ""
    async with Ledger.connect(store, url=url, role="service") as ledger:
        if not (await ledger.known_call(ref)).claims:
            await ledger.start(ref)
        known = await (
            ledger.finish(ref, error=said) if output_text is None else ledger.finish(ref, output=said)
        )
        await _tell(ledger, known, f"{call} has {known.status}.", json=json)


async def wait(call: str, *, timeout_s: float | None, store: Path | None, url: str | None, json: bool) -> int:
    ref = CallRef.parse(call)
    async with Ledger.connect(store, url=url, role="observer") as ledger:
        known = await (
            ledger.known_call(ref) if timeout_s == 0 else ledger.decision(ref, timeout_s=timeout_s)
        )
        await _tell(ledger, known, json=json)
    return _code(known, e.Approved)


@asynccontextmanager
async def as_reviewer(name: str, store: Path | None, url: str | None) -> AsyncGenerator[Ledger]:
    """Connected as this person. On a store of one's own the account is made when it is first used."""
    role = f"reviewer-{token('reviewer', name)}"
    if url is None:
        await ensure_account(store, role)
    async with Ledger.connect(store, url=url, role=role) as ledger:
        yield ledger


async def _end(ledger: Ledger, ref: CallRef, wanted: type[e.Event], *, json: bool) -> int:
    """Say how the call stands once the gate has seen what we did, and whether that is what was wanted."""
    known = await ledger.known_call(ref)
    if await _is_for_the_gate(ledger, known):
        known = await _seen_by_gate(ledger, ref)
    await _tell(ledger, known, json=json)
    return _code(known, wanted)


async def _is_for_the_gate(ledger: Ledger, call: Call) -> bool:
    """Has the gate still to do something, or do people?"""
    if call.decided is not None:
        return False
    if call.approval_request is None or call.withdrawn is not None:
        return True
    return (await ledger.tally(call)).verdict is not None


async def _seen_by_gate(ledger: Ledger, ref: CallRef) -> Call:
    """Wait for the question or the decision: whichever the gate comes to."""
    async with aclosing(ledger.watch(1, ref.gated.subject, ref.decided.subject)) as facts:
        try:
            async with asyncio.timeout(GATE_S):
                async for fact in facts:
                    known = await ledger.call(ref, must_include=fact.slot)
                    if not await _is_for_the_gate(ledger, known):
                        return known
        except TimeoutError:
            pass
    return await ledger.known_call(ref)


async def _stands(ledger: Ledger, call: Call) -> Tally | None:
    """How the vote stands on a call that waits for people."""
    return await ledger.tally(call) if call.approval_request is not None and call.decided is None else None


async def _tell(ledger: Ledger, call: Call, sentence: str = "", *, json: bool) -> None:
    """How a call stands; for people in this sentence, or in one that says so."""
    stands = await _stands(ledger, call)
    if json:
        print_data(output.call_json(call, stands))
    else:
        print_message(sentence or _standing(call, stands))


def _standing(call: Call, stands: Tally | None) -> str:
    if call.decided is not None:
        edited = output.edit_words(call)
        return f"{call.ref}: {describe(call.decided)}{f', {edited}' if edited else ''}."
    if stands is not None:
        return f"{call.ref} waits for people: {output.vote_words(call, stands)}"
    return f"{call.ref} is requested and not judged yet. Does a gate run? See ayes status."


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
