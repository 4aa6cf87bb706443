"""What people say to each other about a call, and whom they ask to decide. None of it counts."""

from typing import Final

from ayes.interfaces.api.base import ApiModel, ApiRouter, example
from ayes.interfaces.api.identity import Reading, Reviewing
from ayes.interfaces.api.permissions import check_comment
from ayes.interfaces.api.queries import Named
from ayes.projections.views.call import Comment, Handover, comments, handovers

router: Final = ApiRouter(tags=["calls"])


class NewComment(ApiModel):
    """A comment on a call."""

    model_config = example(text="I have asked the shop whether the parcel came back.")

    #: For people: no verdict rests on it, and no model reads it.
    text: str


@router.post("/calls/{workspace}/{thread}/{call}/comments")
async def comment(ref: Named, comment: NewComment, visit: Reading) -> list[Comment]:
    """Comment on a call without deciding, as a reviewer or as its requester.

    The answer has all comments on it. Repeating the last one is safe.
    """
    reading = visit.reading
    await check_comment(await reading.with_origin(await reading.known_call(ref)), visit.visitor)
    return comments(await (await visit.reviewer()).comment(ref, comment.text))


class NewHandover(ApiModel):
    """Whom to ask next."""

    model_config = example(to="ben", reason="You know this customer.")

    #: A person who may vote on the call.
    to: str
    #: For people.
    reason: str = ""


@router.post("/calls/{workspace}/{thread}/{call}/hand")
async def hand(ref: Named, handover: NewHandover, visit: Reviewing) -> list[Handover]:
    """Hand a pending call to a colleague, who is asked next. Nobody's right to vote changes.

    The answer has all times that it was handed over. Repeating the last one is safe.
    """
    reviewer = await visit.reviewer()
    return handovers(await reviewer.hand_over(ref, handover.to, reason=handover.reason))
