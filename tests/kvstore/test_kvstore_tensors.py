"""ChunkKV takes what fits together and refuses the rest in words."""

import pytest
import torch

from epic_rag.kvstore.tensors import ChunkKV

IDS = torch.arange(3, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_it_knows_its_size(dtype: torch.dtype) -> None:
    kv = ChunkKV(torch.zeros(4, 2, 3, 8, dtype=dtype), torch.zeros(4, 2, 3, 8, dtype=dtype), IDS)
    assert kv.num_tokens == 3
    assert kv.num_bytes == 2 * 4 * 2 * 3 * 8 * dtype.itemsize + 12


@pytest.mark.parametrize(
    ("keys", "values", "ids", "words"),
    [
        (torch.zeros(2, 3, 8), torch.zeros(2, 3, 8), IDS, "keys: expected"),
        (torch.zeros(0, 2, 3, 8), torch.zeros(0, 2, 3, 8), IDS, "keys: expected"),
        (torch.zeros(4, 2, 3, 8).double(), torch.zeros(4, 2, 3, 8).double(), IDS, "torch.float64"),
        (torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 9), IDS, "values: expected"),
        (torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8).half(), IDS, "values: expected"),
        (torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8, device="meta"), IDS, "on meta"),
        (torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8), IDS[:2], "token_ids: expected"),
        (torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8), IDS.long(), "token_ids: expected"),
        (torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8), IDS[None], "token_ids: expected"),
    ],
)
def test_what_does_not_fit_is_refused(keys: torch.Tensor, values: torch.Tensor, ids: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ChunkKV(keys, values, ids)
