"""Recorded facts in words, for error messages and for the command line."""

from typing import Final

from ayes.schemas import events as e
from ayes.schemas.codec import Fact

#: Why an approval does not let a call run (`Call.flaw`).
FLAWS: Final = {
    "digest_mismatch": "the arguments are not the ones that were approved",
    "people_were_asked": "a policy approved it although people had been asked and had not answered",
}


def describe(fact: Fact) -> str:
    """What was recorded, by whom and when: `Denied by ben at 2026-01-31 12:00:00 UTC`."""
    event, by = fact.event, _author(fact)
    what = event.type if isinstance(event, e.Carried) else type(event).__name__
    return f"{what}{f' by {by}' if by else ''} at {fact.recorded_at:%Y-%m-%d %H:%M:%S} UTC"


def _author(fact: Fact) -> str:
    """The people or the rule behind a fact; for other facts the author of its envelope."""
    event, tail = fact.event, fact.slot.tail
    match event:
        case e.Approved() | e.Denied() | e.Answered() if event.voters:
            behalf = event.on_behalf_of
            who = ", ".join(
                f"{one} for {behalf[one]}" if one in behalf else one for one in event.voters
            )
            if isinstance(event, e.Approved) and event.ground == "broken_glass":
                who += ", who broke the glass"
            if isinstance(event, e.Approved) and event.grants:
                who += f" (grant {', '.join(event.grants)})"
            return who
        case (
            e.Approved(ground="policy", rule=rule) | e.Denied(ground="policy" | "limit", rule=rule)
        ):
            return f"policy rule {rule!r}"
        case e.Denied(ground="repeated"):
            return "the gate, as it was before"
        case e.GlassBroken(reviewer=reviewer):
            return reviewer
        case e.Voted(on_behalf_of=principal):
            return f"{tail[3]} for {principal}" if principal else tail[3]
        case e.Revoked() | e.Reconciled() if tail[2] != "claim" and len(tail) > 3:
            return tail[3]
        case e.Event(by=e.Author(name=name)):
            return name
        case _:
            return ""
