"""Our own queries to the lake: those of `ask` and of the report. Other people's queries go through
`ops/lake/sql.py`.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ayes.ops.lake.writer import read_manifest
from ayes.schemas.errors import BadInput, Unavailable

type QueryRow = Mapping[str, Any]


class Rows(Protocol):
    """Returns the rows of a query, by column."""

    def __call__(self, query: str, values: Sequence[object] = ()) -> list[QueryRow]:
        """Query the lake, with these values for the question marks."""
        ...


@contextmanager
def connect(lake: Path) -> Generator[Rows]:
    """A function from a query to its rows by column; all queries see one state of the lake.

    Raises:
        BadInput: there is no lake of this version, or DuckDB is not installed.
        Unavailable: its files cannot be read.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        raise BadInput(
            "querying the lake needs duckdb, which is not installed: pip install 'ayes[analytics]'."
        ) from None
    read_manifest(lake)
    try:
        with duckdb.connect(str(lake / "catalog.duckdb"), read_only=True) as db:

            def rows(query: str, values: Sequence[object] = ()) -> list[QueryRow]:
                result = db.execute(query, values)
                columns = [column[0] for column in result.description or ()]
                return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]

            yield rows
    except duckdb.Error as problem:
        said = str(problem).partition("\n")[0]
        raise Unavailable(
            f"the lake in {lake} cannot be queried: {said} `ayes lake verify` finds the damage; "
            "`ayes lake sync` rewrites the catalog."
        ) from None
