import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.loading.document import SkipSourceError, clean_text, make_document


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\n", "a\nb\nc\n"),
        ("\ufeffa\ufeff", "a\ufeff"),
        ("nul\0", "nul\ufffd"),
        ("lone \ud800 and \udfff", "lone \ufffd and \ufffd"),
        ("pair \ud83d\ude00 joined", "pair 😀 joined"),
        ("ünchanged 日本 😀", "ünchanged 日本 😀"),
    ],
)
def test_clean_text(text, expected):
    assert clean_text(text) == expected


@given(st.text(st.characters()))
def test_clean_text_can_always_be_stored_and_is_clean_at_once(text):
    clean = clean_text(text)
    assert clean.encode().decode() == clean
    assert "\0" not in clean
    assert "\r" not in clean


@pytest.mark.parametrize("text", ["", " \n\t\u3000"])
def test_white_space_is_empty(text):
    with pytest.raises(SkipSourceError, match="empty"):
        make_document("a", "A", text)


def test_the_digest_is_over_title_and_text():
    documents = [make_document("a", title, text) for title, text in [("A", "bc"), ("Ab", "c"), ("A", "bd")]]
    assert len({document.digest for document in documents}) == 3
    assert make_document("other", "A", "bc", has_lines=False).digest == documents[0].digest
    fields = [len(field).to_bytes(8, "little") + field for field in (b"A", b"bc")]
    assert documents[0].digest == hashlib.sha256(b"".join(fields)).hexdigest()


def test_a_title_is_one_clean_line():
    assert make_document("a", " two\n lines\ud800 ", "text").title == "two lines\ufffd"
