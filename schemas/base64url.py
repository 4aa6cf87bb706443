"""Base64url (RFC 4648, section 5) without padding, as JWS, Web Push and WebAuthn write bytes."""

import base64


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
