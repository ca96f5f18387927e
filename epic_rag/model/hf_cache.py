"""A KV budget inside transformers' own `generate`: a cache object and the attention function that goes with it.

    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation=register_budget_attention())
    cache = BudgetCache(model.config, budget=1024, policy="roco")
    model.generate(**inputs, cache=cache, max_new_tokens=200)  # past_key_values=cache before transformers 5.24

transformers calls three things of ours, and no class is patched:

* the cache's layers report as many columns of mask as there are new tokens, and the true length as their offset, so
  that positions stay the true ones and the mask says which new tokens are padding;
* `update` hands the new keys and values on as they are;
* the attention function writes them to the slots of each sequence, attends over those, and lets the policy choose.

Padding is never written: it takes no slot, gives no score and receives none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PretrainedConfig
from transformers.cache_utils import CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from epic_rag.config import DEFAULT_STRIDE_TOKENS
from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget, as_budget, check_stride, unseeded_policy
from epic_rag.model.budget_batch import BudgetBatch
from epic_rag.model.budget_row import Limits
from epic_rag.model.forward import ATTENTION_NAME, check_plain
from epic_rag.model.gate import check_config

BUDGET_ATTENTION = "epic_rag_budget"


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """Keys on their way from a cache's `update` to the attention function of the same layer."""

    cache: BudgetCache
    layer: int
    keys: Tensor


_STAGED: ContextVar[_Staged | None] = ContextVar("epic_rag_staged_keys", default=None)


class BudgetCache(Cache):
    """A cache for one `generate` (or several that go on from each other) that holds a budget of slots per sequence.

    While a prompt is prefilled, budget and stride together are reserved in each layer, whatever the prompt's length; a
    token that is generated takes the slot of the one that the policy gives up. Sequences of a batch are independent:
    each keeps what it would keep alone.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        budget: int | str | KVBudget,
        policy: str | None = None,
        stride_tokens: int = DEFAULT_STRIDE_TOKENS,
    ) -> None:
        """Prepare for a model; nothing is reserved before its first forward.

        Args:
            config: the model's.
            budget: slots of each sequence (1024), or their bytes ("64MB").
            policy: which tokens are evicted: a name of `epic_rag.evict.POLICIES`, but `full`; None: `roco`.
            stride_tokens: tokens of the prompt between two evictions.

        Raises:
            UnsupportedModelError: the model's attention is of a kind that a budget does not fit.
            ConfigError: policy, budget or stride cannot be.
        """
        check_config(config, str(config.name_or_path or config.model_type))
        register_budget_attention()
        limit = as_budget(budget)
        if limit is None or limit.ratio is not None:
            raise ConfigError(
                f"a BudgetCache needs tokens or bytes, got {budget!r}: a share of the prompt cannot be taken, as its "
                "length is not known yet"
            )
        self._budget = limit
        check_stride(stride_tokens)
        self._policy = unseeded_policy(policy, self._budget)
        self._stride_tokens = stride_tokens
        self._batch: BudgetBatch | None = None
        self._seen = self._next_layer = 0
        self._awaits_attention = False
        super().__init__(layers=[_BudgetLayer(self, layer) for layer in range(int(config.num_hidden_layers))])

    def kept_positions(self, sequence: int = 0) -> Tensor:
        """True positions of the tokens in the slots of one sequence: `[L, H, N]` int32, not sorted."""
        if self._batch is None:
            return torch.empty(len(self.layers), 0, 0, dtype=torch.int32)
        row = self._batch.rows[sequence]
        return row.scores.positions[:, :, : row.cache.length].clone()

    @property
    def kv_bytes(self) -> int:
        """Bytes reserved for keys and values."""
        return 0 if self._batch is None else self._batch.keys.nbytes + self._batch.values.nbytes

    def reset(self) -> None:
        """Forget everything."""
        self._batch, self._seen, self._next_layer, self._awaits_attention = None, 0, 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let sequence i go on from sequence `beam_idx[i]`."""
        self._batch = None if self._batch is None else self._batch.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the sequences `indices`."""
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        if self._batch is not None:
            self.reorder_cache(torch.arange(len(self._batch.rows)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: what was evicted for the last tokens does not come back.

        Raises:
            ConfigError: unless there is nothing to remove.
        """
        if tokens_to_remove:
            raise ConfigError("a BudgetCache cannot be rolled back, so assisted decoding does not work with it")

    def stage(self, layer: int, keys: Tensor) -> None:
        """Expect the attention of `layer` over new `keys` (`[B, H, Q, D]`) next.

        Raises:
            ConfigError: the attention of the layer before did not come this way, or a forward was broken off.
        """
        if self._awaits_attention or layer != self._next_layer:
            waited = "attention" if self._awaits_attention else "keys"
            raise ConfigError(
                f"a BudgetCache was given keys of layer {layer} while it waited for {waited} of layer "
                f"{self._next_layer}. Either the model's attention is not '{BUDGET_ATTENTION}': call "
                f"model.set_attn_implementation('{BUDGET_ATTENTION}'); or a forward was broken off: call cache.reset()"
            )
        self._awaits_attention = True
        _STAGED.set(_Staged(self, layer, keys))

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        """Attention of a layer's new tokens over what is kept, as in `BudgetBatch.attend`; `mask`: `[B, 1, Q, Q]` bool.

        Raises:
            ConfigError: the mask is not causal, or the batch has another size than before.
        """
        if self._batch is None:
            self._batch = BudgetBatch.like(keys, len(self.layers), self._limits(keys))
        num_sequences, num_columns = len(self._batch.rows), keys.shape[2]
        if layer == 0:
            self._awaits_attention = False  # so far nothing has changed: what is refused here does no harm
            if keys.shape[0] != num_sequences:
                raise ConfigError(
                    f"a BudgetCache of {num_sequences} sequences was given {keys.shape[0]}: use a new one"
                )
            valid = _valid_tokens(mask, num_sequences, num_columns)
            self._awaits_attention = True
            self._batch.begin(num_columns, valid)
        out = self._batch.attend(layer, queries, keys, values, scale)
        self._awaits_attention = False
        self._next_layer = (layer + 1) % len(self.layers)
        if self._next_layer == 0:
            self._batch.finish()
            self._seen += num_columns
        return out

    def seen_tokens(self) -> int:
        """Columns of the batch so far, padding and what was evicted included."""
        return self._seen

    def _limits(self, keys: Tensor) -> Limits:
        bytes_per_token = 2 * len(self.layers) * keys.shape[1] * keys.shape[3] * keys.element_size()
        return Limits(self._policy, self._budget.resolve(0, bytes_per_token), self._stride_tokens)


class _BudgetLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """What transformers takes for one layer of the cache."""

    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: BudgetCache, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache, self._layer = cache, layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: room is reserved with the first forward."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Pass new keys and values on to the attention function."""
        self._cache.stage(self._layer, key_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """A mask over the new tokens alone."""
        return query_length, self._cache.seen_tokens()

    def get_seq_length(self) -> int:
        """Tokens seen, not slots kept: positions go on from it."""
        return self._cache.seen_tokens()

    def get_max_length(self) -> int:
        """None."""
        return -1


_Attention = Callable[..., tuple[Tensor, Tensor | None]]


def _budget_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    staged = _STAGED.get()
    if staged is None or staged.keys is not key:
        usual: _Attention = ALL_ATTENTION_FUNCTIONS.get(ATTENTION_NAME, sdpa_attention_forward)
        return usual(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
    _STAGED.set(None)
    check_plain(kwargs, "which a KV budget does not fit")
    if module.training and query.requires_grad:
        raise ConfigError("a BudgetCache passes no gradients: train without it, or call model.eval()")
    dtype, value = query.dtype, value.to(key.dtype)  # under autocast they differ
    query = query.to(key.dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.no_grad():
        out = staged.cache.attend(staged.layer, query, key, value, attention_mask, scale)
    return out.to(dtype).transpose(1, 2).contiguous(), None


def _valid_tokens(mask: Tensor | None, num_sequences: int, num_columns: int) -> Tensor | None:
    """Which new tokens are no padding, `[B, Q]` bool, from a causal mask over the new tokens; None: all."""
    if mask is None:
        return None
    expected = (num_sequences, 1, num_columns, num_columns)
    if mask.dtype == torch.bool and mask.shape == expected:
        valid = mask[:, 0].diagonal(dim1=-2, dim2=-1)
        if torch.equal(mask[:, 0], valid[:, None].expand(-1, num_columns, -1).tril()):
            return valid
    raise ConfigError(
        f"a BudgetCache needs the causal mask that transformers makes from a 2D attention_mask, {expected} of bool, "
        f"got {tuple(mask.shape)} of {mask.dtype}: give attention_mask [batch, tokens], or none"
    )


def register_budget_attention() -> str:
    """Make the attention function known to transformers; its name, for `attn_implementation`.

    With any other cache, or none, it computes what the model's attention computed before.
    """
    AttentionInterface.register(BUDGET_ATTENTION, _budget_attention)
    AttentionMaskInterface.register(BUDGET_ATTENTION, sdpa_mask)
    return BUDGET_ATTENTION
