"""The page on which a reviewer approves a call, and calls like it for a time: a grant, proposed
from the call's own arguments.
"""

from itertools import zip_longest
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Form
from fastapi.responses import Response

from ayes.interfaces.api import calls, grants, votes
from ayes.interfaces.api.identity import Reading, Reviewing, Visit
from ayes.interfaces.api.precedents import DAYS, hidden_of, precedents, proposed
from ayes.interfaces.api.queries import Named
from ayes.interfaces.api.votes import NewVote
from ayes.interfaces.console.display.likeness import Argument, Like, arguments_of, condition
from ayes.interfaces.console.pages.calls import has_cast
from ayes.interfaces.console.pages.forms import Typed, again, kept, to
from ayes.interfaces.console.pages.grants import GrantForm
from ayes.interfaces.console.rendering import page
from ayes.ops.actions.grants import GrantScope
from ayes.schemas import events as e
from ayes.schemas.errors import ApprovalsError, BadInput, Refused
from ayes.schemas.slots import CallRef

router: Final = APIRouter()


class AllowForm(GrantForm):
    """What is approved, as it was chosen."""

    digest: str = ""
    #: For each argument, in their order.
    like: tuple[Like, ...] = ()
    #: Whether calls may have other arguments besides.
    others: bool = False
    #: The tool's name.
    typed: Typed = ""

    def given(self, arguments: tuple[Argument, ...]) -> grants.NewGrant:
        """The grant that it describes.

        Raises:
            BadInput: a field cannot be read.
        """
        pairs = zip_longest(self.like, arguments)
        if not all(one and like in one.choices for like, one in pairs):
            raise BadInput("the form is damaged: it is not about this call. Open it again.")
        is_exact = {*self.like} <= {"exactly"} and not self.others
        when = "" if is_exact else condition(arguments, self.like, others=self.others)
        any_arguments = not (is_exact or when)
        return self.model_copy(update={"when": when, "any_arguments": any_arguments}).new


@router.get("/allow/{workspace}/{thread}/{call}")
async def show(ref: Named, visit: Reading) -> Response:
    digest = (await calls.record(ref, visit)).state.digest
    arguments = await _arguments(visit, ref)
    form = AllowForm(
        call=str(ref), digest=digest, like=tuple(one.choices[0] for one in arguments),
        any_thread=True, duration="8h", uses="20",
    )  # fmt: skip
    return await _shown(visit, form)


async def _arguments(visit: Visit, ref: CallRef) -> tuple[Argument, ...]:
    """Those of the call.

    Raises:
        NotAllowed: the visitor may not give a grant for such calls.
        BadInput: nothing can be proposed.
    """
    secret = await hidden_of(visit, ref)
    found = arguments_of((await calls.record(ref, visit)).state.arguments, secret)
    if found is None:
        raise BadInput(f"the arguments of {ref} are not a JSON object: give a grant by its tool.")
    return found


async def _shown(visit: Visit, form: AllowForm, problem: ApprovalsError | None = None) -> Response:
    """The form, with what it would give as far as that can be read."""
    ref = CallRef.parse(form.call)
    values = await _values(visit, ref, form)
    try:
        values |= await _proposal(visit, ref, form, values["arguments"])
    except ApprovalsError as unread:
        problem = problem or unread
    return page(visit, "allow.html", problem, **values | {"form": kept(form, problem)})


async def _values(visit: Visit, ref: CallRef, form: AllowForm) -> dict[str, Any]:
    record = await calls.record(ref, visit)
    return {"record": record, "form": form, "arguments": await _arguments(visit, ref)}


async def _proposal(
    visit: Visit, ref: CallRef, form: AllowForm, arguments: tuple[Argument, ...]
) -> dict[str, Any]:
    new = await _granted(visit, ref, form.given(arguments))
    said = [one.words(like) for one, like in zip(arguments, form.like, strict=True)]
    return {
        "new": new,
        "said": [*said, "and others"] if form.others else said,
        "past": await precedents(visit, ref.workspace, new),
        "days": DAYS,
    }


async def _granted(visit: Visit, ref: CallRef, new: grants.NewGrant) -> e.Granted:
    said = new.model_dump(include={*GrantScope._fields}) | {"tool": ""}
    return await proposed(visit, ref, GrantScope(**said))


@router.post("/allow/{workspace}/{thread}/{call}")
@again(_shown)
async def allow(
    visit: Reviewing,
    ref: Named,
    form: Annotated[AllowForm, Form()],
    step: Annotated[Literal["change", "review", "sure"], Form()] = "review",
) -> Response:
    """Show what would be approved; once somebody is sure, vote, and then give the grant."""
    form.call = str(ref)
    arguments = await _arguments(visit, ref)
    if step == "change":
        return await _shown(visit, form)
    if step == "review":
        values = await _values(visit, ref, form)
        values |= await _proposal(visit, ref, form, arguments)
        return page(visit, "allowed.html", **values)
    new = form.given(arguments)
    await _granted(visit, ref, new)  # it would be valid: nobody votes for half of what they chose
    cast = NewVote(
        verdict="approve", digest=form.digest, reason=form.reason, typed=form.typed.strip()
    )
    try:
        await votes.vote(ref, cast, visit)
    except Refused:
        if not await has_cast(visit, ref, cast):
            raise
    try:
        await grants.give(new, visit)
    except ApprovalsError as problem:
        problem.args = (f"your vote on {ref} stands, but the grant was not given: {problem}",)
        raise
    return to(f"/grants?workspace={ref.workspace}")
