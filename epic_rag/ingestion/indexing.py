"""Stage index: new and changed documents become passages; unchanged ones are only counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from epic_rag.engine import Engine
from epic_rag.ingestion.options import IngestOptions, Progress
from epic_rag.ingestion.origin import Origin
from epic_rag.ingestion.survey import Survey
from epic_rag.ingestion.workers import Cut, Workers
from epic_rag.loading import STDIN, LoadedDocument, SkippedSource
from epic_rag.retrievers.passage import Passage
from epic_rag.schema import Change, IngestReport, SourceError


@dataclass(slots=True)
class Indexer:
    """One run over documents.

    Attributes:
        engine: model, store and index.
        options: how.
        report: where it is counted.
        tell: progress.
        survey: takes the chunks of a dry run, which no index holds.
        from_paths: whether the documents come from files, so that pruning may look for those.
        seen: digest of each document met, in the order met; one that could not be cut is not among them.
    """

    engine: Engine
    options: IngestOptions
    report: IngestReport
    tell: Progress
    survey: Survey | None = None
    from_paths: bool = False
    seen: dict[str, str] = field(default_factory=dict)

    def run(self, items: Iterable[LoadedDocument | SkippedSource], workers: Workers) -> None:
        """Index what can be read; the rest is listed in the report."""
        for cut in workers.cut(self._changed(items)):
            if cut.error:
                self.report.errors.append(SourceError(cut.document.source, cut.error))
                self.seen.pop(cut.document.source, None)
            elif self.survey is not None:
                self.survey.add(cut.document.source, [chunk.token_ids for chunk in cut.chunks])
            else:
                self._put(cut)

    def _changed(self, items: Iterable[LoadedDocument | SkippedSource]) -> Iterator[LoadedDocument]:
        """New and changed documents; counts each one met."""
        for item in items:
            if isinstance(item, SkippedSource):
                self.report.errors.append(SourceError(item.source, item.reason))
                continue
            known = self._known(item)
            self.seen[item.source] = item.digest
            if known == item.digest:
                self.report.skipped += 1
            else:
                self._count(item.source, is_new=known is None)
                yield item
            self.tell("read", len(self.seen), 0)

    def _known(self, document: LoadedDocument) -> str | None:
        """The digest under which a document is known: empty when it was cut or named in another way, None when new."""
        if document.source in self.seen:
            return self.seen[document.source]
        record = self.engine.index.document(document.source)
        if record is None:
            return None
        noted, origin = Origin.of(record.options), self._origin(document.source)
        if not origin.same_cut(noted):
            return ""
        if origin != noted and record.digest == document.digest:
            self._renew(document.source, origin)
        return record.digest

    def _renew(self, source: str, origin: Origin) -> None:
        """Note that an unchanged document was met from another folder; where nothing may be written, it can wait."""
        if not self.options.dry_run and not self.engine.index.read_only:
            self.engine.index.set_options(source, origin.to_json())

    def _count(self, source: str, *, is_new: bool) -> None:
        if is_new:
            self.report.added += 1
        else:
            self.report.updated += 1
        if self.options.dry_run:
            self.report.changes.append(Change("add" if is_new else "update", source))

    def _put(self, cut: Cut) -> None:
        document = cut.document
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
            for chunk in cut.chunks
        ]
        digest, note = self.engine.model.tokenizer.digest, self._origin(document.source).to_json()
        self.engine.index.put_document(document.source, document.digest, digest, note, passages)

    def _origin(self, source: str) -> Origin:
        handed_over = not self.from_paths or source.startswith(f"{STDIN}#")
        is_relative = not handed_over and not Path(source).is_absolute()
        return Origin(self.options.chunk_tokens, handed_over, str(Path.cwd()) if is_relative else None)
