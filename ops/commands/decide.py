"""For whoever decides, and for whoever asks: what waits, saying yes or no, and waiting for it.

Saying yes or no to all that waits at once is the same vote on each, about what was shown: what
fails is told call by call and stops nothing. It never edits, answers, breaks the glass or grants
anything: those are about one call, looked at.

What a vote is about is read from the log and shown before the vote is cast, and the vote carries
the digest of what was shown. The queue is a copy that others could have written to; it is where
people look first, and no more.
"""

import asyncio
import json as jsonlib
import re
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from ayes.consumers import pending_client
from ayes.consumers.pending_view import changes
from ayes.ledger.lifecycle import Status, describe
from ayes.ledger.services import Ledger
from ayes.ops.broker.server import ensure_account
from ayes.ops.commands import chat_vote
from ayes.ops.commands.command import command, commands
from ayes.ops.commands.options import (
    AllOption,
    AllThreadOption,
    AllToolOption,
    AllWorkspaceOption,
    AsOption,
    BehalfOption,
    CallArgument,
    DigestOption,
    JsonOption,
    MaybeCallArgument,
    NamedWorkspaceOption,
    ReasonOption,
    StoreOption,
    UrlOption,
    YesOption,
)
from ayes.ops.commands.outcome import (
    GATE_S,
    is_for_the_gate,
    open_tally,
    report,
    report_end,
    standing,
)
from ayes.ops.terminal import output
from ayes.ops.terminal.output import print_data, print_line, print_message
from ayes.ops.terminal.prompt import read_line
from ayes.projections import pending as queue
from ayes.projections.pending import BadEntry, Entry, PendingFilter
from ayes.schemas import events as e
from ayes.schemas.errors import (
    AlreadyDecided,
    ApprovalsError,
    BadId,
    BadInput,
    DeadlinePassed,
    NotOpen,
)
from ayes.schemas.ids import token
from ayes.schemas.slots import CallRef, ThreadRef

app: Final = commands()

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


@command(app)
async def pending(
    workspace: Annotated[
        str, typer.Option("-w", "--workspace", metavar="WS", help="Only this workspace.")
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on with what is asked and decided, as it comes.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Only the N oldest.")
    ] = None,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """What waits for a decision, oldest first."""
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
        entries, waiting, unreadable = await pending_client.oldest(
            ledger, limit, PendingFilter(workspace)
        )
    _tell_unreadable(unreadable, json=json)
    if json:
        for entry in entries:
            print_data(queue.encode(entry).decode())
    elif entries:
        output.print_pending(entries, output.console())
        shown = "" if len(entries) == waiting else f", the oldest {len(entries)} shown"
        print_message()
        print_message(
            f"{waiting} waiting{shown}. Next: ayes approve CALL --as NAME (or deny, or answer)"
        )
    else:
        print_message("Nothing waits for a decision.")


async def _watch_pending(ledger: Ledger, workspace: str, *, json: bool) -> None:
    async with aclosing(changes(ledger)) as coming:
        async for told in coming:
            for key, entry in told:
                if not workspace or key.startswith(f"{workspace}."):
                    call = key.replace(".", "/")
                    _tell_change(call, entry, json=json)
                    if entry is None and not json:
                        print_line(f"decided  {call}{await _how(ledger, call)}")


def _tell_unreadable(unreadable: Sequence[BadEntry], *, json: bool) -> None:
    """A sentence for each value of the queue that is not an entry; it hinders none of the
    others.
    """
    for one in unreadable:
        told = {"warning": type(one).__name__, "key": one.key, "message": str(one)}
        print_message(jsonlib.dumps(told) if json else f"warning: {one}")


def _tell_change(call: str, entry: Entry | BadEntry | None, *, json: bool) -> None:
    if isinstance(entry, BadEntry):
        _tell_unreadable([entry], json=json)
    elif json:
        print_data(
            f'{{"call":"{call}","open":{queue.encode(entry).decode() if entry else "null"}}}'
        )
    elif entry:
        flaw = f"  [{entry.flaw}]" if entry.flaw else ""
        shown = f"{entry.tool} {entry.arguments}  {entry.digest[: output.SHORT]}{flaw}"
        print_line(f"asked    {call}  {shown}")


async def _how(ledger: Ledger, call: str) -> str:
    """How a call was decided, by whom, and how long after people were asked; empty if it was
    not.
    """
    try:
        known = await ledger.call(CallRef.parse(call))
    except BadId:  # a key that somebody put into the queue by hand
        return ""
    if known.decided is None or known.gated is None:
        return ""
    waited = known.decided.recorded_at - known.gated.recorded_at
    return f"  {describe(known.decided)}, after {waited.total_seconds():,.0f} s"


class VoteInput(NamedTuple):
    """What a reviewer says."""

    verdict: e.Verdict
    reason: str = ""
    arguments: str | None = None
    answer: str = ""
    behalf: str = ""
    halt: bool = False


@command(app)
async def approve(
    name: AsOption,
    call: MaybeCallArgument = None,
    edit: Annotated[
        str | None,
        typer.Option("--edit", metavar="JSON", help="Run it with these arguments instead."),
    ] = None,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    every: AllOption = False,
    tool: AllToolOption = "",
    workspace: AllWorkspaceOption = "",
    thread: AllThreadOption = "",
    yes: YesOption = False,
    digest: DigestOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Say yes to a call, with exactly the arguments that it shows; or to all that waits."""
    ballot = VoteInput("approve", reason, arguments=edit, behalf=behalf)
    chosen = PendingFilter(workspace, thread, tool)
    if _is_for_all(call, chosen, every=every, digest=digest):
        return await vote_on_all(name, ballot, chosen, sure=yes, store=store, url=url, json=json)
    return await vote(
        call or "", name, ballot, sure=yes, digest=digest, store=store, url=url, json=json
    )


@command(app)
async def deny(
    name: AsOption,
    call: MaybeCallArgument = None,
    halt: Annotated[
        bool,
        typer.Option("--halt", help="The model is not asked again before a user says something."),
    ] = False,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    every: AllOption = False,
    tool: AllToolOption = "",
    workspace: AllWorkspaceOption = "",
    thread: AllThreadOption = "",
    yes: YesOption = False,
    digest: DigestOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Say no to a call; or to all that waits."""
    ballot = VoteInput("deny", reason, behalf=behalf, halt=halt)
    chosen = PendingFilter(workspace, thread, tool)
    if _is_for_all(call, chosen, every=every, digest=digest):
        return await vote_on_all(name, ballot, chosen, sure=yes, store=store, url=url, json=json)
    return await vote(
        call or "", name, ballot, sure=yes, digest=digest, store=store, url=url, json=json
    )


def _is_for_all(call: str | None, chosen: tuple[str, ...], *, every: bool, digest: str) -> bool:
    if (call is None) != every:
        raise BadInput("name one CALL, or give --all for all that waits.")
    if not every and any(chosen):
        raise BadInput("--tool, --workspace and --thread go with --all. Here one call is named.")
    if every and digest:
        raise BadInput("--digest is of one call. Name it instead of giving --all.")
    return every


@command(app)
async def answer(
    call: CallArgument,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What the model gets as the tool's output.")
    ],
    name: AsOption,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    yes: YesOption = False,
    digest: DigestOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Answer in place of the tool, which does not run."""
    ballot = VoteInput("answer", reason, answer=text, behalf=behalf)
    return await vote(call, name, ballot, sure=yes, digest=digest, store=store, url=url, json=json)


@command(app, "break-glass")
async def break_glass(
    call: CallArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why nobody else can be asked.")],
    name: AsOption,
    yes: YesOption = False,
    digest: DigestOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Let a call run alone, in an emergency, where the policy lets you. It is announced before it
    is decided.
    """
    ballot = VoteInput("break_glass", reason)
    return await vote(call, name, ballot, sure=yes, digest=digest, store=store, url=url, json=json)


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
    """Vote on one call: show what the log has, ask whoever is at the terminal, and vote on that and
    nothing else.

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
        return await report_end(ledger, ref, _WANTED[ballot.verdict], json=json)


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
    """The same vote on each call that waits and was shown; 0 when all went through, 1 when some did
    not.
    """
    if ballot.arguments is not None or ballot.verdict not in {"approve", "deny"}:
        raise BadInput(
            "--all says the same to each call, with the arguments that it shows. An edit is about "
            "one call: name it."
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
            f"{calls}. Nobody can be asked here, so nothing was recorded. Add --yes to {verdict} "
            "all of them."
        )
    print_message()
    return await _yes(f"{calls}. {verdict.capitalize()} all of them?")


async def _yes(question: str) -> bool:
    """Ask the person at the terminal."""
    print_message(f"{question} [y/N]")
    return (await read_line() or "").lower() in {"y", "yes"}


@command(app)
async def hear(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="As somebody wrote it in a chat.")
    ],
    name: AsOption,
    workspace: NamedWorkspaceOption,
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> int:
    """Vote as a message says, if all of it is a verdict: `approve CALL`, `deny CALL: why`. Anything
    else is none.
    """
    async with as_reviewer(name, store, url) as ledger:
        chosen = PendingFilter(token("workspace", workspace))
        waiting, _, unreadable = await pending_client.oldest(ledger, chosen=chosen)
        _tell_unreadable(unreadable, json=json)
        found = chat_vote.parse_vote(message, waiting)
        if found is None:
            raise BadInput(
                f"this is no verdict on one of the {len(waiting):,} calls that wait in "
                f"{workspace}. "
                "Write `approve CALL` or `deny CALL: why`, and nothing else; or quote the "
                "question and say yes or no."
            )
        if (
            problem := await _vote_as_shown(
                ledger, found.about, name, VoteInput(found.verdict, found.reason)
            )
        ) is not None:
            raise problem
        return await report_end(ledger, found.about.ref, _WANTED[found.verdict], json=json)


async def _vote_as_shown(
    ledger: Ledger, shown: Entry, name: str, ballot: VoteInput
) -> ApprovalsError | None:
    """Vote on what was shown and on nothing else; why not, if not."""
    try:
        known = await ledger.known_call(shown.ref)
        digest = known.approval_request.digest if known.approval_request else ""
        if (known.wish.tool, known.wish.arguments, digest) != (
            shown.tool,
            shown.arguments,
            shown.digest,
        ):
            raise NotOpen(f"{shown.ref} is not what was shown. Look at it by itself: ayes show.")
        # The wish and the question stand in slots, so what was just compared is what the vote is
        # about.
        await _vote(ledger, shown.ref, name, ballot, digest)
    except ApprovalsError as problem:
        return problem
    return None


async def _tell_each(
    ledger: Ledger, shown: Sequence[Entry], problems: Sequence[ApprovalsError | None], *, json: bool
) -> None:
    """One line a call: how it stands once the gate has seen the votes, or what went wrong with
    it.
    """
    until = time.monotonic() + GATE_S
    for one, problem in zip(shown, problems, strict=True):
        known = await ledger.call(one.ref)
        while problem is None and time.monotonic() < until and await is_for_the_gate(ledger, known):
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
                f"{one.ref}: error: {problem}"
                if problem
                else standing(known, await open_tally(ledger, known))
            )
    if not json and len(shown) > 1:
        print_message()
        print_message(
            f"{sum(problem is None for problem in problems):,} of {len(shown):,} went through."
        )


@command(app)
async def revoke(
    call: CallArgument,
    name: AsOption,
    reason: ReasonOption = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Take an approval back before the tool starts."""
    async with as_reviewer(name, store, url) as ledger:
        known = await ledger.reviewer(name).revoke(call, reason=reason)
        await report(ledger, known, f"{call} will not run.", json=json)


@command(app)
async def reconcile(
    call: CallArgument,
    name: AsOption,
    happened: Annotated[
        bool, typer.Option("--happened/--did-not-happen", help="What you found out.")
    ],
    output: Annotated[
        str, typer.Option("--output", metavar="TEXT", help="What the model reads.")
    ] = "",
    store: StoreOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Say what became of a call in doubt: it was started, and nobody knows how it ended."""
    async with as_reviewer(name, store, url) as ledger:
        known = await ledger.reviewer(name).reconcile(call, happened=happened, output=output)
        told = f"{call} is settled: it {'happened' if happened else 'did not happen'}."
        await report(ledger, known, told, json=json)


@asynccontextmanager
async def as_reviewer(name: str, store: Path | None, url: str | None) -> AsyncGenerator[Ledger]:
    """Connected as this person. On a store of one's own the account is made when it is first
    used.
    """
    role = f"reviewer-{token('reviewer', name)}"
    if url is None:
        await ensure_account(store, role)
    async with Ledger.connect(store, url=url, role=role) as ledger:
        yield ledger
