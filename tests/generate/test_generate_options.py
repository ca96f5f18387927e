from __future__ import annotations

import pytest

from epic_rag.errors import ConfigError
from epic_rag.evict import KVBudget
from epic_rag.generate import GenerateOptions


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "prefill"}, "unknown mode 'prefill': expected one of encoding, decoding, auto"),
        ({"stride_tokens": 0}, "the stride must be at least 1 token, got 0"),
        ({"policy": "roco"}, "policy 'roco' needs --budget"),
        ({"budget": KVBudget(tokens=4)}, "policy 'full' keeps every token"),
        ({"policy": "lru", "budget": KVBudget(tokens=4)}, "unknown policy 'lru'"),
        ({"policy": "roco", "budget": KVBudget(tokens=4), "compat": "h2o"}, "unknown compat 'h2o': expected easykv"),
        ({"policy": "roco:seeded", "budget": KVBudget(tokens=4)}, "begins with statistics of stored chunks"),
        ({"compat": "easykv"}, "compat 'easykv' needs a budget, such as --budget 1024"),
        ({"policy": "h2o", "budget": KVBudget(tokens=4), "compat": "easykv"}, "use policy roco, got 'h2o'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GenerateOptions(**settings)


def test_defaults_keep_everything() -> None:
    options = GenerateOptions()
    assert (options.policy, options.budget, options.mode, options.stride_tokens) == ("full", None, "auto", 64)
