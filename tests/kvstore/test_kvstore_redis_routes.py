"""Deployments: TLS and passwords, sentinels that replace their master, a cluster whose slots move."""

import asyncio
import logging
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.crc import key_slot
from redis_servers import Server, cluster, cluster_uri, server, tls_server, wait_until, watched

from epic_rag.kvstore import redis_circuit
from epic_rag.kvstore.errors import StoreError, StoreUnavailableError, StoreWriteError
from epic_rag.kvstore.redis_options import Node
from epic_rag.kvstore.redis_parts import Keyspace
from epic_rag.kvstore.redis_routes import SentinelRoutes
from epic_rag.kvstore.redis_store import RedisStore
from epic_rag.kvstore.testing import content
from epic_rag.kvstore.uri import open_store

ROOT = Path(__file__).resolve().parents[2]
OpenRedis = Callable[..., RedisStore]
SECRET = "s3cr/t?#@:%x"
QUOTED = "s3cr%2Ft%3F%23%40%3A%25x"


def test_a_password_opens_the_store_and_is_never_shown(
    tmp_path: Path, open_redis: OpenRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with server(tmp_path, "--requirepass", SECRET) as guarded:
        with guarded.client(password=SECRET) as client:
            client.execute_command("ACL SETUSER", "reader", "on", f">{SECRET}", "~*", "&*", "+@all", "-@write")
        where = f"127.0.0.1:{guarded.port}"
        store = open_redis(f"redis://:{QUOTED}@{where}")
        store.put("a", b"1")
        assert content(store.get("a")) == b"1"
        shown = [
            repr(store),
            repr(store.options),
            str(store.options.shown),
            repr(store._link._clients),
            repr(vars(store)),
        ]
        for user in ("", ":wr0ng", f"nobody:{QUOTED}", f"reader:{QUOTED}"):
            other = open_redis(f"redis://{user}@{where}" if user else guarded.uri)
            assert other.get("a") is None
            with pytest.raises(StoreWriteError) as refused:
                other.put("a", b"2")
            shown.append(str(refused.value))
        assert "let its user read, write and run scripts" in shown[-1]
        shown += [record.getMessage() for record in caplog.records]
        shown += [str(record.args) for record in caplog.records]
        print(f"{len(shown)} texts; of the refusals: {[text[-90:] for text in shown[5:9]]}")
        assert [text for text in shown if SECRET in text or QUOTED in text or "wr0ng" in text] == []


def test_the_documented_rights_are_enough(tmp_path: Path, open_redis: OpenRedis) -> None:
    commands = re.search(r"A user needs `([A-Z ]+)`", (ROOT / "docs" / "stores.md").read_text())
    assert commands is not None
    rights = [f"+{command.lower()}" for command in commands[1].split()]
    with server(tmp_path) as guarded:
        with guarded.client() as client:
            client.execute_command("ACL SETUSER", "app", "on", ">pw", "~{epic:*", *rights)
        store = open_redis(f"redis://app:pw@127.0.0.1:{guarded.port}", ttl="1h")
        forever = open_redis(f"redis://app:pw@127.0.0.1:{guarded.port}", namespace=store.options.namespace)
        for writer in (store, forever):
            writer.put("a", bytes(200_000))
            assert content(writer.get_range("a", 100, 2)) == bytes(2)
            assert content(writer.get("a")) == bytes(200_000)
            writer.touch(["a"])
            writer.reconcile()
            assert (writer.stats().entries, writer.stats().failures) == (1, 0)
        assert store.contains(["a"]) == [True]
        assert store.delete("a")
        assert store.stats().failures == 0


def test_tls_with_a_password(tmp_path: Path, open_redis: OpenRedis) -> None:
    with tls_server(tmp_path, "--requirepass", SECRET) as guarded:
        address = f"rediss://:{QUOTED}@127.0.0.1:{guarded.port}"
        store = open_redis(address, ca=tmp_path / "ca.crt")
        store.put("a", bytes(300_000))
        assert content(store.get("a")) == bytes(300_000)

        async def work() -> bytes | None:
            return content(await store.aget("a"))

        assert asyncio.run(work()) == bytes(300_000)
        for uri, options, words in (
            (address, {}, "CERTIFICATE_VERIFY_FAILED"),
            (address.replace("127.0.0.1", "localhost"), {"ca": tmp_path / "ca.crt"}, "CERTIFICATE_VERIFY_FAILED"),
            (address.replace("rediss", "redis"), {}, "cannot be used"),
        ):
            stranger = open_redis(uri, **options)
            assert stranger.get("a") is None
            with pytest.raises(StoreUnavailableError, match=words) as refused:
                list(stranger.names())
            assert SECRET not in str(refused.value)


def test_a_sentinel_names_the_master_and_its_successor(
    tmp_path: Path, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_circuit, "PAUSE_SECONDS", 0.2)
    with watched(tmp_path) as (master, replica, sentinel):
        # The first sentinel of the address is dead.
        store = open_redis(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/kv", timeout=1)
        store.put("a", bytes(300_000))
        wait_until(lambda: replica.client().dbsize() == master.client().dbsize() > 0, "the replica")
        master.kill()
        began = time.monotonic()
        assert store.get("a") is None
        wait_until(lambda: store.available, "the new master")
        print(f"master killed: usable again, at the new master, after {time.monotonic() - began:.1f} s")
        assert content(store.get("a")) == bytes(300_000)
        store.put("b", b"2")
        assert content(store.get("b")) == b"2"


def test_a_node_that_turned_replica_names_its_master_by_refusing(tmp_path: Path, open_redis: OpenRedis) -> None:
    with watched(tmp_path) as (master, replica, sentinel):
        store = open_redis(f"redis+sentinel://127.0.0.1:{sentinel.port}/kv", timeout=1)
        routes = store._link._routes
        assert isinstance(routes, SentinelRoutes)
        routes._master = Node("127.0.0.1", replica.port)
        store.put("a", b"1")
        assert store._circuit.times_opened == 0
        assert routes._master == ("127.0.0.1", master.port)
        assert content(store.get("a")) == b"1"
        with pytest.raises(StoreUnavailableError, match="knows of none"):
            list(open_redis(f"redis+sentinel://127.0.0.1:{sentinel.port}/other").names())


def test_nobody_answers(open_redis: OpenRedis) -> None:
    for uri in ("redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1,127.0.0.1:2", "redis+sentinel://127.0.0.1:1/kv"):
        store = open_redis(uri, timeout=0.2)
        assert store.get("a") is None
        assert store.contains(["a"]) == [False]
        with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1.*check that it runs"):
            store.stats()
        with pytest.raises(StoreUnavailableError):
            store.delete("a")
        with pytest.raises(StoreWriteError, match="not kept"):
            store.put("a", b"")


def test_a_server_alone_is_no_cluster(open_redis: OpenRedis, redis_server: Server) -> None:
    store = open_redis(f"redis+cluster://127.0.0.1:{redis_server.port}")
    with pytest.raises(StoreUnavailableError, match="cluster support disabled"):
        list(store.names())


def test_all_keys_of_a_blob_share_a_slot_and_blobs_are_spread(
    open_redis: OpenRedis, redis_cluster_uri: str, redis_cluster: list[Server]
) -> None:
    store = open_redis(redis_cluster_uri)
    for i in range(60):
        store.put(f"k{i}", bytes(100_000))
    pattern = f"{{epic:{store.options.namespace}:*"
    held = []
    for node in redis_cluster:
        with node.client() as client:
            held.append(len({key.partition(b"}")[0] for key in client.scan_iter(pattern, count=1000)}))
    print(f"60 blobs over three masters: {held}")
    assert sum(held) == 60
    assert min(held) > 5


def test_slots_that_move_are_followed(tmp_path: Path, open_redis: OpenRedis) -> None:
    with cluster(tmp_path) as nodes:
        store = open_redis(cluster_uri(nodes))
        names = [f"k{i}" for i in range(200)]
        for name in names:
            store.put(name, name.encode() * 30_000)
        held = nodes[0].client().dbsize()
        ids = [node.client().execute_command("CLUSTER MYID").decode() for node in nodes]
        move = ["--cluster-from", ids[0], "--cluster-to", ids[1], "--cluster-slots", "800", "--cluster-yes"]
        where = f"127.0.0.1:{nodes[2].port}"
        with (tmp_path / "moving").open("wb") as log:
            moving = subprocess.Popen(["redis-cli", "--cluster", "reshard", where, *move], stdout=log, stderr=log)
        missed = reads = 0
        while moving.poll() is None:
            views = store.get_many(names)
            missed += sum(view is None for view in views)
            reads += len(views)
            assert all(content(v) == n.encode() * 30_000 for v, n in zip(views, names, strict=True) if v is not None)
        assert moving.wait() == 0, (tmp_path / "moving").read_text()[-1000:]
        assert store.available
        assert [content(view) for view in store.get_many(names)] == [name.encode() * 30_000 for name in names]
        assert nodes[0].client().dbsize() < held
        print(f"800 slots moved under {reads} reads: {missed} misses, none wrong, all there afterwards")
        for name in names:
            store.put(name, b"new")
        assert list(store.names()) == sorted(names)


def test_a_missing_client_is_said_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without_redis(name: str, *args: object, **kwargs: object) -> object:
        if name == "redis":
            raise ImportError(name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_redis)
    with pytest.raises(StoreError, match=r"pip install 'epic-rag\[redis\]'"):
        open_store("redis://127.0.0.1:1")


@pytest.mark.parametrize("name", ["a", "-", "0" * 64, "a" * 160])
def test_keys_name_their_blob(name: str) -> None:
    keys = Keyspace("ns")
    assert keys.name(keys.meta(name).encode()) == keys.name(keys.part(name, "ff", 3).encode()) == name
    assert key_slot(keys.meta(name).encode()) == key_slot(keys.part(name, "ff", 3).encode())
