"""What the console keeps for a person: one document, which is replaced as a whole."""

from datetime import datetime

from msgspec import Struct

from ayes.projections.saved_views import SavedView
from ayes.projections.snoozes import Snooze


class Kept(Struct, frozen=True):
    #: The person.
    author: str
    #: By the broker's clock.
    saved_at: datetime
    #: In the order of their names.
    views: tuple[SavedView, ...] = ()
    snoozes: tuple[Snooze, ...] = ()
