"""Paths of the files that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"
#: The policy of the examples.
AIRLINE = EXAMPLES / "airline.toml"
#: Three recorded conversations.
SMALL = TESTS / "data" / "small.jsonl"
#: The recorded conversations of tau-bench. They are not in the repository; tests skip without them.
DATA = ROOT.parent / "shared" / "data" / "airline-gpt4o.jsonl"
