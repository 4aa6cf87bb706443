"""Prepare a NATS server of your own for the ledger: writes accounts.conf and passwords.json here.

python own_nats.py [REVIEWER ...]        as in: python own_nats.py ana ben
"""

import json
import secrets
import sys
from pathlib import Path

from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.accounts import ADMIN, READS, REVIEWER, ROLES, SYSTEM, accounts_config

# Keeps the passwords that are there, so that adding a reviewer changes nobody else's.
kept = Path("passwords.json")
passwords = json.loads(kept.read_text()) if kept.exists() else {}
for role in (ADMIN, SYSTEM, READS, *ROLES, *(REVIEWER + name for name in sys.argv[1:])):
    passwords.setdefault(role, secrets.token_urlsafe(32))
# The logins that `ayes auth add --store .` made, if there is an address.json here.
known = Store(".").read()
for file, text in (
    (kept, json.dumps(passwords, indent=2)),
    (
        Path("accounts.conf"),
        accounts_config(passwords, logins=known.living_logins(), of_people=known.scopes),
    ),
):
    file.touch(mode=0o600)
    file.write_text(text)
