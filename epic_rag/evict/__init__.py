"""Stage evict: drop tokens of one KV cache down to a budget, after linking, while prefilling and while decoding."""

from epic_rag.evict.budget import KVBudget, as_budget, check_stride, parse_budget
from epic_rag.evict.decode_cache import SlotKeeper
from epic_rag.evict.keeping import Keeping
from epic_rag.evict.policies import (
    H2O,
    POLICIES,
    TOVA,
    Full,
    Random,
    Recency,
    choose_policy,
    parse_policy,
    unseeded_policy,
)
from epic_rag.evict.ranking import Policy, Ranking
from epic_rag.evict.roco import RoCo
from epic_rag.evict.scores import Granularity, SlotScores
from epic_rag.evict.stage import choose, evict, prefill_ranges
from epic_rag.evict.view import SlotView

__all__ = [
    "H2O",
    "POLICIES",
    "TOVA",
    "Full",
    "Granularity",
    "KVBudget",
    "Keeping",
    "Policy",
    "Random",
    "Ranking",
    "Recency",
    "RoCo",
    "SlotKeeper",
    "SlotScores",
    "SlotView",
    "as_budget",
    "check_stride",
    "choose",
    "choose_policy",
    "evict",
    "parse_budget",
    "parse_policy",
    "prefill_ranges",
    "unseeded_policy",
]
