"""A folder of files derived from one revision of the index: written whole or not at all, the older ones removed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_MANIFEST_NAME = "manifest.json"
_TEMPORARY = ".tmp-"
_STALE_SECONDS = 3600.0  # a temporary folder this old was left by a process that died

Manifest = Mapping[str, int | str]


class SnapshotFolder:
    """Snapshots under `<folder>/<revision>/`, each with a manifest that says what it was made from.

    What is kept here can be made again: a failure to read or to write costs time and no answer.

    Args:
        folder: Where the snapshots are; None keeps none.
        read_only: Never write.
    """

    def __init__(self, folder: Path | None, *, read_only: bool) -> None:
        self.folder = folder
        self._read_only = read_only

    @property
    def is_kept(self) -> bool:
        """Whether `keep` writes anything."""
        return self.folder is not None and not self._read_only

    def manifest(self, revision: int) -> dict[str, int | str] | None:
        """What a snapshot was made from; None when there is none or it cannot be read."""
        if self.folder is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            read = json.loads((self.folder / str(revision) / _MANIFEST_NAME).read_bytes())
            return read if isinstance(read, dict) else None
        return None

    def path(self, revision: int) -> Path | None:
        """The folder of a snapshot, there or not; None when none are kept."""
        return None if self.folder is None else self.folder / str(revision)

    def revisions(self) -> list[int]:
        """Revisions that have a folder, the one written last first: an index that was made anew counts from 1 again."""
        if self.folder is None:
            return []
        with contextlib.suppress(OSError):
            return [int(path.name) for path in sorted(_numbered(self.folder), key=_written, reverse=True)]
        return []

    def keep(self, revision: int, manifest: Manifest, save: Callable[[Path], None]) -> None:
        """Let `save` write a snapshot into a folder it is given, and remove the older ones.

        A failure to write leaves nothing behind, and the older ones as they are.
        """
        if self.folder is None or self._read_only:
            return
        temporary = self.folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            temporary.mkdir(parents=True)
            save(temporary)
            (temporary / _MANIFEST_NAME).write_text(json.dumps(dict(manifest)), encoding="utf-8")
            _sync(temporary)
            _replace(temporary, self.folder / str(revision))
        except OSError:
            pass
        else:
            _remove_older(self.folder, revision)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _numbered(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.name.isdecimal())


def _written(path: Path) -> tuple[int, int]:
    """When a snapshot was finished, 0 where that is unknown; of two at the same instant the higher revision counts."""
    try:
        return (path / _MANIFEST_NAME).stat().st_mtime_ns, int(path.name)
    except OSError:
        return 0, int(path.name)


def _sync(folder: Path) -> None:
    """Bring every file to the disk before the folder gets its name, so that a power cut leaves no hollow one."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())


def _replace(source: Path, target: Path) -> None:
    """Rename a folder to a name that may be taken by a stale or a damaged one, or just now by another process."""
    try:
        source.rename(target)
    except OSError:
        aside = source.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
        target.rename(aside)
        try:
            source.rename(target)
        except OSError:
            with contextlib.suppress(OSError):  # taken by another process meanwhile
                aside.rename(target)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _remove_older(folder: Path, revision: int) -> None:
    """Delete what no later process will read; a process that has it mapped keeps its pages."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            stale = path.name.startswith(_TEMPORARY) and time.time() - path.stat().st_mtime > _STALE_SECONDS
            if stale or (path.name.isdecimal() and int(path.name) < revision):
                shutil.rmtree(path, ignore_errors=True)
