"""The errors of the KV store.

    StoreError                  anything the store reports
    ├── StoreURIError           a store address that names no known store, or a wrong option
    ├── StoreWriteError         bytes could not be kept: disk full, read-only, over the budget
    ├── StoreFormatError        stored bytes that cannot be read: damaged, or not ours
    │   ├── StoreVersionError   intact bytes of a version or codec that cannot be read here
    │   └── StoreTrustError     bytes without the MAC that the store's secret key makes
    ├── StoreKeyError           the store was written with another secret key
    ├── StoreUnavailableError   a tier behind a network does not answer now
    └── StoreClosedError        the store was used after close()

Absence is not an error: what is not stored is None. A value of the wrong kind or shape in a call is a ValueError.
"""


class StoreError(Exception):
    """Base of every error of the KV store."""


class StoreURIError(StoreError):
    """A store address that names no known store, or carries an option that is unknown or malformed."""


class StoreWriteError(StoreError):
    """Bytes could not be kept: disk full, read-only folder, or larger than the tier's budget."""


class StoreFormatError(StoreError):
    """Stored bytes that cannot be read: damaged, truncated, or not written by this store."""


class StoreVersionError(StoreFormatError):
    """Intact bytes of a format version or codec that cannot be read here: unknown, or its package is not installed.

    Such blobs are never quarantined.
    """


class StoreTrustError(StoreFormatError):
    """Bytes without the MAC that the store's secret key makes: forged, or written without the key or with another."""


class StoreKeyError(StoreError):
    """The store was written with another secret key than it is opened with; nothing was read or changed."""


class StoreUnavailableError(StoreError):
    """A tier behind a network does not answer now. Reads never raise it: what cannot be reached is missing."""


class StoreClosedError(StoreError):
    """The store was used after close()."""
