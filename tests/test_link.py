"""While linking, a score sink is told what stored chunks measured, and then what the last round's rows give."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import make_tiny

from epic_rag.encode import Encoder
from epic_rag.evict import Keeping, as_budget, choose_policy
from epic_rag.kvstore.tensors import ChunkKV
from epic_rag.link import link, place, spans
from epic_rag.model import LanguageModel
from epic_rag.model.score_sink import SeedableSink
from epic_rag.prompt import Prompt
from epic_rag.selectors import Linking, OneRound, Selection, parse_selector
from epic_rag.selectors.base import Rounds

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


class Fixed(OneRound):
    """Chooses what it was told."""

    name = "fixed"
    needs_stored_kv = True

    def __init__(self, positions: tuple[int, ...]) -> None:
        self.positions = positions

    def select(self, linking: Linking) -> Selection:
        return Selection(self.positions)


@pytest.mark.parametrize("name", ["cacheblend:0.2", "query:0.2", "query-plain:0.2", "lego:2+query:0.1"])
@pytest.mark.parametrize("start", [0, 9])
def test_a_sink_does_not_see_how_rows_were_chosen(
    model: LanguageModel, stored: list[ChunkKV], name: str, start: int
) -> None:
    """The same rows, told beforehand: scores, logits and KV are the same to the bit."""
    cache = model.new_cache(PROMPT.num_tokens)
    place(model, stored, cache)
    selector = parse_selector(name)
    assert isinstance(selector, OneRound)
    told = Fixed(selector.select(Linking(model, PROMPT, tuple(spans(PROMPT, ())), cache)).positions)
    assert told.positions
    one, two = Observer(start), Observer(start)
    chosen = link(model, PROMPT, stored, selector, spare_tokens=3, scores=one)
    fixed = link(model, PROMPT, stored, told, spare_tokens=3, scores=two)
    assert one.calls == two.calls == ["layer 0", "layer 1"]
    for layer in range(2):
        assert torch.equal(one.received[layer], two.received[layer])
        assert torch.equal(one.counts[layer], two.counts[layer])
    assert torch.equal(chosen.logits, fixed.logits)
    num_tokens = PROMPT.num_tokens
    assert torch.equal(chosen.cache.keys[:, :, :num_tokens], fixed.cache.keys[:, :, :num_tokens])
    assert torch.equal(chosen.cache.values[:, :, :num_tokens], fixed.cache.values[:, :, :num_tokens])
    assert chosen.cache.capacity == fixed.cache.capacity == num_tokens + 3
    assert (chosen.cache.length, chosen.cache.next_position) == (num_tokens, num_tokens)
    assert chosen.selection_rows > fixed.selection_rows == 0


class ThreeRounds:
    """Suffix only, then heads, then nothing more, or one more."""

    name = "three"
    needs_stored_kv = True

    def __init__(self, rounds: int) -> None:
        self.num_rounds = rounds
        self.sent: list[torch.Tensor] = []

    def rounds(self, linking: Linking) -> Rounds:
        for turn in range(self.num_rounds):
            sent = yield Selection((9 + turn, 32 + turn), cost_rows=1.5, is_last=turn == 2)
            self.sent.append(sent)


@pytest.mark.parametrize("num_rounds", [1, 2, 3])
def test_of_several_rounds_a_sink_sees_the_last(model: LanguageModel, stored: list[ChunkKV], num_rounds: int) -> None:
    sink, selector = Seeded(), ThreeRounds(num_rounds)
    linked = link(model, PROMPT, stored, selector, spare_tokens=0, scores=sink, logits_to_keep=2)
    assert sink.calls == ["seed 0", "seed 9", "seed 32", "layer 0", "layer 1"]
    rows = [8 + num_rounds, 31 + num_rounds, *range(73, 84)]
    assert sink.counts[1].tolist() == [sum(row >= slot for row in rows) for slot in range(84)]
    assert linked.num_recomputed == num_rounds * (2 + 11)
    assert linked.selection_rows == 1.5 * num_rounds
    assert linked.logits.shape[0] == 2
    assert len(selector.sent) == (num_rounds if num_rounds < 3 else 2), "a last round is not asked about"
    if num_rounds < 3:
        assert torch.equal(selector.sent[-1], linked.logits[-1])


class Told:
    """Rounds that were chosen before."""

    name = "told"
    needs_stored_kv = True

    def __init__(self, selections: list[Selection]) -> None:
        self.selections = selections

    def rounds(self, linking: Linking) -> Rounds:
        for selection in self.selections:  # noqa: UP028 - `yield from` would send to a list
            yield selection


def recorded(model: LanguageModel, stored: list[ChunkKV], name: str) -> list[Selection]:
    """The rounds that a selector takes."""
    found: list[Selection] = []

    class Recording:
        needs_stored_kv = True

        def __init__(self) -> None:
            self.name = name

        def rounds(self, linking: Linking) -> Rounds:
            inner = parse_selector(name).rounds(linking)
            selection = next(inner)
            while True:
                found.append(selection)
                logits = yield selection
                try:
                    selection = inner.send(logits)
                except StopIteration:
                    return

    link(model, PROMPT, stored, Recording(), spare_tokens=0)
    return found


@pytest.mark.parametrize("name", ["query:0.2", "auto:0.3"])
def test_a_budget_evicts_as_if_the_rows_had_been_told(model: LanguageModel, stored: list[ChunkKV], name: str) -> None:
    kept = []
    for selector in (parse_selector(name), Told(recorded(model, stored, name))):
        keeping = Keeping(model, PROMPT, choose_policy("roco", as_budget(50)), as_budget(50), 4)
        assert keeping.sink is not None
        linked = link(model, PROMPT, stored, selector, spare_tokens=4, scores=keeping.sink)
        assert keeping.evict(linked.cache) == 50
        kept.append(linked.cache.keys[:, :, :50])
    assert torch.equal(*kept)
