"""The Redis tier on a server that dies, freezes, comes back empty, is full, evicts, or is used by many at once.

How long a dead or frozen server holds a question up is bounded in two ways: by what the store does (how often it
connects, how many timeouts it waits for), which no busy machine changes, and by the clock, as the best of some rounds.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis_servers import Server, cluster, cluster_uri, server, wait_until

from epic_rag.kvstore import redis_circuit
from epic_rag.kvstore.errors import StoreUnavailableError, StoreWriteError
from epic_rag.kvstore.redis_bulk import receive_into
from epic_rag.kvstore.redis_options import TIMEOUT_SECONDS
from epic_rag.kvstore.redis_store import RedisStore
from epic_rag.kvstore.redis_wire import Command
from epic_rag.kvstore.testing import content, in_threads

ROOT = Path(__file__).resolve().parents[2]
OpenRedis = Callable[..., RedisStore]
BOUND_SECONDS = 0.5
BACKOFF_SECONDS = 0.04 + 0.08


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may break."""
    with server(tmp_path / "redis") as running:
        yield running


def probing() -> bool:
    return threading.current_thread().name == "epic-rag-redis-probe"


class Counter:
    """Counts the connections that are tried and the timeouts that callers wait for, not those of the probes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connects = self.timeouts = 0
        self._lock = threading.Lock()
        connect, read = redis.Connection._connect, redis.Connection.read_response

        def counting_connect(connection: redis.Connection) -> object:
            with self._lock:
                self.connects += not probing()
            return connect(connection)

        def counting_read(connection: redis.Connection, *args: object, **kwargs: object) -> object:
            try:
                return read(connection, *args, **kwargs)  # type: ignore[arg-type]
            except redis.TimeoutError:
                with self._lock:
                    self.timeouts += not probing()
                raise

        def counting_receive(pool: redis.ConnectionPool, commands: Sequence[Command]) -> list[object]:
            try:
                return receive_into(pool, commands)
            except redis.TimeoutError:
                with self._lock:
                    self.timeouts += not probing()
                raise

        monkeypatch.setattr("epic_rag.kvstore.redis_link.receive_into", counting_receive)
        monkeypatch.setattr(redis.Connection, "_connect", counting_connect)
        monkeypatch.setattr(redis.Connection, "read_response", counting_read)

    def reset(self) -> None:
        self.connects = self.timeouts = 0


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


def question(store: RedisStore) -> float:
    """What one question asks of a store, and more; returns how long it took."""
    names = [f"k{i}" for i in range(16)]
    began = time.monotonic()
    assert store.contains(names) == [False] * 16
    assert store.get_many(names) == [None] * 16
    assert [store.get(name) for name in names] == [None] * 16
    assert [store.get_range(name, 0, 10) for name in names] == [None] * 16
    assert store.size_bytes("k0") is None
    store.touch(names)
    store.quarantine("k0", "damaged")
    for name in names:
        with pytest.raises(StoreWriteError, match="not kept"):
            store.put(name, b"x")
    return time.monotonic() - began


def impatient(open_redis: OpenRedis, uri: str) -> RedisStore:
    """A store with the default timeout."""
    return open_redis(uri, timeout=TIMEOUT_SECONDS)


def test_a_dead_server_holds_a_question_up_once(
    own_server: Server, open_redis: OpenRedis, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    took = []
    for was_used in (False, True, True):
        own_server.restart_empty()
        store = impatient(open_redis, own_server.uri)
        if was_used:
            store.put("k0", b"1")
        own_server.kill()
        counter.reset()
        caplog.clear()
        took.append(question(store))
        assert counter.connects <= 3
        assert counter.timeouts == 0
        assert [record.levelname for record in caplog.records].count("WARNING") == 2, "the circuit, and the quarantine"
        store.close()
    print(f"dead: a question took {[round(t, 3) for t in took]} s, 3 connections at most, no timeout")
    assert BACKOFF_SECONDS < BOUND_SECONDS
    assert min(took) <= BOUND_SECONDS


def test_a_frozen_server_holds_a_question_up_once(own_server: Server, open_redis: OpenRedis, counter: Counter) -> None:
    took = []
    for was_used in (False, True, True):
        store = impatient(open_redis, own_server.uri)
        if was_used:
            store.get("k0")
        with own_server.frozen():
            counter.reset()
            took.append(question(store))
            assert counter.connects <= 1
            assert counter.timeouts <= 1
        store.close()
    print(f"frozen: a question took {[round(t, 3) for t in took]} s, 1 connection and 1 timeout at most")
    assert TIMEOUT_SECONDS + TIMEOUT_SECONDS / 2 < BOUND_SECONDS
    assert min(took) <= BOUND_SECONDS


@pytest.mark.parametrize("what", ["get", "put"])
def test_a_server_that_freezes_amid_a_transfer(
    own_server: Server, open_redis: OpenRedis, counter: Counter, what: str
) -> None:
    dice = random.Random(5)
    data = bytes(range(256)) * (1 << 17)
    took, hits = [], 0
    with open_redis(own_server.uri, namespace="amid", part=1 << 21) as patient:
        patient.put("a", data)

    def freeze(after_seconds: float, calm: threading.Event) -> None:
        time.sleep(after_seconds)
        with own_server.frozen():
            calm.wait(10)

    for turn in range(4):
        store = open_redis(own_server.uri, namespace="amid", part=1 << 21, timeout=TIMEOUT_SECONDS)
        store.get("absent")
        counter.reset()
        calm = threading.Event()
        winter = threading.Thread(target=freeze, args=(dice.uniform(0, 0.03), calm))
        winter.start()
        began = time.monotonic()
        try:
            if what == "get":
                view = store.get("a")
                assert view is None or content(view) == data
                hits += view is not None
            else:
                with suppress(StoreWriteError):
                    store.put("b", data)
                    hits += 1
        finally:
            took.append(time.monotonic() - began)
            calm.set()
            winter.join()
        assert counter.timeouts <= 1, turn
        store.close()
    print(f"frozen within 30 ms of the beginning of a {what} of 32 MiB: {[round(t, 3) for t in took]} s, {hits} faster")
    assert min(took) <= BOUND_SECONDS


async def test_asyncio_waits_no_longer(own_server: Server, open_redis: OpenRedis) -> None:
    took = []
    for freeze in (True, False):
        store = impatient(open_redis, own_server.uri)
        await store.aput("k0", b"1")
        before = time.monotonic()
        if freeze:
            with own_server.frozen():
                before = time.monotonic()
                found = [await store.aget("k0") for _ in range(20)]
                took.append(time.monotonic() - before)
        else:
            own_server.kill()
            before = time.monotonic()
            found = [await store.aget("k0") for _ in range(20)]
            took.append(time.monotonic() - before)
        assert found == [None] * 20
        assert store._circuit.times_opened == 1
        store.close()
    print(f"asyncio, frozen and dead: 20 gets took {[round(t, 3) for t in took]} s")
    assert min(took) <= BOUND_SECONDS


def test_many_threads_are_held_up_once_each(own_server: Server, open_redis: OpenRedis, counter: Counter) -> None:
    store = impatient(open_redis, own_server.uri)
    with own_server.frozen():
        took = [0.0] * 8

        def ask(index: int) -> None:
            took[index] = question(store)

        in_threads(8, ask)
    print(f"frozen, 8 threads: questions took {min(took):.3f} to {max(took):.3f} s, {counter.timeouts} timeouts")
    assert counter.timeouts <= 8
    assert store._circuit.times_opened == 1


def test_the_circuit_closes_by_itself(
    own_server: Server, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_circuit, "PAUSE_SECONDS", 0.1)
    store = impatient(open_redis, own_server.uri)
    store.put("a", b"1")
    back = []
    for turn in range(3):
        with own_server.frozen():
            assert store.get("a") is None
            assert not store.available
            time.sleep(0.5)
            assert not store.available
        before = time.monotonic()
        wait_until(lambda: store.available, "the circuit")
        back.append(time.monotonic() - before)
        assert content(store.get("a")) == b"1", turn
    own_server.restart_empty()
    assert store.get("a") is None
    wait_until(lambda: store.available, "the circuit")
    store.put("a", b"2")
    assert content(store.get("a")) == b"2"
    print(f"frozen 3 times; usable again after {[round(t, 2) for t in back]} s")
    assert [r.getMessage() for r in caplog.records if "answers again" in r.getMessage()] != []


def test_a_server_that_comes_back_empty_is_no_failure(own_server: Server, open_redis: OpenRedis) -> None:
    """Connections that the server closed are opened anew, at once."""
    store = open_redis(own_server.uri)
    for turn in range(20):
        store.put("a", bytes([turn]) * 200_000)
        own_server.restart_empty()
        assert store.get("a") is None
        assert store.contains(["a"]) == [False]
    assert store.available
    assert store._circuit.times_opened == 0
    assert store.stats().failures == 0
    print("20 restarts between calls: 20 misses, no failure")


def test_a_server_killed_amid_calls_gives_no_wrong_bytes(
    own_server: Server, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_circuit, "PAUSE_SECONDS", 0.05)
    kills = int(os.environ.get("EPIC_RAG_TEST_KILLS", "40")) // 4
    store = open_redis(own_server.uri, timeout=1)
    stop = threading.Event()
    counts = {"hits": 0, "misses": 0, "puts": 0, "refused": 0}
    lock = threading.Lock()

    def use(index: int) -> None:
        dice = random.Random(index)
        while not stop.is_set():
            name = f"k{dice.randrange(5)}"
            if dice.random() < 0.5:
                try:
                    store.put(name, bytes([dice.randrange(256)]) * (name_size(name)))
                except StoreWriteError:
                    what = "refused"
                else:
                    what = "puts"
            else:
                view = store.get(name)
                assert view is None or (len(view) == name_size(name) and len(set(bytes(view))) == 1)
                what = "misses" if view is None else "hits"
            with lock:
                counts[what] += 1

    def break_it() -> None:
        dice = random.Random(7)
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.05, 0.2))
                own_server.kill()
                time.sleep(dice.choice([0, 0.3]))
                own_server.start()
                wait_until(lambda: store.available, "the circuit")
        finally:
            stop.set()

    in_threads(5, lambda index: break_it() if index == 4 else use(index))
    print(f"{kills} kills under 4 threads: {counts}, circuit opened {store._circuit.times_opened} times")
    assert min(counts["hits"], counts["puts"], counts["misses"]) > 0


def name_size(name: str) -> int:
    return 150_000 * (1 + int(name[1:]))


def test_a_full_server_refuses_and_keeps_what_it_has(tmp_path: Path, open_redis: OpenRedis) -> None:
    with server(tmp_path, "--maxmemory", "24mb", "--maxmemory-policy", "noeviction") as full:
        store = open_redis(full.uri)
        kept, refused = [], []
        for i in range(12):
            try:
                store.put(f"k{i}", bytes([i]) * (3 << 20))
            except StoreWriteError as error:
                refused.append(str(error))
            else:
                kept.append(i)
        print(f"noeviction, 24 MiB: {len(kept)} blobs of 3 MiB kept, {len(refused)} refused")
        assert kept
        assert refused
        assert all("raise its maxmemory" in words and "allkeys-lru" in words for words in refused)
        assert [store.get(f"k{i}") is not None for i in range(12)] == [i in kept for i in range(12)]
        assert all(content(store.get(f"k{i}")) == bytes([i]) * (3 << 20) for i in kept)
        with full.client() as client:
            parts = {key for key in client.scan_iter("*:*:*:*") if key.count(b":") == 4}
            assert len(parts) == len(kept) * (3 << 20) // (1 << 16), "refused parts are gone"
        with pytest.raises(StoreWriteError):
            store.put(f"k{kept[0]}", bytes(3 << 20))
        assert content(store.get(f"k{kept[0]}")) == bytes([kept[0]]) * (3 << 20), "the old blob stays whole"
        assert store.available
        assert store.delete(f"k{kept[0]}")
        store.put("again", bytes(2 << 20))


def test_what_would_throw_out_everything_else_is_refused(tmp_path: Path, open_redis: OpenRedis) -> None:
    with server(tmp_path, "--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru") as small:
        store = open_redis(small.uri)
        store.put("a", bytes(1 << 20))
        with pytest.raises(StoreWriteError, match="more than half of the server's maxmemory"):
            store.put("b", bytes(13 << 20))
        assert store.get("a") is not None


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_eviction_makes_whole_blobs_missing(tmp_path: Path, open_redis: OpenRedis, policy: str) -> None:
    """A server evicts parts, while others are read and written: each read is whole or a miss."""
    with server(tmp_path, "--maxmemory", "24mb", "--maxmemory-policy", policy) as small:
        store = open_redis(small.uri, part=1 << 18)
        counts = {"hits": 0, "misses": 0, "refused": 0}
        refusals: list[str] = []
        lock = threading.Lock()

        def use(index: int) -> None:
            dice = random.Random(index)
            for _ in range(100):
                name = f"k{min(dice.randrange(30), dice.randrange(30))}"
                what = "refused"
                try:
                    view = store.get(name)
                    what = "misses" if view is None else "hits"
                    assert view is None or bytes(view) == name.encode() * 500_000
                    if view is None:
                        store.put(name, name.encode() * 500_000)
                except StoreWriteError as error:
                    what = "refused"
                    refusals.append(str(error))
                with lock:
                    counts[what] += 1

        in_threads(4, use)
        evicted = small.client().info("stats")["evicted_keys"]
        there = store.contains([f"k{i}" for i in range(30)])
        store.reconcile()
        names = list(store.names())
        print(f"{policy}: {counts}; {evicted} keys evicted; {sum(there)} of 30 blobs left whole")
        assert counts["hits"] > 0
        assert evicted > 0
        assert all("evicted parts of it" in words for words in refusals)
        assert store.available
        assert len(names) == sum(store.contains(names))


def test_parts_that_vanish_amid_a_read_are_a_miss(own_server: Server, open_redis: OpenRedis) -> None:
    store = open_redis(own_server.uri)
    dice = random.Random(3)
    gone = hits = 0

    def steal(key: bytes, after_seconds: float) -> None:
        time.sleep(after_seconds)
        client.delete(key)

    with own_server.client() as client:
        for turn in range(60):
            store.put("a", bytes([turn]) * (1 << 20))
            keys = [key for key in client.scan_iter("*", count=1000) if key.count(b":") == 4]
            thief = threading.Thread(target=steal, args=(dice.choice(keys), dice.uniform(0, 0.004)))
            thief.start()
            view = store.get("a")
            thief.join()
            assert view is None or content(view) == bytes([turn]) * (1 << 20)
            hits += view is not None
            gone += store.get("a") is None
            assert client.dbsize() == 0
    print(f"60 parts removed during a read: {hits} reads were faster, all {gone} later ones miss and clean up")
    assert gone == 60


def test_a_clock_that_goes_backwards_does_no_harm(
    own_server: Server, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_circuit, "PAUSE_SECONDS", 0.1)
    start = time.time()
    now = [start]

    def backwards() -> float:
        now[0] -= 3600.0
        return now[0]

    monkeypatch.setattr(time, "time", backwards)
    store = open_redis(own_server.uri, ttl="1h", timeout=TIMEOUT_SECONDS)
    for turn in range(10):
        store.put("a", bytes([turn]) * 200_000)
        assert content(store.get("a")) == bytes([turn]) * 200_000
    with own_server.frozen():
        assert store.get("a") is None
        assert not store.available
    wait_until(lambda: store.available, "the circuit")
    assert content(store.get("a")) is not None
    assert now[0] < start
    print(f"10 puts and gets, and a freeze, while the clock went back by {start - now[0]:.0f} s")


WORKER = """
import random, sys
from epic_rag.kvstore.testing import in_threads
from epic_rag.kvstore.uri import open_store
uri, seed = sys.argv[1], int(sys.argv[2])
store = open_store(uri).blobs
hits = 0
def size(name): return 25_000 * (1 + int(name[1:]))
def work(index):
    global hits
    dice = random.Random(f"{seed} {index}")
    for turn in range(15):
        name = f"k{dice.randrange(6)}"
        view = store.get(name)
        assert view is None or (len(view) == size(name) and len(set(bytes(view))) == 1), name
        hits += view is not None
        if dice.random() < 0.1:
            store.delete(name)
        else:
            store.put(name, bytes([dice.randrange(256)]) * size(name))
in_threads(8, work)
assert store.available
store.close()
print(hits)
"""


@pytest.mark.parametrize("kind", ["single", "cluster"])
def test_eight_processes_of_eight_threads_share_a_server(
    request: pytest.FixtureRequest, open_redis: OpenRedis, kind: str
) -> None:
    uri = request.getfixturevalue("redis_uri" if kind == "single" else "redis_cluster_uri")
    namespace = f"shared-{kind}"
    address = f"{uri}?namespace={namespace}&part=64KiB&timeout=30"
    command = [sys.executable, "-c", WORKER, address]
    processes = [
        subprocess.Popen([*command, str(seed)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in range(8)
    ]
    outcomes = [(*process.communicate(), process.returncode) for process in processes]
    assert [errors for _, errors, code in outcomes if code] == []
    store = open_redis(uri, namespace=namespace)
    names = list(store.names())
    assert store.contains(names) == [True] * len(names)
    assert store.stats().bytes == sum(store.size_bytes(name) or 0 for name in names)
    for name in names:
        store.delete(name)
    store.reconcile()
    orphans = store._link.run(store._survey.sweep())
    print(f"8 processes of 8 threads, 960 turns: {sum(int(out) for out, _, _ in outcomes)} hits, {orphans} orphans")
    assert orphans == 0
    assert list(store.names()) == []


def test_a_dead_node_of_a_cluster_is_a_bounded_delay(
    tmp_path: Path, open_redis: OpenRedis, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_circuit, "PAUSE_SECONDS", 0.2)
    with cluster(tmp_path) as nodes:
        store = impatient(open_redis, cluster_uri(nodes))
        names = [f"k{i}" for i in range(16)]
        for name in names:
            store.put(name, b"1")
        took = []
        for round_ in range(3):
            with nodes[round_].frozen():
                counter.reset()
                began = time.monotonic()
                found = store.get_many(names)
                found += [store.get(name) for name in names]
                took.append(time.monotonic() - began)
                assert None in found
                assert counter.timeouts <= 1
            wait_until(lambda: store.available, "the circuit")
            wait_until(lambda: None not in store.get_many(names), "the cluster")
        fresh = impatient(open_redis, cluster_uri(nodes))
        with nodes[0].frozen():
            counter.reset()
            began = time.monotonic()
            fresh.get_many(names)
            took.append(time.monotonic() - began)
            assert counter.timeouts <= 2, "one while asking for the nodes, one of the node itself"
        print(f"one of three nodes frozen: questions took {[round(t, 3) for t in took]} s")
        assert min(took) <= BOUND_SECONDS
        nodes[1].kill()
        store.close()
        store = impatient(open_redis, cluster_uri(nodes))
        question_names = store.get_many(names)
        assert None in question_names
        with pytest.raises(StoreUnavailableError):
            list(store.names())
