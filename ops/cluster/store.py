"""What the store of a cluster has besides that of one server: an authority for certificates."""

from typing import Final

from ayes.ledger.nats.credentials import Store
from ayes.ops.cluster.certificates import Certificate, new_authority
from ayes.ops.cluster.config import AUTHORITY

_KEY: Final = "ca.key"
#: The numbers of nodes of which a majority remains when one is away, or two.
SIZES: Final = (3, 5)


def authority_of(store: Store) -> Certificate:
    """The authority of this cluster, made at the first time."""
    files = store.path / AUTHORITY, store.path / _KEY
    if all(file.exists() for file in files):
        return Certificate(*(file.read_bytes() for file in files))
    made = new_authority()
    store.write_private(_KEY, made.key)
    store.write_private(AUTHORITY, made.certificate)
    return made
