"""Rounds, with the slow link beside them: each builds on the KV that the one before left."""

from __future__ import annotations

import math

import pytest
import torch
from slow_link import SlowLink, encode_all, make_model, make_prompt

from epic_rag.config import NEUTRAL_QUESTION
from epic_rag.link import link, place, spans
from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt, prompt_frame
from epic_rag.selectors import AutoSelector, Linking, Selection, parse_selector
from epic_rag.selectors.auto import divergence

PROMPT = make_prompt(sizes=(23, 41, 17, 64))
NUM_CONTEXT, NUM_SUFFIX = 145, len(PROMPT.suffix_ids)


def neutral(model: LanguageModel) -> tuple[int, ...]:
    return prompt_frame(model.tokenizer).suffix(model.tokenizer.encode(NEUTRAL_QUESTION))


def slow_kl(after: torch.Tensor, before: torch.Tensor) -> float:
    new, old = torch.softmax(after.double(), -1).tolist(), torch.softmax(before.double(), -1).tolist()
    return sum(p * math.log(p / q) for p, q in zip(new, old, strict=True))


def slow_auto(slow: SlowLink, usual: tuple[int, ...], share: float, enough: float) -> tuple[torch.Tensor, int, float]:
    """Logits of the last round, rows computed, rows for choosing."""
    most, rows, cost = round(share * NUM_CONTEXT), NUM_SUFFIX, 0.0
    before = slow.linked([]).logits[-1]
    k = min(4, most // 4)
    heads = [p for start in PROMPT.offsets for p in range(start, start + k)]
    if heads:
        after = slow.linked(heads).logits[-1]
        rows += len(heads) + NUM_SUFFIX
        if len(heads) == most or slow_kl(after, before) < enough:
            return after, rows, cost
        before = after
    rest = [p for p in slow.ranked(usual) if p not in heads][: most - len(heads)]
    cost += NUM_SUFFIX + len(usual)
    half = math.ceil(len(rest) / 2)
    for part in filter(None, (rest[:half], rest[half:])):
        after = slow.linked(part).logits[-1]
        rows += len(part) + NUM_SUFFIX
        if slow_kl(after, before) < enough:
            break
        before = after
    return after, rows, cost


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("enough", [0.0, 1e-2, 1e3])
@pytest.mark.parametrize("share", [0.01, 0.02, 16 / 145, 0.3, 1.0])
def test_the_rounds_are_those_of_a_slow_one(architecture: str, enough: float, share: float) -> None:
    model = make_model(architecture)
    linked = link(model, PROMPT, encode_all(model, PROMPT), AutoSelector(share, enough), spare_tokens=0)
    logits, rows, cost = slow_auto(SlowLink(architecture, PROMPT), neutral(model), share, enough)
    torch.testing.assert_close(linked.logits[0], logits, atol=1e-4, rtol=1e-4)
    assert (linked.num_recomputed, linked.selection_rows) == (rows, cost)
    assert linked.cache.length == PROMPT.num_tokens


def offered(selector: AutoSelector, linking: Linking) -> list[Selection]:
    """All rounds, when every one changes everything."""
    rounds, found = selector.rounds(linking), []
    selection = next(rounds)
    while True:
        found.append(selection)
        if selection.is_last:
            return found
        selection = rounds.send(torch.eye(300)[len(found)] * 50)


def test_rounds_add_new_rows_up_to_the_share_and_the_last_says_so() -> None:
    model = make_model("llama")
    cache = model.new_cache(PROMPT.num_tokens)
    place(model, encode_all(model, PROMPT), cache)
    linking = Linking(model, PROMPT, tuple(spans(PROMPT, (1, 2, 3))), cache)
    for share, sizes in ((0.3, [0, 16, 14, 14]), (0.02, [0, 2, 1]), (16 / 145, [0, 16]), (0.005, [0, 1])):
        rounds = offered(AutoSelector(share), linking)
        assert [len(one.positions) for one in rounds] == sizes
        everything = [p for one in rounds for p in one.positions]
        assert len(set(everything)) == len(everything) == max(1, round(share * NUM_CONTEXT))
        assert all(list(one.positions) == sorted(one.positions) for one in rounds)
        assert [one.is_last for one in rounds] == [False] * (len(rounds) - 1) + [True]


@pytest.mark.parametrize(("told", "num_rounds"), [("AA", 2), ("ABB", 3), ("ABA", 4), ("ABC", 4)])
def test_the_probe_compares_a_round_with_the_one_before(told: str, num_rounds: int) -> None:
    """Next tokens as the rounds find them: a return to an earlier one is a change too."""
    model = make_model("llama")
    cache = model.new_cache(PROMPT.num_tokens)
    place(model, encode_all(model, PROMPT), cache)
    rounds = AutoSelector(0.3).rounds(Linking(model, PROMPT, tuple(spans(PROMPT, (1, 2, 3))), cache))
    next(rounds)
    taken = 1
    for letter in told:
        try:
            rounds.send(torch.eye(300)[ord(letter)] * 50)
        except StopIteration:
            break
        taken += 1
    assert taken == num_rounds


def test_a_prompt_without_open_chunks_is_one_round() -> None:
    model = make_model("llama")
    prompt = Prompt(PROMPT.prefix_ids, (), PROMPT.suffix_ids)
    linked = link(model, prompt, encode_all(model, prompt), AutoSelector(), spare_tokens=0)
    none = link(model, prompt, encode_all(model, prompt), parse_selector("none"), spare_tokens=0)
    assert torch.equal(linked.logits, none.logits)
    assert (linked.num_recomputed, linked.selection_rows) == (NUM_SUFFIX, 0.0)


def test_the_probe_is_a_kl_divergence() -> None:
    after, before = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.5, -3.0, 2.0])
    assert divergence(after, after) == pytest.approx(0.0, abs=1e-12)
    assert divergence(after, before) == pytest.approx(slow_kl(after, before), rel=1e-9)
    assert divergence(after, before) != pytest.approx(divergence(before, after), rel=1e-2)


def test_certain_tokens_are_no_trouble() -> None:
    sure, other = torch.tensor([200.0, 0.0, -200.0]), torch.tensor([-200.0, 0.0, 200.0])
    assert divergence(sure, other) == pytest.approx(400.0)
