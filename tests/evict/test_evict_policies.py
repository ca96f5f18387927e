"""Every policy against its formula in plain Python, and what all have to share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from epic_rag.errors import ConfigError
from epic_rag.evict import (
    H2O,
    POLICIES,
    TOVA,
    Full,
    KVBudget,
    Policy,
    Random,
    Recency,
    RoCo,
    SlotView,
    parse_policy,
)


def a_view(num_groups: int, num_slots: int, seed: int = 0, *, levels: int = 0, is_decoding: bool = False) -> SlotView:
    """Random statistics; with `levels`, so few different values that ties abound."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> torch.Tensor:
        values = torch.rand(num_groups, num_slots, generator=generator)
        return (values * levels).floor() / levels if levels else values

    counts = torch.full((num_groups, num_slots), 8.0)
    mean = draw()
    positions = torch.arange(num_slots, dtype=torch.int32).repeat(num_groups, 1)
    squares = (mean.square() + draw().square()) * counts
    return SlotView(positions, mean * counts, squares, counts, draw(), is_decoding)


def pins(num_slots: int, *slots: int) -> torch.Tensor:
    pinned = torch.zeros(num_slots, dtype=torch.bool)
    pinned[list(slots)] = True
    return pinned


def shuffled(view: SlotView, seed: int) -> tuple[SlotView, torch.Tensor]:
    """The same slots in another order, as in a cache that is overwritten; and that order."""
    order = torch.randperm(view.positions.shape[1], generator=torch.Generator().manual_seed(seed))
    moved = {name: getattr(view, name)[:, order] for name in ("positions", "sums", "squares", "counts", "last")}
    return replace(view, **moved), order


Formula = Callable[[SlotView, int, set[int], int], set[int]]
"""View, group, pinned slots, places that are not pinned -> unpinned slots that stay."""


def most(slots: set[int], worth: list[float], count: int) -> set[int]:
    """The `count` slots worth most; of equals, the later."""
    return set(sorted(slots, key=lambda i: (worth[i], i))[len(slots) - count :])


def roco(view: SlotView, group: int, pinned: set[int], places: int) -> set[int]:
    mean, std = view.mean[group].tolist(), view.std[group].tolist()
    slots = range(len(mean))
    free = {i for i in slots if i not in pinned}
    guards = min(10, int(0.3 * places))
    first = {i for i in free if i < min(4, places // 2)}
    latest = {i for i in free - first if i >= len(mean) - guards}
    others = sorted(free - first - latest, key=lambda i: std[i])
    reserved = max(guards, int((0.3 if view.is_decoding else 0.1) * places)) - len(latest)
    border = std[others[len(others) - reserved - 1]] if len(others) > reserved else -1.0
    even = {i for i in others if std[i] > border} if reserved else set()
    safe = first | latest | even
    return safe | most(free - safe, mean, places - len(safe))


def h2o(view: SlotView, group: int, pinned: set[int], places: int) -> set[int]:
    free = {i for i in range(view.sums.shape[1]) if i not in pinned}
    recent = set(sorted(free)[len(free) - places // 2 :])
    return recent | most(free - recent, view.sums[group].tolist(), places - len(recent))


def tova(view: SlotView, group: int, pinned: set[int], places: int) -> set[int]:
    return most(set(range(view.sums.shape[1])) - pinned, view.last[group].tolist(), places)


def recency(view: SlotView, group: int, pinned: set[int], places: int) -> set[int]:
    free = {i for i in range(view.sums.shape[1]) if i not in pinned}
    first = {i for i in free if i < min(4, places // 2)}
    return first | set(sorted(free - first)[len(free) - places :])


FORMULAS: list[tuple[Policy, Formula]] = [(RoCo("head"), roco), (H2O(), h2o), (TOVA(), tova), (Recency(), recency)]
EVICTING: list[Policy] = [*(policy for policy, _ in FORMULAS), Random()]


@pytest.mark.parametrize(("policy", "formula"), FORMULAS, ids=lambda value: getattr(value, "name", ""))
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_agrees_with_its_formula(policy: Policy, formula: Formula, data: st.DataObject) -> None:
    num_slots = data.draw(st.integers(1, 160))
    view = a_view(
        2,
        num_slots,
        seed=data.draw(st.integers(0, 999)),
        levels=data.draw(st.sampled_from([0, 0, 1, 3])),
        is_decoding=data.draw(st.booleans()),
    )
    pinned = data.draw(st.sets(st.integers(0, num_slots - 1), max_size=num_slots))
    budget = data.draw(st.integers(len(pinned), num_slots))
    kept = policy.keep(view, pins(num_slots, *pinned), budget)
    for group in range(2):
        assert kept[group].tolist() == sorted(pinned | formula(view, group, pinned, budget - len(pinned)))


@pytest.mark.parametrize("policy", EVICTING, ids=lambda policy: policy.name)
@settings(max_examples=60, deadline=None)
@given(num_slots=st.integers(1, 90), seed=st.integers(0, 99), levels=st.sampled_from([0, 1, 2]), decoding=st.booleans())
def test_giving_one_up_is_keeping_the_others_in_any_order_of_slots(
    policy: Policy, num_slots: int, seed: int, levels: int, decoding: bool
) -> None:
    view = a_view(3, num_slots, seed, levels=levels, is_decoding=decoding)
    pinned = pins(num_slots, *range(0, num_slots - 1, 5))
    if pinned.all():
        pinned = pins(num_slots)
    gone, kept = policy.give_up(view, pinned), policy.keep(view, pinned, num_slots - 1)
    for group in range(3):
        assert sorted([*kept[group].tolist(), int(gone[group])]) == list(range(num_slots))
    assert not pinned[gone].any()

    moved, order = shuffled(view, seed)
    assert torch.equal(order[policy.give_up(moved, pinned[order])], gone)
    again = order[policy.keep(moved, pinned[order], num_slots - 1)]
    assert torch.equal(again.sort(-1).values, kept)


@pytest.mark.parametrize("policy", EVICTING, ids=lambda policy: policy.name)
@settings(max_examples=60, deadline=None)
@given(num_slots=st.integers(1, 60), budget=st.integers(1, 60), pinned=st.integers(0, 60))
def test_budgets_are_exact_and_pinned_slots_stay(policy: Policy, num_slots: int, budget: int, pinned: int) -> None:
    budget = min(budget, num_slots)
    pinned = min(pinned, budget)
    for levels in (0, 1):
        kept = policy.keep(a_view(2, num_slots, levels=levels), pins(num_slots, *range(pinned)), budget)
        assert kept.dtype == torch.int64
        assert kept.shape == (2, budget)
        assert (kept.diff(dim=-1) > 0).all(), "ascending"
        assert kept[:, :pinned].tolist() == [list(range(pinned))] * 2
        assert kept[:, -1].max() < num_slots


@pytest.mark.parametrize("policy", [RoCo("head"), H2O(), TOVA()], ids=lambda policy: policy.name)
def test_of_all_equal_slots_the_older_go(policy: Policy) -> None:
    view = a_view(1, 40, levels=1)
    kept = policy.keep(view, pins(40), 20)[0].tolist()
    assert kept in ([*range(20, 40)], [*range(4), *range(24, 40)])


def test_roco_protects_the_uneven_from_being_judged_by_their_mean() -> None:
    """A slot with the smallest mean stays for its std; a slot with the next smallest mean goes."""
    view = a_view(1, 200, is_decoding=True)
    mean, std = view.mean.clone(), view.std.clone()
    mean[0, 50], std[0, 50], mean[0, 60] = 0.0, 9.0, 0.0
    view = replace(view, sums=mean * 8, squares=(mean.square() + std.square()) * 8)
    assert RoCo("head").give_up(view, pins(200)).tolist() == [60]


def test_roco_protects_more_while_decoding() -> None:
    view = a_view(1, 300)
    free = set(RoCo("head").keep(view, pins(300), 200)[0].tolist())
    decoding = set(RoCo("head").keep(replace(view, is_decoding=True), pins(300), 200)[0].tolist())
    uneven = set(view.std[0, :290].topk(50).indices.tolist())  # the ten latest count among the sixty
    assert uneven - decoding == set()
    assert uneven - free != set()


def test_random_is_a_repeatable_sample_that_steps_do_not_change() -> None:
    view, nobody = a_view(2, 400), pins(400)
    kept = Random(3).keep(view, nobody, 100)
    assert torch.equal(kept, Random(3).keep(view, nobody, 100))
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept, Random(4).keep(view, nobody, 100))
    half = Random(3).keep(view, nobody, 200)[:1]
    smaller = replace(view, **{n: getattr(view, n)[:1].gather(1, half) for n in ("positions", "sums", "counts")})
    assert torch.equal(half.gather(1, Random(3).keep(smaller, pins(200), 100)), kept[:1])
    quarters = torch.histc(torch.cat([Random(s).keep(view, nobody, 100)[0] for s in range(40)]).float(), 4, 0, 399)
    assert quarters.min() > 900
    assert quarters.max() < 1100


def test_full_keeps_all_and_gives_up_nothing() -> None:
    view = a_view(2, 6)
    assert Full().keep(view, pins(6), 6).tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    with pytest.raises(ValueError, match="gives up no slot"):
        Full().give_up(view, pins(6))


def test_budgets_that_cannot_be_kept_are_refused() -> None:
    view = a_view(1, 6)
    with pytest.raises(ValueError, match="2 of 6 slots cannot be kept with 3 of them pinned"):
        RoCo("head").keep(view, pins(6, 0, 1, 2), 2)
    with pytest.raises(ValueError, match="7 of 6 slots"):
        RoCo("head").keep(view, pins(6), 7)
    with pytest.raises(ValueError, match="every slot is pinned"):
        RoCo("head").give_up(view, pins(6, *range(6)))


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("roco", RoCo()),
        ("roco:head", RoCo("head")),
        ("roco:head:seeded", RoCo("head", seeded=True)),
        ("roco:seeded", RoCo(seeded=True)),
        ("roco", RoCo(granularity="layer")),
        ("h2o:layer", H2O(granularity="layer")),
        ("tova", TOVA(granularity="layer")),
        ("tova:head", TOVA(granularity="head")),
        ("recency", Recency()),
        ("random", Random()),
        (" random:7 ", Random(7)),
    ],
)
def test_policies_by_name(text: str, policy: Policy) -> None:
    got = parse_policy(text, 5)
    assert got == policy
    assert parse_policy(got.name, KVBudget(ratio=0.5)) == policy, "a name reads back as itself"


def test_every_name_of_the_registry_is_its_policys() -> None:
    for name in POLICIES:
        assert parse_policy(name, None if name == "full" else 1).name == name


@pytest.mark.parametrize(
    "text", ["roko", "", "roco:heads", "roco:layer:head", "recency:4", "random:x", "random:-1", "full:1", ":layer"]
)
def test_unknown_policies_are_refused_with_a_list(text: str) -> None:
    with pytest.raises(ConfigError, match="expected one of full, roco, h2o, tova, recency, random"):
        parse_policy(text, None if text.startswith("full") else 5)


@pytest.mark.parametrize(("text", "budget"), [("full", 10), ("full", KVBudget(tokens=3)), ("roco", None), ("h2o", 0)])
def test_budgets_that_do_not_fit_the_policy_are_refused(text: str, budget: KVBudget | int | None) -> None:
    with pytest.raises(ConfigError, match="--budget"):
        parse_policy(text, budget)
