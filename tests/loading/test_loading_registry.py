from pathlib import Path

import pytest

from epic_rag.loading.registry import READERS, SLOW_SUFFIXES, reader_for


def test_every_promised_suffix_has_a_reader():
    texts = {".txt", ".md", ".markdown", ".rst", ".html", ".htm", ".json", ".jsonl"}
    assert set(READERS) == texts | {".pdf", ".docx", ".pptx"}
    assert set(READERS) - texts == SLOW_SUFFIXES


@pytest.mark.parametrize(("name", "suffix"), [("A.TXT", ".txt"), ("a.tar.md", ".md"), ("a.py", None), ("txt", None)])
def test_the_suffix_decides_in_any_case(name, suffix):
    assert reader_for(Path(name)) is READERS.get(suffix)
