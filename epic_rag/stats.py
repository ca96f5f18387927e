"""What a store holds, read without loading a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from epic_rag import config
from epic_rag.config import CORPUS_FACTOR, NEUTRAL_MARK
from epic_rag.kvstore.uri import mask_uri, open_store
from epic_rag.places import index_folder, require_store
from epic_rag.retrievers.index import PassageIndex
from epic_rag.settings import configured


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """Chunks of one encoding profile."""

    digest: str
    model: str
    encoding: str
    dtype: str
    prefix_tokens: int
    entries: int
    bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StoreReport:
    """A store and the index beside it."""

    store: str
    documents: int
    passages: int
    entries: int
    bytes: int
    tokens: int
    profiles: tuple[ProfileReport, ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain data, as the CLI prints it."""
        return asdict(self)


def read_stats(store_uri: str | None = None) -> StoreReport:
    """Count documents, chunks and bytes per encoding profile.

    Args:
        store_uri: None: as configured, else `.epic-rag` in the current folder.

    Raises:
        ConfigError: the store is not there.
        StoreError: it cannot be read.
    """
    uri = configured({"store": store_uri}).store
    require_store(uri)
    folder = index_folder(uri, config.tenant_salt())
    with open_store(uri, config.store_key()) as store, PassageIndex(folder) as index:
        stats = store.stats()
        by_digest = {profile.digest: profile for profile in stats.profiles}
        profiles = []
        for profile in store.profiles():
            held = by_digest.get(profile.digest)
            profiles.append(
                ProfileReport(
                    digest=profile.digest,
                    model=profile.model_name,
                    encoding=profile.encoding,
                    dtype=profile.dtype,
                    prefix_tokens=len(profile.prefix_ids),
                    entries=held.entries if held else 0,
                    bytes=held.bytes if held else 0,
                    tokens=held.tokens if held else 0,
                )
            )
        passages = index.num_passages
        return StoreReport(
            store=mask_uri(uri),
            documents=index.num_documents,
            passages=passages,
            entries=stats.entries,
            bytes=stats.bytes,
            tokens=stats.tokens,
            profiles=tuple(profiles),
            advice=tuple(_advice(profiles)),
        )


def _advice(profiles: list[ProfileReport]) -> list[str]:
    """A corpus that has outgrown the neutral text should lend its own chunks (docs/architecture.md, "Warm prefix")."""
    outgrown = [
        profile
        for profile in profiles
        if profile.encoding.endswith(NEUTRAL_MARK) and profile.tokens >= CORPUS_FACTOR * profile.prefix_tokens
    ]
    return [
        f"profile {profile.digest[:12]} ({profile.model}) was encoded behind the neutral text, since the corpus was "
        "small then; it can now lend its own chunks, which gives better answers: ingest again into a new store"
        for profile in outgrown
    ]
