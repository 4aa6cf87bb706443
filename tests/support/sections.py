"""Sections of a settings file, as the programs read them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ayes.interfaces.cli.settings import Settings
from ayes.schemas.settings import NAME, read_settings


def settings_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    """The path of a settings file with this text."""
    file = folder / NAME
    file.write_text(text)
    file.chmod(mode)
    return file


def section(
    name: str,
    folder: Path,
    text: str,
    environment: Mapping[str, str] | None = None,
    mode: int = 0o600,
) -> Any:
    """This section of a file with this text."""
    file = settings_file(folder, text, mode)
    return getattr(read_settings(Settings, file, {name}, environment), name)
