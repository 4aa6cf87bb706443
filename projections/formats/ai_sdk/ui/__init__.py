"""Histories as the Vercel AI SDK shows them: its `UIMessage` list, which a chat on a screen keeps
and sends again.

Why two names. A checker and a reader can see which form they were given, so those of `ai-sdk` take
both (`check_either`, `read_either`). A writer cannot, so UIMessages are written for `ai-sdk-ui`;
its checker and reader take nothing else, because whoever keeps UIMessages wants to hear of a
ModelMessage among them.
"""

from ayes.projections.formats.ai_sdk.ui.check import check, check_either
from ayes.projections.formats.ai_sdk.ui.live import messages
from ayes.projections.formats.ai_sdk.ui.read import read, read_either
from ayes.projections.formats.ai_sdk.ui.write import write

__all__ = ["check", "check_either", "messages", "read", "read_either", "write"]
