"""Votes of reviewers."""

from typing import Final

from fastapi import APIRouter

from ayes.ops.commands.outcome import open_tally
from ayes.ops.console.api.models import CallState, Model, Named
from ayes.ops.console.backend import InBackend
from ayes.ops.console.identity import Reviewing
from ayes.schemas.events import Verdict

router: Final = APIRouter(tags=["votes"])


class Vote(Model):
    verdict: Verdict
    #: The digest that the reviewer was shown.
    digest: str
    reason: str = ""
    #: Raw JSON text to run instead; only with `approve`.
    arguments: str | None = None
    #: What the model gets in place of the tool's output; only with `answer`.
    answer: str = ""
    on_behalf_of: str = ""
    halt: bool = False


@router.post("/calls/{workspace}/{thread}/{call}/votes")
async def vote(ref: Named, vote: Vote, backend: InBackend, visitor: Reviewing) -> CallState:
    """Vote on a call, in the visitor's own name. The same vote again is refused and harmless."""
    reviewer = await backend.reviewer(visitor.name)
    known = await reviewer.vote(
        ref,
        vote.verdict,
        reason=vote.reason,
        arguments=vote.arguments,
        answer=vote.answer,
        on_behalf_of=vote.on_behalf_of,
        halt=vote.halt,
        digest=vote.digest,
    )
    return CallState.of(known, await open_tally(backend.reading, known))
