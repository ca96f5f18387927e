"""A causal language model that can run chosen rows of a prompt over a KV cache."""

from __future__ import annotations

import inspect
from contextlib import suppress

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from epic_rag.kernels.row_plan import plan_rows
from epic_rag.kv_cache import KVCache
from epic_rag.model.forward import CacheFace, LayerReached, RowPass, active, install
from epic_rag.model.gate import check_config, is_interleaved
from epic_rag.model.rope import find_rotary_module, read_rope
from epic_rag.model.score_sink import ScoreSink
from epic_rag.model.tokens import TextTokenizer


class LanguageModel:
    """One loaded model with its tokenizer.

    Attributes:
        name: what the user called it; information only.
        fingerprint: digest of configuration and weights.
        tokenizer: text to token ids and back.
        rope: its rotary position embedding.
        window: the largest number of positions (`max_position_embeddings`).
        eos_ids: token ids that end an answer.
        can_link: whether chosen rows can be computed over stored KV.
        reason: why not, when it cannot.
    """

    can_link = True
    reason = ""

    def __init__(
        self, hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, fingerprint: str
    ) -> None:
        """Gate `hf_model` and make it ready; it keeps working as usual for everybody else.

        Raises:
            UnsupportedModelError: names what rules the model out.
        """
        config = hf_model.config
        check_config(config, name)
        rotary = find_rotary_module(hf_model)
        self.hf_model = hf_model
        hf_model.train(False)
        self.name = name
        self.fingerprint = fingerprint
        self.tokenizer = TextTokenizer(tokenizer)
        self.rope = read_rope(rotary, config, interleaved=is_interleaved(config))
        self.window = int(config.max_position_embeddings)
        self.eos_ids = self.tokenizer.eos_ids | generation_eos(hf_model)
        self.num_layers = int(config.num_hidden_layers)
        self.num_kv_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        # transformers 5.24 renamed `past_key_values` to `cache`
        named_cache = "cache" in inspect.signature(hf_model.forward).parameters
        self._cache_argument = "cache" if named_cache else "past_key_values"
        install(hf_model, rotary)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and KV."""
        return self.hf_model.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.hf_model.device

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def new_cache(self, capacity: int) -> KVCache:
        """An empty KV cache with room for `capacity` tokens."""
        return KVCache((self.num_layers, self.num_kv_heads, capacity, self.head_dim), self.dtype, self.device)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: KVCache,
        *,
        slots: Tensor | None = None,
        logits_to_keep: int = 1,
        captured_keys: list[Tensor] | None = None,
        scores: ScoreSink | None = None,
    ) -> Tensor:
        """Compute rows of the prompt through all layers; their KV is written into `cache`.

        Every row attends the slots up to its own; slots below that are not rows must hold KV already.

        Args:
            token_ids: `[Q]` int64.
            positions: `[Q]` int64, absolute positions.
            cache: read and written.
            slots: `[Q]` int64, where the rows' KV goes; ascending; default: at their positions.
            logits_to_keep: number of last rows to compute logits for.
            captured_keys: when a list, receives every layer's keys before RoPE, `[H, Q, D]`.
            scores: told in every layer what attention the slots receive from the rows; logits and KV do not change.

        Returns:
            Logits `[logits_to_keep, vocabulary]`, fp32.
        """
        rows = positions if slots is None else slots
        plan = plan_rows(rows, self.dtype, group_prefill=scores is not None)
        cos, sin = self.rope.angles(positions)
        row_pass = RowPass(cache, plan, cos, sin, self.rope.interleaved, captured_keys, scores)
        logits = self._run(row_pass, token_ids, positions, logits_to_keep)
        cache.advance(plan.num_slots)
        cache.next_position = max(cache.next_position, int(positions[-1]) + 1)
        return logits.float()

    @torch.inference_mode()
    def keys_values(self, token_ids: Tensor, positions: Tensor, cache: KVCache, layer: int) -> tuple[Tensor, Tensor]:
        """Compute rows as `forward` does, up to one layer's keys and values; nothing behind these is computed.

        Args:
            token_ids: `[Q]` int64.
            positions: `[Q]` int64, absolute positions and slots; ascending.
            cache: read and written in the layers before; its length stays.
            layer: whose keys and values are wanted.

        Returns:
            Keys, rotated to their positions, and values: `[H, Q, D]` each.

        Raises:
            ValueError: there is no such layer.
        """
        cos, sin = self.rope.angles(positions)
        plan = plan_rows(positions, self.dtype)
        row_pass = RowPass(cache, plan, cos, sin, self.rope.interleaved, stop_layer=layer)
        with suppress(LayerReached):
            self._run(row_pass, token_ids, positions, 1)
        if row_pass.reached is None:
            raise ValueError(f"layer {layer}: expected 0 to {self.num_layers - 1}")
        return row_pass.reached

    def _run(self, row_pass: RowPass, token_ids: Tensor, positions: Tensor, logits_to_keep: int) -> Tensor:
        """The model's own code around a row pass; logits `[logits_to_keep, vocabulary]`."""
        no_mask = torch.empty(1, 1, 1, 1, device=self.device)  # 4D: passed through, so that no mask is ever made
        with active(row_pass):
            output = self.hf_model(
                input_ids=token_ids[None],
                position_ids=positions[None],
                attention_mask=no_mask,
                use_cache=True,
                logits_to_keep=logits_to_keep,
                **{self._cache_argument: CacheFace()},
            )
        return output.logits[0]  # type: ignore[no-any-return]

    def ids(self, token_ids: list[int] | tuple[int, ...]) -> Tensor:
        """Token ids as an int64 tensor on the model's device."""
        return torch.tensor(token_ids, dtype=torch.int64, device=self.device)

    def positions(self, start: int, stop: int) -> Tensor:
        """Positions `start … stop - 1` on the model's device."""
        return torch.arange(start, stop, dtype=torch.int64, device=self.device)


def generation_eos(hf_model: PreTrainedModel) -> frozenset[int]:
    """Token ids that end an answer, as the model's generation settings name them."""
    configured = getattr(getattr(hf_model, "generation_config", None), "eos_token_id", None)
    if configured is None:
        return frozenset()
    return frozenset([configured] if isinstance(configured, int) else configured)
