"""The Redis tier passes the suite on a server and on a cluster, and what lies in the server is what was promised."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import torch
from redis_servers import Server

from epic_rag.kvstore import redis_writes
from epic_rag.kvstore.blobstore import BlobStore, Usage
from epic_rag.kvstore.conformance import BlobStoreSuite, MakeStore
from epic_rag.kvstore.errors import StoreFormatError, StoreWriteError
from epic_rag.kvstore.keys import chunk_key
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.redis_parts import Keyspace, Meta, cut, new_meta
from epic_rag.kvstore.redis_store import RedisStore
from epic_rag.kvstore.redis_wire import WINDOW_BYTES, received
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.testing import chunk_blob, content
from epic_rag.kvstore.tierstats import BlobNote

ROOT = Path(__file__).resolve().parents[2]
OpenRedis = Callable[..., RedisStore]
PART_BYTES = 1 << 16


def keys_of(store: RedisStore) -> Keyspace:
    return Keyspace(store.options.namespace)


def held_by(client: "redis.Redis | redis.RedisCluster", store: RedisStore) -> set[str]:
    """The keys of a store's namespace."""
    pattern = f"{{epic:{store.options.namespace}:*"
    return {key.decode() for key in client.scan_iter(pattern, count=1000)}


class _Suite(BlobStoreSuite):
    def client(self, store: RedisStore) -> "redis.Redis | redis.RedisCluster":
        raise NotImplementedError

    def raw_get(self, store: BlobStore, name: str) -> bytes | None:
        assert isinstance(store, RedisStore)
        with self.client(store) as client:
            record = client.get(keys_of(store).meta(name))
            meta = Meta.decode(record) if record else None
            return b"".join(client.get(key) for key in keys_of(store).parts(name, meta)) if meta else None

    def raw_put(self, store: BlobStore, name: str, data: bytes) -> None:
        assert isinstance(store, RedisStore)
        meta = new_meta(len(data), PART_BYTES, BlobNote())
        with self.client(store) as client:
            parts = cut([memoryview(data)], PART_BYTES)
            for key, part in zip(keys_of(store).parts(name, meta), parts, strict=True):
                client.set(key, part)
            client.set(keys_of(store).meta(name), meta.encode())


class TestRedisStore(_Suite):
    @pytest.fixture
    def make_store(self, open_redis: OpenRedis, redis_uri: str) -> MakeStore:
        return lambda: open_redis(redis_uri)

    def client(self, store: RedisStore) -> redis.Redis:
        return redis.Redis(*store.options.hosts[0], protocol=2)


class TestRedisClusterStore(_Suite):
    @pytest.fixture
    def make_store(self, open_redis: OpenRedis, redis_cluster_uri: str) -> MakeStore:
        return lambda: open_redis(redis_cluster_uri)

    def client(self, store: RedisStore) -> redis.RedisCluster:
        return redis.RedisCluster(*store.options.hosts[0], protocol=2)


@pytest.fixture
def store(open_redis: OpenRedis, redis_uri: str) -> RedisStore:
    return open_redis(redis_uri)


def sent_bytes(server: Server) -> int:
    """What the server has sent so far."""
    with server.client() as client:
        return int(client.info("stats")["total_net_output_bytes"])


def test_the_meta_comes_last_and_parts_settle_with_it(store: RedisStore, redis_server: Server) -> None:
    data = bytes(range(256)) * 1000
    store.put("a", data)
    with redis_server.client() as client:
        keys = sorted(held_by(client, store))
        assert [key.rpartition(":")[2] for key in keys[1:]] == ["0", "1", "2", "3"]
        assert all(key.startswith(f"{{epic:{store.options.namespace}:a}}") for key in keys)
        assert {client.pttl(key) for key in keys} == {-1}
        assert [client.strlen(key) for key in keys[1:]] == [PART_BYTES] * 3 + [len(data) - 3 * PART_BYTES]
        store.put("a", b"new")
        assert len(held_by(client, store)) == 2
        store.delete("a")
        assert held_by(client, store) == set()


def test_a_writer_that_dies_leaves_only_what_expires(store: RedisStore, redis_server: Server) -> None:
    plan = store._writes.write("a", [memoryview(bytes(PART_BYTES * 3))], PART_BYTES * 3, BlobNote())
    with redis_server.client() as client:
        replies: list[object] | None = None
        for _ in range(2):
            (*commands,) = plan.send(replies) if replies is not None else next(plan)
            replies = [received(c, client.execute_command(*c.arguments)) for c in commands]
        plan.close()
        keys = held_by(client, store)
        assert len(keys) == 3
        assert all(0 < client.pttl(key) <= redis_writes.UNSETTLED_MS for key in keys)
    assert store.get("a") is None
    assert list(store.names()) == []


@pytest.mark.parametrize("which", [0, 1, 3])
@pytest.mark.parametrize("read", ["get", "get_many", "get_range", "contains", "size_bytes"])
def test_a_missing_part_is_a_miss_that_cleans_up(
    store: RedisStore, redis_server: Server, which: int, read: str
) -> None:
    store.put("a", bytes(PART_BYTES * 4))
    store.put("b", b"stays")
    with redis_server.client() as client:
        client.delete(sorted(held_by(client, store))[1 + which])
        reads: dict[str, Callable[[], object]] = {
            "get": lambda: store.get("a"),
            "get_many": lambda: store.get_many(["b", "a"])[1],
            "get_range": lambda: store.get_range("a", which * PART_BYTES + 10, 20),
            "contains": lambda: store.contains(["b", "a"])[1] or None,
            "size_bytes": lambda: store.size_bytes("a"),
        }
        assert reads[read]() is None
        assert len(held_by(client, store)) == 2
    assert content(store.get("b")) == b"stays"


def test_a_shortened_part_is_a_miss(store: RedisStore, redis_server: Server) -> None:
    store.put("a", bytes(100))
    with redis_server.client() as client:
        (part,) = [key for key in held_by(client, store) if key.endswith(":0")]
        client.set(part, bytes(99))
        assert store.get("a") is None
        assert held_by(client, store) == set()


def test_a_put_between_two_reads_is_seen_whole(store: RedisStore, redis_server: Server) -> None:
    """The reader has the old meta when the new blob comes: it starts again rather than remove what is new."""
    store.put("a", bytes(PART_BYTES * 2))
    plan = store._reads.read(["a"])
    with redis_server.client() as client:
        commands = next(plan)
        replies: list[object] = [received(c, client.execute_command(*c.arguments)) for c in commands]
        store.put("a", b"new")
        views = None
        while views is None:
            try:
                commands = plan.send(replies)
            except StopIteration as done:
                views = done.value
            else:
                replies = [received(c, client.execute_command(*c.arguments)) for c in commands]
    assert [content(view) for view in views] == [b"new"]
    assert content(store.get("a")) == b"new"


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{}",
        b"[]",
        b"[2]",
        b"\xff",
        b"[" * 5000,
        b'[1,"g",-1,65536,"",0,0]',
        b'[1,"g",1,1,"",0,0]',
        b'[1,"g",99999999999999,65536,"",0,0]',
        b'[1,"g",1,65536,"",0,1e999]',
        b'[true,"g",1,65536,"",0,"x"]',
    ],
    ids=range(11),
)
def test_a_strange_meta_is_a_miss_and_can_be_replaced(store: RedisStore, redis_server: Server, record: bytes) -> None:
    with redis_server.client() as client:
        client.set(keys_of(store).meta("a"), record)
    assert store.get("a") is None
    assert store.get_range("a", 0, 5) is None
    assert store.contains(["a"]) == [False]
    store.put("a", b"good")
    assert content(store.get("a")) == b"good"
    assert store.delete("a")


def test_reconcile_removes_what_lost_its_other_half(store: RedisStore, redis_server: Server) -> None:
    for name in "abcd":
        store.put(name, bytes(PART_BYTES * 2))
    with redis_server.client() as client:
        client.delete(keys_of(store).meta("a"))
        client.delete(next(key for key in held_by(client, store) if "b}" in key and key.endswith(":1")))
        client.set(keys_of(store).part("c", "unsettled", 0), b"being written", px=10_000)
        store.reconcile()
        assert sorted({key.partition("}")[0][-1] for key in held_by(client, store)}) == ["c", "d"]
        assert len(held_by(client, store)) == 3 + 1 + 3
    assert list(store.names()) == ["c", "d"]


def test_blobs_expire_with_all_of_their_keys(open_redis: OpenRedis, redis_uri: str, redis_server: Server) -> None:
    store = open_redis(redis_uri, ttl="0.3s")
    store.put("a", bytes(PART_BYTES * 2))
    with redis_server.client() as client:
        limits = {client.pttl(key) for key in held_by(client, store)}
        assert max(limits) - min(limits) <= 50
        assert 0 < min(limits) <= max(limits) <= 300
        time.sleep(0.35)
        assert held_by(client, store) == set()
    assert store.get("a") is None


def test_listings_and_ranges_pull_no_whole_blobs(store: RedisStore, redis_server: Server) -> None:
    blob = chunk_blob("p", 20_000)
    for i in range(10):
        store.put(f"k{i}", blob)
    calls: dict[str, Callable[[], object]] = {
        "names": lambda: list(store.names()),
        "usage": store.usage,
        "stats": store.stats,
        "contains": lambda: store.contains([f"k{i}" for i in range(10)]),
        "size_bytes": lambda: store.size_bytes("k1"),
        "touch": lambda: store.touch(["k1"]),
        "get_range": lambda: store.get_range("k1", 100_000, 1000),
    }
    sent = {}
    for what, call in calls.items():
        before = sent_bytes(redis_server)
        call()
        sent[what] = sent_bytes(redis_server) - before
    print(f"10 blobs of {len(blob)} bytes; bytes sent by the server: {sent}")
    assert max(sent.values()) < 20_000 < len(blob)
    assert store.usage() == {"p": Usage(10, 10 * len(blob), 200_000)}


def test_no_more_than_the_window_is_in_flight(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    send = store._link._send

    def spy(parcel: object) -> list[object]:
        replies = send(parcel)  # type: ignore[arg-type]
        sizes = [len(c.into) for c in parcel.commands if c.into is not None]  # type: ignore[attr-defined]
        sizes += [len(c.arguments[2]) for c in parcel.commands if c.arguments[0] == "SET"]  # type: ignore[attr-defined]
        asked.append(sum(sizes))
        return replies

    monkeypatch.setattr(store._link, "_send", spy)
    blobs = {f"k{i}": bytes([i]) * (5 << 20) for i in range(4)}
    for name, data in blobs.items():
        store.put(name, data)
    assert [content(view) for view in store.get_many(list(blobs))] == list(blobs.values())
    print(f"20 MiB written and read in exchanges of up to {max(asked)} bytes")
    assert WINDOW_BYTES // 2 < max(asked) <= WINDOW_BYTES + 1000


def test_a_blob_is_read_into_memory_that_is_there(store: RedisStore) -> None:
    data = bytes(i * i % 251 for i in range(PART_BYTES * 3 + 100))
    store.put("a", data)
    with store.open_blob("a") as blob:
        assert blob is not None
        assert blob.num_bytes == len(data)
        for start in (0, 1, PART_BYTES - 1, PART_BYTES, 3 * PART_BYTES + 99, len(data)):
            for length in (0, 1, PART_BYTES, 2 * PART_BYTES + 1, len(data)):
                buffers = [memoryview(bytearray(length // 2)), memoryview(bytearray(length - length // 2))]
                if start + length > len(data):
                    with pytest.raises(StoreFormatError, match="truncated"):
                        blob.read(start, buffers)
                else:
                    blob.read(start, buffers)
                    assert b"".join(buffers) == data[start : start + length]
    store.put("b", b"")
    with store.open_blob("b") as blob:
        assert blob is not None
        assert blob.num_bytes == 0
    with store.open_blob("absent") as blob:
        assert blob is None
    assert (store.numbers({}).hits, store.numbers({}).misses, store.numbers({}).read_bytes) == (2, 1, len(data))


def test_kv_is_read_into_tensors(open_redis: OpenRedis, redis_uri: str) -> None:
    kv = ChunkKV(torch.randn(3, 2, 500, 16), torch.randn(3, 2, 500, 16), torch.arange(500, dtype=torch.int32))
    profile = EncodingProfile("m", "m", "float32", "{}", "t", "none", ())
    key = chunk_key(profile, kv.token_ids)
    out = torch.empty_like(kv.keys), torch.empty_like(kv.values)
    with KVStore(open_redis(redis_uri)) as store:
        store.put(key, kv, profile=profile, encode_seconds=1.0)
        hit = store.get(key, kv.token_ids, out=out)
        assert hit is not None
        assert hit.tier == "redis"
        assert torch.equal(out[0], kv.keys)
        assert torch.equal(out[1], kv.values)


def test_namespaces_do_not_see_each_other(open_redis: OpenRedis, redis_uri: str) -> None:
    one, two = open_redis(redis_uri, namespace="ab"), open_redis(redis_uri, namespace="a")
    one.put("b-x", b"1")
    assert two.get("b-x") is None
    assert list(two.names()) == []
    assert two.usage() == {}
    assert list(one.names()) == ["b-x"]
    one.delete("b-x")


def test_databases_do_not_see_each_other(open_redis: OpenRedis, redis_uri: str) -> None:
    one, two = open_redis(redis_uri + "/3", namespace="db"), open_redis(redis_uri, namespace="db")
    one.put("a", b"1")
    assert two.get("a") is None
    one.delete("a")


def test_many_names_are_listed_and_counted(store: RedisStore) -> None:
    names = [f"k{i:04}" for i in range(2500)]
    for name in names:
        store.put(name, b"x")
    assert list(store.names()) == names
    assert store.contains(names) == [True] * 2500
    assert store.stats().entries == 2500
    assert [content(view) for view in store.get_many(names)] == [b"x"] * 2500


def test_touch_reaches_every_part(store: RedisStore, redis_server: Server) -> None:
    store.put("a", bytes(PART_BYTES * 3))
    with redis_server.client() as client:
        time.sleep(2.1)
        assert min(client.object("idletime", key) for key in held_by(client, store)) >= 1
        store.touch(["a", "absent"])
        assert max(client.object("idletime", key) for key in held_by(client, store)) == 0


def test_a_forked_child_has_connections_of_its_own(redis_uri: str) -> None:
    code = (
        "import os\n"
        "from epic_rag.kvstore.uri import open_store\n"
        f"store = open_store('{redis_uri}?namespace=fork&timeout=10').blobs\n"
        "store.put('a', b'1')\n"
        "if os.fork() == 0:\n"
        "    ok = all(bytes(store.get('a')) == b'1' and store.put('b', b'2') is None for _ in range(50))\n"
        "    os._exit(0 if ok else 1)\n"
        "assert all(bytes(store.get('a')) == b'1' for _ in range(50))\n"
        "assert os.wait()[1] == 0\n"
        "print(*store.names())\n"
        "store.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["a", "b"]


def test_a_key_of_another_kind_is_a_miss_reported_once(
    store: RedisStore, redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as client:
        client.lpush(keys_of(store).meta("a"), "x")
    assert [store.get("a"), store.get("a"), store.contains(["a"])] == [None, None, [False]]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert store.stats().failures >= 3
    assert store.available
    with pytest.raises(StoreWriteError, match="WRONGTYPE"):
        store.put("a", b"1")
    with redis_server.client() as client:
        assert held_by(client, store) == {keys_of(store).meta("a")}
