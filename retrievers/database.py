"""The sqlite file under the passage index: opening, locking, transactions, errors in words."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from epic_rag.retrievers.errors import IndexCorruptError, IndexReadOnlyError, RetrieverError

BUSY_TIMEOUT_SECONDS = 30.0
APPLICATION_ID = 0x45504943  # "EPIC", so that another program's sqlite file is not taken for an index
SCHEMA_VERSION = 1

Value = str | int | bytes | None
Row = tuple[Value, ...]

_SCHEMA = """
CREATE TABLE documents (
    source TEXT PRIMARY KEY, digest TEXT NOT NULL, tokenizer_digest TEXT NOT NULL, options TEXT NOT NULL,
    num_passages INTEGER NOT NULL, num_tokens INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE passages (
    source TEXT NOT NULL, position INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL,
    token_ids BLOB NOT NULL, start_char INTEGER NOT NULL, line INTEGER NOT NULL, UNIQUE (source, position));
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE state (revision INTEGER NOT NULL, token TEXT NOT NULL);
INSERT INTO state VALUES (0, lower(hex(randomblob(8))));
"""


class Database:
    """One sqlite connection, shared by threads under a lock; other processes may share the file (WAL).

    After a fork the child opens a connection of its own, as sqlite demands.

    Attributes:
        path: The file; None when the data lives in memory only.
        read_only: Whether writes are refused.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._inherited: list[sqlite3.Connection] = []
        with self._in_words():
            self._connection, self.read_only = _open(path, read_only)

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """All rows of one query."""
        with self._exclusive() as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: all of it is kept, or, when an exception passes, none of it.

        Raises:
            IndexReadOnlyError: The index may only be read.
        """
        if self.read_only:
            raise IndexReadOnlyError(_read_only_message(self.path))
        with self._exclusive() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # some errors have rolled back already
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        with self._lock:
            if self._pid == os.getpid():
                self._connection.close()

    @contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        if self._pid != os.getpid():
            self._reopen_after_fork()
        with self._lock, self._in_words():
            yield self._connection

    def _reopen_after_fork(self) -> None:
        self._inherited.append(self._connection)  # neither used nor closed here: its locks are the parent's
        self._lock = threading.RLock()
        self._pid = os.getpid()
        if self.path is not None:
            with self._in_words():
                self._connection, self.read_only = _open(self.path, self.read_only)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error


def _open(path: Path | None, read_only: bool) -> tuple[sqlite3.Connection, bool]:
    """Open for writing when that is possible and wished for, else for reading."""
    if path is None:
        connection = _connect(":memory:")
        _check(connection, path, create=True)
        return connection, read_only
    if not read_only:
        try:
            return _open_for_writing(path), False
        except (OSError, sqlite3.OperationalError) as error:
            if not path.is_file():
                raise RetrieverError(
                    f"cannot create the passage index {path}: {error}. Name a folder that may be written."
                ) from error
            if isinstance(error, sqlite3.Error) and not _is_denied(error):
                raise
    return _open_for_reading(path), True


def _open_for_writing(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)

    def prepare(connection: sqlite3.Connection) -> None:
        _retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")  # tells at once whether writing is allowed
        try:
            _check(connection, path, create=True)
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")

    return _prepared(f"{path.absolute().as_uri()}?mode=rwc", prepare)


def _open_for_reading(path: Path) -> sqlite3.Connection:
    """Open a file that must not be written; `immutable` where even the WAL's side files cannot be made."""
    if not path.is_file():
        raise IndexReadOnlyError(
            f"there is no passage index at {path}, and one opened for reading only cannot be made. "
            "Ingest something first."
        )
    uri = path.absolute().as_uri()

    def check(connection: sqlite3.Connection) -> None:
        _check(connection, path, create=False)

    try:
        return _prepared(f"{uri}?mode=ro", check)
    except sqlite3.OperationalError as error:
        if not _is_denied(error):
            raise
        return _prepared(f"{uri}?mode=ro&immutable=1", check)


def _prepared(uri: str, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    connection = _connect(uri)
    try:
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
    )


def _check(connection: sqlite3.Connection, path: Path | None, *, create: bool) -> None:
    """See that the file is an index of a version we know; make the tables in an empty one."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    num_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if num_tables == 0 and create:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif application != APPLICATION_ID:
        raise IndexCorruptError(f"{path} is not a passage index. Move it away, or name another folder.")
    elif version != SCHEMA_VERSION:
        raise RetrieverError(
            f"{path} has schema version {version}, this release reads {SCHEMA_VERSION}. "
            "Use the release that wrote it, or delete the file and ingest again."
        )


def _retry_while_busy(action: Callable[[], object]) -> None:
    """Repeat an action that ignores sqlite's busy timeout, as the change to WAL does."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            action()
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _code(error: sqlite3.Error) -> int:
    """The primary result code; 0 when the error came from Python's side."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_denied(error: sqlite3.Error) -> bool:
    """Whether writing failed; a full disk shows as an I/O error, since the WAL's side files cannot be made."""
    denied = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
    return _code(error) in (*denied, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _read_only_message(path: Path | None) -> str:
    return (
        f"the passage index {path or 'in memory'} is open for reading only. "
        "Ingest with a user and a folder that may write, or open it without read_only."
    )


def _translate(error: sqlite3.Error, path: Path | None) -> RetrieverError:
    """An sqlite error in the words of this package."""
    code, where = _code(error), f"the passage index {path or 'in memory'}"
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return IndexCorruptError(
            f"{where} is damaged ({error}). Delete it with its -wal and -shm files and ingest again; "
            "the KV store keeps what was encoded, so that only the reading is repeated."
        )
    if code == sqlite3.SQLITE_READONLY:
        return IndexReadOnlyError(_read_only_message(path))
    if code == sqlite3.SQLITE_BUSY:
        return RetrieverError(
            f"{where} was locked for {BUSY_TIMEOUT_SECONDS:.0f} s by another process. Try again when it is done."
        )
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return RetrieverError(f"{where} was closed. Make a new PassageIndex.")
    if code == sqlite3.SQLITE_FULL:
        return RetrieverError(f"the disk is full: {where} was left as it was. Free some space and repeat.")
    return RetrieverError(f"{where}: {error}. Check the folder and its disk, then try again.")
