from __future__ import annotations

import pytest
import torch

from epic_rag.kv_cache import KVCache


def numbered_cache(num_slots: int, spare: int = 4) -> KVCache:
    """Slot n of head h of layer l holds 100 l + 10 h + n, values its negative."""
    cache = KVCache((2, 3, num_slots + spare, 4), torch.float32, torch.device("cpu"))
    layers, heads, slots = torch.arange(2) * 100.0, torch.arange(3) * 10.0, torch.arange(num_slots + spare)
    cache.keys.copy_((layers[:, None, None] + heads[:, None] + slots)[..., None].expand_as(cache.keys))
    cache.values.copy_(-cache.keys)
    cache.advance(num_slots)
    return cache


def test_rows_are_written_at_the_same_slots_or_at_each_heads_own() -> None:
    cache, rows = numbered_cache(6), torch.full((3, 2, 4), 999.0)
    cache.write(0, torch.tensor([1, 4]), rows, rows)
    assert (cache.keys[0] == 999.0).all(-1).nonzero().tolist() == [[h, s] for h in range(3) for s in (1, 4)]
    cache = numbered_cache(6)
    cache.write(1, torch.tensor([[0, 2], [1, 3], [4, 5]]), rows, rows + 1)
    assert (cache.keys[1] == 999.0).all(-1).nonzero().tolist() == [[0, 0], [0, 2], [1, 1], [1, 3], [2, 4], [2, 5]]
    assert torch.equal((cache.keys[1] == 999.0), (cache.values[1] == 1000.0))
    assert torch.equal(cache.keys[0], numbered_cache(6).keys[0])


def test_a_redirected_row_goes_elsewhere_until_the_cache_advances() -> None:
    cache, row = numbered_cache(6), torch.full((3, 1, 4), 999.0)
    cache.redirect(torch.tensor([[0, 1, 2], [3, 4, 5]]))
    for layer in range(2):
        cache.write(layer, torch.tensor([5]), row, row)
    cache.advance(6)
    assert (cache.keys == 999.0).all(-1).nonzero().tolist() == [
        [0, 0, 0],
        [0, 1, 1],
        [0, 2, 2],
        [1, 0, 3],
        [1, 1, 4],
        [1, 2, 5],
    ]
    cache.write(0, torch.tensor([5]), row, row)
    assert (cache.keys[0, :, 5] == 999.0).all()
    assert cache.length == cache.next_position == 6


@pytest.mark.parametrize("shape", [(3,), (1, 1, 3), (2, 1, 3), (1, 3, 3), (2, 3, 3)])
def test_kept_slots_close_up(shape: tuple[int, ...]) -> None:
    cache = numbered_cache(6)
    kept = torch.stack([torch.randperm(6)[:3].sort().values for _ in range(18)])[: torch.Size(shape[:-1]).numel()]
    kept = kept.reshape(shape)
    expected = numbered_cache(6).keys.gather(2, kept.expand(2, 3, 3)[..., None].expand(2, 3, 3, 4))
    cache.keep(kept)
    assert torch.equal(cache.keys[:, :, :3], expected)
    assert torch.equal(cache.values[:, :, :3], -expected)
    assert (cache.length, cache.next_position) == (3, 6), "positions are never renumbered"
