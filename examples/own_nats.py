"""Prepare a NATS server of your own for the ledger: writes accounts.conf and passwords.json here.

python own_nats.py [REVIEWER ...]        as in: python own_nats.py ana ben
"""

import json
import sys
from pathlib import Path

from ayes.ledger.nats.credentials import Store
from ayes.ops.broker.accounts import REVIEWER, accounts_config
from ayes.ops.broker.server import passwords

# Keeps the passwords that are there, so that adding a reviewer changes nobody else's.
kept = Path("passwords.json")
before = json.loads(kept.read_text()) if kept.exists() else {}
secrets = passwords(before, [REVIEWER + name for name in sys.argv[1:]])
# The logins that `ayes auth add --store .` made, if there is an address.json here.
known = Store(".").read()
for file, text in (
    (kept, json.dumps(secrets, indent=2)),
    (
        Path("accounts.conf"),
        accounts_config(secrets, logins=known.living_logins(), of_people=known.scopes),
    ),
):
    file.touch(mode=0o600)
    file.write_text(text)
