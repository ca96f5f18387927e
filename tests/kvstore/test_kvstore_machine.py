"""Any sequence of calls leaves a store that agrees with a dict."""

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from epic_rag.kvstore.blobstore import BlobStore
from epic_rag.kvstore.disk import DiskStore
from epic_rag.kvstore.errors import StoreWriteError
from epic_rag.kvstore.memory import MemoryStore
from epic_rag.kvstore.testing import content
from epic_rag.kvstore.tiered import TieredStore

NAMES = st.sampled_from(["a", "b", "c-1", "c-2", "0" * 64, "profile-1"])
DATA = st.binary(max_size=40)
SLOW = [HealthCheck.too_slow]  # a busy disk is no fault of the store


class Machine(RuleBasedStateMachine):
    """Without a budget the store equals the model; with one, it holds a part of it that fits."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, bytes] = {}
        self.budget_bytes: int | None = None
        self.replacement = "lru"
        self.store: BlobStore

    def open(self) -> BlobStore:
        raise NotImplementedError

    @initialize(budget_bytes=st.sampled_from([None, 60, 100]), replacement=st.sampled_from(["lru", "lfu", "gdsf"]))
    def start(self, budget_bytes: int | None, replacement: str) -> None:
        self.budget_bytes, self.replacement = budget_bytes, replacement
        self.store = self.open()

    @rule(name=NAMES, data=DATA)
    def put(self, name: str, data: bytes) -> None:
        try:
            self.store.put(name, data)
        except StoreWriteError:
            pinned_bytes = sum(len(v) for k, v in self.model.items() if k.startswith("profile-") and k != name)
            assert self.budget_bytes is not None
            assert pinned_bytes + len(data) > self.budget_bytes
        else:
            self.model[name] = data
            assert content(self.store.get(name)) == data

    @rule(name=NAMES)
    def get(self, name: str) -> None:
        value = content(self.store.get(name))
        assert value == self.model.get(name) or (value is None and self.budget_bytes is not None)

    @rule(name=NAMES, start=st.integers(0, 50), length=st.integers(0, 50))
    def get_range(self, name: str, start: int, length: int) -> None:
        part, whole = content(self.store.get_range(name, start, length)), content(self.store.get(name))
        assert part == (None if whole is None else whole[start : start + length])

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        there = self.store.contains([name])[0]
        assert self.store.delete(name) == there
        self.model.pop(name, None)

    @rule(name=NAMES)
    def quarantine(self, name: str) -> None:
        self.store.quarantine(name, "by the machine")
        self.model.pop(name, None)

    @rule()
    def reconcile(self) -> None:
        self.store.reconcile()

    @invariant()
    def the_books_balance(self) -> None:
        names = list(self.store.names())
        sizes = {name: self.store.size_bytes(name) for name in names}
        stats = self.store.stats()
        assert (stats.entries, stats.bytes) == (len(sizes), sum(size or 0 for size in sizes.values()))
        assert names == sorted(name for name in self.model if self.store.contains([name])[0])
        assert sizes == {name: len(self.model[name]) for name in names}
        if self.budget_bytes is None:
            assert names == sorted(self.model)
        else:
            assert stats.bytes <= self.budget_bytes
            assert all(name in names for name in self.model if name.startswith("profile-"))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class MemoryMachine(Machine):
    def open(self) -> BlobStore:
        return MemoryStore(self.budget_bytes, self.replacement)


class DiskMachine(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    def open(self) -> BlobStore:
        return DiskStore(Path(self.folder.name), self.budget_bytes, self.replacement)

    @rule(lose_manifest=st.booleans())
    def open_again(self, lose_manifest: bool) -> None:
        self.store.close()
        if lose_manifest:
            Path(self.folder.name, "manifest.sqlite3").unlink()
        self.store = self.open()

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class UnlimitedMachine(Machine):
    """Of a store that has no budget of its own."""

    @initialize()
    def start(self) -> None:
        self.store = self.open()


class TieredMachine(UnlimitedMachine):
    """A memory that holds next to nothing over a disk, so that reads move blobs up all the time."""

    memory_bytes: int | None = 60
    write_back = (False, False)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    def open(self) -> BlobStore:
        return TieredStore([MemoryStore(self.memory_bytes), DiskStore(Path(self.folder.name))], self.write_back)

    @rule(name=NAMES)
    def prefetch(self, name: str) -> None:
        self.store.prefetch([name])

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = self.open()

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class WriteBackMachine(TieredMachine):
    """Closing writes what waits."""

    memory_bytes = None
    write_back = (False, True)


@pytest.mark.parametrize(
    ("machine", "examples"), [(MemoryMachine, 100), (DiskMachine, 25), (TieredMachine, 25), (WriteBackMachine, 15)]
)
def test_any_sequence_of_calls(machine: type[Machine], examples: int) -> None:
    run(machine, examples)


@pytest.mark.parametrize("kind", ["server", "cluster", "below a disk"])
def test_any_sequence_of_calls_on_redis(
    request: pytest.FixtureRequest, open_redis: Callable[..., BlobStore], tmp_path: Path, kind: str
) -> None:
    uri = request.getfixturevalue("redis_cluster_uri" if kind == "cluster" else "redis_uri")
    numbers = itertools.count()

    class RedisMachine(UnlimitedMachine):
        def __init__(self) -> None:
            super().__init__()
            self.number = next(numbers)

        def open(self) -> BlobStore:
            remote = open_redis(uri, namespace=f"machine-{kind[:2]}-{self.number}")
            return TieredStore([DiskStore(tmp_path / str(self.number)), remote]) if kind == "below a disk" else remote

        @rule()
        def open_again(self) -> None:
            self.store.close()
            self.store = self.open()

    run(RedisMachine, 15)


def run(machine: type[Machine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=SLOW),
    )
