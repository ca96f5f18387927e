import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.loading.markdown import _headings, load_markdown

TEXT = """---
title: "Front title"
# not a heading
---
Preamble
# Top { #top }
text
Setext *one*
============
## Sub `code` [link](http://x) ##
```python
# a comment
```
~~~
## fenced
```
~~~
 ### Indented three ###
    # code, not a heading
- list
---
> quote
---
Under
score
-----
#hashtag
#
## <a name="x"></a>Tagged
"""


def load(tmp_path, text, name="file name.md"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return next(load_markdown(tmp_path / name, name))


def test_headings_of_every_kind(tmp_path):
    document = load(tmp_path, TEXT)
    found = [(section.path, document.text[section.start_char :].split("\n")[0]) for section in document.sections]
    assert found == [
        (("Top",), "# Top { #top }"),
        (("Setext one",), "Setext *one*"),
        (("Setext one", "Sub code link"), "## Sub `code` [link](http://x) ##"),
        (("Setext one", "Sub code link", "Indented three"), " ### Indented three ###"),
        (("Setext one", "score"), "score"),
        (("Setext one", "Tagged"), '## <a name="x"></a>Tagged'),
    ]


def test_the_text_is_the_file(tmp_path):
    document = load(tmp_path, TEXT)
    assert document.text == TEXT
    assert document.has_lines


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (TEXT, "Front title"),
        ("---\nother: 1\n---\n# One\n", "One"),
        ("text\n## Two\n# One\n", "One"),
        ("no heading", ""),
        ("---\nnever closed\n# One\n", "One"),
        ("# 日本語 { #ja }\n", "日本語"),
    ],
)
def test_the_title(tmp_path, text, title):
    assert load(tmp_path, text).title == title


@given(st.text(alphabet=" \n#`~-=>*ab\t", max_size=200))
def test_any_text_gives_headings_in_order_at_the_beginning_of_lines(text):
    starts = [heading.start_char for heading in _headings(text, 0)]
    assert starts == sorted(set(starts))
    assert all(start == 0 or text[start - 1] == "\n" for start in starts)


@pytest.mark.parametrize("line", ["# x" + " " * 10**6 + "y", "# " + "[" * 10**6, "[" * 10**6 + "\n==="])
def test_a_heading_of_any_length_takes_linear_time(line):
    """Uncut, these would take hours."""
    (heading,) = _headings(line, 0)
    assert 0 < len(heading.text) <= 1000
