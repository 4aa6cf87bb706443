"""Private keys in files of their own: there is one copy of each, or none."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ayes.ledger.seal import SignerKey
from ayes.ops.key_files import named_key, new_file, write_key
from ayes.schemas.errors import BadInput

KEY = SignerKey("ana")


def names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def test_whoever_is_killed_while_writing_a_key_leaves_no_copy_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Until the file has its name it has none, and afterwards no other: at no moment is there
    anything else that a crash could leave.
    """
    seen: list[list[str]] = []

    def looking(does: Any) -> Any:
        def looked(*args: Any, **how: Any) -> Any:
            seen.append(names(tmp_path))
            done = does(*args, **how)
            seen.append(names(tmp_path))
            return done

        return looked

    for name in ("open", "link", "fsync"):
        monkeypatch.setattr(os, name, looking(getattr(os, name)))
    write_key(tmp_path / "ana.key", KEY)
    assert ["ana.key"] in seen
    assert all(names in ([], ["ana.key"]) for names in seen)


@pytest.mark.parametrize("lacks", ["nothing", "unnamed files", "/proc"])
def test_a_key_is_written_once_on_each_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
):
    """For its owner alone, and a second one does not replace it."""
    opens, links = os.open, os.link

    def opened(path: Any, flags: int, *args: Any, **how: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opens(path, flags, *args, **how)

    def linked(source: Any, *args: Any, **how: Any) -> None:
        if str(source).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        links(source, *args, **how)

    if lacks == "unnamed files":
        monkeypatch.setattr(os, "open", opened)
    if lacks == "/proc":
        monkeypatch.setattr(os, "link", linked)
    file = tmp_path / "ana.key"
    new_file(file, KEY)
    assert (names(tmp_path), file.stat().st_mode & 0o777) == (["ana.key"], 0o600)
    with pytest.raises(BadInput, match="cannot be written: File exists"):
        new_file(file, SignerKey("ben"))
    assert names(tmp_path) == ["ana.key"]
    assert str(named_key(file, SignerKey)) == str(KEY)
