"""What people say to each other about a call. None of it counts."""

from typing import Final

from ayes.interfaces.api.base import ApiModel, ApiRouter, example
from ayes.interfaces.api.identity import Reading
from ayes.interfaces.api.permissions import check_comment
from ayes.interfaces.api.queries import Named
from ayes.projections.views.call import Comment, comments

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
