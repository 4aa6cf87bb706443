"""Conditions of rules, in the Common Expression Language (https://cel.dev): `args.amount > 100 && agent == "desk"`.

A condition sees what is judged and nothing else: it has no side effects, no clock and no network, so it may be evaluated
as often as anybody likes and always says the same. It says yes, or no, or it cannot say: a key that is not there, a
comparison of a number with a text. Whoever asks must take the last for "a person should look at this", never for
yes or no; hence it is an exception.

The library stands behind these two functions alone, so that another one can take its place.
"""

from functools import lru_cache
from typing import Any, Final

#: So long may a condition be: one that nobody can read should be several rules.
MAX_LENGTH: Final = 2000

#: What a condition can name.
NAMES: Final = ("args", "tool", "agent", "requester", "workspace", "thread", "labels")


class BadCondition(ValueError):
    """It is no condition."""


class CannotSay(Exception):
    """The condition does not fit what is judged. A person should look at it."""


def check(condition: str) -> None:
    """Raise `BadCondition` with a sentence if this can never be evaluated."""
    if len(condition) > MAX_LENGTH:
        raise BadCondition(
            f"a condition may have {MAX_LENGTH:,} characters; this one has {len(condition):,}."
        )
    try:
        _compiled(condition)
    except Exception as problem:  # noqa: BLE001 - whatever its parser raises, it is no condition
        raise BadCondition(f"{condition!r} is no condition: {_first_line(problem)}.") from None
    try:
        _compiled(condition).execute({name: {} for name in NAMES})
    except RuntimeError as problem:  # of a name that it does not know; what else is wrong depends on the call
        if "Undefined" in str(problem):
            raise BadCondition(
                f"{condition!r} names what is not there: {_first_line(problem)}. A condition knows {', '.join(NAMES)}."
            ) from None
    except Exception:  # noqa: BLE001, S110 - empty arguments fit few conditions
        pass


def holds(condition: str, about: dict[str, Any]) -> bool:
    """Does it hold for this? `about` has the `NAMES`.

    Raises:
        CannotSay: with what is the matter.
    """
    try:
        said = _compiled(condition).execute(about)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # noqa: BLE001 - a panic of the library is no Exception, and no yes either
        raise CannotSay(
            f"{condition!r} cannot be evaluated: {type(problem).__name__}: {_first_line(problem)}"
        ) from None
    if not isinstance(said, bool):
        raise CannotSay(f"{condition!r} is neither true nor false but {said!r:.60}")
    return said


@lru_cache(maxsize=4096)
def _compiled(condition: str) -> Any:
    from cel import cel

    return cel.compile(condition)


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().partition("\n")[0].rstrip(".")[:200] or "it says nothing more"
