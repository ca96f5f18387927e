"""While linking, a score sink is told what stored chunks measured, and then what the computed rows give."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import make_tiny

from epic_rag.encode import Encoder
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.link import link
from epic_rag.model import LanguageModel
from epic_rag.model.score_sink import SeedableSink
from epic_rag.prompt import Prompt
from epic_rag.selectors import parse_selector

PROMPT = Prompt(tuple(range(3, 12)), (tuple(range(20, 43)), tuple(range(50, 91))), tuple(range(100, 111)))


class Observer:
    """Adds up sums and counts by layer, from `start` on."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.calls: list[str] = []
        self.received: dict[int, torch.Tensor] = {}
        self.counts: dict[int, torch.Tensor] = {}

    def observe(
        self,
        layer: int,
        sums: torch.Tensor,
        squares: torch.Tensor,
        counts: torch.Tensor,
        last: torch.Tensor,
        start: int = 0,
    ) -> None:
        assert start == self.start
        assert sums.shape == squares.shape == last.shape
        self.calls.append(f"layer {layer}")
        self.received[layer], self.counts[layer] = sums, counts


class Seeded(Observer):
    """One that can be seeded."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: list[tuple[int, torch.Tensor]] = []

    def seed(self, start: int, stats: torch.Tensor) -> None:
        self.calls.append(f"seed {start}")
        self.seeds.append((start, stats))


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return make_tiny("llama")


@pytest.fixture(scope="module")
def stored(model: LanguageModel) -> list[ChunkKV]:
    encoder = Encoder(model, (1, 2, 3), statistics=True)
    return [Encoder(model, (), statistics=True).encode(PROMPT.prefix_ids), *map(encoder.encode, PROMPT.chunk_ids)]


def test_chunks_seed_first_and_rows_add_to_them(model: LanguageModel, stored: list[ChunkKV]) -> None:
    sink = Seeded()
    assert isinstance(sink, SeedableSink)
    link(model, PROMPT, stored, parse_selector("lego:4"), spare_tokens=0, scores=sink)
    assert sink.calls == ["seed 0", "seed 9", "seed 32", "layer 0", "layer 1"]
    for (_, stats), kv in zip(sink.seeds, stored, strict=True):
        assert kv.stats is not None
        assert torch.equal(stats, kv.stats)
    rows = [*range(9, 13), *range(32, 36), *range(73, 84)]
    assert sink.counts[0].tolist() == [sum(row >= slot for row in rows) for slot in range(84)]
    torch.testing.assert_close(sink.received[1].sum(dim=-1), torch.full((2,), float(len(rows))), rtol=1e-4, atol=0.0)


def test_chunks_without_statistics_are_passed_over(model: LanguageModel, stored: list[ChunkKV]) -> None:
    sink = Seeded()
    some = [stored[0], replace(stored[1], stats=None), stored[2]]
    link(model, PROMPT, some, parse_selector("none"), spare_tokens=0, scores=sink)
    assert sink.calls[:2] == ["seed 0", "seed 32"]


def test_a_full_prefill_has_nothing_to_seed_with(model: LanguageModel) -> None:
    sink = Seeded()
    link(model, PROMPT, [], parse_selector("full"), spare_tokens=0, scores=sink)
    assert sink.calls == ["layer 0", "layer 1"]
    assert sink.counts[0].tolist() == list(range(84, 0, -1))


def test_a_sink_that_only_observes_is_enough(model: LanguageModel, stored: list[ChunkKV]) -> None:
    sink = Observer(start=9)
    link(model, PROMPT, stored, parse_selector("none"), spare_tokens=0, scores=sink)
    assert sink.received[0].shape == (2, 75)
    assert sink.counts[1].tolist() == [11.0] * 64 + list(range(11, 0, -1))


def test_scores_change_no_bit_of_the_answer(model: LanguageModel, stored: list[ChunkKV]) -> None:
    one, two = (
        link(model, PROMPT, stored, parse_selector("lego:4"), spare_tokens=0, scores=sink) for sink in (None, Seeded())
    )
    assert torch.equal(one.logits, two.logits)
    assert torch.equal(one.cache.keys, two.cache.keys)
