"""The section `aap` of the settings, which docs/settings.md shows."""

from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from ayes.schemas.durations import seconds
from ayes.schemas.settings import Token, check_tokens_differ
from ayes.schemas.toml_files import (
    TomlModel,
    check_names_differ,
    checked_token,
)

#: The longest time without an outcome.
_MAX_OUTCOME_S: Final = 30 * 86_400


class InstanceSettings(TomlModel):
    """An agent, as AAP's *instance*: its name in the ledger, and the token that shows who it is."""

    name: str
    requester: str
    token: Token

    @field_validator("name", "requester")
    @classmethod
    def _is_token(cls, value: str) -> str:
        return checked_token("name", value)


class ProvisionerSettings(TomlModel):
    """A program that makes instances over HTTP, and on whose behalf these ask."""

    requester: str
    token: Token

    @field_validator("requester")
    @classmethod
    def _is_token(cls, value: str) -> str:
        return checked_token("name", value)


class ProviderSettings(TomlModel):
    workspace: str
    #: A tool of which nothing is heard for so long is in doubt.
    outcome_within: str = "1h"
    #: Whether webhooks may go to this machine and its network.
    allow_private: bool = False
    instances: Annotated[tuple[InstanceSettings, ...], Field(strict=False, alias="instance")] = ()
    provisioners: Annotated[
        tuple[ProvisionerSettings, ...], Field(strict=False, alias="provisioner")
    ] = ()

    @field_validator("workspace")
    @classmethod
    def _is_token(cls, value: str) -> str:
        return checked_token("workspace", value)

    @field_validator("outcome_within")
    @classmethod
    def _is_duration(cls, value: str) -> str:
        if not 1 <= (seconds(value) or 0) <= _MAX_OUTCOME_S:
            raise ValueError(f"{value!r} is not a time of 1s to 30d. Write it as in 15m or 1h.")
        return value

    @field_validator("instances")
    @classmethod
    def _names_differ(cls, instances: tuple[InstanceSettings, ...]) -> tuple[InstanceSettings, ...]:
        check_names_differ("instance", instances)
        return instances

    @model_validator(mode="after")
    def _somebody_asks(self) -> Self:
        if not self.instances and not self.provisioners:
            raise ValueError("nobody may ask. Add an [[aap.instance]] or a [[aap.provisioner]].")
        tokens = [one.token for one in self.instances]
        check_tokens_differ("agent", tokens + [one.token for one in self.provisioners])
        return self

    @property
    def outcome_within_s(self) -> float:
        return seconds(self.outcome_within) or 0.0
