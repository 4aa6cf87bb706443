"""The names in use, for a box in which people search."""

from collections import Counter
from operator import attrgetter
from typing import Final

from msgspec import Struct

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading

router: Final = ApiRouter(tags=["calls"])

_FIELDS: Final = ("tool", "agent", "requester", "rule")
#: Names of a kind, the most frequent ones.
_MOST: Final = 50


class NamesInUse(Struct, frozen=True):
    """Names in the calls that wait, those of most calls first. Each is a value of the word of that
    name in a query.
    """

    tool: list[str]
    agent: list[str]
    requester: list[str]
    rule: list[str]
    #: As `name=value`.
    label: list[str]


@router.get("/names")
async def names(visit: Reading, workspace: str = "") -> NamesInUse:
    """The names in use in the calls that wait: what a query can say."""
    every = [one for one in visit.waiting.oldest() if workspace in {"", one.workspace}]
    found = {key: Counter(map(attrgetter(key), every)) for key in _FIELDS}
    labelled = (one.labels for one in every if one.labels)
    found["label"] = Counter(f"{name}={value}" for of in labelled for name, value in of.items())
    return NamesInUse(
        **{
            key: [name for name, _ in counted.most_common(_MOST) if name]
            for key, counted in found.items()
        }
    )
