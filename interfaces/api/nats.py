"""The HTTP API over NATS: a service with the API's own handlers (ADR-32).

    subject   approvals.<role>.<name>.<endpoint>         such as approvals.reviewer.ana.decide
              approvals.<role>.<name>.<scope>.<endpoint>
    request   {"call": "shop/order-17/refund-7", ...}    and the fields of the HTTP operation
    answer    the body of the HTTP response

The rules:

* **The broker says who asks.** A login may publish only below its own role, and a person only below
  their own name (`ops/broker/accounts.py`); the visitor is read from the subject, never from a
  payload. The names of all others are their own word: they make nobody a person (`Visitor.person`),
  and a service's is the author of what it records.
* **It also says where.** A login that may see some workspaces only may publish with these alone as
  its scope, joined by `+`, and the visitor has these. A person's own count too
  (`Visitor.as_person`).
* **One meaning.** A request is given to the handler of the HTTP operation, so both ways have the
  same checks, limits, answers and errors. An error is the problem (RFC 9457), with its status and
  sentence in the headers of ADR-32.
* **No answer is no yes.** If no console runs, the broker says so at once (no responders).

Each endpoint has the JSON Schemas of its requests and answers in its metadata.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
import nats.errors
from fastapi import FastAPI
from msgspec import Struct
from nats.aio.client import Client
from nats.micro.request import Request

from ayes.interfaces.problems import problem_of, respond
from ayes.ledger.nats.micro_service import one_line, registered
from ayes.ops.broker.accounts import API_SERVICE
from ayes.ops.visitors import Role, Visitor
from ayes.schemas import json_schema
from ayes.schemas.errors import ApprovalsError, BadInput, NotAllowed
from ayes.schemas.ids import token
from ayes.schemas.logs import get_logger
from ayes.schemas.slots import CallRef, StopRef, ThreadRef

_log: Final = get_logger("ayes.interfaces.api.nats")

#: The prefix of the API's paths.
PREFIX: Final = "/api/v1"
#: Requests of one login that are handled at once: those that wait, and all others.
_MAX_AT_ONCE: Final = 4_096
#: Bytes of a message around the body of an answer.
_ENVELOPE_BYTES: Final = 8_192
#: Characters of the sentence of an error in the header; its body has all of it.
_MAX_SAID: Final = 1_000
#: The roles that the broker knows, and what they are to the API.
_ROLES: Final = {
    "service": Role.SERVICE,
    "reviewer": Role.REVIEWER,
    "operator": Role.OPERATOR,
    "observer": Role.AUDITOR,
}


class Operation(NamedTuple):
    """The HTTP operation behind an endpoint."""

    method: str
    #: With `{call}`, `{thread}` or `{stop}` for the name in the request.
    path: str


class EndpointSchema(NamedTuple):
    """An endpoint as it describes itself: JSON Schemas (2020-12) without references outside."""

    description: str
    request: dict[str, Any]
    response: dict[str, Any]


ENDPOINTS: Final = {
    "request": Operation("PUT", "/calls/{call}"),
    "wait": Operation("GET", "/calls/{call}/decision"),
    "claim": Operation("POST", "/calls/{call}/claim"),
    "renew": Operation("POST", "/calls/{call}/renew"),
    "finish": Operation("POST", "/calls/{call}/finish"),
    "doubt": Operation("POST", "/calls/{call}/doubt"),
    "withdraw": Operation("POST", "/calls/{call}/withdraw"),
    "decide": Operation("POST", "/calls/{call}/votes"),
    "revoke": Operation("POST", "/calls/{call}/revoke"),
    "reconcile": Operation("POST", "/calls/{call}/reconcile"),
    "hand": Operation("POST", "/calls/{call}/hand"),
    "comment": Operation("POST", "/calls/{call}/comments"),
    "pending": Operation("GET", "/calls"),
    "show": Operation("GET", "/calls/{call}"),
    "views": Operation("GET", "/views"),
    "snoozed": Operation("GET", "/snoozed"),
    "say": Operation("POST", "/threads/{thread}/messages"),
    "history": Operation("GET", "/threads/{thread}/history"),
    "stops": Operation("GET", "/stops"),
    "stop": Operation("POST", "/stops"),
    "resume": Operation("POST", "/stops/{stop}/resume"),
}
#: What a path may name, and how requests name it.
_NAMED: Final[dict[str, type[CallRef | ThreadRef | StopRef]]] = {
    "call": CallRef,
    "thread": ThreadRef,
    "stop": StopRef,
}


class HttpReply(Struct, frozen=True):
    """An HTTP response."""

    status: int
    body: bytes


@asynccontextmanager
async def answering(
    client: Client, api: FastAPI, offered: Mapping[str, EndpointSchema]
) -> AsyncGenerator[None]:
    """Answer requests over this connection for as long as the block lasts.

    Args:
        api: the API's application, without a guard before it.
        offered: its endpoints.
    """
    handler = _Handler(client, api)
    description = "Request, wait for, decide, run and stop calls that need an approval."
    try:
        async with registered(client, API_SERVICE, description) as service:
            for name, described in offered.items():
                for asker in ("*.*", "*.*.*"):
                    await service.add_endpoint(
                        name=name,
                        subject=f"{API_SERVICE}.{asker}.{name}",
                        handler=handler.begin,
                        metadata={
                            "description": described.description,
                            "request_schema": json.dumps(described.request),
                            "response_schema": json.dumps(described.response),
                        },
                    )
            yield
    finally:
        # Once no request comes any more, or the last ones would never be answered.
        await handler.end()


class _Handler:
    """Handles each request in a task of its own, since one may wait for a minute."""

    def __init__(self, client: Client, api: FastAPI) -> None:
        self._client = client
        self._api = api
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = Counter[tuple[str, str, str, bool]]()

    async def begin(self, request: Request) -> None:
        _service, role, name, *scope, endpoint = request.subject.split(".")
        # A login has its places, under whatever names it asks; only a person's name is vouched for.
        holder = role, name if role == Role.REVIEWER else "", "".join(scope), endpoint == "wait"
        if self._held[holder] >= _MAX_AT_ONCE:
            busy = "too many requests at once. Nothing was recorded; try again in a moment."
            await self._respond(request, _failure(HTTPStatus.SERVICE_UNAVAILABLE, busy, 75))
            return
        task = asyncio.create_task(self._handle(request))
        self._tasks.add(task)
        self._held[holder] += 1

        def end(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._held[holder] -= 1

        task.add_done_callback(end)

    async def end(self) -> None:
        """Tell all who wait that they must ask again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(nats.errors.Error, TimeoutError):
            await self._client.flush(timeout=1)

    async def _handle(self, request: Request) -> None:
        try:
            trace = (request.headers or {}).get("traceparent", "")
            answer = await answer_to(self._api, request.subject, request.data or b"{}", trace)
        except asyncio.CancelledError:
            ending = "the console is ending. Nothing is lost; ask again."
            answer = _failure(HTTPStatus.SERVICE_UNAVAILABLE, ending, 75)
        except Exception:  # noqa: BLE001 - it is about this request alone
            _log.exception("a request failed", subject=request.subject)
            failed = "the request failed; the log of the console says why."
            answer = _failure(HTTPStatus.INTERNAL_SERVER_ERROR, failed, 1)
        if len(answer.body) > self._client.max_payload - _ENVELOPE_BYTES:
            large = f"the answer has {len(answer.body):,} bytes, too many for a message of NATS."
            answer = _failure(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{large} Read it over HTTP.", 2)
        # The requester may be gone, and the broker too: they ask again.
        with suppress(nats.errors.Error):
            await self._respond(request, answer)

    async def _respond(self, request: Request, answer: HttpReply) -> None:
        if answer.status < HTTPStatus.BAD_REQUEST:
            await request.respond(answer.body)
            return
        said = one_line(_Detail.of(answer.body))[:_MAX_SAID]
        await request.respond_error(str(answer.status), said, data=answer.body)


class _Detail(Struct):
    detail: str = "the request was refused."

    @classmethod
    def of(cls, body: bytes) -> str:
        """The sentence of a problem."""
        try:
            return msgspec.json.decode(body, type=cls).detail
        except msgspec.MsgspecError:
            return cls().detail


async def answer_to(api: FastAPI, subject: str, payload: bytes, trace: str = "") -> HttpReply:
    """Give a request to the handler of its HTTP operation.

    Args:
        trace: the `traceparent` of the request (W3C Trace Context).
    """
    try:
        _service, role, name, *named, endpoint = subject.split(".")
        workspaces = [token("workspace", one) for each in named for one in each.split("+")]
        roles = frozenset({_ROLES[role]})
        login = Visitor(token("visitor", name), roles, "token", tuple(workspaces))
        visitor = login.as_person(api.state.backend.people)
        if visitor is None:
            raise NotAllowed(
                f"{name} belongs to none of these workspaces: {', '.join(workspaces)}."
            )
        scope, body = _http(ENDPOINTS[endpoint], _fields(payload), visitor, trace)
    except KeyError as unknown:
        return _failure(HTTPStatus.NOT_FOUND, f"there is no {unknown} at {subject}.", 2)
    except ApprovalsError as problem:
        found = problem_of(problem)
        return HttpReply(found.status, msgspec.json.encode(found))
    return await _called(api, scope, body)


def _fields(payload: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise BadInput(f"the request is not a JSON object: {problem}.") from None


def _http(
    operation: Operation, fields: dict[str, Any], visitor: Visitor, trace: str
) -> tuple[dict[str, Any], bytes]:
    """The scope and the body of the HTTP request (ASGI)."""
    path, query, body = operation.path, b"", b""
    if name := _named(path):
        named, kind = fields.pop(name, None), _NAMED[name]
        if not isinstance(named, str):
            form = "/".join(kind.__struct_fields__)
            raise BadInput(f"the request names no {name}: give {name!r} as {form}.")
        path = path.replace(f"{{{name}}}", str(kind.parse(named)))
    if operation.method == "GET":
        query = urlencode(
            {name: value if isinstance(value, str) else json.dumps(value)
             for name, value in fields.items() if value is not None}
        ).encode()  # fmt: skip
    else:
        body = json.dumps(fields).encode()
    path = PREFIX + path
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": operation.method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": query,
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            *([(b"traceparent", trace.encode("latin-1", "replace"))] if trace else []),
        ],
        "client": None,
        "server": None,
        "state": {"visitor": visitor},
    }
    return scope, body


def _named(path: str) -> str:
    """What a path of `ENDPOINTS` names; empty if it names nothing."""
    return next((name for name in _NAMED if f"{{{name}}}" in path), "")


async def _called(api: FastAPI, scope: dict[str, Any], body: bytes) -> HttpReply:
    given: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": body, "more_body": False}
    ]
    status, chunks = 0, list[bytes]()

    async def receive() -> MutableMapping[str, Any]:
        if given:
            return given.pop()
        return await asyncio.Future()  # whoever asked over NATS does not hang up

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            chunks.append(message.get("body", b""))

    await api(scope, receive, send)
    return HttpReply(status, b"".join(chunks))


def _failure(status: HTTPStatus, detail: str, exit_code: int) -> HttpReply:
    kind = "Unavailable" if status == HTTPStatus.SERVICE_UNAVAILABLE else "BadInput"
    return HttpReply(status, bytes(respond(kind, status, detail, exit_code).body))


# ---------------------------------------------------------------------------------------- schemas


_REF: Final = "#/components/schemas/"


def endpoints(api: FastAPI) -> dict[str, EndpointSchema]:
    """The endpoints by name, as the OpenAPI document of the API has their operations."""
    document = api.openapi()
    return {name: _endpoint(document, one) for name, one in ENDPOINTS.items()}


def _endpoint(document: Mapping[str, Any], operation: Operation) -> EndpointSchema:
    path, name = operation.path, _named(operation.path)
    properties: dict[str, Any] = {}
    if name:
        parts = _NAMED[name].__struct_fields__
        path = path.replace(f"{{{name}}}", "/".join(f"{{{one}}}" for one in parts))
        properties[name] = {"type": "string", "description": f"As `{'/'.join(parts)}`."}
    required = [*properties]
    schemas = document["components"]["schemas"]
    described = document["paths"][PREFIX + path][operation.method.lower()]
    for parameter in described.get("parameters", ()):
        if parameter["in"] == "query":
            properties[parameter["name"]] = parameter["schema"]
    if content := described.get("requestBody"):
        schema = content["content"]["application/json"]["schema"]
        fields = schemas[schema["$ref"].removeprefix(_REF)]
        properties |= fields["properties"]
        required += fields.get("required", ())
    request = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    answered = described["responses"]["200"]["content"]["application/json"].get("schema", {})
    summary = described.get("description") or described["summary"]
    return EndpointSchema(
        " ".join(summary.partition("\n\n")[0].split()),
        json_schema.standalone(request, schemas, _REF),
        json_schema.standalone(answered, schemas, _REF),
    )
