"""What cannot be judged: rules, budgets and grants that read a sealed value.

Whoever judges has no keys, and to them a sealed value is a token. A condition over it would be true
or false of the token, so no such policy, tool or grant is recorded; where one is all the same, by
another client, nothing is approved by it.
"""

from ayes.schemas import conditions
from ayes.schemas import events as e
from ayes.schemas.policy import TOKENS, Policy
from ayes.schemas.quorums import is_among
from ayes.schemas.sealed import names_of, overlap
from ayes.schemas.tools import Tool


def unjudged_rule(tool: Tool, *policies: Policy) -> str:
    """Why these policies cannot judge calls of this tool, as a sentence; empty if they can."""
    sealed = tool.declared.sealed
    if not sealed:
        return ""
    for policy in policies:
        for rule in policy.about(tool.name):
            if rule.when and (place := conditions.reads(rule.when, sealed)):
                return _sentence(f"rule {rule.name!r}", place, tool)
        for budget in policy.budgets:
            if budget.amount == TOKENS or not is_among(tool.name, budget.tools):
                continue
            amount = names_of(budget.amount)
            if place := next((one for one in sealed if overlap(names_of(one), amount)), ""):
                return _sentence(f"budget {budget.name!r}", place, tool)
    return ""


def unjudged_grant(tool: Tool, granted: e.Granted) -> str:
    """Why a grant cannot cover calls of this tool, as a sentence; empty if it can."""
    sealed = tool.declared.sealed
    if granted.arguments is not None and sealed:
        return (
            f"{sealed[0]} of {tool.name} cannot be judged: sealed, anew for each call. So no grant "
            "is for exact arguments of it: give a condition on others, or any arguments."
        )
    place = conditions.reads(granted.when, sealed) if granted.when else ""
    return _sentence("the condition of this grant", place, tool) if place else ""


def _sentence(what: str, place: str, tool: Tool) -> str:
    return (
        f"{what} reads {place} of {tool.name}, which cannot be judged: sealed. Leave it out, or "
        "declare the tool without sealing it."
    )
