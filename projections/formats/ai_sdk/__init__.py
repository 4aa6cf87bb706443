"""Histories for the Vercel AI SDK: its `ModelMessage` list.

Its other form, `UIMessage`, is in `ui`, which also says why `--format ai-sdk` takes both.
"""

from ayes.projections.formats.ai_sdk.check import check
from ayes.projections.formats.ai_sdk.write import write

__all__ = ["check", "write"]
