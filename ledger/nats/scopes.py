"""What a login that has some workspaces only may read, as patterns of subjects.

The broker refuses such a login the whole JetStream API: what a request reads is in its body, which
no permission checks. It asks the service of `ayes.ops.broker.reads` in the same words instead, at
subjects that name the login and its workspaces. This is the rule of that service, and what clients
narrow their questions with.
"""

import functools
from typing import Final

from ayes.ledger.subscriptions import OPERATOR
from ayes.schemas.slots import FILES, KEY, ORGANISATION, PERSON, POLICY, ROOT, STOP

#: How the logins of people begin.
_PERSON: Final = "reviewer-"
#: The kinds of entries in the bucket `running` that are about a call.
_ABOUT_CALLS: Final = ("", "_renewed.", "_void.")
#: The roles whose logins follow a durable of their own; its kind has the same name.
FOLLOWING: Final = ("executor", "model")


def prefix(login: str, scope: str) -> str:
    """The prefix of a scoped login's requests, in place of `$JS.API`."""
    return f"reads.{login}.{scope}"


@functools.lru_cache(maxsize=1024)
def _places(workspaces: tuple[str, ...], login: str) -> tuple[str, ...]:
    """How the subjects begin that may be read in these workspaces. The organisation's policy and
    its stops hold in all of them; of its people and their keys a person may read what is about
    themselves, and of parked deliveries a worker its own.
    """
    me = login.removeprefix(_PERSON)
    return (
        *(f"{ROOT}.{ORGANISATION}.{one}.{me}." for one in (PERSON, KEY) if me != login),
        *(
            place
            for one in workspaces
            for place in (
                f"{ROOT}.{one}.",
                f"{FILES}.{one}.",
                f"$KV.pending.{one}.",
                *(f"$KV.running.{kind}{one}." for kind in _ABOUT_CALLS),
            )
        ),
        f"{ROOT}.{ORGANISATION}.{POLICY}.",
        f"{ROOT}.{ORGANISATION}.{STOP}.",
        *(f"parked.{role}.{login}@{kind}." for kind in FOLLOWING for role in ("*", kind, OPERATOR)),
    )


def is_within(pattern: str, workspaces: tuple[str, ...], login: str) -> bool:
    """Whether all subjects that match a pattern may be read by a login with these workspaces."""
    return pattern.startswith(_places(workspaces, login))


def within(pattern: str, workspaces: tuple[str, ...], login: str) -> tuple[str, ...]:
    """The parts of a pattern of subjects that may be read; the pattern itself if all of it may."""
    if is_within(pattern, workspaces, login):
        return (pattern,)
    found = (_common(pattern, f"{one}>") for one in _places(workspaces, login))
    return tuple(one for one in found if one is not None)


def _common(pattern: str, other: str) -> str | None:
    """The pattern of the subjects that match both; None if there are none.

    Where one of two ends with `>`, the rest is that of the other, as long as it has a rest.
    """
    first, second, common = pattern.split("."), other.split("."), list[str]()
    for place in range(max(len(first), len(second))):
        here = [words[place] if place < len(words) else "" for words in (first, second)]
        if ">" in here:
            rest = (second if here[0] == ">" else first)[place:]
            return ".".join((*common, *rest)) if rest else None
        one, another = here
        if (one != another and "*" not in here) or "" in here:
            return None
        common.append(another if one == "*" else one)
    return ".".join(common)
