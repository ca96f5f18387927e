"""A way to get an answer that is measured: how chunks are encoded, which rows are recomputed, and what is evicted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from epic_rag.encoding import check_encoding, split_encoding
from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget, parse_budget, parse_policy
from epic_rag.evict.roco import RoCo
from epic_rag.kvstore.codecs import CODECS, find_codec
from epic_rag.selectors import parse_selector

FORM = "ENCODING,SELECTOR[,POLICY@BUDGET][,codec=NAME], such as warm:600,lego:4 or none,lego:16,roco@25%"
_CODEC = "codec="


@dataclass(frozen=True, slots=True)
class Method:
    """What one row of the table stands for.

    Attributes:
        name: as it is written; the same method always has the same.
        encoding: what chunks are encoded behind; `FIRST/OTHERS` where it is another for a prompt's first chunk.
        selector: which context tokens are recomputed.
        policy: which tokens are evicted; empty: none.
        budget: what may stay, as `parse_budget` reads it; empty: all.
        codec: what chunks pass through before they are linked; empty: nothing.
        with_documents: False for a prompt without passages.
    """

    name: str
    encoding: str
    selector: str
    policy: str = ""
    budget: str = ""
    codec: str = ""
    with_documents: bool = True

    @property
    def kv_budget(self) -> KVBudget | None:
        """What may stay; None: all."""
        return parse_budget(self.budget) if self.budget else None

    @property
    def wants_statistics(self) -> bool:
        """Whether the policy begins with what was measured when the chunks were encoded."""
        policy = parse_policy(self.policy, self.kv_budget) if self.policy else None
        return isinstance(policy, RoCo) and policy.seeded


FULL = Method("full", "none", "full")
"""A full prefill, the measure of everything else."""
BARE = Method("bare", "none", "full", with_documents=False)
"""A full prefill without any passage: what the model knows by itself."""
ALWAYS = (FULL, BARE)
DEFAULT_METHODS = ("none,none", "none,lego:16", "warm:600,none", "warm:600,lego:4", "warm:600,lego:16")
BASE = "none,none"
"""The method whose distance to a full prefill is the gap that others close."""


def parse_method(text: str, extra_encodings: Collection[str] = ()) -> Method:
    """The method that `text` names.

    Args:
        text: of the form above, or `full` or `bare`.
        extra_encodings: names of encodings that the caller brings along.

    Raises:
        ConfigError: says which part cannot be, and what there is.
    """
    parts = [part.strip() for part in text.split(",")]
    for always in ALWAYS:
        if parts == [always.name]:
            return always
    if len(parts) < 2 or not all(parts):
        raise ConfigError(f"method '{text}': expected {FORM}; full and bare are always measured")
    encoding, selector, *others = parts
    for part in split_encoding(encoding):
        if part not in extra_encodings:
            _told(text, partial(check_encoding, part))
    _told(text, partial(parse_selector, selector))
    policy, budget, codec = _options(text, others)
    options = [f"{policy}@{budget}"] * bool(policy) + [f"{_CODEC}{codec}"] * bool(codec)
    return Method(",".join([encoding, selector, *options]), encoding, selector, policy, budget, codec)


def parse_methods(texts: Collection[str], extra_encodings: Collection[str] = ()) -> tuple[Method, ...]:
    """`full`, `bare` and the methods that `texts` name, each once, in order.

    Raises:
        ConfigError: as `parse_method` does.
    """
    methods = (*ALWAYS, *(parse_method(text, extra_encodings) for text in texts))
    return tuple({method.name: method for method in methods}.values())


def _options(text: str, others: list[str]) -> tuple[str, str, str]:
    """Policy, budget and codec."""
    policy = budget = codec = ""
    for part in others:
        if part.startswith(_CODEC) and not codec:
            codec = part.removeprefix(_CODEC)
            if codec not in CODECS:
                raise ConfigError(f"method '{text}': codec '{codec}' is unknown: expected one of {', '.join(CODECS)}")
            find_codec(codec)
        elif "@" in part and not policy:
            policy, budget = part.split("@", 1)
            _told(text, partial(_check_eviction, policy, budget))
        else:
            raise ConfigError(f"method '{text}': '{part}' is not understood or given twice: expected {FORM}")
    return policy, budget, codec


def _check_eviction(policy: str, budget: str) -> None:
    parse_policy(policy, parse_budget(budget))


def _told(text: str, check: Callable[[], object]) -> None:
    """Run `check`; say of which method an error is."""
    try:
        check()
    except ConfigError as error:
        raise ConfigError(f"method '{text}': {error}") from None
