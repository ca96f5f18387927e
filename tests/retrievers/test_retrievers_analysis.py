import pytest
from hypothesis import given
from hypothesis import strategies as st

from epic_rag.retrievers.analysis import query_words, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n…!?_-", []),
        ("Hello, WORLD", ["hello", "world"]),
        ("os.path.join(max_length)", ["os", "path", "join", "max", "length"]),
        ("Python 3.11", ["python", "3", "11"]),
        ("Crème brûlée, Ångström", ["creme", "brulee", "angstrom"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("ﬁne ＦＵＬＬ", ["fine", "full"]),
        ("ёлка Ёлка", ["елка", "елка"]),
        ("soft\u00adhyphen zero\u200bwidth", ["softhyphen", "zerowidth"]),
        ("queries classes boxes bus glass was", ["query", "classe", "boxe", "bus", "glass", "was"]),
        ("日本語", ["日本", "本語", "日", "本", "語"]),
        ("猫", ["猫"]),
        ("ｶﾞｷﾞ ガギ", ["ガギ", "ガ", "ギ", "ガギ", "ガ", "ギ"]),
        ("iPhone日本", ["iphone", "日本", "日", "本"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
        ("مُحَمَّد محمد", ["محمد", "محمد"]),
        ("שָׁלוֹם שלום", ["שלום", "שלום"]),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_thai_and_hangul_become_bigrams():
    assert words("ภาษา")[:3] == ["ภา", "าษ", "ษา"]
    assert words("한국어")[:2] == ["한국", "국어"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What is the capital of France?", ["capital", "france"]),
        ("to be or not to be", ["not"]),
        ("what is it", ["what", "is", "it"]),
        ("日本語", ["日本", "本語"]),
        ("猫", ["猫"]),
        ("???", []),
    ],
)
def test_query_words(query, expected):
    assert query_words(query) == expected


@given(st.text(st.characters(), max_size=40))
def test_every_query_word_is_a_word_of_the_same_text(text):
    assert set(query_words(text)) <= set(words(text))


@given(st.text(max_size=40))
def test_case_does_not_matter_where_it_folds(text):
    assert words(text.casefold()) == words(text)
