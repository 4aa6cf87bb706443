"""Prepare a NATS server of your own for the ledger: writes accounts.conf and passwords.json here.

python own_nats.py [REVIEWER ...]        as in: python own_nats.py ana ben
"""

import json
import secrets
import sys
from pathlib import Path

from ayes.ops.broker.accounts import ADMIN, REVIEWER, ROLES, SYSTEM, accounts_config

# Keeps the passwords that are there, so that adding a reviewer changes nobody else's.
kept = Path("passwords.json")
passwords = json.loads(kept.read_text()) if kept.exists() else {}
for role in (ADMIN, SYSTEM, *ROLES, *(REVIEWER + name for name in sys.argv[1:])):
    passwords.setdefault(role, secrets.token_urlsafe(32))
for file, text in (
    (kept, json.dumps(passwords, indent=2)),
    (Path("accounts.conf"), accounts_config(passwords)),
):
    file.touch(mode=0o600)
    file.write_text(text)
