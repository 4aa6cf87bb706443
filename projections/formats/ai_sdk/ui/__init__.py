"""The `UIMessage` list of the Vercel AI SDK, which a chat keeps and sends.

The checker and the reader of `ai-sdk` recognise both forms (`check_either`, `read_either`). A
writer cannot, so UIMessages are written for `ai-sdk-ui`, whose checker and reader accept only this
form and report a ModelMessage among stored UIMessages.
"""

from ayes.projections.formats.ai_sdk.ui.check import check, check_either
from ayes.projections.formats.ai_sdk.ui.live import messages
from ayes.projections.formats.ai_sdk.ui.read import read, read_either
from ayes.projections.formats.ai_sdk.ui.write import write

__all__ = ["check", "check_either", "messages", "read", "read_either", "write"]
