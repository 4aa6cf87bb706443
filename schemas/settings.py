"""Settings with secrets in them: written there, or as `env:` and the variable that has them.

No message cites a secret.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, ValidationInfo

from ayes.schemas.errors import BadFile
from ayes.schemas.toml_files import TomlModel, read_text, read_toml

#: Of a bearer token: as many characters as 32 hexadecimal digits.
_MIN_TOKEN: Final = 32
_ENVIRONMENT: Final = "env:"


class _Reading:
    """The reading of one file."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        #: Whether a secret is written in the file itself.
        self.has_secrets = False


def _filled(value: str, info: ValidationInfo) -> str:
    if not isinstance(reading := info.context, _Reading):
        return value  # not of a file
    if not value.startswith(_ENVIRONMENT):
        reading.has_secrets = True
        return value
    variable = value.removeprefix(_ENVIRONMENT)
    if not (found := reading.environment.get(variable)):
        raise ValueError(f"the variable {variable} is not set.")
    return found


def _is_long(token: str, info: ValidationInfo) -> str:
    if isinstance(info.context, _Reading) and len(token) < _MIN_TOKEN:
        raise ValueError(
            f"a token of fewer than {_MIN_TOKEN} characters. Make one: openssl rand -hex 32."
        )
    return token


#: A secret of a settings file.
type Secret = Annotated[str, AfterValidator(_filled)]
#: A bearer token: in a settings file one that nobody can guess.
type Token = Annotated[str, AfterValidator(_filled), AfterValidator(_is_long)]


def check_tokens_differ(kind: str, tokens: Collection[str]) -> None:
    """In a validator: report tokens of which one could be taken for another."""
    if len(set(tokens)) < len(tokens):
        raise ValueError(f"two {kind}s have the same token. Give each its own.")


def read_settings[M: TomlModel](
    model: type[M], path: Path, environment: Mapping[str, str] | None = None
) -> M:
    """Read a file; its secrets are in place of the variables that it names.

    Raises:
        BadFile: with the line of each mistake; or others may read a secret that is written in it.
    """
    reading = _Reading(os.environ if environment is None else environment)
    found = read_toml(model, read_text(path), str(path), reading)
    if reading.has_secrets and path.stat().st_mode & 0o077:
        raise BadFile(
            str(path), "", f"others may read it, and it has secrets in it: chmod 600 {path}."
        )
    return found
