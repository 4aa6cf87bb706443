"""Rendering templates. Nothing from an agent is ever HTML: every value is escaped."""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, FileSystemLoader

from ayes.interfaces.api import counts
from ayes.interfaces.api.backend import InBackend
from ayes.interfaces.api.counts import HeaderCounts
from ayes.interfaces.api.identity import Role, Visit, Visitor
from ayes.interfaces.api.mine import is_asked
from ayes.interfaces.problems import status_of
from ayes.ledger.descriptions import class_words, describe_undoing
from ayes.projections.display.texts import joined, text_of
from ayes.projections.display.values import MAX_PICTURE, in_brief
from ayes.schemas.errors import ApprovalsError
from ayes.schemas.sizes import size
from ayes.schemas.slots import ORGANISATION
from ayes.schemas.times import duration
from ayes.schemas.visible import flags, visible

_HERE: Final = Path(__file__).parent


type Handler = Callable[[Request, Exception], Awaitable[JSONResponse]]

#: In place of what htmx was to replace: a message above the page, which stays as it is.
_AS_MESSAGE: Final = {"HX-Retarget": "#messages", "HX-Reswap": "innerHTML"}


class Place(NamedTuple):
    """A link of the navigation."""

    name: str
    text: str
    path: str
    #: The letter that goes there, after `g`.
    key: str


#: In their order; on a phone the first four stand at the bottom, and the others under More.
PLACES: Final = (
    Place("waiting", "Waiting", "/", "w"),
    Place("mine", "Mine", "/?q=is:mine", "m"),
    Place("doubt", "In doubt", "/doubt", "i"),
    Place("decided", "Decided", "/decided", "d"),
    Place("conversations", "Conversations", "/conversations", "c"),
    Place("grants", "Grants", "/grants", "g"),
    Place("stops", "Stops", "/stops", "s"),
    Place("policy", "Policy", "/policy", "p"),
    Place("operations", "Operations", "/operations", "o"),
)


async def navigation(request: Request, backend: InBackend) -> None:
    """Find what the header of a page shows, and the last fact that all of it includes. A dependency
    of every page.

    There are no counts while the broker is away, and before anybody signs in.
    """
    request.state.seq = backend.feed.position
    visitor: Visitor | None = getattr(request.state, "visitor", None)
    if visitor and not is_fragment(request):
        with suppress(ApprovalsError):
            visit = Visit(request, visitor, backend)
            request.state.counts = await counts.counts(visit, workspace_of(request))
            request.state.is_asked = await is_asked(visit)


def page(
    visit: Visit, name: str, problem: ApprovalsError | None = None, **values: Any
) -> HTMLResponse:
    """The page of this template; after a problem, with its status."""
    answer = framed(visit.request, name, visit.visitor, problem=problem and str(problem), **values)
    if problem:
        answer.status_code = status_of(problem)
    return answer


def framed(request: Request, name: str, visitor: Visitor | None, **values: Any) -> HTMLResponse:
    """The page of this template; one without a visitor has no navigation."""
    workspace = workspace_of(request)
    frame = {
        "visitor": visitor,
        "is_reviewer": visitor is not None and Role.REVIEWER in visitor.roles,
        "is_operator": visitor is not None and Role.OPERATOR in visitor.roles,
        "workspace": workspace,
        "theme": _theme(request),
        "is_asked": getattr(request.state, "is_asked", True),
        "to_do": getattr(request.state, "counts", HeaderCounts()),
        "seq": getattr(request.state, "seq", None),
        "is_live": request.method == "GET",
        "places": [
            place._replace(path=_within(place.path, workspace))
            for place in PLACES
            if place.name != "operations" or not (visitor and visitor.workspaces)
        ],
        "workspace_path": lambda one: _elsewhere(request, one),
    }
    return _templates.TemplateResponse(request, name, frame | values)


def readable(handler: Handler) -> Callable[[Request, Exception], Awaitable[Response]]:
    """The same answers, as pages where a page was asked for."""

    async def answer(request: Request, problem: Exception) -> Response:
        return shown(request, await handler(request, problem))

    return answer


def shown(request: Request, found: JSONResponse) -> Response:
    """This answer, as a page where a page was asked for."""
    if request.url.path.startswith("/api/"):
        return found
    name = "_problem.html" if is_fragment(request) else "problem.html"
    visitor = getattr(request.state, "visitor", None)
    answer = framed(request, name, visitor, problem=json.loads(bytes(found.body)))
    answer.status_code = found.status_code
    answer.headers.update(_AS_MESSAGE if is_fragment(request) else {})
    return answer


def is_fragment(request: Request) -> bool:
    """Whether htmx asks, which replaces a part of a page."""
    return "HX-Request" in request.headers


def workspace_of(request: Request) -> str:
    """The workspace that the reader has chosen in the header; empty for all of them."""
    if not request.url.path.startswith("/policy/"):
        return request.query_params.get("workspace", "")
    named: str = request.path_params.get("workspace", "")
    return "" if named == ORGANISATION else named


def _within(path: str, workspace: str) -> str:
    if not workspace:
        return path
    if path == "/policy":
        return f"/policy/{workspace}"
    return f"{path}{'&' if '?' in path else '?'}{urlencode({'workspace': workspace})}"


def _elsewhere(request: Request, workspace: str) -> str:
    """The page that the reader is on, for another workspace; of a single call or thread, the list.

    A place in a list, and a thread, belong to a workspace, and are left behind.
    """
    first = request.url.path.split("/")[1]
    known = {place.path.split("?")[0] for place in PLACES}
    path = f"/{first}" if f"/{first}" in known else "/"
    kept = {
        name: value
        for name, value in request.query_params.items()
        if name not in {"workspace", "after"} and not (name == "q" and _OF_PLACE.search(value))
    }
    path += f"?{urlencode(kept)}" if kept and path == request.url.path else ""
    return _within(path, workspace)


#: A word of a query about a place.
_OF_PLACE: Final = re.compile(r"\b(workspace|thread|call):")


def address(given: Mapping[str, str]) -> str:
    """A query string, without what is empty but for the query: a list without any of them is the
    reader's first page.
    """
    return urlencode({name: one for name, one in given.items() if one or name == "q"})


def _theme(request: Request) -> str:
    """The theme that the reader has chosen; empty: as the system has it."""
    found = request.cookies.get("theme", "")
    return found if found in {"light", "dark"} else ""


@lru_cache
def asset(name: str) -> str:
    """The path of a static file, with a hash of it: the browser may keep it for ever."""
    digest = hashlib.sha256((_HERE / "static" / name).read_bytes()).hexdigest()
    return f"/static/{name}?v={digest[:12]}"


class _Unindented(FileSystemLoader):
    """Templates without the spaces that lines begin with, a tenth of a long list. One stays behind
    a tag or comment of Jinja, which takes the line break away. In HTML that is the same; in a `pre`
    no line of a template begins with any.
    """

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        source, name, is_current = super().get_source(environment, template)
        source = re.sub(r"^ +", " ", source, flags=re.MULTILINE)
        return re.sub(r"(?<![%#]\}\n)^ ", "", source, flags=re.MULTILINE), name, is_current


_templates: Final = Jinja2Templates(_HERE / "templates")
_templates.env.loader = _Unindented(_HERE / "templates")
_templates.env.trim_blocks = _templates.env.lstrip_blocks = True
_templates.env.globals["asset"] = asset
_templates.env.globals["text_of"] = text_of
_templates.env.globals["max_picture"] = MAX_PICTURE
_templates.env.globals["joined"] = joined
_templates.env.globals["size"] = size
_templates.env.filters["visible"] = visible
_templates.env.filters["address"] = address
_templates.env.filters["in_brief"] = in_brief
_templates.env.filters["duration"] = duration
_templates.env.filters["flags"] = flags
_templates.env.filters["undoing"] = describe_undoing
_templates.env.filters["class_words"] = class_words
