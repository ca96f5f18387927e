"""`cacheblend:r`: the tokens whose KV at layer 1 strays farthest from what is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from epic_rag.config import DEFAULT_SHARE
from epic_rag.model import LanguageModel
from epic_rag.selectors.base import Linking, Ranking
from epic_rag.selectors.scratch import ScratchCache

_LAYER = 1
"""Where the deviation is taken: layer 0's KV depends on no other token, so that it never deviates."""
_PROJECTION = re.compile(r"\.(?:[qkv]_proj|qkv_proj|query_key_value)\.")
"""Weights that make queries, keys and values, by their names in transformers."""


@dataclass(frozen=True, slots=True)
class CacheBlendSelector(Ranking):
    """`cacheblend:r`, CacheBlend (arXiv 2405.16444): the share r of the context tokens with the largest deviation.

    All tokens of the open chunks go through layer 0 and through layer 1's projections, under the exact causal mask, and
    are compared with the stored KV there. Those chosen are recomputed in all layers. The paper narrows the choice from
    layer to layer; as in its code, one layer decides here.
    """

    share: float = DEFAULT_SHARE
    needs_stored_kv: bool = True

    @property
    def name(self) -> str:
        """`cacheblend:r`."""
        return f"cacheblend:{self.share:g}"

    def ranked(self, linking: Linking) -> tuple[list[int], float]:
        """Open positions by falling deviation, and the rows; equals stand in the order of the prompt."""
        positions = torch.tensor(linking.open_positions, dtype=torch.int64, device=linking.model.device)
        layer = min(_LAYER, linking.model.num_layers - 1)
        order = deviation(linking, positions, layer).argsort(descending=True, stable=True)
        cost_rows = positions.numel() * layers_computed(linking.model, layer) / linking.model.num_layers
        return positions[order].tolist(), cost_rows


def deviation(linking: Linking, positions: Tensor, layer: int) -> Tensor:
    """How far the KV of tokens that are computed anew strays from the stored KV, at one layer.

    Args:
        linking: the prompt.
        positions: `[Q]` int64, ascending; all of them are computed anew up to this layer.
        layer: its index.

    Returns:
        `[Q]` fp32: squared differences, summed over heads, dimensions, keys and values. The keys are compared as the
        attention meets them, both rotated to their position: that changes no distance.
    """
    model, scratch = linking.model, ScratchCache(linking.cache, linking.prompt.suffix_start)
    ids = model.ids(linking.prompt.token_ids)[positions]
    keys, values = model.keys_values(ids, positions, scratch, layer)
    stray_keys = keys.float() - linking.cache.keys[layer][:, positions].float()
    stray_values = values.float() - linking.cache.values[layer][:, positions].float()
    return (stray_keys.square() + stray_values.square()).sum(dim=(0, 2))


def layers_computed(model: LanguageModel, layer: int) -> float:
    """Layers in front of `layer`, and of that one the part of its weights that projects; all of it where unknown."""
    weights = {name: w.numel() for name, w in model.hf_model.named_parameters() if f".layers.{layer}." in name}
    projections = sum(count for name, count in weights.items() if _PROJECTION.search(name))
    return layer + (projections / sum(weights.values()) if projections else 1.0)
