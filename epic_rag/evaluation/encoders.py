"""KV of the chunks of many prompts under many encodings, the least recently used given up first."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from epic_rag.encode import Encoder
from epic_rag.encoding import exact_profile, make_profile, split_encoding
from epic_rag.errors import ConfigError
from epic_rag.kvstore.codecs import find_codec
from epic_rag.kvstore.profile import EncodingProfile
from epic_rag.kvstore.store import KVStore
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.load import Loader
from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt, PromptFrame

LIMIT_BYTES = 4 * 2**30
EXACT = "(prefix)"
"""The encoding of the prompt's own prefix: nothing stands in front of it."""


class ChunkEncoder(Protocol):
    """Encodes a chunk; what a caller brings along to have an encoding of its own measured."""

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """What chunks are encoded behind: a chunk right behind just that is exact."""

    def encode(self, token_ids: Sequence[int]) -> ChunkKV:
        """Keys before RoPE and values of a chunk, `[L, H, T, D]` each, on the CPU."""


@runtime_checkable
class AnchoringEncoder(Protocol):
    """An encoder of chunks that begin with anchors: token ids that a full prefill does not see."""

    @property
    def anchor_ids(self) -> tuple[int, ...]:
        """In front of every chunk, as part of it: `encode` is given them with the chunk's own."""


@dataclass(frozen=True, slots=True)
class _Source:
    """One encoding: how a chunk is encoded, behind what, and with what in front of it."""

    prefix_ids: tuple[int, ...]
    encode: Callable[[Sequence[int]], ChunkKV]
    anchor_ids: tuple[int, ...] = ()


class ChunkLibrary:
    """Chunks by encoding, codec and tokens, encoded or loaded when they are first asked for.

    With a store they pass through it, its codec included, and a later run finds them there.
    """

    def __init__(
        self,
        model: LanguageModel,
        frame: PromptFrame,
        corpus: Iterable[str],
        *,
        store: KVStore | None = None,
        statistics: bool = False,
        extra: Mapping[str, ChunkEncoder] | None = None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        """Make a library; nothing is computed yet.

        Args:
            model: the language model.
            frame: what stands around the passages.
            corpus: texts that lend warm prefixes.
            store: keeps the chunks of the project's own encodings; not closed here.
            statistics: measure what attention the chunks' tokens receive.
            extra: encodings of the caller's own, by name; they never reach the store.
            limit_bytes: KV kept in memory, of all encodings together.
        """
        self._model = model
        self._frame = frame
        self._corpus = corpus
        self._store = store
        self._statistics = statistics
        self._extra = dict(extra or {})
        self._limit_bytes = limit_bytes
        self._lent: list[tuple[int, ...]] | None = None
        self._sources: dict[str, _Source] = {}
        self._chunks: OrderedDict[tuple[str, str, tuple[int, ...]], ChunkKV] = OrderedDict()
        self.num_bytes = 0

    def prefix_ids(self, encoding: str) -> tuple[int, ...]:
        """What a prompt's first chunk is encoded behind."""
        return self._source(split_encoding(encoding)[0]).prefix_ids

    def digest(self, encoding: str) -> str:
        """12 hex digits that change with the compile prefix and the anchors."""
        sources = [self._source(part) for part in dict.fromkeys(split_encoding(encoding))]
        said = [(source.prefix_ids, source.anchor_ids) for source in sources]
        return hashlib.sha256(repr(said[0] if len(said) == 1 else said).encode()).hexdigest()[:12]

    def prompt(self, encoding: str, prompt: Prompt) -> Prompt:
        """The prompt as this encoding has it: with its anchors in front of every chunk."""
        anchors = self._source(split_encoding(encoding)[1]).anchor_ids
        return replace(prompt, chunk_ids=tuple((*anchors, *chunk) for chunk in prompt.chunk_ids)) if anchors else prompt

    def stored(self, encoding: str, prompt: Prompt, codec: str = "") -> list[ChunkKV]:
        """KV of the prompt's prefix, where it has one, and of its chunks, in order."""
        beginning = [self._chunk(EXACT, codec, prompt.prefix_ids)] if prompt.prefix_ids else []
        first, other = split_encoding(encoding)
        chunks = (self._chunk(other if i else first, codec, ids) for i, ids in enumerate(prompt.chunk_ids))
        return [*beginning, *chunks]

    def _chunk(self, encoding: str, codec: str, token_ids: tuple[int, ...]) -> ChunkKV:
        place = encoding, codec, token_ids
        kv = self._chunks.pop(place, None)
        if kv is None:
            plain = self._chunk(encoding, "", token_ids) if codec else self._source(encoding).encode(token_ids)
            kv = _coded(plain, codec) if codec else plain
            self.num_bytes += kv.num_bytes
        self._chunks[place] = kv
        while self.num_bytes > self._limit_bytes and self._chunks:
            _, gone = self._chunks.popitem(last=False)
            self.num_bytes -= gone.num_bytes
        return kv

    def _source(self, encoding: str) -> _Source:
        if encoding not in self._sources:
            self._sources[encoding] = self._make_source(encoding)
        return self._sources[encoding]

    def _make_source(self, encoding: str) -> _Source:
        if encoding in self._extra:
            extra = self._extra[encoding]
            anchors = extra.anchor_ids if isinstance(extra, AnchoringEncoder) else ()
            return _Source(tuple(extra.prefix_ids), extra.encode, tuple(anchors))
        profile = exact_profile(self._model) if encoding == EXACT else self._profile(encoding)
        encoder = Encoder(self._model, profile.prefix_ids, statistics=self._statistics)
        if self._store is None:
            return _Source(profile.prefix_ids, encoder.encode)
        return _Source(profile.prefix_ids, StoredEncoder(self._store, profile, encoder, self._statistics).encode)

    def _profile(self, encoding: str) -> EncodingProfile:
        if self._lent is None:
            self._lent = [tuple(self._model.tokenizer.encode(text)) for text in self._corpus]
        return make_profile(self._model, self._frame, encoding, self._lent)


class StoredEncoder:
    """Chunks of one encoding out of a store, which are encoded and stored where it lacks them."""

    def __init__(self, store: KVStore, profile: EncodingProfile, encoder: Encoder, statistics: bool) -> None:
        self._loader = Loader(store, profile, encoder)
        self._statistics = statistics
        store.put_profile(profile)

    def encode(self, token_ids: Sequence[int]) -> ChunkKV:
        """The chunk's KV as the store gives it back.

        Raises:
            StoreError: the store does not take it.
            ConfigError: statistics are wanted, and the stored chunk has none; or what was stored is not there.
        """
        key, store = self._loader.key(token_ids), self._loader.store
        hit = store.get(key, token_ids)
        if hit is None:
            encoded = self._loader.encode(token_ids)
            if encoded.error is not None:
                raise encoded.error
            hit = store.get(key, token_ids)
        if hit is None:
            raise ConfigError("the store gave up a chunk at once: give it a larger budget, or measure without --store")
        if self._statistics and hit.kv.stats is None:
            raise ConfigError(
                "the store's chunks hold no attention statistics, which a seeded policy begins with: measure into "
                "another store, or without --store"
            )
        return hit.kv


def _coded(kv: ChunkKV, codec: str) -> ChunkKV:
    """The KV as it comes back from a store of that codec."""
    coder = find_codec(codec)
    keys, values = torch.empty_like(kv.keys), torch.empty_like(kv.values)
    for layer in range(kv.keys.shape[0]):
        parts = coder.encode(kv.keys[layer], kv.values[layer])
        coder.decode(parts, keys[layer], values[layer])
    return replace(kv, keys=keys, values=values)
