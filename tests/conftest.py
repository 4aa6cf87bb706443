"""Fixtures of all tests: a ledger on a broker of its own, and the same ledger in memory.

A broker starts in a tenth of a second, so each test that needs one has its own, and no test can
disturb another.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from brokers import running
from hypothesis import settings

from ayes.ledger.in_memory import Memory
from ayes.ledger.log import EventLog
from ayes.ledger.services import Ledger
from ayes.schemas.events import Author

# The test processes and the programs they start import the same thousands of files. Where bytecode
# is not to be written next to the sources, it goes here; without it each start compiles them again.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

#: `make sim`.
settings.register_profile("sim", max_examples=20_000, deadline=None)

# What a test says about log lines it says itself, with structlog.testing.capture_logs.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


#: Tests that run one after another in one test process, by how their ids begin: because they share
#: what is slow to make, or because each keeps a whole machine busy.
TOGETHER = {
    "tests/docs/test_analysts.py": "lakes of the analysts",
    "tests/ops/test_lake.py::test_each_recorded_call_is_a_row": "lakes of the recordings",
    "tests/ops/test_lake.py::test_calls_are_what_the_events_say": "lakes of the recordings",
    "tests/ops/test_lake.py::test_events_are_a_plain_replay": "lakes of the recordings",
    "tests/ops/test_lake.py::test_a_lake_that_is_whole_is_verified": "lakes of the recordings",
    "tests/ops/test_rehearse.py::test_approved_each_real": "a whole machine",
    "tests/ops/test_rehearse.py::test_denied_no_real": "a whole machine",
    "tests/races/test_crash.py": "a whole machine",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each test by itself, and those of `TOGETHER` together.

    The marker `xdist_group` is for this, but pytest-xdist 3.8 writes it where pytest 9.2 no longer
    reads it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next(
                (group for begin, group in TOGETHER.items() if nodeid.startswith(begin)), nodeid
            )

    return Scheduling(config, log)


@pytest.fixture(autouse=True, scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What was seen of the tests' logs is not kept among the user's; for all tests, as some share a
    store.
    """
    directory = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory))
        yield directory


@pytest.fixture
def ack_wait_s() -> float:
    """How long a silent worker is taken for alive. Tests of dying workers shorten it."""
    return 30.0


@pytest.fixture
async def store(tmp_path: Path, ack_wait_s: float) -> AsyncIterator[Path]:
    """The store of a running broker."""
    async with running(tmp_path / "store", ack_wait_s) as server:
        yield server.store.path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of the log runs on the one in memory and on the real one, or on those that its marker
    `log` names.
    """
    if "port" in metafunc.fixturenames and not hasattr(metafunc.module, "port"):
        marker = metafunc.definition.get_closest_marker("log")
        metafunc.parametrize(
            "port", marker.args if marker else ("memory", "jetstream"), indirect=True
        )


@pytest.fixture
async def port(
    request: pytest.FixtureRequest, tmp_path: Path, ack_wait_s: float
) -> AsyncIterator[EventLog]:
    """The log, in memory or on a broker of the test's own."""
    if request.param == "memory":
        yield Memory(ack_wait_s=ack_wait_s)
        return
    async with (
        running(tmp_path / "store", ack_wait_s) as server,
        Ledger.connect(server.store.path, role="admin") as ledger,
    ):
        yield ledger.log


@pytest.fixture
def ledger(port: EventLog) -> Ledger:
    return Ledger(port, Author(kind="service", name="tests"))
