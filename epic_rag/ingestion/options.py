"""How documents are ingested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epic_rag.config import DEFAULT_CHUNK_TOKENS
from epic_rag.encoding import check_encoding
from epic_rag.errors import ConfigError

Progress = Callable[[str, int, int], None]
"""Called with the step's name, how much is done and how much there is: `read` in documents (0: how many is unknown),
`encode` in tokens of the chunks that the store lacks, `embed` in passages where they are found by meaning too."""

_MAX_JOBS = 256


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How documents are ingested.

    Attributes:
        chunk_tokens: largest chunk.
        encoding: `none`, `sinks`, `prompt` or `warm:N`; None: the store's own, `warm:600` at the first ingest.
        prune: remove documents of the given folders that are no longer there.
        dry_run: write nothing, neither to the index nor to the store, and report what would be done.
        jobs: processes that read PDF and office files and cut documents into chunks; the result is the same with any
            number. With more than one, a script must start its work under `if __name__ == "__main__":`.
    """

    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    encoding: str | None = None
    prune: bool = False
    dry_run: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: says which cannot be.
        """
        if not 32 <= self.chunk_tokens <= 4096:
            raise ConfigError(f"chunk tokens must be between 32 and 4096, got {self.chunk_tokens}")
        if not 1 <= self.jobs <= _MAX_JOBS:
            raise ConfigError(
                f"jobs must be between 1 and {_MAX_JOBS}, got {self.jobs}; 1 to as many as there are cores"
            )
        if self.encoding is not None:
            check_encoding(self.encoding)
