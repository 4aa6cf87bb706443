"""Histories as the Vercel AI SDK shows them: its `UIMessage` list, which a chat keeps and sends.

A checker and a reader can recognise the form, so those of `ai-sdk` take both (`check_either`,
`read_either`). A writer cannot, so UIMessages are written for `ai-sdk-ui`. Its checker and reader
take nothing else, so that a ModelMessage among stored UIMessages is reported.
"""

from ayes.projections.formats.ai_sdk.ui.check import check, check_either
from ayes.projections.formats.ai_sdk.ui.live import messages
from ayes.projections.formats.ai_sdk.ui.read import read, read_either
from ayes.projections.formats.ai_sdk.ui.write import write

__all__ = ["check", "check_either", "messages", "read", "read_either", "write"]
