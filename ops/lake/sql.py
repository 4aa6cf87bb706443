"""A query to the lake by anyone: it can read the lake, and nothing else.

No single check suffices, so there are several:

* It is one statement, a SELECT or the EXPLAIN of one. In DuckDB a SELECT can contain a COPY, an
  INSERT or a DELETE, so its plan is checked before it runs: steps and table functions that are not
  known to be read-only are refused.
* It runs in a read-only transaction, on a catalog that was opened read-only, with settings that it
  cannot change: no file outside the lake, no extension, no variable of ours, no temporary files.
* It runs in a process of its own that cannot write to any file, has a memory limit, and has nothing
  of our environment. DuckDB's own limits are not enough: one long string is not counted, and one
  long step ignores interrupts. At the timeout the process is killed.

The rows come as Arrow batches, so a long answer needs no more memory than a short one. The catalog
is opened for each query: it is as fresh as the lake.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from msgspec import Struct

from ayes.ops.broker.processes import die_with_parent
from ayes.schemas.errors import ApprovalsError, BadInput, NotAllowed, Unavailable, WaitTimedOut

if TYPE_CHECKING:
    import duckdb

#: The default limits.
TIMEOUT_S: Final = 30.0
MEMORY: Final = 2_000_000_000
#: Rows of a batch.
_BATCH: Final = 20_000
#: Bytes that the process needs in addition to the query: batches in transit, stacks of threads.
_OVERHEAD: Final = 500_000_000
#: The variables of our environment that the process needs to start.
_ENVIRONMENT: Final = frozenset(
    {"LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "SYSTEMROOT", "TMPDIR"}
)

#: DuckDB's names for the read-only steps of a plan.
_STEPS: Final = frozenset({
    "AGGREGATE", "ANY_JOIN", "ASOF_JOIN", "CHUNK_GET", "COMPARISON_JOIN", "CROSS_PRODUCT", "CTE",
    "CTE_SCAN", "DELIM_GET", "DELIM_JOIN", "DEPENDENT_JOIN", "DISTINCT", "DUMMY_SCAN",
    "EMPTY_RESULT", "EXCEPT", "EXPRESSION_GET", "FILTER", "INTERSECT", "LIMIT", "ORDER_BY",
    "POSITIONAL_JOIN", "PROJECTION", "REC_CTE", "REC_CTE_SCAN", "SAMPLE", "TOP_N", "UNION",
    "UNNEST", "WINDOW",
})  # fmt: skip
#: The read-only table functions: the lake's files, numbers, and DuckDB's own catalog.
_FUNCTIONS: Final = frozenset({
    "DUCKDB_COLUMNS", "DUCKDB_CONSTRAINTS", "DUCKDB_DATABASES", "DUCKDB_EXTENSIONS",
    "DUCKDB_FUNCTIONS", "DUCKDB_INDEXES", "DUCKDB_KEYWORDS", "DUCKDB_SCHEMAS", "DUCKDB_SETTINGS",
    "DUCKDB_TABLES", "DUCKDB_TYPES", "DUCKDB_VARIABLES", "DUCKDB_VIEWS", "GENERATE_SERIES", "GLOB",
    "JSON_EACH", "JSON_TREE", "PARQUET_FILE_METADATA", "PARQUET_KV_METADATA", "PARQUET_METADATA",
    "PARQUET_SCAN", "PARQUET_SCHEMA", "PRAGMA_TABLE_INFO", "PRAGMA_VERSION", "RANGE", "READ_JSON",
    "READ_JSON_AUTO", "READ_PARQUET", "READ_TEXT", "REPEAT", "REPEAT_ROW",
})  # fmt: skip
_EXPLAIN: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*EXPLAIN\b(?:\s+ANALYZE\b)?(?:\s*\([^()]*\))?\s*",
    re.IGNORECASE | re.DOTALL,
)
_PLAN: Final = "EXPLAIN (FORMAT json) "


class QueryRows:
    """The rows of a query, as they arrive."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        timeout_s: float,
        begun: "Callable[[QueryRows], None]",
    ) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self._late = self._stopped = False
        self._begun = time.monotonic()
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True
        self._timer.start()
        begun(self)
        self._reader = self._open()
        #: The Arrow schema, with a different name for each column.
        self.schema = _with_unique_names(self._reader.schema)

    @property
    def seconds(self) -> float:
        """The time since the query was sent."""
        return time.monotonic() - self._begun

    def batches(self) -> Iterator[Any]:
        """Arrow batches, to the last row.

        Raises:
            ApprovalsError: the query failed, or took too long.
        """
        import pyarrow as pa

        while True:
            try:
                batch = self._reader.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):
                break
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        # A stream that breaks off looks like one that ends; only the process knows.
        if self._process.wait() != 0:
            raise self._problem()
        self._timer.cancel()

    def stop(self) -> None:
        """Stop the query, from any thread; reading its rows then raises `QueryStopped`."""
        self._stopped = True
        self._process.kill()

    def close(self) -> None:
        self._timer.cancel()
        self._process.kill()
        with self._process:  # closes the pipes, and waits
            pass

    def _open(self) -> Any:
        import pyarrow as pa

        try:
            return pa.ipc.open_stream(self._process.stdout)
        except (pa.ArrowInvalid, OSError):
            problem = self._problem()
            self.close()
            raise problem from None

    def _end(self) -> None:
        self._late = True
        self._process.kill()

    def _problem(self) -> ApprovalsError:
        assert self._process.stderr
        said = self._process.stderr.read().decode(errors="replace")
        code = self._process.wait()
        if self._stopped:
            return QueryStopped("the query was stopped.")
        if self._late:
            return WaitTimedOut(
                f"the query ran longer than {self._timeout_s:g} s and was stopped. Ask for less, "
                "or allow more time: --timeout."
            )
        try:
            problem = msgspec.json.decode(said.rpartition("\n")[2], type=_Problem)
        except msgspec.MsgspecError:
            return Unavailable(
                f"the process that ran the query ended with {code}. {said.strip()[-300:]} "
                "Ask for less, or allow more memory: --memory."
            )
        return _KINDS[problem.kind](problem.message)


class QueryStopped(ApprovalsError):
    """The query was stopped by `QueryRows.stop`."""


@contextmanager
def ask(
    lake: Path,
    query: str,
    *,
    timeout_s: float = TIMEOUT_S,
    memory: int = MEMORY,
    begun: Callable[[QueryRows], None] = lambda _answer: None,
) -> Generator[QueryRows]:
    """Query the lake; the answer is valid as long as the block.

    Args:
        memory: bytes.
        begun: called with the answer before there are rows, so that it can be stopped.

    Raises:
        BadInput: it is not a valid query, names something unknown, or needs more memory.
        NotAllowed: it would do more than read the lake.
        WaitTimedOut: it took longer.
        Unavailable: the lake cannot be read.
    """
    # Not at the top: the process that runs the query imports this file too.
    from ayes.ops.lake.writer import read_manifest

    for name in ("duckdb", "pyarrow"):
        if find_spec(name) is None:
            raise BadInput(f"{name} is not installed. Install ayes[analytics].")
    read_manifest(lake)
    request = _Request(str(lake.absolute()), query, memory)
    try:
        answer = _asked(request, timeout_s, begun)
    except _Gone:  # compacted files are removed after a while; the new catalog names the new ones
        answer = _asked(request, timeout_s, begun)
    try:
        yield answer
    finally:
        answer.close()


def _asked(request: "_Request", timeout_s: float, begun: Callable[[QueryRows], None]) -> QueryRows:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ayes.ops.lake.sql"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name in _ENVIRONMENT},
        preexec_fn=die_with_parent(),  # noqa: PLW1509 - it makes one system call
    )
    assert process.stdin
    process.stdin.write(msgspec.json.encode(request))
    process.stdin.close()
    return QueryRows(process, timeout_s, begun)


class _Gone(Unavailable):
    """A file of the lake is missing or broken."""


class _Request(Struct, frozen=True):
    lake: str
    query: str
    memory: int


class _Problem(Struct, frozen=True):
    kind: str
    message: str


_KINDS: Final[dict[str, type[ApprovalsError]]] = {
    "bad": BadInput,
    "forbidden": NotAllowed,
    "gone": _Gone,
}


def _with_unique_names(schema: Any) -> Any:
    """Adds a number to repeated names of columns, so that none hides another."""
    import pyarrow as pa

    found: dict[str, Any] = {}
    for field in schema:
        name, count = field.name, 1
        while name in found:
            count += 1
            name = f"{field.name}_{count}"
        found[name] = field.with_name(name)
    return pa.schema(list(found.values()))


# --------------------------------------------------------------- in the process that runs the query


def _answer() -> None:
    """Read the request from stdin, and write the rows to stdout, or the problem to stderr."""
    import duckdb

    # Ctrl-C is for the process that asked, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    rows = os.dup(1)
    os.dup2(2, 1)
    try:
        _confine(request.memory)
        with _connect(request) as db, _translated(request):
            _write(db, checked(db, request), rows)
    except ApprovalsError as problem:
        kind = next((kind for kind, known in _KINDS.items() if isinstance(problem, known)), "bad")
        _fail(kind, str(problem))
    except duckdb.Error as problem:
        said = f"the catalog of the lake cannot be opened: {_message(problem)}"
        _fail("gone", f"{said} `ayes lake sync` rewrites it.")


def _fail(kind: str, message: str) -> NoReturn:
    sys.stderr.buffer.write(b"\n" + msgspec.json.encode(_Problem(kind, message)))
    sys.stderr.flush()
    os._exit(1)


def _confine(memory: int) -> None:
    """Limit this process through the operating system, independently of DuckDB."""
    try:
        import resource

        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        status = Path("/proc/self/status").read_text()
        used = int(re.findall(r"VmData:\s+(\d+) kB", status)[0]) * 1024
        most = used + memory + _OVERHEAD
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    except (ImportError, OSError):  # not on Linux; DuckDB's limits remain
        pass


@contextmanager
def _connect(request: _Request) -> Generator["duckdb.DuckDBPyConnection"]:
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "python_enable_replacements": False,
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
        "allow_persistent_secrets": False,
        "memory_limit": f"{request.memory // 1000}KB",
        "temp_directory": "",
    }
    catalog = Path(request.lake) / "catalog.duckdb"
    with duckdb.connect(str(catalog), read_only=True, config=settings) as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute("SET errors_as_json = true")
        # SET takes no parameters.
        lake = request.lake.replace("'", "''")
        db.execute(f"SET allowed_directories = ['{lake}']")
        db.execute("SET enable_external_access = false")
        db.execute("SET allowed_configs = ['explain_output']")
        db.execute("SET lock_configuration = true")
        db.execute("BEGIN TRANSACTION READ ONLY")
        yield db


def checked(db: "duckdb.DuckDBPyConnection", request: _Request) -> str:
    """The query, if it only reads.

    Raises:
        BadInput: it is not exactly one statement.
        NotAllowed: it does more than read.
    """
    from duckdb import StatementType

    query = request.query
    try:
        statements = db.extract_statements(query)
    except ValueError:  # a statement for which Python has no name
        raise NotAllowed(_ONLY_READS) from None
    if len(statements) != 1:
        raise BadInput(f"one query at a time, please: there are {len(statements) or 'none'} here.")
    start = 0
    match statements[0].type:
        case StatementType.SELECT:
            pass
        case StatementType.EXPLAIN:
            found = _EXPLAIN.match(query)
            start = found.end() if found else 0
            inner = db.extract_statements(query[start:])
            is_select = [one.type for one in inner] == [StatementType.SELECT]
            if not is_select or query.startswith("(", start):
                raise NotAllowed(f"{_ONLY_READS} EXPLAIN explains a SELECT.")
        case StatementType.MULTI:
            raise BadInput("PIVOT needs its columns here: PIVOT ... ON column IN ('a', 'b').")
        case other:
            raise NotAllowed(f"{_ONLY_READS} This is {other.name.replace('_', ' ')}.")
    db.execute("SET explain_output = 'all'")
    with _translated(request, len(_PLAN) - len(query[:start].encode())):
        plans = dict(db.execute(_PLAN + query[start:]).fetchall())
    db.execute("SET explain_output = 'physical_only'")
    for step in _steps(json.loads(plans["logical_plan"])):
        if step not in _STEPS and step not in _FUNCTIONS:
            raise NotAllowed(f"{_ONLY_READS} {step} is not known to be read-only.")
    return query


_ONLY_READS: Final = "a query here is a SELECT, and only reads."


def _steps(plan: Any) -> Iterator[str]:
    for step in plan if isinstance(plan, list) else [plan]:
        yield step["name"].strip().upper()
        yield from _steps(step["children"])


def _write(db: "duckdb.DuckDBPyConnection", query: str, rows: int) -> None:
    """Write the rows as a stream, which begins with the first rows: a query that fails before that
    writes nothing.
    """
    import pyarrow as pa

    relation = db.sql(query)
    reader = relation.to_arrow_reader(_BATCH)
    first = next(reader, None)
    with os.fdopen(rows, "wb") as out, pa.ipc.new_stream(out, reader.schema) as stream:
        if first is not None:
            stream.write_batch(first)
            out.flush()
        for batch in reader:
            stream.write_batch(batch)
            out.flush()


@contextmanager
def _translated(request: _Request, shift: int = 0) -> Generator[None]:
    """Raises DuckDB's errors as ours.

    Args:
        shift: the offset of the query, in bytes, in the text that DuckDB was given.
    """
    import duckdb

    try:
        yield
    except (duckdb.OutOfMemoryException, MemoryError):
        raise BadInput(
            f"the query needs more than {request.memory / 1e6:,.0f} MB of memory. Ask for less, "
            "or allow more: --memory."
        ) from None
    except duckdb.PermissionException as problem:
        raise NotAllowed(
            f"a query reads the lake, and no other file. {_located(problem, request, shift)}"
        ) from None
    except duckdb.IOException as problem:
        raise _Gone(
            f"a file of the lake cannot be read: {_located(problem, request, shift)} Ask again; "
            "`ayes lake verify` checks all of them."
        ) from None
    except duckdb.Error as problem:
        raise BadInput(_located(problem, request, shift)) from None


def _located(problem: "duckdb.Error", request: _Request, shift: int) -> str:
    """The message, with its place in the query if DuckDB names one."""
    message = _message(problem)
    if place := _details(problem).get("position"):
        return "line {}, column {}: {}".format(*_place(request.query, int(place) - shift), message)
    return message


def _message(problem: "duckdb.Error") -> str:
    said = _details(problem).get("exception_message", str(problem))
    sentence = " ".join(said.partition("\n\nLINE")[0].split())
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _details(problem: "duckdb.Error") -> dict[str, str]:
    """The JSON object that follows the name of the error."""
    try:
        return dict(json.loads(str(problem).partition(": ")[2]))
    except (ValueError, TypeError):
        return {}


def _place(query: str, at: int) -> tuple[int, int]:
    """Line and column, from 1 on, of an offset in bytes."""
    before = query.encode()[:at].decode(errors="ignore")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


if __name__ == "__main__":
    _answer()
