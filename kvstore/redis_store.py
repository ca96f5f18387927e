"""The Redis tier: blobs on a Redis or Valkey that machines share (layout: redis_parts; docs/stores.md)."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from epic_rag.kvstore.asyncface import Data
from epic_rag.kvstore.blobstore import BlobNote, BlobStore, Usage, as_buffers
from epic_rag.kvstore.errors import StoreUnavailableError, StoreWriteError
from epic_rag.kvstore.header import describe
from epic_rag.kvstore.openblob import OpenBlob, ViewBlob
from epic_rag.kvstore.redis_circuit import Circuit
from epic_rag.kvstore.redis_link import Link, failures, require_redis
from epic_rag.kvstore.redis_link_async import LoopLinks
from epic_rag.kvstore.redis_options import RedisOptions
from epic_rag.kvstore.redis_parts import Keyspace
from epic_rag.kvstore.redis_reads import Reads
from epic_rag.kvstore.redis_routes import make_routes
from epic_rag.kvstore.redis_survey import Survey
from epic_rag.kvstore.redis_wire import Plan, Refused
from epic_rag.kvstore.redis_writes import Writes
from epic_rag.kvstore.scratch import Scratch

T = TypeVar("T")

_log = logging.getLogger("epic_rag.kvstore")


class RedisStore(BlobStore):
    """Blobs on a server, a master that sentinels name, or a cluster.

    What cannot be reached is missing: no read raises for a dead, frozen or full server, and after one failure nobody
    waits for it until it answers again. The server's `maxmemory` is the budget, its `maxmemory-policy` the
    replacement: blobs, or single parts of them, may vanish at any time, and then are missing. A blob larger than half
    of `maxmemory` is refused.
    """

    def __init__(self, options: RedisOptions) -> None:
        """Prepare; connects at first use.

        Raises:
            StoreError: redis-py is not installed.
        """
        require_redis()
        super().__init__()
        self.options = options
        keys = Keyspace(options.namespace)
        routes = make_routes(options)
        self._reads = Reads(keys, self._report)
        self._writes = Writes(keys, options.part_bytes, options.ttl_seconds)
        self._survey = Survey(keys, self._reads)
        self._link = Link(options, routes)
        self._links = LoopLinks(options, routes)
        self._circuit = Circuit(f"redis store {options.shown}", self._probe)
        self._scratch = Scratch()
        self._reported: set[str] = set()

    def __repr__(self) -> str:
        return f"RedisStore({self.options.shown!r}, namespace={self.options.namespace!r})"

    @property
    def tier(self) -> str:
        """The tier's name, "redis"."""
        return "redis"

    @property
    def remote(self) -> bool:
        """True: bytes come over a network each time."""
        return True

    @property
    def available(self) -> bool:
        """Whether the server answered when it was last asked."""
        return not self._circuit.is_open

    def get_many(self, names: Sequence[str]) -> list[memoryview | None]:
        """Return `get` of each name, with two round trips and one more for each 8 MiB."""
        self._check(*names)
        with self._timed("read"):
            views = self._quietly(self._reads.read(names), _absent(names))
        return self._counted(views)

    @contextmanager
    def open_blob(self, name: str) -> Iterator[OpenBlob | None]:
        """Give a blob to be read into memory that is there already, or None; counts as `get` does."""
        self._check(name)
        with self._scratch.lend() as loan:
            with self._timed("read"):
                (view,) = self._counted([self._quietly(self._reads.read_into(name, loan.take), None)])
            yield None if view is None else ViewBlob(view)

    def contains(self, names: Sequence[str]) -> list[bool]:
        """Return for each name whether it is stored, all of its parts; not a use."""
        self._check(*names)
        sizes = self._quietly(self._reads.sizes(names), _unknown(names))
        return [size is not None for size in sizes]

    def touch(self, names: Sequence[str]) -> None:
        """Count a use of each of these blobs, and of all of their parts."""
        self._check(*names)
        self._quietly(self._reads.touch(names), None)

    def reconcile(self) -> None:
        """Remove blobs that lost parts, and parts that lost their meta."""
        self._check()
        self._plainly(self._survey.sweep())

    async def aget(self, name: str) -> memoryview | None:
        """Return what `get` returns."""
        return (await self.aget_many([name]))[0]

    async def aget_many(self, names: Sequence[str]) -> list[memoryview | None]:
        """Return what `get_many` returns."""
        self._check(*names)
        with self._timed("read"):
            views = await self._quietly_async(self._reads.read(names), _absent(names))
        return self._counted(views)

    async def aget_range(self, name: str, start: int, length: int) -> memoryview | None:
        """Return what `get_range` returns."""
        self._check_range(name, start, length)
        return await self._quietly_async(self._reads.read_range(name, start, length), None)

    async def aput(self, name: str, data: Data) -> None:
        """Do what `put` does."""
        self._check(name)
        buffers, size_bytes = as_buffers(data)
        with self._timed("write"), self._worded(name, size_bytes):
            await self._ask_async(self._writes.write(name, buffers, size_bytes, _note(buffers)))
        self._count(puts=1, written=size_bytes)

    async def adelete(self, name: str) -> bool:
        """Return what `delete` returns."""
        self._check(name)
        with self._answered():
            return await self._ask_async(self._reads.delete(name))

    async def acontains(self, names: Sequence[str]) -> list[bool]:
        """Return what `contains` returns."""
        self._check(*names)
        sizes = await self._quietly_async(self._reads.sizes(names), _unknown(names))
        return [size is not None for size in sizes]

    async def anames(self, prefix: str = "") -> list[str]:
        """Return what `names` yields, as a list."""
        self._check(*([prefix] if prefix else []))
        with self._answered():
            return await self._ask_async(self._survey.names(prefix))

    def _read(self, name: str) -> memoryview | None:
        return self._quietly(self._reads.read([name]), _absent([name]))[0]

    def _read_range(self, name: str, start: int, length: int) -> memoryview | None:
        return self._quietly(self._reads.read_range(name, start, length), None)

    def _write(self, name: str, buffers: Sequence[memoryview], size_bytes: int) -> None:
        with self._worded(name, size_bytes):
            self._ask(self._writes.write(name, buffers, size_bytes, _note(buffers)))

    def _remove(self, name: str) -> bool:
        return self._plainly(self._reads.delete(name))

    def _size(self, name: str) -> int | None:
        return self._quietly(self._reads.sizes([name]), _unknown([name]))[0]

    def _names(self, prefix: str) -> Sequence[str]:
        return self._plainly(self._survey.names(prefix))

    def _touch(self, names: Sequence[str]) -> None:
        """Do nothing: to the server, reading is a use."""

    def _set_aside(self, name: str, reason: str) -> None:
        try:
            self._ask(self._reads.delete(name))
        except (StoreUnavailableError, Refused) as error:
            _log.warning("blob %s stays where it is (%s)", name, error)

    def _usage(self) -> Mapping[str, Usage]:
        return self._plainly(self._survey.usage())

    def _close(self) -> None:
        self._circuit.stop()
        self._link.close()
        self._links.close()

    def _counted(self, views: list[memoryview | None]) -> list[memoryview | None]:
        found = [view for view in views if view is not None]
        self._count(hits=len(found), misses=len(views) - len(found), read=sum(view.nbytes for view in found))
        return views

    def _ask(self, plan: Plan[T]) -> T:
        """Carry out a plan, or raise StoreUnavailableError; the first failure opens the circuit."""
        self._circuit.check()
        try:
            return self._link.run(plan)
        except failures() as error:
            raise self._circuit.open(error) from error

    async def _ask_async(self, plan: Plan[T]) -> T:
        self._circuit.check()
        link = await self._links.link()
        try:
            return await link.run(plan)
        except failures() as error:
            raise self._circuit.open(error) from error

    def _quietly(self, plan: Plan[T], otherwise: T) -> T:
        """Carry out a plan; return `otherwise` where the server does not answer."""
        try:
            return self._ask(plan)
        except StoreUnavailableError:
            self._count(failures=1)
            return otherwise

    async def _quietly_async(self, plan: Plan[T], otherwise: T) -> T:
        try:
            return await self._ask_async(plan)
        except StoreUnavailableError:
            self._count(failures=1)
            return otherwise

    def _plainly(self, plan: Plan[T]) -> T:
        with self._answered():
            return self._ask(plan)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Word what goes wrong where an empty answer would be a lie."""
        try:
            yield
        except StoreUnavailableError:
            self._count(failures=1)
            raise
        except Refused as error:
            self._count(failures=1)
            raise StoreUnavailableError(
                f"redis store {self.options.shown} answers with an error ({error}): "
                "check its log, and what its user may do"
            ) from error

    @contextmanager
    def _worded(self, name: str, size_bytes: int) -> Iterator[None]:
        """Word what goes wrong while a blob is written."""
        try:
            yield
        except (StoreUnavailableError, Refused) as error:
            self._count(failures=1)
            why = str(error)
            if isinstance(error, Refused):
                why = f"redis store {self.options.shown} refuses it ({error}): {_mend(error)}"
            raise StoreWriteError(f"blob {name} ({size_bytes} bytes) was not kept: {why}") from error

    def _report(self, error: Exception) -> None:
        """Note an error that the server answered to a read, and say so once for each kind."""
        self._count(failures=1)
        kind = type(error).__name__
        kind = str(error).partition(" ")[0] if kind == "ResponseError" else kind
        if kind not in self._reported:
            self._reported.add(kind)
            _log.warning("redis store %s answers with an error (%s): treated as missing", self.options.shown, error)

    def _probe(self) -> None:
        self._link.search()
        self._link.run(self._survey.ping())


def _absent(names: Sequence[str]) -> list[memoryview | None]:
    return [None] * len(names)


def _unknown(names: Sequence[str]) -> list[int | None]:
    return [None] * len(names)


def _note(buffers: Sequence[memoryview]) -> BlobNote:
    return describe(buffers[0]) if buffers else BlobNote()


def _mend(error: Refused) -> str:
    """Return what helps against the error that a server answered to a write."""
    from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError

    mends: dict[type[BaseException], str] = {
        OutOfMemoryError: "raise its maxmemory, set its maxmemory-policy to allkeys-lru, or give the store a ttl",
        ReadOnlyError: "the address names a replica: use the master's, or redis+sentinel://",
        NoPermissionError: "let its user read, write and run scripts on keys that start with {epic:",
    }
    if error.__cause__ is None:
        return "raise its maxmemory, or ingest in smaller chunks"
    return mends.get(type(error.__cause__), "check its log")
