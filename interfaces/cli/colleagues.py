"""What people say to each other about a call, and whom they ask to decide."""

from typing import Annotated, Final

from ayes.interfaces.cli.command import Session, command, commands
from ayes.interfaces.cli.options import AsOption, CallArgument, WhyOption, argument
from ayes.interfaces.cli.terminal.prompt import text_or_stdin
from ayes.projections.views.call import comments, handovers

app: Final = commands()


@command(app, examples="ayes comment shop/order-17/refund-1 'I have asked the shop.' --as ana")
async def comment(
    call: CallArgument,
    text: Annotated[str, argument("TEXT", "What you say; - for stdin.")],
    name: AsOption,
    *,
    session: Session,
) -> None:
    """Say something about a call without deciding. No model reads it."""
    async with session.as_reviewer(name) as ledger:
        known = await ledger.reviewer(name).comment(call, text_or_stdin(text))
    session.print(comments(known), f"{call} has your comment. See it with ayes show {call}")


@command(app, examples="ayes hand shop/order-17/refund-1 ben --reason 'You know them.' --as ana")
async def hand(
    call: CallArgument,
    to: Annotated[str, argument("TO", "Who is asked next: somebody who may vote on it.")],
    name: AsOption,
    reason: WhyOption = "",
    *,
    session: Session,
) -> None:
    """Hand a pending call to a colleague, who is asked next. Nobody's right to vote changes."""
    async with session.as_reviewer(name) as ledger:
        known = await ledger.reviewer(name).hand_over(call, to, reason=reason)
    session.print(handovers(known), f"{call} is handed to {to}. You may vote on it all the same.")
