"""Secrets in the settings of adapters: written there, or as `env:` and its variable."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ayes.schemas.errors import BadFile

#: Of a bearer token: as many characters as 32 hexadecimal digits.
MIN_TOKEN: Final = 32
_ENVIRONMENT: Final = "env:"


class Secrets:
    """The secrets of one file.

    Raises:
        BadFile: others may read the file, and one of its secrets is written in it.
    """

    def __init__(self, path: Path, values: Iterable[str], environment: Mapping[str, str]) -> None:
        self._path, self._environment = path, environment
        is_written = any(not one.startswith(_ENVIRONMENT) for one in values)
        if is_written and path.stat().st_mode & 0o077:
            raise BadFile(
                str(path), "", f"others may read it, and it has secrets in it: chmod 600 {path}."
            )

    def filled(self, value: str, entry: str) -> str:
        """The secret itself.

        Raises:
            BadFile: its variable is not set.
        """
        if not value.startswith(_ENVIRONMENT):
            return value
        variable = value.removeprefix(_ENVIRONMENT)
        if not self._environment.get(variable):
            raise BadFile(str(self._path), entry, f"the variable {variable} is not set.")
        return self._environment[variable]

    def check_tokens(self, kind: str, tokens: Sequence[tuple[str, str]]) -> None:
        """Refuse bearer tokens that could be guessed or taken for another's.

        Args:
            tokens: names of entries of that kind, and their tokens.

        Raises:
            BadFile: one is short, or two are the same.
        """
        for name, token in tokens:
            if len(token) < MIN_TOKEN:
                raise BadFile(
                    str(self._path),
                    f"{kind} {name!r}",
                    f"its token has fewer than {MIN_TOKEN} characters. Make one: openssl rand -hex "
                    "32.",
                )
        if len({token for _, token in tokens}) < len(tokens):
            raise BadFile(
                str(self._path), kind, f"two {kind}s have the same token. Give each its own."
            )
