"""Generated tasks: what is planted, where, and that the answer is what a reader of the text would find."""

import json
import re
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from tiny_models import make_tokenizer

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import EvalItem, Task
from epic_rag.evaluation.tasks import open_task
from epic_rag.evaluation.tasks.haystack import Piece, plant
from epic_rag.evaluation.tasks.plain_english import plain_documents
from epic_rag.model.tokens import TextTokenizer

CODES = ["ruler-single", "ruler-multikey", "ruler-multivalue", "ruler-multiquery"]
EVERY = [*CODES, "ruler-vt", "needle"]
SENTENCE = re.compile(
    r"A secret code of the [a-z ]+ is \d{7}\.|The variable [A-Z]{3} is set to (?:the value of [A-Z]{3}|\d{5})\.|"
    r"[A-Z][a-z]+ [A-Z][a-z]+ (?:won|traded|hid|lost|painted|was left) [^.]*\."
)


@pytest.fixture(scope="module")
def tokens() -> TextTokenizer:
    return TextTokenizer(make_tokenizer())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that is cut in no time."""
    folder = tmp_path_factory.mktemp("small")
    for document in islice(plain_documents(), 4):
        (folder / f"{document.source}.txt").write_text(document.text, encoding="utf-8")
    return folder


def made(spec: str, tokens: TextTokenizer, **options: object) -> Task:
    return open_task(spec, **{"tokenizer": tokens, "count": 6, "seed": 1, "chunk_tokens": 400, **options})


def told(item: EvalItem) -> list[tuple[str, str]]:
    """(thing, code) as they are read."""
    return re.findall(r"A secret code of the ([a-z ]+) is (\d{7})\.", "".join(item.passages))


@pytest.mark.parametrize("name", EVERY)
def test_two_calls_are_equal_and_more_items_begin_with_fewer(name: str, tokens: TextTokenizer, small: Path) -> None:
    task = made(f"{name}:2500", tokens, corpus=small)
    assert task == made(f"{name}:2500", tokens, corpus=small)
    assert task.kind == "retrieve"
    assert made(f"{name}:2500", tokens, corpus=small, count=5).items == task.items[:5]
    assert not {i.question for i in task.items} & {
        i.question for i in made(f"{name}:2500", tokens, corpus=small, seed=2).items
    }
    assert len({item.id for item in task.items}) == 6
    both = [
        item
        for one in ("tune", "report")
        for item in made(f"{name}:2500", tokens, corpus=small, half=one, count=3).items
    ]
    whole = {item.id: item for item in made(f"{name}:2500", tokens, corpus=small, count=20).items}
    assert all(whole[item.id] == item for item in both)


def test_a_hundred_items_by_default(tokens: TextTokenizer, small: Path) -> None:
    task = made("ruler-single:256", tokens, corpus=small, count=None, chunk_tokens=64)
    halves = [
        made("ruler-single:256", tokens, corpus=small, count=None, chunk_tokens=64, half=one)
        for one in ("tune", "report")
    ]
    assert len(task.items) == 100
    assert sorted(i.id for one in halves for i in one.items) == sorted(i.id for i in task.items)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("num_tokens", "chunk_tokens"), [(1500, 200), (20_000, 2000), (150_000, 3000)])
def test_the_length_is_met(name: str, num_tokens: int, chunk_tokens: int, tokens: TextTokenizer) -> None:
    for item in made(f"{name}:{num_tokens}", tokens, chunk_tokens=chunk_tokens, count=3).items:
        length = sum(len(tokens.encode(text)) for text in (*item.passages, item.question))
        assert abs(length - num_tokens) <= 0.03 * num_tokens


@pytest.mark.parametrize("name", EVERY)
def test_without_what_is_planted_the_passages_are_the_corpus(name: str, tokens: TextTokenizer) -> None:
    task = made(f"{name}:5000", tokens)
    corpus = set(task.corpus)
    assert len(corpus) == len(task.corpus)
    assert not any(SENTENCE.search(text) for text in corpus)
    for item in task.items:
        cut = 0
        for text in item.passages:
            assert text == f"{text.rstrip()}\n\n"
            bare = re.sub(rf"(?:{SENTENCE.pattern}) | (?:{SENTENCE.pattern})", "", text)
            if bare not in corpus:
                cut += 1
                assert any(whole.startswith(bare.rstrip()) for whole in corpus)
            assert not SENTENCE.search(bare)
        assert cut <= 1


@pytest.mark.parametrize("name", EVERY)
def test_gold_holds_what_was_planted_for_the_question(name: str, tokens: TextTokenizer) -> None:
    for item in made(f"{name}:5000", tokens).items:
        parts = item.answers[0].split(", ")
        holding = [i for i, text in enumerate(item.passages) if any(part in text for part in parts)]
        if name == "ruler-vt":
            sets = "|".join(parts)
            holding = [i for i, t in enumerate(item.passages) if re.search(rf"The variable (?:{sets}) is set", t)]
        assert item.gold == tuple(holding)
        assert holding


@pytest.mark.parametrize("name", CODES)
def test_a_reader_finds_the_codes(name: str, tokens: TextTokenizer) -> None:
    for item in made(f"{name}:5000", tokens).items:
        read = told(item)
        asked = re.search(r"of the (.*?)\?", item.question).group(1)
        things = re.split(r", the | and the ", asked)
        found = [code for thing in things for other, code in read if other == thing]
        assert item.answers == (", ".join(found),)
        asked_of = {"ruler-single": (1, 1), "ruler-multikey": (1, 4)}.get(name, (4, 4))
        assert (len(found), len(read)) == asked_of
        assert len(set(item.choices)) == 3
        assert item.answers[0] not in item.choices
        assert all(re.fullmatch(r"\d{7}", part) for choice in item.choices for part in choice.split(", "))
        if name == "ruler-multikey":
            assert set(item.choices) == {code for _, code in read} - {item.answers[0]}
        if name == "ruler-multiquery":
            assert {tuple(sorted(choice.split(", "))) for choice in item.choices} == {tuple(sorted(found))}
        if name == "ruler-multivalue":
            for choice in item.choices:
                assert len(set(choice.split(", ")) - set(found)) == 1
        assert item.max_answer_tokens >= len(tokens.encode(item.answers[0]))


def test_a_reader_follows_the_variables(tokens: TextTokenizer) -> None:
    for item in made("ruler-vt:5000", tokens).items:
        values: dict[str, str] = {}
        for name, source, number in re.findall(
            r"The variable ([A-Z]{3}) is set to (?:the value of ([A-Z]{3})|(\d{5}))\.", "".join(item.passages)
        ):
            assert name not in values
            values[name] = number or values[source]  # a KeyError would be a variable that is read before it is set
        asked = re.search(r"\d{5}", item.question).group()
        right = [name for name, value in values.items() if value == asked]
        assert len(values) == 10
        assert item.answers == (", ".join(right),)
        assert item.parts == tuple(right)
        assert len(right) == 5
        for choice in item.choices:
            assert len(set(choice.split(", ")) & set(right)) == 4
            assert set(choice.split(", ")) <= set(values)


@pytest.mark.parametrize("depth", [0, 0.25, 0.5, 1])
def test_a_needle_is_at_its_depth(depth: float, tokens: TextTokenizer) -> None:
    for item in made(f"needle:8000:{depth}", tokens, count=10).items:
        text = "".join(item.passages)
        (place,) = [match.start() for match in re.finditer(re.escape(item.answers[0]), text)]
        sentence = text.rindex("\n" if depth == 0 else ". ", 0, place)
        assert abs(sentence / len(text) - depth) < 0.02  # a sentence has up to 120 of the 8,000 bytes
        assert not any(choice in text for choice in item.choices)
        who = " ".join(re.search(r"[A-Z][a-z]+ [A-Z][a-z]+", item.question[5:]).group().split()[:2])
        assert who in text[sentence:place]


def test_a_needle_is_anywhere_by_default(tokens: TextTokenizer) -> None:
    depths = []
    for item in made("needle:4000", tokens, count=40).items:
        text = "".join(item.passages)
        depths.append(text.index(item.answers[0]) / len(text))
    assert [sum(low <= depth < low + 0.25 for depth in depths) > 2 for low in (0, 0.25, 0.5, 0.75)] == [True] * 4


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_gold_is_moved(place: str, tokens: TextTokenizer) -> None:
    for item in made("ruler-vt:5000", tokens, gold_place=place).items:
        others = len(item.passages) - len(item.gold)
        start = {"first": 0, "middle": others // 2, "last": others}[place]
        assert item.gold == tuple(range(start, start + len(item.gold)))
        names = re.findall(r"The variable ([A-Z]{3}) is set", "".join(item.passages[i] for i in item.gold))
        assert [name for name in names if name in item.answers[0]] == item.answers[0].split(", ")


def test_sentences_go_between_sentences_behind_the_heading() -> None:
    text = "Title\nOne two. Three four! Five.\n\n"
    piece = Piece(text, 10, 6)
    assert plant([piece], [(0.0, "N.")])[0] == ("Title\nN. One two. Three four! Five.\n\n",)
    assert plant([piece], [(0.4, "N.")])[0] == ("Title\nOne two. N. Three four! Five.\n\n",)
    assert plant([piece], [(1.0, "N.")])[0] == ("Title\nOne two. Three four! Five. N.\n\n",)
    both = plant([piece, piece], [(0.45, "N1."), (0.5, "N2."), (0.51, "N3.")])
    assert both[0] == ("Title\nOne two. Three four! Five. N1. N2.\n\n", "Title\nN3. One two. Three four! Five.\n\n")
    assert both[1] == (0, 0, 1)
    same = plant([piece], [(0.39, "N1."), (0.4, "N2.")])[0]
    assert same == ("Title\nOne two. N1. N2. Three four! Five.\n\n",)
    chinese = plant([Piece("黑豹。防守。\n\n", 4, 0)], [(0.5, "N.")])[0]
    assert chinese == ("黑豹。 N.防守。\n\n",)


def test_needles_of_one_place_keep_their_order_whatever_it_is() -> None:
    piece = Piece("No sentence ends here\n\n", 5, 0)
    draw = Random(3)
    for _ in range(30):
        depths = sorted(draw.random() for _ in range(4))
        (text, *_), where = plant([piece] * 2, [(depth, f"N{n}.") for n, depth in enumerate(depths)])
        assert re.findall(r"N\d", text) == [f"N{n}" for n, index in enumerate(where) if index == 0]
        assert list(where) == sorted(where)


def test_the_haystack_is_the_corpus_that_is_named(tmp_path: Path, tokens: TextTokenizer) -> None:
    words = [f"word{number}" for number in range(900)]
    (tmp_path / "a.md").write_text("# Heading A\n\n" + " ".join(words[:600]) + ".\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"title": "B", "text": " ".join(words[600:])}), encoding="utf-8")
    task = made("needle:3000", tokens, corpus=tmp_path)
    read = " ".join(task.corpus).split()
    assert [word for word in read if word.startswith("word")] == [*words[:599], "word599.", *words[600:]]
    assert all(text.startswith(("Heading A\n", "# Heading A\n", "B\n")) for text in task.corpus)
    assert max(len(tokens.encode(text)) for text in task.corpus) <= 400
    for item in task.items:
        assert item.passages[item.gold[0]].split("\n", 1)[0] in {"Heading A", "# Heading A", "B"}
    (tmp_path / "b.jsonl").unlink()
    assert not {i.id for i in task.items} & {i.id for i in made("needle:3000", tokens, corpus=tmp_path).items}


def test_a_short_corpus_is_read_again(tmp_path: Path, tokens: TextTokenizer) -> None:
    (tmp_path / "a.txt").write_text(" ".join(f"Sentence {number} is here." for number in range(60)), encoding="utf-8")
    task = made("needle:9000", tokens, corpus=tmp_path)
    for item in task.items:
        counts = [sum(text[:60] in passage for passage in item.passages) for text in task.corpus]
        assert min(counts) >= 4


def test_xquad_is_the_haystack_where_it_is_there(tmp_path: Path, tokens: TextTokenizer) -> None:
    (tmp_path / "xquad").mkdir()
    rows = [{"id": f"T#{n}", "title": "T", "text": f"Paragraph {n} says {'this and ' * 30}that."} for n in range(9)]
    (tmp_path / "xquad" / "en_paragraphs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = made("ruler-single:2000", tokens, data=tmp_path, chunk_tokens=1000)
    assert all(text.startswith("T\n") for text in task.corpus)
    assert "Paragraph 0" in task.corpus[0]
    assert "Paragraph 1" in task.corpus[0], "paragraphs of one article stand together"
    assert task.items[0].id == "ruler-single:2000/xquad/1/0"
    assert made("ruler-single:2000", tokens).items[0].id == "ruler-single:2000/plain/1/0"


def test_a_haystack_that_cannot_be(tmp_path: Path, tokens: TextTokenizer) -> None:
    with pytest.raises(ConfigError, match="holds no text"):
        made("needle:3000", tokens, corpus=tmp_path)
    with pytest.raises(ConfigError, match="ask for at least"):
        made("ruler-vt:256", tokens)
    (tmp_path / "a.txt").write_text("\U0001f9ff" * 400, encoding="utf-8")
    with pytest.raises(ConfigError, match="raise chunk_tokens"):
        open_task("needle:3000", tokenizer=Hungry(), corpus=tmp_path, chunk_tokens=16)


class Hungry:
    """A tokenizer that takes twenty tokens a character."""

    def encode(self, text: str) -> list[int]:
        return [0] * (20 * len(text))
