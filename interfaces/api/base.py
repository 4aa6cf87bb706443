"""What all resources of the API have in common: pydantic reads what comes in, structs go out.

A handler returns a struct, a list of structs or one of several structs; pages that call the handler
get it as it is. The comments before fields (`#: ...`) are their descriptions in the OpenAPI
document, of what comes in and of what goes out.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from types import UnionType
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI, Response
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, JsonValue
from pydantic_core import CoreSchema

from ayes.interfaces.responses import StructResponse
from ayes.schemas import json_schema

_REF: Final = "#/components/schemas/{name}"
#: What parameters are that have no description of their own.
_PARAMETERS: Final = {
    "after": "The cursor: `next` of the page before.",
    "all": "Also what was settled or dropped since.",
    "author": "The person who saved it; empty: the visitor.",
    "call": "As `workspace/thread/call`.",
    "digest": "The SHA-256 of its bytes.",
    "files": "Whether stored files come with their bytes.",
    "format": "The form of a provider: one of the conversation's `formats`.",
    "giver": "The person who gave it.",
    "group": "`tool`, `agent`, `requester` or `rule`: such calls stand together.",
    "idempotency-key": "Not needed. If it is there, it must be the name of the call.",
    "last-event-id": "The id of the last event that the client has.",
    "name": "Its name.",
    "number": "The number of the delivery.",
    "q": "What is searched, such as `tool:refund amount>100`; empty: all calls.",
    "secrets": "Whether what its tool declares as secret is shown, to whoever may see it.",
    "shown": "The call that a page shows, as `workspace/thread/call`; empty: none.",
    "sort": "`age`, `due` or `field:` and an argument; with a `-` before it, the other way round.",
    "standing": "Only grants of this status; empty: all.",
    "status": "As it is now; `decided` for all calls that are decided.",
    "thread": "As `workspace/thread`; empty: all.",
    "timeout_s": "How long to wait for the decision, in seconds.",
    "token": "The end of the link.",
    "workspace": "The name of a workspace; empty: all.",
}


class ApiModel(BaseModel):
    """The base of what the API accepts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        json_schema.describe(handler.resolve_ref_schema(schema), cls)
        return schema


class Reason(ApiModel):
    reason: str = ""


def example(**fields: JsonValue) -> ConfigDict:
    """The configuration of a model with an example in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class ApiRouter(APIRouter):
    """Routes to handlers that return structs; or a response, which is sent as it is."""

    def __init__(self, *, tags: list[str]) -> None:
        super().__init__(tags=[*tags])
        #: What the handlers return.
        self.answers: list[Any] = []

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        answer = inspect.signature(endpoint).return_annotation
        if isinstance(answer, type) and issubclass(answer, Response):
            super().add_api_route(path, endpoint, **options)
            return
        kinds = answer.__args__ if isinstance(answer, UnionType) else (answer,)
        self.answers += kinds
        refs, _ = msgspec.json.schema_components(kinds, ref_template=_REF)
        content = {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}

        @wraps(endpoint)
        async def encoded(*args: Any, **named: Any) -> StructResponse:
            return StructResponse(await endpoint(*args, **named))

        options |= {
            "response_model": None,
            "response_class": StructResponse,
            "responses": {200: {"content": content}},
        }
        super().add_api_route(path, encoded, **options)


class HttpApi(FastAPI):
    """An application whose OpenAPI document has the schemas of structs.

    Args:
        answers: what its handlers return.
    """

    def __init__(self, answers: Iterable[Any], **options: Any) -> None:
        super().__init__(**options)
        self._answers = list(answers)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            for path in document["paths"].values():
                for operation in path.values():
                    for parameter in operation.get("parameters", ()):
                        _describe_parameter(parameter)
            found = json_schema.schemas(self._answers, _REF)
            for schema in found.values():
                _has_all_fields(schema)
            known = document.setdefault("components", {}).setdefault("schemas", {})
            document["components"]["schemas"] = dict(sorted((found | known).items()))
        return self.openapi_schema or {}


def _has_all_fields(schema: dict[str, Any]) -> None:
    """An answer has every field, also those that have their defaults, and no other."""
    if fields := schema.get("properties", {}):
        for one in fields.values():
            one.pop("default", None)
        schema |= {"required": list(fields), "additionalProperties": False}


def _describe_parameter(parameter: dict[str, Any]) -> None:
    name, schema = parameter["name"], parameter["schema"]
    if "description" not in schema:
        own = {} if parameter["in"] == "path" and name in {"workspace", "thread"} else _PARAMETERS
        text = own.get(name) or json_schema.EVERYWHERE.get(name, "")
        parameter["description"] = schema["description"] = text
