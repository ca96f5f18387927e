"""How a plain prompt is answered under a KV budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from epic_rag.config import DEFAULT_STRIDE_TOKENS
from epic_rag.decode import DecodeOptions
from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget, check_stride, unseeded_policy

MODES = ("encoding", "decoding", "auto")
"""What the budget is for, in EasyKV's words: the prompt, the answer, or both together."""

COMPATS = ("easykv",)


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """How a prompt is answered.

    Attributes:
        policy: which tokens are evicted; `full`: none.
        budget: KV that may stay; None: all.
        mode: `encoding`: the budget is enforced on the prompt while it is prefilled, and the answer comes on top;
            `decoding`: the prompt stays whole, and the budget is for the tokens of the answer; `auto`: one budget over
            everything.
        stride_tokens: tokens prefilled between two evictions; KV peaks at budget and stride together.
        compat: `easykv`: decide as EasyKV does, quirks included.
        decode: length, sampling and stop strings.
    """

    policy: str = "full"
    budget: KVBudget | None = None
    mode: str = "auto"
    stride_tokens: int = DEFAULT_STRIDE_TOKENS
    compat: str | None = None
    decode: DecodeOptions = field(default_factory=DecodeOptions)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: says which cannot be.
        """
        if self.mode not in MODES:
            raise ConfigError(f"unknown mode '{self.mode}': expected one of {', '.join(MODES)}")
        check_stride(self.stride_tokens)
        check_budget(self.budget)
        unseeded_policy(self.policy, self.budget)
        if self.compat is None:
            return
        if self.compat not in COMPATS:
            raise ConfigError(f"unknown compat '{self.compat}': expected {', '.join(COMPATS)}, or none")
        if self.budget is None:
            raise ConfigError(f"compat '{self.compat}' needs a budget, such as --budget 1024; got none")
        if self.policy != "roco":
            raise ConfigError(f"compat '{self.compat}' decides as EasyKV's RoCo: use policy roco, got '{self.policy}'")


def check_budget(budget: object) -> None:
    """Raise ConfigError for what is no budget."""
    if budget is not None and not isinstance(budget, KVBudget):
        raise ConfigError(f"budget {budget!r}: expected a KVBudget; epic_rag.evict.as_budget makes one of it")
