"""The other policies, and the registry of all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from epic_rag.errors import ConfigError
from epic_rag.evict.budget import KVBudget
from epic_rag.evict.ranking import STAYS, Policy, Ranking, newest, sinks
from epic_rag.evict.roco import SINK_TOKENS, RoCo
from epic_rag.evict.scores import Granularity
from epic_rag.evict.view import SlotView


@dataclass(frozen=True, slots=True)
class H2O(Ranking):
    """`h2o`: half of what stays are the latest tokens, half have the largest summed attention (arXiv 2306.14048)."""

    granularity: Granularity = "head"
    needs_scores: bool = True

    @property
    def name(self) -> str:
        """`h2o`, or `h2o:layer`."""
        return "h2o" if self.granularity == "head" else f"h2o:{self.granularity}"

    def worth(self, view: SlotView, pinned: Tensor, free_tokens: int) -> Tensor:
        """The sum; `STAYS` for the recent half."""
        return view.sums.masked_fill(newest(view.positions, pinned, free_tokens // 2), STAYS)


@dataclass(frozen=True, slots=True)
class TOVA(Ranking):
    """`tova`: what the latest row attends to most, averaged over a layer's heads (arXiv 2401.06104)."""

    granularity: Granularity = "layer"
    needs_scores: bool = True

    @property
    def name(self) -> str:
        """`tova`, or `tova:head`."""
        return "tova" if self.granularity == "layer" else f"tova:{self.granularity}"

    def worth(self, view: SlotView, pinned: Tensor, free_tokens: int) -> Tensor:
        """The latest row's attention."""
        return view.last


@dataclass(frozen=True, slots=True)
class Recency(Ranking):
    """`recency`: the first four tokens and the latest (StreamingLLM, arXiv 2309.17453)."""

    name: str = "recency"
    granularity: Granularity = "layer"
    needs_scores: bool = False

    def worth(self, view: SlotView, pinned: Tensor, free_tokens: int) -> Tensor:
        """The position, which fp32 holds exactly up to 2**24; `STAYS` for the sinks."""
        return view.positions.float().masked_fill(sinks(view.positions, SINK_TOKENS, free_tokens), STAYS)


@dataclass(frozen=True, slots=True)
class Random(Ranking):
    """`random` or `random:seed`: a uniform sample of all tokens so far, the same in every layer; the measure of others.

    Each position draws one number from the seed and the largest stay, so that a token once dropped never outranks one
    that stayed, whatever the steps in which the budget is enforced.
    """

    seed: int = 0
    granularity: Granularity = "layer"
    needs_scores: bool = False

    @property
    def name(self) -> str:
        """`random`, or `random:seed`."""
        return f"random:{self.seed}" if self.seed else "random"

    def worth(self, view: SlotView, pinned: Tensor, free_tokens: int) -> Tensor:
        """A number drawn from seed and position."""
        drawn = _mix32(_mix32(view.positions.long()) ^ (self.seed & 0xFFFFFFFF))
        return (drawn >> 8).float()  # 24 bits, as many as fp32 holds exactly


@dataclass(frozen=True, slots=True)
class Full:
    """`full`: every token stays; it takes no budget."""

    name: str = "full"
    granularity: Granularity = "layer"
    needs_scores: bool = False

    def keep(self, view: SlotView, pinned: Tensor, budget_tokens: int) -> Tensor:
        """Every slot, whatever the budget."""
        num_groups, num_slots = view.positions.shape
        return torch.arange(num_slots, device=view.positions.device).expand(num_groups, -1)

    def give_up(self, view: SlotView, pinned: Tensor) -> Tensor:
        """Refuse."""
        raise ValueError("policy 'full' gives up no slot")


def _mix32(numbers: Tensor) -> Tensor:
    """Scatter int64 `numbers` below 2**32 over that range, no two to the same (the finaliser of MurmurHash3)."""
    mask = 0xFFFFFFFF
    numbers = (numbers ^ (numbers >> 16)) * 0x85EBCA6B & mask  # products may wrap; their low 32 bits are right
    numbers = (numbers ^ (numbers >> 13)) * 0xC2B2AE35 & mask
    return numbers ^ (numbers >> 16)


def _fixed(policy: Policy) -> Callable[[str], Policy | None]:
    return lambda parameter: None if parameter else policy


def _grained(make: Callable[..., Policy]) -> Callable[[str], Policy | None]:
    def parse(parameter: str) -> Policy | None:
        if parameter in get_args(Granularity):
            return make(granularity=parameter)
        return None if parameter else make()

    return parse


def _roco(parameter: str) -> Policy | None:
    asked = set(filter(None, parameter.split(":")))
    if not asked <= {"layer", "head", "seeded"} or {"layer", "head"} <= asked:
        return None
    return RoCo("head" if "head" in asked else "layer", seeded="seeded" in asked)


def _seeded(parameter: str) -> Policy | None:
    return Random(int(parameter or 0)) if re.fullmatch(r"\d{0,9}", parameter) else None


POLICIES: dict[str, Callable[[str], Policy | None]] = {
    "full": _fixed(Full()),
    "roco": _roco,
    "h2o": _grained(H2O),
    "tova": _grained(TOVA),
    "recency": _fixed(Recency()),
    "random": _seeded,
}
"""Name -> what makes the policy from the parameter behind a colon, '' for none; None for one it does not know."""


def choose_policy(text: str | None, budget: KVBudget | None) -> Policy:
    """The policy that `text` names; for None `roco`, or `full` where there is no budget.

    Raises:
        ConfigError: as `parse_policy` does.
    """
    return parse_policy(("full" if budget is None else "roco") if text is None else text, budget)


def unseeded_policy(text: str | None, budget: KVBudget | None) -> Policy:
    """As `choose_policy`, where there are no stored chunks, hence no statistics to begin with.

    Raises:
        ConfigError: as `parse_policy` does, and for a policy that is to be seeded.
    """
    policy = choose_policy(text, budget)
    if isinstance(policy, RoCo) and policy.seeded:
        raise ConfigError(f"policy '{policy.name}' begins with statistics of stored chunks; here are none: use 'roco'")
    return policy


def parse_policy(text: str, budget: KVBudget | int | None) -> Policy:
    """The policy that `text` names: a name of `POLICIES`, some with a parameter, as in `roco:head` or `random:7`.

    Raises:
        ConfigError: unknown policy, or a budget that does not fit the policy.
    """
    name, _, parameter = text.strip().partition(":")
    policy = POLICIES[name](parameter) if name in POLICIES else None
    if policy is None:
        raise ConfigError(
            f"unknown policy '{text}': expected one of {', '.join(POLICIES)}; "
            "roco, h2o and tova take :layer or :head, roco :seeded too, random takes :SEED"
        )
    _check_budget(name, budget)
    return policy


def _check_budget(name: str, budget: KVBudget | int | None) -> None:
    if name == "full" and budget is not None:
        evicting = [other for other in POLICIES if other != "full"]
        raise ConfigError(f"policy 'full' keeps every token; with --budget use --policy {', '.join(evicting)}")
    if name != "full" and (budget is None or (isinstance(budget, int) and budget < 1)):
        raise ConfigError(f"policy '{name}' needs --budget, at least 1 token; got {budget}")
