"""The section `mcp` of the settings, which docs/settings.md shows.

What a client sends for itself, such as a token, is never passed on to a server.
"""

from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from ayes.schemas.durations import seconds
from ayes.schemas.settings import Names, Secret, Token, check_tokens_differ, lasting, named
from ayes.schemas.toml_files import TomlModel, check_names_differ, checked_token, mistake

_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: The longest wait of one request: a stricter limit of most clients comes before it.
MAX_HOLD_S: Final = 600


class ServerSettings(TomlModel):
    """An MCP server behind the gateway: a program over stdio, or a URL."""

    name: Annotated[str, named("server")]
    command: Names = ()
    environment: dict[str, Secret] = Field(default_factory=dict)
    url: str = ""
    headers: dict[str, Secret] = Field(default_factory=dict)
    #: Its tools that only clients of the tasks extension may call: nobody else could wait so long.
    task_only: Names = ()

    @field_validator("url")
    @classmethod
    def _is_safe(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and not parts.hostname:
            raise ValueError(f"{url!r} is not a URL. Write it as in https://shop.example/mcp.")
        if url and parts.scheme != "https" and parts.hostname not in _HERE:
            raise ValueError("it must begin with https://, since credentials are sent there.")
        return url

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ServerSettings":
        if bool(self.command) == bool(self.url):
            raise mistake("give either a command or a url.")
        if self.url and self.environment:
            raise mistake("environment is for a command; a url has headers.", "environment")
        if self.command and self.headers:
            raise mistake("headers are for a url; a command has an environment.", "headers")
        return self


class ClientSettings(TomlModel):
    """Who uses the gateway over HTTP, and the bearer token that shows it."""

    requester: Annotated[str, named("requester")]
    token: Token


class GatewaySettings(TomlModel):
    workspace: Annotated[str, named("name")]
    #: On whose behalf; never one of the reviewers of the calls.
    requester: Annotated[
        str, AfterValidator(lambda name: name and checked_token("requester", name))
    ] = ""
    thread: Annotated[str, named("name")] = "mcp"
    #: How long one request waits for people.
    hold: Annotated[
        str, lasting(1, MAX_HOLD_S, "a wait of 1s to 10m. Write it as in 50s or 4m.")
    ] = "50s"
    servers: Annotated[
        tuple[ServerSettings, ...], Field(strict=False, alias="server", min_length=1)
    ]
    clients: Annotated[tuple[ClientSettings, ...], Field(strict=False, alias="client")] = ()

    @field_validator("servers")
    @classmethod
    def _names_differ(cls, servers: tuple[ServerSettings, ...]) -> tuple[ServerSettings, ...]:
        check_names_differ("server", servers)
        return servers

    @field_validator("clients")
    @classmethod
    def _tokens_differ(cls, clients: tuple[ClientSettings, ...]) -> tuple[ClientSettings, ...]:
        check_tokens_differ("client", [one.token for one in clients])
        return clients

    @property
    def hold_s(self) -> float:
        return seconds(self.hold) or 0.0
