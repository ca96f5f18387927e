"""A store that fails never costs the answer."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus import make_engine, write_corpus
from redis_servers import require_server, server, wait_until
from tiny_models import make_tiny

from epic_rag.ask import AskOptions, ask
from epic_rag.decode import DecodeOptions
from epic_rag.engine import Engine
from epic_rag.ingest import ingest
from epic_rag.kvstore.errors import StoreError, StoreWriteError
from epic_rag.kvstore.uri import open_store
from epic_rag.retrievers.errors import RetrieverError
from epic_rag.retrievers.index import PassageIndex
from epic_rag.schema import Answer

QUESTION = "What is fact 3 of the telescope worth?"


def answer(engine: Engine) -> Answer:
    *_, last = ask(engine, QUESTION, AskOptions(k=3, decode=DecodeOptions(max_tokens=6)))
    assert isinstance(last, Answer)
    return last


def forget_kv(engine: Engine) -> None:
    for name in list(engine.store.blobs.names()):
        engine.store.blobs.delete(name)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = make_engine(tmp_path / "store")
    ingest(engine, [write_corpus(tmp_path / "docs")])
    return engine


@pytest.mark.parametrize("error", [StoreWriteError("the disk is full"), OSError(28, "No space left on device")])
def test_a_store_that_cannot_be_written_costs_one_warning(
    engine: Engine, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(engine).answer
    forget_kv(engine)

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(type(engine.store.blobs), "put", refuse)
    got = answer(engine)
    assert got.answer == expected
    assert len(got.warnings) == 1
    assert "could not be written" in got.warnings[0]
    assert {source.tier for source in got.sources} == {"encoded"}


@pytest.mark.parametrize("error", [StoreError("gone"), OSError(5, "Input/output error")])
def test_a_store_that_cannot_be_read_costs_one_warning(
    engine: Engine, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(engine).answer

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(type(engine.store.blobs), "find_many", refuse)
    got = answer(engine)
    assert got.answer == expected
    assert len(got.warnings) == 1
    assert "could not be read" in got.warnings[0]


def _mount(folder: Path, *options: str) -> None:
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting needs root and the right: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 700 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    _mount(folder, "-t", "tmpfs", "-o", "size=700k", "tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_the_ingest_in_words_and_questions_are_answered(small_disk: Path, tmp_path: Path) -> None:
    engine = make_engine(small_disk / "store")
    with pytest.raises((StoreWriteError, RetrieverError), match=r"the disk is full|No space|no room"):
        ingest(engine, [write_corpus(tmp_path / "docs", 40)])
    got = answer(engine)
    assert got.sources
    assert len(got.warnings) <= 1
    assert engine.store.verify().damaged == []
    engine.close()


def test_a_full_disk_answers_in_a_new_process_too(small_disk: Path, tmp_path: Path) -> None:
    """Nothing is open yet, so that sqlite cannot even make the files it reads with."""
    first = make_engine(small_disk / "store")
    ingest(first, [write_corpus(tmp_path / "docs", 1)])
    first.close()
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass
    engine = make_engine(small_disk / "store")
    *_, got = ask(
        engine, "What is fact 3 of the lighthouse worth?", AskOptions(k=3, decode=DecodeOptions(max_tokens=4))
    )
    engine.close()
    assert got.sources  # type: ignore[union-attr]
    assert {source.tier for source in got.sources} == {"disk"}  # type: ignore[union-attr]


def test_a_read_only_store_answers(tmp_path: Path) -> None:
    first = make_engine(tmp_path / "store")
    ingest(first, [write_corpus(tmp_path / "docs")])
    expected = answer(first).answer
    lost = answer(first).sources[0].key
    first.store.blobs.delete(lost)
    first.close()
    _mount(tmp_path / "store", "--bind", str(tmp_path / "store"))
    try:
        _mount(tmp_path / "store", "-o", "remount,ro,bind")
        engine = make_engine(tmp_path / "store")
        got = answer(engine)
        engine.close()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "store")], check=True)
    assert got.answer == expected
    assert [source.tier for source in got.sources] == ["encoded", "disk", "disk"]
    assert len(got.warnings) == 1


def test_a_frozen_redis_costs_one_question_a_moment_and_no_answer(tmp_path: Path) -> None:
    require_server()
    with server(tmp_path) as redis:
        engine = Engine(make_tiny("llama"), open_store(redis.uri), PassageIndex(None))
        ingest(engine, [write_corpus(tmp_path / "docs")])
        expected = answer(engine)
        assert {source.tier for source in expected.sources} == {"redis"}
        with redis.frozen():
            first, second = answer(engine), answer(engine)
            for got in (first, second):
                assert got.answer == expected.answer
                assert {source.tier for source in got.sources} == {"encoded"}
                assert len(got.warnings) == 1
                assert "could not be written" in got.warnings[0]
        assert engine.store.blobs._circuit.times_opened == 1, "the second question did not wait for it"
        print(f"frozen: load took {first.timings.load_seconds:.3f} and then {second.timings.load_seconds:.3f} s")
        wait_until(lambda: engine.store.blobs.available, "the circuit to close")
        assert {source.tier for source in answer(engine).sources} == {"redis"}
        engine.close()
