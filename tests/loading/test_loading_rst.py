import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.loading.rst import _headings, load_rst

TEXT = """.. _label:

**********
 Overlined
**********

:mod:`!json` --- Encoder and ``decoder``
========================================

Text that is long enough
=== not an underline

Sub |x| \\*
----------

::

    Indented
    --------

A paragraph
goes on
-------

=====  =====
a      b
=====  =====

日本語
======

:class:`Long name <target>` again
---------------------------------
"""


def load(tmp_path, text):
    (tmp_path / "file.rst").write_text(text, encoding="utf-8")
    return next(load_rst(tmp_path / "file.rst", "file.rst"))


def test_titles_rank_by_first_use(tmp_path):
    document = load(tmp_path, TEXT)
    found = [(section.path, document.text[section.start_char :].split("\n")[0]) for section in document.sections]
    assert found == [
        (("Overlined",), "**********"),
        (("Overlined", "json --- Encoder and decoder"), ":mod:`!json` --- Encoder and ``decoder``"),
        (("Overlined", "json --- Encoder and decoder", "Sub x *"), "Sub |x| \\*"),
        (("Overlined", "日本語"), "日本語"),
        (("Overlined", "日本語", "Long name again"), ":class:`Long name <target>` again"),
    ]
    assert document.title == "Overlined"
    assert document.text == TEXT


@pytest.mark.parametrize(("text", "title"), [("Short\n==\n", ""), ("Fine\n====\n", "Fine"), ("text only", "")])
def test_an_underline_must_be_long_enough(tmp_path, text, title):
    assert load(tmp_path, text).title == title


@given(st.text(alphabet=" \n=-*ab", max_size=200))
def test_any_text_gives_headings_in_order_at_the_beginning_of_lines(text):
    starts = [heading.start_char for heading in _headings(text)]
    assert starts == sorted(set(starts))
    assert all(start == 0 or text[start - 1] == "\n" for start in starts)
