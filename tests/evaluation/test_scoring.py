"""Forced and greedy continuations: equal to the answer inside the prompt, and the prompt is as it was afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tiny_models import make_tiny

from epic_rag.decode import DecodeOptions, decode
from epic_rag.encode import Encoder
from epic_rag.evaluation.scoring import Ready, force, greedy
from epic_rag.evict import Keeping, KVBudget, parse_policy
from epic_rag.link import link
from epic_rag.model import LanguageModel
from epic_rag.prompt import Prompt
from epic_rag.selectors import parse_selector

PROMPT = Prompt(tuple(range(3, 12)), (tuple(range(20, 43)), tuple(range(50, 91))), tuple(range(100, 111)))
ANSWERS = ((40, 41, 42, 43, 44, 45), (7,), (200, 3, 200))
ROOM = 8


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return make_tiny(request.param)


def linked(
    model: LanguageModel, prompt: Prompt, selector: str, policy: str = "full", budget: float | None = None
) -> Ready:
    stored = [
        Encoder(model, ids).encode(chunk)
        for ids, chunk in zip(((), (1,), (1,)), (prompt.prefix_ids, *prompt.chunk_ids), strict=True)
    ]
    limit = None if budget is None else KVBudget(ratio=budget)
    keeping = Keeping(model, prompt, parse_policy(policy, limit), limit, ROOM)
    chosen = parse_selector(selector)
    found = link(
        model, prompt, stored if chosen.needs_stored_kv else [], chosen, spare_tokens=ROOM, scores=keeping.sink
    )
    keeping.evict(found.cache)
    return Ready(found.cache, found.logits[-1], keeping)


@pytest.mark.parametrize("selector", ["none", "lego:4", "full"])
def test_forcing_behind_the_linked_cache_is_the_answer_inside_the_suffix(model: LanguageModel, selector: str) -> None:
    ready = linked(model, PROMPT, selector)
    for answer in ANSWERS:
        inside = Prompt(PROMPT.prefix_ids, PROMPT.chunk_ids, (*PROMPT.suffix_ids, *answer[:-1]))
        stored = [
            Encoder(model, ids).encode(chunk)
            for ids, chunk in zip(((), (1,), (1,)), (PROMPT.prefix_ids, *PROMPT.chunk_ids), strict=True)
        ]
        chosen = parse_selector(selector)
        expected = link(
            model, inside, stored if chosen.needs_stored_kv else [], chosen, spare_tokens=0, logits_to_keep=len(answer)
        )
        got = force(model, ready, answer)
        assert got.dtype == torch.float64
        torch.testing.assert_close(got.float(), expected.logits.log_softmax(-1), atol=1e-4, rtol=0.0)


def slow_forced(model: LanguageModel, ready: Ready, answer: Sequence[int]) -> torch.Tensor:
    """A freshly linked prompt, and a loop as in decoding."""
    rows, cache, keeper = [ready.logits], ready.cache, ready.keeping.keeper
    for token in answer[:-1]:
        position, slot = cache.next_position, cache.length if keeper is None else keeper.next_slot()
        where = model.positions(position, position + 1), model.positions(slot, slot + 1)
        sink = None if keeper is None else keeper.sink
        rows.append(model.forward(model.ids((token,)), where[0], cache, slots=where[1], scores=sink)[-1])
    return torch.stack(rows).double().log_softmax(-1)


@pytest.mark.parametrize("policy", ["roco", "roco:head", "h2o", "tova:head", "recency", "random:3"])
def test_under_a_budget_each_continuation_starts_from_the_prompt_as_evicted(model: LanguageModel, policy: str) -> None:
    ready = linked(model, PROMPT, "lego:4", policy, 0.5)
    assert ready.keeping.keeper is not None
    before = ready.cache.keys.clone(), ready.cache.values.clone(), ready.cache.length, ready.cache.next_position
    for answer in (*ANSWERS, *ANSWERS):
        expected = slow_forced(model, linked(model, PROMPT, "lego:4", policy, 0.5), answer)
        assert torch.equal(force(model, ready, answer), expected)
    greedy(model, ready, ROOM)
    used = before[2]
    assert torch.equal(ready.cache.keys[:, :, :used], before[0][:, :, :used])
    assert torch.equal(ready.cache.values[:, :, :used], before[1][:, :, :used])
    assert (ready.cache.length, ready.cache.next_position) == before[2:]


def test_continuations_do_not_see_each_other(model: LanguageModel) -> None:
    ready = linked(model, PROMPT, "lego:4")
    used = ready.cache.length
    before = ready.cache.keys[:, :, :used].clone()
    one = force(model, ready, ANSWERS[0])
    greedy(model, ready, ROOM)
    force(model, ready, ANSWERS[2])
    assert torch.equal(force(model, ready, ANSWERS[0]), one)
    assert torch.equal(ready.cache.keys[:, :, :used], before)
    assert (ready.cache.length, ready.cache.next_position) == (PROMPT.num_tokens, PROMPT.num_tokens)


@pytest.mark.parametrize(("policy", "budget"), [("full", None), ("roco", 0.5)])
def test_greedy_is_what_decode_says(model: LanguageModel, policy: str, budget: float | None) -> None:
    ready, fresh = (linked(model, PROMPT, "lego:4", policy, budget) for _ in range(2))
    pieces = decode(model, fresh.cache, fresh.logits, DecodeOptions(ROOM), fresh.keeping.keeper)
    expected = "".join(piece.text for piece in pieces).strip()
    assert greedy(model, ready, ROOM) == expected
    assert greedy(model, ready, ROOM) == expected
