"""Paths of the files that tests read, and what is known of one."""

from pathlib import Path

from bench.rehearsal import RECORDED

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"
#: The policy of the examples.
AIRLINE = EXAMPLES / "airline.toml"
#: The tools that it asks about, written out once more.
CHANGING = frozenset(
    {
        "book_reservation", "cancel_reservation", "update_reservation_flights",
        "update_reservation_baggages", "update_reservation_passengers", "send_certificate",
    }
)  # fmt: skip
#: Three recorded conversations.
SMALL = TESTS / "data" / "small.jsonl"
#: Recorded conversations; tests skip without them.
DATA = RECORDED
