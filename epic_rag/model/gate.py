"""Which models can be linked: an allow-list of architectures, and the features that rule one out.

Linking needs every layer to be plain full attention with one RoPE setting that does not depend on the length, and KV
that stands for single tokens. What passes here still has to pass `self_test.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transformers import PretrainedConfig

from epic_rag.errors import UnsupportedModelError

INTERLEAVED = {"cohere", "ernie4_5", "glm", "glm4", "helium"}
"""Architectures that rotate neighbouring dimensions; the others rotate the two halves."""

SUPPORTED = INTERLEAVED | {
    "gemma", "gpt_neox", "granite", "llama", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "persimmon", "phi",
    "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "stablelm", "starcoder2",
}  # fmt: skip

FALLBACK_HINT = "for questions about documents, `epic-rag ask --allow-fallback` answers with full prefills"

_ROPE_TYPES = {"default", "linear", "llama3", "yarn"}


@dataclass(frozen=True, slots=True)
class _Obstacle:
    reason: str
    present: Callable[[PretrainedConfig], bool]


def _layer_types(config: PretrainedConfig) -> set[str]:
    return set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())


def _has_sliding_window(config: PretrainedConfig) -> bool:
    if any("sliding" in kind or "chunked" in kind or "local" in kind for kind in _layer_types(config)):
        return True
    used = getattr(config, "use_sliding_window", True)
    return bool(getattr(config, "sliding_window", None)) and bool(used) and not _layer_types(config)


def _has_state_layers(config: PretrainedConfig) -> bool:
    kinds = ("mamba", "linear", "recurrent", "conv", "ssm", "hybrid")
    named = any(kind in layer for layer in _layer_types(config) for kind in kinds)
    return named or any(
        getattr(config, name, None) for name in ("mamba_d_state", "ssm_cfg", "state_size", "attn_layer_period")
    )


def _rope_parameters(config: PretrainedConfig) -> dict[str, object]:
    return dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})


def _rope_type(config: PretrainedConfig) -> str:
    parameters = _rope_parameters(config)
    return str(parameters.get("rope_type", parameters.get("type", "default")))


def _has_nested_rope(config: PretrainedConfig) -> bool:
    return any(isinstance(value, dict) for value in _rope_parameters(config).values())


def _says(*names: str) -> Callable[[PretrainedConfig], bool]:
    """Whether one of these settings is there and not empty, zero or false."""
    return lambda config: any(getattr(config, name, None) for name in names)


def _is_one_of(*model_types: str) -> Callable[[PretrainedConfig], bool]:
    return lambda config: config.model_type in model_types


_OBSTACLES = (
    _Obstacle("latent attention (MLA): its KV is not one key and value per head", _says("kv_lora_rank")),
    _Obstacle("state-space or linear-attention layers: their state cannot be cut out of a prompt", _has_state_layers),
    _Obstacle("sliding-window or chunked attention layers", _has_sliding_window),
    _Obstacle("multi-dimensional RoPE (mrope)", lambda config: "mrope_section" in _rope_parameters(config)),
    _Obstacle("several RoPE settings in one model", _has_nested_rope),
    _Obstacle("layers without RoPE", lambda config: 0 in (getattr(config, "no_rope_layers", None) or ())),
    _Obstacle("KV shared between layers", _says("num_kv_shared_layers")),
    _Obstacle("ALiBi positions", _says("alibi")),
    _Obstacle("ALiBi positions", _is_one_of("bloom", "mpt")),
    _Obstacle("soft-capped attention scores", _says("attn_logit_softcapping")),
    _Obstacle("an encoder-decoder architecture", _says("is_encoder_decoder")),
    _Obstacle("learned positions", _is_one_of("gpt2", "opt", "gpt_bigcode", "biogpt", "xglm")),
)


def _reasons(config: PretrainedConfig) -> Iterator[str]:
    for obstacle in _OBSTACLES:
        if obstacle.present(config):
            yield obstacle.reason
    if _rope_type(config) not in _ROPE_TYPES and not _has_nested_rope(config):
        yield (
            f"RoPE of type '{_rope_type(config)}', which depends on the prompt's length "
            f"(supported: {', '.join(sorted(_ROPE_TYPES))})"
        )


def check_config(config: PretrainedConfig, name: str) -> None:
    """Refuse a model whose configuration rules linking out.

    Raises:
        UnsupportedModelError: names every reason.
    """
    reasons = list(_reasons(config))
    if not reasons and config.model_type not in SUPPORTED:
        reasons = [f"architecture '{config.model_type}' is not among those checked: {', '.join(sorted(SUPPORTED))}"]
    if reasons:
        raise UnsupportedModelError(
            f"model '{name}' ({config.model_type}) cannot be linked: {'; '.join(reasons)}. "
            f"Use a supported model; {FALLBACK_HINT}."
        )


def is_interleaved(config: PretrainedConfig) -> bool:
    """Whether the architecture rotates neighbouring dimensions."""
    return config.model_type in INTERLEAVED
