"""The pages: each renders what functions of the API return, and imports nothing of the ledger."""
