from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from corpus import make_engine, write_corpus
from tiny_models import make_tiny

from epic_rag.engine import index_folder
from epic_rag.errors import ConfigError
from epic_rag.ingest import IngestOptions, ingest
from epic_rag.load import EncodedChunk, Loader


def keys_of(store: Path) -> set[str]:
    return {file.stem for file in (store / "blobs").rglob("*.safetensors") if not file.stem.startswith("profile-")}


def test_a_second_ingest_encodes_nothing(tmp_path: Path) -> None:
    corpus, engine = write_corpus(tmp_path / "docs"), make_engine(tmp_path / "store")
    first = ingest(engine, [corpus])
    assert (first.added, first.updated, first.skipped, first.errors) == (8, 0, 0, [])
    assert first.encoded == first.chunks >= 8
    blobs = [file for file in (tmp_path / "store" / "blobs").rglob("*") if file.is_file()]
    assert first.bytes == sum(file.stat().st_size for file in blobs if not file.stem.startswith("profile-"))
    second = ingest(engine, [corpus])
    assert (second.added, second.skipped, second.encoded, second.reused) == (0, 8, 0, first.chunks)


def test_renamed_and_touched_files_encode_nothing_and_changed_ones_only_what_changed(tmp_path: Path) -> None:
    corpus, engine = write_corpus(tmp_path / "docs", sentences=20), make_engine(tmp_path / "store")
    first = ingest(engine, [corpus])
    files = sorted(corpus.iterdir())
    os.utime(files[0], (1, 1))
    files[1].rename(corpus / "renamed.txt")
    report = ingest(engine, [corpus], IngestOptions(prune=True))
    assert (report.added, report.deleted, report.skipped) == (1, 1, 7)
    assert (report.encoded, report.reused) == (0, first.chunks)
    text = files[2].read_text(encoding="utf-8")
    files[2].write_text(text + " One more fact at the very end.", encoding="utf-8")
    changed = ingest(engine, [corpus])
    assert (changed.updated, changed.added) == (1, 0)
    assert 1 <= changed.encoded <= 2


def test_the_same_text_in_two_files_is_encoded_once(tmp_path: Path) -> None:
    corpus, engine = write_corpus(tmp_path / "docs"), make_engine(tmp_path / "store")
    (corpus / "a.md").write_text("# Title\n\nThe very same words.\n", encoding="utf-8")
    (corpus / "b.md").write_text("# Title\n\nThe very same words.\n", encoding="utf-8")
    report = ingest(engine, [corpus])
    assert report.encoded == report.chunks - 1
    assert report.reused == 1


def test_file_order_changes_neither_profile_nor_keys(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "docs", count=24)
    files = sorted(corpus.iterdir())
    profiles, keys = [], []
    for name, order in (("one", files), ("two", files[::-1]), ("three", files[7:] + files[:7])):
        engine = make_engine(tmp_path / name)
        report = ingest(engine, order, IngestOptions(encoding="warm:120"))
        assert report.encoding == "warm:120"
        profiles.append(engine.loader.profile.digest)
        keys.append(keys_of(tmp_path / name))
        engine.close()
    assert len(set(profiles)) == 1
    assert keys[0] == keys[1] == keys[2]


def test_a_corpus_too_small_to_lend_chunks_gets_the_neutral_text(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "store")
    small = ingest(engine, [write_corpus(tmp_path / "docs", count=2)])
    assert small.encoding == "warm:600/neutral"
    later = ingest(engine, [write_corpus(tmp_path / "more", count=30)])
    assert later.encoding == "warm:600/neutral", "later documents use the profile of the first ingest"
    own = ingest(engine, [tmp_path / "docs", tmp_path / "more"], IngestOptions(encoding="warm:500"))
    assert own.encoding == "warm:500"
    assert own.encoded == own.chunks - own.reused > 0


@pytest.mark.parametrize("encoding", ["none", "sinks", "prompt"])
def test_every_encoding_has_keys_of_its_own(encoding: str, tmp_path: Path) -> None:
    corpus, engine = write_corpus(tmp_path / "docs", count=3), make_engine(tmp_path / "store")
    warm = ingest(engine, [corpus])
    other = ingest(engine, [corpus], IngestOptions(encoding=encoding))
    assert other.encoded == warm.encoded
    assert ingest(engine, [corpus]).encoding == encoding


def test_tenants_never_share_entries(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "docs", count=3)
    ingest(make_engine(tmp_path / "store", salt="a"), [corpus])
    other = ingest(make_engine(tmp_path / "store", salt="b"), [corpus])
    assert other.encoded == other.chunks
    assert other.reused == 0


def test_another_model_finds_no_hits_and_encodes_its_own(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "docs", count=3)
    first = ingest(make_engine(tmp_path / "store"), [corpus])
    other = ingest(make_engine(tmp_path / "store", make_tiny("qwen2")), [corpus])
    assert other.skipped == 3
    assert other.encoded == first.encoded
    again = ingest(make_engine(tmp_path / "store"), [corpus])
    assert again.encoded == 0


def test_prune_removes_only_what_is_gone_from_the_folders_named(tmp_path: Path) -> None:
    one, two, engine = (
        write_corpus(tmp_path / "one"),
        write_corpus(tmp_path / "two", 3),
        make_engine(tmp_path / "store"),
    )
    ingest(engine, [one, two])
    sorted(one.iterdir())[0].unlink()
    shutil.rmtree(two)
    assert ingest(engine, [one]).deleted == 0
    assert ingest(engine, [one], IngestOptions(prune=True)).deleted == 1
    assert engine.index.num_documents == 7 + 3


def test_an_ingest_cut_short_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, engine = write_corpus(tmp_path / "docs", count=12), make_engine(tmp_path / "store")
    real, calls = Loader.encode, []

    def interrupted(self: Loader, token_ids: tuple[int, ...]) -> EncodedChunk:
        calls.append(token_ids)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return real(self, token_ids)

    monkeypatch.setattr(Loader, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ingest(engine, [corpus])
    monkeypatch.undo()
    engine.close()
    resumed = make_engine(tmp_path / "store")
    report = ingest(resumed, [corpus])
    assert report.reused == 5
    assert report.encoded == report.chunks - 5
    uninterrupted = make_engine(tmp_path / "other")
    ingest(uninterrupted, [corpus])
    assert keys_of(tmp_path / "store") == keys_of(tmp_path / "other")


@pytest.mark.parametrize("options", [{"chunk_tokens": 5}, {"chunk_tokens": 100_000}])
def test_chunk_sizes_that_cannot_be_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="between 32 and 4096"):
        IngestOptions(**options)


@pytest.mark.parametrize("encoding", ["warm", "warm:0", "warm:x", "hot", ""])
def test_unknown_encodings_are_refused_with_the_list(encoding: str, tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "store")
    with pytest.raises(ConfigError, match="none, sinks, prompt, warm:N"):
        ingest(engine, [write_corpus(tmp_path / "docs", 2)], IngestOptions(encoding=encoding))


def test_an_ingest_that_finds_nothing_settles_nothing(tmp_path: Path) -> None:
    engine = make_engine(tmp_path / "store")
    report = ingest(engine, [tmp_path / "mistyped"])
    assert report.errors[0].reason
    assert engine.store.profiles() == []
    later = ingest(engine, [write_corpus(tmp_path / "docs", 24)], IngestOptions(encoding="warm:120"))
    assert later.encoding == "warm:120"


def test_tenants_have_an_index_of_their_own() -> None:
    assert index_folder("disk:///x", "a") != index_folder("disk:///x", "b") != index_folder("disk:///x")
    assert index_folder("redis://host/0", "a") != index_folder("redis://host/1", "a")
    assert index_folder("memory://", "a") is None


def test_prune_removes_records_and_text_that_are_gone_from_files_that_stay(tmp_path: Path) -> None:
    docs, engine = tmp_path / "docs", make_engine(tmp_path / "store")
    docs.mkdir()
    (docs / "rows.jsonl").write_text('{"id": "a", "text": "the vault"}\n{"id": "b", "text": "the pier"}\n')
    (docs / "secret.txt").write_text("the password")
    (docs / "c#notes.md").write_text("# Notes\n\nkept")
    ingest(engine, [docs])
    (docs / "rows.jsonl").write_text('{"id": "b", "text": "the pier"}\n')
    (docs / "secret.txt").write_text("")
    report = ingest(engine, [docs], IngestOptions(prune=True))
    assert report.deleted == 2
    assert [Path(source).name for source in engine.index.sources()] == ["c#notes.md", "rows.jsonl#b"]


def test_prune_keeps_records_of_a_file_that_could_not_be_read_this_time(tmp_path: Path) -> None:
    docs, engine = tmp_path / "docs", make_engine(tmp_path / "store")
    docs.mkdir()
    rows = docs / "rows.jsonl"
    rows.write_text('{"id": "a", "text": "the vault"}\n{"id": "b#2", "text": "the pier"}\n')
    ingest(engine, [docs])
    rows.write_bytes(bytes(range(256)) * 20)
    report = ingest(engine, [docs], IngestOptions(prune=True))
    assert "binary" in report.errors[0].reason
    assert report.deleted == 0
    assert [Path(source).name for source in engine.index.sources()] == ["rows.jsonl#a", "rows.jsonl#b#2"]


def test_an_unknown_encoding_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="unknown encoding 'hot'"):
        IngestOptions(encoding="hot")
