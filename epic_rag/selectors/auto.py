"""`auto:r`: rows are added until the next token no longer changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from epic_rag.config import AUTO_ENOUGH_NATS, AUTO_HEAD_TOKENS, DEFAULT_SHARE
from epic_rag.selectors.base import Linking, Rounds, Selection
from epic_rag.selectors.query import QuerySelector
from epic_rag.selectors.static import LegoSelector


@dataclass(frozen=True, slots=True)
class AutoSelector:
    """`auto:r`: nothing, then the heads of the chunks, then the question's blocks in two halves; at most a share r.

    Every round computes its rows and the suffix. After each the probe compares the next-token distribution with that of
    the round before; where the KL divergence between them is small, the last round was enough. Rows stay as their round
    computed them: they do not see what later rounds change in front of them, so that `auto:1` is not a full prefill.

    What the probe sees: whether the rows just added change the first token of the answer.
    What it cannot see: how far the answer still is from a full prefill's. Two rounds that are wrong alike look
    finished; rows that were never tried may matter, and so may the answer's later tokens.

    Attributes:
        share: of the context tokens that are not exact; the most that is computed again, all rounds together.
        enough_nats: KL divergence below which a round was enough.
    """

    share: float = DEFAULT_SHARE
    enough_nats: float = AUTO_ENOUGH_NATS
    needs_stored_kv: bool = True

    @property
    def name(self) -> str:
        """`auto:r`."""
        return f"auto:{self.share:g}"

    def rounds(self, linking: Linking) -> Rounds:
        """The rounds; the first computes the suffix alone, and never is enough by itself."""
        most = linking.count(self.share)
        before = yield Selection((), is_last=most == 0)
        for selection in self._additions(linking, most):
            after = yield selection
            if divergence(after, before) < self.enough_nats:
                return
            before = after

    def _additions(self, linking: Linking, most: int) -> Iterator[Selection]:
        """What each round adds; blocks are ranked on the KV as it stands when their turn comes."""
        if not most:
            return
        k = min(AUTO_HEAD_TOKENS, most // len(linking.open_chunks))
        heads = LegoSelector(k).select(linking).positions
        if heads:
            yield Selection(heads, is_last=len(heads) == most)
        ranked, cost_rows = QuerySelector(self.share).ranked(linking)
        rest = [position for position in ranked if position not in set(heads)][: most - len(heads)]
        half = (len(rest) + 1) // 2
        yield Selection(tuple(sorted(rest[:half])), cost_rows, is_last=half == len(rest))
        yield Selection(tuple(sorted(rest[half:])))


def divergence(after: Tensor, before: Tensor) -> float:
    """KL(after || before) of two next-token distributions, in nats; both logits, `[vocabulary]`."""
    new, old = after.double().log_softmax(-1), before.double().log_softmax(-1)
    return float((new.exp() * (new - old)).sum())
