"""The tables of the lake in memory, and the lifecycle to compare them with."""

import functools

import duckdb

from ayes.ledger.log import RawMessage
from ayes.ops.lake.writer import _arrow
from ayes.projections.lake import tables
from ayes.projections.lake.counting import Judge


@functools.cache
def _tables() -> duckdb.DuckDBPyConnection:
    """All tables and views, still empty. Creating them takes longer than most tests."""
    db = duckdb.connect()
    db.execute("CREATE TABLE checkpoint AS SELECT 0 AS seq")
    db.execute(f"CREATE TABLE events ({tables.EVENTS})")
    db.execute(f"CREATE VIEW calls AS {tables.calls('events')}")
    for name, query in tables.VIEWS.items():
        db.execute(f"CREATE VIEW {name} AS {query}")
    for name, query in tables.MACROS.items():
        db.execute(f"CREATE MACRO {name} AS TABLE {query}")
    return db


def read(raws: list[RawMessage]) -> duckdb.DuckDBPyConnection:
    """All tables and views over these messages, until the next call."""
    db = _tables()
    db.execute("DELETE FROM events")
    if raws:
        db.register("fresh", _arrow(raws, Judge().judge(raws, lambda _: ())))
        db.execute(f"INSERT INTO events {tables.READ}")
        db.unregister("fresh")
    return db


def rows(db: duckdb.DuckDBPyConnection, query: str) -> list[dict]:
    asked = db.execute(query)
    names = [column[0] for column in asked.description]
    return [dict(zip(names, row, strict=True)) for row in asked.fetchall()]


def judged_by(db: duckdb.DuckDBPyConnection) -> dict[int, tuple[bool, str | None]]:
    return {
        row["seq"]: (row["counts"], row["void"])
        for row in rows(db, "SELECT seq, counts, void FROM events")
    }
