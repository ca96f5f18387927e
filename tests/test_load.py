"""Loading a prompt's KV: one question to the store, and one encoding of what it lacks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from corpus import make_engine
from tiny_models import make_tiny

from epic_rag.encode import Encoder
from epic_rag.engine import Engine
from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.uri import open_store
from epic_rag.load import ENCODED, Loaded, load
from epic_rag.prompt import Prompt
from epic_rag.retrievers.index import PassageIndex

CHUNKS = tuple(tuple(range(3 + 20 * i, 23 + 20 * i)) for i in range(3))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return make_engine(tmp_path / "store")


def prompt(engine: Engine) -> Prompt:
    return Prompt(engine.frame.prefix_ids, CHUNKS, (5, 6))


def ask_store(engine: Engine) -> Loaded:
    return load(prompt(engine), engine.prefix_loader, engine.loader)


def test_the_store_is_asked_once_and_what_it_lacks_is_encoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = type(engine.store.blobs).find_many

    def find_many(self: BlobStore, names: Sequence[str]) -> object:
        asked.append(len(names))
        return real(self, names)

    first = ask_store(engine)
    monkeypatch.setattr(type(engine.store.blobs), "find_many", find_many)
    second = ask_store(engine)
    assert {chunk.tier for chunk in first.chunks} == {ENCODED}
    assert [chunk.tier for chunk in second.chunks] == ["disk"] * (len(CHUNKS) + bool(engine.frame.prefix_ids))
    assert asked == [len(second.chunks)]
    for one, two in zip(first.chunks, second.chunks, strict=True):
        assert one.key == two.key
        assert torch.equal(one.kv.keys, two.kv.keys)
        assert torch.equal(one.kv.values, two.kv.values)


def test_threads_that_lack_the_same_chunks_encode_each_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[tuple[int, ...]] = []
    real, all_ask = Encoder.encode, threading.Barrier(4)

    def encode(self: Encoder, token_ids: Sequence[int]) -> ChunkKV:
        encoded.append(tuple(token_ids))
        return real(self, token_ids)

    monkeypatch.setattr(Encoder, "encode", encode)
    _ = engine.loader
    found: list[Loaded] = []

    def work() -> None:
        all_ask.wait(30)
        found.append(ask_store(engine))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert sorted(encoded) == sorted({engine.frame.prefix_ids, *CHUNKS} - {()})
    for other in found[1:]:
        for one, two in zip(found[0].chunks, other.chunks, strict=True):
            assert torch.equal(one.kv.values, two.kv.values)


def test_chunks_that_may_be_asked_for_come_to_the_fastest_tier(tmp_path: Path, engine: Engine) -> None:
    ask_store(engine)
    engine.close()
    tiers = open_store(f"tiered:memory://,disk://{tmp_path / 'store'}")
    again = Engine(make_tiny("llama"), tiers, PassageIndex(None))
    assert again.loader.prefetch(CHUNKS[:2]).wait(30)
    loaded = ask_store(again).chunks[-len(CHUNKS) :]
    assert [chunk.tier for chunk in loaded] == ["memory", "memory", "disk"]
