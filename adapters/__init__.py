"""Where agents already are: each module lets one kind of client ask through the ledger."""
