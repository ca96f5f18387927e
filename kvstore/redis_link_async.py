"""The connections of the Redis tier for asyncio: a pool for each event loop that uses the store.

A pool belongs to its loop and must be closed while that still runs. Each pool is held open by an asynchronous generator
that has not finished: loops close those at their end (`shutdown_asyncgens`, which `asyncio.run` calls), so that nobody
has to remember it.
"""

import asyncio
from collections.abc import AsyncGenerator
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from epic_rag.kvstore.redis_link import PATIENCE_SECONDS, RETRIES, failures, settings
from epic_rag.kvstore.redis_options import Node, RedisOptions
from epic_rag.kvstore.redis_routes import Routes
from epic_rag.kvstore.redis_wire import Parcel, Plan, Reply, Route, T, received

if TYPE_CHECKING:
    import redis.asyncio


class AsyncLink:
    """Connections to the nodes of a deployment, for one event loop."""

    def __init__(self, options: RedisOptions, routes: Routes) -> None:
        """Prepare; connects at first use."""
        self._options = options
        self._routes = routes
        self._clients: dict[tuple[Node, bool], redis.asyncio.Redis] = {}

    async def run(self, plan: Plan[T]) -> T:
        """Carry out a plan; raises what `Link.run` raises."""
        route: Route[T] = self._routes.routed(plan)
        try:
            parcels = next(route)
            while True:
                replies = await asyncio.gather(*map(self._send, parcels), return_exceptions=True)
                errors = [reply for reply in replies if isinstance(reply, BaseException)]
                if not errors:
                    parcels = route.send([reply for reply in replies if not isinstance(reply, BaseException)])
                elif isinstance(errors[0], failures()):
                    parcels = route.throw(errors[0])
                else:
                    raise errors[0]
        except StopIteration as done:
            result: T = done.value
            return result

    async def close(self) -> None:
        """Close all connections."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.connection_pool.disconnect()

    async def _send(self, parcel: Parcel) -> list[Reply]:
        from redis.asyncio.retry import Retry
        from redis.backoff import ExponentialBackoff
        from redis.exceptions import ConnectionError as RefusedError

        client = self._client(parcel.node, parcel.seed)
        give_up_at = monotonic() + PATIENCE_SECONDS

        async def attempt() -> list[Reply]:
            async with client.pipeline(transaction=False) as pipeline:
                for command in parcel.commands:
                    pipeline.execute_command(*command.arguments)
                replies = await pipeline.execute(raise_on_error=False)
            return [received(command, reply) for command, reply in zip(parcel.commands, replies, strict=True)]

        async def failed(error: Exception) -> None:
            if parcel.seed or monotonic() > give_up_at:
                raise error

        retry = Retry(ExponentialBackoff(cap=0.2, base=0.02), RETRIES, (RefusedError,))
        return await retry.call_with_retry(attempt, failed)

    def _client(self, node: Node, seed: bool) -> "redis.asyncio.Redis":
        import redis.asyncio

        client = self._clients.get((node, seed))
        if client is None:
            kind = redis.asyncio.SSLConnection if self._options.tls else redis.asyncio.Connection
            pool = redis.asyncio.ConnectionPool(connection_class=kind, **settings(self._options, node, seed))
            client = self._clients[node, seed] = redis.asyncio.Redis(connection_pool=pool)
        return client


class LoopLinks:
    """The links of all event loops that use a store."""

    def __init__(self, options: RedisOptions, routes: Routes) -> None:
        self._options = options
        self._routes = routes
        self._open: dict[asyncio.AbstractEventLoop, tuple[AsyncLink, AsyncGenerator[AsyncLink, None]]] = {}
        self._lock = Lock()

    async def link(self) -> AsyncLink:
        """Return the running loop's link."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._open:
                return self._open[loop][0]
            for ended in [other for other in self._open if other.is_closed()]:
                del self._open[ended]
        # Nothing is waited for in here, so no other task of this loop comes in between.
        holder = self._hold(loop)
        link = await anext(holder)
        with self._lock:
            self._open[loop] = link, holder
        return link

    def close(self) -> None:
        """Close the links of the loops that run; those of others were closed when their loop was."""
        with self._lock:
            links, self._open = self._open, {}
        for loop, (_, holder) in links.items():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(holder.aclose(), loop)

    async def _hold(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[AsyncLink, None]:
        link = AsyncLink(self._options, self._routes)
        try:
            yield link
        finally:
            with self._lock:
                self._open.pop(loop, None)
            await link.close()
