import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.borders import best_border, joins

TEXT = "One two, three. Four five\nsix seven.\n\nEight nine"


def cut(text: str, low: int, high: int, target: int | None = None, headings: tuple[int, ...] = ()) -> tuple[str, str]:
    at = best_border(text, low, low, high, high if target is None else target, headings)
    assert low <= at <= high
    return text[:at], text[at:]


@pytest.mark.parametrize(
    ("low", "high", "target", "before", "after"),
    [
        (1, 48, 48, "seven.\n\n", "Eight"),
        (1, 37, 37, "six seven.\n", "\nEight"),
        (1, 30, 30, "three. ", "Four"),
        (17, 30, 30, "five\n", "six"),
        (17, 25, 25, "Four ", "five"),
        (1, 12, 12, "two, ", "three"),
        (1, 12, 1, "One ", "two"),
        (1, 3, 2, "On", "e two"),
    ],
)
def test_the_best_kind_of_border_wins_then_the_nearest(low, high, target, before, after):
    left, right = cut(TEXT, low, high, target)
    assert left.endswith(before)
    assert right.startswith(after)


def test_headings_win_over_all():
    headings = (0, TEXT.index("Four"), TEXT.index("nine"))
    assert cut(TEXT, 1, 48, headings=headings)[1] == "nine"
    assert cut(TEXT, 1, 40, headings=headings)[1].startswith("Four")
    assert cut(TEXT, 1, 10, headings=headings)[0] == "One two, "


def test_a_sentence_is_saved_by_reaching_back_and_a_word_is_not():
    assert best_border(TEXT, 10, 20, 24, 24, []) == TEXT.index("Four")
    assert best_border(TEXT, 17, 20, 24, 24, []) == TEXT.index("five")
    assert best_border("word and-so-on-it-goes", 1, 8, 15, 15, []) == 15
    assert best_border(TEXT, 10, 20, 24, 24, [12]) == TEXT.index("Four")


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("これは文です。次の文です", "これは文です。"),
        ("「はい。」と言った", "「はい。」"),
        ("日本、中国", "日本、"),
        ("هل هذا سؤال؟ نعم", "هل هذا سؤال؟ "),
        ("यह वाक्य है। दूसरा", "यह वाक्य है। "),
        ('He said "stop." Then', 'He said "stop." '),
    ],
)
def test_sentences_of_other_scripts(text, before):
    assert cut(text, 1, len(text) - 1)[0] == before


CLUSTERS = ["é", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "1️⃣", "नि", "각", "\r\n", "ก็"]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_visible_character_is_split(cluster):
    text = cluster * 5
    whole = {number * len(cluster) for number in range(6)}
    assert {offset for offset in range(len(text) + 1) if not joins(text, offset)} == whole


@given(st.lists(st.sampled_from(CLUSTERS[:8]), min_size=2, max_size=12), st.data())
def test_clusters_stay_whole_wherever_the_window_holds_a_border(clusters, data):
    text = "".join(clusters)
    low = data.draw(st.integers(0, len(text) - 1))
    high = data.draw(st.integers(low + 1, len(text)))
    at = best_border(text, low, low, high, data.draw(st.integers(low, high)), [])
    assert low <= at <= high
    if any(not joins(text, offset) for offset in range(low, high + 1)):
        assert not joins(text, at)


def test_endless_marks_are_cut_in_the_end():
    text = "e" + "\u0301" * 1000
    assert best_border(text, 300, 400, 600, 500, []) == 500


@given(st.text(alphabet="ab .\n。é\u0301", min_size=2, max_size=60), st.data())
def test_the_border_is_always_inside_the_window(text, data):
    low = data.draw(st.integers(0, len(text) - 1))
    high = data.draw(st.integers(low + 1, len(text)))
    target = data.draw(st.integers(low, high))
    headings = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=3)))
    reach = data.draw(st.integers(0, low))
    assert reach <= best_border(text, reach, low, high, target, headings) <= high
