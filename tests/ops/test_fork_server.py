"""The tests' own way to start `ayes` and Python is like that of a shell."""

import subprocess
import sys
from pathlib import Path

import pytest
from program import AYES, Started, environment

PYTHON = """
import os, sys
print(__name__, sys.argv, sys.stdin.read(), os.environ["TOLD"], flush=True)
os.write(2, b"so")
sys.exit(5)
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([AYES, "--version"], 0),
        ([AYES, "pending", "--many"], 2),
        ([AYES, "check", "none.json", "--format", "openai-chat", "--json"], 2),
        ([sys.executable, "-P", "-c", PYTHON, "a", "b"], 5),
        ([sys.executable, "-m", "json.tool", "--compact"], 0),
    ],
)
def test_a_forked_program_ends_as_one_that_is_started(tmp_path: Path, words, code):
    """With the same exit code, and the same words on both streams."""
    ended = []
    for kind in (subprocess.Popen, Started):
        with kind(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(TOLD="yes"),
        ) as process:
            out, err = process.communicate("{}", timeout=60)
            ended.append((process.returncode, out, err))
    assert ended[0] == ended[1]
    assert ended[0][0] == code
    assert out + err
