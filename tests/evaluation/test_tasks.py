"""Tasks of data sets, over small made-up data in the form of the real."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from tiny_models import make_tokenizer

from epic_rag.errors import ConfigError
from epic_rag.evaluation.item import half
from epic_rag.evaluation.tasks import TASKS, open_task
from epic_rag.evaluation.tasks.finish import draw_choices
from epic_rag.evaluation.tasks.passages import holds
from epic_rag.model.tokens import TextTokenizer

NUM_PARAGRAPHS, PER_PARAGRAPH = 12, 3
SETS = ["xquad:4", "xquad:4:zh/en", "hotpotqa", "musique", "dialogsum"]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def read(path: Path, key: str) -> dict[str, dict]:
    return {row[key]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def sentences(topic: str, facts: list[str]) -> str:
    return " ".join(f"The {topic} is known for {fact}, as everybody agrees." for fact in facts)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for language, fact in (("en", "thing-{}-{}"), ("zh", "事{}和{}")):
        paragraphs, questions = [], []
        for p in range(NUM_PARAGRAPHS):
            facts = [fact.format(p, q) for q in range(PER_PARAGRAPH)]
            title = f"T_{p // 3}"
            paragraphs.append({"id": f"{title}#{p}", "title": title, "text": f" {sentences(f'place {p}', facts)}"})
            questions += [
                {"id": f"x{p}.{q}", "question": f"{language} {p} {q}?", "answers": [facts[q]], "doc_id": f"{title}#{p}"}
                for q in range(PER_PARAGRAPH)
            ]
        write(folder / "xquad" / f"{language}_paragraphs.jsonl", paragraphs)
        write(folder / "xquad" / f"{language}_questions.jsonl", questions)
    docs = [
        {"title": f"Doc {d}", "text": sentences(f"house {d}", [f"thing-{d}-{q}" for q in range(4)])} for d in range(30)
    ]
    hotpot, plain = [], []
    for number in range(20):
        shown = random.Random(number).sample(docs, 5)
        answer = "yes" if number == 3 else f"{shown[2]['title'].replace('Doc ', 'thing-')}-1"
        row = {"id": f"h{number}", "question": f"question {number}?", "answers": [answer]}
        hotpot.append(row | {"docs": [doc | {"gold": place in (0, 2)} for place, doc in enumerate(shown)]})
        missing = number % 4 == 0
        untitled = [
            {"title": "", "text": doc["text"]} for place, doc in enumerate(shown) if not (missing and place == 2)
        ]
        plain.append(row | {"id": f"m{number}", "docs": untitled})
    write(folder / "hotpotqa" / "hotpotqa_train100.jsonl", hotpot)
    write(folder / "musique" / "musique_s.jsonl", plain)
    dialogues = []
    for d in range(12):
        turns = [" ".join(f"w{d}-{turn}-{w}" for w in range(14)) for turn in range(2 * d + 2)]
        dialogue = "\n".join(f"#Person{1 + turn % 2}#: {said}" for turn, said in enumerate(turns))
        row = {"fname": f"dev_{d}", "topic": f"topic {d % 8}", "summary": f"They speak of matter {d}."}
        dialogues.append(row | {"dialogue": dialogue})
    write(folder / "dialogsum" / "dev120.jsonl", dialogues)
    return folder


@pytest.fixture(scope="module")
def tokens() -> TextTokenizer:
    return TextTokenizer(make_tokenizer())


@pytest.mark.parametrize("spec", SETS)
def test_two_calls_are_equal_and_another_seed_is_another_draw(spec: str, data: Path) -> None:
    one, again, other = (open_task(spec, data=data, seed=seed) for seed in (5, 5, 6))
    assert one == again
    assert one.name == spec
    assert one.items != other.items
    assert {item.id for item in one.items} == {item.id for item in other.items}


@pytest.mark.parametrize("spec", SETS)
@pytest.mark.parametrize("options", [{}, {"half": "tune"}, {"gold_place": "last"}])
def test_more_items_begin_with_the_items_of_fewer(spec: str, options: dict[str, str], data: Path) -> None:
    every = open_task(spec, data=data, **options).items
    for count in range(1, len(every) + 1):
        assert open_task(spec, data=data, count=count, **options).items == every[:count]
    assert open_task(spec, data=data, count=len(every) + 1, **options).items == every


@pytest.mark.parametrize("spec", SETS)
def test_the_halves_share_all_items_and_change_none(spec: str, data: Path) -> None:
    whole = {item.id: item for item in open_task(spec, data=data).items}
    tune = open_task(spec, data=data, half="tune").items
    report = open_task(spec, data=data, half="report").items
    assert {item.id: item for item in (*tune, *report)} == whole
    assert len(tune) + len(report) == len(whole)
    assert {half(item.id) for item in tune} == {"tune"}


@pytest.mark.parametrize("spec", SETS)
def test_no_choice_is_an_answer_and_all_are_answers_of_the_task(spec: str, data: Path) -> None:
    task = open_task(spec, data=data)
    known = {answer for item in task.items for answer in item.answers}
    for item in task.items:
        folded = [choice.casefold() for choice in item.choices]
        assert len(set(folded)) == len(folded) == (0 if item.answers == ("yes",) else 3)
        assert not set(folded) & {answer.casefold() for answer in item.answers}
        assert set(item.choices) <= known


@pytest.mark.parametrize("spec", SETS)
def test_every_passage_is_of_the_corpus_and_ends_with_a_blank_line(
    spec: str, data: Path, tokens: TextTokenizer
) -> None:
    for chunk_tokens in (None, 100):
        task = open_task(spec, data=data, tokenizer=tokens, chunk_tokens=chunk_tokens)
        assert len(set(task.corpus)) == len(task.corpus)
        for item in task.items:
            assert set(item.passages) <= set(task.corpus)
            assert all(text.endswith("\n\n") and text == f"{text.rstrip()}\n\n" for text in item.passages)
            assert list(item.gold) == sorted(set(item.gold))
            assert all(place < len(item.passages) for place in item.gold)


@pytest.mark.parametrize("spec", SETS)
def test_gold_is_moved_and_all_else_keeps_its_order(spec: str, data: Path, tokens: TextTokenizer) -> None:
    for chunk_tokens in (None, 100):
        options = {"data": data, "tokenizer": tokens, "chunk_tokens": chunk_tokens}
        before = {item.id: item for item in open_task(spec, **options).items}
        for place in ("first", "middle", "last"):
            task = open_task(spec, gold_place=place, **options)
            assert {item.id for item in task.items} == {name for name, item in before.items() if item.gold}
            for item in task.items:
                was = before[item.id]
                count, others = len(was.gold), len(was.passages) - len(was.gold)
                start = {"first": 0, "middle": others // 2, "last": others}[place]
                assert item.gold == tuple(range(start, start + count))
                assert [item.passages[i] for i in item.gold] == [was.passages[i] for i in was.gold]
                rest = [text for i, text in enumerate(item.passages) if i not in item.gold]
                assert rest == [text for i, text in enumerate(was.passages) if i not in was.gold]
                assert (item.question, item.answers, item.choices) == (was.question, was.answers, was.choices)


@pytest.mark.parametrize("spec", SETS)
def test_pieces_are_short_and_lose_no_word(spec: str, data: Path, tokens: TextTokenizer) -> None:
    whole = {item.id: item for item in open_task(spec, data=data).items}
    for item in open_task(spec, data=data, tokenizer=tokens, chunk_tokens=100).items:
        was = whole[item.id]
        assert max(len(tokens.encode(text)) for text in item.passages) <= 100
        assert len(item.passages) > len(was.passages)
        headings = {text.split("\n", 1)[0] for text in was.passages if not spec.startswith("musique")}
        left = Counter(word for text in item.passages for word in text.split())
        needed = Counter(
            word
            for text in was.passages
            for word in (text.split("\n", 1)[1] if text.split("\n", 1)[0] in headings else text).split()
        )
        assert needed - left == Counter()


def test_gold_follows_the_pieces_that_hold_the_answer(data: Path, tokens: TextTokenizer) -> None:
    for item in open_task("xquad:4", data=data, tokenizer=tokens, chunk_tokens=100).items:
        assert item.gold == tuple(i for i, text in enumerate(item.passages) if item.answers[0] in text)
        assert len(item.gold) == 1


def test_a_gold_passage_that_holds_no_answer_is_gold_in_all_its_pieces(data: Path, tokens: TextTokenizer) -> None:
    """As the summary of a dialogue, which stands nowhere, and the paragraph on the way to a hop's answer."""
    for item in open_task("dialogsum", data=data, tokenizer=tokens, chunk_tokens=100).items:
        heading = item.question.split("“")[1].split("”")[0]
        assert item.gold == tuple(i for i, text in enumerate(item.passages) if text.startswith(f"{heading}\n"))
    whole = {item.id: item for item in open_task("hotpotqa", data=data).items}
    for item in open_task("hotpotqa", data=data, tokenizer=tokens, chunk_tokens=100).items:
        bridge, holding = (whole[item.id].passages[i].split("\n", 1)[0] for i in whole[item.id].gold)
        ours = {
            heading: [i for i, text in enumerate(item.passages) if text.startswith(f"{heading}\n")]
            for heading in (bridge, holding)
        }
        assert len(ours[bridge]) > 1
        if item.answers != ("yes",):
            ours[holding] = [i for i in ours[holding] if item.answers[0] in item.passages[i]]
            assert len(ours[holding]) == 1
        assert item.gold == tuple(sorted(ours[bridge] + ours[holding]))


def test_xquad_asks_on_new_paragraphs_first(data: Path) -> None:
    rows = read(data / "xquad/en_questions.jsonl", "id")
    asked = [rows[item.id]["doc_id"] for item in open_task("xquad:4", data=data).items]
    assert len(asked) == NUM_PARAGRAPHS * PER_PARAGRAPH
    for start in range(0, len(asked), NUM_PARAGRAPHS):
        assert len(set(asked[start : start + NUM_PARAGRAPHS])) == NUM_PARAGRAPHS


def test_xquad_shows_the_paragraph_among_others_of_its_language(data: Path) -> None:
    paragraphs = read(data / "xquad/en_paragraphs.jsonl", "id")
    texts = {name: f"{row['title']}\n{row['text'].strip()}\n\n" for name, row in paragraphs.items()}
    rows = read(data / "xquad/en_questions.jsonl", "id")
    places = set()
    for item in open_task("xquad:4", data=data).items:
        assert len(set(item.passages)) == 4
        assert set(item.passages) <= set(texts.values())
        (gold,) = item.gold
        places.add(gold)
        assert item.passages[gold] == texts[rows[item.id]["doc_id"]]
        assert item.answers == (rows[item.id]["answers"][0],)
        assert item.answers[0] in item.passages[gold]
    assert places == {0, 1, 2, 3}


def test_xquad_forces_the_answer_that_stands_in_the_paragraph(data: Path) -> None:
    same = {item.id: item for item in open_task("xquad:4", data=data).items}
    for item in open_task("xquad:4:zh/en", data=data).items:
        assert item.question.startswith("zh ")
        assert item.passages == same[item.id].passages
        assert item.answers[0] == same[item.id].answers[0]
        assert item.answers[1].startswith("事")
        assert all(choice.startswith("thing") for choice in item.choices)
    assert open_task("xquad:4:zh", data=data).items[0].answers[0].startswith("事")


def test_musique_knows_its_gold_where_an_answer_is_found(data: Path) -> None:
    for item in open_task("musique", data=data).items:
        number = int(item.id[1:])
        assert item.gold == (() if number % 4 == 0 or number == 3 else (2,))


def test_hotpotqa_takes_the_gold_of_the_data_and_gives_yes_no_choices(data: Path) -> None:
    items = {item.id: item for item in open_task("hotpotqa", data=data).items}
    assert {item.gold for item in items.values()} == {(0, 2)}
    assert [name for name, item in items.items() if not item.choices] == ["h3"]


def test_dialogues_of_four_topics_in_passages_of_whole_turns(data: Path) -> None:
    rows = read(data / "dialogsum/dev120.jsonl", "fname")
    by_summary = {row["summary"]: row for row in rows.values()}
    task = open_task("dialogsum", data=data)
    assert task.kind == "summary"
    for item in task.items:
        shown = [rows[item.id], *(by_summary[choice] for choice in item.choices)]
        assert len({row["topic"] for row in shown}) == 4
        assert f"“{rows[item.id]['topic']}”" in item.question
        assert item.answers == (rows[item.id]["summary"],)
        for row in shown:
            bodies = [text.split("\n", 1)[1].strip() for text in item.passages if text.startswith(f"{row['topic']}\n")]
            assert "\n".join(bodies) == row["dialogue"]
            assert all(len(body.split()) <= 225 for body in bodies)


def test_choices_never_overlap_with_an_answer_or_each_other() -> None:
    pool = ["Broncos", "denver broncos", "the Broncos of Denver", "blue", "dark Blue", "red", "no", "green"]
    for seed in range(50):
        found = draw_choices(pool, ("Denver Broncos", "Broncos"), random.Random(seed))
        assert len(found) == 3
        assert {word.split()[-1].casefold() for word in found} == {"blue", "red", "green"}
    assert draw_choices(pool[:5], ("Broncos",), random.Random(0)) == ()
    assert draw_choices(pool, ("Yes",), random.Random(0)) == ()


@pytest.mark.parametrize(
    ("text", "answer", "wanted"),
    [
        ("In 1915 it  Began\nanew.", "began anew", True),
        ("In 1915 it began.", "15", False),
        ("In 1915 it began.", "1915", True),
        ("costs $5.", "$5", True),
        ("得到308分，", "308", True),
        ("黑豹队的防守", "防守", True),
        ("anything", "", False),
    ],
)
def test_an_answer_is_held_as_whole_words(text: str, answer: str, wanted: bool) -> None:
    assert holds(text, answer) is wanted


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("nosuch", {}, r"no task 'nosuch'.*\n.*xquad(.*\n)+.*needle:TOKENS"),
        ("", {}, "no task ''"),
        ("hotpotqa:5", {}, "'5' is not understood; write hotpotqa"),
        ("xquad:none", {}, r"expected how many paragraphs, got 'none'; write xquad\[:PARAGRAPHS"),
        ("xquad:0", {}, "got '0'"),
        ("xquad:13", {}, "12 paragraphs, 13 were asked for"),
        ("xquad:4:fr", {}, "en, es, zh, ar.*got 'fr'"),
        ("xquad:4:en:3", {}, "'3' is not understood"),
        ("xquad:4:es", {}, "no file .*es_paragraphs.jsonl.*--data"),
        ("xquad:4", {"data": None}, "xquad/en_paragraphs.jsonl.*--data FOLDER"),
        ("xquad:4", {"count": 0}, "at least 1, got 0"),
        ("xquad:4", {"chunk_tokens": 15}, "at least 16, got 15"),
        ("xquad:4", {"chunk_tokens": 100}, "needs a tokenizer"),
        ("xquad:4", {"half": "both"}, "half must be one of tune, report, got 'both'"),
        ("xquad:4", {"gold_place": "second"}, "gold_place must be one of first, middle, last"),
        ("jsonl:", {}, "no file"),
        ("jsonl", {}, "expected a file, got nothing; write jsonl:PATH"),
        ("ruler-single:4096", {}, "needs a tokenizer"),
        ("ruler-single", {}, "at least 256 tokens, got nothing; write ruler-single:TOKENS"),
        ("ruler-vt:100", {}, "at least 256 tokens, got '100'"),
        ("needle:1000:1.5", {}, "a depth from 0 to 1, got '1.5'"),
        ("needle:1000:nan", {}, "a depth from 0 to 1, got 'nan'"),
        ("needle:1000:0.5", {"gold_place": "last"}, "give one of them"),
    ],
)
def test_what_cannot_be_is_refused_in_words(spec: str, options: dict, message: str, data: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        open_task(spec, **{"data": data, **options})


def test_every_task_says_how_it_is_written() -> None:
    for name, kind in TASKS.items():
        assert kind.usage.split(":")[0].split("[")[0] == name
        assert kind.about
