"""Proposed policies, if the organisation wants a second person to agree to each version.

A version is proposed as a call of `apply_policy`: its arguments hold the text and the number of the
version that was the last one then. People decide about it as about any call, and the tool governs,
so no rule and no grant lets it through without them. The version that is applied names the call.

Where the organisation's policy says `policies_need_approval`, a workspace's version counts only if
`problem` finds nothing wrong with it. Each proposal is for one version number, and a slot takes one
fact, so it counts once.
"""

from typing import Final

import msgspec

from ayes.ledger.call import Call
from ayes.schemas import events as e
from ayes.schemas.codec import Fact
from ayes.schemas.errors import BadId, BadSlot
from ayes.schemas.people import is_excluded
from ayes.schemas.slots import CallRef, ThreadRef
from ayes.schemas.tools import ToolSpec, declaration

#: Proposals are calls of this tool. The proposer applies the version once people approved it.
APPLY: Final = ToolSpec(
    name="apply_policy",
    description="Makes this text the policy of the workspace.",
    schema=msgspec.json.encode(
        {
            "type": "object",
            "properties": {"text": {"type": "string"}, "base": {"type": "integer", "minimum": 0}},
            "required": ["text", "base"],
            "additionalProperties": False,
        }
    ).decode(),
    governs=True,
)
#: The thread of a workspace's proposals.
THREAD: Final = "policy"


def proposal_ref(workspace: str, base: int, digest: str) -> CallRef:
    """The call that proposes a text as the version after `base`; the same one each time."""
    return ThreadRef(workspace, THREAD).call(f"v{base + 1}-{digest[:12]}")


def arguments(text: str, base: int) -> str:
    return msgspec.json.encode({"text": text, "base": base}).decode()


def named_proposal(fact: Fact) -> CallRef | None:
    """The call of the same workspace that a version names as its proposal, if any."""
    if not isinstance(fact.event, e.PolicyApplied) or not fact.event.proposal:
        return None
    try:
        ref = CallRef.parse(fact.event.proposal)
    except (BadId, BadSlot):
        return None
    return ref if ref.workspace == fact.slot.workspace else None


def problem(fact: Fact, proposal: Call | None) -> str | None:
    """Why a version does not count where versions need approval; None if it does.

    Args:
        proposal: the call that `named_proposal` gives, as all facts make it.
    """
    event = fact.event
    if not isinstance(event, e.PolicyApplied):
        return "it cannot be read"
    if proposal is None or proposal.requested is None:
        return "no proposal is named that was ever requested"
    version, _ = declaration(APPLY)
    wish = proposal.wish
    if (wish.tool, wish.tool_version) != (APPLY.name, version):
        return f"{proposal.ref} is not a proposal"
    decided = proposal.decided
    if decided is None or decided.seq > fact.seq or not isinstance(decided.event, e.Approved):
        return f"{proposal.ref} was not approved before it"
    others = [
        voter
        for voter in decided.event.voters
        if not is_excluded(voter, (wish.requester,) if wish.requester else ())
    ]
    if (
        proposal.flaw is not None
        or not others
        or decided.event.ground not in ("people", "broken_glass")
    ):
        return f"nobody but its proposer approved {proposal.ref}"
    if proposal.revoked is not None and proposal.revoked.seq < fact.seq:
        return f"the approval of {proposal.ref} was revoked before it"
    said = msgspec.json.decode(proposal.arguments)
    if said["text"] != event.text:
        return f"{proposal.ref} proposes another text"
    if (str(said["base"] + 1),) != fact.slot.tail[1:]:
        return f"{proposal.ref} proposes another version"
    return None
