"""The tests' own way to start `ayes` is like that of a shell."""

import subprocess
from pathlib import Path

import pytest
from program import AYES, Started, environment


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--version", 0),
        ("pending --many", 2),
        ("check none.json --format openai-chat", 2),
        ("check none.json --format openai-chat --json", 2),
    ],
)
def test_a_forked_program_ends_as_one_that_is_started(tmp_path: Path, words, code):
    """With the same exit code, and the same words on both streams."""
    ended = []
    for kind in (subprocess.Popen, Started):
        with kind(
            [AYES, *words.split()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
        ) as process:
            out, err = process.communicate(timeout=60)
            ended.append((process.returncode, out, err))
    assert ended[0] == ended[1]
    assert ended[0][0] == code
    assert out + err
