"""Stage index: new and changed documents become passages; unchanged ones are only counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from epic_rag.engine import Engine
from epic_rag.ingestion.options import IngestOptions, Progress
from epic_rag.ingestion.survey import Survey
from epic_rag.ingestion.workers import Cut, Workers
from epic_rag.loading import STDIN, LoadedDocument, SkippedSource
from epic_rag.retrievers.passage import Passage
from epic_rag.schema import Change, IngestReport, SourceError

_ORIGIN = "origin"
_HANDED_OVER = "documents"


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
        return record.digest if record.options == self._how(document.source) else ""

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
        digest, how = self.engine.model.tokenizer.digest, self._how(document.source)
        self.engine.index.put_document(document.source, document.digest, digest, how, passages)

    def _how(self, source: str) -> str:
        """What the index notes beside a document: how it was cut, and that it is no file where it is none."""
        how: dict[str, int | str] = {"chunk_tokens": self.options.chunk_tokens}
        if not self.from_paths or source.startswith(f"{STDIN}#"):
            how[_ORIGIN] = _HANDED_OVER
        return json.dumps(how)


def is_from_path(options: str) -> bool:
    """Whether a document was read from a file, by what the index notes beside it."""
    noted = json.loads(options)
    return not (isinstance(noted, Mapping) and noted.get(_ORIGIN) == _HANDED_OVER)
