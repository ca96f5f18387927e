"""Stage link: place stored KV where its tokens now stand, and compute chosen rows so that the chunks see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from epic_rag.kernels.rerotate import rerotate_
from epic_rag.kv_cache import KVCache
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.model import LanguageModel
from epic_rag.model.score_sink import ScoreSink, SeedableSink
from epic_rag.prompt import Prompt
from epic_rag.selectors import ChunkSpan, Linking, Selector


@dataclass(frozen=True, slots=True)
class Linked:
    """A prompt whose KV is complete.

    Attributes:
        cache: KV of all N tokens, with the room that was asked for behind them.
        logits: `[logits_to_keep, vocabulary]` fp32 of the last rows.
        num_recomputed: rows computed, the suffix included, in all rounds.
        selection_rows: what choosing them cost, in rows through all layers; 0 where nothing was computed for it.
    """

    cache: KVCache
    logits: Tensor
    num_recomputed: int
    selection_rows: float = 0.0


def link(
    model: LanguageModel,
    prompt: Prompt,
    stored: Sequence[ChunkKV],
    selector: Selector,
    *,
    spare_tokens: int,
    compile_prefix_ids: Sequence[int] = (),
    logits_to_keep: int = 1,
    scores: ScoreSink | None = None,
) -> Linked:
    """Link a prompt (LegoLink of EPIC, arXiv 2410.15332).

    Args:
        model: the language model.
        prompt: N token ids, cut into prefix, chunks and suffix.
        stored: KV of the prefix and then of every chunk, in order; empty when the selector computes everything.
        selector: which context tokens to compute again. It takes the whole suffix for the question: what it must not
            look at, such as an answer to be scored, does not belong there.
        spare_tokens: room for the answer.
        compile_prefix_ids: what the chunks were encoded behind; a chunk right behind just that is exact.
        logits_to_keep: number of last rows to compute logits for.
        scores: told what attention the slots receive: first, if it can be seeded, from each stored chunk's own rows,
            as measured when that was encoded (where it was); then from the rows computed here, in the last round.
            What a selector computes in order to choose is not reported.

    Returns:
        The linked prompt; rows stand at their true positions under an exact causal mask.
    """
    cache = model.new_cache(prompt.num_tokens + spare_tokens)
    if selector.needs_stored_kv:
        place(model, stored, cache)
        if isinstance(scores, SeedableSink):
            seed(model, stored, scores)
    linking = Linking(model, prompt, tuple(spans(prompt, compile_prefix_ids)), cache)
    return compute(linking, selector, logits_to_keep, scores)


def compute(linking: Linking, selector: Selector, logits_to_keep: int, scores: ScoreSink | None) -> Linked:
    """Compute what the selector chooses, round by round, and the whole suffix in each."""
    model, prompt, cache = linking.model, linking.prompt, linking.cache
    ids, suffix = model.ids(prompt.token_ids), range(prompt.suffix_start, prompt.num_tokens)
    num_recomputed, selection_rows = 0, 0.0
    rounds = selector.rounds(linking)
    selection = next(rounds)
    while True:
        positions = torch.tensor([*selection.positions, *suffix], dtype=torch.int64, device=model.device)
        held = None if scores is None or selection.is_last else HeldScores(scores.start)
        sink = held or scores
        logits = model.forward(ids[positions], positions, cache, logits_to_keep=logits_to_keep, scores=sink)
        num_recomputed += positions.numel()
        selection_rows += selection.cost_rows
        if selection.is_last:
            break
        try:
            selection = rounds.send(logits[-1])
        except StopIteration:
            break
    if held is not None and scores is not None:
        held.pass_on(scores)
    return Linked(cache, logits, num_recomputed, selection_rows)


class HeldScores:
    """Holds what a round's rows gave, until it is known whether the round was the last."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._layers: list[tuple[int, Tensor, Tensor, Tensor, Tensor, int]] = []

    def observe(self, layer: int, sums: Tensor, squares: Tensor, counts: Tensor, last: Tensor, start: int = 0) -> None:
        """Take one layer; see `ScoreSink`."""
        self._layers.append((layer, sums, squares, counts, last, start))

    def pass_on(self, scores: ScoreSink) -> None:
        """Tell it all to `scores`, which has the same start."""
        for layer in self._layers:
            scores.observe(*layer)


def spans(prompt: Prompt, compile_prefix_ids: Sequence[int]) -> list[ChunkSpan]:
    """Where the chunks stand; the first is exact when it stands right behind what it was encoded behind."""
    first_is_exact = tuple(compile_prefix_ids) == prompt.prefix_ids
    starts = zip(prompt.offsets, prompt.chunk_ids, strict=True)
    return [ChunkSpan(start, start + len(ids), first_is_exact and i == 0) for i, (start, ids) in enumerate(starts)]


def place(model: LanguageModel, stored: Sequence[ChunkKV], cache: KVCache) -> None:
    """Copy stored KV into consecutive slots from 0 and rotate the keys there, a layer at a time."""
    num_tokens = sum(kv.num_tokens for kv in stored)
    cos, sin = model.rope.angles(model.positions(0, num_tokens))
    for layer in range(model.num_layers):
        start = 0
        for kv in stored:
            stop = start + kv.num_tokens
            cache.keys[layer, :, start:stop] = kv.keys[layer]
            cache.values[layer, :, start:stop] = kv.values[layer]
            start = stop
        rerotate_(cache.keys[layer, :, :num_tokens], cos, sin, interleaved=model.rope.interleaved)
    cache.advance(num_tokens)


def seed(model: LanguageModel, stored: Sequence[ChunkKV], sink: SeedableSink) -> None:
    """Give a sink the statistics of the stored chunks, at the slots where `place` puts them."""
    start = 0
    for kv in stored:
        if kv.stats is not None:
            sink.seed(start, kv.stats.to(model.device))
        start += kv.num_tokens
