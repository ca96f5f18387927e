"""How the Redis tier finds out what it holds: by SCAN over the keys, reading meta records only."""

from collections.abc import Sequence

from epic_rag.kvstore.redis_options import Node
from epic_rag.kvstore.redis_parts import Keyspace
from epic_rag.kvstore.redis_reads import Reads
from epic_rag.kvstore.redis_wire import Command, Plan, Reply, accept, each, on_key
from epic_rag.kvstore.tierstats import Usage, add_usage

_SCANNED_AT_ONCE = 1000


class Survey:
    """The listing operations of one namespace; each raises Refused when a server answers with an error."""

    def __init__(self, keys: Keyspace, reads: Reads) -> None:
        self._keys = keys
        self._reads = reads

    def names(self, prefix: str) -> Plan[list[str]]:
        """Return the names that start with `prefix`, sorted."""
        found = yield from self._scan(self._keys.metas_pattern(prefix))
        return sorted({self._keys.name(key) for key in found})

    def usage(self) -> Plan[dict[str, Usage]]:
        """Return what each profile takes, as the metas say."""
        names = yield from self.names("")
        records = yield from self._reads.records(names)
        accept(records)
        usage: dict[str, Usage] = {}
        for record in records:
            meta = self._reads.meta(record)
            if meta:
                add_usage(usage, meta.note, meta.size_bytes)
        return usage

    def sweep(self) -> Plan[int]:
        """Remove blobs that lost parts, and parts that lost their meta; returns how many such parts there were."""
        names = yield from self.names("")
        yield from self._reads.sizes(names)
        found = sorted({key.decode() for key in (yield from self._scan(self._keys.parts_pattern))})
        limits = yield from each([on_key("PTTL", key) for key in found])
        # Metas are read after the limits: a part without one is committed, so its meta is here or gone for good.
        settled = [key for key, limit in zip(found, limits, strict=True) if limit == -1]
        live = yield from self._live_parts(sorted({self._keys.name(key.encode()) for key in settled}))
        orphans = [key for key in settled if key not in live]
        accept((yield from each([on_key("UNLINK", key) for key in orphans])))
        return len(orphans)

    def ping(self) -> Plan[None]:
        """Ask every node whether it is there."""
        (answers,) = yield [Command(("PING",))]
        accept(reply for _, reply in _by_node(answers))

    def _live_parts(self, names: Sequence[str]) -> Plan[set[str]]:
        records = yield from self._reads.records(names)
        accept(records)
        live: set[str] = set()
        for name, record in zip(names, records, strict=True):
            meta = self._reads.meta(record)
            live.update(self._keys.parts(name, meta) if meta else ())
        return live

    def _scan(self, pattern: str) -> Plan[set[bytes]]:
        found: set[bytes] = set()
        scan = ("MATCH", pattern, "COUNT", _SCANNED_AT_ONCE, "TYPE", "string")
        (answers,) = yield [Command(("SCAN", 0, *scan))]
        waiting = _by_node(answers)
        while waiting:
            accept(reply for _, reply in waiting)
            pages = [(node, *_page(reply)) for node, reply in waiting]
            for _, _, keys in pages:
                found.update(keys)
            unfinished = [(node, cursor) for node, cursor, _ in pages if cursor]
            replies = yield [Command(("SCAN", cursor, *scan), node=node) for node, cursor in unfinished]
            waiting = [(node, reply) for (node, _), reply in zip(unfinished, replies, strict=True)]
        return found


def _by_node(answers: Reply) -> list[tuple[Node, Reply]]:
    return answers if isinstance(answers, list) else []


def _page(reply: Reply) -> tuple[int, list[bytes]]:
    cursor, keys = reply if isinstance(reply, list | tuple) else (0, [])
    return int(cursor), list(keys)
