"""SQL queries of the lake, for analysts.

`ops/lake/sql.py` limits what a query may do. This module prints its rows: as a table that fits the
terminal, JSON, CSV, or a Parquet file.
"""

import asyncio
import base64
import csv
import os
import re
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from ayes.interfaces.cli.command import command, commands
from ayes.interfaces.cli.options import JsonOption, StoreOption, ToOption, argument, option
from ayes.interfaces.cli.terminal.output import print_data, print_line, print_message
from ayes.interfaces.cli.terminal.tables import print_table
from ayes.ops.lake.sql import QueryRows, QueryStopped, ask
from ayes.ops.lake.sync import default_directory
from ayes.schemas.durations import parse_duration
from ayes.schemas.errors import BadInput
from ayes.schemas.files import move_into_place
from ayes.schemas.visible import visible

app: Final = commands()

Form = Literal["table", "json", "csv", "raw csv"]

#: Rows of a table; nobody reads more.
_ROWS: Final = 200
_BYTES: Final = {"MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}
_MEMORY: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?(MB|GB|MIB|GIB)", re.ASCII | re.IGNORECASE)
#: Characters that begin a formula in a spreadsheet; the last four are wide forms of the first four.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: DuckDB does not start with less.
_LEAST_MEMORY: Final = 50_000_000


@command(app, examples='ayes sql "SELECT tool, verdict, count(*) FROM calls GROUP BY ALL"')
async def sql(
    query: Annotated[
        str | None, argument("QUERY", "A SELECT; by default, or as -, read from stdin.")
    ] = None,
    csv: Annotated[
        bool,
        option(
            "--csv",
            "CSV, with a line of names; an apostrophe before text that a spreadsheet would "
            "take for a formula.",
        ),
    ] = False,
    raw: Annotated[bool, option("--raw", "With --csv: no apostrophes before text.")] = False,
    parquet: Annotated[
        Path | None, option("--parquet", "FILE", "Write the rows to this file instead.")
    ] = None,
    timeout: Annotated[
        str, option("--timeout", "DURATION", "A query that takes longer is stopped.")
    ] = "30s",
    memory: Annotated[
        str, option("--memory", "SIZE", "A query that needs more is stopped.")
    ] = "2GB",
    to: ToOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Query the lake in SQL. A query can only read."""
    if json + csv + (parquet is not None) > 1:
        raise BadInput("--json, --csv and --parquet exclude each other. Name one of them.")
    if raw and not csv:
        raise BadInput("--raw goes with --csv.")
    form: Form = "json" if json else "raw csv" if raw else "csv" if csv else "table"
    timeout_s = parse_duration("--timeout", timeout, least=0.1)
    memory_bytes = bytes_of("--memory", memory)
    archive = to or default_directory(store)
    if parquet is not None:
        _refuse_inside(parquet, archive)
    if query is None or query == "-":
        if sys.stdin.isatty():
            raise BadInput('name a query, as in ayes sql "FROM calls", or send one to stdin.')
        query = sys.stdin.read()
    try:
        with _ctrl_c() as stopping:
            lake, begun = archive / "lake", stopping.append
            asking = ask(lake, query, timeout_s=timeout_s, memory=memory_bytes, begun=begun)
            await asyncio.to_thread(_answer, asking, form, parquet)
    except QueryStopped:
        raise KeyboardInterrupt from None


def bytes_of(option: str, text: str) -> int:
    """An amount of memory, such as 2GB.

    Raises:
        BadInput: it is not an amount of memory, or too little.
    """
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise BadInput(
            f"{option} {text!r} is not a valid amount of memory. Write a number and its unit, as "
            "in 500MB or 2GB."
        )
    amount = int(float(found[1]) * _BYTES[found[2].upper()])
    if amount < _LEAST_MEMORY:
        raise BadInput(f"{option} {text!r} is too little: {_LEAST_MEMORY // 10**6}MB at least.")
    return amount


def _answer(asking: AbstractContextManager[QueryRows], form: Form, parquet: Path | None) -> None:
    with asking as answer:
        if parquet is not None:
            rows = write_parquet(answer, parquet)
            print_message(f"{_count(rows, 'row')} in {parquet}, after {answer.seconds:.2f} s")
        elif form == "table":
            show(answer)
        elif form == "json":
            _print_json(answer)
        else:
            _print_csv(answer, exact=form == "raw csv")


@contextmanager
def _ctrl_c() -> Generator["list[QueryRows]"]:
    """Ctrl-C stops the answers in the list instead of this program."""
    answers: list[QueryRows] = []
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for one in answers:
            one.stop()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield answers
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def show(answer: QueryRows) -> None:
    """Print a table for people on stdout, and the number of rows on stderr."""
    names = answer.schema.names
    shown: list[list[str]] = []
    count = 0
    for batch in answer.batches():
        shown += [[*map(_cell, row)] for row in _rows(batch.slice(0, max(_ROWS - count, 0)))]
        count += batch.num_rows
    if names == ["explain_key", "explain_value"]:
        for row in shown:
            for one in row[1].split("\n"):
                print_line(one)
        return
    left_out = print_table(names, shown, [_is_number(field) for field in answer.schema])
    print_message(f"{_count(count, 'row')} in {answer.seconds:.2f} s")
    if count > len(shown):
        print_message(
            f"The first {len(shown)} are shown. --json, --csv and --parquet FILE give all of them."
        )
    if left_out:
        print_message(
            f"{left_out} Select fewer columns; --json, --csv and --parquet FILE give all of them."
        )


def _is_number(field: Any) -> bool:
    import pyarrow as pa

    kind = field.type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _print_json(answer: QueryRows) -> None:
    names = answer.schema.names
    for batch in answer.batches():
        for row in _rows(batch):
            print_data(_json(dict(zip(names, map(_plain, row), strict=True))))


def _print_csv(answer: QueryRows, *, exact: bool) -> None:
    # At a terminal, text must not control it.
    shown = visible if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(
        [shown(name if exact else unlike_formula(name)) for name in answer.schema.names]
    )
    for batch in answer.batches():
        writer.writerows(
            [shown(_csv_cell(value, exact=exact)) for value in row] for row in _rows(batch)
        )
    sys.stdout.flush()


def _csv_cell(value: Any, *, exact: bool) -> str:
    """A cell of CSV. Only text can be a formula: a negative number is a number."""
    cell = _cell(value)
    return unlike_formula(cell) if not exact and isinstance(_plain(value), str) else cell


def unlike_formula(text: str) -> str:
    """The text, with an apostrophe if a spreadsheet would read it as a formula (OWASP, "CSV
    injection").
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def _rows(batch: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(_values(column) for column in batch.columns), strict=True)


def _values(column: Any) -> Iterable[Any]:
    import pyarrow as pa

    # Python has no nanoseconds; as text nothing is lost.
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.string())
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = [*map(_value, column)]
    return values


def _value(scalar: Any) -> Any:
    """A value of Python; a time outside Python's years as text. Anyone may record such a fact, and
    the query of another person must show it.
    """
    import pyarrow as pa

    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        match scalar:
            case pa.MapScalar():
                return [tuple(map(_value, one.values())) for one in scalar.values]
            case pa.StructScalar():
                return {name: _value(one) for name, one in scalar.items()}
            case pa.Date32Scalar():
                return _far(scalar.value, 1, 2**31 - 1)
            case pa.TimestampScalar():
                per_day = 86_400 * _PER_S[scalar.type.unit]
                return _far(scalar.value, per_day, 2**63 - 1, "+00:00" if scalar.type.tz else "")
            case _:  # a list of some kind
                return [*map(_value, scalar)]


_PER_S: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _far(value: int, per_day: int, infinite: int, zone: str = "") -> str:
    """A time in units since 1970, however far. The calendar repeats itself every 400 years."""
    if abs(value) == infinite:
        return "infinity" if value > 0 else "-infinity"
    cycles, rest = divmod(value, 146_097 * per_day)
    days, rest = divmod(rest, per_day)
    within = timedelta(days=days, microseconds=rest * 86_400 * 10**6 // per_day)
    near = datetime(1970, 1, 1, tzinfo=UTC) + within
    day = f"{near.year + 400 * cycles:04d}{near:-%m-%d}"
    return day if per_day == 1 else f"{day} {near.time()}{zone}"


_ENCODER: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def _json(value: object) -> str:
    return _ENCODER.encode(value).decode()


def _plain(value: Any) -> Any:
    """A value for JSON: bytes as text or else in base64, and a map as an object."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case [(_, _), *_] if all(isinstance(one, tuple) for one in value):
            return {str(_plain(name)): _plain(one) for name, one in value}
        case list():
            return [_plain(one) for one in value]
        case tuple():  # an interval
            return dict(zip(("months", "days", "nanoseconds"), value, strict=True))
        case _:
            return value


def _cell(value: Any) -> str:
    match _plain(value):
        case None:
            return ""
        case bool() as one:
            return str(one).lower()
        case datetime() as one:
            return one.isoformat(sep=" ")
        case date() | time() as one:
            return one.isoformat()
        case list() | dict() as one:
            return _json(one)
        case one:
            return str(one)


def write_parquet(answer: QueryRows, file: Path) -> int:
    """Write all rows to a file, or nothing; returns their number."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    temporary = file.with_name(f".{file.name}.{os.getpid()}.writing")
    rows = 0
    try:
        with (
            temporary.open("xb") as content,
            pq.ParquetWriter(content, answer.schema, compression="zstd") as writer,
        ):
            for batch in answer.batches():
                writer.write_batch(batch)
                rows += batch.num_rows
        move_into_place(temporary, file)
    except OSError as problem:
        raise BadInput(
            f"{file} cannot be written: {problem.strerror or problem}. Nothing was."
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return rows


def _refuse_inside(file: Path, archive: Path) -> None:
    if file.resolve().is_relative_to(archive.resolve()):
        raise BadInput(
            f"{file} is in the archive, which only `ayes lake sync` writes. Name another file."
        )
