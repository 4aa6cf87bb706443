"""The application: the API, the pages, and what guards both."""

import asyncio
import pkgutil
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import State
from starlette.exceptions import HTTPException

from ayes.consumers.supervision import keep_running
from ayes.interfaces import api as resources
from ayes.interfaces import problems
from ayes.interfaces.access.security import Guard, Security
from ayes.interfaces.access.traced import Traced
from ayes.interfaces.api.backend import Backend, jetstream
from ayes.interfaces.api.base import ApiRouter, HttpApi
from ayes.interfaces.api.nats import EndpointSchema, answering, endpoints
from ayes.interfaces.console import pages
from ayes.interfaces.console.rendering import navigation, readable, shown
from ayes.ledger.clients.services import Ledger
from ayes.ledger.trust import Trust
from ayes.ops.broker.accounts import API
from ayes.schemas.errors import ApprovalsError

_HERE: Final = Path(__file__).parent


def _routers(package: ModuleType) -> list[Any]:
    """Those of its modules, by their names."""
    found = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    modules = [import_module(one.name) for one in found]
    return [one.router for one in modules if hasattr(one, "router")]


#: The resources of the API, and the pages.
_API: Final[list[ApiRouter]] = _routers(resources)
_PAGES: Final[list[APIRouter]] = _routers(pages)


def application(backend: Backend, security: Security) -> FastAPI:
    """The application on open connections: the API and the pages, behind the guard."""
    app = _of(_with_pages(), backend)
    app.state.security = security
    security.people = lambda: backend.people
    app.add_middleware(Guard, security=security, shown=shown)
    return app


def api(backend: Backend | None = None) -> FastAPI:
    """The API alone, for requests whose visitor is known. Without a backend it describes itself."""
    return _of(_api_alone(), backend)


def _of(made: FastAPI, backend: Backend | None) -> FastAPI:
    """An application on this backend with the routes of `made`. They are the same for every
    backend, and FastAPI takes 0.1 s to compile them.
    """
    app = copy(made)
    app.state = State({"backend": backend})
    app.user_middleware = [*made.user_middleware]
    return app


@cache
def _with_pages() -> FastAPI:
    app = _routed()
    for page in _PAGES:
        app.include_router(page, include_in_schema=False, dependencies=[Depends(navigation)])
    # Pages are not compressed: their length would tell about the secrets in them (BREACH).
    app.mount("/static", GZipMiddleware(StaticFiles(directory=_HERE / "static")), name="static")
    return app


@cache
def _api_alone() -> FastAPI:
    return _routed()


def _routed() -> FastAPI:
    """An application with the routes of the API."""
    app = HttpApi(
        [answer for resource in _API for answer in resource.answers],
        title="ayes",
        version="1",
        description="Approvals for AI agents: request, wait, vote, claim, finish, and the record.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.add_middleware(Traced)  # behind the guard: nobody else's context is believed
    app.add_exception_handler(ApprovalsError, readable(problems.on_error))
    app.add_exception_handler(RequestValidationError, readable(problems.on_bad_request))
    app.add_exception_handler(HTTPException, readable(problems.on_http_error))
    for resource in _API:
        app.include_router(resource, prefix="/api/v1", responses=problems.RESPONSES)
    return app


@cache
def described() -> dict[str, EndpointSchema]:
    """What the API offers over NATS. It is the same for every backend, and takes 0.3 s to make."""
    return endpoints(api())


def _operation_id(route: APIRoute) -> str:
    """Such as `votes_revoke`, from which programs make the names of a client's methods."""
    return "_".join((*map(str, route.tags[:1]), route.name))


@asynccontextmanager
async def console(
    security: Security,
    archive: Path | None = None,
    link_key: Path | None = None,
    trust: Trust | None = None,
) -> AsyncGenerator[FastAPI]:
    """The application for the broker of a store, for as long as the block lasts. Meanwhile the API
    is served over NATS too, if the store has the login for it.

    Args:
        archive: where the lake is; by default in the store. It need not be there.
        link_key: the file of the key of links, if it is not in the store.
        trust: by what signatures are judged.
    """
    store = security.access.store
    opening = Backend.connect(
        store.path, archive=archive, link_key=link_key, on_removed=security.end_visits
    )
    async with opening as backend, AsyncExitStack() as running:
        await backend.reading.trust_in(trust)
        if store.has_login(API):
            over_nats = keep_running("the API over NATS", partial(_over_nats, backend), ends=())
            await running.enter_async_context(_in_background(over_nats))
        yield application(backend, security)


async def _over_nats(backend: Backend) -> None:
    async with (
        Ledger.connect(backend.store.path, role=API, timeout_s=None) as ledger,
        answering(jetstream(ledger).connection.client, api(backend), described()),
    ):
        await asyncio.Future()


@asynccontextmanager
async def _in_background(work: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    task = asyncio.create_task(work, name="the API over NATS")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
