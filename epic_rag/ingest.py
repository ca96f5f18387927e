"""Documents to stored KV: load -> chunk -> tokenize -> index -> encode -> put. Read this file second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter

from epic_rag.config import NEUTRAL_MARK
from epic_rag.engine import Engine
from epic_rag.errors import ConfigError
from epic_rag.ingestion.indexing import Indexer
from epic_rag.ingestion.missing import count_lost, encode_missing, encode_prefix
from epic_rag.ingestion.options import IngestOptions, Progress
from epic_rag.ingestion.pruning import gone
from epic_rag.ingestion.survey import Survey, chunks_of
from epic_rag.ingestion.workers import Workers
from epic_rag.loading import READERS, STDIN, LoadedDocument, SkippedSource, load_paths
from epic_rag.schema import Change, IngestReport

__all__ = ["IngestOptions", "Progress", "ingest", "ingest_documents"]


def ingest(
    engine: Engine,
    paths: Sequence[Path],
    options: IngestOptions | None = None,
    progress: Progress | None = None,
    *,
    prune_under: Sequence[Path] | None = None,
) -> IngestReport:
    """Ingest files and folders. Interrupted at any instant, the same call goes on where it stopped.

    Args:
        engine: model, store and index.
        paths: files, folders, patterns such as `docs/**/*.md`, and `-` for JSON Lines on standard input.
        options: how; defaults as in `IngestOptions`.
        progress: told how far it is.
        prune_under: where `options.prune` looks for documents that are gone; None: under `paths`.

    Returns:
        What was added, updated, skipped, deleted, encoded and left out.

    Raises:
        ConfigError: pruning was asked for and only standard input is there.
        StoreWriteError: the store cannot be written; what was stored before stays.
        IndexReadOnlyError: the index cannot be written.
    """
    options, report, roots = options or IngestOptions(), IngestReport(), paths if prune_under is None else prune_under
    if options.prune and roots and all(str(path) == STDIN for path in roots):
        raise ConfigError("prune needs a folder or file to look under; what came on standard input is never pruned")
    began = perf_counter()
    with Workers(options.jobs, engine.model.tokenizer, options.chunk_tokens) as workers:
        indexer = _indexer(engine, options, progress, report, from_paths=True)
        loader = load_paths(paths, read=workers.read)
        indexer.run(loader, workers)
        report.ignored = loader.num_ignored
    if paths and not indexer.seen and not report.errors:
        named = ", ".join(map(str, paths))
        report.warnings.append(f"no document found in {named}; read are files named *{', *'.join(sorted(READERS))}")
    if options.prune:
        _prune(indexer, roots)
    _encode(indexer)
    report.seconds = perf_counter() - began
    return report


def ingest_documents(
    engine: Engine,
    documents: Iterable[LoadedDocument | SkippedSource],
    options: IngestOptions | None = None,
    progress: Progress | None = None,
    report: IngestReport | None = None,
) -> IngestReport:
    """Ingest documents that a program hands over; `options.prune` is not looked at, for they have no folder.

    Args:
        engine: model, store and index.
        documents: read one by one; of two with the same source the later one stays.
        options: how; defaults as in `IngestOptions`.
        progress: told how far it is.
        report: counts go on in this one; None: a new one.

    Returns:
        The report.

    Raises:
        StoreWriteError: the store cannot be written; what was stored before stays.
        IndexReadOnlyError: the index cannot be written.
    """
    began, options, report = perf_counter(), options or IngestOptions(), IngestReport() if report is None else report
    with Workers(options.jobs, engine.model.tokenizer, options.chunk_tokens) as workers:
        indexer = _indexer(engine, options, progress, report, from_paths=False)
        indexer.run(documents, workers)
    _encode(indexer)
    report.seconds += perf_counter() - began
    return report


def _indexer(
    engine: Engine, options: IngestOptions, progress: Progress | None, report: IngestReport, *, from_paths: bool
) -> Indexer:
    survey, report.dry_run = None, options.dry_run
    if options.dry_run:
        profile = engine.settled_profile
        report.encoding = options.encoding or (profile.encoding if profile else "")
        keeps_profile = profile is not None and options.encoding in (None, profile.encoding.removesuffix(NEUTRAL_MARK))
        survey = Survey(engine.loader if keeps_profile else None, report)
    return Indexer(engine, options, report, progress or (lambda _step, _done, _total: None), survey, from_paths)


def _prune(indexer: Indexer, roots: Sequence[Path]) -> None:
    """Remove what is gone under the roots, or, in a dry run, say so."""
    for source in gone(indexer.engine.index, roots, indexer.seen, indexer.report):
        indexer.report.deleted += 1
        if indexer.options.dry_run:
            indexer.report.changes.append(Change("delete", source))
        else:
            indexer.engine.index.delete_document(source)


def _encode(indexer: Indexer) -> None:
    """Encode what the store lacks of the documents seen."""
    engine, report, sources = indexer.engine, indexer.report, list(indexer.seen)
    if indexer.survey is not None:
        _finish_dry_run(indexer, indexer.survey)
        return
    if not engine.index.num_passages:  # the first ingest that finds a document chooses the profile
        return
    report.encoding = engine.settle_profile(indexer.options.encoding).encoding
    survey = Survey(engine.loader, report)
    for source in sources:
        survey.add(source, chunks_of(engine, source))
    encode_missing(engine, survey, report, indexer.tell)
    encode_prefix(engine, report)
    count_lost(engine, sources, report)
    engine.search.refresh(lambda done, total: indexer.tell("embed", done, total))


def _finish_dry_run(indexer: Indexer, survey: Survey) -> None:
    """Count the unchanged documents too: the store may have lost some of their chunks."""
    changed = {change.source for change in indexer.report.changes}
    for source in indexer.seen:
        if source not in changed:
            survey.add(source, chunks_of(indexer.engine, source))
    indexer.report.encoded = sum(map(len, survey.missing.values()))
    indexer.report.encoded_tokens = survey.missing_tokens
