"""What is so: the life of a call, and the ledger that holds it."""

from ayes.ledger.lifecycle import Call, Status
from ayes.ledger.services import Ledger
from ayes.schemas.tools import ToolSpec, spec_of

__all__ = ["Call", "Ledger", "Status", "ToolSpec", "spec_of"]
