from __future__ import annotations

import pytest
import torch
from tiny_models import SUPPORTED, make_tiny

from epic_rag.errors import UnsupportedModelError
from epic_rag.model.self_test import self_test


@pytest.mark.parametrize("case", SUPPORTED)
def test_every_supported_architecture_passes(case: str) -> None:
    self_test(make_tiny(case))


@pytest.mark.parametrize("case", ["llama", "glm", "phi", "qwen3"])
def test_wrong_rope_layout_is_caught(case: str) -> None:
    model = make_tiny(case)
    rope = model.rope
    model.rope = type(rope)(rope.inv_freq, rope.attention_scaling, not rope.interleaved, rope.description)
    with pytest.raises(UnsupportedModelError, match="own prefill"):
        self_test(model)


def test_wrong_rope_scaling_is_caught() -> None:
    model = make_tiny("yarn-rope")
    rope = model.rope
    model.rope = type(rope)(rope.inv_freq, 1.0, rope.interleaved, rope.description)
    with pytest.raises(UnsupportedModelError, match="own prefill"):
        self_test(model)


def test_the_model_still_works_for_everybody_else() -> None:
    from tiny_models import make_hf

    plain, ids = make_hf("llama"), torch.arange(10)[None]
    with torch.inference_mode():
        before = plain(ids).logits
    model = make_tiny("llama")
    with torch.inference_mode():
        after = model.hf_model(ids).logits
        generated = model.hf_model.generate(ids, max_new_tokens=4, do_sample=False)
    torch.testing.assert_close(after, before)
    assert generated.shape[1] > 10
