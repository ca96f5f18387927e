from fnmatch import fnmatchcase

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epic_rag.retrievers import LexicalIndex, PassageIndex
from epic_rag.retrievers.where import condition

SOURCES = ["docs/a.md", "docs/sub/b.md", "Docs/c.md", "notes/[1].txt", "x.jsonl#1", "x.jsonl#12"]


@pytest.fixture(scope="module")
def index():
    from epic_rag.retrievers import Passage

    with PassageIndex(None) as index:
        for source in SOURCES:
            passages = [
                Passage.create(
                    source=source, position=n, title=source.upper(), text=f"fish {n} {source}", token_ids=[1]
                )
                for n in range(3)
            ]
            index.put_document(source, "d", "t", "o", passages)
        yield index


def sources(index, where):
    return sorted({passage.source for passage in index.get(index.ids(where))})


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("docs/*", SOURCES[:2]),
        ("*.md", ["Docs/c.md", *SOURCES[:2]]),
        ("docs/a.md", SOURCES[:1]),
        ("docs", []),
        ("[Dd]ocs/?.md", ["Docs/c.md", "docs/a.md"]),
        ("notes/[[]1].txt", SOURCES[3:4]),
        ("x.jsonl#1", SOURCES[4:5]),
        ("x.jsonl#*", SOURCES[4:]),
        ("x.jsonl", SOURCES[4:]),
        ("*.jsonl", SOURCES[4:]),
        ("'; DROP TABLE passages; --", []),
        ("", []),
    ],
)
def test_sources(index, pattern, expected):
    assert sources(index, {"source": pattern}) == expected


def test_all_fields_must_match(index):
    assert len(index.ids({"source": "docs/*", "title": "*B.MD", "text": "*2*", "position": "2"})) == 1
    assert index.ids({"source": "docs/*", "title": "x"}) == []


def test_no_filter_is_every_passage_in_order(index):
    assert index.ids() == index.ids({}) == [passage.id for passage in index.passages()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("docs/*?.mdx#1", max_size=9))
def test_patterns_mean_what_they_mean_in_a_shell(index, pattern):
    ways = (pattern, f"{pattern}#*")
    assert sources(index, {"source": pattern}) == sorted(
        one for one in SOURCES if any(fnmatchcase(one, way) for way in ways)
    )


def test_an_unknown_field_is_named():
    with pytest.raises(ValueError, match=r"where names 'author', 'x y'; fields of a passage are source, title, text"):
        condition({"x y": "1", "author": "2", "source": "3"})


@pytest.mark.parametrize(
    ("pattern", "said"), [(["a"], "got list"), (None, "got NoneType"), ("\udcff*", "holds what no text may hold")]
)
def test_a_pattern_that_is_no_text_is_refused(pattern, said):
    with pytest.raises(ValueError, match=f"where, source: .*{said}"):
        condition({"source": pattern})


@pytest.mark.parametrize("k", [1, 4, 6, 99])
def test_a_lexical_filter_comes_before_the_ranking(index, k):
    lexical = LexicalIndex(index)
    every = [one for one in lexical.search("fish 1 md", 99) if one[0].source.startswith("docs/")]
    assert len(every) == 6
    assert lexical.search("fish 1 md", k, {"source": "docs/*"}) == every[:k]
