"""A provider of the Agent Approval Protocol over the ledger (docs/aap.md, docs/decisions/0045).

    agent ──► its AAP adapter ──► routes.py ──► provider.py ──► the ledger: request, decision, claim

`routes.py` speaks HTTP, `provider.py` asks the ledger, and `wire.py` says what the facts about a
call are in the protocol's words; `settings.py` has the section of the settings. `wire.py` is pure.
`provisioning.py` makes instances for programs, `instances.py` keeps them, and `deliveries.py` sends
the webhooks that wake agents.

The contract is the released client, `agentapprovalprotocol` 0.3: it trusts nothing but what this
provider says when it asks, and runs a tool only after it has consumed the approval here, which is
the claim of the call.
"""
