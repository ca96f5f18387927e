"""Documents to stored KV: load -> chunk -> tokenize -> index -> encode -> put. Read this file second."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from epic_rag.chunking import chunk_document
from epic_rag.config import DEFAULT_CHUNK_TOKENS
from epic_rag.encoding import check_encoding
from epic_rag.engine import Engine
from epic_rag.errors import ConfigError
from epic_rag.load import Loader
from epic_rag.loading import READERS, LoadedDocument, SkippedSource, load_paths
from epic_rag.loading.document import EMPTY
from epic_rag.retrievers.passage import Passage
from epic_rag.schema import IngestReport, SourceError

Progress = Callable[[str, int, int], None]
"""Called with the step's name (`read` or `encode`), how much is done and how much there is (0: unknown)."""


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How documents are ingested.

    Attributes:
        chunk_tokens: largest chunk.
        encoding: `none`, `sinks`, `prompt` or `warm:N`; None: the store's own, `warm:600` at the first ingest.
        prune: remove documents of the given folders that are no longer there.
    """

    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    encoding: str | None = None
    prune: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: says which cannot be.
        """
        if not 32 <= self.chunk_tokens <= 4096:
            raise ConfigError(f"chunk tokens must be between 32 and 4096, got {self.chunk_tokens}")
        if self.encoding is not None:
            check_encoding(self.encoding)


def ingest(
    engine: Engine, paths: Sequence[Path], options: IngestOptions | None = None, progress: Progress | None = None
) -> IngestReport:
    """Ingest files and folders. Interrupted at any instant, the same call goes on where it stopped.

    Args:
        engine: model, store and index.
        paths: files and folders.
        options: how; defaults as in `IngestOptions`.
        progress: told how far it is.

    Returns:
        What was added, updated, skipped, deleted, encoded and left out.

    Raises:
        StoreWriteError: the store cannot be written; what was stored before stays.
        IndexReadOnlyError: the index cannot be written.
    """
    began, options, report = perf_counter(), options or IngestOptions(), IngestReport()
    tell = progress or (lambda _step, _done, _total: None)

    seen: list[str] = []
    for document in _documents(paths, report):
        try:
            _index(engine, document, options, report)
        except ValueError as error:  # chunks too small for this document
            report.errors.append(SourceError(document.source, str(error)))
            continue
        seen.append(document.source)
        tell("read", len(seen), 0)
    if not seen and not report.errors:
        named = ", ".join(map(str, paths)) or "no path"
        report.warnings.append(f"no document found in {named}; read are files named *{', *'.join(sorted(READERS))}")
    if options.prune:
        _prune(engine, paths, set(seen), report)

    if engine.index.num_passages:  # else the first ingest that finds a document chooses the profile
        report.encoding = engine.settle_profile(options.encoding).encoding
        _encode_missing(engine, seen, report, tell)
        _encode_prefix(engine, report)
        _count_lost(engine, seen, report)
        engine.lexical.refresh()
    report.seconds = perf_counter() - began
    return report


def _documents(paths: Sequence[Path], report: IngestReport) -> Iterator[LoadedDocument]:
    """Documents that could be read; the others are listed in the report."""
    for item in load_paths(paths):
        if isinstance(item, SkippedSource):
            report.errors.append(SourceError(item.source, item.reason))
        else:
            yield item


def _index(engine: Engine, document: LoadedDocument, options: IngestOptions, report: IngestReport) -> None:
    """Cut a new or changed document into passages and put them into the index."""
    chunking = json.dumps({"chunk_tokens": options.chunk_tokens})
    known = engine.index.document(document.source)
    if known is not None and (known.digest, known.options) == (document.digest, chunking):
        report.skipped += 1
        return
    tokenizer = engine.model.tokenizer
    passages = [
        Passage.create(
            source=document.source,
            position=chunk.position,
            title=chunk.title,
            text=chunk.text,
            token_ids=chunk.token_ids,
            start_char=chunk.start_char,
            line=chunk.line,
        )
        for chunk in chunk_document(document, tokenizer.encode, options.chunk_tokens)
    ]
    engine.index.put_document(document.source, document.digest, tokenizer.digest, chunking, passages)
    if known is None:
        report.added += 1
    else:
        report.updated += 1


def _prune(engine: Engine, paths: Sequence[Path], seen: set[str], report: IngestReport) -> None:
    """Remove indexed documents under one of the paths that are gone: the file, a record of it, or all its text."""
    roots = [path.resolve() for path in paths]
    emptied = {error.source for error in report.errors if error.reason == EMPTY}
    read_files = {_file(source) for source in seen}
    for source in list(engine.index.sources()):
        file = _file(source)
        if source in seen or not any(file.resolve().is_relative_to(root) for root in roots):
            continue
        record_is_gone = str(file) != source and file in read_files
        if not file.exists() or record_is_gone or source in emptied:
            engine.index.delete_document(source)
            report.deleted += 1


def _file(source: str) -> Path:
    """The file of a source; a record is named `file#record`, and `#` may stand in either part."""
    name = source
    while "#" in name and not Path(name).exists():
        name = name.rpartition("#")[0]
    return Path(name)


def _encode_missing(engine: Engine, sources: Sequence[str], report: IngestReport, tell: Progress) -> None:
    """Encode every chunk of these documents that the store does not hold."""
    loader = engine.loader
    total = sum(record.num_passages for record in map(engine.index.document, sources) if record)
    for source in sources:
        chunks = _chunks(engine, source)
        for token_ids, is_stored in zip(chunks, loader.are_stored(chunks), strict=True):
            report.chunks += 1
            if is_stored:
                report.reused += 1
            else:
                report.bytes += _encode(loader, token_ids)
                report.encoded += 1
            tell("encode", report.chunks, total)


def _encode_prefix(engine: Engine, report: IngestReport) -> None:
    """Store the prompt's prefix, so that the first question finds it; it is not counted as a chunk."""
    prefix, loader = engine.frame.prefix_ids, engine.prefix_loader
    if prefix and not loader.are_stored([prefix])[0]:
        report.bytes += _encode(loader, prefix)


def _count_lost(engine: Engine, sources: Sequence[str], report: IngestReport) -> None:
    """Warn when chunks have given way to others by now: questions about them will encode them again."""
    if not report.encoded:
        return
    lost = 0
    for source in sources:
        lost += engine.loader.are_stored(_chunks(engine, source)).count(False)
    if lost:
        report.warnings.append(f"{lost} of {report.chunks} chunks gave way to others in the store: raise its budget")


def _chunks(engine: Engine, source: str) -> list[tuple[int, ...]]:
    """The token ids of a document's passages."""
    return [engine.token_ids(passage) for passage in engine.index.document_passages(source)]


def _encode(loader: Loader, token_ids: Sequence[int]) -> int:
    """Encode and store a chunk; returns the bytes that were written. An ingest that cannot store has failed."""
    encoded = loader.encode(token_ids)
    if encoded.error is not None:
        raise encoded.error
    return encoded.stored_bytes
