"""Ways to make one ranking of several."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

Item = TypeVar("Item", bound=Hashable)
Ranking = Mapping[Item, float]
"""Items to their scores, the best first."""


class Fusion(Protocol):
    """Fuses the rankings of several searches."""

    def __call__(self, rankings: Sequence[Ranking[Item]]) -> dict[Item, float]:
        """Fuse.

        Args:
            rankings: One a search, in the order of the searches.

        Returns:
            A fused score for each item of any ranking; more is better.
        """


@dataclass(frozen=True, slots=True)
class ConvexCombination:
    """A weighted mean of scores, each counted from the least its search can give to the best it gave here.

    An item that a ranking lacks counts there as the least. Source: Bruch, Gai and Ingber, "An Analysis of Fusion
    Functions for Hybrid Retrieval" (arXiv 2210.11934), where it is TM2C2; ahead of reciprocal ranks there and here.

    Attributes:
        weights: What each search counts for, from 0. Default: of BM25 and cosine, chosen by `bench_retrieval`.
        least_scores: The least each search can give. Default: of BM25 and cosine.

    Raises:
        ValueError: The two differ in length, a weight is below 0, or all are 0.
    """

    weights: tuple[float, ...] = (0.1, 0.9)
    least_scores: tuple[float, ...] = (0.0, -1.0)

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.least_scores):
            raise ValueError(f"expected a least score for each weight, got {self.weights} and {self.least_scores}")
        if not all(weight >= 0 for weight in self.weights) or not sum(self.weights) > 0:
            raise ValueError(f"weights are 0 or more and not all 0, got {self.weights}")

    def __call__(self, rankings: Sequence[Ranking[Item]]) -> dict[Item, float]:
        """Fused scores from 0 to 1.

        Raises:
            ValueError: There are more or fewer rankings than weights.
        """
        if len(rankings) != len(self.weights):
            raise ValueError(f"expected {len(self.weights)} rankings, one a weight, got {len(rankings)}")
        fused: dict[Item, float] = {}
        for ranking, weight, least in zip(rankings, self.weights, self.least_scores, strict=True):
            span = max(ranking.values(), default=least) - least
            share = weight / sum(self.weights) / span if span > 0 else 0.0
            for item, score in ranking.items():
                fused[item] = fused.get(item, 0.0) + share * (score - least)
        return fused


@dataclass(frozen=True, slots=True)
class ReciprocalRanks:
    """The sum of 1 / (constant + rank) over the rankings that hold an item, ranks from 1; scores do not count.

    For searches whose scores cannot be compared. Source: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion", SIGIR
    2009.

    Attributes:
        constant: Damps the weight of the first places.
    """

    constant: int = 60

    def __call__(self, rankings: Sequence[Ranking[Item]]) -> dict[Item, float]:
        """Fused scores."""
        fused: dict[Item, float] = {}
        for ranking in rankings:
            for rank, item in enumerate(ranking, 1):
                fused[item] = fused.get(item, 0.0) + 1 / (self.constant + rank)
        return fused
