"""Reference for `rerotate`: rotate position-free keys to the positions where their tokens now stand."""

from __future__ import annotations

import torch
from torch import Tensor


def rerotate_ref(keys: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate `keys` by the angles of `cos` and `sin`, in fp32, rounded once (RoFormer, arXiv 2104.09864).

    Args:
        keys: `[..., T, D]`, any float dtype, before RoPE.
        cos: `[T, R / 2]` fp32, the model's attention scaling already inside; `R <= D` dimensions are rotated.
        sin: `[T, R / 2]` fp32.
        interleaved: pairs are dimensions (0, 1), (2, 3), … instead of (0, R/2), (1, R/2 + 1), …

    Returns:
        `[..., T, D]` in the dtype of `keys`; dimensions from R on are unchanged.
    """
    rotary_dim = 2 * cos.shape[-1]
    rotated, passed = keys[..., :rotary_dim].float(), keys[..., rotary_dim:]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated.chunk(2, dim=-1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((joined.to(keys.dtype), passed), dim=-1)
