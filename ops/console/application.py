"""The application: the API, the pages, and what guards both."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from ayes.ops.console import problems
from ayes.ops.console.api import calls, counts, grants, operations, policies, threads, tools, votes
from ayes.ops.console.backend import Backend
from ayes.ops.console.pages import conversations, waiting
from ayes.ops.console.pages import grants as grants_page
from ayes.ops.console.pages import operations as operations_page
from ayes.ops.console.pages import policy as policy_page
from ayes.ops.console.pages.rendering import navigation
from ayes.schemas.errors import ApprovalsError

_HERE: Final = Path(__file__).parent
#: The resources of the API, and the pages.
_API: Final = (calls, counts, grants, operations, policies, threads, tools, votes)
_PAGES: Final = (conversations, grants_page, operations_page, policy_page, waiting)


def application(backend: Backend) -> FastAPI:
    """The application on open connections."""
    app = FastAPI(
        title="ayes",
        version="1",
        description="Approvals for AI agents: request, wait, vote, claim, finish, and the record.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.backend = backend
    app.add_exception_handler(ApprovalsError, problems.on_error)
    app.add_exception_handler(RequestValidationError, problems.on_bad_request)
    app.add_exception_handler(HTTPException, problems.on_http_error)
    for resource in _API:
        app.include_router(resource.router, prefix="/api/v1")
    for page in _PAGES:
        app.include_router(page.router, include_in_schema=False, dependencies=[Depends(navigation)])
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    return app


@asynccontextmanager
async def console(store: Path | str | None = None) -> AsyncGenerator[FastAPI]:
    """The application for the broker of this store, for as long as the block lasts."""
    async with Backend.connect(store) as backend:
        yield application(backend)
