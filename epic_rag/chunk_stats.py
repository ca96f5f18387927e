"""What each token of a chunk receives from the chunk's own rows, measured while it is encoded."""

from __future__ import annotations

import torch
from torch import Tensor


class ChunkStatistics:
    """A score sink that ends as the statistics stored with a chunk.

    The rows are the chunk's own, and so are the columns. Probabilities stay as the model formed them, over compile
    prefix and chunk together; they are not made to sum to one over the chunk. Where a head leaves nearly all of its
    attention on the prefix, the rest is small, as it will be in a prompt, where other text stands in the prefix's
    place. Rescaled, such heads would count as much as those that read the chunk, and the chunk's first row would give
    its first token a whole 1.
    """

    def __init__(self, start: int) -> None:
        """Begin.

        Args:
            start: slot of the chunk's first token.
        """
        self.start = start
        self._layers: list[Tensor] = []

    def observe(self, layer: int, sums: Tensor, squares: Tensor, counts: Tensor, last: Tensor, start: int = 0) -> None:
        """Take one layer's scores (see `ScoreSink`)."""
        mean = sums / counts
        variance = squares / counts - mean.square()
        deviation = variance.clamp_min_(0.0).sqrt_()  # rounding leaves a constant column slightly below zero
        self._layers.append(torch.stack((mean, deviation), dim=1).half())

    def finished(self) -> Tensor:
        """Mean and population standard deviation, `[L, H, 2, T]` fp16; token t was seen by T - t rows."""
        return torch.stack(self._layers)
