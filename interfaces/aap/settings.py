"""The section `aap` of the settings, which docs/settings.md shows."""

from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from ayes.schemas.durations import seconds
from ayes.schemas.settings import Token, check_tokens_differ, lasting, named
from ayes.schemas.toml_files import TomlModel, check_names_differ

#: The longest time without an outcome.
_MAX_OUTCOME_S: Final = 30 * 86_400


class InstanceSettings(TomlModel):
    """An agent, as AAP's *instance*: its name in the ledger, and the token that shows who it is."""

    name: Annotated[str, named("name")]
    requester: Annotated[str, named("name")]
    token: Token


class ProvisionerSettings(TomlModel):
    """A program that makes instances over HTTP, and on whose behalf these ask."""

    requester: Annotated[str, named("name")]
    token: Token


class ProviderSettings(TomlModel):
    workspace: Annotated[str, named("workspace")]
    #: A tool of which nothing is heard for so long is in doubt.
    outcome_within: Annotated[
        str, lasting(1, _MAX_OUTCOME_S, "a time of 1s to 30d. Write it as in 15m or 1h.")
    ] = "1h"
    #: Whether webhooks may go to this machine and its network.
    allow_private: bool = False
    instances: Annotated[tuple[InstanceSettings, ...], Field(strict=False, alias="instance")] = ()
    provisioners: Annotated[
        tuple[ProvisionerSettings, ...], Field(strict=False, alias="provisioner")
    ] = ()

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
