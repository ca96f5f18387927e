import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from epic_rag.borders import joins
from epic_rag.chunking import CLOSING, MIN_CHUNK_TOKENS, Chunk, chunk_document
from epic_rag.loading import LoadedDocument, Section, SkippedSource, load_paths, make_document

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("EPIC_RAG_TEST_DATA", ROOT / ".." / "shared" / "data"))
PROSE = (
    "The keys of a chunk are stored before their rotation. A question loads them, and turns them to where they stand. "
    "Nothing else is computed again, but for a few tokens at every border.\n\n"
)

Encode = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def encode() -> Encode:
    """A byte-level BPE tokenizer, as today's models have it, trained on a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([PROSE, Path(__file__).read_text(encoding="utf-8")], trainer)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def by_bytes(text: str) -> list[int]:
    return list(text.encode())


def by_words(text: str) -> list[int]:
    """One token a word, whatever its length, as word-level tokenizers count unknown words."""
    return [len(word) for word in text.split()]


def document_of(text: str, title: str = "", sections: tuple[Section, ...] = (), **fields) -> LoadedDocument:
    return make_document("doc", title, text, sections, **fields)


def bodies(document: LoadedDocument, chunks: list[Chunk]) -> list[str]:
    """The body of each chunk, checked against the document's text at the place the chunk names."""
    found = []
    for chunk, following in zip(chunks, [*chunks[1:], None], strict=True):
        end = None if following is None else following.start_char
        body = document.text[chunk.start_char : end].rstrip()
        assert chunk.text.endswith(body + CLOSING)
        assert chunk.text.removesuffix(body + CLOSING).count("\n") <= 1  # at most a heading line in front of it
        found.append(body)
    return found


def check(document: LoadedDocument, encode: Encode, chunk_tokens: int) -> list[Chunk]:
    """All that is promised of any document."""
    chunks = list(chunk_document(document, encode, chunk_tokens))
    assert [chunk.position for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert list(chunk.token_ids) == encode(chunk.text)
        assert len(chunk.token_ids) <= chunk_tokens
        assert chunk.title == document.title
        assert chunk.line == document.text.count("\n", 0, chunk.start_char) + 1
    assert "".join("".join(bodies(document, chunks)).split()) == "".join(document.text.split())
    return chunks


def test_a_short_document_is_one_chunk(encode):
    (chunk,) = check(document_of("Just this.\n", "Title"), encode, 256)
    assert chunk.text == "Title\nJust this.\n\n"
    assert (chunk.start_char, chunk.line) == (0, 1)


def test_without_a_title_there_is_no_heading_line(encode):
    (chunk,) = check(document_of("Just this."), encode, 256)
    assert chunk.text == "Just this.\n\n"


def test_headings_are_carried_and_never_doubled(encode):
    text = f"# Guide\n\n{PROSE}## Install\n\n{PROSE * 3}## Use\n\n{PROSE}"
    sections = (
        Section(("Guide",), 0),
        Section(("Guide", "Install"), text.index("## Install")),
        Section(("Guide", "Use"), text.index("## Use")),
    )
    chunks = check(document_of(text, "Guide", sections), encode, 100)
    firsts = ["\n".join(chunk.text.split("\n")[:2]) for chunk in chunks]
    assert firsts[0] == "# Guide\n"
    assert "Guide\n## Install" in firsts
    assert any(first.startswith("Guide > Install\nThe keys") for first in firsts)
    assert "Guide\n## Use" in firsts


def test_another_title_stands_in_front_of_the_headings(encode):
    text = f"Top\n\n{PROSE * 4}"
    chunks = check(document_of(text, "Site", (Section(("Top",), 0),)), encode, 80)
    assert chunks[0].text.startswith("Site\nTop\n\nThe keys")
    assert chunks[1].text.startswith("Site > Top\n")


def test_cuts_prefer_headings_then_paragraphs_then_sentences(encode):
    paragraphs = check(document_of(PROSE * 12), encode, 120)
    assert all(chunk.text.startswith("The keys") for chunk in paragraphs)
    sentences = check(document_of(PROSE.replace("\n", " ") * 12), encode, 60)
    assert all(chunk.text.rstrip().endswith(".") for chunk in sentences)


def test_no_scrap_is_left(encode):
    for num_sentences in range(1, 60):
        chunks = check(document_of("One more sentence of words. " * num_sentences), encode, 64)
        if len(chunks) > 1:
            assert min(len(chunk.token_ids) for chunk in chunks) >= 16


def test_the_budget_is_used(encode):
    chunks = check(document_of("A paragraph of a few words.\n\n" * 500), encode, 256)
    mean = sum(len(chunk.token_ids) for chunk in chunks) / len(chunks)
    assert mean > 0.9 * 256


def test_indentation_of_a_first_line_is_kept():
    text = "def f():\n" + "    call_something(1)\n" * 40
    chunks = check(document_of(text), by_bytes, 100)
    assert all(chunk.text.startswith("    call") for chunk in chunks[1:])


def test_lines_are_counted_from_one_and_only_where_there_are_lines(encode):
    text = "\n\n\n" + "A line of some words.\n" * 200
    lines = [chunk.line for chunk in check(document_of(text), encode, 64)]
    assert lines[0] == 4
    assert lines == sorted(lines)
    assert {chunk.line for chunk in chunk_document(document_of(text, has_lines=False), encode, 64)} == {0}


def test_dense_text_behind_thin_text_and_the_reverse():
    thin, dense = "word " * 3000, "é" * 3000
    for text in (thin + dense, dense + thin, thin + dense + thin):
        check(document_of(text), by_bytes, 64)
    long_words = ("x" * 10_000 + " ") * 30 + "a b " * 300
    check(document_of(long_words), by_words, 16)


def test_white_space_deserts_are_crossed(encode):
    text = "a" + " " * 20_000 + "b" + "\n" * 20_000 + " " * 5000 + "c \t\n"
    chunks = check(document_of(text, "T"), encode, 32)
    assert "".join(chunk.text.removeprefix("T\n").strip() for chunk in chunks) == "abc"


@pytest.mark.parametrize("cluster", ["👩‍👩‍👧‍👦", "🇩🇪", "नि", "é", "日", "م"])
def test_visible_characters_stay_whole(encode, cluster):
    document = document_of(cluster * 400)
    for chunk in check(document, encode, 64):
        assert not joins(document.text, chunk.start_char)


def test_megabytes_in_one_line_take_few_encodings():
    """Counted in characters handed to the tokenizer, which is where the time goes."""
    spent = 0

    def count(text: str) -> list[int]:
        nonlocal spent
        spent += len(text)
        return [0] * -(-len(text) // 4)

    for text in ("some words in a line " * 50_000, "x" * 1_000_000):
        spent = 0
        assert sum(1 for _ in chunk_document(document_of(text), count, 256)) > 900
        assert spent < 6 * len(text)


def test_a_long_title_is_cut_to_its_share(encode):
    for title in ("word " * 3000, "x" * 10_000, "日本語" * 500):
        chunks = check(document_of(PROSE * 3, title), encode, 64)
        assert all("…\n" in chunk.text for chunk in chunks)
        assert max(len(encode(chunk.text.split("\n")[0])) for chunk in chunks) <= 16


def test_a_deep_path_keeps_its_ends(encode):
    path = ("Title", *(f"a level with many words {level}" for level in range(20)), "Last")
    chunks = check(document_of(PROSE * 2, "Title", (Section(path, 0),)), encode, 64)
    assert chunks[1].text.startswith("Title > Last\n")


@pytest.mark.parametrize("chunk_tokens", [-1, 0, 1, MIN_CHUNK_TOKENS - 1])
def test_absurd_sizes_are_refused_at_once(encode, chunk_tokens):
    with pytest.raises(ValueError, match=f"at least 16, got {chunk_tokens}"):
        chunk_document(document_of("text"), encode, chunk_tokens)


def test_a_character_beyond_the_budget_is_named():
    document = document_of("abc ﷺ def")
    with pytest.raises(ValueError, match=r"too small for the character 'ﷺ' at offset 4 of doc.*raise chunk_tokens"):
        list(chunk_document(document, lambda text: [1] * (len(text) + 40 * text.count("ﷺ")), 16))


def test_a_tokenizer_that_needs_more_for_less_is_obeyed():
    """Cutting inside a word can cost tokens: here every chunk pays twenty for a word cut off."""

    def encode(text: str) -> list[int]:
        return [1] * (len(text) // 2 + (20 if not text.rstrip().endswith("end") else 0))

    check(document_of(("word " * 30 + "end ") * 20), encode, 64)


TEXTS = st.lists(
    st.sampled_from(
        [
            "word",
            "Sentence one. ",
            "日本語。",
            "العربية ",
            "👩‍👩‍👧‍👦",
            "e\u0301",
            "\n",
            "\n\n",
            " ",
            "\t",
            "    code()\n",
            "x" * 60,
            "# Heading\n",
            "🇩🇪",
        ]
    ),
    min_size=1,
    max_size=80,
).map("".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, chunk_tokens=st.integers(24, 90), which=st.integers(0, 2), data=st.data())
def test_nothing_is_lost_and_no_chunk_is_too_long(encode, text, chunk_tokens, which, data):
    if not text.strip():
        return
    starts = [at for at in range(len(text)) if text.startswith("# Heading", at) and (at == 0 or text[at - 1] == "\n")]
    sections = tuple(Section(("Heading",), at) for at in starts)
    title = data.draw(st.sampled_from(["", "T", "A rather long title of a document"]))
    check(document_of(text, title, sections), (encode, by_bytes, by_words)[which], chunk_tokens)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=300), chunk_tokens=st.integers(20, 60))
def test_any_text_at_all(encode, text, chunk_tokens):
    if text.strip():
        check(document_of(text), by_bytes, chunk_tokens)


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "awkward").is_dir(), reason="no evaluation data: set EPIC_RAG_TEST_DATA to its folder")
def test_awkward_documents(encode):
    paths = [DATA / "awkward", DATA / "docs" / "fastapi" / "ja", DATA / "docs" / "python" / "howto"]
    documents = [item for item in load_paths(paths) if not isinstance(item, SkippedSource)]
    assert len(documents) > 50
    for document in documents:
        chunks = list(chunk_document(document, encode))
        assert max(len(chunk.token_ids) for chunk in chunks) <= 256
        assert "".join("".join(bodies(document, chunks)).split()) == "".join(document.text.split())
