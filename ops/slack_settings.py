"""The section `slack` of the settings, which docs/settings.md shows, and the worker made of it."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from pydantic import ValidationInfo, field_validator, model_validator

from ayes.ledger.nats.credentials import Store
from ayes.ledger.nats.link_key import link_key as key_of_links
from ayes.ops.tokens import AccessFile
from ayes.schemas.errors import BadInput
from ayes.schemas.settings import Secret
from ayes.schemas.toml_files import TomlModel

if TYPE_CHECKING:
    from ayes.consumers.slack.questions import SlackQuestions

INSTALL: Final = "pip install 'ayes[slack]'"
_BEGINS: Final = {"app_token": "xapp-", "bot_token": "xoxb-"}
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class SlackSettings(TomlModel):
    #: With the scope connections:write; it opens the socket.
    app_token: Secret
    #: With the scopes of docs/telling.md.
    bot_token: Secret
    api_url: str = "https://slack.com/api/"

    @field_validator("app_token", "bot_token")
    @classmethod
    def _is_the_right_one(cls, token: str, info: ValidationInfo) -> str:
        wanted = _BEGINS[str(info.field_name)]
        if not token.startswith(wanted):
            # Without citing it: it may be another secret.
            raise ValueError(f"it must begin with {wanted}.")
        return token

    @field_validator("api_url")
    @classmethod
    def _is_safe(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme != "https" and parts.hostname not in _HERE:
            raise ValueError("it must begin with https://, since the tokens are sent there.")
        return f"{url.rstrip('/')}/"

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        if not all(map(find_spec, ("slack_bolt", "aiohttp", "cryptography"))):
            raise BadInput(f"the worker slack is not installed: {INSTALL}.")
        return self


def slack_of(
    place: Path | None, found: SlackSettings, console_url: str, link_key: Path | None
) -> "SlackQuestions":
    """The worker with its settings.

    Raises:
        BadInput, BadFile: as of `link_key`.
    """
    from ayes.consumers.slack.api import SlackApi
    from ayes.consumers.slack.questions import SlackQuestions

    store = Store(place)
    access = AccessFile(store)
    return SlackQuestions(
        SlackApi(found.bot_token, found.app_token, found.api_url),
        key_of_links(store, link_key),
        lambda: console_url or access.console_url(),  # the console may start later, or move
    )
