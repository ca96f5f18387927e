"""What a tiered store does in the background: write-back, prefetch, and its queue."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreClosedError, StoreWriteError
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.testing import content
from epic_rag.kvstore.tier_queue import Job, TierQueue
from epic_rag.kvstore.tiered import TieredStore

ROOT = Path(__file__).resolve().parents[2]


class Slow(MemoryStore):
    """A tier that writes and reads only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.began = threading.Event()
        self.refuses = False

    def _write(self, name: str, buffers: Sequence[memoryview], size_bytes: int) -> None:
        self.began.set()
        assert self.gate.wait(30)
        if self.refuses:
            raise StoreWriteError("refused, as told")
        super()._write(name, buffers, size_bytes)

    def _read_range(self, name: str, start: int, length: int) -> memoryview | None:
        self.began.set()
        assert self.gate.wait(30)
        return super()._read_range(name, start, length)


def test_a_write_back_does_not_wait_for_the_slow_tier() -> None:
    fast, slow = MemoryStore(), Slow()
    with TieredStore([fast, slow], [False, True]) as store:
        for i in range(5):
            store.put(f"k{i}", bytes([i]))
        assert content(store.get("k4")) == b"\4"
        assert slow._entries == {}
        assert not store.flush(0.05)
        slow.gate.set()
        assert store.flush(30)
        assert len(slow._entries) == 5
        assert store.counts().written_back == 5


def test_what_the_fast_tier_drops_is_written_all_the_same() -> None:
    fast, slow = MemoryStore(100), Slow()
    with TieredStore([fast, slow], [False, True]) as store:
        for i in range(10):
            store.put(f"k{i}", bytes([i]) * 60)
        assert list(fast.names()) == ["k9"]
        slow.gate.set()
        store.flush()
        assert [content(slow.get(f"k{i}")) for i in range(10)] == [bytes([i]) * 60 for i in range(10)]


def test_what_waits_is_read_before_what_is_older() -> None:
    fast, slow = MemoryStore(100), Slow()
    slow.gate.set()
    slow.put("a", b"old")
    slow.gate.clear()
    with TieredStore([fast, slow], [False, True]) as store:
        store.put("a", b"newer")
        store.put("b", b"2")
        store.put("c", bytes(100))
        assert list(fast.names()) == ["c"]
        assert [one and (content(one.view), one.tier) for one in store.find_many(["b", "a", "absent"])] == [
            (b"2", "memory"),
            (b"newer", "memory"),
            None,
        ]
        view = store.get("a")
        assert view is not None
        assert view.readonly
        assert content(store.get_range("a", 1, 2)) == b"ew"
        assert store.size_bytes("a") == 5
        assert store.contains(["a", "b", "c", "d"]) == [True, True, True, False]
        assert list(store.names()) == ["a", "b", "c"]
        assert store.delete("b") is True
        assert store.contains(["b"]) == [False]
        slow.gate.set()
        assert (store.stats().entries, store.stats().bytes) == (2, 105)
        assert content(slow.get("a")) == b"newer"
        slow.refuses = True
        store.put("a", b"newest")
        store.flush()
        store.put("c", bytes(99))
        assert store.get("a") is None, "what the slow tier had was older"


def test_closing_writes_what_waits() -> None:
    fast, slow = MemoryStore(), Slow()
    store = TieredStore([fast, slow], [False, True])
    store.put("a", b"1")
    assert slow.began.wait(30)
    threading.Timer(0.05, slow.gate.set).start()
    store.put("b", b"2")
    written: list[str] = []
    slow._close = lambda: written.extend(sorted(slow._entries))  # type: ignore[method-assign]
    store.close()
    assert written == ["a", "b"]
    with pytest.raises(StoreClosedError):
        store.flush()


def test_above_its_limit_a_write_back_is_a_write_through() -> None:
    fast, slow = MemoryStore(), Slow()
    with TieredStore([fast, slow], [False, True], queue_bytes=100) as store:
        store.put("a", bytes(80))
        threading.Timer(0.05, slow.gate.set).start()
        store.put("b", bytes(80))
        assert slow.contains(["b"]) == [True]
        store.flush()
        assert sorted(slow._entries) == ["a", "b"]
        assert store.counts().written_back == 1


def test_a_later_put_or_delete_takes_the_place_of_a_write_that_waits() -> None:
    fast, slow = MemoryStore(), Slow()
    with TieredStore([fast, slow], [False, True]) as store:
        store.put("first", b"")
        assert slow.began.wait(30)
        for data in (b"1", b"2"):
            store.put("a", data)
        store.put("b", b"3")
        store._moves.drop("b")
        slow.gate.set()
        store.flush()
        assert content(slow.get("a")) == b"2"
        assert sorted(slow._entries) == ["a", "first"]
        assert store.counts().written_back == 2


def test_a_slow_tier_that_refuses_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    fast, slow = MemoryStore(), Slow()
    slow.refuses = True
    slow.gate.set()
    with TieredStore([fast, slow], [False, True]) as store:
        store.put("a", b"1")
        store.put("b", b"1")
        store.flush()
        assert store.counts().write_backs_failed == 2
    assert [record.getMessage() for record in caplog.records] == ["tier 1 (memory) is passed over: refused, as told"]


def test_a_crash_loses_at_most_what_waited(tmp_path: Path) -> None:
    code = f"""
import os, time
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.tiered import TieredStore
store = TieredStore([MemoryStore(), DiskStore({str(tmp_path)!r})], [False, True])
for i in range(40):
    store.put(f"k{{i}}", bytes([i]) * 100_000)
    if i == 19:
        store.flush()
print(len(store._moves._copies._jobs), flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == -9, done.stderr
    with DiskStore(tmp_path) as store:
        names = list(store.names())
        print(f"killed with {done.stdout.strip()} blobs waiting: {len(names)} of 40 are on the disk")
        assert {f"k{i}" for i in range(20)} <= set(names)
        assert len(names) >= 40 - int(done.stdout) - 1
        assert all(content(store.get(name)) == bytes([int(name[1:])]) * 100_000 for name in names)


def test_prefetch_loads_into_the_fastest_tier() -> None:
    fast, middle, slow = MemoryStore(), MemoryStore(), MemoryStore()
    with TieredStore([fast, middle, slow]) as store:
        middle.put("a", b"1")
        slow.put("b", b"2")
        fast.put("c", b"3")
        load = store.prefetch(["a", "b", "c", "absent", "a"])
        assert load.wait(30)
        assert load.done
        assert sorted(fast._entries) == ["a", "b", "c"]
        assert store.counts().prefetched == 2
        assert (middle.stats().hits, slow.stats().hits) == (0, 0), "only reads are hits"
        assert [one and one.tier for one in store.find_many(["a", "b"])] == ["memory", "memory"]
        assert fast.stats().hits == 2


def test_a_prefetch_can_be_cancelled() -> None:
    fast, slow = MemoryStore(), Slow()
    slow.gate.set()
    for i in range(5):
        slow.put(f"k{i}", b"1")
    slow.gate.clear()
    slow.began.clear()
    with TieredStore([fast, slow]) as store:
        first = store.prefetch([f"k{i}" for i in range(5)])
        second = store.prefetch(["k4"])
        assert slow.began.wait(30)
        first.cancel()
        second.cancel()
        assert not first.wait(0.05)
        slow.gate.set()
        assert first.wait(30)
        assert second.wait(30)
        assert first.cancelled
        assert sorted(fast._entries) == ["k0"], "what was being read is finished"


def test_a_prefetch_ends_with_its_store() -> None:
    fast, slow = MemoryStore(), Slow()
    store = TieredStore([fast, slow])
    loads = [store.prefetch([f"k{i}"]) for i in range(3)]
    assert slow.began.wait(30)
    threading.Timer(0.05, slow.gate.set).start()
    store.close()
    assert [load.wait(30) for load in loads] == [True] * 3
    assert [load.cancelled for load in loads] == [False, True, True]


def test_a_prefetch_that_fails_reaches_nobody() -> None:
    tiny, slow = MemoryStore(1), MemoryStore()
    slow.put("a", b"22")
    with TieredStore([tiny, slow]) as store:
        assert store.prefetch(["a"]).wait(30)
        assert store.counts().prefetches_failed == 1
        assert content(store.get("a")) == b"22"


def test_a_store_of_one_tier_prefetches_nothing() -> None:
    with MemoryStore() as store:
        load = store.prefetch(["a"])
        assert load.done
        assert not load.cancelled


def make_queue(limit_bytes: int = 100) -> TierQueue:
    return TierQueue(limit_bytes, lambda name: nullcontext())


def test_jobs_run_in_order_and_a_later_one_takes_the_place_of_an_earlier() -> None:
    queue, done = make_queue(), []
    gate = threading.Event()
    queue.add(0, Job("x", lambda: gate.wait(30) and None))
    for key, value in ((1, "a"), (2, "b"), (1, "c")):
        assert queue.add(key, Job("x", lambda value=value: done.append(value), needed=True))  # type: ignore[misc]
    gate.set()
    assert queue.flush(30)
    queue.close()
    assert done == ["c", "b"]
    assert not queue.add(3, Job("x", lambda: None)), "it is closed"
    queue.close()


def test_the_queue_holds_no_more_than_its_limit() -> None:
    queue = make_queue(100)
    gate = threading.Event()
    queue.add(0, Job("x", lambda: gate.wait(30) and None, held_bytes=50))
    assert not queue.add(1, Job("x", lambda: None, held_bytes=51))
    assert queue.add(1, Job("x", lambda: None, held_bytes=50))
    assert queue.add(1, Job("x", lambda: None, held_bytes=20))
    gate.set()
    queue.close()


def test_a_job_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    queue, done = make_queue(), []
    queue.add(0, Job("x", lambda: 1 / 0 and None, needed=True))  # type: ignore[func-returns-value]
    queue.add(1, Job("x", lambda: done.append(1), needed=True))
    assert queue.flush(30)
    queue.close()
    assert done == [1]
    assert "a job in the background failed" in caplog.text


def test_closing_leaves_out_what_is_not_needed() -> None:
    queue, done = make_queue(), []
    gate = threading.Event()
    queue.add(0, Job("x", lambda: gate.wait(30) and None))
    queue.add(1, Job("x", lambda: done.append("promotion")))
    queue.add(2, Job("x", lambda: done.append("write"), needed=True))
    threading.Timer(0.05, gate.set).start()
    queue.close()
    assert done == ["write"]


def test_an_old_epoch_is_refused() -> None:
    queue = make_queue()
    epoch = queue.epoch("x")
    queue.drop("x")
    assert not queue.add(0, Job("x", lambda: None), epoch)
    assert queue.add(0, Job("x", lambda: None), queue.epoch("x"))
    queue.close()
