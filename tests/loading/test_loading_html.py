import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.loading import LoadedDocument, load_paths
from epic_rag.loading.document import SkipSourceError
from epic_rag.loading.html import _Page, load_html

PAGE = """<!doctype html><html><head><title> My &amp;
 page </title><style>p { color: red }</style><script>var a = "<p>no</p>";</script>
<body><nav><ul><li>menu<nav>inner</nav></ul></nav>
<h1>Top <em>one</em></h1><p>Hello <b>bold</b>,
 world&nbsp;&#233;<br>next</p><ul><li>one<li>two</ul><pre>
 code
   more</pre><table><tr><th>A<th>B<tr><td>1<td>2</table>
<h2>Never closed<p>text<!-- comment --><h3></h3><svg><title>icon</title></svg>
<h2 id=x>Last</h2>end</body></html>"""


def load(tmp_path, markup):
    data = markup if isinstance(markup, bytes) else markup.encode()
    (tmp_path / "page.html").write_bytes(data)
    return next(load_html(tmp_path / "page.html", "page.html"))


def test_a_page_reads_as_in_a_browser(tmp_path):
    document = load(tmp_path, PAGE)
    assert document.title == "My & page"
    assert document.text == (
        "Top one\n\nHello bold, world\u00a0é\nnext\n\none\ntwo\n\n\n code\n   more\n\nA\tB\n1\t2\n\n"
        "Never closed\n\ntext\n\nLast\n\nend"
    )
    assert not document.has_lines


def test_sections_stand_where_their_words_stand(tmp_path):
    document = load(tmp_path, PAGE)
    found = [(section.path, document.text[section.start_char :][:4]) for section in document.sections]
    assert found == [(("Top one",), "Top "), (("Top one", "Never closed"), "Neve"), (("Top one", "Last"), "Last")]


@pytest.mark.parametrize(
    ("markup", "title"),
    [("<h2>b</h2><h1>a</h1>", "a"), ("<p>text", ""), ("<title></title>text", "")],
)
def test_the_title_falls_back_to_the_heading_and_else_is_empty(tmp_path, markup, title):
    assert load(tmp_path, markup).title == title


def test_a_body_inside_an_unclosed_head_is_kept(tmp_path):
    assert load(tmp_path, "<html><head><meta charset=utf-8><body>words").text == "words"


def test_the_encoding_of_old_pages(tmp_path):
    markup = "<meta charset=windows-1251><p>Привет, мир. Это просто текст на русском языке.</p>"
    assert load(tmp_path, markup.encode("cp1251")).text == "Привет, мир. Это просто текст на русском языке."


@pytest.mark.parametrize("markup", ["", "<p> <br>", "<script>only()</script>", "<!-- nothing -->"])
def test_a_page_without_words_is_empty(tmp_path, markup):
    with pytest.raises(SkipSourceError, match="empty"):
        load(tmp_path, markup)


@pytest.mark.parametrize(
    "markup", ["<![if x", "<!DOCTYPE [<!x", "<![CDATA[a]]>b<p>", "</p></h1></pre>x", "<p <b>x", f"&#{'9' * 5000};"]
)
def test_broken_markup_never_escapes(tmp_path, markup):
    (tmp_path / "page.html").write_text(f"before {markup}")
    (found,) = load_paths([tmp_path])
    if isinstance(found, LoadedDocument):
        assert found.text.startswith("before")
    else:
        assert found.reason.startswith("broken HTML")


def test_any_nesting_takes_linear_time(tmp_path):
    """A tree of these would take minutes, or more stack than there is."""
    assert load(tmp_path, "<div>" * 50_000 + "deep" + "</div>" * 50_000).text == "deep"
    assert load(tmp_path, "<p>some <i>words</i> " * 50_000).text.count("words") == 50_000


@given(
    st.lists(
        st.sampled_from(
            ["<p>", "</p>", "<h1>", "</h1>", "<pre>", "</pre>", " ", "a", "\r\n", "&#13;", "<nav>", "</nav>"]
        )
    )
)
def test_headings_always_point_at_their_words(parts):
    page = _Page()
    page.feed("".join(parts))
    page.close()
    for heading in page.headings:
        assert "".join(page.text[heading.start_char :].split()).startswith("".join(heading.text.split()))
