from epic_rag.loading.headings import Heading, title_of, to_sections


def test_paths_follow_the_levels_and_skip_gaps():
    headings = [
        Heading(level, name, at) for at, (level, name) in enumerate([(2, "a"), (1, "b"), (3, "c"), (2, "d"), (2, "e")])
    ]
    paths = [section.path for section in to_sections(headings)]
    assert paths == [("a",), ("b",), ("b", "c"), ("b", "d"), ("b", "e")]
    assert [section.start_char for section in to_sections(headings)] == [0, 1, 2, 3, 4]


def test_the_title_is_the_first_of_the_outermost_level():
    assert title_of([Heading(2, "x", 0), Heading(1, "y", 5), Heading(1, "z", 9)]) == "y"
    assert title_of([]) == ""
