"""How the Redis tier writes blobs.

Parts are written first, with a time limit, and the meta record last, by a script that also makes the parts permanent
and removes those that they replace. A writer that dies leaves nothing that stays, and a reader sees the old blob or the
new one.
"""

from collections.abc import Iterable, Sequence

from epic_rag.kvstore.redis_parts import MAX_BLOB_BYTES, Keyspace, Meta, cut, new_meta
from epic_rag.kvstore.redis_wire import Command, Plan, Refused, accept, on_key, windows
from epic_rag.kvstore.tierstats import BlobNote

UNSETTLED_MS = 600_000
"""How long parts wait for their meta."""

# KEYS: meta, new parts, parts of the old generation. ARGV: old meta ('' for none), new meta, number of new parts, ttl
# in ms or 0. Returns 1; or 0 when a part is gone already; or, changing nothing, the meta that stands there instead.
COMMIT = """
local now = redis.call('GET', KEYS[1]) or ''
if now == ARGV[2] then return 1 end
if now ~= ARGV[1] then return now end
local fresh, ttl = tonumber(ARGV[3]), tonumber(ARGV[4])
for i = 2, 1 + fresh do
  if redis.call('EXISTS', KEYS[i]) == 0 then return 0 end
end
if ttl > 0 then redis.call('SET', KEYS[1], ARGV[2], 'PX', ttl) else redis.call('SET', KEYS[1], ARGV[2]) end
for i = 2, 1 + fresh do
  if ttl > 0 then redis.call('PEXPIRE', KEYS[i], ttl) else redis.call('PERSIST', KEYS[i]) end
end
for i = 2 + fresh, #KEYS do redis.call('UNLINK', KEYS[i]) end
return 1
"""


class Writes:
    """The writing operations of one namespace."""

    def __init__(self, keys: Keyspace, part_bytes: int, ttl_seconds: float | None) -> None:
        """Prepare.

        Args:
            keys: the namespace's keys.
            part_bytes: bytes of the parts of new blobs.
            ttl_seconds: how long new blobs live; None for ever.
        """
        self._keys = keys
        self._part_bytes = part_bytes
        self._ttl_ms = 0 if ttl_seconds is None else max(1, round(ttl_seconds * 1000))

    def write(self, name: str, buffers: Sequence[memoryview], size_bytes: int, note: BlobNote) -> Plan[None]:
        """Write a blob.

        Raises:
            Refused: the server would not keep it; what was there stays.
        """
        yield from self._check_room(name, size_bytes)
        meta = new_meta(size_bytes, self._part_bytes, note)
        parts = self._keys.parts(name, meta)
        try:
            yield from self._send(parts, cut(buffers, self._part_bytes))
            yield from self._commit(name, meta, parts)
        except Refused:
            if parts:
                yield [on_key("UNLINK", *parts)]
            raise

    def _check_room(self, name: str, size_bytes: int) -> Plan[None]:
        """Refuse what the server could only keep by throwing out nearly everything else."""
        if size_bytes > MAX_BLOB_BYTES:
            raise Refused(f"{size_bytes} bytes, a blob in Redis has at most {MAX_BLOB_BYTES}")
        (memory,) = yield [Command(("INFO", "memory"), self._keys.meta(name))]
        limit = memory.get("maxmemory", 0) if isinstance(memory, dict) else 0
        if isinstance(limit, int) and 0 < limit < 2 * size_bytes:
            raise Refused(f"{size_bytes} bytes are more than half of the server's maxmemory of {limit} bytes")

    def _send(self, keys: Sequence[str], parts: Iterable[bytes]) -> Plan[None]:
        for window in windows(zip(keys, parts, strict=True), lambda item: len(item[1])):
            accept((yield [on_key("SET", key, part, "PX", UNSETTLED_MS) for key, part in window]))

    def _commit(self, name: str, meta: Meta, parts: Sequence[str]) -> Plan[None]:
        key = self._keys.meta(name)
        old = b""
        while True:
            old_meta = Meta.decode(old)
            keys = [key, *parts, *(self._keys.parts(name, old_meta) if old_meta else [])]
            arguments = (old, meta.encode(), len(parts), self._ttl_ms)
            (reply,) = yield [Command(("EVAL", COMMIT, len(keys), *keys, *arguments), key)]
            accept([reply])
            if reply == 1:
                return
            if not isinstance(reply, bytes):
                raise Refused("the server evicted parts of it while they were written")
            old = reply
