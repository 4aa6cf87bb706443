"""Views: searches of pending calls that people have saved, each for its author or for a workspace.

They are in a bucket of the broker that the console's login alone may read and write
(docs/decisions/0081).
"""

import time
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ayes.interfaces.api.backend import jetstream
from ayes.interfaces.api.base import ApiModel, ApiRouter, example
from ayes.interfaces.api.identity import Reading, Role, Visit
from ayes.interfaces.api.mine import mine_of
from ayes.interfaces.api.queries import within
from ayes.ledger.log import Bucket
from ayes.ops.actions.searching import seen_by
from ayes.projections.call_query import ALL, CallQuery
from ayes.projections.saved_views import SavedView, SavedViews, with_view
from ayes.projections.views.copied import copied
from ayes.schemas.errors import BadInput, BrokerAway, NotAllowed
from ayes.schemas.ids import token
from ayes.schemas.people import plain

router: Final = ApiRouter(tags=["views"])

#: The time of this process for counting; views that are left then have no number.
_COUNTING_S: Final = 0.2

_decoder: Final = msgspec.json.Decoder(SavedViews)


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
    await _change(visit, author, lambda saved: with_view(saved, view, new.before))
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

    def left(saved: Sequence[SavedView]) -> Sequence[SavedView]:
        # Its author may have made it private meanwhile.
        return [one for one in saved if (one.name, one.workspace) != (name, view.workspace)]

    await _change(visit, view.author, left)
    return copied(SavedView, view)


async def _seen(visit: Visit) -> list[View]:
    """The views that the visitor may see, not counted; their own first."""
    me, bucket = plain(visit.visitor.person), await _bucket(visit)
    found = [
        copied(
            View,
            one,
            first=one.first and key == me,
            author=saved.author,
            own=key == me,
            problem=one.flaw,
            waiting=None,
        )
        for key, raw in (await bucket.entries()).items()
        if (saved := _read(visit, key, raw)) is not None
        for one in saved.views
        if (visit.visitor.sees(one.workspace) if one.workspace else key == me)
    ]
    return sorted(found, key=lambda one: (not one.own, one.author))


async def _counted(visit: Visit, seen: list[View], place: CallQuery) -> list[View]:
    """These views with the numbers of their calls in this place."""
    queries = [one.query & place for one in seen if not one.problem]
    if not queries:  # it would read all that waits
        return seen
    every = reduce(and_, queries, ALL)
    mine = await mine_of(visit) if every.needs_reader else None
    rests = await seen_by(visit.reading, visit.waiting.oldest(), every, mine=mine)
    until = time.thread_time() + _COUNTING_S

    def waiting(one: View) -> int | None:
        if one.problem or time.thread_time() > until:
            return None
        return visit.waiting.page(0, 0, one.query & place, seen=rests).waiting

    return [replace(one, waiting=waiting(one)) for one in seen]


async def _change(
    visit: Visit, author: str, change: Callable[[Sequence[SavedView]], Sequence[SavedView]]
) -> None:
    """Replace the views of a person; anew if somebody else has replaced them meanwhile."""
    key, bucket, is_saved = token("person", plain(author)), await _bucket(visit), False
    while not is_saved:
        raw, revision = await bucket.get(key)
        saved = _read(visit, key, raw)
        views = tuple(change(saved.views if saved else ()))
        document = SavedViews(author, await visit.backend.reading.log.clock(), views)
        is_saved = await bucket.put(key, msgspec.json.encode(document), revision)


def _read(visit: Visit, key: str, raw: bytes) -> SavedViews | None:
    """The views of a person; None if there are none, or an earlier holder of the name saved them.

    Raises:
        BrokerAway: it is not known yet who holds which name.
    """
    if visit.backend.people is None:
        raise BrokerAway("it is not known yet who is a person. Try again in a moment.")
    try:
        saved = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    since = visit.backend.people.since(key)
    return saved if since is None or saved.saved_at > since else None


async def _bucket(visit: Visit) -> Bucket:
    return jetstream(await visit.backend.recording()).bucket("views")
