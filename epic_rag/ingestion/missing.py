"""Stage encode: prefill and store every chunk that the survey found missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from epic_rag.engine import Engine
from epic_rag.ingestion.options import Progress
from epic_rag.ingestion.survey import Survey, chunks_of
from epic_rag.load import Loader
from epic_rag.schema import IngestReport


def encode_missing(engine: Engine, survey: Survey, report: IngestReport, tell: Progress) -> None:
    """Encode the missing chunks in the order of the documents.

    Raises:
        StoreWriteError: the store cannot be written; what was stored before stays.
    """
    loader, began, done_tokens = engine.loader, perf_counter(), 0
    for token_ids, is_stored in _missing(engine, survey):
        if is_stored:  # by another process, since the survey
            report.reused += 1
        else:
            report.bytes += _encode(loader, token_ids)
            report.encoded += 1
            report.encoded_tokens += len(token_ids)
        done_tokens += len(token_ids)
        tell("encode", done_tokens, survey.missing_tokens)
    if report.encoded_tokens:
        report.tokens_per_second = report.encoded_tokens / (perf_counter() - began)


def encode_prefix(engine: Engine, report: IngestReport) -> None:
    """Store the prompt's prefix, so that the first question finds it; it is not counted as a chunk."""
    prefix, loader = engine.frame.prefix_ids, engine.prefix_loader
    if prefix and not loader.are_stored([prefix])[0]:
        report.bytes += _encode(loader, prefix)


def count_lost(engine: Engine, sources: Sequence[str], report: IngestReport) -> None:
    """Warn when chunks have given way to others by now: questions about them will encode them again."""
    if not report.encoded:
        return
    lost = 0
    for source in sources:
        lost += engine.loader.are_stored(chunks_of(engine, source)).count(False)
    if lost:
        report.warnings.append(f"{lost} of {report.chunks} chunks gave way to others in the store: raise its budget")


def _missing(engine: Engine, survey: Survey) -> Iterator[tuple[tuple[int, ...], bool]]:
    """The chunks to encode, and whether the store has them by now."""
    for source, positions in survey.missing.items():
        chunks = chunks_of(engine, source)  # fewer than surveyed when somebody changed the document meanwhile
        wanted = [chunks[position] for position in positions if position < len(chunks)]
        yield from zip(wanted, engine.loader.are_stored(wanted), strict=True)


def _encode(loader: Loader, token_ids: Sequence[int]) -> int:
    """Encode and store a chunk; returns the bytes that were written. An ingest that cannot store has failed."""
    encoded = loader.encode(token_ids)
    if encoded.error is not None:
        raise encoded.error
    return encoded.stored_bytes
