"""How much KV may stay: in tokens, as a share of the prompt, or in bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from epic_rag.errors import ConfigError
from epic_rag.kvstore.address import parse_size

_FORMS = "write tokens (1024), a share of the prompt (25% or 0.25) or bytes (64MB)"
_MOST_DIGITS = 24
_TOKENS = re.compile(r"\d{1,15}")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%|(\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class KVBudget:
    """A limit to the slots of a KV cache; exactly one of the three is given.

    Attributes:
        tokens: slots, at least 1.
        ratio: share of the prompt's tokens, above 0 and at most 1; taken as the decimal number it is written as.
        size_bytes: bytes of keys and values, at least 1.
    """

    tokens: int | None = None
    ratio: float | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: says which cannot be.
        """
        given = [value for value in (self.tokens, self.ratio, self.size_bytes) if value is not None]
        if len(given) != 1:
            raise ConfigError(f"a KV budget is one of tokens, ratio and bytes, got {len(given)} of them")
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"a KV budget must be at least 1 token, got {self.tokens}")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise ConfigError(f"a KV budget as a ratio must be above 0 and at most 1 (100%), got {self.ratio}")
        if self.size_bytes is not None and self.size_bytes < 1:
            raise ConfigError(f"a KV budget must be at least 1 byte, got {self.size_bytes}")

    def resolve(self, num_tokens: int, bytes_per_token: int) -> int:
        """Slots that may stay, at least 1, rounded down; it may exceed the prompt, and then evicts nothing from it.

        Args:
            num_tokens: tokens of the prompt.
            bytes_per_token: bytes of one token's keys and values.

        Raises:
            ConfigError: the bytes do not hold one token.
        """
        if self.tokens is not None:
            return self.tokens
        if self.ratio is not None:
            return max(1, int(Fraction(str(self.ratio)) * num_tokens))
        size_bytes = self.size_bytes or 0
        if size_bytes < bytes_per_token:
            raise ConfigError(
                f"a KV budget of {size_bytes} bytes holds no token: one takes {bytes_per_token} bytes with this model; "
                "give at least that"
            )
        return size_bytes // bytes_per_token


def as_budget(budget: KVBudget | int | str | None) -> KVBudget | None:
    """A budget as the options take it: an int is tokens, text is as `parse_budget` reads it, None is no limit.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(budget, str):
        return parse_budget(budget)
    if isinstance(budget, int) and not isinstance(budget, bool):
        return KVBudget(tokens=budget)
    if budget is not None and not isinstance(budget, KVBudget):
        raise ConfigError(f"{budget!r} is no KV budget: {_FORMS}, or an int, or a KVBudget")
    return budget


def parse_budget(text: str) -> KVBudget:
    """The budget that `text` names: `1024`, `25%`, `0.25` or `64MB` (also MiB, kB, GB, B).

    Raises:
        ConfigError: says how a budget is written, or what is out of range.
    """
    text = text.strip()
    if len(text) > _MOST_DIGITS or re.fullmatch(r"\d{16,}", text):
        raise ConfigError(f"'{text[:20]}…' is no KV budget: {_FORMS}")
    if _TOKENS.fullmatch(text):
        return KVBudget(tokens=int(text))
    share = _SHARE.fullmatch(text)
    if share:
        return KVBudget(ratio=float(Fraction(share[1]) / 100 if share[1] else share[2]))
    size_bytes = parse_size(text)
    if size_bytes is None:
        raise ConfigError(f"'{text}' is no KV budget: {_FORMS}")
    return KVBudget(size_bytes=size_bytes)


def check_stride(stride_tokens: object) -> None:
    """Refuse a stride that prefills nothing.

    Raises:
        ConfigError: it is no whole number from 1 up.
    """
    if not isinstance(stride_tokens, int) or isinstance(stride_tokens, bool) or stride_tokens < 1:
        raise ConfigError(f"the stride must be at least 1 token, got {stride_tokens!r}")
