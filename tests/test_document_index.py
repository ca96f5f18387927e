from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from corpus import make_engine, write_corpus
from langchain_core.documents import Document
from langchain_core.indexing import aindex, index
from langchain_core.indexing.base import DocumentIndex
from langchain_tests.integration_tests.indexer import AsyncDocumentIndexTestSuite, DocumentIndexerTestSuite
from tiny_models import make_tiny

from epic_rag import EpicRAG
from epic_rag.document_index import EpicIndex, _tag
from epic_rag.errors import ConfigError, IngestError
from epic_rag.ingest import IngestOptions, ingest
from epic_rag.kvstore.errors import StoreWriteError
from epic_rag.maintenance import PruneOptions, prune
from epic_rag.retrievers import SQLiteRecordManager

MODEL = make_tiny("llama")
SENTENCES = {
    "tower.txt": "The lighthouse keeper counts eleven lamps.",
    "oven.txt": "The bakery opens at five o'clock.",
    "lens.txt": "The telescope has a focal length of a metre.",
}


def open_index(store: Path | str, **fields: object) -> EpicIndex:
    return EpicIndex(engine=make_engine(store, MODEL), **{"encoding": "none", **fields})


def documents(**changed: str) -> list[Document]:
    texts = SENTENCES | {f"{name}.txt": text for name, text in changed.items()}
    return [Document(text, metadata={"source": name, "pages": [1, 2]}) for name, text in texts.items() if text]


class TestStandard(DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self) -> DocumentIndex:
        return open_index("memory://")


class TestStandardAsync(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    async def index(self) -> DocumentIndex:
        return open_index("memory://")


def test_no_standard_test_is_overridden() -> None:
    for ours, theirs in ((TestStandard, DocumentIndexerTestSuite), (TestStandardAsync, AsyncDocumentIndexTestSuite)):
        assert not [name for name in vars(ours) if name.startswith("test") and hasattr(theirs, name)]


def run(epic: EpicIndex, records: SQLiteRecordManager, docs: list[Document], **options: object) -> tuple[int, ...]:
    options = {"cleanup": "scoped_full", "source_id_key": "source", "key_encoder": "blake2b", **options}
    done = index(docs, records, epic, **options)
    return done["num_added"], done["num_updated"], done["num_skipped"], done["num_deleted"]


@pytest.fixture
def records(tmp_path: Path) -> SQLiteRecordManager:
    manager = SQLiteRecordManager("tests", tmp_path / "records.sqlite")
    manager.create_schema()
    return manager


def test_langchains_index_again_and_again(tmp_path: Path, records: SQLiteRecordManager) -> None:
    epic = open_index(tmp_path / "store")
    assert run(epic, records, documents()) == (3, 0, 0, 0)
    entries = epic.engine.store.stats().entries
    assert run(epic, records, documents()) == (0, 0, 3, 0)
    assert run(epic, records, documents(oven="The bakery opens at six o'clock.")) == (1, 0, 2, 1)
    assert epic.engine.store.stats().entries == entries + 1, "only what changed was encoded"
    assert [found.page_content for found in epic.invoke("bakery")] == ["The bakery opens at six o'clock.\n\n"]
    assert run(epic, records, documents(oven=""), cleanup="full") == (0, 0, 2, 1)
    assert epic.invoke("bakery") == []
    assert epic.engine.index.num_documents == 2


def test_of_a_source_that_is_met_again_the_vanished_parts_go(tmp_path: Path, records: SQLiteRecordManager) -> None:
    epic = open_index(tmp_path / "store")
    parts = [Document(f"Part {part} of the ferry timetable.", metadata={"source": "ferry.txt"}) for part in range(3)]
    assert run(epic, records, [*documents(), *parts], batch_size=2) == (6, 0, 0, 0)
    assert run(epic, records, [*documents(), *parts[:2]], batch_size=2) == (0, 0, 5, 1)
    assert {found.page_content.split()[1] for found in epic.invoke("ferry timetable")} == {"0", "1"}


async def test_the_async_form_and_another_process_after_it(tmp_path: Path, records: SQLiteRecordManager) -> None:
    epic = open_index(tmp_path / "store")
    options = {"cleanup": "scoped_full", "source_id_key": "source", "key_encoder": "blake2b"}
    assert (await aindex(documents(), records, epic, **options))["num_added"] == 3
    epic.engine.close()
    again = open_index(tmp_path / "store")
    assert (await aindex(documents(), records, again, **options))["num_skipped"] == 3
    assert [found.metadata["source"] for found in await again.ainvoke("telescope", k=1)] == ["lens.txt"]


def test_a_document_comes_back_as_it_went_in() -> None:
    epic = open_index("memory://")
    text = "\ufeffline\r\nnext \ud800 \0 end"
    metadata = {"source": "a#b", "title": 3, "deep": {"x": [1.5, None, True]}, "pair": (1, 2), "line": 7}
    epic.upsert([Document(text, id="ä/1\ud800", metadata=metadata)])
    (got,) = epic.get(["ä/1\ud800", "ä/1\ud800"])
    assert (got.page_content, got.id) == (text, "ä/1\ud800")
    assert got.metadata == metadata | {"pair": [1, 2]}


def test_what_json_cannot_hold_is_refused_before_anything_is_written() -> None:
    epic = open_index("memory://")
    broken = Document("b", id="2", metadata={"day": datetime.date(2026, 1, 1)})
    with pytest.raises(ConfigError, match=r"metadata of document '2' cannot be kept as JSON.*date"):
        epic.upsert([Document("a", id="1"), broken])
    assert epic.get(["1", "2"]) == []
    with pytest.raises(ConfigError, match="unknown options colour"):
        epic.upsert([], colour="red")


def test_the_same_content_is_encoded_once_and_metadata_alone_encodes_nothing(tmp_path: Path) -> None:
    epic = open_index(tmp_path / "store")
    epic.upsert([Document("The same words.", id="1")])
    entries = epic.engine.store.stats().entries
    epic.upsert(
        [Document("The same words.", id="1", metadata={"source": "new.txt"}), Document("The same words.", id="2")]
    )
    assert epic.engine.store.stats().entries == entries
    assert epic.engine.index.num_documents == 2, "the passages of the old source are gone"
    assert epic.get(["1"])[0].metadata == {"source": "new.txt"}


def test_of_two_documents_with_one_id_the_later_stays() -> None:
    epic = open_index("memory://")
    assert epic.upsert([Document("old words", id="1"), Document("new words", id="1")])["succeeded"] == ["1"]
    assert epic.get(["1"])[0].page_content == "new words"
    assert [found.page_content for found in epic.invoke("words")] == ["new words\n\n"]


def test_a_document_of_white_space_is_kept_and_has_no_passages() -> None:
    epic = open_index("memory://")
    assert epic.upsert([Document(" \n", id="1"), Document("", id="2"), Document("solid words", id="3")])["failed"] == []
    assert [got.page_content for got in epic.get(["1", "2", "3"])] == [" \n", "", "solid words"]
    assert epic.engine.index.num_passages == 1
    assert epic.delete(["1"])["num_deleted"] == 1


def test_long_documents_are_found_by_passage_with_their_metadata() -> None:
    epic = open_index("memory://", chunk_tokens=64, k=3)
    text = "\n\n".join(f"Paragraph {number} speaks of subject{number} alone." for number in range(8))
    epic.upsert([Document(text, id="long", metadata={"source": "book.txt", "title": "Book", "author": "Ann"})])
    (found,) = epic.invoke("subject5")
    assert found.page_content.startswith("Book\n")
    assert found.metadata["source"] == "book.txt"
    assert found.metadata["author"] == "Ann"
    assert found.metadata["position"] > 0
    assert found.metadata["score"] > 0
    assert epic.get([found.metadata["document_id"]])[0].page_content == text
    assert len(epic.invoke("paragraph")) == 3
    assert len(epic.invoke("paragraph", k=5)) == 5
    assert epic.invoke("paragraph", where={"source": "other*"}) == []
    with pytest.raises(ValueError, match="k must be at least 1"):
        epic.invoke("paragraph", k=0)


@pytest.mark.parametrize("pattern", ["oven.txt", "*.txt", "o*", "oven.txt#*"])
def test_documents_are_filtered_by_the_source_they_show(pattern: str, tmp_path: Path) -> None:
    epic = open_index(tmp_path / "store")
    epic.upsert([*documents(), Document("The bakery has no source.", id="bare")])
    (found,) = epic.invoke("bakery opens", where={"source": pattern})
    assert found.metadata["source"] == "oven.txt"
    (bare,) = epic.invoke("bakery", where={"source": "bare"})
    assert epic.invoke("bakery", where={"source": bare.metadata["source"]}) == [bare]
    assert epic.invoke("bakery", where={"source": "oven", "title": "*"}) == []
    assert open_index("memory://", where={"source": pattern}).invoke("bakery") == []


def test_files_are_filtered_as_before(tmp_path: Path) -> None:
    epic, folder = open_index(tmp_path / "store"), write_corpus(tmp_path / "docs", 2)
    ingest(epic.engine, [folder])
    sources = {found.metadata["source"] for found in epic.invoke("fact", where={"source": "*bakery-1.txt"})}
    assert {Path(source).name for source in sources} == {"bakery-1.txt"}
    assert epic.invoke("fact", where={"title": "nothing"}) == []


def test_a_chain_finds_the_kv_of_indexed_documents_in_the_store(tmp_path: Path) -> None:
    epic = open_index(tmp_path / "store")
    epic.upsert(documents())
    for chain in (EpicRAG(engine=epic.engine, max_tokens=2), EpicRAG(engine=epic.engine, retriever=epic, max_tokens=2)):
        out = chain.invoke("When does the bakery open?")
        assert out["usage"]["input_token_details"]["cache_creation"] == 0
        assert out["context"][0].metadata["source"].startswith("oven.txt")


def test_files_and_documents_share_an_index_and_pruning_files_spares_documents(tmp_path: Path) -> None:
    epic, folder = open_index(tmp_path / "store"), write_corpus(tmp_path / "docs", 2)
    file = next(iter(sorted(folder.iterdir())))
    ingest(epic.engine, [folder])
    epic.upsert([Document("The orchard has ninety trees.", id="1", metadata={"source": str(file)})])
    report = ingest(epic.engine, [folder], IngestOptions(prune=True))
    assert (report.deleted, report.skipped) == (0, 2)
    assert epic.invoke("orchard trees")[0].metadata["document_id"] == "1"
    assert "document_id" not in epic.invoke("fact")[0].metadata
    epic.delete(["1"])
    assert epic.engine.index.num_documents == 2


def test_deleted_kv_stays_until_it_is_pruned(tmp_path: Path) -> None:
    epic = open_index(tmp_path / "store", encoding="sinks")
    epic.upsert([Document("Some words here.", id="1"), Document("Other words there.", id="2")])
    entries = epic.engine.store.stats().entries
    epic.delete(["1"])
    assert epic.engine.store.stats().entries == entries
    assert prune(epic.engine.store, PruneOptions(unused=True)).removed["unused"] == 1


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text with `trouble` in it cannot be cut into passages."""
    from epic_rag.ingestion import workers

    cut = workers.chunk_document

    def sometimes(document: object, *rest: object) -> object:
        if "trouble" in document.text:
            raise ValueError("too small for this character")
        return cut(document, *rest)

    monkeypatch.setattr(workers, "chunk_document", sometimes)


@pytest.mark.usefixtures("trouble")
def test_a_document_that_cannot_be_cut_is_an_error_and_the_others_are_kept() -> None:
    epic = open_index("memory://")
    with pytest.raises(IngestError, match=r"1 of 2 documents could not be indexed: x#.*too small"):
        epic.upsert([Document("trouble", id="x"), Document("fine words", id="y")])
    assert [got.id for got in epic.get(["x", "y"])] == ["y"]
    assert epic.delete(["x", "y"])["succeeded"] == ["x", "y"]
    assert not [name for name in ("x", "y") if epic.engine.index.get_meta(f"document-{_tag(name)}")]


@pytest.mark.usefixtures("trouble")
def test_where_a_new_text_cannot_be_cut_the_old_one_is_given_back_and_found() -> None:
    epic = open_index("memory://")
    old = Document("old words", id="x", metadata={"source": "a.txt"})
    epic.upsert([old])
    with pytest.raises(IngestError):
        epic.upsert([Document("trouble", id="x", metadata={"source": "b.txt"}), Document("fine words", id="y")])
    assert epic.get(["x", "y"]) == [old, Document("fine words", id="y")]
    assert {found.page_content for found in epic.invoke("words")} == {"old words\n\n", "fine words\n\n"}


def test_a_store_that_fails_leaves_the_new_text_in_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    epic = open_index("memory://")
    epic.upsert([Document("old words", id="x")])

    def fail(*_: object) -> None:
        raise StoreWriteError("the disk is full")

    monkeypatch.setattr("epic_rag.ingest.encode_missing", fail)
    with pytest.raises(StoreWriteError):
        epic.upsert([Document("new words", id="x")])
    assert epic.get(["x"])[0].page_content == "new words"
    assert [found.page_content for found in epic.invoke("words")] == ["new words\n\n"]


def test_a_search_while_a_batch_is_encoded_knows_its_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    epic, seen = open_index("memory://"), []
    monkeypatch.setattr("epic_rag.ingest.encode_missing", lambda *_: seen.extend(epic.invoke("bakery")))
    epic.upsert([Document("The bakery.", id="1", metadata={"source": "oven.txt"})])
    assert [(found.metadata["source"], found.metadata["document_id"]) for found in seen] == [("oven.txt", "1")]


def test_values_that_cannot_be_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="chunk tokens must be between"):
        open_index("memory://", chunk_tokens=1)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        open_index("memory://", k=0)
    with pytest.raises(ValueError, match="needs the ids"):
        open_index("memory://").delete()
