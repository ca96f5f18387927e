from __future__ import annotations

import math
import multiprocessing
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.indexing import InMemoryRecordManager

from epic_rag.retrievers import IndexCorruptError, IndexReadOnlyError, RetrieverError, SQLiteRecordManager


@pytest.fixture
def records(tmp_path: Path) -> SQLiteRecordManager:
    manager = SQLiteRecordManager("tests", tmp_path / "new" / "records.sqlite")
    manager.create_schema()
    return manager


KEYS = st.lists(st.sampled_from(["a", "b", "c", "d", "e\0'", "ä"]), max_size=4)
GROUPS = st.sampled_from([None, "g", "h"])
UPDATE = st.tuples(st.just("update"), KEYS, st.one_of(st.none(), st.lists(GROUPS, min_size=4, max_size=4)))
DELETE = st.tuples(st.just("delete"), KEYS, st.none())
NOTE_TIME = st.tuples(st.just("time"), st.none(), st.none())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(UPDATE, DELETE, NOTE_TIME), max_size=12),
    st.sampled_from([None, [], ["g"], ["g", "h"]]),
    st.sampled_from([None, 0, 1, 3]),
)
def test_it_behaves_as_langchains_own_in_memory(
    steps: list[tuple[str, list[str], list[str | None] | None]], group_ids: list[str] | None, limit: int | None
) -> None:
    reference, now = InMemoryRecordManager("tests"), iter(range(1, 10_000))
    reference.get_time = lambda: float(next(now))  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        ours = SQLiteRecordManager("tests", Path(folder) / "records.sqlite")
        ours.create_schema()
        times: list[tuple[float | None, float | None]] = [(None, None), (0, 0)]
        for step, keys, groups in steps:
            if step == "time":
                times.append((reference.get_time(), ours.get_time()))
            for manager in (reference, ours):
                if step == "update":
                    manager.update(keys, group_ids=None if groups is None else groups[: len(keys)])
                elif step == "delete":
                    manager.delete_keys(keys)
        probe = ["a", "b", "c", "nowhere", "e\0'", "a"]
        assert ours.exists(probe) == reference.exists(probe)
        for theirs, own in times:
            for bound in ("before", "after"):
                expected = reference.list_keys(**{bound: theirs}, group_ids=group_ids, limit=limit)
                assert ours.list_keys(**{bound: own}, group_ids=group_ids, limit=limit) == expected


async def test_the_async_forms_do_the_same(tmp_path: Path) -> None:
    records = SQLiteRecordManager("tests", tmp_path / "records.sqlite")
    await records.acreate_schema()
    await records.aupdate(["a", "b"], group_ids=["g", None])
    began = await records.aget_time()
    await records.aupdate(["b", "c"], group_ids=["g", "h"], time_at_least=began)
    assert await records.aexists(["a", "x"]) == [True, False]
    assert await records.alist_keys(before=began) == ["a"]
    assert await records.alist_keys(after=began, group_ids=["g"]) == ["b"]
    assert await records.alist_keys(limit=2) == ["a", "b"]
    await records.adelete_keys(["a", "x"])
    assert records.list_keys() == ["b", "c"]


def test_times_rise_even_when_the_clock_stands_still_or_goes_back(
    records: SQLiteRecordManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [records.get_time()]
    assert given[0] == pytest.approx(time.time(), abs=60)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    for _ in range(3):
        records.update(["a"], time_at_least=given[-1])
        given.append(records.get_time())
        assert records.list_keys(before=given[-1]) == ["a"]
        assert records.list_keys(after=given[-2]) == ["a"]
    assert given == sorted(set(given))


def test_a_time_that_has_not_come_and_groups_that_do_not_fit_are_refused(records: SQLiteRecordManager) -> None:
    with pytest.raises(ValueError, match="is in the future"):
        records.update(["a"], time_at_least=records.get_time() + 3600)
    with pytest.raises(ValueError, match="got 2 keys and 1 group_ids"):
        records.update(["a", "b"], group_ids=["g"])
    assert records.list_keys() == []


def test_an_update_that_fails_in_the_middle_leaves_nothing(records: SQLiteRecordManager) -> None:
    with pytest.raises(UnicodeEncodeError):
        records.update(["a", "\ud800"])
    assert records.list_keys() == []


def test_many_keys_at_once(records: SQLiteRecordManager) -> None:
    keys = [f"key {number}" for number in range(2500)]
    records.update(keys, group_ids=[f"g{number % 3}" for number in range(2500)])
    assert records.exists([*keys, "other"]) == [True] * 2500 + [False]
    assert len(records.list_keys(group_ids=["g0", "g2"], limit=2000)) == 1667
    records.delete_keys(keys[:2000])
    assert records.list_keys() == keys[2000:]
    assert records.exists([]) == []


def test_namespaces_in_one_file_are_apart_and_outlive_the_object(records: SQLiteRecordManager) -> None:
    other = SQLiteRecordManager("other", str(records.path))
    other.create_schema()
    records.update(["a", "b"])
    other.update(["a"])
    other.delete_keys(["a", "b"])
    assert SQLiteRecordManager("tests", records.path).list_keys() == ["a", "b"]
    assert other.list_keys() == []


def _write(path: Path, name: str, count: int) -> None:
    records = SQLiteRecordManager("tests", path)
    for number in range(count):
        records.update([f"{name}-{number}", "shared"], time_at_least=records.get_time())


def test_threads_and_processes_write_at_once(records: SQLiteRecordManager) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_write, args=(records.path, "process", 20))
    process.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: _write(records.path, name, 10), ("t0", "t1", "t2", "t3")))
    process.join(60)
    assert process.exitcode == 0
    assert len(records.list_keys()) == 20 + 40 + 1
    assert math.isfinite(records.get_time())


def _broken(path: Path) -> Iterator[tuple[str, type[RetrieverError], str]]:
    yield "missing", RetrieverError, r"Call create_schema\(\) once"
    path.write_bytes(b"")
    yield "empty", RetrieverError, r"has no tables yet. Call create_schema\(\) once"
    path.write_bytes(b"no database at all, but long enough to be looked at " * 40)
    yield "text", IndexCorruptError, "is damaged"
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE records (mine TEXT)")
    connection.close()
    yield "foreign", IndexCorruptError, "holds no records of this package"


def test_files_that_are_no_records_are_told_apart_in_words(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    for name, kind, words in _broken(path):
        records = SQLiteRecordManager("tests", path)
        for act in (records.get_time, lambda records=records: records.update(["a"]), records.list_keys):
            with pytest.raises(kind, match=words) as caught:
                act()
            assert type(caught.value) is kind, name
    with pytest.raises(IndexCorruptError, match="holds no records"):
        SQLiteRecordManager("tests", path).create_schema()


def test_a_later_schema_is_refused(records: SQLiteRecordManager) -> None:
    connection = sqlite3.connect(records.path)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(RetrieverError, match="schema version 9, this release reads 1"):
        records.list_keys()


def test_a_locked_file_and_a_place_that_cannot_be_are_told_in_words(
    records: SQLiteRecordManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("epic_rag.retrievers.record_manager._BUSY_TIMEOUT_SECONDS", 0.05)
    connection = sqlite3.connect(records.path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(RetrieverError, match="was locked for 0 s by another process"):
        records.update(["a"])
    connection.close()
    (tmp_path / "file").write_text("here already", encoding="utf-8")
    with pytest.raises(RetrieverError, match="cannot create the record file"):
        SQLiteRecordManager("tests", tmp_path / "file" / "records.sqlite").create_schema()


def test_a_file_that_may_only_be_read(records: SQLiteRecordManager, monkeypatch: pytest.MonkeyPatch) -> None:
    records.update(["a"])
    connect = sqlite3.connect

    def read_only(address: str, **options: object) -> sqlite3.Connection:
        return connect(address.replace("mode=rw", "mode=ro"), **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    assert records.list_keys() == ["a"]
    with pytest.raises(IndexReadOnlyError, match="may only be read"):
        records.update(["b"])
