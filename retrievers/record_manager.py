"""What LangChain's `index()` has written, and when: a record manager in one sqlite file."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

from langchain_core.indexing.base import RecordManager
from langchain_core.runnables import run_in_executor

from epic_rag.retrievers.errors import IndexCorruptError, IndexReadOnlyError, RetrieverError

_BUSY_TIMEOUT_SECONDS = 30.0
_APPLICATION_ID = 0x45505252  # "EPRR", so that another program's sqlite file is not taken for records
_SCHEMA_VERSION = 1
_KEYS_AT_ONCE = 500  # sqlite bounds the values of one statement

_CREATE_RECORDS = """
CREATE TABLE records (
    number INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, key TEXT NOT NULL, group_id TEXT,
    updated_at REAL NOT NULL, UNIQUE (namespace, key))"""
_CREATE_ORDER = "CREATE INDEX records_by_time ON records (namespace, updated_at)"
_CREATE_CLOCK = "CREATE TABLE clock (latest REAL NOT NULL)"
_UPSERT = """
INSERT INTO records (namespace, key, group_id, updated_at) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, key) DO UPDATE SET group_id = excluded.group_id, updated_at = excluded.updated_at"""


class SQLiteRecordManager(RecordManager):
    """Remembers across runs what `langchain_core.indexing.index` has written; threads and processes may share it.

    Times never stand still and never go back, in any process: every one that is given out is larger than all before it,
    also when the machine's clock is set back. So a run that starts at once after another finds what has vanished, which
    a clock of milliseconds can miss.

    Each call opens the file and closes it, so that there is nothing to close and a fork does no harm.

    Example:
        ```python
        records = SQLiteRecordManager("handbook", "records.sqlite")
        records.create_schema()
        index(documents, records, epic_index, cleanup="scoped_full", source_id_key="source", key_encoder="blake2b")
        ```
    """

    def __init__(self, namespace: str, path: str | Path) -> None:
        """Name a file; nothing is opened yet.

        Args:
            namespace: keeps the records of several indexes in one file apart.
            path: the sqlite file; `create_schema` makes it and its folder.
        """
        super().__init__(namespace)
        self.path = Path(path)

    def create_schema(self) -> None:
        """Make the file and its tables; does nothing where they are.

        Raises:
            IndexCorruptError: the file is damaged, or is something else.
            RetrieverError: it cannot be made; the message says why.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RetrieverError(f"cannot create {self._named}: {error}. Name a folder that may be written.") from error
        with self._connection(must_exist=False) as connection:
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                for statement in (_CREATE_RECORDS, _CREATE_ORDER, _CREATE_CLOCK, "INSERT INTO clock VALUES (0)"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
            self._check(connection)

    async def acreate_schema(self) -> None:
        """Make the file and its tables; see `create_schema`."""
        await run_in_executor(None, self.create_schema)

    def get_time(self) -> float:
        """The time, in seconds since 1970, larger than every one that was given out or recorded before."""
        with self._transaction() as connection:
            return _tick(connection)

    async def aget_time(self) -> float:
        """The time; see `get_time`."""
        return await run_in_executor(None, self.get_time)

    def update(
        self,
        keys: Sequence[str],
        *,
        group_ids: Sequence[str | None] | None = None,
        time_at_least: float | None = None,
    ) -> None:
        """Record that these keys were written now, all of them or, when it fails, none.

        Args:
            keys: the documents' keys.
            group_ids: the source of each; None: no source, also for keys that had one.
            time_at_least: a time that must have passed, in seconds since 1970.

        Raises:
            ValueError: not as many groups as keys, or `time_at_least` lies in the future.
        """
        if group_ids and len(group_ids) != len(keys):
            raise ValueError(
                f"got {len(keys)} keys and {len(group_ids)} group_ids; give one group for each key, or None"
            )
        groups = group_ids or [None] * len(keys)
        with self._transaction() as connection:
            now = _tick(connection)
            if time_at_least and time_at_least > now:
                raise ValueError(
                    f"time_at_least {time_at_least} is in the future, it is {now}; take it from get_time()"
                )
            rows = ((self.namespace, key, group, now) for key, group in zip(keys, groups, strict=True))
            connection.executemany(_UPSERT, rows)

    async def aupdate(
        self,
        keys: Sequence[str],
        *,
        group_ids: Sequence[str | None] | None = None,
        time_at_least: float | None = None,
    ) -> None:
        """Record that these keys were written now; see `update`."""
        await run_in_executor(None, self.update, keys, group_ids=group_ids, time_at_least=time_at_least)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """For each key whether it is recorded."""
        found: set[str] = set()
        with self._transaction(write=False) as connection:
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                some = keys[start : start + _KEYS_AT_ONCE]
                sql = f"SELECT key FROM records WHERE namespace = ? AND key IN ({_marks(some)})"  # noqa: S608
                found.update(row[0] for row in connection.execute(sql, (self.namespace, *some)))
        return [key in found for key in keys]

    async def aexists(self, keys: Sequence[str]) -> list[bool]:
        """For each key whether it is recorded."""
        return await run_in_executor(None, self.exists, keys)

    def list_keys(
        self,
        *,
        before: float | None = None,
        after: float | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[str]:
        """Keys in the order in which they were first recorded.

        As in LangChain's `InMemoryRecordManager`, 0 and an empty list filter nothing.

        Args:
            before: only those written earlier than this, in seconds since 1970.
            after: only those written later than this.
            group_ids: only those of one of these sources.
            limit: so many at most.
        """
        sql, values = "SELECT key, group_id FROM records WHERE namespace = ?", [cast("str | float", self.namespace)]
        for condition, bound in ((" AND updated_at < ?", before), (" AND updated_at > ?", after)):
            if bound:
                sql, values = sql + condition, [*values, bound]
        groups = set(group_ids or ())
        with self._transaction(write=False) as connection:
            rows = connection.execute(f"{sql} ORDER BY number", values).fetchall()
        found = [cast("str", key) for key, group in rows if not groups or group in groups]
        return found[:limit] if limit else found

    async def alist_keys(
        self,
        *,
        before: float | None = None,
        after: float | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[str]:
        """Keys in the order in which they were first recorded; see `list_keys`."""
        return await run_in_executor(None, self.list_keys, before=before, after=after, group_ids=group_ids, limit=limit)

    def delete_keys(self, keys: Sequence[str]) -> None:
        """Forget these keys; those that are not recorded are passed over."""
        with self._transaction() as connection:
            rows = ((self.namespace, key) for key in keys)
            connection.executemany("DELETE FROM records WHERE namespace = ? AND key = ?", rows)

    async def adelete_keys(self, keys: Sequence[str]) -> None:
        """Forget these keys."""
        await run_in_executor(None, self.delete_keys, keys)

    @property
    def _named(self) -> str:
        return f"the record file {self.path}"

    @contextmanager
    def _transaction(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """A checked connection inside a transaction that is kept whole or not at all."""
        with self._connection(must_exist=True) as connection:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            self._check(connection)
            yield connection

    @contextmanager
    def _connection(self, *, must_exist: bool) -> Iterator[sqlite3.Connection]:
        """A connection that commits at the end; closing it before that takes everything back."""
        uri = f"{self.path.absolute().as_uri()}?mode={'rw' if must_exist else 'rwc'}"
        try:
            with closing(
                sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None)
            ) as connection:
                yield connection
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._in_words(error) from error

    def _check(self, connection: sqlite3.Connection) -> None:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application == _APPLICATION_ID and version == _SCHEMA_VERSION:
            return
        if application == _APPLICATION_ID:
            raise RetrieverError(
                f"{self._named} has schema version {version}, this release reads {_SCHEMA_VERSION}. "
                "Use the release that wrote it, or delete the file and index again."
            )
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            raise RetrieverError(f"{self._named} has no tables yet. Call create_schema() once.")
        raise IndexCorruptError(f"{self.path} holds no records of this package. Name another file.")

    def _in_words(self, error: sqlite3.Error) -> RetrieverError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN and not self.path.exists():
            return RetrieverError(f"{self._named} cannot be opened. Call create_schema() once, which makes it.")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return IndexCorruptError(f"{self._named} is damaged ({error}). Delete it and index again.")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return IndexReadOnlyError(f"{self._named} may only be read. Index with a user who may write it.")
        if code == sqlite3.SQLITE_BUSY:
            return RetrieverError(
                f"{self._named} was locked for {_BUSY_TIMEOUT_SECONDS:.0f} s by another process. "
                "Try again when it is done."
            )
        return RetrieverError(f"{self._named}: {error}. Check the folder and its disk, then try again.")


def _tick(connection: sqlite3.Connection) -> float:
    """Move the clock on to now, or by the least step where now is not later than the latest time; returns it."""
    latest = cast("float", connection.execute("SELECT latest FROM clock").fetchone()[0])
    now = max(time.time(), math.nextafter(latest, math.inf))
    connection.execute("UPDATE clock SET latest = ?", (now,))
    return now


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
