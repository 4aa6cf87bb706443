"""The reviewers' commands: the queue, votes, and what follows a decision.

A vote on all pending calls is one vote on each, about what was displayed; an error is reported for
its call and does not stop the others. Edits, answers and breaking the glass are for single calls.

The subject of a vote is read from the log and displayed before the vote is cast, and the vote
carries the digest of what was displayed. The queue is only a copy, which others could have altered.
"""

import json as jsonlib
import re
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Final

from msgspec import structs

from ayes.consumers.doubt import in_doubt
from ayes.consumers.pending_view import changes
from ayes.interfaces.cli import chat_vote
from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import (
    AsOption,
    BehalfOption,
    CallArgument,
    Confirmation,
    DecidedCallArgument,
    ErrorOption,
    HaltOption,
    NamedWorkspaceOption,
    OnlyWorkspaceOption,
    QueryArgument,
    ReasonOption,
    Selection,
    TypedOption,
    argument,
    option,
)
from ayes.interfaces.cli.outcome import report, report_end, standing
from ayes.interfaces.cli.terminal import cards, output
from ayes.interfaces.cli.terminal.output import print_data, print_json, print_line, print_message
from ayes.interfaces.cli.terminal.prompt import read_line, text_or_stdin
from ayes.ledger.call import Call
from ayes.ledger.clients.reviewers import Ballot
from ayes.ledger.clients.services import Ledger
from ayes.ledger.descriptions import describe_decision
from ayes.ledger.lifecycle import Status
from ayes.ops.actions.kept import saved_view, snoozed_by
from ayes.ops.actions.searching import seen_by, to_decide
from ayes.ops.actions.secrets import secrets_in
from ayes.ops.actions.votes import (
    GATE_S,
    late_result,
    open_tally,
    seen_by_gate,
    vote_as_shown,
    wants_typed,
)
from ayes.projections import pending as queue
from ayes.projections.call_order import OLDEST, CallOrder
from ayes.projections.call_query import ALL, OF_DECIDED, CallQuery, Seen
from ayes.projections.display.values import in_brief
from ayes.projections.doubt import CallInDoubt
from ayes.projections.pending import BadEntry, Entry
from ayes.projections.saved_views import SavedView
from ayes.projections.views.call import SHORT
from ayes.projections.views.fact import late_words
from ayes.projections.views.secrets import Secrets
from ayes.schemas import events as e
from ayes.schemas.errors import (
    ApprovalsError,
    BadId,
    BadInput,
)
from ayes.schemas.ids import token
from ayes.schemas.slots import CallRef

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
_DIGEST: Final = re.compile(f"[0-9A-Fa-f]{{{SHORT},64}}")


@command(
    app,
    examples="""
    ayes pending
    ayes pending 'tool:refund amount>100 due<1h' --sort -field:amount
    ayes pending --view 'Large refunds' --as ana
    ayes pending -w shop --watch
    ayes pending --in-doubt
    """,
)
async def pending(
    query: QueryArgument = "",
    workspace: OnlyWorkspaceOption = "",
    doubtful: Annotated[
        bool, option("--in-doubt", "The calls in doubt instead, which a person reconciles.")
    ] = False,
    watch: Annotated[
        bool, option("--watch", "Continue with new and decided calls, until Ctrl-C.")
    ] = False,
    sort: Annotated[
        str, option("--sort", "ORDER", "age, due or field:amount; -age and others turn it round.")
    ] = "",
    view: Annotated[
        str, option("--view", "NAME", "The calls of this view of yours, in its order. Needs --as.")
    ] = "",
    limit: Annotated[int | None, option("--limit", "N", "Only the first N.")] = None,
    name: Annotated[
        str, option("--as", "NAME", "Whom is:mine and --view mean.", envvar="AYES_AS")
    ] = "",
    *,
    session: Session,
) -> None:
    """List the pending calls, oldest first."""
    if limit is not None and limit < 1:
        raise BadInput(f"--limit {limit} shows nothing. Give a number from 1 on.")
    if limit is not None and watch:
        raise BadInput("--limit cannot be combined with --watch, which shows all pending calls.")
    if doubtful and (watch or query or view):
        raise BadInput(
            "--in-doubt goes without --watch, --view and a QUERY, which are of pending calls."
        )
    saved = await _saved(session, view, name) if view else SavedView(name="")
    order = CallOrder.parse(sort or saved.sort)
    if watch and order != OLDEST:
        raise BadInput("--sort cannot be combined with --watch, which shows calls as they come.")
    chosen = chosen_calls(query, workspace) & saved.query
    is_own = bool(name) and chosen.needs("snoozed")
    async with session.as_reviewer(name) if is_own else session.connect("observer") as ledger:
        if doubtful:
            _report_in_doubt(await in_doubt(ledger, workspace), limit, json=session.json)
            return
        if watch:
            await _watch_pending(ledger, chosen, name, json=session.json)
            return
        found, unreadable = await _matching(ledger, chosen, name, order)
        secrets = await secrets_in(ledger, *found[:limit])
    entries, waiting = found[:limit], len(found)
    _warn_unreadable(unreadable, json=session.json)
    if session.json:
        for entry in entries:
            print_data(_entry_json(entry, secrets))
    elif entries:
        cards.print_pending(entries, output.console(), secrets)
        which = "oldest" if order == OLDEST else "first"
        shown = "" if len(entries) == waiting else f", the {which} {len(entries)} shown"
        print_message()
        print_message(
            f"{waiting} waiting{shown}. Next: ayes approve CALL --as NAME (or deny, or answer)"
        )
    else:
        print_message(f"No pending call matches {chosen}." if chosen.words else _NOTHING_WAITS)


_NOTHING_WAITS: Final = "Nothing waits for a decision."


async def _saved(session: Session, view: str, name: str) -> SavedView:
    if not name:
        raise BadInput("whose view is it? Add --as NAME.")
    async with session.as_reviewer(name) as ledger:
        return await saved_view(ledger, name, view)


def chosen_calls(query: str, workspace: str) -> CallQuery:
    """The query of pending calls that is typed, within a workspace; empty: in all of them."""
    within = CallQuery.of(workspace=workspace and token("workspace", workspace))
    return CallQuery.parse(query).only("pending calls", *OF_DECIDED) & within


async def _matching(
    ledger: Ledger, chosen: CallQuery, name: str, order: CallOrder = OLDEST
) -> tuple[list[Entry], list[BadEntry]]:
    """The pending calls that the query selects, for this reader; and the entries that cannot be
    read.
    """
    index = queue.index_of(await ledger.log.pending.entries())
    seen = await seen_for(ledger, index.oldest(), chosen, name, order)
    return index.oldest(None, chosen, seen, order), index.unreadable(chosen)


async def seen_for(
    ledger: Ledger,
    entries: Sequence[Entry],
    chosen: CallQuery,
    name: str,
    order: CallOrder = OLDEST,
) -> Seen:
    """What the query and the order of these entries rest on, for this reader.

    Args:
        ledger: on the reader's own login if it is asked what they have put aside.
    """
    mine = await to_decide(ledger, name, entries) if name and chosen.needs("mine") else None
    snoozed = await snoozed_by(ledger, name) if name and chosen.needs("snoozed") else None
    return await seen_by(ledger, entries, chosen, order, mine, snoozed)


def _named[T: (Entry, CallInDoubt)](found: T) -> T:
    """With the call as `workspace/thread/call`, as the API and every other command name it."""
    call = CallRef(found.workspace, found.thread, found.call)
    return structs.replace(found, call=str(call))


def _entry_json(entry: Entry, secrets: Secrets) -> str:
    shown = secrets.arguments(entry.declaration, entry.arguments)
    return queue.encode(structs.replace(_named(entry), arguments=shown)).decode()


def _report_in_doubt(found: Sequence[CallInDoubt], limit: int | None, *, json: bool) -> None:
    shown = found[:limit]
    if json:
        for one in shown:
            print_json(_named(one))
        return
    output.print_in_doubt(shown, output.console())
    if not found:
        print_message("No call is in doubt.")
        return
    print_message()
    oldest = "" if len(shown) == len(found) else f", the oldest {len(shown)} shown"
    print_message(f"{len(found)} in doubt{oldest}. Find out what became of each, then record it.")


async def _watch_pending(ledger: Ledger, chosen: CallQuery, name: str, *, json: bool) -> None:
    shown = set[str]()
    async with aclosing(changes(ledger)) as coming:
        async for changed in coming:
            came = [entry for _, entry in changed if isinstance(entry, Entry)]
            selects = chosen.selecting(await seen_for(ledger, came, chosen, name))
            secrets = await secrets_in(ledger, *came)
            for key, entry in changed:
                if isinstance(entry, Entry):
                    is_shown = selects(entry)
                else:
                    is_shown = key in shown if entry is None else chosen.covers(key)
                if not is_shown:
                    continue
                shown.add(key)
                call = key.replace(".", "/")
                _print_change(call, entry, secrets, json=json)
                if entry is None and not json:
                    print_line(f"decided  {call}{await how_decided(ledger, call)}")


def _warn_unreadable(unreadable: Sequence[BadEntry], *, json: bool) -> None:
    """Print a warning for each value of the queue that is not an entry."""
    for one in unreadable:
        found = {"warning": type(one).__name__, "key": one.key, "message": str(one)}
        print_message(jsonlib.dumps(found) if json else f"warning: {one}")


def _print_change(
    call: str, entry: Entry | BadEntry | None, secrets: Secrets, *, json: bool
) -> None:
    if isinstance(entry, BadEntry):
        _warn_unreadable([entry], json=json)
    elif json:
        found = _entry_json(entry, secrets) if entry else "null"
        print_data(f'{{"call":"{call}","open":{found}}}')
    elif entry:
        flaw = f"  [{entry.flaw}]" if entry.flaw else ""
        what = entry.title or in_brief(secrets.arguments(entry.declaration, entry.arguments))
        print_line(f"asked    {call}  {entry.tool}  {what}  {entry.digest[:SHORT]}{flaw}")


async def how_decided(ledger: Ledger, call: str) -> str:
    """How a call was decided, by whom, and how long after the approval request; empty if it was
    not.
    """
    try:
        known = await ledger.call(CallRef.parse(call))
    except BadId:  # a key that somebody wrote by hand
        return ""
    if known.decided is None or known.gated is None:
        return ""
    waited = known.decided.recorded_at - known.gated.recorded_at
    decision = describe_decision(known.decided, known.withdrawn)
    return f"  {decision}, after {waited.total_seconds():,.0f} s"


@command(
    app,
    examples="""
    ayes approve shop/order-17/refund-1 --as ana
    ayes approve shop/order-17/refund-1 --as ana --edit '{"order":"A-17","amount":100}'
    ayes approve --all --matching 'tool:refund* amount<20' -w shop --as ana
    """,
)
async def approve(
    selection: Selection,
    name: AsOption,
    edit: Annotated[
        str | None, option("--edit", "JSON", "Run it with these arguments instead; - for stdin.")
    ] = None,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    typed: TypedOption = "",
    *,
    confirmation: Confirmation,
    session: Session,
) -> int:
    """Approve a call with exactly the arguments that it shows; or all pending calls."""
    arguments = None if edit is None else text_or_stdin(edit).strip()
    ballot = Ballot("approve", reason, arguments=arguments, on_behalf_of=behalf, typed=typed)
    return await _vote_on_selection(selection, name, ballot, confirmation, session)


@command(
    app,
    examples="""
    ayes deny shop/order-17/refund-1 --as ana --reason "It was refunded before."
    ayes deny --all --matching thread:shop/order-17 --as ana
    """,
)
async def deny(
    selection: Selection,
    name: AsOption,
    halt: HaltOption = False,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    *,
    confirmation: Confirmation,
    session: Session,
) -> int:
    """Deny a call, or all pending calls."""
    ballot = Ballot("deny", reason, on_behalf_of=behalf, halt=halt)
    return await _vote_on_selection(selection, name, ballot, confirmation, session)


async def _vote_on_selection(
    selection: Selection, name: str, ballot: Ballot, confirmation: Confirmation, session: Session
) -> int:
    call, every, *_ = selection
    chosen = chosen_calls(selection.matching, selection.workspace)
    if (call is None) != every:
        raise BadInput("name one CALL, or give --all for all pending calls.")
    if call is not None:
        if chosen != ALL:
            raise BadInput("--matching and --workspace go with --all, not with one CALL.")
        return await vote(call, name, ballot, confirmation, session)
    if confirmation.digest or ballot.typed:
        option = "--digest" if confirmation.digest else "--typed"
        raise BadInput(f"{option} is for one call. Name it instead of giving --all.")
    return await _vote_on_all(name, ballot, chosen, sure=confirmation.yes, session=session)


@command(app, examples="ayes answer shop/order-17/ask-1 'The customer agreed by phone.' --as ana")
async def answer(
    call: CallArgument,
    text: Annotated[
        str, argument("TEXT", "What the model gets as the tool's output; - for stdin.")
    ],
    name: AsOption,
    error: ErrorOption = False,
    halt: HaltOption = False,
    behalf: BehalfOption = "",
    reason: ReasonOption = "",
    *,
    confirmation: Confirmation,
    session: Session,
) -> int:
    """Answer in place of the tool, which does not run."""
    given = text_or_stdin(text)
    ballot = Ballot("answer", reason, answer=given, is_error=error, on_behalf_of=behalf, halt=halt)
    return await vote(call, name, ballot, confirmation, session)


@command(app, "break-glass")
async def break_glass(
    call: CallArgument,
    reason: Annotated[str, option("--reason", "Why nobody else can be asked.")],
    name: AsOption,
    typed: TypedOption = "",
    *,
    confirmation: Confirmation,
    session: Session,
) -> int:
    """Let a call run alone, in an emergency, where the policy allows it. It is announced before it
    is decided.
    """
    return await vote(call, name, Ballot("break_glass", reason, typed=typed), confirmation, session)


async def vote(
    call: str, name: str, ballot: Ballot, confirmation: Confirmation, session: Session
) -> int:
    """Vote on one call: display what the log has, ask for confirmation at a terminal, and vote on
    exactly that.
    """
    ref, digest = CallRef.parse(call), confirmation.digest
    if digest and not _DIGEST.fullmatch(digest):
        raise BadInput(
            f"--digest {digest!r} is not a digest. It has {SHORT} to 64 hex digits; "
            "`ayes pending` shows the first of them."
        )
    async with session.as_reviewer(name) as ledger:
        known = await ledger.known_call(ref)
        asked = known.approval_request.digest if known.approval_request else ""
        if known.status is Status.PENDING:
            at_terminal = sys.stdin.isatty() and sys.stderr.isatty()
            ask = at_terminal and not any(confirmation) and not ballot.typed
            if ask or not session.json:  # the stderr of a program has JSON errors only
                cards.print_question(
                    known,
                    output.console(stderr=True),
                    await secrets_in(ledger, known),
                    ballot.arguments,
                )
            if ask:
                typed = await _confirm_one(known, ballot.verdict)
                if typed is None:
                    print_message("Nothing was recorded.")
                    return 1
                ballot = structs.replace(ballot, typed=typed)
            if digest and not asked.startswith(digest.lower()):
                asked = digest
        await ledger.reviewer(name).vote(ref, structs.replace(ballot, digest=asked))
        return await report_end(ledger, ref, _WANTED[ballot.verdict], json=session.json)


async def _vote_on_all(
    name: str, ballot: Ballot, chosen: CallQuery, *, sure: bool, session: Session
) -> int:
    """Cast the same vote on each pending call that was displayed; 1 if some failed, else 0."""
    if ballot.arguments is not None:
        raise BadInput("--edit is for one call. Name it instead of giving --all.")
    async with session.as_reviewer(name) as ledger:
        shown, unreadable = await _matching(ledger, chosen, name)
        _warn_unreadable(unreadable, json=session.json)
        if not shown:
            print_message("No pending call matches. Nothing was recorded.")
            return 1 if unreadable else 0
        if not sure and not await _confirm_all(
            shown, ballot.verdict, await secrets_in(ledger, *shown)
        ):
            print_message("Nothing was recorded.")
            return 1
        problems = [await _vote_as_shown(ledger, one, name, ballot) for one in shown]
        await _report_each(ledger, shown, problems, json=session.json)
    return 1 if any(problems) or unreadable else 0


async def _confirm_all(shown: Sequence[Entry], verdict: str, secrets: Secrets) -> bool:
    """Display the calls, and ask the person at the terminal."""
    cards.print_pending(shown, output.console(stderr=True), secrets)
    calls = "1 call waits" if len(shown) == 1 else f"{len(shown):,} calls wait"
    if not sys.stdin.isatty():
        raise BadInput(
            f"{calls}. Nobody can be asked here, so nothing was recorded. Add --yes to {verdict} "
            "all of them."
        )
    print_message()
    return await confirm(f"{calls}. {verdict.capitalize()} all of them?")


async def _confirm_one(call: Call, verdict: e.Verdict) -> str | None:
    """Ask the person at the terminal. What they typed for `Reviewer.vote`; None: no vote."""
    if not wants_typed(call, verdict):
        return "" if await confirm(_ASKS[verdict]) else None
    print_message(f"{_ASKS[verdict]} Type the name of the tool, or nothing to leave it:")
    return await read_line() or None


async def confirm(question: str) -> bool:
    """Ask the person at the terminal; anything but yes is a no."""
    print_message(f"{question} [y/N]")
    return (await read_line() or "").lower() in {"y", "yes"}


@command(app)
async def hear(
    message: Annotated[str, argument("MESSAGE", "A message from a chat; - for stdin.")],
    name: AsOption,
    workspace: NamedWorkspaceOption,
    session: Session,
) -> int:
    """Vote as a chat message says, if the whole message is a verdict: `approve CALL`, `deny CALL:
    why`.
    """
    async with session.as_reviewer(name) as ledger:
        chosen = chosen_calls("", token("workspace", workspace))
        waiting, _, unreadable = queue.oldest(await ledger.log.pending.entries(), chosen=chosen)
        _warn_unreadable(unreadable, json=session.json)
        secrets = await secrets_in(ledger, *waiting)
        found = chat_vote.parse_vote(text_or_stdin(message), waiting, secrets)
        if found is None:
            raise BadInput(
                f"this is not a verdict on one of the {len(waiting):,} pending calls in "
                f"{workspace}. Write `approve CALL` or `deny CALL: why`, and nothing else; or "
                "quote the question and say yes or no."
            )
        ballot = Ballot(found.verdict, found.reason)
        if (problem := await _vote_as_shown(ledger, found.about, name, ballot)) is not None:
            raise problem
        return await report_end(ledger, found.about.ref, _WANTED[found.verdict], json=session.json)


async def _vote_as_shown(
    ledger: Ledger, shown: Entry, name: str, ballot: Ballot
) -> ApprovalsError | None:
    """Vote on exactly what was displayed; returns the error, if any."""
    try:
        await vote_as_shown(ledger, shown, name, ballot)
    except ApprovalsError as problem:
        return problem
    return None


async def _report_each(
    ledger: Ledger, shown: Sequence[Entry], problems: Sequence[ApprovalsError | None], *, json: bool
) -> None:
    """Print a line for each call: its state once the gate has counted the votes, or the error."""
    until = time.monotonic() + GATE_S
    for one, problem in zip(shown, problems, strict=True):
        known = await ledger.call(one.ref)
        if problem is None:
            known = await seen_by_gate(ledger, known, until - time.monotonic())
        if json:
            error = None if problem is None else str(problem)
            print_json({"call": str(one.ref), "status": str(known.status), "error": error})
        elif problem:
            print_message(f"{one.ref}: error: {problem}")
        else:
            secrets = await secrets_in(ledger, known)
            print_message(standing(known, await open_tally(ledger, known), secrets))
    if not json and len(shown) > 1:
        succeeded = sum(problem is None for problem in problems)
        print_message()
        print_message(f"{succeeded:,} of {len(shown):,} went through.")


@command(app)
async def revoke(
    call: DecidedCallArgument,
    name: AsOption,
    reason: ReasonOption = "",
    answer: Annotated[
        str | None,
        option(
            "--answer",
            "TEXT",
            "The text that the model reads in place of the tool's output; - for stdin.",
        ),
    ] = None,
    error: ErrorOption = False,
    halt: HaltOption = False,
    *,
    session: Session,
) -> None:
    """Revoke an approval before the tool starts."""
    given = None if answer is None else text_or_stdin(answer)
    async with session.as_reviewer(name) as ledger:
        known = await ledger.reviewer(name).revoke(
            call, reason=reason, answer=given, is_error=error, halt=halt
        )
        await report(ledger, known, f"{call} will not run.", json=session.json)


@command(app)
async def reconcile(
    call: DecidedCallArgument,
    name: AsOption,
    happened: Annotated[
        bool | None, option("--happened/--did-not-happen", "What you found out.")
    ] = None,
    output: Annotated[str, option("--output", "TEXT", "What the model reads; - for stdin.")] = "",
    late: Annotated[
        bool, option("--late", "What the tool reported when it was in doubt already.")
    ] = False,
    *,
    session: Session,
) -> None:
    """Say what became of a call in doubt: it was started, and nobody knows how it ended."""
    if late and (happened is not None or output):
        raise BadInput(
            "--late records the tool's own late result, so leave out --happened, --did-not-happen "
            "and --output."
        )
    async with session.as_reviewer(name) as ledger:
        found: e.Content = text_or_stdin(output)
        if happened is None:
            happened, found = await _late_result(ledger, CallRef.parse(call), is_accepted=late)
        known = await ledger.reviewer(name).reconcile(call, happened=happened, output=found)
        sentence = f"{call} is settled: it {'happened' if happened else 'did not happen'}."
        await report(ledger, known, sentence, json=session.json)


async def _late_result(
    ledger: Ledger, ref: CallRef, *, is_accepted: bool
) -> tuple[bool, e.Content]:
    """Whether the call happened and what the model reads, as its late result has it."""
    known = await ledger.known_call(ref)
    if is_accepted:
        return late_result(known)
    if (found := known.late_result) is None:
        raise BadInput("say what you found out: --happened or --did-not-happen.")
    raise BadInput(
        f"{late_words(found)}. Accept this result with --late, or say what you found "
        "out: --happened or --did-not-happen."
    )
