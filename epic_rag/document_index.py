"""`EpicIndex`: LangChain's `index()` writes documents into an engine, and what it wrote is found and fetched again."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.indexing.base import DeleteResponse, DocumentIndex, UpsertResponse
from langchain_core.runnables import run_in_executor
from pydantic import ConfigDict, Field, SkipValidation, model_validator

from epic_rag.config import DEFAULT_CHUNK_TOKENS, DEFAULT_K
from epic_rag.engine import Engine
from epic_rag.errors import ConfigError, IngestError
from epic_rag.ingest import IngestOptions, ingest_documents
from epic_rag.loading import LoadedDocument, SkippedSource
from epic_rag.loading.document import EMPTY, SkipSourceError, clean_text, make_document
from epic_rag.retrieve import Retrieved, retrieve
from epic_rag.retrievers.passage import passage_id

_META = "document-"
_MOST_ID_CHARS = 64  # a longer id is a digest, which would only fill the list of sources


class EpicIndex(DocumentIndex):
    """Documents in, passages with stored KV out: a LangChain document index and retriever over an engine.

    A document is cut into passages, indexed, encoded and stored as `ingest` does it. The same content is never encoded
    twice, whatever its id and metadata. `get` gives documents back as they came; metadata is kept as JSON, so that
    tuples come back as lists and keys as strings, and what JSON cannot hold is refused. A `title` in the metadata is
    read by the model as the heading of every passage.

    As a retriever it returns passages, of documents that `ingest` read from files too: their text is what the model
    reads, so that `EpicRAG(retriever=epic_index)` finds its KV in the store. Their metadata is the document's, with
    position, score and `document_id` (the id that `get` and `delete` take), and a source, title and line in any case.

    Deleting takes passages out of the index. Their KV stays in the store, where other documents may share it;
    `epic-rag prune --unused` removes what nobody uses.

    Example:
        ```python
        records = SQLiteRecordManager("handbook", "my-store/records.sqlite")
        records.create_schema()
        epic_index = EpicIndex(engine=open_engine("disk://my-store"))
        index(documents, records, epic_index, cleanup="scoped_full", source_id_key="source", key_encoder="blake2b")
        ```
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    engine: SkipValidation[Engine] = Field(repr=False, exclude=True)
    """Model, store and index of passages."""
    k: int = Field(default=DEFAULT_K, ge=1)
    """Passages to retrieve at most; `invoke(query, k=…)` sets it for one call."""
    where: Mapping[str, str] | None = None
    """Only passages whose fields match, such as `{"source": "*/guides/*"}`; `invoke(query, where=…)` for one call."""
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    """Largest passage, in tokens."""
    encoding: str | None = None
    """As in `IngestOptions`: None stays with the store's own."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse now what could not be ingested with later."""
        self._options()
        return self

    def upsert(self, items: Sequence[Document], /, **kwargs: object) -> UpsertResponse:
        """Add documents, or replace those whose ids are there, and encode what the store lacks.

        Args:
            items: documents; one without an id gets a random one. Of two with one id the later stays.
            kwargs: none is known.

        Returns:
            The ids in the order of `items`; none ever fails without an error.

        Raises:
            ConfigError: an id or metadata that cannot be kept; nothing was written.
            IngestError: a document could not be cut into passages; the others are kept, and `index()` will come back
                to all of this batch.
            StoreWriteError: the store cannot be written; what was stored before stays.
        """
        _refuse(kwargs)
        given = {one.id: one for one in map(_Given.of, items)}
        loaded = {one.id: one.loaded() for one in given.values()}
        for one in given.values():
            self.engine.index.claim_meta(one.name, one.to_json())  # found by a search while the batch is encoded
        try:
            report = ingest_documents(self.engine, loaded.values(), self._options())
        finally:
            for one in given.values():
                self._settle(one, loaded[one.id])
        if report.errors:
            failed = "; ".join(f"{error.source}: {error.reason}" for error in report.errors)
            raise IngestError(f"{len(report.errors)} of {len(given)} documents could not be indexed: {failed}")
        return UpsertResponse(succeeded=list(given), failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: object) -> DeleteResponse:
        """Take documents and their passages out of the index; ids that are not there are passed over.

        What an interrupted `upsert` left of a document goes too.

        Raises:
            ValueError: no ids.
        """
        _refuse(kwargs)
        if ids is None:
            raise ValueError("delete needs the ids of the documents to delete, got None")
        deleted = []
        for one in self._noted(ids):
            self.engine.index.delete_document(one.source)
            self.engine.index.delete_meta(one.name)
            deleted.append(one.id)
        return DeleteResponse(num_deleted=len(deleted), succeeded=deleted, num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: object) -> list[Document]:
        """The documents with these ids, in the order asked; ids that are not there are left out."""
        _refuse(kwargs)
        return [Document(id=one.id, page_content=one.text, metadata=one.metadata) for one in self._found(ids)]

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        where: Mapping[str, str] | None = None,
    ) -> list[Document]:
        """The best passages by falling score, `k` of them or fewer."""
        return self._retrieve(query, k, where)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        where: Mapping[str, str] | None = None,
    ) -> list[Document]:
        """The same from a thread, so that the event loop goes on."""
        return await run_in_executor(None, self._retrieve, query, k, where)

    def _retrieve(self, query: str, k: int | None, where: Mapping[str, str] | None) -> list[Document]:
        wanted = self.k if k is None else k
        if wanted < 1:
            raise ValueError(f"k must be at least 1, got {wanted}")
        found = retrieve(self.engine, query, wanted, self.where if where is None else where)
        return [self._passage(passage) for passage in found]

    def _passage(self, passage: Retrieved) -> Document:
        told = {"source": passage.source, "title": passage.title, "line": passage.line}
        place = {"position": passage.position, "score": passage.score}
        name = passage_id(passage.source, passage.position, passage.text)
        kept = self.engine.index.get_meta(_META + passage.source.rpartition("#")[2])
        if kept is None:  # from a file
            return Document(id=name, page_content=passage.text, metadata=told | place)
        one = _Given.from_json(kept)
        metadata = told | one.metadata | place | {"document_id": one.id}
        return Document(id=name, page_content=passage.text, metadata=metadata)

    def _found(self, ids: Sequence[str]) -> list[_Given]:
        """The documents that are there of these ids, each once."""
        return [one for one in self._noted(ids) if self.engine.index.document(one.source) is not None]

    def _noted(self, ids: Sequence[str]) -> list[_Given]:
        """What is noted of these ids, each once, be the document there or not."""
        kept = map(self.engine.index.get_meta, (_META + _tag(name) for name in dict.fromkeys(ids)))
        return [_Given.from_json(text) for text in kept if text is not None]

    def _settle(self, new: _Given, loaded: LoadedDocument | SkippedSource) -> None:
        """Note a document as it was handed over, once the index has its text; until then the old one stands.

        An id whose metadata names another source than before leaves its old passages behind: they are removed.
        """
        record = self.engine.index.document(new.source)
        if record is None or isinstance(loaded, SkippedSource) or record.digest != loaded.digest:
            return
        kept = self.engine.index.get_meta(new.name)
        if kept is not None and (old := _Given.from_json(kept).source) != new.source:
            self.engine.index.delete_document(old)
        self.engine.index.set_meta(new.name, new.to_json())

    def _options(self) -> IngestOptions:
        return IngestOptions(chunk_tokens=self.chunk_tokens, encoding=self.encoding)


@dataclass(frozen=True, slots=True)
class _Given:
    """A document as it was handed over."""

    id: str
    text: str
    metadata: dict[str, Any]

    @classmethod
    def of(cls, document: Document) -> Self:
        """Check that the index can keep it."""
        name = str(uuid.uuid4()) if document.id is None else document.id
        try:
            kept = json.loads(json.dumps(document.metadata))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"metadata of document '{name}' cannot be kept as JSON: {error}. Give numbers, strings, lists and dicts"
            ) from error
        return cls(name, document.page_content, cast("dict[str, Any]", kept))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps({"id": self.id, "text": self.text, "metadata": self.metadata})

    @property
    def name(self) -> str:
        """Under which the index keeps it."""
        return _META + _tag(self.id)

    @property
    def source(self) -> str:
        """What its passages are called: its own source, or its id, and a tag that no other document has."""
        named = self.metadata.get("source") or (self.id if len(self.id) <= _MOST_ID_CHARS else "document")
        return f"{clean_text(str(named))}#{_tag(self.id)}"

    def loaded(self) -> LoadedDocument | SkippedSource:
        """What `ingest` reads; text of white space alone is a document without passages."""
        title = self.metadata.get("title")
        title = title if isinstance(title, str) else ""
        try:
            return make_document(self.source, title, clean_text(self.text), has_lines=False)
        except SkipSourceError as error:
            if str(error) != EMPTY:
                return SkippedSource(self.source, str(error))
            return LoadedDocument(self.source, "", "", hashlib.sha256(b"").hexdigest(), has_lines=False)


def _tag(document_id: str) -> str:
    """Names a document among all, whatever is in its id."""
    return hashlib.sha256(document_id.encode(errors="surrogatepass")).hexdigest()[:16]


def _refuse(kwargs: Mapping[str, object]) -> None:
    if kwargs:
        raise ConfigError(f"unknown options {', '.join(sorted(kwargs))}: EpicIndex takes none here")
