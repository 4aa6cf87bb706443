"""Checks the statement of a receipt by securesystemslib and in-toto-attestation, and that by no
other byte of it these take another statement: dsse.py RECEIPT KEY. Runs where those packages are.
"""

import base64
import json
import sys
from pathlib import Path

import in_toto_attestation.v1.statement_pb2 as messages
from google.protobuf import json_format
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey


def main(receipt: Path, key: str) -> None:
    envelope = json.loads(receipt.read_bytes())["statement"]
    _, number, public = key.split("+", 2)
    raw = base64.b64decode(public)[1:]
    keys = [SSlibKey(number, "ed25519", "ed25519", {"public": raw.hex()})]
    found = Envelope.from_dict(json.loads(json.dumps(envelope)))
    assert list(found.verify(keys, 1)) == [number]
    statement = json_format.Parse(found.payload, messages.Statement())
    Statement.copy_from_pb(statement).validate()
    text = json.dumps(envelope).encode()
    for place in range(len(text)):
        flipped = bytearray(text)
        flipped[place] ^= 1
        try:
            other = Envelope.from_dict(json.loads(bytes(flipped)))
            other.verify(keys, 1)
        except Exception:  # noqa: BLE001 - each refuses in its own way
            continue
        assert (other.payload, other.payload_type) == (found.payload, found.payload_type)
    sys.stdout.write(statement.predicate_type)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
