"""The record that tells whether a store is opened with the secret key that it is written with.

It says nothing itself: what counts is its MAC. Without it, a mistyped key would make every blob look forged, and
reading would quarantine one after the other.
"""

from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobStore
from epic_rag.kvstore.errors import StoreKeyError, StoreTrustError
from epic_rag.kvstore.mac import Authenticator

KEY_RECORD = RECORD_PREFIX + "key"
_CONTENT = b'{"format":"epic-rag-kv"}'
_MOST_BYTES = 4096


def key_record(authenticator: Authenticator) -> bytes:
    """Return the record's bytes; written with the first profile."""
    return authenticator.seal_record(_CONTENT)


def check_key(blobs: BlobStore, authenticator: Authenticator) -> None:
    """Check that a store is not another key's; one without the record passes.

    Raises:
        StoreKeyError: it is.
    """
    view = blobs.get_range(KEY_RECORD, 0, _MOST_BYTES)
    if view is None:
        return
    try:
        authenticator.open_record(view)
    except StoreTrustError as error:
        raise StoreKeyError(
            f"the {blobs.tier} store was written with another secret key: set EPIC_RAG_STORE_KEY to that one, or "
            f"choose another store. Nothing was changed. Should the key be right, someone else wrote the record "
            f"{KEY_RECORD}: delete it"
        ) from error
