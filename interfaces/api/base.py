"""What all models of the API have in common."""

from pydantic import BaseModel, ConfigDict, JsonValue


class ApiModel(BaseModel):
    """The base of all. Docstrings below fields are their descriptions in the OpenAPI document."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, from_attributes=True, use_attribute_docstrings=True
    )


def example(**fields: JsonValue) -> ConfigDict:
    """The configuration of a model with an example in the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": [fields]})
