"""The texts that the model reads about a call that did not run as it wished.

A model continues from these sentences, so each says three things plainly: that nothing ran, who or
what stopped it, and why. Every ending has its own words. "Nobody answered in time" is not "a person
said no", and a model that confuses them gives up on something that it could ask for again.

`tool_not_run` gives the fact that closes such a call. Its text is recorded with the call, so
changing a sentence here never changes what a model was sent before.
"""

from typing import Final

from ayes.ledger.call import Call
from ayes.schemas import events as e
from ayes.schemas.errors import Defect
from ayes.schemas.limits import MAX_TEXT, cut
from ayes.schemas.times import duration


def tool_not_run(call: Call) -> e.ToolRefused:
    """The refusal that the model reads in place of a result, to be recorded as `finished`.

    Raises:
        Defect: the call may run.
    """
    ending, text = _declined(call) or _answered(call) or _decided(call)
    return e.ToolRefused(ending=ending, text=cut(text, MAX_TEXT))


def _declined(call: Call) -> tuple[e.Ending, str] | None:
    """The words for a call that an executor, a person or time stopped after its approval."""
    none = f"`{call.wish.tool}` did not run:"
    stopped = call.revoked or call.lapsed
    match call.declined or (stopped and stopped.event):
        case e.Declined(why="unknown_tool"):
            return "unknown_tool", f"{none} there is no such tool here any more."
        case e.Declined(why="digest_mismatch"):
            what = "what was about to run was not exactly what had been approved."
            return "digest_mismatch", f"{none} {what}"
        case e.Declined(why="people_were_asked"):
            what = "people were asked about this call, and before they answered it was let through"
            return "people_were_asked", f"{none} {what} without them."
        case e.Declined(why="unproved"):
            what = "its approval does not follow from what people have signed."
            return "unproved", f"{none} {what}"
        case e.Declined(why="forgotten"):
            what = "what was sealed in this conversation was forgotten, and cannot be opened."
            return "forgotten", f"{none} {what}"
        case e.Declined(why="unopened"):
            return "unopened", f"{none} a sealed value in it cannot be opened."
        case e.Declined(why="misfit"):
            return "misfit", f"{none} what was sealed in it does not fit the schema of the tool."
        case e.Revoked(answer=None, reason=reason):
            what = "it was approved, and a person took the approval back before it started."
            return "revoked", f"{none} {what}{_why('Their reason', reason)}"
        case e.Lapsed(rule=rule, reason=reason) if rule:
            what = (
                f"it was approved, and before it began a newer policy blocked it (rule {rule!r})."
            )
            return "lapsed", f"{none} {what}{_why('The rule says', reason)}"
        case e.Lapsed(grants=grants, reason=reason) if grants:
            what = "the grant that approved it was revoked before it began."
            return "lapsed", f"{none} {what}{_why('The reason', reason)} It may be requested again."
        case e.Lapsed(after_s=after_s):
            what = f"its approval was valid for {duration(after_s)}, and it had not begun by then."
            return "lapsed", f"{none} {what} It may be requested again."
        case _:
            return None


def _answered(call: Call) -> tuple[e.Ending, str] | None:
    """The words of a person who answered in place of the tool."""
    if (given := call.answer) is None:
        return None
    ending: e.Ending = "answered_with_error" if given.is_error else "answered"
    if given.answer and given.answer.strip():
        return ending, given.answer
    what = f"A person answered in place of `{call.wish.tool}`, which did not run."
    return ending, f"{what} Their answer was empty."


def _decided(call: Call) -> tuple[e.Ending, str]:
    """The words for a call that was not approved."""
    tool = f"`{call.wish.tool}`"
    none = f"{tool} did not run:"
    match call.decided and call.decided.event:
        case e.Denied(ground="people", reason=reason):
            because = _why("Their reason", reason) or " They gave no reason."
            return "denied", f"{none} a person reviewed this call and said no.{because}"
        case e.Denied(ground="policy", rule=rule, reason=reason):
            asked = "" if call.gated else " No person was asked."
            what = f"rule {rule!r} of the policy does not allow this call.{asked}"
            return "denied", f"{none} {what}{_why('The rule says', reason)}"
        case e.Denied(ground="repeated", reason=reason):
            what = (
                "a person has said no to this very call before, and nothing was said since, so no "
                "person was asked again."
            )
            return "denied", f"{none} {what}{_why('In detail', reason)}"
        case e.Denied(ground="limit", reason=reason):
            what = "a limit of the policy is reached."
            return "denied", f"{none} {what}{_why('In detail', reason)}"
        case e.Denied(reason=reason) if not call.wish.tool_version:
            what = "no tool of that name is offered here."
            return "unknown_tool", f"{none} {what}{_why('In detail', reason)}"
        case e.Denied(reason=reason):
            what = "the call is not valid, and nobody was asked about it."
            return "denied", f"{none} {what}{_why('What is wrong with it', reason)}"
        case e.Expired(after_s=after_s):
            what = "a person had to approve this call and nobody decided within"
            return "expired", f"{none} {what} {duration(after_s)}. Nobody said no either."
        case e.Withdrawn(reason=reason):
            what = "the request was taken back before it was decided."
            return "withdrawn", f"{none} {what}{_why('The reason', reason)}"
        case e.Superseded(reason=reason):
            what = "something newer came before it was decided, and the call no longer stands."
            return "superseded", f"{none} {what}{_why('What came', reason)}"
        case _:
            raise Defect(f"{call.ref} is {call.status}: there is no refusal to put into words.")


def arguments_changed(arguments: str) -> str:
    """The sentence before the result of a call that ran with a reviewer's arguments."""
    return f"A reviewer changed the arguments of this call before it ran. It ran with: {arguments}"


def unreadable(message: str) -> str:
    """Replaces a message that cannot be read: the model should know that one is missing."""
    return f"Message {message!r} of this conversation cannot be read and is left out."


def spoiled(tool: str) -> str:
    """For a wish whose request cannot be read."""
    return f"`{tool}` did not run: the request for it cannot be read."


def refused_in_silence(tool: str) -> str:
    """For a refusal that was recorded without words."""
    return f"`{tool}` did not run."


def failed_in_silence(tool: str) -> str:
    """For a failure that was recorded without words."""
    return f"`{tool}` was started and failed. It gave no reason."


def reconciled_in_silence(tool: str, happened: bool) -> str:
    """For a call in doubt that a person settled without a word for the model."""
    if happened:
        return f"A person checked: this call of `{tool}` did take place. What it gave is not known."
    return f"A person checked: this call of `{tool}` did not take place."


def started_elsewhere(tool: str) -> str:
    """For a call that another process has started, and whose result is not recorded yet."""
    return (
        f"`{tool}` was started by another process, and its result is not known yet. It was not "
        "started again. Do not repeat it: it may have taken effect."
    )


def in_doubt(tool: str) -> str:
    """For a call whose runner died: a person has to find out."""
    return (
        f"`{tool}` was started and its result never came. It may have taken effect, and a person "
        "has to find out. It was not started again. Do not repeat it."
    )


#: Follows what is recorded about a call that may be one of an earlier turn.
MAY_BE_EARLIER: Final = (
    "This is the record of the call with this id, tool and arguments. If an earlier call of this "
    "conversation had them, it is the record of that one, and nothing ran anew."
)


def not_as_approved(tool: str, flaw: str) -> str:
    """For an approval that does not let the call run."""
    return f"`{tool}` did not run: {flaw}."


def bad_arguments(tool: str, problem: str) -> str:
    """For a call that was not requested, because its arguments break the tool's schema."""
    return f"`{tool}` did not run, and nobody was asked: {problem}"


def no_such_tool(tool: str) -> str:
    """For a tool that the agent does not have."""
    return f"`{tool}` did not run: no tool of that name is offered here."


def waits(tool: str) -> str:
    """For a client that cannot pause at a call that is not decided."""
    return f"`{tool}` did not run yet: the call waits for approval. Do not repeat it."


def _why(what: str, reason: str) -> str:
    return f" {what}: {reason.strip()}" if reason.strip() else ""
