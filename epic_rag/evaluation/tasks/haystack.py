"""A haystack: the chunks of a corpus, from which each item draws its own to a length, and plants sentences in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from epic_rag.chunking import CLOSING, Chunk, Encode, chunk_document
from epic_rag.errors import ConfigError
from epic_rag.evaluation.tasks.plain_english import plain_documents
from epic_rag.evaluation.tasks.request import Request
from epic_rag.evaluation.tasks.xquad import read_paragraphs
from epic_rag.loading import load_paths
from epic_rag.loading.document import LoadedDocument, make_document

DEFAULT_PIECE_TOKENS = 200
_SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)|(?<=[。！？])")
_IGNORED_SHARE = 0.01  # of a length: what is still missing is not made up below this
_LEAST_CUT_TOKENS = 8
_MOST_MISFITS = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk of the haystack.

    Attributes:
        text: what the model reads, ending with a blank line.
        num_tokens: its length.
        body_start: where its heading line ends, characters.
    """

    text: str
    num_tokens: int
    body_start: int

    def places(self) -> list[int]:
        """Offsets where a sentence can be planted: the ends of the body and of its sentences, characters."""
        stop = len(self.text.rstrip())
        inner = (found.start() for found in _SENTENCE_END.finditer(self.text, self.body_start, stop))
        return sorted({self.body_start, *inner, stop})


@dataclass(frozen=True, slots=True)
class Haystack:
    """All pieces of a corpus.

    Attributes:
        label: the corpus in short; part of the ids of items.
        pieces: distinct, in the order of the corpus.
        encode: the tokenizer they were cut by.
    """

    label: str
    pieces: tuple[Piece, ...]
    encode: Encode

    @property
    def corpus(self) -> tuple[str, ...]:
        """The texts of the pieces."""
        return tuple(piece.text for piece in self.pieces)

    def draw(self, draw: Random, num_tokens: int) -> list[Piece]:
        """Pieces of `num_tokens` tokens in all, each once before any comes again; one of them is cut to fit."""
        drawn: list[Piece] = []
        missing, rest, misfits = num_tokens, list[Piece](), 0
        while missing > num_tokens * _IGNORED_SHARE and misfits < _MOST_MISFITS:
            rest = rest or draw.sample(self.pieces, len(self.pieces))
            piece = rest.pop()
            if piece.num_tokens <= missing:
                drawn.append(piece)
                missing -= piece.num_tokens
            elif (short := self._shortened(piece, missing)) is not None:
                drawn.insert(draw.randint(0, len(drawn)), short)
                break
            else:  # its heading line alone takes too much
                misfits += 1
        return drawn

    def _shortened(self, piece: Piece, num_tokens: int) -> Piece | None:
        """The beginning of a piece, whole words; None where not even a few tokens of its body fit."""
        words = [found.end() for found in re.finditer(r"\S+", piece.text)]
        fitting, too_many = 0, len(words)
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            if len(self.encode(piece.text[: words[middle]] + CLOSING)) <= num_tokens:
                fitting = middle
            else:
                too_many = middle
        text = piece.text[: words[fitting]] + CLOSING
        used = len(self.encode(text))
        body_tokens = used - len(self.encode(text[: piece.body_start]))
        return Piece(text, used, piece.body_start) if used <= num_tokens and body_tokens >= _LEAST_CUT_TOKENS else None


def open_haystack(request: Request) -> Haystack:
    """The haystack of a generated task: `corpus`, else xquad's paragraphs where they are there, else plain English.

    Raises:
        ConfigError: the corpus holds no text, or there is no tokenizer.
    """
    label, documents = _documents(request)
    encode = request.encode
    try:
        pieces = tuple(
            dict.fromkeys(
                _piece(document, chunk)
                for document in documents
                for chunk in chunk_document(document, encode, request.chunk_tokens or DEFAULT_PIECE_TOKENS)
            )
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Haystack(label, pieces, encode)


def _documents(request: Request) -> tuple[str, Sequence[LoadedDocument]]:
    if request.corpus is not None:
        documents = [found for found in load_paths([request.corpus]) if isinstance(found, LoadedDocument)]
        if not documents:
            raise ConfigError(f"the corpus {request.corpus} holds no text that can be read; name a folder of documents")
        digest = hashlib.sha256("".join(document.digest for document in documents).encode())
        return f"corpus-{digest.hexdigest()[:8]}", documents
    if request.data is not None and (request.data / "xquad" / "en_paragraphs.jsonl").is_file():
        return "xquad", list(_articles(request))
    return "plain", list(plain_documents())


def _articles(request: Request) -> Iterator[LoadedDocument]:
    """The paragraphs of one article of xquad as one document, so that pieces can be longer than a paragraph."""
    articles: dict[str, list[str]] = {}
    for passage in read_paragraphs(request).values():
        articles.setdefault(passage.title, []).append(passage.text.strip())
    for title, paragraphs in articles.items():
        yield make_document(title, title, "\n\n".join(paragraphs))


def _piece(document: LoadedDocument, chunk: Chunk) -> Piece:
    first_line = document.text[chunk.start_char :].lstrip().split("\n", 1)[0][:40].rstrip()
    return Piece(chunk.text, len(chunk.token_ids), max(0, chunk.text.find(first_line)))


def plant(pieces: Sequence[Piece], needles: Sequence[tuple[float, str]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Put sentences into pieces.

    Args:
        pieces: the haystack in its order.
        needles: depth (0: before the first sentence, 1: behind the last) and sentence of each; by rising depth.

    Returns:
        The texts, and for every needle the piece it is in.
    """
    total = sum(piece.num_tokens for piece in pieces)
    texts = [piece.text for piece in pieces]
    where = [_place(pieces, depth * total) for depth, _ in needles]
    for (index, offset), (_, sentence) in zip(reversed(where), reversed(needles), strict=True):
        texts[index] = _inserted(texts[index], offset, sentence, at_start=offset == pieces[index].body_start)
    return tuple(texts), tuple(index for index, _ in where)


def _place(pieces: Sequence[Piece], tokens_before: float) -> tuple[int, int]:
    """The piece at a depth, and the sentence end that is nearest to it there, characters."""
    for index, piece in enumerate(pieces):
        if tokens_before <= piece.num_tokens or index == len(pieces) - 1:
            places = piece.places()
            body = places[-1] - places[0]
            wanted = places[0] + body * min(1.0, tokens_before / piece.num_tokens)
            return index, min(places, key=lambda place: abs(place - wanted))
        tokens_before -= piece.num_tokens
    raise ConfigError("a haystack of no pieces has no place for a needle; ask for more tokens")


def _inserted(text: str, offset: int, sentence: str, *, at_start: bool) -> str:
    before, after = text[:offset], text[offset:]
    return f"{before}{sentence} {after}" if at_start else f"{before} {sentence}{after}"


def rising_depths(draw: Random, count: int) -> list[float]:
    """Depths as chance will have them, in order."""
    return sorted(draw.random() for _ in range(count))


def num_tokens_of(encode: Encode, sentences: Iterable[str]) -> int:
    """Tokens that sentences take in the middle of a text."""
    return sum(len(encode(f" {sentence}")) for sentence in sentences)
