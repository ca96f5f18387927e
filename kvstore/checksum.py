"""The digests that stand in a blob's header: xxh3-128 against damage, SHA-256 against forgery."""

import hashlib

import xxhash

from epic_rag.kvstore.asyncface import Buffer

_XXH3_DIGITS = 32


def xxh3(*parts: Buffer) -> str:
    """Return xxh3-128 of buffers, one after the other, in 32 lowercase hex digits."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def sha256(*parts: Buffer) -> str:
    """Return SHA-256 of buffers, one after the other, in 64 lowercase hex digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def matches(expected: str, *parts: Buffer) -> bool:
    """Return whether buffers have this digest, of either kind."""
    return expected == (xxh3(*parts) if len(expected) == _XXH3_DIGITS else sha256(*parts))
