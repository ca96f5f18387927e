"""A small corpus of plain sentences, and an engine over it with a tiny model."""

from __future__ import annotations

from pathlib import Path

from tiny_models import make_tiny

from epic_rag import EpicRAG
from epic_rag.engine import Engine
from epic_rag.ingest import ingest
from epic_rag.kvstore.uri import open_store
from epic_rag.model import LanguageModel
from epic_rag.retrievers.index import PassageIndex

SUBJECTS = ("lighthouse", "bakery", "telescope", "ferry", "orchard", "library", "glacier", "violin")


def write_corpus(folder: Path, count: int = 8, sentences: int = 8) -> Path:
    """`count` text files of `sentences` sentences each, all different."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        subject = SUBJECTS[number % len(SUBJECTS)]
        lines = [
            f"The {subject} number {number} has fact {i} worth {number * 100 + i} points." for i in range(sentences)
        ]
        (folder / f"{subject}-{number}.txt").write_text(" ".join(lines), encoding="utf-8")
    return folder


def make_engine(store: Path | str, model: LanguageModel | None = None, salt: str = "") -> Engine:
    """An engine over `store`, its index beside it."""
    index = None if str(store).startswith("memory:") else Path(store) / "index"
    return Engine(model or make_tiny("llama"), open_store(str(store)), PassageIndex(index), salt=salt)


def make_rag(folder: Path, sentences: int = 8) -> EpicRAG:
    """A chain over four such files, whose answers have six tokens, never fewer."""
    engine = make_engine(folder / "store")
    engine.model.eos_ids = frozenset()
    ingest(engine, [write_corpus(folder / "docs", 4, sentences)])
    return EpicRAG(engine=engine, k=2, max_tokens=6)
