"""RoCo: the policy that asks how much attention a slot receives and how evenly."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from epic_rag.evict.ranking import STAYS, Ranking, sinks
from epic_rag.evict.scores import Granularity
from epic_rag.evict.view import SlotView

PROMPT_SHARE = 0.1
"""Share of the budget protected by std when a prompt is cut down: `recent_ratio` of EasyKV."""
DECODE_SHARE = 0.3
"""The same while decoding: a constant in EasyKV's code."""
GUARD_TOKENS = 10
"""Latest tokens, whose std rests on too few rows: a constant in EasyKV's code."""
SINK_TOKENS = 4
"""First tokens of the sequence: a constant in EasyKV's code."""


@dataclass(frozen=True, slots=True)
class RoCo(Ranking):
    """`roco`: evicts the smallest mean among slots that are not protected by a large std (arXiv 2402.06262).

    Of F places that are not pinned, int(share F) are for the slots with the largest std, the latest tokens counted
    among them; the first tokens of the sequence stay too; the largest means take the rest. Slots whose std ties at the
    border of the protected ones are not protected: among them, too, the mean decides, and then the age.

    Differs from EasyKV, which `epic_rag.evict.easykv` reproduces: budgets are exact rather than rounded to the stride,
    sinks are protected in all phases, any number of slots can go at once, the prompt can be evicted, and guards never
    take more than `DECODE_SHARE` of a small budget nor sinks more than half of it. The heads of a layer keep the same
    tokens, by the mean of their statistics, which lost less on most of what was tried (docs/architecture.md).

    Attributes:
        granularity: `head` lets every head choose for itself, as EasyKV does.
        needs_scores: True.
        seeded: on a linked prompt, begin with the statistics stored with its chunks, where they were ingested with
            some. They come from rows of the chunk alone, many more than those of the question, and drown what the
            question attends to: worse on what was tried (docs/architecture.md), hence not the default.
    """

    granularity: Granularity = "layer"
    needs_scores: bool = True
    seeded: bool = False

    @property
    def name(self) -> str:
        """`roco`, with `:head` or `:seeded` where it differs from the default."""
        return "roco" + ":head" * (self.granularity == "head") + ":seeded" * self.seeded

    def worth(self, view: SlotView, pinned: Tensor, free_tokens: int) -> Tensor:
        """The mean; `STAYS` for what is protected."""
        guards = min(GUARD_TOKENS, int(DECODE_SHARE * free_tokens))
        protected = max(guards, int((DECODE_SHARE if view.is_decoding else PROMPT_SHARE) * free_tokens))
        first = sinks(view.positions, SINK_TOKENS, free_tokens)
        latest = view.positions > view.positions.amax(-1, keepdim=True) - guards
        std = view.std.masked_fill(latest, STAYS).masked_fill(first | pinned, -1.0)
        border = std.kthvalue(std.shape[-1] - protected, dim=-1, keepdim=True).values
        return view.mean.masked_fill((std > border) | first, STAYS)
