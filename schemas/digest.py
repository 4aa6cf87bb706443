"""The digest to which a decision is bound: SHA-256 over the tool, its version and the arguments.

    sha256( <length>:<tool> <length>:<tool version> <arguments> )

Lengths are decimal counts of UTF-8 bytes and there are no blanks, so no two different calls have
the same encoding. The arguments are the raw text of the request. To check one by hand:

    printf '6:refund2:v1%s' '{"order":"A-17"}' | sha256sum
"""

import hashlib


def call_digest(tool: str, tool_version: str, arguments: str) -> str:
    """The digest of a call, 64 hex digits."""
    name, version = tool.encode(), tool_version.encode()
    head = b"%d:%b%d:%b" % (len(name), name, len(version), version)
    return hashlib.sha256(head + arguments.encode()).hexdigest()


def text_digest(text: str) -> str:
    """The digest of a text (a policy file, a history), 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()
