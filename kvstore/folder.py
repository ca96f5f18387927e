"""The files of a disk store: where they lie, and how they are written so that no reader ever sees half a blob.

<root>/blobs/ab/cd/<name>.safetensors   one blob; ab and cd are the first letters of its name
<root>/blobs/pr/of/profile-<digest>.json   a record
<root>/quarantine/                      damaged blobs, each with the reason beside it
<root>/tmp/                             files being written
<root>/manifest.sqlite3, lock
"""

import errno
import fcntl
import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobNote, is_name
from epic_rag.kvstore.errors import StoreFormatError, StoreWriteError
from epic_rag.kvstore.fileblob import FileBlob
from epic_rag.kvstore.header import LENGTH_BYTES, describe, header_bytes
from epic_rag.kvstore.mapping import map_private

BLOBS = "blobs"
ORPHAN_AGE_SECONDS = 3600.0
QUARANTINE_FILES = 64
_SUFFIXES = (".safetensors", ".json")

_log = logging.getLogger("epic_rag.kvstore")


class Folder:
    """The files under one root. Methods that write raise OSError; the store words it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = root / "manifest.sqlite3"
        self._blobs = root / BLOBS
        self._temps = root / "tmp"
        self._quarantine = root / "quarantine"

    def prepare(self) -> None:
        """Create the folder where it is missing.

        Raises:
            OSError: it cannot be made, or cannot be written.
        """
        for folder in (self._blobs, self._temps, self._quarantine):
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                code = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
                raise OSError(code, os.strerror(code))

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Let one process at a time open the store."""
        with (self.root / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def path(self, name: str) -> Path:
        """Return where a blob's file lies."""
        padded = name.ljust(4, "-")
        suffix = _SUFFIXES[name.startswith(RECORD_PREFIX)]
        return self._blobs / padded[:2] / padded[2:4] / (name + suffix)

    def size(self, name: str) -> int | None:
        """Return a blob's size in bytes; None when there is none."""
        try:
            return self.path(name).stat().st_size
        except OSError:
            return None

    def map(self, name: str) -> memoryview | None:
        """Return a blob's bytes without copying them; None when it is missing or unreadable.

        The mapping is private: writing into it changes the caller's copy only. It outlives the file's replacement and
        removal, which is why blobs are never written or cut in place.
        """
        try:
            with self.path(name).open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                return map_private(file.fileno(), size_bytes) if size_bytes else memoryview(b"")
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("blob %s cannot be read (%s): treated as missing", name, error)
            return None

    @contextmanager
    def open(self, name: str) -> Iterator[FileBlob | None]:
        """Open a blob's file for reading; None when it is missing or unreadable."""
        try:
            descriptor = os.open(self.path(name), os.O_RDONLY)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("blob %s cannot be read (%s): treated as missing", name, error)
            yield None
            return
        try:
            yield FileBlob(descriptor)
        finally:
            os.close(descriptor)

    def read_ahead(self, name: str) -> None:
        """Have the system read a blob's file into its page cache, in the background."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError), self.path(name).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    def note(self, name: str) -> BlobNote:
        """Return what the bookkeeping keeps about a blob, from the first bytes of its file."""
        try:
            with self.path(name).open("rb") as file:
                head = file.read(LENGTH_BYTES)
                return describe(head + file.read(header_bytes(head) - LENGTH_BYTES))
        except (OSError, StoreFormatError):
            return BlobNote()

    def write_temp(self, name: str, buffers: Sequence[memoryview]) -> Path:
        """Write the bytes, durably, to a temporary file next to be published; leaves nothing behind on failure."""
        self._make_shard(self.path(name).parent)
        temp = self._temps / secrets.token_hex(16)
        try:
            with temp.open("xb") as file:
                _write_all(file, buffers)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            self.discard(temp)
            raise
        return temp

    def publish(self, temp: Path, name: str) -> None:
        """Put a finished file in place of what is there, at once."""
        temp.replace(self.path(name))

    def sync(self, name: str) -> None:
        """Make a blob's publication or removal durable."""
        _sync(self.path(name).parent)

    def discard(self, temp: Path) -> None:
        """Remove a temporary file, if it is there."""
        with suppress(OSError):
            temp.unlink()

    def unlink(self, name: str) -> bool:
        """Remove a blob's file; returns whether there was one."""
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            return False
        return True

    def set_aside(self, name: str, reason: str) -> bool:
        """Move a blob's file into quarantine with the reason beside it; returns whether there was one."""
        target = self._quarantine / self.path(name).name
        try:
            self.path(name).replace(target)
        except FileNotFoundError:
            return False
        with suppress(OSError):
            target.with_name(target.name + ".reason.txt").write_text(reason + "\n", encoding="utf-8")
            self._trim_quarantine()
        return True

    def set_manifest_aside(self) -> None:
        """Move a damaged manifest out of the way."""
        for suffix in ("", "-wal", "-shm"):
            damaged = self.manifest.with_name(self.manifest.name + suffix)
            with suppress(FileNotFoundError):
                damaged.replace(self._quarantine / damaged.name)

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield name and size of every blob file; files of other shapes are passed over."""
        for outer in _scan(self._blobs):
            for inner in _scan(outer):
                for file in _scan(inner):
                    name = Path(file).stem
                    size = self.size(name)
                    if size is not None and is_name(name) and str(self.path(name)) == file:
                        yield name, size

    def sweep_temps(self) -> None:
        """Remove temporary files that a dead writer left; a young one may still be at work."""
        for temp in map(Path, _scan(self._temps)):
            with suppress(OSError):
                if time.time() - temp.stat().st_mtime > ORPHAN_AGE_SECONDS:
                    temp.unlink()

    def _trim_quarantine(self) -> None:
        files = sorted(map(Path, _scan(self._quarantine)), key=lambda file: file.stat().st_mtime)
        for file in files[: -2 * QUARANTINE_FILES]:
            file.unlink()

    def _make_shard(self, shard: Path) -> None:
        for folder in (shard.parent, shard):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                _sync(folder.parent)


def _scan(folder: str | Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _write_all(file: BinaryIO, buffers: Sequence[memoryview]) -> None:
    file.writelines(buffers)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_error(what: str, path: Path, error: OSError) -> StoreWriteError:
    """Word a failure to write: what, where, why, and the mend."""
    mend = _MENDS.get(error.errno or 0, "check the disk, and its log")
    return StoreWriteError(f"{what}: cannot write {path} ({error.strerror or error}): {mend}")


_MENDS = {
    errno.ENOSPC: "free disk space, or give the store a smaller budget",
    errno.EDQUOT: "free space under the quota, or give the store a smaller budget",
    errno.EROFS: "make it writable, or choose another store folder",
    errno.EACCES: "make it writable for this user, or choose another store folder",
    errno.EPERM: "make it writable for this user, or choose another store folder",
    errno.EEXIST: "a file is in the way: choose another store folder",
    errno.ENOTDIR: "a file is in the way: choose another store folder",
}
