"""`rerotate_`: rotate keys in place to their positions. Specification: `rerotate_ref`."""

from __future__ import annotations

from torch import Tensor


def rerotate_(keys: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate `keys` in place, in fp32, rounded once; bit for bit what `rerotate_ref` returns.

    Args:
        keys: `[..., T, D]` before RoPE; overwritten.
        cos: `[T, R / 2]` fp32, the model's attention scaling already inside; `R <= D` dimensions are rotated.
        sin: `[T, R / 2]` fp32.
        interleaved: pairs are dimensions (0, 1), (2, 3), … instead of (0, R/2), (1, R/2 + 1), …

    Returns:
        `keys`.

    Raises:
        ValueError: when the shapes do not fit.
    """
    half = cos.shape[-1]
    if cos.shape != sin.shape or cos.dim() != 2 or cos.shape[0] != keys.shape[-2] or 2 * half > keys.shape[-1]:
        raise ValueError(
            f"rerotate: cos and sin must be [T, R/2] with T = {keys.shape[-2]} and R <= {keys.shape[-1]}, "
            f"got {tuple(cos.shape)} and {tuple(sin.shape)}"
        )
    step = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    first_dims, second_dims = step if interleaved else (slice(0, half), slice(half, 2 * half))
    first = keys[..., first_dims].float().clone()  # float() of fp32 keys is the same memory
    second = keys[..., second_dims].float().clone()
    keys[..., first_dims] = first * cos - second * sin
    keys[..., second_dims] = second * cos + first * sin
    return keys
