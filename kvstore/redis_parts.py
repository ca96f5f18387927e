"""How a blob lies in Redis: its parts, and the small meta record that makes them a blob.

{epic:<namespace>:<name>}                   meta: JSON, written last
{epic:<namespace>:<name>}:<generation>:<i>  part i: its bytes

What stands in braces decides the slot, so all keys of a blob live on one node of a cluster. Each put has a generation
of its own: parts of two puts never mix, and a reader of the old meta never gets new parts.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from epic_rag.kvstore.tierstats import BlobNote

LAYOUT_VERSION = 1
MAX_BLOB_BYTES = 16 << 30
MIN_PART_BYTES, MAX_PART_BYTES = 1 << 16, 4 << 20


@dataclass(frozen=True, slots=True)
class Meta:
    """What the meta record of a blob says.

    Attributes:
        generation: names the put; part of the names of its parts.
        size_bytes: the blob's size.
        part_bytes: size of each part but the last.
        note: for statistics.
    """

    generation: str
    size_bytes: int
    part_bytes: int
    note: BlobNote

    @property
    def num_parts(self) -> int:
        """How many parts there are; none for an empty blob."""
        return -(-self.size_bytes // self.part_bytes)

    def encode(self) -> bytes:
        """Return the record."""
        note = self.note
        fields = [LAYOUT_VERSION, self.generation, self.size_bytes, self.part_bytes]
        return json.dumps([*fields, note.profile, note.tokens, note.cost_seconds], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: bytes) -> "Meta | None":
        """Read a record; None for one of another version, or that this program never wrote."""
        try:
            version, generation, size_bytes, part_bytes, profile, tokens, cost_seconds = json.loads(record)
        except (ValueError, TypeError, RecursionError):
            return None
        numbers = (size_bytes, part_bytes, tokens)
        texts = (generation, profile)
        right = all(type(n) is int and n >= 0 for n in numbers) and all(type(t) is str for t in texts)
        if version != LAYOUT_VERSION or not right:
            return None
        # Who may write into the server may write any number here; it must not become an allocation of that size.
        if size_bytes > MAX_BLOB_BYTES or not MIN_PART_BYTES <= part_bytes <= MAX_PART_BYTES:
            return None
        if type(cost_seconds) not in (int, float) or not isfinite(cost_seconds):
            return None
        return cls(generation, size_bytes, part_bytes, BlobNote(profile, tokens, cost_seconds))


class Stretch(NamedTuple):
    """Bytes of one part: `length` of them from `start`."""

    part: int
    start: int
    length: int


def new_meta(size_bytes: int, part_bytes: int, note: BlobNote) -> Meta:
    """Return the meta of a new put."""
    return Meta(secrets.token_hex(8), size_bytes, part_bytes, note)


def stretches(meta: Meta, start: int, length: int) -> Iterator[Stretch]:
    """Yield what must be read of each part for `length` bytes of the blob from `start`, both within the blob."""
    end, position = start + length, start
    while position < end:
        index, inside = divmod(position, meta.part_bytes)
        take = min(meta.part_bytes - inside, end - position)
        yield Stretch(index, inside, take)
        position += take


def cut(buffers: Sequence[memoryview], part_bytes: int) -> Iterator[bytes]:
    """Yield the buffers' bytes, one after the other, in parts; each is copied once."""
    held: list[memoryview] = []
    room = part_bytes
    for buffer in buffers:
        rest = buffer
        while len(rest):
            held.append(rest[:room])
            rest = rest[room:]
            room -= len(held[-1])
            if not room:
                yield b"".join(held)
                held, room = [], part_bytes
    if held:
        yield b"".join(held)


class Keyspace:
    """The keys of the blobs of one namespace."""

    def __init__(self, namespace: str) -> None:
        self._start = f"{{epic:{namespace}:"

    def meta(self, name: str) -> str:
        """Return the key of a blob's meta record."""
        return f"{self._start}{name}}}"

    def part(self, name: str, generation: str, index: int) -> str:
        """Return the key of a part."""
        return f"{self._start}{name}}}:{generation}:{index}"

    def parts(self, name: str, meta: Meta) -> list[str]:
        """Return the keys of all parts of a blob."""
        return [self.part(name, meta.generation, index) for index in range(meta.num_parts)]

    def metas_pattern(self, prefix: str) -> str:
        """Return what SCAN matches to find the metas of the blobs whose name starts with `prefix`."""
        return f"{self._start}{prefix}*}}"

    @property
    def parts_pattern(self) -> str:
        """What SCAN matches to find the parts of all blobs."""
        return f"{self._start}*}}:*"

    def name(self, key: bytes) -> str:
        """Return the name of the blob that a key belongs to."""
        return key.decode().removeprefix(self._start).partition("}")[0]
