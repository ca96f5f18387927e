"""Which tokens of the passages are computed again when a prompt is linked: one small class a method, one registry."""

from epic_rag.selectors.auto import AutoSelector
from epic_rag.selectors.base import ChunkSpan, Linking, OneRound, Selection, Selector
from epic_rag.selectors.cacheblend import CacheBlendSelector
from epic_rag.selectors.combined import CombinedSelector
from epic_rag.selectors.query import PlainQuerySelector, QuerySelector
from epic_rag.selectors.registry import parse_selector
from epic_rag.selectors.static import FullSelector, LegoSelector, NoneSelector

__all__ = [
    "AutoSelector",
    "CacheBlendSelector",
    "ChunkSpan",
    "CombinedSelector",
    "FullSelector",
    "LegoSelector",
    "Linking",
    "NoneSelector",
    "OneRound",
    "PlainQuerySelector",
    "QuerySelector",
    "Selection",
    "Selector",
    "parse_selector",
]
