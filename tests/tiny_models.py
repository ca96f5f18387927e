"""Tiny random models, built from a configuration in milliseconds, and a byte tokenizer for them."""

from __future__ import annotations

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from epic_rag.model import LanguageModel
from epic_rag.model.fingerprint import weights_digest

VOCABULARY = 300
SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 258,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 256}
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

SUPPORTED = {
    "llama": ("llama", {}),
    "llama3-rope": ("llama", {"rope_parameters": _LLAMA3_ROPE}),
    "yarn-rope": ("llama", {"rope_parameters": _YARN_ROPE}),
    "linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", {"sliding_window": None, **_EXPERTS}),
    "qwen2": ("qwen2", {}),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", _EXPERTS),
    "phi": ("phi", {"num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    "phi3": ("phi3", {"sliding_window": None, "original_max_position_embeddings": 1024}),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.5}),
    "gpt_neox": ("gpt_neox", {"num_key_value_heads": 4, "rotary_pct": 0.5}),
    "persimmon": ("persimmon", {"num_key_value_heads": 4}),
    "nemotron": ("nemotron", {}),
    "gemma": ("gemma", {}),
    "granite": ("granite", {}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "olmo": ("olmo", {}),
    "olmo2": ("olmo2", {}),
    "cohere": ("cohere", {}),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "helium": ("helium", {}),
    "ernie4_5": ("ernie4_5", {}),
}
"""Case name -> (architecture, settings besides `SIZE`)."""


def make_hf(architecture: str, dtype: torch.dtype = torch.float32, **settings: object) -> torch.nn.Module:
    """A random model of transformers; the same seed, the same weights."""
    config = AutoConfig.for_model(architecture, **{**SIZE, **settings})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:  # the default scale of 0.02 leaves attention nearly uniform
                parameter.normal_(0.0, 0.15)
            elif "bias" in name:
                parameter.normal_(0.0, 0.1)
    return model


def make_tiny(case: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A tiny model of one of the `SUPPORTED` cases."""
    architecture, settings = SUPPORTED[case]
    model = make_hf(architecture, dtype, **settings)
    return LanguageModel(model, make_tokenizer(), f"tiny-{case}", weights_digest(model))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens 0 to 255, and the control tokens of a ChatML model."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {character: index for index, character in enumerate(sorted(alphabet))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer
