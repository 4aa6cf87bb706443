"""The texts that the model reads about a call that did not run as it wished.

A model continues from these sentences, so each says three things plainly: that nothing ran, who or
what stopped it, and why. Every ending has its own words. "Nobody answered in time" is not "a person
said no", and a model that confuses them gives up on something that it could ask for again.

`tool_not_run` gives the fact that closes such a call. Its text is recorded with the call, so
changing a sentence here never changes what a model was sent before.
"""

from ayes.ledger.lifecycle import Call
from ayes.schemas import events as e
from ayes.schemas.errors import Defect
from ayes.schemas.limits import MAX_TEXT, cut


def tool_not_run(call: Call) -> e.ToolRefused:
    """The refusal that the model reads in place of a result, to be recorded as `finished`.

    Raises:
        Defect: the call may run.
    """
    tool = f"`{call.wish.tool}`"
    match call.declined or (call.revoked and call.revoked.event):
        case e.Declined(why="unknown_tool"):
            return _refused(
                "unknown_tool", f"{tool} did not run: there is no such tool here any more."
            )
        case e.Declined(why="digest_mismatch"):
            return _refused(
                "digest_mismatch",
                f"{tool} did not run: what was about to run was not exactly what had been "
                "approved.",
            )
        case e.Declined(why="people_were_asked"):
            return _refused(
                "people_were_asked",
                f"{tool} did not run: people were asked about this call, and before they answered "
                "it was let through without them.",
            )
        case e.Revoked(reason=reason):
            return _refused(
                "revoked",
                f"{tool} did not run: it was approved, and a person took the approval back before "
                "it started." + _why("Their reason", reason),
            )
        case _:
            pass
    match call.decided and call.decided.event:
        case e.Denied(ground="people", reason=reason):
            because = _why("Their reason", reason) or " They gave no reason."
            return _refused(
                "denied", f"{tool} did not run: a person reviewed this call and said no.{because}"
            )
        case e.Denied(ground="policy", rule=rule, reason=reason):
            asked = "" if call.gated else " No person was asked."
            return _refused(
                "denied",
                f"{tool} did not run: rule {rule!r} of the policy does not allow this call.{asked}"
                + _why("The rule says", reason),
            )
        case e.Denied(ground="repeated", reason=reason):
            return _refused(
                "denied",
                f"{tool} did not run: a person has said no to this very call before, and nothing "
                "was said since, so no person was asked again." + _why("In detail", reason),
            )
        case e.Denied(ground="limit", reason=reason):
            return _refused(
                "denied",
                f"{tool} did not run: this conversation has used up what the policy lets it do."
                + _why("In detail", reason),
            )
        case e.Denied(reason=reason) if not call.wish.tool_version:
            return _refused(
                "unknown_tool",
                f"{tool} did not run: no tool of that name is offered here."
                + _why("In detail", reason),
            )
        case e.Denied(reason=reason):
            return _refused(
                "denied",
                f"{tool} did not run: the call is not valid, and nobody was asked about it."
                + _why("What is wrong with it", reason),
            )
        case e.Answered(answer=answer):
            empty = (
                f"A person answered in place of {tool}, which did not run. Their answer was empty."
            )
            return _refused("answered", answer if answer.strip() else empty)
        case e.Expired(after_s=after_s):
            return _refused(
                "expired",
                f"{tool} did not run: a person had to approve this call and nobody decided within "
                f"{_span(after_s)}. Nobody said no either.",
            )
        case e.Withdrawn(reason=reason):
            return _refused(
                "withdrawn",
                f"{tool} did not run: the request was taken back before it was decided."
                + _why("The reason", reason),
            )
        case e.Superseded(reason=reason):
            return _refused(
                "superseded",
                f"{tool} did not run: something newer came before it was decided, and the call no "
                "longer stands." + _why("What came", reason),
            )
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


def _refused(ending: e.Ending, text: str) -> e.ToolRefused:
    return e.ToolRefused(ending=ending, text=cut(text, MAX_TEXT))


def _why(what: str, reason: str) -> str:
    return f" {what}: {reason.strip()}" if reason.strip() else ""


def _span(seconds: float) -> str:
    """A duration in the largest unit that divides it."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{seconds:g} second{'' if seconds == 1 else 's'}"
