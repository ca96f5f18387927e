from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epic_rag.kernels.attention_scores import ColumnScores, attention_scores, row_counts
from epic_rag.kernels.attention_scores_ref import attention_scores_ref
from epic_rag.kernels.link_attention import link_attention
from epic_rag.kernels.row_plan import ROWS_PER_GROUP, RowPlan, plan_rows

LEGO = [start * 30 + i for start in range(9) for i in range(4)] + list(range(270, 283))
LONG = [start * 40 + i for start in range(12) for i in range(16)] + list(range(480, 550))
SCALE = 0.25
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def case(slots: list[int], num_heads: int = 6, num_kv_heads: int = 2, dtype: torch.dtype = torch.float32) -> Case:
    """Queries, keys with room behind them, values, slots."""
    generator = torch.Generator().manual_seed(len(slots))
    queries = torch.randn(num_heads, len(slots), 16, generator=generator) * 2
    keys, values = torch.randn(2, num_kv_heads, slots[-1] + 4, 16, generator=generator)
    return queries.to(dtype), keys.to(dtype), values.to(dtype), torch.tensor(slots)


def both_ways(inputs: Case, plan: RowPlan, start: int = 0) -> tuple[ColumnScores, ColumnScores]:
    """Scores taken beside attention, and in a second pass."""
    queries, keys, values, _ = inputs
    beside, second = (ColumnScores.zeros(keys.shape[0], plan, start) for _ in range(2))
    link_attention(queries, keys, values, plan, SCALE, beside)
    attention_scores(queries, keys, plan, SCALE, second)
    return beside, second


def expected(inputs: Case, start: int = 0) -> tuple[torch.Tensor, ...]:
    queries, keys, _, slots = inputs
    return attention_scores_ref(queries, keys[:, : int(slots[-1]) + 1], slots, SCALE, start)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("start", [0, 9])
@pytest.mark.parametrize(
    "slots",
    [[0, 9], [9], [5, 6, 12], list(range(150)), LEGO, LONG, [0, 200, 201]],
    ids=["two", "decode", "run", "prefill", "lego4", "lego16", "scattered"],
)
def test_both_ways_agree_with_the_reference(num_heads: int, num_kv_heads: int, start: int, slots: list[int]) -> None:
    inputs = case(slots, num_heads, num_kv_heads)
    plan = plan_rows(inputs[3], torch.float32)
    sums, squares, last, counts = expected(inputs, start)
    for scores in both_ways(inputs, plan, start):
        torch.testing.assert_close(scores.sums, sums, atol=2e-6, rtol=2e-5)
        torch.testing.assert_close(scores.squares, squares, atol=2e-6, rtol=2e-5)
        torch.testing.assert_close(scores.last, last, atol=2e-6, rtol=2e-5)
    assert torch.equal(row_counts(plan, start), counts)
    if start == 0:
        torch.testing.assert_close(sums.sum(dim=-1), torch.full((num_kv_heads,), float(len(slots))))


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 300), min_size=1, max_size=180), st.integers(0, 300))
def test_any_rows_from_any_slot_on(slots: set[int], start: int) -> None:
    inputs = case(sorted(slots), 2, 1)
    start = min(start, max(slots))
    sums, squares, last, counts = expected(inputs, start)
    plan = plan_rows(inputs[3], torch.float32)
    for scores in both_ways(inputs, plan, start):
        torch.testing.assert_close(scores.sums, sums, atol=2e-6, rtol=2e-5)
        torch.testing.assert_close(scores.squares, squares, atol=2e-6, rtol=2e-5)
        torch.testing.assert_close(scores.last, last, atol=2e-6, rtol=2e-5)
    assert torch.equal(row_counts(plan, start), counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("slots", [list(range(150)), LEGO], ids=["prefill", "lego4"])
def test_scoring_changes_no_bit_of_the_attention(dtype: torch.dtype, slots: list[int]) -> None:
    queries, keys, values, where = case(slots, dtype=dtype)
    plan = plan_rows(where, dtype)
    scores = ColumnScores.zeros(2, plan)
    scored = link_attention(queries, keys, values, plan, SCALE, scores)
    assert torch.equal(scored, link_attention(queries, keys, values, plan, SCALE))
    assert scores.sums.dtype == scores.squares.dtype == scores.last.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_as_the_plain_formula(dtype: torch.dtype) -> None:
    """The error is at most twice that of probabilities formed plainly in that dtype, then summed in fp32."""
    inputs = case(LONG, dtype=dtype)
    queries, keys, _, where = inputs
    true = expected(inputs)
    wide = keys[:, : LONG[-1] + 1].repeat_interleave(3, dim=0)
    unseen = torch.arange(wide.shape[1])[None, :] > where[:, None]
    plain = ((queries * SCALE) @ wide.transpose(-1, -2)).masked_fill(unseen, float("-inf")).softmax(dim=-1)
    received = plain.float().view(2, 3, *plain.shape[1:]).mean(dim=1)
    for got in both_ways(inputs, plan_rows(where, dtype)):
        for mine, theirs, exact in (
            (got.sums, received.sum(dim=1), true[0]),
            (got.squares, received.square().sum(dim=1), true[1]),
        ):
            assert float((mine - exact).abs().max()) <= 2 * float((theirs - exact).abs().max()) + 1e-6


def test_squares_of_small_probabilities_do_not_vanish() -> None:
    """A uniform attention over 8,192 slots: p = 1.2e-4, whose square is nothing in half precision."""
    num_slots, num_rows = 8192, 4
    plan = plan_rows(torch.arange(num_slots - num_rows, num_slots), torch.bfloat16)
    queries, keys = torch.zeros(2, num_rows, 8).bfloat16(), torch.zeros(1, num_slots, 8).bfloat16()
    scores = ColumnScores.zeros(1, plan)
    link_attention(queries, keys, keys, plan, 1.0, scores)
    mean = scores.sums / row_counts(plan)
    variance = scores.squares / row_counts(plan) - mean.square()
    torch.testing.assert_close(mean[0, :8000], torch.full((8000,), 1 / num_slots), rtol=1e-2, atol=0.0)
    assert float((variance / mean.square()).abs().max()) < 1e-4
    assert torch.equal((mean.half() ** 2)[0, :8000].float(), torch.zeros(8000)), "the control"


def test_the_two_ways_agree_in_bf16_far_below_its_rounding() -> None:
    """What is kept must not depend on which way the scores were taken."""
    inputs = case(LONG, dtype=torch.bfloat16)
    beside, second = both_ways(inputs, plan_rows(inputs[3], torch.bfloat16))
    torch.testing.assert_close(beside.sums, second.sums, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(beside.squares, second.squares, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(beside.last, second.last, atol=1e-6, rtol=1e-5)


def test_calls_add_up_and_the_last_row_is_the_latest() -> None:
    queries, keys, values, _ = case(list(range(140)), 4, 2)
    whole = ColumnScores.zeros(2, plan_rows(torch.arange(140), torch.float32))
    attention_scores(queries, keys, plan_rows(torch.arange(140), torch.float32), SCALE, whole)
    parts = ColumnScores.zeros(2, plan_rows(torch.arange(140), torch.float32))
    for start in range(0, 140, 20):
        plan = plan_rows(torch.arange(start, start + 20), torch.float32)
        link_attention(queries[:, start : start + 20], keys, values, plan, SCALE, parts)
    torch.testing.assert_close(parts.sums, whole.sums)
    torch.testing.assert_close(parts.squares, whole.squares)
    torch.testing.assert_close(parts.last, whole.last)


def test_no_group_of_a_second_pass_is_larger_than_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    add = ColumnScores.add

    def watch(self: ColumnScores, heads: int | slice, weights: torch.Tensor, *, is_last: bool) -> None:
        seen.append(weights.shape[-2])
        add(self, heads, weights, is_last=is_last)

    monkeypatch.setattr(ColumnScores, "add", watch)
    queries, keys, _, slots = case(list(range(300)), 2, 1)
    plan = plan_rows(slots, torch.float32)
    attention_scores(queries, keys, plan, SCALE, ColumnScores.zeros(1, plan))
    assert max(seen) == ROWS_PER_GROUP
    assert sum(seen) == 300


@pytest.mark.parametrize("start", [-1, 10, 99])
def test_a_start_outside_the_slots_is_refused(start: int) -> None:
    with pytest.raises(ValueError, match=f"from slot {start} on: expected one of the 10"):
        ColumnScores.zeros(2, plan_rows(torch.tensor([4, 9]), torch.float32), start)


def test_sizes_that_do_not_fit_are_refused() -> None:
    queries, keys, _, where = case([3, 4])
    plan = plan_rows(where, torch.float32)
    scores, short = ColumnScores.zeros(2, plan), ColumnScores.zeros(2, plan_rows(torch.tensor([2]), torch.float32))
    for bad in (
        (queries[:5], keys, scores),
        (queries[:, :1], keys, scores),
        (queries, keys[:, :4], scores),
        (queries, keys, short),
    ):
        with pytest.raises(ValueError, match="attention_scores: got"):
            attention_scores(bad[0], bad[1], plan, SCALE, bad[2])


def test_a_prefill_is_grouped_where_it_is_asked_for() -> None:
    queries, keys, values, where = case(list(range(150)))
    plain, grouped = (plan_rows(where, torch.float32, group_prefill=wanted) for wanted in (False, True))
    assert plain.groups == ()
    assert [group.stop for group in grouped.groups] == [64, 128, 150]
    one, two = ColumnScores.zeros(2, plain), ColumnScores.zeros(2, grouped)
    outs = [link_attention(queries, keys, values, p, SCALE, s) for p, s in ((plain, one), (grouped, two))]
    assert torch.equal(*outs)
    assert torch.equal(one.sums, two.sums)


def test_groups_see_a_round_number_of_slots_and_none_that_is_not_written() -> None:
    slots = torch.tensor([*range(5, 800, 6), 900])
    plan = plan_rows(slots, torch.float32)
    assert [group.visible for group in plan.groups] == [512, 768, 901]
    inputs = case(slots.tolist())
    inputs[1][:, 901:] = float("nan")
    for got in both_ways(inputs, plan):
        torch.testing.assert_close(got.sums, expected(inputs)[0], atol=2e-6, rtol=2e-5)
