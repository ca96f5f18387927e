"""Proof that stored bytes were written by someone who knows the store's secret.

Checksums find damage. Against who can write into a shared store, they help nothing: xxh3 is no cryptographic hash, and
anyone can compute it. A secret adds to each header the SHA-256 of every layer and an HMAC-SHA-256 of the header itself,
which holds them, the key and the profile; so no layer can be exchanged, no blob renamed, and each layer can still be
checked on its own. Who knows the secret can forge: it separates outsiders, not colleagues.
"""

import hashlib
import hmac

from epic_rag.kvstore.asyncface import Buffer
from epic_rag.kvstore.errors import StoreTrustError

MIN_SECRET_BYTES = 32
MAC_DIGITS = 64

_MEND = (
    "it is not used, since anyone who can write into the store may have made it. Set EPIC_RAG_STORE_KEY to the key it "
    "was written with, or encode the chunk again"
)
_RECORD_MAC = b',"mac":"'
_RECORD_TAIL_BYTES = len(_RECORD_MAC) + MAC_DIGITS + len(b'"}')


class Authenticator:
    """Makes and checks the MACs of blobs and records with keys derived from one secret, which it does not keep."""

    def __init__(self, secret: bytes) -> None:
        """Derive the keys.

        Args:
            secret: at least 32 bytes that nobody can guess; a guessable one could be found by trying.

        Raises:
            ValueError: a shorter secret; the message does not show it.
        """
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(
                f"the store's secret key has {len(secret)} bytes, expected at least {MIN_SECRET_BYTES}: make one with "
                "`openssl rand -hex 32`"
            )
        self._blob_key = _derive(secret, b"epic-rag-kv blob")
        self._record_key = _derive(secret, b"epic-rag-kv record")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Authenticator) and hmac.compare_digest(self._blob_key, other._blob_key)

    def __hash__(self) -> int:
        return hash(type(self))

    def mac(self, unsealed_header: bytes) -> str:
        """Return the MAC of a blob: of its header with checksum and MAC taken as zeros; 64 hex digits."""
        return _hmac(self._blob_key, unsealed_header)

    def check(self, unsealed_header: bytes, mac: str | None) -> None:
        """Check a blob's MAC.

        Raises:
            StoreTrustError: it has none, or another.
        """
        _check(self.mac(unsealed_header), mac)

    def seal_record(self, record: bytes) -> bytes:
        """Put a MAC into a record, a JSON object, as its last field."""
        return record.removesuffix(b"}") + _RECORD_MAC + _hmac(self._record_key, record).encode("ascii") + b'"}'

    def open_record(self, data: Buffer) -> bytes:
        """Return the record without its MAC.

        Raises:
            StoreTrustError: it has none, or another.
        """
        record, mac = split_record(data)
        _check(_hmac(self._record_key, record), mac)
        return record


def split_record(data: Buffer) -> tuple[bytes, str | None]:
    """Split a record into its JSON and its MAC, if it has one; checks nothing."""
    whole = bytes(data)
    tail = whole[-_RECORD_TAIL_BYTES:]
    if not (tail.startswith(_RECORD_MAC) and tail.endswith(b'"}')):
        return whole, None
    return whole[:-_RECORD_TAIL_BYTES] + b"}", tail[len(_RECORD_MAC) : -2].decode("ascii", "replace")


def _derive(secret: bytes, purpose: bytes) -> bytes:
    """HKDF (RFC 5869) with SHA-256 and no salt, for one block of output."""
    extracted = hmac.digest(bytes(hashlib.sha256().digest_size), secret, "sha256")
    return hmac.digest(extracted, purpose + b"\x01", "sha256")


def _hmac(key: bytes, data: bytes) -> str:
    return hmac.digest(key, data, "sha256").hex()


def _check(expected: str, mac: str | None) -> None:
    if mac is None:
        raise StoreTrustError(f"it has no MAC: {_MEND}")
    if not hmac.compare_digest(expected.encode("ascii"), mac.encode("utf-8", "replace")):
        raise StoreTrustError(f"its MAC is not that of this store's key: {_MEND}")
