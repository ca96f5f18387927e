"""Whether a store is opened with the secret key that it is written with.

A record tells: it says nothing itself, what counts is its MAC. Without it, a mistyped key would make every blob look
forged, and reading would quarantine one after the other.
"""

from collections.abc import Iterable
from contextlib import suppress

from epic_rag.kvstore.asyncface import Buffer
from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobStore
from epic_rag.kvstore.errors import StoreKeyError, StoreTrustError, StoreUnavailableError
from epic_rag.kvstore.mac import Authenticator, split_record

KEY_RECORD = RECORD_PREFIX + "key"
_CONTENT = b'{"format":"epic-rag-kv"}'
_MOST_BYTES = 1 << 20
_NOTHING_DONE = "Nothing was changed."


class Trust:
    """Whose bytes a store accepts: with a secret key, those that were sealed with it; without one, anyone's.

    A store is refused as a whole, before anything in it is touched, when its record is another key's; when it has a
    record and no key is given; and when it has none while its profiles lack the key's MAC.

    Attributes:
        authenticator: makes and checks MACs; None without a key.
    """

    def __init__(self, blobs: BlobStore, secret: bytes | None) -> None:
        """Check what can be checked at once.

        Args:
            blobs: what is stored.
            secret: the key; None for none.

        Raises:
            ValueError: too short a key.
            StoreKeyError: the store is not this key's.
        """
        self.authenticator = None if secret is None else Authenticator(secret)
        self._blobs = blobs
        for tier in blobs.each_tier():
            if tier.remote:
                self._check_key(tier)  # to list its profiles takes a walk over all keys: that waits until it is needed
            else:
                self._check([tier])

    def confirm(self) -> None:
        """Check again, before the first profile is written and when a blob looks forged: a tier may have been away.

        Raises:
            StoreKeyError: the store is not this key's.
        """
        self._check(self._blobs.each_tier())

    def key_record(self) -> dict[str, bytes]:
        """Return the record and its name, to be written with the first profile; nothing without a key."""
        return {} if self.authenticator is None else {KEY_RECORD: self.authenticator.seal_record(_CONTENT)}

    def seal_record(self, record: bytes) -> bytes:
        """Return a record as it is written, with its MAC if there is a key."""
        return record if self.authenticator is None else self.authenticator.seal_record(record)

    def open_record(self, view: Buffer) -> bytes:
        """Return a record without its MAC.

        Raises:
            StoreTrustError: the MAC that it must have is missing, or another.
        """
        return split_record(view)[0] if self.authenticator is None else self.authenticator.open_record(view)

    def _check(self, tiers: Iterable[BlobStore]) -> None:
        for tier in tiers:
            with suppress(StoreUnavailableError):
                if not self._check_key(tier) and self.authenticator is not None:
                    for name in tier.names(RECORD_PREFIX):
                        self._check_profile(tier, name, self.authenticator)

    def _check_key(self, tier: BlobStore) -> bool:
        """Check a tier's record; returns whether it has one."""
        view = tier.get_range(KEY_RECORD, 0, _MOST_BYTES)
        if view is None:
            return False
        if self.authenticator is None:
            raise StoreKeyError(
                f"the {tier.tier} store is written with a secret key: set EPIC_RAG_STORE_KEY to it. {_NOTHING_DONE}"
            )
        try:
            self.authenticator.open_record(view)
        except StoreTrustError as error:
            raise StoreKeyError(
                f"the {tier.tier} store was written with another secret key: set EPIC_RAG_STORE_KEY to that one, or "
                f"choose another store. {_NOTHING_DONE} Should the key be right, someone else wrote the record "
                f"{KEY_RECORD}: delete it"
            ) from error
        return True

    def _check_profile(self, tier: BlobStore, name: str, authenticator: Authenticator) -> None:
        view = tier.get_range(name, 0, _MOST_BYTES)
        if view is None or split_record(view)[1] is not None:
            return  # one with a wrong MAC is damaged, or forged
        raise StoreKeyError(
            f"the {tier.tier} store was written without a secret key: unset EPIC_RAG_STORE_KEY, or ingest into a new "
            f"store; `epic-rag export NEW --seal` takes over one that you trust. {_NOTHING_DONE}"
        )
