"""Stage survey: which chunks of the documents does the store lack?"""

from __future__ import annotations

from collections.abc import Sequence

from epic_rag.engine import Engine
from epic_rag.kvstore.keys import ChunkKey
from epic_rag.load import Loader
from epic_rag.schema import IngestReport


class Survey:
    """Counts chunks, and notes which the store lacks; a chunk that stands in two places is lacking once.

    Attributes:
        missing: source -> positions of its chunks that must be encoded.
        missing_tokens: tokens of all these.
    """

    def __init__(self, loader: Loader | None, report: IngestReport) -> None:
        """Begin.

        Args:
            loader: of the encoding profile; None: there is none yet, so that nothing can be stored under it.
            report: where chunks and tokens are counted.
        """
        self._loader, self._report = loader, report
        self._met: set[ChunkKey | tuple[int, ...]] = set()
        self.missing: dict[str, list[int]] = {}
        self.missing_tokens = 0

    def add(self, source: str, chunks: Sequence[tuple[int, ...]]) -> None:
        """Look for the chunks of one document, given by their tokens and in order."""
        keys: Sequence[ChunkKey | tuple[int, ...]] = chunks
        stored = [False] * len(chunks)
        if self._loader is not None:
            keys = named = [self._loader.key(token_ids) for token_ids in chunks]
            stored = self._loader.store.contains(named)
        positions = []
        for position, (key, is_stored) in enumerate(zip(keys, stored, strict=True)):
            if not is_stored and key not in self._met:
                self._met.add(key)
                positions.append(position)
        if positions:
            self.missing[source] = positions
        self._report.chunks += len(chunks)
        self._report.reused += len(chunks) - len(positions)
        self._report.tokens += sum(map(len, chunks))
        self.missing_tokens += sum(len(chunks[position]) for position in positions)


def chunks_of(engine: Engine, source: str) -> list[tuple[int, ...]]:
    """The tokens of a document's passages, in order."""
    return [engine.token_ids(passage) for passage in engine.index.document_passages(source)]
