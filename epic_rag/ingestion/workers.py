"""Reading and cutting of documents, in this process or in several; what comes out does not depend on how many."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from epic_rag.chunking import Chunk, chunk_document
from epic_rag.errors import EpicError
from epic_rag.loading import LoadedDocument, SkippedSource, SourceFile
from epic_rag.model.tokens import TextTokenizer

Given = TypeVar("Given")
Made = TypeVar("Made")

_AHEAD = 4  # tasks a process may be ahead of the first that is waited for: bounds the memory

_tokenizer: TextTokenizer | None = None  # of a worker process, set once when it starts


class WorkerError(EpicError):
    """A process that read or cut documents died."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A document in chunks, or why it could not be cut."""

    document: LoadedDocument
    chunks: tuple[Chunk, ...]
    error: str = ""


class Workers:
    """Reads files and cuts documents, in the order given.

    With one job everything happens here, when it is asked for. With several, processes are started by the first
    document that must be cut and the first file of a format that is slow to read, so that an ingest that finds nothing
    new starts none. Threads would not do: the tokenizer holds Python's lock.
    """

    def __init__(self, jobs: int, tokenizer: TextTokenizer, chunk_tokens: int) -> None:
        self._jobs, self._tokenizer, self._chunk_tokens = jobs, tokenizer, chunk_tokens
        self._pool: ProcessPoolExecutor | None = None

    def read(self, files: Iterable[SourceFile]) -> Iterator[Iterable[LoadedDocument | SkippedSource]]:
        """The documents of each file."""
        return self._in_order(files, SourceFile.read, _read, SourceFile.is_slow)

    def cut(self, documents: Iterable[LoadedDocument]) -> Iterator[Cut]:
        """Each document in chunks."""
        pairs = ((document, self._chunk_tokens) for document in documents)
        return self._in_order(pairs, lambda pair: _cut(*pair, self._tokenizer), _cut_there, lambda _pair: True)

    def close(self) -> None:
        """End the processes; tasks that have not begun are dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_order(
        self,
        items: Iterable[Given],
        here: Callable[[Given], Made],
        there: Callable[[Given], Made],
        is_slow: Callable[[Given], bool],
    ) -> Iterator[Made]:
        """`here(item)` for each item, with `there(item)` in a process for the slow ones when there are several jobs."""
        waiting: deque[Future[Made] | Callable[[], Made]] = deque()
        ahead = _AHEAD * self._jobs if self._jobs > 1 else 0
        for item in items:
            if ahead and is_slow(item):
                waiting.append(self._started().submit(there, item))
            else:
                waiting.append(lambda item=item: here(item))  # type: ignore[misc]
            if len(waiting) > ahead:
                yield _outcome(waiting.popleft())
        while waiting:
            yield _outcome(waiting.popleft())

    def _started(self) -> ProcessPoolExecutor:
        """The pool. Its processes begin with Ctrl-C ignored: this process hears it and ends them."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads in any state
            self._pool = ProcessPoolExecutor(self._jobs, context, initializer=_settle, initargs=(self._tokenizer,))
            if threading.current_thread() is threading.main_thread():
                handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
                try:
                    self._pool.submit(_nothing)  # starts all of them
                finally:
                    signal.signal(signal.SIGINT, handler)
        return self._pool


def _outcome(task: Future[Made] | Callable[[], Made]) -> Made:
    try:
        return task.result() if isinstance(task, Future) else task()
    except BrokenProcessPool as error:
        raise WorkerError(
            "a process that read documents has died, perhaps for want of memory; run again with fewer --jobs"
        ) from error


def _settle(tokenizer: TextTokenizer) -> None:
    """First act of a worker process."""
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _tokenizer = tokenizer


def _nothing() -> None:
    """A task that makes the pool start its processes."""


def _read(file: SourceFile) -> list[LoadedDocument | SkippedSource]:
    return list(file.read())


def _cut_there(order: tuple[LoadedDocument, int]) -> Cut:
    if _tokenizer is None:
        raise RuntimeError("a worker process was given work before its tokenizer")
    return _cut(*order, _tokenizer)


def _cut(document: LoadedDocument, chunk_tokens: int, tokenizer: TextTokenizer) -> Cut:
    try:
        return Cut(document, tuple(chunk_document(document, tokenizer.encode, chunk_tokens)))
    except ValueError as error:  # chunks too small for this document
        return Cut(document, (), str(error))
