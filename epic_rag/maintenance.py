"""Making a store smaller: by encoding profile, by what the index no longer knows, by size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from epic_rag.errors import ConfigError
from epic_rag.kvstore.blobstore import RECORD_PREFIX, BlobStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.scrub import Progress
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.survey import StoredChunk, survey
from epic_rag.kvstore.trust import KEY_RECORD
from epic_rag.retrievers.index import FILE_NAME, PassageIndex

_SHORTEST_DIGEST = 8
"""Digits of a profile's digest that must be given; `epic-rag stats` prints 12."""


@dataclass(frozen=True, slots=True)
class PruneOptions:
    """What to remove; each part on its own, and what is left of one goes to the next.

    Attributes:
        profile: first digits of the digest of an encoding profile: all of its chunks, and its record.
        unused: chunks of no passage in the index.
        budget_bytes: as many chunks as it takes, those first that would give way under this budget.
        dry_run: only count.
    """

    profile: str | None = None
    unused: bool = False
    budget_bytes: int | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: says which cannot be.
        """
        if self.profile is None and not self.unused and self.budget_bytes is None:
            raise ConfigError("nothing to prune: say what with --profile, --unused or --budget")
        if self.profile is not None and len(self.profile) < _SHORTEST_DIGEST:
            raise ConfigError(
                f"--profile: expected at least {_SHORTEST_DIGEST} digits, as `epic-rag stats` prints them"
            )


@dataclass(slots=True)
class PruneReport:
    """What was removed, or would be.

    Attributes:
        removed: blobs, by why: `profile`, `unused`, `budget`.
        removed_bytes: their bytes.
        kept: blobs that stay, records included.
        kept_bytes: their bytes.
        undecided: chunks that stay because no index can tell whether they are used: of another tokenizer than the
            passages were indexed with, or of the encoding "none", as the beginning of every prompt is.
    """

    removed: dict[str, int] = field(default_factory=lambda: {"profile": 0, "unused": 0, "budget": 0})
    removed_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    undecided: int = 0


def prune(store: KVStore, options: PruneOptions, progress: Progress | None = None) -> PruneReport:
    """Remove chunks.

    Nothing is lost but time: what is asked for again is encoded again.

    Args:
        store: the store.
        options: what to remove.
        progress: told how many blobs are removed, and how many will be.

    Raises:
        ConfigError: no such profile, or no index to compare with.
        StoreError: the store cannot be read or written, or keeps no order of use to cut it by.
    """
    report = PruneReport()
    chosen = _choose(store, options, report)
    if not options.dry_run:
        for done, name in enumerate(chosen, 1):
            store.blobs.delete(name)
            if progress is not None:
                progress(done, len(chosen))
    stats = store.blobs.stats()
    report.removed_bytes = sum(chosen.values())
    report.kept = stats.entries - (len(chosen) if options.dry_run else 0)
    report.kept_bytes = stats.bytes - (report.removed_bytes if options.dry_run else 0)
    return report


def _choose(store: KVStore, options: PruneOptions, report: PruneReport) -> dict[str, int]:
    """Names of what is to go, with their bytes; records behind their chunks."""
    chosen: dict[str, int] = {}

    def choose(why: str, found: Iterable[tuple[str, int]]) -> None:
        before = len(chosen)
        chosen.update(found)
        report.removed[why] += len(chosen) - before

    # The chunks are listed before the index is read: a passage is indexed before it is encoded, so a document that is
    # ingested meanwhile is either in both or its chunks are in neither.
    chunks = [] if options.profile is None and not options.unused else list(survey(store.blobs))
    if options.profile is not None:
        choose("profile", _of_profile(store, chunks, options.profile))
    if options.unused:
        rest = [chunk for chunk in chunks if chunk.key not in chosen]
        choose("unused", _unused(store, rest, report))
    if options.budget_bytes is not None:
        choose("budget", _over_budget(store.blobs, options.budget_bytes, chosen))
    return chosen


def _of_profile(store: KVStore, chunks: Iterable[StoredChunk], digits: str) -> list[tuple[str, int]]:
    records = [name for name in store.blobs.names(RECORD_PREFIX) if name != KEY_RECORD]
    digests = {name.removeprefix(RECORD_PREFIX) for name in records} | {chunk.profile_digest for chunk in chunks}
    found = [digest for digest in sorted(digests) if digest.startswith(digits)]
    if len(found) != 1:
        known = ", ".join(digest[:12] for digest in found or sorted(digests)) or "none"
        raise ConfigError(
            f"--profile {digits}: {len(found)} profiles begin so; {'they are' if found else 'known are'} {known}"
        )
    record = RECORD_PREFIX + found[0]
    return [
        *((chunk.key, chunk.num_bytes) for chunk in chunks if chunk.profile_digest == found[0]),
        *((name, store.blobs.size_bytes(name) or 0) for name in records if name == record),
    ]


def _unused(store: KVStore, chunks: Iterable[StoredChunk], report: PruneReport) -> Iterator[tuple[str, int]]:
    """Chunks that no recorded profile makes of any passage in the index."""
    if not isinstance(store.blobs, DiskStore):
        raise ConfigError(
            "--unused: only a store on disk has its index beside it; other machines may use this one's chunks"
        )
    damaged = store.stats().damaged
    profiles = {profile.digest: profile for profile in store.profiles()}
    if store.stats().damaged > damaged:
        raise ConfigError(
            "--unused: a profile's record was damaged: ingest again, which records it anew, and then prune"
        )
    wanted, tokenizers = _wanted(store.blobs.path, list(profiles.values()))
    for chunk in chunks:
        if chunk.key in wanted:
            continue
        profile = profiles.get(chunk.profile_digest)
        if profile is not None and (tokenizers != {profile.tokenizer_digest} or profile.encoding == "none"):
            report.undecided += 1
        else:
            yield chunk.key, chunk.num_bytes


def _wanted(folder: Path, profiles: Iterable[EncodingProfile]) -> tuple[set[ChunkKey], set[str]]:
    """Keys of every indexed passage under every profile, and the tokenizers that the passages were indexed with.

    Passages that were indexed with another tokenizer than a profile's are encoded in that profile's own tokens, which
    only its model knows. Every index beside the store counts, whoever's it is.
    """
    keys: set[ChunkKey] = set()
    tokenizers: set[str] = set()
    for file in sorted(folder.glob(f"index*/{FILE_NAME}")):
        with PassageIndex(file.parent, read_only=True) as index:
            for record in filter(None, map(index.document, index.sources())):
                tokenizers.add(record.tokenizer_digest)
                for passage in index.document_passages(record.source):
                    keys.update(chunk_key(profile, passage.token_ids) for profile in profiles)
    if not keys:
        raise ConfigError("--unused: no index beside the store holds passages, so every chunk would go: ingest first")
    return keys, tokenizers


def _over_budget(blobs: BlobStore, budget_bytes: int, chosen: dict[str, int]) -> Iterator[tuple[str, int]]:
    excess = blobs.stats().bytes - sum(chosen.values()) - budget_bytes
    for name in blobs.by_rank():
        if excess <= 0:
            return
        if name not in chosen:
            size_bytes = blobs.size_bytes(name) or 0
            excess -= size_bytes
            yield name, size_bytes
