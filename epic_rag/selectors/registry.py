"""A selector by its name."""

from __future__ import annotations

import re
from collections.abc import Callable

from epic_rag.errors import ConfigError
from epic_rag.selectors.auto import AutoSelector
from epic_rag.selectors.base import OneRound, Selector
from epic_rag.selectors.cacheblend import CacheBlendSelector
from epic_rag.selectors.combined import CombinedSelector
from epic_rag.selectors.query import PlainQuerySelector, QuerySelector
from epic_rag.selectors.static import FullSelector, LegoSelector, NoneSelector

_SELECTORS: dict[str, tuple[re.Pattern[str], Callable[[re.Match[str]], Selector]]] = {
    "none": (re.compile(r"none"), lambda _: NoneSelector()),
    "lego:K": (re.compile(r"lego:(\d{1,6})"), lambda match: LegoSelector(int(match[1]))),
    "full": (re.compile(r"full"), lambda _: FullSelector()),
    "cacheblend:R": (re.compile(r"cacheblend:(.*)"), lambda match: CacheBlendSelector(_share(match))),
    "query:R": (re.compile(r"query:(.*)"), lambda match: QuerySelector(_share(match))),
    "query-plain:R": (re.compile(r"query-plain:(.*)"), lambda match: PlainQuerySelector(_share(match))),
    "auto": (re.compile(r"auto"), lambda _: AutoSelector()),
    "auto:R": (re.compile(r"auto:(.*)"), lambda match: AutoSelector(_share(match))),
}


def parse_selector(text: str) -> Selector:
    """The selector that `text` names; several joined by `+` choose together.

    Raises:
        ConfigError: lists what there is, or says which share or sum cannot be.
    """
    names = [name.strip() for name in text.split("+")]
    parts = [_parse_one(name, text) for name in names]
    if len(parts) == 1:
        return parts[0]
    return CombinedSelector(tuple(map(_joinable, parts)), "+".join(part.name for part in parts))


def _parse_one(name: str, text: str) -> Selector:
    for pattern, make in _SELECTORS.values():
        match = pattern.fullmatch(name)
        if match:
            return make(match)
    raise ConfigError(
        f"unknown selector '{text}': expected one of {', '.join(_SELECTORS)}, or several joined by + "
        "(K: tokens per passage, R: share of the passages' tokens)"
    )


def _joinable(part: Selector) -> OneRound:
    if isinstance(part, OneRound) and part.needs_stored_kv:
        return part
    why = "it chooses in rounds of its own" if part.needs_stored_kv else "it computes everything already"
    raise ConfigError(f"selector '{part.name}' cannot be joined with others: {why}; use it alone")


def _share(match: re.Match[str]) -> float:
    """The number behind the colon, as 0.15 or 15%."""
    number = re.fullmatch(r"(\d+\.?\d*|\.\d+)(%?)", match[1].strip())
    share = float(number[1]) / (100 if number[2] else 1) if number else 0.0
    if 0 < share <= 1:
        return share
    raise ConfigError(f"selector '{match[0]}': expected a share above 0 and at most 1, such as 0.15 or 15%")
