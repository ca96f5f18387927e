from __future__ import annotations

import torch

from epic_rag.evict import RoCo
from epic_rag.model.budget_batch import BudgetBatch
from epic_rag.model.budget_row import Limits

SHAPE = (2, 3, 5, 8)  # sequences, KV heads, columns, dimensions


def new_tokens(columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values; two query heads to a KV head."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, columns, 8)
    queries = torch.randn(2, 6, columns, 8, generator=generator)
    return queries, torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def forward(batch: BudgetBatch, columns: int, seed: int, valid: torch.Tensor | None = None) -> torch.Tensor:
    batch.begin(columns, valid)
    out = torch.stack([batch.attend(layer, *new_tokens(columns, seed + layer), 0.4) for layer in range(2)])
    batch.finish()
    return out


def make() -> BudgetBatch:
    return BudgetBatch.like(torch.empty(SHAPE), 2, Limits(RoCo("head"), 4, 2))


def test_padding_takes_no_slot_and_gives_nothing() -> None:
    batch, valid = make(), torch.tensor([[True] * 5, [False, False, False, True, True]])
    out = forward(batch, 5, 1, valid)
    assert [row.cache.length for row in batch.rows] == [4, 2]
    assert [row.cache.next_position for row in batch.rows] == [5, 2]
    assert (out[:, 1, :, :3] == 0).all()
    assert (out[:, 1, :, 3:] != 0).all()
    out = forward(batch, 1, 9, torch.tensor([[False], [True]]))
    assert (out[:, 0] == 0).all()
    assert [row.cache.length for row in batch.rows] == [4, 3]


def test_one_attention_for_all_is_one_for_each() -> None:
    """At their budget all sequences stand at the same slot and are computed as one; the bits are the same."""
    batch = make()
    forward(batch, 5, 1)
    twins = [batch.select(torch.tensor([i, i])) for i in range(2)]
    out = forward(batch, 1, 20)
    for i, twin in enumerate(twins):
        twin.begin(1, torch.tensor([[j == i] for j in range(2)]))  # alone
        alone = torch.stack([twin.attend(layer, *new_tokens(1, 20 + layer), 0.4) for layer in range(2)])
        twin.finish()
        assert torch.equal(alone[:, i], out[:, i])
        assert torch.equal(twin.rows[i].scores.positions, batch.rows[i].scores.positions)
        assert torch.equal(twin.rows[i].scores.sums, batch.rows[i].scores.sums)


def test_a_selected_sequence_goes_on_by_itself() -> None:
    batch = make()
    forward(batch, 5, 1)
    chosen = batch.select(torch.tensor([1, 0, 1]))
    assert torch.equal(chosen.rows[2].cache.keys[:, :, :4], batch.rows[1].cache.keys[:, :, :4])
    assert torch.equal(chosen.rows[1].scores.sums, batch.rows[0].scores.sums)
    before = chosen.rows[0].cache.keys[:, :, :4].clone()  # slots beyond those in use hold whatever memory held
    forward(batch, 1, 30)
    assert torch.equal(chosen.rows[0].cache.keys[:, :, :4], before)
