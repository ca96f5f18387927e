"""The disk tier: one file a blob, mapped into memory when read, shared by any number of processes on one machine.

How a blob is stored, and why a crash at any instant leaves a store that opens:

1. its bytes are reserved in the manifest, durably, and those who must give way are condemned;
2. the condemned files are removed and forgotten;
3. the new file is written under a temporary name and made durable;
4. it is renamed into place and settled in the manifest, while nobody else may change either.

Reads look at files only: a manifest that is behind, locked or lost never costs a hit.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from epic_rag.kvstore.blobstore import BlobNote, BlobStore, Usage
from epic_rag.kvstore.errors import StoreError, StoreWriteError
from epic_rag.kvstore.fileblob import FileBlob
from epic_rag.kvstore.folder import BLOBS, Folder, write_error
from epic_rag.kvstore.header import describe
from epic_rag.kvstore.manifest import Manifest
from epic_rag.kvstore.manifest_rows import CONDEMNED, Rows
from epic_rag.kvstore.prefetch import Prefetch, finished
from epic_rag.kvstore.recovery import agree, open_for_reading, open_for_writing, reconcile
from epic_rag.kvstore.replacement import make_replacement

TOUCHES_KEPT = 256
"""Uses wait in memory until so many blobs were used, a blob is put, or the store is closed."""

_log = logging.getLogger("epic_rag.kvstore")


class DiskStore(BlobStore):
    """Blobs in a folder of a local disk, under a byte budget.

    `get` returns a private, writable mapping of the file. For POSIX systems and local disks: a network file system
    lacks the locks and the shared memory that the manifest needs.
    """

    def __init__(self, path: str | Path, budget_bytes: int | None = None, replacement: str = "lru") -> None:
        """Open the store in `path`, made if missing; one that cannot be written opens for reading.

        Args:
            path: the folder; `~` is expanded.
            budget_bytes: the most its blobs may take; None for no limit. A store above it shrinks at the next put. What
                several writers have in hand at once may exceed it until they finish; quarantined files do not count.
            replacement: "lru", "lfu" or "gdsf".

        Raises:
            ValueError: a budget below 1, or an unknown replacement.
            StoreWriteError: the folder does not exist and cannot be made.
            StoreVersionError: the folder was written by another version.
        """
        super().__init__(budget_bytes)
        make_replacement(replacement)
        self.path = store_path(path)
        self._folder = Folder(self.path)
        self._replacement = replacement
        self._touched: dict[str, int] = {}
        self._unsettled: set[str] = set()
        self._lock = Lock()
        self._opening = Lock()
        self._copy: Manifest | None = None
        try:
            self._manifest = open_for_writing(self._folder, replacement)
        except StoreWriteError as error:
            if not self.path.is_dir():
                raise
            _log.warning("%s; the store opens for reading", error)
            self._manifest = self._copy = open_for_reading(self._folder, replacement)

    @property
    def tier(self) -> str:
        """The tier's name, "disk"."""
        return "disk"

    def reconcile(self) -> None:
        """Make the manifest agree with the files: adopt those it does not know, forget those that are gone."""
        self._check()
        found = dict(self._folder.walk())
        with self._manifest.transaction() as rows:
            reconcile(self._folder, rows, found)

    def by_rank(self) -> Sequence[str]:
        """Return the names that may give way to others, in the order in which they would."""
        self._check()
        with self._manifest.read() as rows:
            return rows.by_rank()

    @contextmanager
    def open_blob(self, name: str) -> Iterator[FileBlob | None]:
        """Open a blob, or give None where there is none; counts as `get` does."""
        self._check(name)
        with self._timed("read"), self._folder.open(name) as blob:
            if blob is None:
                self._count(misses=1)
            else:
                self._count(hits=1, read=blob.num_bytes)
                self._touch([name])
            yield blob

    def prefetch(self, names: Sequence[str]) -> Prefetch:
        """Have the system read the blobs' files into its page cache, in the background."""
        self._check(*names)
        for name in names:
            self._folder.read_ahead(name)
        return finished()

    def _read(self, name: str) -> memoryview | None:
        return self._folder.map(name)

    def _size(self, name: str) -> int | None:
        return self._folder.size(name)

    def _names(self, prefix: str) -> Sequence[str]:
        with self._manifest.read() as rows:
            return rows.names(prefix)

    def _usage(self) -> Mapping[str, Usage]:
        with self._manifest.read() as rows:
            return rows.usage()

    def _write(self, name: str, buffers: Sequence[memoryview], size_bytes: int) -> None:
        note = describe(buffers[0]) if buffers else BlobNote()
        try:
            self._open_for_writing()
            victims = self._reserve(name, size_bytes, note)
            try:
                replaced = self._take_out(victims, self._folder.unlink)
                late = self._publish(name, buffers, size_bytes, note)
                replaced += self._take_out(late, self._folder.unlink)
            except BaseException:
                self._cancel(name)
                raise
        except OSError as error:
            raise write_error(f"blob {name} ({size_bytes} bytes)", self.path, error) from error
        self._count(replaced=replaced)

    def _reserve(self, name: str, size_bytes: int, note: BlobNote) -> list[str]:
        """Reserve bytes under the budget; returns the condemned. A refusal condemns none."""
        with self._manifest.transaction(durable=True) as rows:
            self._catch_up(rows)
            rows.reserve(name, size_bytes, note)
            if size_bytes > rows.room(self.budget_bytes):
                raise StoreWriteError(
                    f"disk store {self.path}: {name} has {size_bytes} bytes and no room under the budget of "
                    f"{self.budget_bytes} bytes: raise the budget"
                )
            return rows.make_room(self.budget_bytes)

    def _publish(self, name: str, buffers: Sequence[memoryview], size_bytes: int, note: BlobNote) -> list[str]:
        """Write the file and settle it; returns the condemned: several writers at once may hold more than there is."""
        temp = self._folder.write_temp(name, buffers)
        try:
            with self._manifest.transaction() as rows:
                self._folder.publish(temp, name)
                rows.settle(name, size_bytes, note)
                late = rows.make_room(self.budget_bytes)
        finally:
            self._folder.discard(temp)
        self._folder.sync(name)
        return late

    def _cancel(self, name: str) -> None:
        try:
            with self._manifest.transaction() as rows:
                agree(self._folder, rows, name)
        except StoreError:
            with self._lock:
                self._unsettled.add(name)

    def _take_out(self, names: Sequence[str], dispose: Callable[[str], bool]) -> int:
        """Dispose of condemned files and forget them; returns how many there were.

        What was stored anew since it was condemned stays.
        """
        if not names:
            return 0
        with self._manifest.transaction() as rows:
            gone = [name for name in names if rows.state(name) in (CONDEMNED, None)]
            count = sum([dispose(name) for name in gone])
            for name in gone:
                rows.remove(name)
        return count

    def _remove(self, name: str) -> bool:
        try:
            removed = self._remove_file(name)
            if removed:
                self._folder.sync(name)
        except OSError as error:
            raise write_error(f"blob {name}", self.path, error) from error
        return removed

    def _remove_file(self, name: str) -> bool:
        try:
            return self._condemn_and_take_out(name, self._folder.unlink)
        except StoreWriteError:
            # A full disk cannot note what is about to go, but removing files is how it becomes less full.
            removed = self._folder.unlink(name)
            self._cancel(name)
            return removed

    def _set_aside(self, name: str, reason: str) -> None:
        try:
            self._condemn_and_take_out(name, lambda damaged: self._folder.set_aside(damaged, reason))
        except (StoreError, OSError) as error:
            _log.warning("blob %s stays where it is (%s)", name, error)

    def _condemn_and_take_out(self, name: str, dispose: Callable[[str], bool]) -> bool:
        self._open_for_writing()
        with self._manifest.transaction() as rows:
            rows.condemn(name)
        return bool(self._take_out([name], dispose))

    def _open_for_writing(self) -> None:
        """Try again where the store could only be opened for reading."""
        with self._opening:
            if self._manifest is self._copy:
                self._manifest = open_for_writing(self._folder, self._replacement)

    def _touch(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._touched[name] = self._touched.pop(name, 0) + 1
            full = len(self._touched) >= TOUCHES_KEPT
        if full:
            # Another process may be writing for long; the uses then wait, the reader does not.
            with suppress(StoreError), self._manifest.transaction(wait=False) as rows:
                self._catch_up(rows)

    def _catch_up(self, rows: Rows) -> None:
        """Record what was kept in memory: uses, and files whose rows could not be settled."""
        with self._lock:
            touched, self._touched = self._touched, {}
            unsettled, self._unsettled = self._unsettled, set()
        for name in unsettled:
            agree(self._folder, rows, name)
        for name, times in touched.items():
            if not rows.use(name, times):
                agree(self._folder, rows, name)

    def _close(self) -> None:
        if self._touched or self._unsettled:
            with suppress(StoreError), self._manifest.transaction() as rows:
                self._catch_up(rows)
        for manifest in (self._manifest, self._copy):
            if manifest is not None:
                manifest.close()


def store_path(path: str | Path) -> Path:
    """Return the absolute folder that a disk store's path means; `~` is expanded."""
    return Path(path).expanduser().absolute()


def is_store(path: Path) -> bool:
    """Return whether a folder holds a store."""
    return (path / BLOBS).is_dir()
