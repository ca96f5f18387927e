"""The asyncio face of the Redis tier: a pool for each loop, closed with it."""

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest
from redis_servers import Server

from epic_rag.kvstore.errors import StoreClosedError, StoreUnavailableError, StoreWriteError
from epic_rag.kvstore.redis_store import RedisStore
from epic_rag.kvstore.testing import content, in_threads

OpenRedis = Callable[..., RedisStore]


@pytest.fixture
def store(open_redis: OpenRedis, redis_uri: str) -> RedisStore:
    return open_redis(redis_uri)


def connections(server: Server) -> int:
    with server.client() as client:
        return int(client.info("clients")["connected_clients"])


@pytest.mark.parametrize("kind", ["redis_uri", "redis_cluster_uri"])
async def test_many_calls_at_once(request: pytest.FixtureRequest, open_redis: OpenRedis, kind: str) -> None:
    store = open_redis(request.getfixturevalue(kind))
    data = {f"k{i}": bytes([i]) * (20_000 * i) for i in range(20)}
    await asyncio.gather(*(store.aput(name, value) for name, value in data.items()))
    views = await asyncio.gather(*(store.aget(name) for name in data))
    assert [content(view) for view in views] == list(data.values())
    assert [content(view) for view in await store.aget_many([*data, "absent"])] == [*data.values(), None]
    assert content(await store.aget_range("k9", 70_000, 1000)) == bytes([9]) * 1000
    assert await store.acontains(["k1", "absent"]) == [True, False]
    assert await store.anames("k1") == sorted(name for name in data if name.startswith("k1"))
    assert [await store.adelete(name) for name in ("k1", "k1")] == [True, False]
    stats = store.stats()
    assert (stats.hits, stats.misses, stats.puts, stats.entries) == (40, 1, 20, 19)
    with pytest.raises(ValueError, match="name"):
        await store.aget("A")
    with pytest.raises(ValueError, match="at least 0"):
        await store.aget_range("a", -1, 1)


def test_each_loop_has_its_pool_and_closes_it(store: RedisStore, redis_server: Server) -> None:
    store.put("a", b"1")
    before = connections(redis_server)

    async def work() -> int:
        found = await asyncio.gather(*(store.aget("a") for _ in range(10)))
        assert {content(view) for view in found} == {b"1"}
        return len(store._links._open)

    for _ in range(5):
        assert asyncio.run(work()) == 1
        assert store._links._open == {}
    gc.collect()
    assert connections(redis_server) == before
    counts = [0] * 4
    ready = threading.Barrier(4)

    def one_loop(index: int) -> None:
        async def both() -> None:
            await work()
            ready.wait(30)
            counts[index] = len(store._links._open)
            ready.wait(30)

        asyncio.run(both())

    in_threads(4, one_loop)
    assert counts == [4] * 4
    gc.collect()
    assert connections(redis_server) <= before + 1


def test_a_call_that_is_cancelled_spoils_nothing(store: RedisStore) -> None:
    data = {f"k{i}": bytes([i]) * 500_000 for i in range(4)}
    for name, value in data.items():
        store.put(name, value)

    async def work() -> int:
        cancelled = 0
        for turn in range(60):
            tasks = [asyncio.create_task(store.aget(name)) for name in data]
            await asyncio.sleep(0.0003 * (turn % 12))
            tasks[turn % 4].cancel()
            views = await asyncio.gather(*tasks, return_exceptions=True)
            for view, value in zip(views, data.values(), strict=True):
                if isinstance(view, asyncio.CancelledError):
                    cancelled += 1
                else:
                    assert not isinstance(view, BaseException)
                    assert content(view) == value
        return cancelled

    cancelled = asyncio.run(work())
    print(f"{cancelled} of 60 reads were cancelled under way; the others gave the right bytes")
    assert cancelled > 0
    assert store.available


async def test_closing_closes_the_pool_of_the_running_loop(store: RedisStore, redis_server: Server) -> None:
    await store.aput("a", b"1")
    store.close()
    with pytest.raises(StoreClosedError):
        await store.aget("a")
    await asyncio.sleep(0.05)
    gc.collect()


async def test_a_dead_server_is_a_miss_and_a_refused_write(open_redis: OpenRedis) -> None:
    store = open_redis("redis://127.0.0.1:1")
    assert await store.aget("a") is None
    assert await store.aget_many(["a", "b"]) == [None, None]
    assert await store.aget_range("a", 0, 1) is None
    assert await store.acontains(["a"]) == [False]
    with pytest.raises(StoreWriteError, match="not kept"):
        await store.aput("a", b"1")
    for call in (store.anames(), store.adelete("a")):
        with pytest.raises(StoreUnavailableError):
            await call
    assert store.numbers({}).failures == 7
