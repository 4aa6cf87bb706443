"""The application: the API, the pages, and what guards both."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from ayes.ops.console import problems
from ayes.ops.console.api import (
    calls,
    context,
    counts,
    decided,
    edits,
    events,
    grants,
    links,
    operations,
    policies,
    requests,
    threads,
    tools,
    votes,
)
from ayes.ops.console.backend import Backend
from ayes.ops.console.pages import bulk, conversations, doubt, policy, sign_in, waiting
from ayes.ops.console.pages import calls as call_pages
from ayes.ops.console.pages import decided as decided_page
from ayes.ops.console.pages import grants as grants_page
from ayes.ops.console.pages import links as links_page
from ayes.ops.console.pages import operations as operations_page
from ayes.ops.console.pages.problem import readable
from ayes.ops.console.pages.rendering import navigation
from ayes.ops.console.security import Guard, Security
from ayes.ops.console.traced import Traced
from ayes.schemas.errors import ApprovalsError

_HERE: Final = Path(__file__).parent
#: The resources of the API, and the pages.
_API: Final = (
    calls,
    context,
    counts,
    decided,
    edits,
    events,
    grants,
    links,
    operations,
    policies,
    requests,
    threads,
    tools,
    votes,
)
_PAGES: Final = (
    bulk,
    call_pages,
    conversations,
    decided_page,
    doubt,
    grants_page,
    links_page,
    operations_page,
    policy,
    sign_in,
    waiting,
)


def application(backend: Backend, security: Security) -> FastAPI:
    """The application on open connections."""
    app = FastAPI(
        title="ayes",
        version="1",
        description="Approvals for AI agents: request, wait, vote, claim, finish, and the record.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.state.backend = backend
    app.state.security = security
    app.add_middleware(Traced)  # behind the guard: nobody else's context is believed
    app.add_middleware(Guard, security=security)
    app.add_exception_handler(ApprovalsError, readable(problems.on_error))
    app.add_exception_handler(RequestValidationError, readable(problems.on_bad_request))
    app.add_exception_handler(HTTPException, readable(problems.on_http_error))
    for resource in _API:
        app.include_router(resource.router, prefix="/api/v1", responses=problems.RESPONSES)
    for page in _PAGES:
        app.include_router(page.router, include_in_schema=False, dependencies=[Depends(navigation)])
    # Pages are not compressed: their length would tell about the secrets in them (BREACH).
    app.mount("/static", GZipMiddleware(StaticFiles(directory=_HERE / "static")), name="static")
    return app


def _operation_id(route: APIRoute) -> str:
    """Such as `votes_revoke`, from which programs make the names of a client's methods."""
    return "_".join((*map(str, route.tags[:1]), route.name))


@asynccontextmanager
async def console(
    security: Security, archive: Path | None = None, link_key: Path | None = None
) -> AsyncGenerator[FastAPI]:
    """The application for the broker of a store, for as long as the block lasts.

    Args:
        archive: where the lake is; by default in the store. It need not be there.
        link_key: the file of the key of links, if it is not in the store.
    """
    opening = Backend.connect(security.access.store.path, archive=archive, link_key=link_key)
    async with opening as backend:
        yield application(backend, security)
