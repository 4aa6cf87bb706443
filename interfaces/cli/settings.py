"""`ayes.toml`, the settings of every program: the one place that reads a file of them.

Below the command line each part is given the value of its section. docs/settings.md shows them all.
"""

from collections.abc import Iterable
from pathlib import Path

from ayes.consumers.absence.schedules import OnCallBySchedule
from ayes.consumers.absence.worker import AbsenceByPerson
from ayes.consumers.delegator import SubAgents
from ayes.consumers.notices.channels import ChannelsByName
from ayes.interfaces.aap.settings import ProviderSettings
from ayes.interfaces.access.openid import OpenIdSettings
from ayes.interfaces.mcp.settings import GatewaySettings
from ayes.ledger import trust
from ayes.ledger.nats.credentials import Store
from ayes.ledger.thread_keys import ThreadKeys
from ayes.ledger.trust import Trust, read_trust
from ayes.ops.sealing.bucket import CopySettings
from ayes.ops.sealing.witnesses import SealSettings
from ayes.ops.slack_settings import SlackSettings
from ayes.schemas.errors import BadInput
from ayes.schemas.files import is_there
from ayes.schemas.settings import NAME, Sections, read_settings
from ayes.schemas.toml_files import TomlModel


class ConsoleSettings(TomlModel):
    #: Where people open the console, if a proxy with TLS stands before it; messages link there.
    url: str = ""
    #: Where interfaces/sign.html is, on another origin: votes are signed there.
    sign_page: str = ""


class TrustSettings(TomlModel):
    #: The trust file, beside the settings.
    file: str = trust.NAME


class SecretsSettings(TomlModel):
    #: The directory of the keys of threads, outside of the store; a relative path begins beside the
    #: settings.
    directory: str


class Settings(Sections):
    console: ConsoleSettings | None = None
    openid: OpenIdSettings | None = None
    notices: ChannelsByName | None = None
    slack: SlackSettings | None = None
    sub_agents: SubAgents | None = None
    absence: AbsenceByPerson | None = None
    oncall: OnCallBySchedule | None = None
    mcp: GatewaySettings | None = None
    aap: ProviderSettings | None = None
    seal: SealSettings | None = None
    copies: CopySettings | None = None
    trust: TrustSettings | None = None
    secrets: SecretsSettings | None = None

    @property
    def console_url(self) -> str:
        return self.console.url if self.console else ""

    @property
    def sign_page(self) -> str:
        return self.console.sign_page if self.console else ""

    def first_of(self, sections: Iterable[str]) -> object | None:
        """The first of these sections that is there."""
        return next((found for one in sections if (found := getattr(self, one))), None)


def settings_of(store: Path | None, given: Path | None, *wanted: str) -> Settings:
    """These sections of the file that was named, or of the store's file; empty without a file.

    Raises:
        BadFile: as of `read_settings`.
    """
    file = place_of(store, given)
    if given is None and not is_there(file):
        return Settings.model_construct()
    return read_settings(Settings, file, wanted)


def place_of(store: Path | None, given: Path | None) -> Path:
    return given or Store(store).path / NAME


def trust_of(store: Path | None, given: Path | None) -> Trust | None:
    """The trust file that the settings name; None: they name none.

    Raises:
        BadFile: it, or the settings, have a mistake.
    """
    said = settings_of(store, given, "trust").trust
    return read_trust(place_of(store, given).parent / said.file) if said else None


def thread_keys_of(store: Path | None, given: Path | None) -> ThreadKeys | None:
    """The directory of keys that the settings name; None: they name none.

    Raises:
        BadFile: the settings have a mistake.
        BadInput: it is in the store, whose copies would have the keys.
    """
    if (said := settings_of(store, given, "secrets").secrets) is None:
        return None
    folder, own = place_of(store, given).parent / said.directory, Store(store).path
    if folder.resolve().is_relative_to(own.resolve()):
        raise BadInput(
            f"the directory of keys, {folder}, is in the store {own}: a copy of the store would "
            "have the keys. Name one outside of it in [secrets] of the settings."
        )
    return ThreadKeys(folder)


def needed[S](section: S | None, name: str, who: str) -> S:
    """The section.

    Raises:
        BadInput: it is absent.
    """
    if section is None:
        raise BadInput(
            f"{who} needs the section [{name}] of the settings. Write it into {NAME} in the store, "
            "or name another file with --settings; docs/settings.md has an example."
        )
    return section
