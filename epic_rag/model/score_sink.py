"""Who wants to know what attention the slots receive while rows are computed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class ScoreSink(Protocol):
    """Told once a layer, in layer order, what the rows of a forward gave to each slot."""

    @property
    def start(self) -> int:
        """The first slot of interest; those before it are not reported."""
        ...

    def observe(self, layer: int, sums: Tensor, squares: Tensor, counts: Tensor, last: Tensor, start: int = 0) -> None:
        """Take one layer's scores, averaged over the query heads of each KV head; all fp32.

        Args:
            layer: index of the layer.
            sums: `[H, n]`, probabilities that slots `start … start + n - 1` received, summed over the rows.
            squares: `[H, n]`, their squares, summed over the rows.
            counts: `[n]`, rows that see each slot.
            last: `[H, n]`, what the last row gave.
            start: slot of the first column.
        """
        ...


@runtime_checkable
class SeedableSink(Protocol):
    """A sink that can begin with what was measured when a chunk was encoded."""

    def seed(self, start: int, stats: Tensor) -> None:
        """Take the statistics of a chunk of T tokens.

        Args:
            start: slot of the chunk's first token.
            stats: `[L, H, 2, T]` fp16: mean and population standard deviation of what each token received from the
                chunk's own rows; token t was seen by T - t of them.
        """
        ...
