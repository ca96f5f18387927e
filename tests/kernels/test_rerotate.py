from __future__ import annotations

import pytest
import torch

from epic_rag.kernels.rerotate import rerotate_
from epic_rag.kernels.rerotate_ref import rerotate_ref


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "rotary_dim"), [((3, 7, 64), 64), ((2, 1, 16), 8), ((1, 33, 80), 32), ((2, 3, 5, 6), 2)]
)
def test_bit_for_bit_the_reference(
    interleaved: bool, dtype: torch.dtype, shape: tuple[int, ...], rotary_dim: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    keys = torch.randn(shape, generator=generator).to(dtype)
    angles = torch.rand(shape[-2], rotary_dim // 2, generator=generator) * 6.3
    cos, sin = angles.cos(), angles.sin()
    expected = rerotate_ref(keys, cos, sin, interleaved=interleaved)
    given = keys.clone()
    result = rerotate_(given, cos, sin, interleaved=interleaved)
    assert result is given, "works in place"
    assert torch.equal(result, expected)
    assert torch.equal(result[..., rotary_dim:], keys[..., rotary_dim:])


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_turn_by_their_angle(interleaved: bool) -> None:
    keys = torch.zeros(1, 1, 4)
    keys[0, 0, 0] = 1.0
    quarter = torch.tensor([[torch.pi / 2, 0.0]])
    turned = rerotate_(keys, quarter.cos(), quarter.sin(), interleaved=interleaved)[0, 0]
    partner = 1 if interleaved else 2
    assert turned[partner].item() == pytest.approx(1.0)
    assert turned.abs().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_shapes_that_do_not_fit_are_refused() -> None:
    keys, angles = torch.zeros(2, 5, 8), torch.zeros(5, 4)
    for cos, sin in ((angles[:4], angles[:4]), (angles, angles[:, :2]), (torch.zeros(5, 8), torch.zeros(5, 8))):
        with pytest.raises(ValueError, match="rerotate: cos and sin must be"):
            rerotate_(keys, cos, sin, interleaved=False)
