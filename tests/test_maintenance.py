"""Pruning removes what was named and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from corpus import make_engine, write_corpus
from tiny_models import make_tiny

from epic_rag import config
from epic_rag.errors import ConfigError
from epic_rag.ingest import IngestOptions, ingest
from epic_rag.kvstore.errors import StoreError
from epic_rag.kvstore.keys import ChunkKey, chunk_key
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.uri import open_store
from epic_rag.maintenance import PruneOptions, prune
from epic_rag.model import LanguageModel

OTHER = EncodingProfile("other", "other", "float32", "{}", "another tokenizer", "warm:600", ())
GONE = EncodingProfile("gone", "gone", "float32", "{}", "tokenizer", "warm:600", ())


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return make_tiny("llama")


@pytest.fixture
def folder(tmp_path: Path, model: LanguageModel) -> Path:
    """A store with the KV of eight documents under two encodings."""
    write_corpus(tmp_path / "docs")
    engine = make_engine(tmp_path / "store", model)
    for encoding in ("sinks", "prompt"):
        ingest(engine, [tmp_path / "docs"], IngestOptions(encoding=encoding))
    engine.close()
    return tmp_path / "store"


def put(store: KVStore, profile: EncodingProfile, first: int = 1) -> ChunkKey:
    ids = torch.tensor([first, 2, 3], dtype=torch.int32)
    planes = torch.zeros(1, 1, 3, 4)
    key = chunk_key(profile, ids)
    store.put(key, ChunkKV(planes, planes, ids), profile=profile, encode_seconds=0.1)
    return key


def chunks(store: KVStore) -> dict[str, int]:
    """Chunks by the encoding of their profile."""
    names = {profile.digest: profile.encoding for profile in store.profiles()}
    return {names.get(p.digest, "unknown"): p.entries for p in store.stats().profiles}


def test_nothing_is_removed_where_everything_is_used(folder: Path) -> None:
    with open_store(str(folder)) as store:
        before = sorted(store.blobs.names())
        report = prune(store, PruneOptions(unused=True))
        assert report.removed == {"profile": 0, "unused": 0, "budget": 0}
        assert (report.removed_bytes, report.undecided) == (0, 1), "the prompt's beginning belongs to no passage"
        assert sorted(store.blobs.names()) == before
        assert report.kept == len(before)


def test_chunks_of_documents_that_are_gone_are_removed(folder: Path, model: LanguageModel) -> None:
    engine = make_engine(folder, model)
    sources = list(engine.index.sources())
    gone = engine.index.document_passages(sources[0])
    engine.index.delete_document(sources[0])
    engine.close()
    told: list[tuple[int, int]] = []
    with open_store(str(folder)) as store:
        put(store, OTHER)
        before = chunks(store)
        dry = prune(store, PruneOptions(unused=True, dry_run=True))
        assert chunks(store) == before
        report = prune(store, PruneOptions(unused=True), lambda done, all_: told.append((done, all_)))
        assert report == dry
        assert report.removed["unused"] == 2 * len(gone), "under both encodings"
        assert told[-1] == (2 * len(gone),) * 2
        assert report.undecided == 2, "the prompt's beginning, and the chunk of another tokenizer"
        after = chunks(store)
        assert {name: before[name] - after[name] for name in before} == {
            "sinks": len(gone), "prompt": len(gone), "none": 0, "warm:600": 0,
        }  # fmt: skip
        assert report.kept_bytes == store.blobs.stats().bytes
        assert store.verify().damaged == []
    engine = make_engine(folder, model)
    again = ingest(engine, [folder.parent / "docs"])
    engine.close()
    assert again.encoded == len(gone)


def test_another_tenants_index_counts_too(folder: Path, model: LanguageModel) -> None:
    (folder / "index").rename(folder / "index-of-a-tenant")
    engine = make_engine(folder, model)
    ingest(engine, [write_corpus(folder.parent / "others", 1, sentences=20)], IngestOptions(encoding="sinks"))
    engine.close()
    with open_store(str(folder)) as store:
        assert prune(store, PruneOptions(unused=True)).removed["unused"] == 0


def test_passages_of_several_tokenizers_cannot_be_decided(folder: Path, model: LanguageModel) -> None:
    engine = make_engine(folder, model)
    passages = engine.index.document_passages(next(engine.index.sources()))
    engine.index.put_document(passages[0].source, "digest", "another tokenizer", "{}", passages[:1])
    engine.index.delete_document(list(engine.index.sources())[-1])
    engine.close()
    with open_store(str(folder)) as store:
        report = prune(store, PruneOptions(unused=True))
        assert report.removed["unused"] == 0
        assert report.undecided > 2


def test_chunks_of_no_recorded_profile_are_unused(folder: Path) -> None:
    with open_store(str(folder)) as store:
        put(store, GONE)
        store.blobs.delete(f"profile-{GONE.digest}")
        report = prune(store, PruneOptions(unused=True))
        assert report.removed["unused"] == 1
        assert "unknown" not in chunks(store)


def test_a_profile_is_removed_with_its_record(folder: Path) -> None:
    with open_store(str(folder)) as store:
        (sinks,) = [profile for profile in store.profiles() if profile.encoding == "sinks"]
        before = chunks(store)
        report = prune(store, PruneOptions(profile=sinks.digest[:12]))
        assert report.removed["profile"] == before["sinks"] + 1
        assert chunks(store) == {name: count for name, count in before.items() if name != "sinks"}
        assert store.profile(sinks.digest) is None
        with pytest.raises(ConfigError, match=f"--profile {sinks.digest}: 0 profiles begin so; known are "):
            prune(store, PruneOptions(profile=sinks.digest))


def test_the_least_used_go_until_the_budget_holds(folder: Path) -> None:
    with open_store(str(folder)) as store:
        total = store.blobs.stats().bytes
        order = list(store.blobs.by_rank())
        report = prune(store, PruneOptions(budget_bytes=total // 2))
        assert total // 2 >= report.kept_bytes == store.blobs.stats().bytes > total // 3
        assert list(store.blobs.by_rank()) == order[report.removed["budget"] :]
        assert prune(store, PruneOptions(budget_bytes=total)).removed["budget"] == 0
        report = prune(store, PruneOptions(budget_bytes=1))
        assert store.profiles() != [], "records are pinned"
        assert report.kept == len(store.profiles())


def test_one_after_the_other_takes_no_more_than_it_must(folder: Path) -> None:
    with open_store(str(folder)) as store:
        (sinks,) = [profile for profile in store.profiles() if profile.encoding == "sinks"]
        sizes = {profile.digest: profile.bytes for profile in store.stats().profiles}
        budget = store.blobs.stats().bytes - sizes[sinks.digest]
        dry = prune(store, PruneOptions(profile=sinks.digest, budget_bytes=budget, dry_run=True))
        report = prune(store, PruneOptions(profile=sinks.digest, budget_bytes=budget))
        assert report == dry
        assert report.removed["budget"] == 0
        assert report.kept_bytes <= budget


def test_what_cannot_be_decided_is_refused(folder: Path, tmp_path: Path) -> None:
    for bad in ({}, {"profile": "abc"}):
        with pytest.raises(ConfigError, match="--profile"):
            PruneOptions(**bad)
    with KVStore(MemoryStore()) as store, pytest.raises(ConfigError, match="only a store on disk"):
        prune(store, PruneOptions(unused=True))
    with open_store(str(tmp_path / "new")) as store, pytest.raises(ConfigError, match="every chunk would go"):
        prune(store, PruneOptions(unused=True))
    with open_store(f"tiered:memory://,disk://{folder}") as store:
        with pytest.raises(ConfigError, match="only a store on disk"):
            prune(store, PruneOptions(unused=True))
        with pytest.raises(StoreError, match="no order of use"):
            prune(store, PruneOptions(budget_bytes=1))


def test_a_damaged_record_stops_pruning_before_it_costs_anything(folder: Path) -> None:
    with open_store(str(folder)) as store:
        before = store.stats().entries
        (record, *_) = store.blobs.names("profile-")
        store.blobs.put(record, b"{}")
        with pytest.raises(ConfigError, match="ingest again, which records it anew"):
            prune(store, PruneOptions(unused=True))
        assert store.stats().entries == before


def test_the_stores_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EPIC_RAG_STORE_KEY", raising=False)
    assert config.store_key() is None
    monkeypatch.setenv("EPIC_RAG_STORE_KEY", "  ")
    assert config.store_key() is None
    monkeypatch.setenv("EPIC_RAG_STORE_KEY", "ab" * 32 + "\n")
    assert config.store_key() == b"ab" * 32
    monkeypatch.setenv("EPIC_RAG_STORE_KEY", "letmein")
    with pytest.raises(ConfigError, match=r"EPIC_RAG_STORE_KEY: .* has 7 bytes.*openssl rand -hex 32") as caught:
        config.store_key()
    assert "letmein" not in str(caught.value)
