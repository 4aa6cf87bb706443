"""An agent of the Claude Agent SDK whose tool calls go through the ledger.

python examples/claude_agent.py 'Build the project.'
python examples/claude_agent.py 'Go on.' SESSION        # after an approval, in the same session
"""

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from ayes import ApprovalsError, Ledger
from ayes.adapters.claude_agent_sdk import approved
from ayes.adapters.kernel import Kernel


async def main(prompt: str, session: str | None = None) -> None:
    async with Ledger.connect(name="desk") as ledger:
        kernel = Kernel(ledger, "desk", requester="ben", patience_s=5)
        options = approved(ClaudeAgentOptions(resume=session), kernel)
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, ResultMessage):
                print(f"{message.session_id}: {message.result}")


try:
    asyncio.run(main(*sys.argv[1:]))
except ApprovalsError as problem:
    sys.exit(f"error: {problem}")
