"""The names in use, for a box in which people search."""

from collections import Counter
from typing import Final

from msgspec import Struct

from ayes.interfaces.api.base import ApiRouter
from ayes.interfaces.api.identity import Reading
from ayes.projections.call_query import NAMES

router: Final = ApiRouter(tags=["calls"])

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
    found: dict[str, Counter[str]] = {key: Counter() for key in NamesInUse.__struct_fields__}
    for entry in visit.waiting.oldest():
        if workspace in {"", entry.workspace}:
            for key, counted in found.items():
                counted.update(one for one in NAMES[key](entry) if one)
    labels = found["label"]
    for name in [one for one in labels if "=" not in one]:
        del labels[name]
    return NamesInUse(
        **{key: [name for name, _ in counted.most_common(_MOST)] for key, counted in found.items()}
    )
