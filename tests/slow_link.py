"""Linking once more, slowly: plain transformers forwards with eager attention, explicit masks and its own cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tiny_models import make_hf, make_tokenizer
from transformers import DynamicCache

from epic_rag.encode import Encoder
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.model import LanguageModel
from epic_rag.model.fingerprint import weights_digest
from epic_rag.prompt import Prompt

NUM_LAYERS = 3
BEHIND = (1, 2, 3)


def make_prompt(sizes: Sequence[int] = (23, 41, 17), prefix: int = 9, suffix: int = 11, seed: int = 3) -> Prompt:
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 250, (count,), generator=generator).tolist())

    return Prompt(ids(prefix), tuple(ids(size) for size in sizes), ids(suffix))


def make_model(architecture: str) -> LanguageModel:
    hf = make_hf(architecture, num_hidden_layers=NUM_LAYERS)
    return LanguageModel(hf, make_tokenizer(), f"tiny-{architecture}", weights_digest(hf))


def encode_all(model: LanguageModel, prompt: Prompt, behind: Sequence[int] = BEHIND) -> list[ChunkKV]:
    encoder = Encoder(model, behind)
    return [Encoder(model, ()).encode(prompt.prefix_ids), *map(encoder.encode, prompt.chunk_ids)]


@dataclass
class Seen:
    """What one forward over chosen rows gave."""

    logits: torch.Tensor  # [Q, vocabulary]
    received: torch.Tensor  # [N]: attention, mean over rows, heads and layers
    keys: list[torch.Tensor]  # by layer [H, N, D], rotated
    values: list[torch.Tensor]


class SlowLink:
    """Rotated KV by layer `[H, N, D]` of prefix and chunks, each chunk prefilled apart where it stands."""

    def __init__(self, architecture: str, prompt: Prompt, behind: Sequence[int] = BEHIND) -> None:
        self.hf = make_hf(architecture, num_hidden_layers=NUM_LAYERS)
        self.hf.set_attn_implementation("eager")
        self.prompt = prompt
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        parts = [self._prefilled((), prompt.prefix_ids, 0)]
        for start, ids in zip(prompt.offsets, prompt.chunk_ids, strict=True):
            parts.append(self._prefilled(behind, ids, start))
        for layer in range(NUM_LAYERS):
            self.keys.append(torch.cat([part[0][layer] for part in parts], dim=1))
            self.values.append(torch.cat([part[1][layer] for part in parts], dim=1))

    def _call(self, ids: Sequence[int], positions: Sequence[int], cache: DynamicCache, mask: torch.Tensor | None):
        named = "cache" if "cache" in inspect.signature(self.hf.forward).parameters else "past_key_values"
        with torch.no_grad():
            return self.hf(
                input_ids=torch.tensor([list(ids)]),
                position_ids=torch.tensor([list(positions)]),
                attention_mask=mask,
                output_attentions=True,
                use_cache=True,
                **{named: cache},
            )

    def _prefilled(self, behind: Sequence[int], ids: Sequence[int], start: int):
        """Keys and values by layer of `ids` behind `behind`, rotated to where `ids` stands: only distances matter."""
        cache, count = DynamicCache(config=self.hf.config), len(behind)
        self._call((*behind, *ids), range(start - count, start + len(ids)), cache, None)
        return [c.keys[0, :, count:] for c in cache.layers], [c.values[0, :, count:] for c in cache.layers]

    def rows(self, positions: Sequence[int], ids: Sequence[int] | None = None) -> Seen:
        """Compute rows over the KV as it stands.

        Their own old KV is hidden and the new one stands behind all, so that a mask of positions says who sees whom.
        """
        ids = [self.prompt.token_ids[p] for p in positions] if ids is None else ids
        old = self.keys[0].shape[1]
        cache = DynamicCache(config=self.hf.config)
        for layer in range(NUM_LAYERS):
            cache.update(self.keys[layer][None], self.values[layer][None], layer)
        where = torch.tensor([*range(old), *positions])
        hidden = torch.tensor([p in set(positions) for p in range(old)] + [False] * len(positions))
        sees = (where[None] <= torch.tensor(list(positions))[:, None]) & ~hidden[None]
        mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)[None, None]
        out = self._call(ids, positions, cache, mask)
        total = max(old, max(positions) + 1)
        received = torch.zeros(total)
        each = torch.stack([a[0].mean(dim=(0, 1)) for a in out.attentions]).mean(dim=0)
        received.index_add_(0, where, each)
        keys = [self._merged(c.keys[0], old, positions, total) for c in cache.layers]
        values = [self._merged(c.values[0], old, positions, total) for c in cache.layers]
        return Seen(out.logits[0].float(), received, keys, values)

    @staticmethod
    def _merged(tensor: torch.Tensor, old: int, positions: Sequence[int], total: int) -> torch.Tensor:
        merged = torch.zeros(tensor.shape[0], total, tensor.shape[2])
        merged[:, :old] = tensor[:, :old]
        merged[:, list(positions)] = tensor[:, old:]
        return merged

    def linked(self, chosen: Sequence[int]) -> Seen:
        """Recompute `chosen` and the suffix; the KV they wrote stays for later calls."""
        seen = self.rows([*sorted(chosen), *range(self.prompt.suffix_start, self.prompt.num_tokens)])
        stop = self.prompt.suffix_start
        self.keys, self.values = [k[:, :stop] for k in seen.keys], [v[:, :stop] for v in seen.values]
        return seen

    def full(self) -> torch.Tensor:
        """Logits `[N, vocabulary]` of a plain prefill."""
        ids = self.prompt.token_ids
        return self._call(ids, range(len(ids)), DynamicCache(config=self.hf.config), None).logits[0].float()

    def deviation(self, positions: Sequence[int], layer: int) -> torch.Tensor:
        """Squared distance of fresh KV at `layer` from what is stored; `[positions]`."""
        fresh = self.rows(positions)
        keys, values = fresh.keys[layer] - self.keys[layer], fresh.values[layer] - self.values[layer]
        return (keys.square().sum(dim=(0, 2)) + values.square().sum(dim=(0, 2)))[list(positions)]

    def ranked(self, usual: Sequence[int] | None) -> list[int]:
        """Context positions in blocks of 16, by what the suffix gives them (over what the suffix `usual` does)."""
        prompt, start, stop = self.prompt, len(self.prompt.prefix_ids), self.prompt.suffix_start
        mass = self.rows(range(stop, prompt.num_tokens)).received[start:stop]
        if usual is not None:
            other = self.rows(range(stop, stop + len(usual)), usual).received[start:stop]
            middle = sorted(other.tolist())[(stop - start - 1) // 2]
            mass = (mass + middle) / (other + middle)
        blocks = []
        for begin, ids in zip(prompt.offsets, prompt.chunk_ids, strict=True):
            for first in range(begin, begin + len(ids), 16):
                block = list(range(first, min(first + 16, begin + len(ids))))
                blocks.append((float(mass[[p - start for p in block]].mean()), block))
        return [p for _, block in sorted(blocks, key=lambda one: -one[0]) for p in block]
