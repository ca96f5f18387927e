"""Copying chunks and profiles from one store to another, one at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from epic_rag.kvstore.asyncface import Buffer
from epic_rag.kvstore.blobstore import RECORD_PREFIX
from epic_rag.kvstore.errors import StoreFormatError
from epic_rag.kvstore.header import CODEC_NONE
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.kvstore.scrub import Progress, is_ours
from epic_rag.kvstore.store import KVStore

_ASKED_AT_ONCE = 256
"""Names that the target is asked for together."""


@dataclass(slots=True)
class TransferReport:
    """What a copy did.

    Attributes:
        copied: chunks and profiles that were copied.
        present: those that the target had already.
        copied_bytes: bytes that were written.
        left_out: (name, reason) of each that is not there afterwards: damaged, without the MAC that it must have, of
            an unknown version or codec, or it cannot be read or be kept.
    """

    copied: int = 0
    present: int = 0
    copied_bytes: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)


def copy_store(
    source: KVStore, target: KVStore, progress: Progress | None = None, *, seal: bool = False
) -> TransferReport:
    """Copy every chunk and profile that the target does not have.

    Each blob is checked byte by byte on its way, and one is in memory at a time. Interrupted at any instant, the same
    call goes on where it stopped: what is there is passed over. The source is only read, and no use is counted.

    Blobs are copied as they are. Only where the target was opened with a codec, those of the codec "none" are written
    in it, so that exporting to a store behind a slow link compresses.

    Args:
        source: where to read.
        target: where to write.
        progress: told how many blobs are done, and how many there are.
        seal: take over what was written without a secret key: the target's is put on it.

    Raises:
        ValueError: the two stores were opened with different secret keys.
        StoreKeyError: one of them is not of the key that it was opened with.
        StoreWriteError: the target takes no more; what was copied stays.
        StoreUnavailableError: one of them cannot be reached.
    """
    if not source.same_key(target) and not seal:
        raise ValueError(
            "both stores must be opened with the same secret key: the target would refuse what it is given"
        )
    source.trust.confirm()
    target.trust.confirm()
    report = TransferReport()
    names = _profiles_first(source)
    if seal:
        for name, record in target.trust.key_record().items():
            target.blobs.put(name, record)
    for start in range(0, len(names), _ASKED_AT_ONCE):
        some = names[start : start + _ASKED_AT_ONCE]
        for offset, (name, there) in enumerate(zip(some, target.blobs.contains(some), strict=True), start + 1):
            if there:
                report.present += 1
            else:
                _copy(source, target, name, report)
            if progress is not None:
                progress(offset, len(names))
    _count_lost(target, names, report)
    return report


def _count_lost(target: KVStore, names: Sequence[str], report: TransferReport) -> None:
    """A target with a limit may have let go of the first blobs while the last ones came."""
    known = {name for name, _ in report.left_out}
    for start in range(0, len(names), _ASKED_AT_ONCE):
        some = names[start : start + _ASKED_AT_ONCE]
        for name, there in zip(some, target.blobs.contains(some), strict=True):
            if not there and name not in known:
                report.left_out.append((name, "gave way to others in the target: raise its budget or maxmemory"))


def _profiles_first(store: KVStore) -> Sequence[str]:
    """Names in an order in which no chunk is ever without its profile, wherever the copy stops."""
    names = [name for name in store.blobs.names() if is_ours(name)]
    return sorted(names, key=lambda name: not name.startswith(RECORD_PREFIX))


def _copy(source: KVStore, target: KVStore, name: str, report: TransferReport) -> None:
    view = source.blobs.get_range(name, 0, source.blobs.size_bytes(name) or 0)
    if view is None:
        report.left_out.append((name, "is listed, but cannot be read"))
        return
    try:
        data = _to_write(source, target, name, view)
    except StoreFormatError as error:
        report.left_out.append((name, str(error)))
        return
    target.blobs.put(name, data)
    report.copied += 1
    report.copied_bytes += sum(memoryview(part).nbytes for part in data)


def _to_write(source: KVStore, target: KVStore, name: str, view: memoryview) -> list[Buffer]:
    """Check a blob; return it as it is, or in the target's codec.

    Raises:
        StoreFormatError: any flaw.
    """
    header = source.check(name, view)
    if header is None:
        return [target.trust.seal_record(source.trust.open_record(view))]
    if source.same_key(target) and (header.codec != CODEC_NONE or target.codec == CODEC_NONE):
        return [view]
    key = ChunkKey(name)
    return target.encode(key, source.decode(key, view), header.profile_digest, header.encode_seconds)
