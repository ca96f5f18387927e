"""The disk tier's bookkeeping: one sqlite database (WAL) that several processes share.

The blob files are the truth; the manifest holds sizes, uses and ranks, so that budgets, listings and statistics need
no walk of the folder. It may be deleted while the store is closed: the next open rebuilds it from the files.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import RLock

from epic_rag.kvstore.errors import StoreClosedError, StoreError, StoreFormatError, StoreVersionError, StoreWriteError
from epic_rag.kvstore.manifest_rows import SCHEMA_VERSION, Rows

BUSY_SECONDS = 30.0


class Manifest:
    """A connection to the manifest; safe for threads, and opened anew in a forked child.

    Every method raises StoreWriteError when the database cannot be used for now (locked, disk full, read-only),
    StoreFormatError when it is damaged, and StoreClosedError after `close`.
    """

    def __init__(self, path: Path | None, replacement: str) -> None:
        """Prepare a manifest; connects at first use.

        Args:
            path: the database; None keeps it in memory, for a folder that cannot be written.
            replacement: name of the replacement policy that ranks the entries.
        """
        self._path = path
        self._replacement = replacement
        self._lock = RLock()
        self._db: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._inherited: list[sqlite3.Connection] = []
        self._closed = False

    def exists(self) -> bool:
        """Return whether the tables are in place.

        Raises:
            StoreVersionError: another version made them.
        """
        with self._guarded() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise StoreVersionError(
                f"{self._path}: manifest version {version}, this version of epic-rag reads {SCHEMA_VERSION}: "
                "use the version that wrote the store, or choose another folder"
            )
        return bool(version)

    def load(self, path: Path) -> None:
        """Copy another manifest into this one without writing anything beside it.

        Raises:
            StoreFormatError: it cannot be read.
        """
        # Reading a WAL wants its shared-memory file; without a WAL, "immutable" reads from any read-only disk.
        wal = path.with_name(path.name + "-wal")
        immutable = "" if wal.exists() and wal.stat().st_size else "&immutable=1"
        try:
            source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{immutable}", uri=True)
            with closing(source), self._guarded() as db:
                source.backup(db)
        except (sqlite3.Error, StoreError) as error:
            raise StoreFormatError(f"{path}: the manifest cannot be read ({error})") from error

    @contextmanager
    def read(self) -> Iterator[Rows]:
        """Give access to the rows, for reading."""
        with self._guarded() as db:
            yield Rows(db, self._replacement)

    @contextmanager
    def transaction(self, *, durable: bool = False, wait: bool = True) -> Iterator[Rows]:
        """Give access to the rows, alone among all threads and processes; all of the changes are kept, or none.

        Args:
            durable: the changes survive a power failure; otherwise only the death of the process.
            wait: wait for others to finish; otherwise raise StoreWriteError.
        """
        with self._guarded(wait) as db:
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            db.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000) if wait else 0}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield Rows(db, self._replacement)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        with self._lock:
            self._closed = True
            if self._db is not None and self._pid == os.getpid():
                self._db.close()
            self._db = None

    @contextmanager
    def _guarded(self, wait: bool = True) -> Iterator[sqlite3.Connection]:
        if not self._lock.acquire(blocking=wait):
            raise StoreWriteError(f"{self._path}: the manifest is in use")
        try:
            yield self._connection()
        except sqlite3.OperationalError as error:
            raise StoreWriteError(
                f"{self._path}: the manifest cannot be used ({error}): check free space and permissions, "
                "or wait for the process that holds it"
            ) from error
        except sqlite3.DatabaseError as error:
            raise StoreFormatError(
                f"{self._path}: the manifest is damaged ({error}): close the store and open it again, "
                "which rebuilds it from the blobs"
            ) from error
        finally:
            self._lock.release()

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreClosedError("the store was closed: open it again")
        if self._db is not None and self._path is not None and self._pid != os.getpid():
            # A connection must not be used, nor even closed, in a forked child.
            self._inherited.append(self._db)
            self._db = None
        if self._db is None:
            self._pid = os.getpid()
            name = ":memory:" if self._path is None else str(self._path)
            self._db = sqlite3.connect(name, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
        return self._db
