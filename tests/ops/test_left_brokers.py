"""No broker outlives the test process that started it."""

import os
import subprocess
import sys

import left_brokers

from ayes.ops.broker.server import find_binary


def test_what_a_killed_test_process_has_left_is_ended():
    """The brokers of another test process go on."""
    command = [find_binary(), "--addr", "127.0.0.1", "--port", "-1", "--log", os.devnull]
    with (
        subprocess.Popen(command, env=os.environ | {"STARTED_BY_TESTS": "10"}) as left,
        subprocess.Popen(command, env=os.environ | {"STARTED_BY_TESTS": "101"}) as other,
    ):
        ending = [sys.executable, "-S", "-E", left_brokers.__file__, "STARTED_BY_TESTS=10"]
        subprocess.run(ending, stdin=subprocess.DEVNULL, check=True)
        left.wait(60)
        assert other.poll() is None
        other.kill()
