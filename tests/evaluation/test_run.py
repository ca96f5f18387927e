"""Every number against transformers' own forward over prompt and answer; records that go on; the same numbers again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from evaluation_oracle import full_log_probabilities, linked_log_probabilities
from tiny_models import make_tiny

from epic_rag.encode import Encoder
from epic_rag.encoding import make_profile
from epic_rag.errors import ConfigError, PromptError
from epic_rag.evaluation.item import EvalItem, Task
from epic_rag.evaluation.prepare import prepare
from epic_rag.evaluation.records import Record, Records
from epic_rag.evaluation.run import evaluate
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.kvstore.uri import open_store
from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt, prompt_frame

TIMES = ("link_seconds",)
PASSAGES = tuple(
    f"Shed {n} holds {n * 17 % 23} {thing}, and a key.\n\n" for n, thing in enumerate(("jars", "ropes", "oars"))
)
CORPUS = tuple(f"Notes of day {n}: it rained on the sheds, and {n * 31 % 97} birds came.\n\n" for n in range(12))


def make_item(number: int, **settings: object) -> EvalItem:
    about: dict[str, object] = {"question": f"What does shed {number} hold?"}
    about |= {"answers": (f"{number * 17 % 23} of them", "many"), "choices": ("a dozen", "none", "too many to count")}
    about |= {"passages": PASSAGES[number:] + PASSAGES[:number], "gold": (0,), "max_answer_tokens": 5}
    return EvalItem(f"item-{number}", **{**about, **settings})  # type: ignore[arg-type]


def make_task(count: int = 2) -> Task:
    return Task("sheds", "answer", tuple(make_item(number) for number in range(count)), CORPUS)


def by_key(records: Sequence[Record]) -> dict[tuple[str, str], Record]:
    return {(record.item, record.method): record for record in records}


def numbers(records: Sequence[Record]) -> list[tuple[str, str, dict[str, float], str | None]]:
    """Everything but times."""
    found = [(r, {name: value for name, value in r.measures.items() if name not in TIMES}) for r in records]
    return [(r.item, r.method, measures, r.answer) for r, measures in found]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return make_tiny(request.param)


def check(
    model: LanguageModel, record: Record, full: torch.Tensor, own: list[torch.Tensor], ids: list[list[int]]
) -> None:
    """All distances of one record against slow log probabilities of the gold answer and the choices."""
    kl = [float((full[i].exp() * (full[i] - own[0][i])).sum()) for i in range(len(ids[0]))]
    nlls = [[-float(own[n][i, token]) for i, token in enumerate(answer)] for n, answer in enumerate(ids)]
    means = [sum(nll) / len(nll) for nll in nlls]
    agree = [int(full[i].argmax()) == int(own[0][i].argmax()) for i in range(len(ids[0]))]
    got = record.measures
    assert got["kl"] == pytest.approx(sum(kl) / len(kl), abs=1e-5)
    assert got["kl_first"] == pytest.approx(kl[0], abs=1e-5)
    assert got["nll"] == pytest.approx(means[0], abs=1e-4)
    assert got["nll_sum"] == pytest.approx(sum(nlls[0]), abs=1e-3)
    assert got["agree"] == sum(agree) / len(agree)
    assert got["rank4"] == float(means[0] < min(means[1:]))
    assert got["answer_tokens"] == len(ids[0])


def test_full_and_bare_are_transformers_own_forward(model: LanguageModel) -> None:
    task = make_task()
    found = by_key(evaluate(model, task, []))
    frame = prompt_frame(model.tokenizer)
    for item, prepared in zip(task.items, prepare(model, frame, task.items), strict=True):
        answers = [model.tokenizer.encode(text) for text in (item.answers[0], *item.choices)]
        full = [full_log_probabilities(model, prepared.prompt, ids) for ids in answers]
        bare = [full_log_probabilities(model, prepared.bare, ids) for ids in answers]
        check(model, found[item.id, "full"], full[0], full, answers)
        check(model, found[item.id, "bare"], full[0], bare, answers)
        assert found[item.id, "full"].measures["kl"] < 1e-6
        assert found[item.id, "full"].measures["agree"] == 1
        assert (found[item.id, "full"].measures["rows"], found[item.id, "full"].measures["context_rows"]) == (1, 1)
        assert found[item.id, "bare"].measures["kl"] > 1e-3
        assert "rows" not in found[item.id, "bare"].measures


@pytest.mark.parametrize(
    ("encoding", "selector", "k"),
    [("none", "none", 0), ("none", "lego:4", 4), ("warm:60", "lego:7", 7), ("prompt", "lego:2", 2)],
)
def test_linked_methods_are_a_slow_forward_with_an_explicit_mask(
    model: LanguageModel, encoding: str, selector: str, k: int
) -> None:
    task = make_task(1)
    found = by_key(evaluate(model, task, [f"{encoding},{selector}"]))
    frame = prompt_frame(model.tokenizer)
    (prepared,) = prepare(model, frame, task.items)
    behind = make_profile(model, frame, encoding, [model.tokenizer.encode(text) for text in CORPUS]).prefix_ids
    chosen = chunk_heads(prepared.prompt, behind, k)
    answers = [model.tokenizer.encode(text) for text in (task.items[0].answers[0], *task.items[0].choices)]
    full = full_log_probabilities(model, prepared.prompt, answers[0])
    own = [linked_log_probabilities(model, prepared.prompt, behind, chosen, ids) for ids in answers]
    record = found["item-0", f"{encoding},{selector}"]
    check(model, record, full, own, answers)
    prompt, suffix = prepared.prompt, len(prepared.prompt.suffix_ids)
    assert record.measures["rows"] == pytest.approx((len(chosen) + suffix) / prompt.num_tokens)
    assert record.measures["context_rows"] == pytest.approx(len(chosen) / (prompt.num_tokens - suffix))


def chunk_heads(prompt: Prompt, behind: Sequence[int], k: int) -> list[int]:
    """The first k tokens of every chunk but one that is exact: right behind what it was encoded behind."""
    exact = tuple(prompt.prefix_ids) == tuple(behind)
    return [
        start + i
        for n, (start, ids) in enumerate(zip(prompt.offsets, prompt.chunk_ids, strict=True))
        for i in range(min(k, len(ids)))
        if n or not exact
    ]


def test_an_oracle_that_differs_is_seen(model: LanguageModel) -> None:
    """The tolerance is tight: one row more or less, or another compile prefix, is no longer equal."""
    frame = prompt_frame(model.tokenizer)
    (prepared,) = prepare(model, frame, make_task(1).items)
    answer = model.tokenizer.encode("17 of them")
    start = prepared.prompt.offsets[1]
    one, other, third = (
        linked_log_probabilities(model, prepared.prompt, behind, chosen, answer)
        for behind, chosen in (((1, 2), [start]), ((1, 2), []), ((3, 2), [start]))
    )
    assert float((one - other).abs().max()) > 1e-3
    assert float((one - third).abs().max()) > 1e-3


def test_two_runs_give_the_same_numbers(tiny_llama: LanguageModel) -> None:
    methods = ["none,none", "warm:60,lego:4", "none,lego:4,roco@80%", "none,none,tova:head@75%", "none,none,codec=int8"]
    one, two = (evaluate(tiny_llama, make_task(), methods, generate=True) for _ in range(2))
    assert numbers(one) == numbers(two)
    assert [(r.item, r.method) for r in one] == [
        (f"item-{n}", method) for n in range(2) for method in ("full", "bare", *methods)
    ]
    answered = by_key(one)["item-0", "full"]
    assert answered.answer is not None
    assert {"em", "f1", "contains", "rouge_l"} <= set(answered.measures)


def test_a_budget_that_holds_everything_changes_nothing(tiny_llama: LanguageModel) -> None:
    found = by_key(evaluate(tiny_llama, make_task(1), ["none,lego:4", "none,lego:4,roco@4096", "none,lego:4,roco@80%"]))
    plain, roomy, tight = (
        found["item-0", f"none,lego:4{policy}"].measures for policy in ("", ",roco@4096", ",roco@80%")
    )
    assert roomy["kl"] == pytest.approx(plain["kl"], abs=1e-6)
    assert roomy["kept"] == 1
    assert tight["kl"] != pytest.approx(plain["kl"], abs=1e-4)
    assert tight["kept"] == pytest.approx(0.8, abs=0.01)


def test_what_is_kept_is_not_measured_again(
    tiny_llama: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sheds.jsonl"
    whole = evaluate(tiny_llama, make_task(3), ["none,none", "warm:60,lego:4"], records=Records(path))
    bytes_of_whole = path.read_bytes()
    lines = bytes_of_whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:6]) + lines[6][:30])  # a kill in the middle of the second item
    again = evaluate(tiny_llama, make_task(3), ["none,none", "warm:60,lego:4"], records=Records(path))
    assert numbers(again) == numbers(whole)
    assert path.read_bytes().splitlines()[:6] == bytes_of_whole.splitlines()[:6]
    kept = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    assert len(kept) == 3 * 4
    monkeypatch.setattr(LanguageModel, "forward", None)  # nothing is left to compute
    assert numbers(evaluate(tiny_llama, make_task(3), ["warm:60,lego:4"], records=Records(path))) == [
        row for row in numbers(whole) if row[1] != "none,none"
    ]


def test_methods_items_and_greedy_answers_are_added_to_a_file(tiny_llama: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "sheds.jsonl"
    evaluate(tiny_llama, make_task(1), ["none,none"], records=Records(path))
    evaluate(tiny_llama, make_task(2), ["none,lego:4"], records=Records(path))
    added = evaluate(tiny_llama, make_task(2), ["none,none", "none,lego:4"], records=Records(path), generate=True)
    at_once = evaluate(tiny_llama, make_task(2), ["none,none", "none,lego:4"], generate=True)
    assert numbers(added) == numbers(at_once)


def test_changed_data_are_told(tiny_llama: LanguageModel, tmp_path: Path) -> None:
    path, task = tmp_path / "sheds.jsonl", make_task(1)
    evaluate(tiny_llama, task, ["warm:60,none"], records=Records(path))
    other = Task("sheds", "answer", (make_item(0, question="What is in shed 0?"),), CORPUS)
    with pytest.raises(ConfigError, match=r"item 'item-0' was measured with another text .* choose another folder"):
        evaluate(tiny_llama, other, ["warm:60,none"], records=Records(path))
    moved = Task("sheds", "answer", task.items, CORPUS[1:])
    with pytest.raises(ConfigError, match="another compile prefix of 'warm:60'"):
        evaluate(tiny_llama, moved, ["warm:60,none"], records=Records(path))
    with pytest.raises(ConfigError, match="seed: 0 there, 1 now"):
        evaluate(tiny_llama, task, ["warm:60,none"], records=Records(path), seed=1)


def test_a_store_keeps_the_chunks_and_its_codec_counts(tiny_llama: LanguageModel, tmp_path: Path) -> None:
    task, method = make_task(2), "warm:60,lego:4"
    plain = numbers(evaluate(tiny_llama, task, [method, f"{method},codec=int8"]))
    for codec, expected in (("none", [row for row in plain if "codec" not in row[1]]), ("int8", None)):
        with open_store(f"disk://{tmp_path}/{codec}?codec={codec}") as store:
            one = numbers(evaluate(tiny_llama, task, [method], store=store))
            entries = store.stats().entries
            again = numbers(evaluate(tiny_llama, task, [method], store=store))
            assert store.stats().entries == entries == len(PASSAGES) + 1
        assert one == again
        if expected is not None:
            assert one == expected
        else:
            by_int8 = {item: row for item, name, row, _ in plain if name.endswith("int8")}
            assert {item: row for item, name, row, _ in one if name == method} == by_int8


def test_statistics_that_a_store_lacks_are_told(tiny_llama: LanguageModel, tmp_path: Path) -> None:
    with open_store(f"disk://{tmp_path}/store") as store:
        evaluate(tiny_llama, make_task(1), ["none,none"], store=store)
        with pytest.raises(ConfigError, match="hold no attention statistics"):
            evaluate(tiny_llama, make_task(1), ["none,none,roco:seeded@50%"], store=store)


class Anchored:
    """An encoder of a caller's own: another prefix, and two tokens in front of every chunk."""

    def __init__(self, model: LanguageModel, prefix_ids: tuple[int, ...], anchor_ids: tuple[int, ...] = ()) -> None:
        self.prefix_ids = prefix_ids
        self.anchor_ids = anchor_ids
        self.encoded: list[tuple[int, ...]] = []
        self._encoder = Encoder(model, prefix_ids)

    def encode(self, token_ids: Sequence[int]) -> ChunkKV:
        self.encoded.append(tuple(token_ids))
        return self._encoder.encode(token_ids)


def test_encodings_of_a_caller_are_measured_alike(tiny_llama: LanguageModel) -> None:
    task, frame = make_task(1), prompt_frame(tiny_llama.tokenizer)
    (prepared,) = prepare(tiny_llama, frame, task.items)
    same, anchored = Anchored(tiny_llama, frame.prefix_ids), Anchored(tiny_llama, (5, 6), (7, 8))
    extra = {"mine": same, "anchored": anchored}
    found = by_key(evaluate(tiny_llama, task, ["prompt,lego:2", "mine,lego:2", "anchored,none"], extra_encoders=extra))
    ours = {name: value for name, value in found["item-0", "prompt,lego:2"].measures.items() if name not in TIMES}
    assert {n: v for n, v in found["item-0", "mine,lego:2"].measures.items() if n not in TIMES} == ours
    assert same.encoded == list(prepared.prompt.chunk_ids)
    assert anchored.encoded == [(7, 8, *chunk) for chunk in prepared.prompt.chunk_ids]
    assert found["item-0", "anchored,none"].measures["prompt_tokens"] == prepared.prompt.num_tokens + 2 * len(PASSAGES)
    assert found["item-0", "full"].measures["prompt_tokens"] == prepared.prompt.num_tokens


def test_items_that_do_not_fit_are_told_before_anything_is_measured(tiny_llama: LanguageModel) -> None:
    long = make_item(1, passages=("x" * 5000 + "\n\n",))
    with pytest.raises(PromptError, match=r"1 of 2 items do not fit the model's window of 4096 .*first: 'item-1'"):
        evaluate(tiny_llama, Task("sheds", "answer", (make_item(0), long), CORPUS), ["none,none"])
    with pytest.raises(PromptError, match="item 'item-0': an answer without any token"):
        evaluate(tiny_llama, Task("sheds", "answer", (make_item(0, answers=("",)),), CORPUS), ["none,none"])


def test_on_item_is_told_every_item(tiny_llama: LanguageModel) -> None:
    told: list[tuple[int, int]] = []
    evaluate(tiny_llama, make_task(2), [], on_item=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_no_choices_no_rank(tiny_llama: LanguageModel) -> None:
    task = Task("sheds", "answer", (make_item(0, choices=()),), CORPUS)
    assert all("rank4" not in record.measures for record in evaluate(tiny_llama, task, ["none,none"]))
