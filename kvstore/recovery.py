"""Opening a disk store: the manifest is brought to agree with the files, whatever happened before."""

import logging
from collections.abc import Mapping

from epic_rag.kvstore.errors import StoreFormatError, StoreVersionError
from epic_rag.kvstore.folder import Folder, write_error
from epic_rag.kvstore.manifest import Manifest
from epic_rag.kvstore.manifest_rows import CONDEMNED, Rows

_log = logging.getLogger("epic_rag.kvstore")


def open_for_writing(folder: Folder, replacement: str) -> Manifest:
    """Open a folder's manifest, healed or rebuilt where that is needed; makes the folder where it is missing.

    Raises:
        StoreWriteError: the folder cannot be made or written.
        StoreVersionError: the manifest was made by another version.
    """
    try:
        folder.prepare()
        with folder.opening():
            return _open_or_rebuild(folder, replacement)
    except OSError as error:
        raise write_error("store folder", folder.root, error) from error


def open_for_reading(folder: Folder, replacement: str) -> Manifest:
    """Return a copy in memory of a folder's manifest, or one made from the files where there is no good one."""
    manifest = Manifest(None, replacement)
    try:
        manifest.load(folder.manifest)
        if manifest.exists():
            with manifest.transaction() as rows:
                for name, _ in rows.unsettled():
                    agree(folder, rows, name)
            return manifest
    except StoreFormatError as error:
        _log.info("%s; the blobs are listed from the folder", error)
    manifest.close()
    manifest = Manifest(None, replacement)
    with manifest.transaction() as rows:
        rows.create()
        reconcile(folder, rows, dict(folder.walk()))
    return manifest


def agree(folder: Folder, rows: Rows, name: str) -> None:
    """Make the manifest say about one blob what its file says."""
    size_bytes = folder.size(name)
    if size_bytes is None:
        rows.remove(name)
    else:
        rows.settle(name, size_bytes, folder.note(name))


def reconcile(folder: Folder, rows: Rows, found: Mapping[str, int]) -> None:
    """Make the manifest agree with the files `found` (name to size), and forget the others."""
    for name in sorted({name for name, _ in found.items() ^ rows.sizes().items()}):
        agree(folder, rows, name)


def _open_or_rebuild(folder: Folder, replacement: str) -> Manifest:
    try:
        return _heal(Manifest(folder.manifest, replacement), folder)
    except StoreVersionError:
        raise
    except StoreFormatError as error:
        _log.warning("%s; it is rebuilt from the blobs", error)
        folder.set_manifest_aside()
        return _heal(Manifest(folder.manifest, replacement), folder)


def _heal(manifest: Manifest, folder: Folder) -> Manifest:
    """Settle what a crash left behind; a store that was closed in order is not written to."""
    try:
        fresh = not manifest.exists()
        with manifest.read() as rows:
            leftovers = [] if fresh else rows.unsettled()
            other_ranks = fresh or rows.ranked_otherwise()
        if leftovers or other_ranks:
            with manifest.transaction() as rows:
                if fresh:
                    rows.create()
                    reconcile(folder, rows, dict(folder.walk()))
                _settle(folder, rows)
                if other_ranks:
                    rows.rank_all()
    except BaseException:
        manifest.close()
        raise
    folder.sweep_temps()
    return manifest


def _settle(folder: Folder, rows: Rows) -> None:
    for name, state in rows.unsettled():
        if state == CONDEMNED:
            folder.unlink(name)
        agree(folder, rows, name)
