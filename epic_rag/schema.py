"""What a question and an ingest report back: the shapes behind the CLI's JSON, the chain's output and the server."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Source:
    """One passage the answer was read from.

    Attributes:
        source: document it comes from.
        position: ordinal of the chunk in its document, from 0.
        score: the retriever's score.
        key: key of its KV in the store.
        tier: where its KV came from: `memory`, `disk`, `redis`, or `encoded` when it was computed for this question.
        title: title of the document.
        line: line of the document where it starts, from 1; 0 when unknown.
        text: what the model read.
    """

    source: str
    position: int
    score: float
    key: str
    tier: str
    title: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A retrieved passage that is not in the prompt."""

    source: str
    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds per stage; `ttft_seconds` runs from the question to the first token."""

    retrieve_seconds: float
    load_seconds: float
    link_seconds: float
    evict_seconds: float
    decode_seconds: float
    ttft_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of one question.

    Attributes:
        context: tokens of the whole prompt.
        loaded: of these, tokens whose KV came from the store.
        encoded: tokens that were encoded for this question because the store did not have them.
        recomputed: rows computed while linking, the question included.
        kept: tokens in the KV cache when decoding began.
        answer: tokens of the answer.
        selection: what choosing the tokens to recompute took besides, in rows through all layers.
    """

    context: int
    loaded: int
    encoded: int
    recomputed: int
    kept: int
    answer: int
    selection: float = 0.0


@dataclass(frozen=True, slots=True)
class KVBytes:
    """Bytes of the prompt's KV; 0 where a model cannot be linked.

    Attributes:
        full: of the whole prompt.
        kept: of what stayed when decoding began.
        saved: the difference.
    """

    full: int
    kept: int
    saved: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything about one answered question."""

    question: str
    answer: str
    sources: tuple[Source, ...]
    timings: Timings
    tokens: TokenCounts
    kv_bytes: KVBytes
    selector: str
    policy: str
    model: str
    dropped: tuple[Dropped, ...] = ()
    warnings: tuple[str, ...] = ()
    finish_reason: str = ""
    """`stop`, or `length` when the answer was cut at its longest."""

    def to_dict(self) -> dict[str, object]:
        """Plain data, as the CLI prints it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SourceError:
    """A source that was left out, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a dry run would do to one document: `add`, `update` or `delete`."""

    action: str
    source: str


@dataclass(slots=True)
class IngestReport:
    """What an ingest did, or, after a dry run, would do.

    Attributes:
        added: documents that are new.
        updated: documents whose content changed.
        skipped: documents that are unchanged.
        deleted: documents that are gone from the folders and were removed.
        chunks: chunks of the ingested documents.
        encoded: chunks prefilled now.
        reused: chunks whose KV was in the store already.
        bytes: bytes written to the store.
        seconds: wall time.
        errors: sources left out.
        encoding: the encoding profile's name; empty while none is settled.
        warnings: what went wrong without stopping the ingest.
        tokens: tokens of all these chunks.
        encoded_tokens: tokens of the chunks prefilled now.
        tokens_per_second: of these, over the time from the first chunk's prefill to the last chunk's write.
        ignored: hidden entries and files of unknown suffix that the folders hold, passed over.
        dry_run: whether nothing was written: `encoded` is what would be prefilled at most, `bytes` is 0.
        changes: a dry run's documents, one by one.
    """

    added: int = 0
    updated: int = 0
    skipped: int = 0
    deleted: int = 0
    chunks: int = 0
    encoded: int = 0
    reused: int = 0
    bytes: int = 0
    seconds: float = 0.0
    errors: list[SourceError] = field(default_factory=list)
    encoding: str = ""
    warnings: list[str] = field(default_factory=list)
    tokens: int = 0
    encoded_tokens: int = 0
    tokens_per_second: float = 0.0
    ignored: int = 0
    dry_run: bool = False
    changes: list[Change] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Plain data, as the CLI prints it."""
        return asdict(self)
