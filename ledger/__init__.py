"""What is so: the life of a call, and the ledger that holds it."""

from ledger.client import Ledger
from ledger.lifecycle import Call, Status
from schemas.tools import ToolSpec, spec_of

__all__ = ["Call", "Ledger", "Status", "ToolSpec", "spec_of"]
