"""Views: searches of pending calls under a name, each for its author or for a workspace."""

import time
from functools import reduce
from operator import and_
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ayes.interfaces.api.base import ApiModel, ApiRouter, example
from ayes.interfaces.api.identity import Reading, Role, Visit
from ayes.interfaces.api.kept import keep, kept_for_all
from ayes.interfaces.api.mine import mine_of
from ayes.interfaces.api.queries import within
from ayes.interfaces.api.snoozes import snoozed_of
from ayes.ops.actions.searching import seen_by
from ayes.projections.call_query import ALL, CallQuery
from ayes.projections.kept import Kept
from ayes.projections.saved_views import SavedView, with_view
from ayes.projections.views.copied import copied
from ayes.schemas.errors import BadInput, NotAllowed
from ayes.schemas.ids import token
from ayes.schemas.people import plain

router: Final = ApiRouter(tags=["views"])

#: The time of this process for counting; views that are left then have no number.
_COUNTING_S: Final = 0.2


class View(SavedView, frozen=True, kw_only=True):
    """A view that the visitor may see."""

    #: The person who saved it.
    author: str
    #: Whether the visitor did.
    own: bool
    #: Why it is not applied; empty if it is.
    problem: str
    #: How many calls it shows; None: it is not applied, or counting would take too long.
    waiting: int | None


class Views(Struct, frozen=True):
    #: The visitor's own first.
    views: list[View]


@router.get("/views")
async def views(visit: Reading, workspace: str = "") -> Views:
    """The visitor's views, and those that others share with a workspace, each with the number of
    its calls.
    """
    seen = [one for one in await _seen(visit) if not workspace or one.workspace in {"", workspace}]
    return Views(views=await _counted(visit, seen, within(workspace)))


class NewView(ApiModel):
    """A view to be saved, in place of the visitor's view of that name if there is one."""

    model_config = example(name="Large refunds", q="tool:refund amount>100", sort="due")

    #: Its name, of 1 to 80 characters.
    name: str = ""
    #: The query; empty: all calls.
    q: str = ""
    #: The order, as of `GET /calls`.
    sort: str = ""
    #: `tool`, `agent`, `requester` or `rule`: such calls stand together.
    group: str = ""
    #: Everybody who may see this workspace sees the view; empty: only the visitor does.
    workspace: str = ""
    #: Whether it is the visitor's first page, in place of another one.
    first: bool = False
    #: Its name until now, if it is renamed.
    before: str = ""


@router.put("/views")
async def save(new: NewView, visit: Reading) -> SavedView:
    """Save a view in the visitor's own name."""
    author = visit.visitor.person
    if not author:
        raise NotAllowed("views are people's, and nobody vouches for the name of this visitor.")
    if new.workspace and not visit.visitor.sees(token("workspace", new.workspace)):
        raise NotAllowed(f"{new.workspace} is none of the workspaces that you may see.")
    view = SavedView(**new.model_dump(exclude={"before"}))
    await keep(
        visit, author, lambda kept: replace(kept, views=with_view(kept.views, view, new.before))
    )
    return view


@router.delete("/views")
async def remove(visit: Reading, name: str, author: str = "") -> SavedView:
    """Remove a view of one's own; or as an operator one that is shared with a workspace."""
    whose = plain(author or visit.visitor.person)
    found = [one for one in await _seen(visit) if (plain(one.author), one.name) == (whose, name)]
    if not found:
        of_whom = f" of {author}" if author else ""
        raise BadInput(f"there is no view {name!r}{of_whom} that you may see.")
    [view] = found
    if not view.own:
        visit.visitor.require(Role.OPERATOR)

    def left(kept: Kept) -> Kept:
        # Its author may have made it private meanwhile.
        gone = (name, view.workspace)
        views = tuple(one for one in kept.views if (one.name, one.workspace) != gone)
        return replace(kept, views=views)

    await keep(visit, view.author, left)
    return copied(SavedView, view)


async def _seen(visit: Visit) -> list[View]:
    """The views that the visitor may see, not counted; their own first."""
    me = plain(visit.visitor.person)
    found = [
        copied(
            View,
            one,
            first=one.first and key == me,
            author=kept.author,
            own=key == me,
            problem=one.flaw,
            waiting=None,
        )
        for key, kept in (await kept_for_all(visit)).items()
        for one in kept.views
        if (visit.visitor.sees(one.workspace) if one.workspace else key == me)
    ]
    return sorted(found, key=lambda one: (not one.own, one.author))


async def _counted(visit: Visit, seen: list[View], place: CallQuery) -> list[View]:
    """These views with the numbers of their calls in this place."""
    snoozed = await snoozed_of(visit)
    queries = {one: snoozed.left_out_of(one.query & place) for one in seen if not one.problem}
    if not queries:  # it would read all that waits
        return seen
    every = reduce(and_, queries.values(), ALL)
    mine = await mine_of(visit) if every.needs("mine") else None
    rests = await seen_by(
        visit.reading, visit.waiting.oldest(), every, mine=mine, snoozed=snoozed.holds
    )
    until = time.thread_time() + _COUNTING_S

    def waiting(one: View) -> int | None:
        if one not in queries or time.thread_time() > until:
            return None
        return visit.waiting.page(0, 0, queries[one], seen=rests).waiting

    return [replace(one, waiting=waiting(one)) for one in seen]
