from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epic_rag.kernels.link_attention import link_attention
from epic_rag.kernels.link_attention_ref import link_attention_ref
from epic_rag.kernels.row_plan import ROWS_PER_GROUP, plan_rows

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def case(
    slots: list[int], num_heads: int = 6, num_kv_heads: int = 2, head_dim: int = 16, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(slots))
    num_slots = slots[-1] + 1
    queries = torch.randn(num_heads, len(slots), head_dim, generator=generator).to(dtype)
    keys = torch.randn(num_kv_heads, num_slots + 3, head_dim, generator=generator).to(dtype)
    values = torch.randn(num_kv_heads, num_slots + 3, head_dim, generator=generator).to(dtype)
    return queries, keys, values, torch.tensor(slots)


def heads_and_tail(num_chunks: int, chunk: int, k: int, tail: int) -> list[int]:
    heads = [start * chunk + i for start in range(num_chunks) for i in range(k)]
    return [*heads, *range(num_chunks * chunk, num_chunks * chunk + tail)]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize(
    "slots",
    [[0], [9], [5, 6, 7], list(range(40)), heads_and_tail(9, 30, 4, 13), heads_and_tail(12, 40, 16, 70), [0, 200, 201]],
    ids=["first", "decode", "run", "prefill", "lego4", "lego16", "scattered"],
)
def test_agrees_with_the_reference(dtype: torch.dtype, num_heads: int, num_kv_heads: int, slots: list[int]) -> None:
    queries, keys, values, where = case(slots, num_heads, num_kv_heads, dtype=dtype)
    expected = link_attention_ref(queries, keys, values, where, 0.25)
    got = link_attention(queries, keys, values, plan_rows(where, dtype), 0.25)
    torch.testing.assert_close(got, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 300), min_size=1, max_size=180))
def test_any_ascending_rows(slots: set[int]) -> None:
    queries, keys, values, where = case(sorted(slots), 2, 1, 8)
    expected = link_attention_ref(queries, keys, values, where, 0.3)
    got = link_attention(queries, keys, values, plan_rows(where, torch.float32), 0.3)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)


def test_slots_behind_a_row_are_never_read() -> None:
    queries, keys, values, where = case(heads_and_tail(6, 20, 4, 9))
    plan = plan_rows(where, torch.float32)
    before = link_attention(queries, keys, values, plan, 0.25)
    keys[:, 21:24], values[:, 21:24] = 50.0, -50.0
    after = link_attention(queries, keys, values, plan, 0.25)
    untouched = int((where < 21).sum())
    assert torch.equal(before[:, :untouched], after[:, :untouched])
    assert not torch.allclose(before[:, untouched:], after[:, untouched:])


def test_no_mask_is_larger_than_its_group() -> None:
    slots = torch.tensor(heads_and_tail(32, 256, 16, 40))
    plan = plan_rows(slots, torch.bfloat16)
    assert not plan.is_prefill
    assert all(group.stop - group.start <= ROWS_PER_GROUP for group in plan.groups)
    masked = sum(group.mask.numel() for group in plan.groups if group.mask is not None)
    assert masked < 0.15 * slots.numel() * plan.num_slots
    assert plan_rows(torch.arange(4096), torch.bfloat16).groups == ()


@pytest.mark.parametrize("slots", [[], [3, 2], [1, 1]])
def test_rows_must_ascend(slots: list[int]) -> None:
    with pytest.raises(ValueError, match="strictly ascending"):
        plan_rows(torch.tensor(slots, dtype=torch.int64), torch.float32)


def test_sizes_that_do_not_fit_are_refused() -> None:
    queries, keys, values, where = case([3, 4])
    plan = plan_rows(where, torch.float32)
    for bad in ((queries[:5], keys), (queries[:, :1], keys), (queries, keys[:, :4])):
        with pytest.raises(ValueError, match="link_attention: got"):
            link_attention(bad[0], bad[1], values, plan, 0.25)
