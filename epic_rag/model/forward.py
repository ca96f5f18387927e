"""One forward over chosen rows, inside the model's own code.

transformers calls three things of ours while a `RowPass` is active in the current context, and none otherwise:

* a hook on the rotary module answers cos = 1 and sin = 0, so that queries and keys reach the next two *before* RoPE, in
  every architecture and layout alike;
* the cache face rotates the new keys once, in fp32, and writes them at their slots;
* the attention function rotates the queries and runs `link_attention` over the cache; whoever wants the scores gets
  them there.

No class is patched; outside a pass the model behaves as transformers' own, with its fused attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from epic_rag.errors import UnsupportedModelError
from epic_rag.kernels.attention_scores import ColumnScores, row_counts
from epic_rag.kernels.link_attention import link_attention
from epic_rag.kernels.rerotate import rerotate_
from epic_rag.kernels.row_plan import RowPlan
from epic_rag.kv_cache import KVCache
from epic_rag.model.score_sink import ScoreSink

ATTENTION_NAME = "epic_rag"
_UNKNOWN_TO_US = ("sliding_window", "softcap", "s_aux", "position_bias")


class LayerReached(Exception):
    """Ends a forward that was asked for one layer's keys and values only; it never leaves `LanguageModel`."""


@dataclass(slots=True)
class RowPass:
    """What the three hooks need to know about the rows being computed."""

    cache: KVCache
    plan: RowPlan
    cos: Tensor
    """`[Q, R / 2]` fp32."""
    sin: Tensor
    interleaved: bool
    captured_keys: list[Tensor] | None = None
    """When a list: receives the keys before RoPE, `[H, Q, D]` per layer, in layer order."""
    sink: ScoreSink | None = None
    """Receives what attention the slots get."""
    stop_layer: int | None = None
    """The forward ends with this layer's keys and values, which are not written but kept in `reached`."""
    reached: tuple[Tensor, Tensor] | None = field(default=None, init=False)
    _layer: int = field(default=0, init=False)
    _counts: Tensor | None = field(default=None, init=False)

    def write(self, keys: Tensor, values: Tensor, layer: int) -> None:
        """Rotate and store one layer's new keys; `keys`, `values`: `[1, H, Q, D]` before RoPE.

        Raises:
            LayerReached: at the layer where the forward is to end.
        """
        self._layer = layer
        if self.captured_keys is not None:
            self.captured_keys.append(keys[0].clone())
        rotated = rerotate_(keys[0].clone(), self.cos, self.sin, interleaved=self.interleaved)
        if layer == self.stop_layer:
            self.reached = rotated, values[0]
            raise LayerReached
        self.cache.write(layer, self.plan.slots, rotated, values[0])

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attention of the layer written last.

        Args:
            queries: `[num_heads, Q, D]` before RoPE.
            keys: `[H, N, D]`, rotated.
            values: `[H, N, D]`.
            scale: factor on the scores.

        Returns:
            `[num_heads, Q, D]`.
        """
        rotated = rerotate_(queries.clone(), self.cos, self.sin, interleaved=self.interleaved)
        if self.sink is None:
            return link_attention(rotated, keys, values, self.plan, scale)
        scores = ColumnScores.zeros(keys.shape[0], self.plan, self.sink.start)
        out = link_attention(rotated, keys, values, self.plan, scale, scores)
        if self._counts is None:
            self._counts = row_counts(self.plan, scores.start)  # the same in every layer
        self.sink.observe(self._layer, scores.sums, scores.squares, self._counts, scores.last, scores.start)
        return out


_ACTIVE: ContextVar[RowPass | None] = ContextVar("epic_rag_row_pass", default=None)


@contextmanager
def active(row_pass: RowPass) -> Iterator[None]:
    """Make `row_pass` the current one in this thread or task."""
    token = _ACTIVE.set(row_pass)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


class CacheFace(Cache):
    """What the model takes for its cache: passes every layer's keys and values on to the active pass."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values (`[1, H, Q, D]`); return all of the layer's, `[1, H, N, D]`."""
        row_pass = _ACTIVE.get()
        if row_pass is None:
            raise RuntimeError("the cache face is only usable inside a row pass")
        row_pass.write(key_states, value_states, layer_idx)
        used = row_pass.plan.num_slots
        return row_pass.cache.keys[None, layer_idx, :, :used], row_pass.cache.values[None, layer_idx, :, :used]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    row_pass = _ACTIVE.get()
    if row_pass is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    check_plain(kwargs, "which linking does not support")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = row_pass.attend(query[0], key[0], value[0], scale)
    return out.transpose(0, 1)[None], None


def check_plain(arguments: Mapping[str, object], why: str) -> None:
    """Refuse what a model hands to its attention beyond queries, keys, values, mask and scale.

    Raises:
        UnsupportedModelError: names it, and ends with `why`.
    """
    strange = [name for name in _UNKNOWN_TO_US if arguments.get(name) is not None]
    if strange:
        raise UnsupportedModelError(f"the model's attention uses {', '.join(strange)}, {why}")


def _identity_rotation(
    _module: nn.Module, _args: object, output: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor] | None:
    if _ACTIVE.get() is None:
        return None
    cos, sin = output
    return torch.ones_like(cos), torch.zeros_like(sin)


def install(model: nn.Module, rotary: nn.Module) -> None:
    """Let `model` run row passes; outside of them it computes what it did before.

    Args:
        model: a transformers causal language model.
        rotary: its one rotary module.
    """
    AttentionInterface.register(ATTENTION_NAME, _attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    if not getattr(rotary, "_epic_rag_hook", False):
        rotary.register_forward_hook(_identity_rotation)
        rotary._epic_rag_hook = True  # type: ignore[assignment]
    model.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]
