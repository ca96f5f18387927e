"""The connections of the Redis tier for threads; this file and its asyncio twin are all that talks to a network.

redis-py retries within the pipeline and again within each connect, ten times each if it is left to itself; a dead
server would cost seconds. Here its own retries are off, and there is one retry around everything: of a refused or
closed connection, twice, after 0.04 and 0.08 seconds; never of a silent server, whose timeout was spent.
"""

from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, TypedDict

from epic_rag.kvstore.errors import StoreError, StoreUnavailableError
from epic_rag.kvstore.redis_bulk import ASK_AGAIN, receive_into
from epic_rag.kvstore.redis_options import Node, RedisOptions
from epic_rag.kvstore.redis_routes import Routes
from epic_rag.kvstore.redis_wire import Command, Parcel, Plan, Reply, Route, T, received

if TYPE_CHECKING:
    import redis
    from redis.credentials import CredentialProvider

RETRIES = 2
PATIENCE_SECONDS = 0.15
"""Nothing is tried once more after this long, so that one timeout more stays within half a second."""

READ_AT_ONCE_BYTES = 1 << 20


class Settings(TypedDict, total=False):
    """What redis-py is told about a connection."""

    host: str
    port: int
    db: int
    protocol: int
    socket_timeout: float
    socket_connect_timeout: float
    socket_read_size: int
    socket_keepalive: bool
    credential_provider: "CredentialProvider"
    ssl_cert_reqs: str
    ssl_check_hostname: bool
    ssl_ca_certs: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None


def require_redis() -> None:
    """Raise StoreError, naming the extra, where redis-py is missing."""
    try:
        import redis  # noqa: F401
    except ImportError:
        raise StoreError("a Redis store needs the package redis: pip install 'epic-rag[redis]'") from None


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that mean that a server was not reached, or did not answer, or that nobody knows it."""
    from redis.exceptions import RedisError

    return (RedisError, OSError, StoreUnavailableError)


def settings(options: RedisOptions, node: Node, seed: bool) -> Settings:
    """Return what redis-py is told about a connection to a node."""
    from redis.credentials import UsernamePasswordCredentialProvider

    timeout_seconds = options.timeout_seconds / 2 if seed else options.timeout_seconds
    chosen = Settings(
        host=node.host,
        port=node.port,
        protocol=2,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=options.timeout_seconds / 2,
        socket_read_size=READ_AT_ONCE_BYTES,
        socket_keepalive=True,
    )
    sentinel = seed and options.kind == "sentinel"
    if not sentinel:
        chosen["db"] = options.db
        if options.username or options.password:
            # Not as a password: redis-py shows the settings of a pool in its repr.
            chosen["credential_provider"] = UsernamePasswordCredentialProvider(options.username, options.password or "")
    if options.tls:
        chosen["ssl_cert_reqs"], chosen["ssl_check_hostname"] = "required", True
        chosen["ssl_ca_certs"] = options.ca_file
        chosen["ssl_certfile"], chosen["ssl_keyfile"] = options.cert_file, options.key_file
    return chosen


class Link:
    """Connections to the nodes of a deployment, for threads."""

    def __init__(self, options: RedisOptions, routes: Routes) -> None:
        """Prepare; connects at first use."""
        self._options = options
        self._routes = routes
        self._clients: dict[tuple[Node, bool], redis.Redis] = {}
        self._lock = Lock()

    def run(self, plan: Plan[T]) -> T:
        """Carry out a plan.

        Raises:
            StoreUnavailableError: nobody says where the nodes are.
            RedisError, OSError: a node was not reached, or did not answer.
        """
        return self._drive(self._routes.routed(plan))

    def search(self) -> None:
        """Find out anew where the nodes are; raises what `run` raises."""
        self._drive(self._routes.search())

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.connection_pool.disconnect()

    def _drive(self, route: Route[T]) -> T:
        try:
            parcels = next(route)
            while True:
                try:
                    replies = [self._send(parcel) for parcel in parcels]
                except failures() as error:
                    parcels = route.throw(error)
                else:
                    parcels = route.send(replies)
        except StopIteration as done:
            result: T = done.value
            return result

    def _send(self, parcel: Parcel) -> list[Reply]:
        from redis.backoff import ExponentialBackoff
        from redis.exceptions import ConnectionError as RefusedError
        from redis.retry import Retry

        client = self._client(parcel.node, parcel.seed)
        give_up_at = monotonic() + PATIENCE_SECONDS

        def attempt() -> list[Reply]:
            if any(command.into is None for command in parcel.commands):
                return _ask(client, parcel.commands)
            replies = receive_into(client.connection_pool, parcel.commands)
            again = [i for i, reply in enumerate(replies) if reply is ASK_AGAIN]
            for i, reply in zip(again, _ask(client, [parcel.commands[i] for i in again]) if again else [], strict=True):
                replies[i] = reply
            return replies

        def failed(error: Exception) -> None:
            if parcel.seed or monotonic() > give_up_at:
                raise error

        retry = Retry(ExponentialBackoff(cap=0.2, base=0.02), RETRIES, (RefusedError,))
        return retry.call_with_retry(attempt, failed)

    def _client(self, node: Node, seed: bool) -> "redis.Redis":
        import redis

        with self._lock:
            client = self._clients.get((node, seed))
            if client is None:
                kind = redis.SSLConnection if self._options.tls else redis.Connection
                pool = redis.ConnectionPool(connection_class=kind, **settings(self._options, node, seed))
                client = self._clients[node, seed] = redis.Redis(connection_pool=pool)
            return client


def _ask(client: "redis.Redis", commands: Sequence[Command]) -> list[Reply]:
    """Send commands through redis-py; errors that the server answers are among the replies."""
    with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command.arguments)  # type: ignore[no-untyped-call]
        replies = pipeline.execute(raise_on_error=False)
    return [received(command, reply) for command, reply in zip(commands, replies, strict=True)]
