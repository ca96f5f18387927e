from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import SIZE, make_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from epic_rag.errors import UnsupportedModelError
from epic_rag.model import load_model

REFUSED = {
    "learned positions": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 256}),
    "sliding-window": ("gemma3_text", {**SIZE, "sliding_window": 16}),
    "sliding": ("mistral", {**SIZE, "sliding_window": 16}),
    "state-space": (
        "jamba",
        {**SIZE, "num_hidden_layers": 4, "num_experts": 1, "num_experts_per_tok": 1, "attn_layer_period": 2,
         "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False,
         "mamba_d_state": 4, "mamba_d_conv": 2, "mamba_expand": 1, "mamba_dt_rank": 4},
    ),
    "state": ("mamba", {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 4}),
    "latent attention": (
        "deepseek_v3",
        {**SIZE, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
         "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    ),
    "type 'dynamic'": (
        "llama",
        {**SIZE, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}},
    ),
    "type 'longrope'": (
        "phi3",
        {**SIZE, "sliding_window": None, "original_max_position_embeddings": 128, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
            "factor": 2.0, "original_max_position_embeddings": 128}},
    ),
    "ALiBi": ("bloom", {"vocab_size": 300, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "layers without RoPE": ("smollm3", {**SIZE, "no_rope_layer_interval": 2}),
    "soft-capped": ("gemma2", {**SIZE, "sliding_window": 16}),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_by_name_of_what_is_unsupported(reason: str, tmp_path: Path) -> None:
    architecture, settings = REFUSED[reason]
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **settings)).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    cache = tmp_path / "cache"
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(str(folder), cache_folder=cache)
    assert reason in str(caught.value)
    assert str(folder) in str(caught.value)
    assert not cache.exists(), "a refused model must leave nothing behind"


def test_unknown_architecture_is_refused_with_the_list(tmp_path: Path) -> None:
    config = AutoConfig.for_model("falcon", vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"'falcon' is not among those checked: .*llama"):
        load_model(str(tmp_path), cache_folder=tmp_path / "cache")
