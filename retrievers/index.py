"""The persistent index: which documents are known, and the passages they were cut into."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from epic_rag.retrievers.database import Database, Row
from epic_rag.retrievers.passage import Passage
from epic_rag.retrievers.where import Where, condition

FILE_NAME = "index.sqlite"
_PAGE_ROWS = 500  # bounds the memory of a stream

_PassageRow = tuple[str, str, int, str, str, bytes, int, int]
_DocumentRow = tuple[str, str, str, str, int, int]

_SELECT_DOCUMENT = """
SELECT source, digest, tokenizer_digest, options, num_passages, num_tokens FROM documents WHERE source = ?"""
_SELECT_PAGE = """
SELECT id, source, position, title, text, token_ids, start_char, line FROM passages
WHERE (source, position) > (?, ?) ORDER BY source, position LIMIT ?"""
_SELECT_IDS = """
SELECT id, source, position, title, text, token_ids, start_char, line FROM passages
WHERE id IN (SELECT value FROM json_each(?))"""
_SELECT_SOURCE = """
SELECT id, source, position, title, text, token_ids, start_char, line FROM passages
WHERE source = ? ORDER BY position"""
_INSERT_PASSAGE = """
INSERT INTO passages (id, source, position, title, text, token_ids, start_char, line) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"""
_ADVANCE = "UPDATE state SET revision = revision + 1, token = lower(hex(randomblob(8)))"


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """What the index knows of one document.

    Attributes:
        source: Name of the document.
        digest: Digest of its content when it was put.
        tokenizer_digest: Digest of the tokenizer its passages were counted with.
        options: Digest or text of the chunking options.
        num_passages: Passages it was cut into.
        num_tokens: Tokens in all of them.
    """

    source: str
    digest: str
    tokenizer_digest: str
    options: str
    num_passages: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class IndexState:
    """Names one content of the index.

    Attributes:
        revision: Changes made to the passages so far.
        token: Random, drawn at every change: tells apart two histories that reached the same revision.
    """

    revision: int
    token: str


class PassageIndex:
    """Documents and passages in one sqlite file; safe for threads, and for processes that share the folder.

    A document is replaced in one transaction, so that readers see its old passages or its new ones, never a mixture,
    and a crash leaves one of the two.

    Args:
        folder: Holds `index.sqlite`, made when absent; None keeps everything in memory. Where the folder may not be
            written the index opens for reading (see `read_only`).
        read_only: Refuse writes even where they would be possible.

    Raises:
        IndexCorruptError: The file is damaged or is no index.
        IndexReadOnlyError: Reading only was asked for and there is no index yet.
        RetrieverError: The index can be neither made nor opened; the message says why.
    """

    def __init__(self, folder: Path | None, *, read_only: bool = False) -> None:
        self.folder = folder
        self._database = Database(None if folder is None else folder / FILE_NAME, read_only=read_only)

    @property
    def read_only(self) -> bool:
        """Whether writes raise `IndexReadOnlyError`."""
        return self._database.read_only

    @property
    def state(self) -> IndexState:
        """Revision and token of the present content, read together."""
        revision, token = self._database.rows("SELECT revision, token FROM state")[0]
        return IndexState(cast("int", revision), cast("str", token))

    @property
    def revision(self) -> int:
        """Changes made to the passages since the index was made."""
        return self.state.revision

    @property
    def num_documents(self) -> int:
        """Documents in the index, those without passages included."""
        return self._number("SELECT count(*) FROM documents")

    @property
    def num_passages(self) -> int:
        """Passages in the index."""
        return self._number("SELECT coalesce(sum(num_passages), 0) FROM documents")

    def document(self, source: str) -> DocumentRecord | None:
        """The record of a document, or None when the index does not have it."""
        rows = self._database.rows(_SELECT_DOCUMENT, (source,))
        return _record(rows[0]) if rows else None

    def sources(self) -> Iterator[str]:
        """Names of all documents, sorted."""
        for row in self._database.rows("SELECT source FROM documents ORDER BY source"):
            yield cast("str", row[0])

    def put_document(
        self, source: str, digest: str, tokenizer_digest: str, options: str, passages: Iterable[Passage]
    ) -> None:
        """Add a document, or replace it with all its passages, in one transaction.

        Args:
            source: Name of the document; every passage must carry it.
            digest: Digest of the content.
            tokenizer_digest: Digest of the tokenizer that made the token ids.
            options: Digest or text of the chunking options.
            passages: Positions 0, 1, 2, … in any order; none at all is allowed.

        Raises:
            IndexReadOnlyError: The index may only be read.
            ValueError: A passage of another source, or positions that are not 0 … n-1.
        """
        new = sorted(passages, key=lambda passage: passage.position)
        _check_passages(source, new)
        num_tokens = sum(len(passage.token_ids) for passage in new)
        record = (source, digest, tokenizer_digest, options, len(new), num_tokens)
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM passages WHERE source = ?", (source,))
            connection.executemany(_INSERT_PASSAGE, map(_row, new))
            connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?)", record)
            connection.execute(_ADVANCE)

    def set_options(self, source: str, options: str) -> None:
        """Change what is noted beside a document that is there; its passages and the revision stay as they are.

        Raises:
            IndexReadOnlyError: The index may only be read.
        """
        with self._database.transaction() as connection:
            connection.execute("UPDATE documents SET options = ? WHERE source = ?", (options, source))

    def delete_document(self, source: str) -> bool:
        """Remove a document and its passages.

        Returns:
            Whether it was there.

        Raises:
            IndexReadOnlyError: The index may only be read.
        """
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM passages WHERE source = ?", (source,))
            found = connection.execute("DELETE FROM documents WHERE source = ?", (source,)).rowcount > 0
            if found:
                connection.execute(_ADVANCE)
        return found

    def passages(self) -> Iterator[Passage]:
        """All passages by source and position, streamed in pages.

        A change made meanwhile may be seen in part; compare `state` before and after where that matters.
        """
        after: tuple[str, int] = ("", -1)
        while True:
            page = [_passage(row) for row in self._database.rows(_SELECT_PAGE, (*after, _PAGE_ROWS))]
            yield from page
            if len(page) < _PAGE_ROWS:
                return
            after = (page[-1].source, page[-1].position)

    def document_passages(self, source: str) -> list[Passage]:
        """The passages of one document in order; none when the index does not have it."""
        return [_passage(row) for row in self._database.rows(_SELECT_SOURCE, (source,))]

    def ids(self, where: Where | None = None) -> list[str]:
        """The ids of the passages that match, by source and position.

        Raises:
            ValueError: The filter names a field that there is not.
        """
        matching, values = condition(where)
        sql = f"SELECT id FROM passages WHERE {matching} ORDER BY source, position"  # noqa: S608 - the values are bound
        rows = self._database.rows(sql, values)
        return [cast("str", row[0]) for row in rows]

    def get(self, ids: Sequence[str]) -> list[Passage]:
        """The passages with these ids, in the order asked; ids that are not there are left out."""
        rows = self._database.rows(_SELECT_IDS, (json.dumps(list(ids)),))
        found = {passage.id: passage for passage in map(_passage, rows)}
        return [found[name] for name in ids if name in found]

    def get_meta(self, name: str) -> str | None:
        """A value kept beside the passages, or None."""
        rows = self._database.rows("SELECT value FROM meta WHERE name = ?", (name,))
        return cast("str", rows[0][0]) if rows else None

    def set_meta(self, name: str, value: str) -> None:
        """Keep a value beside the passages; the revision stays as it is."""
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def delete_meta(self, name: str) -> None:
        """Forget a value kept beside the passages; the revision stays as it is."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM meta WHERE name = ?", (name,))

    def claim_meta(self, name: str, value: str) -> str:
        """Keep `value` unless `name` has one already; of several claimants, in any process, the first wins.

        Returns:
            The value that is kept.
        """
        with self._database.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (name, value))
            rows = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall()
        return cast("str", rows[0][0])

    def close(self) -> None:
        """Close the file; the index is of no use afterwards."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _number(self, sql: str) -> int:
        return cast("int", self._database.rows(sql)[0][0])


def _check_passages(source: str, passages: Sequence[Passage]) -> None:
    for expected, passage in enumerate(passages):
        if passage.source != source:
            raise ValueError(
                f"a passage of {passage.source!r} was put under {source!r}; make passages with their document's source"
            )
        if passage.position != expected:
            raise ValueError(
                f"positions of {source!r} must be 0 to {len(passages) - 1}, each once: "
                f"got {passage.position}, expected {expected}"
            )


def _row(passage: Passage) -> _PassageRow:
    token_ids, place = _packed(passage.token_ids), (passage.start_char, passage.line)
    return passage.id, passage.source, passage.position, passage.title, passage.text, token_ids, *place


def _passage(row: Row) -> Passage:
    name, source, position, title, text, token_ids, start_char, line = cast("_PassageRow", row)
    return Passage(name, source, position, title, text, _unpacked(token_ids), start_char, line)


def _record(row: Row) -> DocumentRecord:
    return DocumentRecord(*cast("_DocumentRow", row))


def _packed(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit integers, so that a folder can move between machines."""
    words = array("i", token_ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _unpacked(data: bytes) -> tuple[int, ...]:
    words = array("i", data)
    if sys.byteorder == "big":
        words.byteswap()
    return tuple(words)
