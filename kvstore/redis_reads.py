"""How the Redis tier reads blobs, and what it does with one that has lost parts.

A missing part makes the blob missing, and the rest of it is removed, unless another put has come in between.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from epic_rag.kvstore.redis_parts import Keyspace, Meta, stretches
from epic_rag.kvstore.redis_wire import Command, Plan, Reply, accept, each, on_key, windows
from epic_rag.kvstore.scratch import fresh

Memory: TypeAlias = Callable[[int], memoryview]
"""Gives memory of so many bytes."""
BLOCK_BYTES = 1 << 30
"""The most that is reserved for several blobs together; it is given back when none of them is in use."""

# KEYS: meta, parts. ARGV: the meta that must stand there. Returns whether it did.
DROP = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 1, #KEYS do redis.call('UNLINK', KEYS[i]) end
return 1
"""


class _Piece(NamedTuple):
    """A part, or some of one, for request number `owner`."""

    owner: int
    length: int
    command: Command


class _Request(NamedTuple):
    """Bytes `start` to `start + length` of a blob, which has them."""

    name: str
    meta: Meta
    start: int
    length: int


def _whole(name: str, meta: Meta) -> _Request:
    return _Request(name, meta, 0, meta.size_bytes)


class Reads:
    """The reading operations of one namespace."""

    def __init__(self, keys: Keyspace, report: Callable[[Exception], None]) -> None:
        """Prepare.

        Args:
            keys: the namespace's keys.
            report: is given each error that a server answers; what it answered for counts as missing, and stays.
        """
        self._keys = keys
        self._report = report

    def read(self, names: Sequence[str]) -> Plan[list[memoryview | None]]:
        """Read whole blobs, each into memory of its own."""
        records = yield from self.records(names)
        metas = [self.meta(record) for record in records]
        there = [i for i, meta in enumerate(metas) if meta]
        found = yield from self._fetch([_whole(names[i], m) for i in there if (m := metas[i])])
        views: list[memoryview | None] = [None] * len(names)
        for i, result in zip(there, found, strict=True):
            if result is None:
                result = yield from self._read_one(names[i], 0, None, torn=records[i])
            views[i] = result if isinstance(result, memoryview) else None
        return views

    def read_into(self, name: str, memory: Memory) -> Plan[memoryview | None]:
        """Read a whole blob into the memory that `memory` gives."""
        return (yield from self._read_one(name, 0, None, memory=memory))

    def read_range(self, name: str, start: int, length: int) -> Plan[memoryview | None]:
        """Read a run of bytes; of the parts, only what it covers."""
        return (yield from self._read_one(name, start, length))

    def sizes(self, names: Sequence[str]) -> Plan[list[int | None]]:
        """Return the size of each blob that has all of its parts; the others are removed."""
        sizes: list[int | None] = [None] * len(names)
        waiting = list(range(len(names)))
        while waiting:
            records = yield from self.records([names[i] for i in waiting])
            there = [(i, r, m) for i, r in zip(waiting, records, strict=True) if (m := self.meta(r))]
            keys = [[self._keys.meta(names[i]), *self._keys.parts(names[i], meta)] for i, _, meta in there]
            counts = yield from each([on_key("EXISTS", *of_blob) for of_blob in keys])
            torn = []
            for (i, record, meta), of_blob, count in zip(there, keys, counts, strict=True):
                if self._is_good(count) and count == len(of_blob):
                    sizes[i] = meta.size_bytes
                elif isinstance(count, int):
                    torn.append((i, self.drop(names[i], record)))
            dropped = yield from each([command for _, command in torn])
            # What could not be dropped was put anew in between.
            waiting = [i for (i, _), gone in zip(torn, dropped, strict=True) if gone == 0]
        return sizes

    def delete(self, name: str) -> Plan[bool]:
        """Remove a blob; returns whether there was one."""
        while True:
            (record,) = yield [on_key("GET", self._keys.meta(name))]
            accept([record])
            if record is None:
                return False
            (gone,) = yield [self.drop(name, record)]
            accept([gone])
            if gone:
                return True

    def touch(self, names: Sequence[str]) -> Plan[None]:
        """Tell the server that these blobs were used: all of their parts, whichever were read."""
        metas = [self.meta(record) for record in (yield from self.records(names))]
        yield from each(
            [
                on_key("TOUCH", self._keys.meta(name), *self._keys.parts(name, meta))
                for name, meta in zip(names, metas, strict=True)
                if meta
            ]
        )

    def records(self, names: Sequence[str]) -> Plan[list[Reply]]:
        """Return the meta record of each blob, as it lies there."""
        return (yield from each([on_key("GET", self._keys.meta(name)) for name in names]))

    def meta(self, record: Reply) -> Meta | None:
        """Read a record; None where there is none, or none that this program can read."""
        return Meta.decode(record) if self._is_good(record) and isinstance(record, bytes) else None

    def drop(self, name: str, record: Reply) -> Command:
        """Return the command that removes a blob whose meta is still this record."""
        meta = self.meta(record)
        keys = [self._keys.meta(name), *(self._keys.parts(name, meta) if meta else [])]
        return Command(("EVAL", DROP, len(keys), *keys, record if isinstance(record, bytes) else b""), keys[0])

    def _read_one(
        self, name: str, start: int, length: int | None, *, torn: Reply = None, memory: Memory = fresh
    ) -> Plan[memoryview | None]:
        """Read a run of bytes, of `length` None to the end; `torn` is a meta whose parts were found missing."""
        while True:
            (record,) = yield [on_key("GET", self._keys.meta(name))]
            meta = self.meta(record)
            if meta is None:
                return None
            if record == torn:
                yield [self.drop(name, record)]
                return None
            first = min(start, meta.size_bytes)
            rest = meta.size_bytes - first
            request = _Request(name, meta, first, rest if length is None else min(length, rest))
            (result,) = yield from self._fetch([request], memory)
            if result is not None:
                return None if isinstance(result, Exception) else result
            torn = record

    def _fetch(self, requests: Sequence[_Request], memory: Memory = fresh) -> Plan[list[memoryview | Exception | None]]:
        """Read bytes of blobs.

        Returns:
            For each request its bytes; None where a part is missing, or the error that came instead.
        """
        results = self._reserved([request.length for request in requests], memory)
        for window in windows(self._pieces(requests, results), lambda piece: piece.length):
            replies = yield [piece.command for piece in window]
            for piece, reply in zip(window, replies, strict=True):
                if reply is not True and isinstance(results[piece.owner], memoryview):
                    results[piece.owner] = reply if isinstance(reply, Exception) else None
                    self._is_good(reply)
        return results

    def _reserved(self, lengths: Sequence[int], memory: Memory) -> list[memoryview | Exception | None]:
        """Reserve memory for each request: one block for all, which costs fewer page faults, unless that is huge."""
        if len(lengths) > 1 and sum(lengths) > BLOCK_BYTES:
            return [self._reserved([length], memory)[0] for length in lengths]
        try:
            block = memory(sum(lengths))
        except MemoryError as error:  # a size that somebody else wrote
            self._report(error)
            return [error] * len(lengths)
        ends = list(accumulate(lengths))
        return [block[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _pieces(
        self, requests: Sequence[_Request], memories: Sequence[memoryview | Exception | None]
    ) -> Iterator[_Piece]:
        for owner, (request, memory) in enumerate(zip(requests, memories, strict=True)):
            if not isinstance(memory, memoryview):
                continue
            name, meta, start, length = request
            end = 0
            for part, first, take in stretches(meta, start, length):
                key = self._keys.part(name, meta.generation, part)
                whole = take == min(meta.part_bytes, meta.size_bytes - part * meta.part_bytes)
                arguments = ("GET", key) if whole else ("GETRANGE", key, first, first + take - 1)
                yield _Piece(owner, take, Command(arguments, key, into=memory[end : end + take]))
                end += take

    def _is_good(self, reply: Reply) -> bool:
        if isinstance(reply, Exception):
            self._report(reply)
            return False
        return True
