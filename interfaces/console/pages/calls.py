"""The page of one call: what would run, why people are asked, the vote, and the record."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Form, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel

from ayes.interfaces.api import (
    calls,
    colleagues,
    context,
    decided,
    edits,
    receipts,
    requests,
    snoozes,
    votes,
)
from ayes.interfaces.api.calls import Record
from ayes.interfaces.api.context import Context
from ayes.interfaces.api.decided import DecidedSearch
from ayes.interfaces.api.identity import Reading, Reviewing, Role, Visit
from ayes.interfaces.api.precedents import hidden_of
from ayes.interfaces.api.queries import Listing, Named, behind, naming
from ayes.interfaces.api.threads import ALONE
from ayes.interfaces.api.votes import NewVote
from ayes.interfaces.console.display import fields
from ayes.interfaces.console.display.people import seats, still_to_vote
from ayes.interfaces.console.display.timeline import result_of, timeline
from ayes.interfaces.console.pages.forms import Typed, to, with_line_feeds
from ayes.interfaces.console.pages.passkeys import to_be_signed
from ayes.interfaces.console.pages.waiting import listed, saved_views
from ayes.interfaces.console.rendering import is_fragment, page
from ayes.projections.display import raw_json
from ayes.projections.display.changes import changes
from ayes.projections.display.texts import text_of
from ayes.projections.display.values import picture_in, value_of
from ayes.schemas.durations import parse_time
from ayes.schemas.errors import ApprovalsError, BadInput, Refused, Unavailable, UnknownCall
from ayes.schemas.events import Verdict
from ayes.schemas.redaction import REDACTED
from ayes.schemas.slots import CallRef
from ayes.schemas.visible import visible_json

router: Final = APIRouter()

#: Fields of the form of an edit, and bytes of one of them.
_MAX_FIELDS: Final = 20_000
_MAX_BYTES: Final = 1 << 20
#: Recent calls of a requester, and of an agent.
_RECENT: Final = 5
#: The search for all that the visitor may decide.
_MINE: Final = "is:mine"


@router.get("/calls/{workspace}/{thread}/{call}")
async def show(ref: Named, chosen: Annotated[Listing, Query()], visit: Reading) -> HTMLResponse:
    """A call; beside the list if it waits, or if the address has a search."""
    return await _shown(visit, ref, chosen)


@router.get("/calls/{workspace}/{thread}/{call}/secrets")
async def show_secrets(ref: Named, visit: Reading) -> HTMLResponse:
    """A call with what its tool declares as secret, for those who may see it."""
    return await _shown(visit, ref, secrets=True)


async def _shown(
    visit: Visit,
    ref: CallRef,
    chosen: Listing | None = None,
    *,
    secrets: bool = False,
    **values: Any,
) -> HTMLResponse:
    """The page of a call, or its article alone for the pane beside the list."""
    record = await calls.record(ref, visit, secrets)
    led = await context.context(ref, visit)
    with suppress(ApprovalsError):  # the page is worth showing without
        values["left"] = (await calls.waiting(Listing(q=_MINE, limit=1), visit)).waiting
    if record.state.status == "pending":
        with suppress(ApprovalsError):  # then the choice is not shown
            await hidden_of(visit, ref)
            values["allows"] = True
        with suppress(ApprovalsError):  # likewise
            values["snooze"] = await snoozes.snooze(ref, visit)
    is_listed = record.state.status == "pending" or visit.request.query_params
    if chosen and is_listed and not is_fragment(visit.request):
        found, saved = await asyncio.gather(
            calls.waiting(chosen, visit), saved_views(visit, chosen)
        )
        values |= listed(visit, chosen, found, saved)
    # In a thread, since the page of a hostile call may take seconds.
    return await run_in_threadpool(_composed, visit, record, led, values)


@router.get("/next/{seq}")
async def following(seq: int, visit: Reading) -> Response:
    """To the call that the visitor may decide after the one that people were asked about in this
    fact; after the last one the first, and without any the list.
    """
    for after in (behind(seq), ""):
        found = await calls.waiting(Listing(q=_MINE, after=after), visit)
        for one in found.calls:
            if one.seq != seq:
                return to(f"/calls/{one.call}")
    return to(f"/?q={_MINE}")


def _composed(
    visit: Visit, record: Record, led: Context, values: Mapping[str, Any]
) -> HTMLResponse:
    state = record.state
    asked = state.requested_arguments if state.edited else state.arguments
    asking = seats(record.question, record.votes, record.requester) if record.question else ()
    alike = next((one for one in reversed(record.earlier) if one.tool == state.tool), None)
    # What is shown here is compared with nothing that is hidden.
    is_alike = alike is not None and (record.hidden or REDACTED not in alike.arguments)
    return _rendered(
        visit,
        "call",
        record=record,
        may={one.action: one.refusal for one in record.may},
        # Of an edited call what runs, beside what was asked.
        runs=value_of(
            state.arguments,
            earlier=asked if state.edited else alike.arguments if alike and is_alike else "",
            was="asked" if state.edited else "last time",
            notes=_notes(record),
            dressed=True,
        ),
        raw=text_of(state.arguments),
        asked=text_of(asked),
        changed=changes(asked, state.arguments) if state.edited else (),
        edits=[
            (name, changes(asked, other), "" if record.hidden else json.dumps(other))
            for other, name in state.edits.items()
        ],
        seats=asking,
        others=still_to_vote(asking, visit.name),
        messages=[(one, text_of(one.text)) for one in led.messages],
        timeline=timeline(record.facts),
        result=result_of(record.facts),
        is_sealed=receipts.is_sealed(visit),
        asked_seq=next((one.seq for one in record.facts if one.subject.endswith(".gated")), 0),
        **values,
    )


def _notes(record: Record) -> Mapping[str, str]:
    """What the tool's schema says of each argument, by its JSON pointer."""
    arguments = record.state.arguments
    if not record.tool_schema or not raw_json.is_readable(arguments):
        return {}
    form = fields.form(record.tool_schema, arguments)
    return {one.pointer: one.description for one in fields.each(form)}


def _rendered(visit: Visit, name: str, **values: Any) -> HTMLResponse:
    layout = "waiting.html" if "found" in values else "call_page.html"
    if is_fragment(visit.request):
        layout = "call_pane.html"
    return page(visit, f"{name}.html", layout=layout, **values)


@router.get("/calls/{workspace}/{thread}/{call}/pictures/{digest}")
async def picture(ref: Named, digest: str, visit: Reading) -> Response:
    """A picture that an argument holds as text."""
    record = await calls.record(ref, visit)
    found = picture_in(record.state.arguments, digest)
    if found is None and record.hidden:
        record = await calls.record(ref, visit, secrets=True)
        found = picture_in(record.state.arguments, digest)
    if found is None:
        raise UnknownCall(f"no argument of {ref} is a picture {digest}.")
    return Response(found[1], headers={"Content-Security-Policy": ALONE}, media_type=found[0])


@router.get("/calls/{workspace}/{thread}/{call}/recent")
async def recent(ref: Named, visit: Reading) -> HTMLResponse:
    """What was decided last for the requester of a call, and of its agent."""
    record = await calls.record(ref, visit)
    found = []
    for key, name in ("requester", record.requester), ("agent", record.agent):
        if name:
            # One more, as this call may be among them.
            search = DecidedSearch(q=naming(key, name), workspace=ref.workspace, limit=_RECENT + 1)
            newest = (await decided.decided(visit, search)).calls
            others = [one for one in newest if one.call != str(ref)]
            found.append((name, search.q, others[:_RECENT]))
    return _rendered(visit, "call_recent", recent=found, owner=ref.workspace)


# ---------------------------------------------------------------------------------------- votes


class VoteForm(BaseModel):
    """The form of a vote."""

    verdict: Verdict
    digest: str
    reason: Typed = ""
    answer: Typed = ""
    is_error: bool = False
    #: The edited arguments, as a JSON string: a browser would change line ends in the text itself.
    edited: str = ""
    halt: bool = False
    #: The tool's name.
    typed: str = ""
    #: Made with a passkey, where only signed votes count.
    signature: str = ""

    @property
    def vote(self) -> NewVote:
        said = self.model_dump(exclude={"edited"}) | {"typed": self.typed.strip()}
        return NewVote(**said, arguments=_unwrapped(self.edited) if self.edited else None)


@router.post("/calls/{workspace}/{thread}/{call}/vote")
async def vote(ref: Named, form: Annotated[VoteForm, Form()], visit: Reviewing) -> Response:
    """Vote. The same form sent again is the same vote. Where only signed votes count, and the
    visitor has a passkey, they sign it in a step of its own.
    """
    cast = form.vote
    typed = form.model_dump() | {"arguments": cast.arguments or ""}
    try:
        if (asked := await votes.to_sign(ref, cast, visit)) is not None:
            record = await calls.record_of(ref, visit, "yes")
            step = await to_be_signed(visit, asked)
            fields = form.model_dump() | {"is_error": form.is_error or "", "halt": form.halt or ""}
            return _rendered(visit, "call_sign", record=record, typed=fields, **step)
        await votes.vote(ref, cast, visit)
    except ApprovalsError as problem:
        if not isinstance(problem, Refused) or not await has_cast(visit, ref, cast):
            return await _failed(visit, ref, problem, typed)
    said = {"ayes:voted": {"call": str(ref), "verdict": cast.verdict}}
    return await _done(visit, ref, {"HX-Trigger": json.dumps(said)})


async def has_cast(visit: Visit, ref: CallRef, vote: NewVote) -> bool:
    """Whether this very vote of the visitor is recorded already."""
    record = await calls.record_of(ref, visit, "yes")
    said = (vote.verdict, vote.reason, vote.arguments, vote.answer, vote.is_error, vote.halt)
    return any(
        one.reviewer == visit.name
        and not one.void
        and said == (one.verdict, one.reason, one.arguments, one.answer, one.is_error, one.halt)
        for one in record.votes
    )


async def _done(visit: Visit, ref: CallRef, headers: Mapping[str, str]) -> Response:
    if not is_fragment(visit.request):
        return to(f"/calls/{ref}")
    shown = await _shown(visit, ref)
    shown.headers.update(headers)
    return shown


async def _failed(
    visit: Visit, ref: CallRef, problem: ApprovalsError, typed: Mapping[str, Any]
) -> HTMLResponse:
    """The page with what went wrong, and with what the person had typed."""
    values: dict[str, Any] = {"problem": problem, "typed": typed}
    if isinstance(problem, Unavailable):  # nor can the call be read
        path = visit.request.url.path
        return _rendered(visit, "call_again", call=str(ref), path=path, **values)
    return await _shown(visit, ref, **values)


# ----------------------------------------------------------------------------------------- edits


@router.get("/calls/{workspace}/{thread}/{call}/edit")
async def edit(ref: Named, visit: Reading) -> HTMLResponse:
    """The form in which a reviewer changes the arguments, with those that are secret."""
    record = await calls.record(ref, visit, secrets=True)
    return _form(visit, record, fields.form(*_form_of(record)))


@router.post("/calls/{workspace}/{thread}/{call}/edit")
async def edited(ref: Named, visit: Reviewing) -> HTMLResponse:
    """The next step of an edit: another member or item, mistakes at their fields, or the review."""
    record = await calls.record(ref, visit, secrets=True)
    reading = visit.request.form(max_fields=_MAX_FIELDS, max_part_size=_MAX_BYTES)
    async with reading as submitted:
        typed = {name: text for name, text in submitted.items() if isinstance(text, str)}
    schema, original = _form_of(record)
    step, basis = typed.get("step", ""), _basis(typed) or original
    if step == "change":
        return _form(visit, record, fields.form(schema, basis))
    if step == "raw":
        arguments = _raw(typed.get("raw", ""), basis)
        form = fields.form(schema, arguments if raw_json.is_readable(arguments) else basis)
    else:
        before = fields.form(schema, basis)
        form = fields.filled(before, _places(typed))
        if mistakes := fields.mistakes(form):
            return _form(visit, record, form, [*mistakes.items()])
        arguments = fields.written(before, form)
    if step.startswith(("add:", "remove:")):
        return _form(visit, record, fields.form(schema, _stepped(form, step, arguments)))
    checked = await edits.check(ref, edits.Edit(arguments=arguments), visit)
    if checked.mistakes:
        found = [(one.pointer, one.message) for one in checked.mistakes]
        return _form(visit, record, form, found, arguments)
    return _rendered(
        visit,
        "call_review",
        record=record,
        changed=changes(original, arguments),
        same_bytes=arguments == original,
        digest=checked.digest,
        edited=json.dumps(arguments),
    )


def _form_of(record: Record) -> tuple[str, str]:
    """The schema, and the arguments as they were requested.

    Raises:
        BadInput: there is nothing that a form could be made of.
    """
    state = record.state
    asked = state.requested_arguments if state.edited else state.arguments
    if not record.tool_schema or not raw_json.is_readable(asked):
        raise BadInput(f"{state.call} cannot be edited: its tool is not declared.")
    return record.tool_schema, asked


def _form(
    visit: Visit,
    record: Record,
    form: fields.Field,
    mistakes: Sequence[tuple[str, str]] = (),
    arguments: str | None = None,
) -> HTMLResponse:
    """The form, with each mistake at its field."""
    raw = form.raw if arguments is None else arguments
    shown = _rendered(
        visit,
        "call_edit",
        record=record,
        form=form,
        mistakes=fields.at_fields(form, mistakes),
        basis=json.dumps(form.raw),
        raw=visible_json(raw) if raw_json.is_readable(raw) else raw,
    )
    if mistakes:
        shown.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
    return shown


def _places(typed: Mapping[str, str]) -> dict[str, str]:
    """The texts of the fields by pointer; their names have `at` before it."""
    return {name[2:]: text for name, text in typed.items() if name == "at" or name[:3] == "at/"}


def _stepped(form: fields.Field, step: str, arguments: str) -> str:
    """The arguments with one more member or item, or with one less."""
    what, _, pointer = step.partition(":")
    for field in fields.each(form):
        if what == "remove" and field.pointer == pointer and field.optional:
            return raw_json.replaced(arguments, field.path, None)
        for one in field.additions:
            if what == "add" and one.pointer == pointer:
                return raw_json.replaced(arguments, one.path, one.raw)
    return arguments


def _raw(text: str, basis: str) -> str:
    """The arguments as typed; those of before if nobody changed them."""
    typed = with_line_feeds(text).strip()
    return basis if typed == with_line_feeds(visible_json(basis)).strip() else typed


def _basis(typed: Mapping[str, str]) -> str:
    """The arguments that the form was made of; empty if the form does not say."""
    basis = _unwrapped(typed.get("basis", '""'))
    if basis and not raw_json.is_readable(basis):
        raise BadInput("the form is damaged: what it edits is not JSON. Open it again.")
    return basis


def _unwrapped(text: str) -> str:
    """The text of a JSON string.

    Raises:
        BadInput: it is not one.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, str):
        raise BadInput("the form is damaged: its arguments are not a JSON string. Open it again.")
    return value


# --------------------------------------------------------------------------------- what follows


class Finding(BaseModel):
    """The form of another action: its reason, what somebody found out, or what they say."""

    reason: Typed = ""
    #: With a revocation; empty: none.
    answer: Typed = ""
    is_error: bool = False
    halt: bool = False
    happened: bool | None = None
    output: Typed = ""
    late: bool = False
    #: Of a comment.
    text: Typed = ""
    #: To whom it is handed.
    to: str = ""
    #: When a call that is put aside comes back: `hour`, or a time; without a zone in UTC.
    until: str = ""

    @property
    def snooze(self) -> snoozes.NewSnooze:
        if self.until == "hour":
            return snoozes.NewSnooze(until=datetime.now(UTC) + timedelta(hours=1))
        return snoozes.NewSnooze(until=parse_time("the time", self.until))

    @property
    def revocation(self) -> votes.Revocation:
        said = self.model_dump(include={"reason", "is_error", "halt"})
        return votes.Revocation(**said, answer=self.answer or None)

    @property
    def reconciliation(self) -> votes.Reconciliation:
        return votes.Reconciliation(**self.model_dump(include={"happened", "output", "late"}))


@router.post("/calls/{workspace}/{thread}/{call}/{action}")
async def act(
    ref: Named,
    action: Literal[
        "withdraw", "revoke", "doubt", "reconcile", "hand", "comment", "snooze", "wake"
    ],
    form: Annotated[Finding, Form()],
    visit: Reading,
) -> Response:
    """Withdraw a request, take an approval back, say what became of a call in doubt, hand it to a
    colleague, comment, put it aside, or bring it back.
    """
    taken: dict[str, Any] = {"ayes:taken": {"path": visit.request.url.path}}
    try:
        if action in {"revoke", "reconcile", "hand"}:
            visit.visitor.require(Role.REVIEWER)
        match action:
            case "withdraw":
                await requests.withdraw(ref, requests.Withdrawal(reason=form.reason), visit)
            case "doubt":
                await requests.doubt(ref, requests.Doubts(reason=form.reason), visit)
            case "revoke":
                await votes.revoke(ref, form.revocation, visit)
            case "reconcile":
                await votes.reconcile(ref, form.reconciliation, visit)
            case "hand":
                handover = colleagues.NewHandover(to=form.to.strip(), reason=form.reason)
                await colleagues.hand(ref, handover, visit)
            case "comment":
                await colleagues.comment(ref, colleagues.NewComment(text=form.text), visit)
            case "snooze":
                until = (await snoozes.put(ref, form.snooze, visit)).until
                taken = {"ayes:snoozed": {"call": str(ref), "until": until and until.isoformat()}}
            case "wake":
                await snoozes.wake(ref, visit)
    except ApprovalsError as problem:
        return await _failed(visit, ref, problem, form.model_dump())
    return await _done(visit, ref, {"HX-Trigger": json.dumps(taken)})
