"""The settings file: one for all programs, with a section for each part of them.

A secret in it is written there, or as `env:NAME`, the variable that has it, or as `file:NAME`, a
file beside the settings. The file is checked whole; secrets are only looked up for the sections
that a program asks for, since each program has its own. No message cites a secret.
"""

import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import PydanticCustomError

from ayes.schemas.durations import seconds
from ayes.schemas.errors import BadFile
from ayes.schemas.toml_files import (
    NOT_WANTED,
    TomlModel,
    checked_token,
    mistakes,
    read_text,
    read_toml,
)

#: The name of the file in a store.
NAME: Final = "ayes.toml"
#: Of a bearer token: as many characters as 32 hexadecimal digits.
_MIN_TOKEN: Final = 32
_ENVIRONMENT: Final = "env:"
FILE: Final = "file:"


class _Reading:
    """The reading of one file."""

    def __init__(
        self, folder: Path, wanted: Collection[str], environment: Mapping[str, str]
    ) -> None:
        self.folder, self.wanted, self.environment = folder, wanted, environment
        #: Whether the section that is being read is among those.
        self.is_wanted = False
        #: Whether a secret is written in the file itself.
        self.has_secrets = False


class Sections(TomlModel):
    """A whole file: each field is a section, and None if it is absent or nobody wants it."""

    kind: ClassVar = "section"

    @field_validator("*", mode="wrap")
    @classmethod
    def _wanted(cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        reading = info.context
        assert isinstance(reading, _Reading)
        reading.is_wanted = info.field_name in reading.wanted
        try:
            checked = check(value)
        except ValidationError as problem:
            if any(mistakes(problem)):
                raise
            return None
        return checked if reading.is_wanted else None


def _filled(value: str, info: ValidationInfo) -> str:
    if not isinstance(reading := info.context, _Reading):
        return value  # not of a file
    is_elsewhere = value.startswith((_ENVIRONMENT, FILE))
    reading.has_secrets |= not is_elsewhere
    if not reading.is_wanted:
        raise PydanticCustomError(NOT_WANTED, "not looked up")
    if not is_elsewhere:
        return value
    if value.startswith(FILE):
        try:
            return read_text(reading.folder / value.removeprefix(FILE)).strip()
        except BadFile as problem:
            raise ValueError(str(problem)) from None
    variable = value.removeprefix(_ENVIRONMENT)
    if not (found := reading.environment.get(variable)):
        raise ValueError(f"the variable {variable} is not set.")
    return found


def _placed(value: str, info: ValidationInfo) -> str:
    if value.startswith(FILE) and isinstance(reading := info.context, _Reading):
        return f"{FILE}{reading.folder / value.removeprefix(FILE)}"
    return _filled(value, info)


def _is_long(token: str, info: ValidationInfo) -> str:
    if isinstance(info.context, _Reading) and len(token) < _MIN_TOKEN:
        raise ValueError(
            f"a token of fewer than {_MIN_TOKEN} characters. Make one: openssl rand -hex 32."
        )
    return token


def named(what: str) -> AfterValidator:
    """A validator: the text is a name that can be a token of subjects."""
    return AfterValidator(partial(checked_token, what))


def lasting(least_s: float, most_s: float, sentence: str) -> AfterValidator:
    """A validator: the text is a duration within these limits, or the sentence says what it should
    be.
    """

    def within(text: str) -> str:
        if not least_s <= (seconds(text) or 0) <= most_s:
            raise ValueError(f"{text!r} is not {sentence}")
        return text

    return AfterValidator(within)


#: A list in the file.
type Names = Annotated[tuple[str, ...], Field(strict=False)]
#: A secret of a settings file.
type Secret = Annotated[str, AfterValidator(_filled)]
#: A secret whose file, if it is in one, is read anew each time: `file:` and the path.
type FreshSecret = Annotated[str, AfterValidator(_placed)]
#: A bearer token: in a settings file one that nobody can guess.
type Token = Annotated[str, AfterValidator(_filled), AfterValidator(_is_long)]


def check_tokens_differ(kind: str, tokens: Collection[str]) -> None:
    """In a validator: report tokens of which one could be taken for another."""
    if len(set(tokens)) < len(tokens):
        raise ValueError(f"two {kind}s have the same token. Give each its own.")


def read_settings[M: Sections](
    model: type[M],
    path: Path,
    wanted: Collection[str],
    environment: Mapping[str, str] | None = None,
) -> M:
    """Read a file; its secrets are in place of the variables and files that it names.

    Args:
        wanted: the sections that are returned; the others are checked and left out.

    Raises:
        BadFile: with the line of each mistake; or others may read a secret that is written in it.
    """
    reading = _Reading(path.parent, wanted, os.environ if environment is None else environment)
    found = read_toml(model, read_text(path), str(path), reading)
    if reading.has_secrets and path.stat().st_mode & 0o077:
        raise BadFile(
            str(path), "", f"others may read it, and it has secrets in it: chmod 600 {path}."
        )
    return found
