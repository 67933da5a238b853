"""RocketMQ's access-key signature: who sent a request, and that nobody changed it.

A client adds ``AccessKey`` to the ext fields, concatenates the values of all of them in the order of their names, then
the body, and adds the HMAC-SHA1 of that as ``Signature``. There is neither a time nor a number in it, so a request
that somebody recorded can be sent again: on an open network this needs TLS around it.

Ref: remoting.md 7.1, 10.10.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Collection, Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Clients up to 4.9.3 send this field and leave it out of what they sign."""


def signed_content(ext: Mapping[str, str], body: bytes, unsigned: Collection[str] = ()) -> bytes:
    """Return the bytes that are signed: values in the order of their names, then the body."""
    # Java sorts by UTF-16 code units, which differs from Python's order beyond U+FFFF only; names are ASCII.
    values = (ext[name] for name in sorted(ext) if name != SIGNATURE and name not in unsigned)
    return "".join(values).encode("utf-8", "surrogatepass") + body


def sign(secret_key: str, content: bytes) -> str:
    """Return the signature of ``content``."""
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def signed_ext(ext: Mapping[str, str] | None, body: bytes | None, access_key: str, secret_key: str) -> dict[str, str]:
    """Return the ext fields of a request together with who signs it and the signature."""
    signed = {**(ext or {}), ACCESS_KEY: access_key}
    signed.pop(SIGNATURE, None)
    signed[SIGNATURE] = sign(secret_key, signed_content(signed, body or b""))
    return signed


def without_proof(ext: Mapping[str, str]) -> dict[str, str]:
    """Return the ext fields for a log line: with the signature, whoever reads it could send the request again."""
    return {name: "..." if name in (SIGNATURE, SECURITY_TOKEN) else value for name, value in ext.items()}


def is_signed_with(secret_key: str, ext: Mapping[str, str], body: bytes) -> bool:
    """Return whether the request carries the signature that this secret makes."""
    given = ext.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
    candidates: list[Collection[str]] = [()]
    if UNIQUE_KEY_QUERY in ext:
        candidates.append((UNIQUE_KEY_QUERY,))
    return any(
        hmac.compare_digest(sign(secret_key, signed_content(ext, body, unsigned)).encode(), given)
        for unsigned in candidates
    )
