"""The model's rotary position embedding, taken from its own rotary module."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from epic_rag.errors import UnsupportedModelError
from epic_rag.model.gate import FALLBACK_HINT


@dataclass(frozen=True, slots=True)
class Rope:
    """Angles of one RoPE setting.

    Attributes:
        inv_freq: `[R / 2]` fp32, on the model's device.
        attention_scaling: factor on cos and sin (yarn; 1.0 elsewhere).
        interleaved: pairs are neighbouring dimensions instead of the two halves.
        description: canonical JSON of the setting, part of every store key.
    """

    inv_freq: Tensor
    attention_scaling: float
    interleaved: bool
    description: str

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine for `positions` (`[T]`): two fp32 tensors `[T, R / 2]`."""
        phases = positions.to(torch.float32)[:, None] * self.inv_freq
        return phases.cos() * self.attention_scaling, phases.sin() * self.attention_scaling


def find_rotary_module(model: nn.Module) -> nn.Module:
    """The one rotary module of `model`.

    Raises:
        UnsupportedModelError: when there is none (learned positions, ALiBi, none at all) or more than one.
    """
    found = [module for module in model.modules() if isinstance(getattr(module, "inv_freq", None), Tensor)]
    if len(found) != 1:
        what = (
            "no rotary position embedding (learned positions, ALiBi or none)" if not found else "several RoPE settings"
        )
        raise UnsupportedModelError(
            f"model '{type(model).__name__}' has {what}; keys can only be stored position-free with exactly one RoPE "
            f"setting; {FALLBACK_HINT}."
        )
    return found[0]


def read_rope(rotary: nn.Module, config: PretrainedConfig, *, interleaved: bool) -> Rope:
    """Frequencies and scaling of the rotary module, as the model itself uses them; described by the configuration."""
    inv_freq = rotary.inv_freq.detach().to(torch.float32)  # type: ignore[operator]
    scaling = float(getattr(rotary, "attention_scaling", 1.0))
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    setting = {"parameters": parameters, "rotary_dim": 2 * inv_freq.numel(), "interleaved": interleaved}
    return Rope(inv_freq, scaling, interleaved, json.dumps(setting, sort_keys=True, separators=(",", ":")))
