"""The `UIMessage` list of the Vercel AI SDK, which a chat keeps and sends.

The checker of `ai-sdk` recognises both forms (`check_either`). A writer cannot, so UIMessages are
written for `ai-sdk-ui`, whose checker accepts only this form and reports a ModelMessage among
stored UIMessages.
"""

from ayes.projections.formats.ai_sdk.ui.check import check, check_either
from ayes.projections.formats.ai_sdk.ui.live import messages
from ayes.projections.formats.ai_sdk.ui.write import write

__all__ = ["check", "check_either", "messages", "write"]
