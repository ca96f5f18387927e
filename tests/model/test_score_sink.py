"""What a forward tells a score sink is what transformers' own eager attention gives, in every architecture."""

from __future__ import annotations

import pytest
import torch
from tiny_models import SUPPORTED, make_hf, make_tiny, make_tokenizer

from epic_rag.errors import UnsupportedModelError
from epic_rag.evict import RoCo
from epic_rag.generate.bounded import BoundedKV
from epic_rag.generate.bounds import Bounds
from epic_rag.model import LanguageModel
from epic_rag.model.plain import PlainModel
from epic_rag.model.score_sink import ScoreSink, SeedableSink

Seen = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]


class Recorder:
    """Keeps what it is told, by layer."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.layers: list[int] = []
        self.seen: list[Seen] = []

    def observe(
        self,
        layer: int,
        sums: torch.Tensor,
        squares: torch.Tensor,
        counts: torch.Tensor,
        last: torch.Tensor,
        start: int = 0,
    ) -> None:
        self.layers.append(layer)
        self.seen.append((sums, squares, counts, last, start))


def eager_attention(case: str, ids: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Probabilities of transformers' eager attention, query groups averaged: `[L, H, N, N]` fp32."""
    architecture, settings = SUPPORTED[case]
    model = make_hf(architecture, **settings)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = model(input_ids=ids[None], output_attentions=True, use_cache=False).attentions
    heads = torch.stack([layer[0].float() for layer in attentions])
    return heads.view(heads.shape[0], num_kv_heads, -1, *heads.shape[2:]).mean(dim=2)


def run(model: LanguageModel, ids: torch.Tensor, cuts: list[int], start: int = 0) -> list[Recorder]:
    """Forward `ids` in pieces; a recorder for each."""
    cache = model.new_cache(ids.numel())
    recorders = []
    for first, stop in zip([0, *cuts], [*cuts, ids.numel()], strict=True):
        recorder = Recorder(start if first >= start else 0)
        model.forward(ids[first:stop], model.positions(first, stop), cache, scores=recorder)
        recorders.append(recorder)
    return recorders


@pytest.mark.parametrize("case", SUPPORTED)
def test_column_sums_are_those_of_eager_attention(case: str) -> None:
    model = make_tiny(case)
    ids = torch.randint(3, 250, (97,), generator=torch.Generator().manual_seed(1))
    true = eager_attention(case, ids, model.num_kv_heads)
    for cuts, start in (([], 0), ([11], 11)):  # a whole prefill, and rows behind a prefix
        recorder = run(model, ids, cuts, start)[-1]
        assert recorder.layers == list(range(model.num_layers))
        rows = true[:, :, start:, start:]
        for layer, (sums, squares, counts, last, first) in enumerate(recorder.seen):
            assert first == start
            torch.testing.assert_close(sums, rows[layer].sum(dim=1), atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(squares, rows[layer].square().sum(dim=1), atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(last, rows[layer][:, -1], atol=1e-5, rtol=1e-3)
            assert counts.tolist() == list(range(97 - start, 0, -1))


def test_one_row_at_a_time_adds_up_to_the_whole() -> None:
    model = make_tiny("qwen3")
    ids = torch.randint(3, 250, (20,), generator=torch.Generator().manual_seed(2))
    whole = run(model, ids, [])[0]
    steps = run(model, ids, list(range(1, 20)))
    for layer in range(model.num_layers):
        sums = torch.zeros(model.num_kv_heads, 20)
        counts = torch.zeros(20)
        for step in steps:
            part, _, seen, last, _ = step.seen[layer]
            sums[:, : part.shape[1]] += part
            counts[: seen.numel()] += seen
            assert torch.equal(last, part), "of one row, the last is all"
        torch.testing.assert_close(sums, whole.seen[layer][0], atol=1e-5, rtol=1e-4)
        assert torch.equal(counts, whole.seen[layer][2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_and_kv_are_the_same_to_the_bit(dtype: torch.dtype) -> None:
    model = make_tiny("llama", dtype)
    ids = torch.randint(3, 250, (70,), generator=torch.Generator().manual_seed(3))
    results = []
    for sink in (None, Recorder()):
        cache = model.new_cache(70)
        model.forward(ids[:30], model.positions(0, 30), cache, scores=sink)
        logits = model.forward(ids[30:], model.positions(30, 70), cache, scores=sink)
        results.append((logits, cache.keys.clone(), cache.values.clone()))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_a_model_that_cannot_be_linked_says_that_it_has_no_scores() -> None:
    model = PlainModel(make_hf("llama"), make_tokenizer(), "tiny", "for a test")
    with pytest.raises(UnsupportedModelError, match=r"'tiny' cannot be linked .* use --policy full"):
        model.forward(model.ids([1, 2]), model.positions(0, 2), model.new_cache(2), scores=Recorder())


def test_only_a_sink_that_can_be_seeded_is_one() -> None:
    sink: ScoreSink = Recorder()
    assert not isinstance(sink, SeedableSink)


def test_a_bfloat16_model_has_finite_variances_at_8000_tokens() -> None:
    """Prefilled in strides under a budget, as `generate` does, with everything summed over thousands of rows."""
    model, real = make_tiny("llama", torch.bfloat16), RoCo.worth
    kv = BoundedKV(model, Bounds.of_prompt(8100, 8000, 64), RoCo(), 64)
    seen: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoCo, "worth", lambda self, view, *rest: seen.append(view.std) or real(self, view, *rest))
        kv.prefill(torch.randint(3, 250, (8100,), generator=torch.Generator().manual_seed(1)).tolist())
    std = seen[-1]
    assert std.shape[1] > 8000
    assert std.isfinite().all()
    assert (std > 0).float().mean() > 0.99, "variances that rounded to nothing would be 0"
