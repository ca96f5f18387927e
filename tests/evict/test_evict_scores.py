from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epic_rag.evict import SlotScores
from epic_rag.evict.scores import CHUNK_SINK_TOKENS
from epic_rag.kv_cache import KVCache
from epic_rag.model.score_sink import SeedableSink


def causal(num_heads: int, num_rows: int, num_slots: int, seed: int = 0) -> torch.Tensor:
    """`[H, Q, N]` probabilities of the last Q of N slots."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_heads, num_rows, num_slots, generator=generator)
    hidden = torch.arange(num_slots)[None] > torch.arange(num_slots - num_rows, num_slots)[:, None]
    return logits.masked_fill(hidden, -torch.inf).softmax(-1)


def observe(scores: SlotScores, layer: int, rows: torch.Tensor, start: int = 0) -> None:
    seen = rows[..., start:]
    counts = (rows[0, :, start:] > 0).sum(0)
    scores.observe(layer, seen.sum(1), seen.square().sum(1), counts, seen[:, -1], start)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 5))
def test_sums_agree_with_the_history(num_batches: int, num_rows: int, start: int) -> None:
    """Batches of rows, each behind the last: mean and population std of all a slot has received."""
    num_slots = num_batches * num_rows + start
    scores = SlotScores(2, 3, num_slots + 2)
    received = torch.full((3, num_slots, num_slots), torch.nan)
    for batch in range(num_batches):
        stop = start + (batch + 1) * num_rows
        rows = causal(3, num_rows, stop, seed=batch)
        observe(scores, 1, rows, start)
        received[:, stop - num_rows : stop, :stop] = rows.where(rows > 0, torch.nan)
    for head in range(3):
        for slot in range(start, num_slots):
            history = received[head, :, slot].double()
            history = history[~history.isnan()]
            assert scores.mean(1)[head, slot].item() == pytest.approx(history.mean().item(), rel=1e-5)
            assert scores.std(1)[head, slot].item() == pytest.approx(history.std(correction=0).item(), abs=2e-4)
    assert torch.equal(scores.last[1, :, start:num_slots], rows[:, -1, start:])
    assert scores.length == num_slots
    assert not scores.counts[0].any(), "another layer"
    assert not scores.counts[1, :, :start].any(), "slots before the first column"


def test_slots_nobody_saw_have_zeros() -> None:
    scores = SlotScores(1, 2, 5)
    scores.append(5, 0)
    assert scores.mean(0).tolist() == scores.std(0).tolist() == [[0.0] * 5] * 2


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1.0])
def test_variances_stay_finite_over_thousands_of_bfloat16_rows(size: float) -> None:
    scores = SlotScores(1, 2, 64)
    for step in range(512):  # of 16 rows each
        rows = (torch.rand(2, 16, 64, generator=torch.Generator().manual_seed(step)) * size).bfloat16().float()
        scores.observe(0, rows.sum(1), rows.square().sum(1), torch.full((64,), 16), rows[:, -1])
    assert scores.counts.unique().tolist() == [8192.0]
    torch.testing.assert_close(scores.mean(0), torch.full((2, 64), size / 2), rtol=0.05, atol=0.0)
    torch.testing.assert_close(scores.std(0), torch.full((2, 64), size / 12**0.5), rtol=0.05, atol=0.0)


def test_a_constant_column_has_no_negative_variance() -> None:
    scores = SlotScores(1, 1, 8)
    for _ in range(1000):
        rows = torch.full((1, 7, 8), 0.1)
        scores.observe(0, rows.sum(1), rows.square().sum(1), torch.full((8,), 7), rows[:, -1])
    assert scores.std(0).isfinite().all()
    assert scores.std(0).max() < 1e-3


def test_keep_append_and_overwrite_move_statistics_with_their_slots() -> None:
    scores = SlotScores(2, 2, 6)
    for layer in range(2):
        observe(scores, layer, causal(2, 6, 6, seed=layer))
    before = scores.sums.clone()
    kept = torch.tensor([[[0, 2, 5], [1, 2, 3]], [[3, 4, 5], [0, 1, 2]]])
    scores.keep(kept)
    assert scores.length == 3
    assert torch.equal(scores.positions[:, :, :3], kept.int())
    assert torch.equal(scores.sums[:, :, :3], before.gather(2, kept))
    assert not any(tensor[:, :, 3:].any() for tensor in (scores.sums, scores.squares, scores.counts, scores.last))

    scores.append(2, position=40)
    assert scores.length == 5
    assert scores.positions[1, 1, 3:5].tolist() == [40, 41]
    scores.overwrite(torch.tensor([[0, 1], [2, 3]]), position=77)
    where = (scores.positions[:, :, :5] == 77).nonzero().tolist()
    assert where == [[0, 0, 0], [0, 1, 1], [1, 0, 2], [1, 1, 3]]
    assert not scores.counts[0, 0, 0]
    assert scores.counts[0, 0, 1]


@pytest.mark.parametrize("shape", [(3,), (1, 1, 3), (2, 1, 3), (1, 2, 3)])
def test_kept_slots_may_be_the_same_for_heads_or_layers(shape: tuple[int, ...]) -> None:
    scores = SlotScores(2, 2, 6)
    observe(scores, 0, causal(2, 6, 6))
    before = scores.sums.clone()
    kept = torch.tensor([1, 3, 4]).expand(shape)
    scores.keep(kept)
    assert torch.equal(scores.sums[:, :, :3], before[:, :, [1, 3, 4]])


def chunk_stats(num_tokens: int, seed: int = 0) -> torch.Tensor:
    """`[L, H, 2, T]` fp16, with heavy first tokens."""
    stats = torch.rand(2, 2, 2, num_tokens, generator=torch.Generator().manual_seed(seed)) * 0.01
    stats[..., :CHUNK_SINK_TOKENS] += 0.3
    return stats.half()


def test_a_seeded_chunk_has_its_mean_std_and_counts() -> None:
    scores, stats = SlotScores(2, 2, 40), chunk_stats(30)
    assert isinstance(scores, SeedableSink)
    scores.seed(5, stats)
    assert scores.length == 35
    assert scores.counts[0, 0, 5:35].tolist() == list(range(30, 0, -1))
    torch.testing.assert_close(scores.mean(1)[:, 9:], stats[1, :, 0, 4:].float(), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(scores.std(1)[:, 9:], stats[1, :, 1, 4:].float(), rtol=2e-3, atol=1e-5)
    assert not scores.counts[..., :5].any()


def test_first_tokens_of_a_chunk_start_as_ordinary_ones_and_win_by_what_follows() -> None:
    scores, stats = SlotScores(2, 2, 40), chunk_stats(30)
    scores.seed(0, stats)
    median = stats[0, :, 0, CHUNK_SINK_TOKENS:].float().median(-1, keepdim=True).values
    torch.testing.assert_close(scores.mean(0)[:, :CHUNK_SINK_TOKENS], median.expand(-1, CHUNK_SINK_TOKENS))
    rows = torch.zeros(2, 10, 30)
    rows[:, :, 2] = 0.9
    scores.observe(0, rows.sum(1), rows.square().sum(1), torch.full((30,), 10), rows[:, -1])
    assert scores.mean(0).argmax(-1).tolist() == [2, 2]


def test_a_first_token_below_the_median_stays_where_it_is() -> None:
    stats = chunk_stats(30)
    stats[..., 1] = 0.0
    scores = SlotScores(2, 2, 30)
    scores.seed(0, stats)
    assert not scores.sums[:, :, 1].any()


def test_a_chunk_of_sinks_alone_is_taken_as_it_is() -> None:
    scores, stats = SlotScores(2, 2, 8), chunk_stats(3)
    scores.seed(0, stats)
    torch.testing.assert_close(scores.mean(0), stats[0, :, 0].float())


def test_views_group_by_head_or_average_the_heads_first() -> None:
    scores = SlotScores(2, 2, 9)
    for layer in range(2):
        observe(scores, layer, causal(2, 6, 6, seed=layer))
    heads, layers = scores.view("head"), scores.view("layer", is_decoding=True)
    assert heads.sums.shape == heads.positions.shape == (4, 6)
    assert torch.equal(heads.std[2:], scores.std(1))
    assert (heads.is_decoding, layers.is_decoding) == (False, True)
    torch.testing.assert_close(layers.mean, torch.stack([scores.mean(layer).mean(0) for layer in range(2)]))
    torch.testing.assert_close(layers.squares[0], scores.squares[0, :, :6].mean(0))


def test_more_slots_than_room_are_refused() -> None:
    scores = SlotScores(1, 1, 4)
    with pytest.raises(ValueError, match="5 slots do not fit: room was reserved for 4"):
        observe(scores, 0, causal(1, 5, 5))
    with pytest.raises(ValueError, match="5 slots do not fit"):
        scores.seed(2, chunk_stats(3)[:1, :1])
    with pytest.raises(ValueError, match="6 slots do not fit"):
        scores.append(6, 0)


def test_statistics_of_a_cache_have_its_shape() -> None:
    cache = KVCache((3, 2, 7, 4), torch.bfloat16, torch.device("cpu"))
    cache.advance(5)
    scores = SlotScores.of_cache(cache)
    assert scores.sums.shape == (3, 2, 7)
    assert scores.sums.dtype == torch.float32
    assert scores.length == 5
