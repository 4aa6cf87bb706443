"""Histories for Pydantic AI: the JSON of its `ModelMessage` list, as `ModelMessagesTypeAdapter`
takes it.

The library itself is not needed here.
"""

from ayes.projections.formats.pydantic_ai.check import check
from ayes.projections.formats.pydantic_ai.write import write

__all__ = ["check", "write"]
