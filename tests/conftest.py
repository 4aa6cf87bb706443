"""Fixtures of all tests: a ledger on a broker of its own, and the same ledger in memory.

A broker starts in a tenth of a second, so each test that needs one has its own, and no test can
disturb another.
"""

import fcntl
import gc
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import simulated_time
import structlog
from brokers import cheap_starts, running
from hostile import CALM, Broker, Connection, Process
from hostile_stream import StreamBroker, StreamConnection
from hypothesis import HealthCheck, settings
from patient import wait_for_brokers
from program import Ended, in_process

from ayes.ledger.clients.services import Ledger
from ayes.ledger.in_memory import Memory
from ayes.ledger.log import EventLog
from ayes.schemas.events import Author

# The test processes and the programs they start import the same thousands of files. Where bytecode
# is not to be written next to the sources, it goes here; without it each start compiles them again.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# The files of a test go to memory where there is enough of it: brokers make a million of them. What
# a power failure may take is tried on disks of their own (tests/promises/chaos/test_power.py).
_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK):
    _here = os.statvfs(_MEMORY)
    if _here.f_bavail * _here.f_frsize > 8 << 30 and not _here.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# How long an example takes says how busy the machine is. Each run tries others.
settings.register_profile(
    "any machine", max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
#: `make test-long`.
settings.register_profile("thorough", settings.get_profile("any machine"), max_examples=60)
#: `make properties`.
settings.register_profile("properties", max_examples=20_000)
settings.register_profile("many", max_examples=1_000)
#: `make quick`.
settings.register_profile("quick", settings.get_profile("any machine"), max_examples=5)

# Silent: a test about log lines captures them with structlog.testing.capture_logs.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
# A library that configures the root logger, if nobody has, leaves its handler to all later tests.
logging.getLogger().addHandler(logging.NullHandler())


#: Tests that run one after another in one test process, by the beginnings of their ids: they share
#: what is slow to make, or each keeps a whole machine busy. The first group that fits counts.
TOGETHER = {
    "lakes of the analysts": ("tests/docs/test_analysts.py",),
    "a whole machine": (
        "tests/promises/races/test_crash.py",
        "tests/promises/chaos/test_chaos.py",
    ),
    # Each file has a bank, or a simulated world, that its tests look at.
    "attacks": ("tests/promises/races/test_attacks.py",),
    "forged": ("tests/promises/races/test_forged_",),
    "checker": ("tests/promises/sim/test_checker.py",),
    # The packages of the providers take seconds to import.
    "providers": (
        "tests/adapters/test_matrix.py",
        "tests/consumers/test_pydantic_ai_model.py",
        "tests/projections/test_content.py::test_the_providers_own_types",
        "tests/projections/test_sdk_types.py::test_every_member",
        "tests/projections/test_gemini.py::test_the_providers_own_types",
        "tests/projections/test_openai_responses.py::test_the_providers_own_types",
        "tests/projections/test_providers.py::test_anthropics_own_types",
        "tests/promises/contract/test_repeats.py::test_an_adapter",
    ),
    # One Chromium, which takes a second to start.
    "browser": ("tests/promises/browser/",),
}
#: Each file has a running `ayes up`, console, broker or site for its tests, or a store that they
#: copy.
FILES_TOGETHER = {
    f"tests/{folder}/test_{name}.py"
    for folder, names in {
        "bench": "rehearsal",
        "consumers": "slack webhook_worker",
        "interfaces/access": "groups openid security",
        "interfaces/api": "bound_accounts decided nats views_api",
        "interfaces/cli": "console inbox lake main notify options people stop_commands terminal",
        "interfaces/console": "links_page other_workspaces",
        "ledger": "damage",
        "ops": "accounts backup cluster_up package scoped sql witness",
        "projections": "queries",
        "promises/contract": "contract",
        "promises/races": "one_server",
    }.items()
    for name in names.split()
}

#: What `make quick` leaves to `make test`: half of its time would be for a lake in DuckDB, for the
#: packages of providers and Pydantic AI, and for servers of mail and HTTP.
NOT_QUICK_FILES = {
    "tests/consumers/test_notifier.py",
    "tests/consumers/test_pydantic_ai_model.py",
    "tests/consumers/test_tool_names_of_servers.py",
    "tests/consumers/test_webhook_requests.py",
    "tests/projections/test_deferred.py",
    "tests/projections/test_pydantic_ai_form.py",
    "tests/projections/test_queries.py",
    "tests/projections/test_tables.py",
}
NOT_QUICK = (
    *TOGETHER["providers"],
    # Node is asked at the end of these.
    "tests/projections/test_ai_sdk.py::test_the_sdk",
    "tests/projections/test_ai_sdk_ui.py::test_the_sdk",
    "tests/projections/test_ai_sdk_ui.py::test_what_the_sdk",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule each test by itself, and those of `TOGETHER` and of `FILES_TOGETHER` together.

    The marker `xdist_group` is for this, but pytest-xdist 3.8 writes it where pytest 9.2 no longer
    reads it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            groups = (group for group, begins in TOGETHER.items() if nodeid.startswith(begins))
            file = nodeid.partition("::")[0]
            return next(groups, file if file in FILES_TOGETHER else nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """Forget what is done: pytest-xdist goes through all of it after each test."""
            super().mark_test_complete(node, item_index, duration)
            scopes = self.assigned_work[node]
            scope = self._split_scope(self.registered_collections[node][item_index])
            if all(scopes[scope].values()):
                del scopes[scope]

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Import each module in one process at a time: the first compiles what it imports, and the
    others read that.
    """
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        return (yield)


# What is imported and collected lasts as long as the process: to look through it again and again
# for what can be freed takes seconds.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep what the witness saw of the tests' logs out of the user's state directory.

    One directory for all tests, as some share a store.
    """
    directory = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(directory))
        yield directory


@pytest.fixture(autouse=True, scope="session")
def authorities() -> Iterator[None]:
    """Trust none of the internet's authorities, by whom no test knows anybody: each client of HTTP
    would load all of them, for 20 ms.
    """
    load = ssl.SSLContext.load_verify_locations
    # Of systems, and of the package `certifi`.
    theirs = ("ca-certificates.crt", "cert.pem", "ca-bundle.pem", "certifi/cacert.pem")

    def loaded(self: ssl.SSLContext, cafile: Any = None, *others: Any, **named: Any) -> None:
        if not str(cafile).endswith(theirs):
            load(self, cafile, *others, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_verify_locations", loaded)
        patch.setattr(ssl.SSLContext, "set_default_verify_paths", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def starts_of_brokers() -> Iterator[None]:
    with cheap_starts():
        yield


@pytest.fixture(autouse=True, scope="session")
def waits_for_brokers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        wait_for_brokers(patch)
        yield


@pytest.fixture
def ack_wait_s() -> float:
    """How long a silent worker counts as alive. Tests of dying workers shorten it."""
    return 30.0


@pytest.fixture
async def store(tmp_path: Path, ack_wait_s: float) -> AsyncIterator[Path]:
    """The store of a running broker."""
    async with running(tmp_path / "store", ack_wait_s) as server:
        yield server.store.path


@pytest.fixture
async def admin(store: Path) -> AsyncIterator[Ledger]:
    """The ledger of `store` with every right."""
    async with Ledger.connect(store, role="admin") as ledger:
        yield ledger


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests without another process")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick` do not even import what takes long to import."""
    place = collection_path.relative_to(config.rootpath).as_posix()
    return True if config.getoption("quick") and place in NOT_QUICK_FILES else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--quick` leave out what has a broker or takes long; what starts a broker by itself is
    skipped then.
    """
    if not config.getoption("quick"):
        return
    kept = []
    for item in items:
        assert isinstance(item, pytest.Function)
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if (
            given.get("port") != "jetstream"
            and not {"store", "within"} & set(item.fixturenames)
            and not item.nodeid.startswith(NOT_QUICK)
        ):
            kept.append(item)
    items[:] = kept


@pytest.fixture(autouse=True, scope="session")
def no_process(request: pytest.FixtureRequest, starts_of_brokers: None) -> Iterator[None]:
    def started(*_: Any, **__: Any) -> None:
        pytest.skip("`make quick` starts no program")

    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("quick"):
            patch.setattr(subprocess.Popen, "__init__", started)
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses `port` on the log in memory and on the real one, or on those that its
    marker `log` names.
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
    """The log: in memory, there in simulated time ("simulated"), on a broker of the test's own, or
    the simulation's when nothing goes wrong ("calm"), whose facts may leave its stream ("stream").
    """
    if request.param == "simulated":
        yield Memory(now=simulated_time.now, ack_wait_s=ack_wait_s)
        return
    if request.param == "memory":
        yield Memory(ack_wait_s=ack_wait_s)
        return
    if request.param == "calm":
        yield Connection(Process(Broker("", CALM, ack_wait_s=ack_wait_s), "tests"))
        return
    if request.param == "stream":
        yield StreamConnection(Process(StreamBroker("", CALM, ack_wait_s=ack_wait_s), "tests"))
        return
    async with (
        running(tmp_path / "store", ack_wait_s) as server,
        Ledger.connect(server.store.path, role="admin") as ledger,
    ):
        yield ledger.log


@pytest.fixture
def ledger(port: EventLog) -> Ledger:
    return Ledger(port, Author(kind="service", name="tests"))


@pytest.fixture
def within(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Ended]]:
    """The program `ayes`, run in this process."""
    with in_process(monkeypatch, capsys) as run:
        yield run
