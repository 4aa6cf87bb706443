"""Recorded conversations, driven through the real gate, queue and ledger: for tests, and to measure
the whole of it. The model and the tools answer as recorded.
"""

from pathlib import Path
from typing import Final

#: The recorded conversations of tau-bench. They are not in the repository, but may be beside it.
RECORDED: Final = Path(__file__).resolve().parents[3] / "shared" / "data" / "airline-gpt4o.jsonl"
