"""What the policy is asked about a call: the wish as it came, or as a reviewer would have it run."""

from ledger.lifecycle import Call
from schemas import jsontext
from schemas.policy import About, Policy, judge


def about(call: Call, arguments: str | None = None) -> About:
    """The wish as a policy judges it; `arguments` are those that were found to fit the tool's schema."""
    wish = call.wish
    return About(
        tool=wish.tool,
        args=None if arguments is None else jsontext.read(arguments),
        agent=wish.agent,
        requester=wish.requester,
        workspace=call.ref.workspace,
        thread=call.ref.thread,
        labels=wish.labels,
    )


def edit_problem(policy: Policy, call: Call, arguments: str) -> str | None:
    """Why the policy in force does not let the call run with a reviewer's arguments; None if it does.

    People were asked about other arguments. Where the policy blocks these, or asks more people about them than were
    asked, their yes is not enough: a later word may only tighten.
    """
    asking = call.asking
    judged = judge(policy, about(call, arguments))
    if judged.then == "block":
        return f"rule {judged.rule.name!r} of the policy blocks {call.wish.tool} with these arguments."
    if judged.then == "ask" and asking is not None and judged.rule.votes_needed > asking.votes_needed:
        return (
            f"with these arguments rule {judged.rule.name!r} asks for {judged.rule.votes_needed} votes, "
            f"and {asking.votes_needed} were asked for. Deny it, so that it is requested anew."
        )
    return None
