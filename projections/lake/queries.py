"""The saved queries: frequent questions about the tables, each with its SQL.

    QUESTIONS      by name; `ayes ask NAME` runs one, `ayes ask NAME --list` shows its SQL
    uncited        the part of the answer to `rules` that SQL alone cannot give

The rules for `saved_queries/*.sql`:

* Each is one SELECT over the catalog's tables (`tables`), so that it can be copied and changed
  elsewhere. Its first comment is the question.
* The order of the rows is total: the same lake gives the same answer, to the byte.
* "Now" is when the newest fact was recorded, not the clock: a lake that is not synced does not age.
* Times are UTC. Durations are counted on the broker's clock in whole microseconds and shown in
  seconds (`_s`), so sums do not depend on the order of addition.
* A share is a fraction of the number before it in the row, and NULL where that number is 0.
"""

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

from msgspec import Struct

from ayes.schemas.policy import read_policy


class SavedQuery(Struct, frozen=True):
    """A named question and the SQL that answers it."""

    name: str
    title: str
    sql: str


#: As they are listed.
_NAMES: Final = (
    "time-to-decision",
    "who-decides",
    "overrides",
    "edits",
    "pending-age",
    "failed-after-approval",
    "expiries",
    "rubber-stamping",
    "cost-of-waiting",
    "grants-in-use",
    "rules",
    "reused-provider-ids",
    "longest-threads",
    "in-doubt",
    "not-asked",
    "busiest-hours",
    "repeated-denials",
    "break-glass",
    "four-eyes",
    "agents",
)


def _load(name: str) -> SavedQuery:
    """A file holds the sentence in the comment before its first blank line, then the SQL."""
    text = (resources.files(__package__) / "saved_queries" / f"{name}.sql").read_text()
    comment, _, sql = text.partition("\n\n")
    return SavedQuery(name, comment.removeprefix("-- ").replace("\n-- ", " "), sql)


#: By name, in the order in which they are listed.
QUESTIONS: Final[Mapping[str, SavedQuery]] = {name: _load(name) for name in _NAMES}

#: The newest policy of each workspace and of the organisation.
IN_FORCE: Final = """
SELECT workspace AS policy, version, text FROM policies WHERE text IS NOT NULL
QUALIFY version = max(version) OVER (PARTITION BY workspace) ORDER BY policy
"""


def uncited(policy: str, text: str, cited: Iterable[str]) -> tuple[dict[str, object], ...]:
    """The rules of a policy that are not cited, as rows of the answer to `rules`, in file order.

    A shadow rule has no effect, so it is never cited. Where a rule of the organisation and one of
    the workspace both ask, the organisation's is cited.

    Raises:
        BadFile: this program cannot read the policy.
    """
    known = set(cited)
    return tuple(
        {
            "policy": policy,
            "rule": rule.name,
            "standing": "shadow" if rule.shadow else "never",
            "calls": 0,
            "asked": 0,
            "allowed": 0,
            "blocked": 0,
            "last_at": None,
        }
        for rule in read_policy(text, f"the policy of {policy}").rules
        if rule.name not in known
    )
