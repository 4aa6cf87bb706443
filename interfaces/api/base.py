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
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, JsonValue
from pydantic_core import CoreSchema

from ayes.schemas import json_schema

_REF: Final = "#/components/schemas/{name}"


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


def example(**fields: JsonValue) -> ConfigDict:
    """The configuration of a model with an example in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class StructResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


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


class Api(FastAPI):
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
