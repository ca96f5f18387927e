from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_hf, make_tokenizer

from epic_rag.errors import ConfigError, ModelError, ModelNotFoundError
from epic_rag.model import LanguageModel, load_model
from epic_rag.model.fingerprint import config_digest, weights_digest


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    make_hf("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def test_a_folder_loads_in_bfloat16_on_the_cpu(saved: Path, tmp_path: Path) -> None:
    model = load_model(str(saved), cache_folder=tmp_path / "cache", device="cpu")
    assert model.dtype is torch.bfloat16
    assert model.device.type == "cpu"
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_fingerprint_follows_the_weights_not_the_name(saved: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load_model(str(saved), cache_folder=cache).fingerprint
    renamed = saved.rename(tmp_path / "other-name")
    assert load_model(str(renamed), cache_folder=cache).fingerprint == first
    changed = make_hf("llama")
    with torch.no_grad():
        next(changed.parameters())[0, 0] += 1
    changed.save_pretrained(renamed)
    assert load_model(str(renamed), cache_folder=cache).fingerprint != first


def test_weights_digest_is_remembered_and_a_broken_note_is_not_believed(saved: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load_model(str(saved), cache_folder=cache).fingerprint
    (note,) = (cache / "fingerprints").iterdir()
    note.write_text("not a digest")
    assert load_model(str(saved), cache_folder=cache).fingerprint == first
    assert len(note.read_text()) == 64


def test_weights_that_take_another_files_place_with_its_size_and_time_are_seen(saved: Path, tmp_path: Path) -> None:
    folder, cache = tmp_path / "model", tmp_path / "cache"
    shutil.copytree(saved, folder)
    first = load_model(str(folder), cache_folder=cache).fingerprint
    file = folder / "model.safetensors"
    before = file.stat()
    other = load_file(file)
    other = {name: tensor + 1 for name, tensor in other.items()}
    save_file(other, file, metadata={"format": "pt"})
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert load_model(str(folder), cache_folder=cache).fingerprint != first


def test_an_adapter_changes_the_fingerprint() -> None:
    model = make_hf("llama")
    before = weights_digest(model)
    model.register_parameter("adapter", torch.nn.Parameter(torch.ones(2, 2)))
    assert weights_digest(model) != before


def test_config_digest_ignores_names_and_versions() -> None:
    one, two = make_hf("llama").config, make_hf("llama").config
    two._name_or_path, two.transformers_version = "elsewhere", "9.9"
    assert config_digest(one) == config_digest(two)
    two.rms_norm_eps = 1e-3
    assert config_digest(one) != config_digest(two)


@pytest.mark.parametrize("spec", ["no-such-owner/no-such-model", "./no-such-folder"])
def test_unknown_model_is_an_error_in_words(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=r"cannot load model '.*no-such.*Hugging Face id, a folder"):
        load_model(spec, cache_folder=tmp_path)


def test_missing_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no GGUF file"):
        load_model(str(tmp_path / "x.gguf"), cache_folder=tmp_path)


def test_rubbish_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF rubbish" * 100)
    with pytest.raises(ModelNotFoundError, match="cannot read the GGUF file"):
        load_model(str(file), cache_folder=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").iterdir()), "a failed conversion must leave nothing behind"


@pytest.mark.parametrize(("option", "value"), [("dtype", "int4"), ("device", "abacus")])
def test_unknown_dtype_or_device(option: str, value: str, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"unknown {option} '{value}'"):
        load_model(str(saved), cache_folder=tmp_path, **{option: value})


@pytest.mark.model
def test_the_packaged_gguf_model_is_converted_once(smollm: LanguageModel, model_cache: Path) -> None:
    (folder,) = (model_cache / "models").glob("SmolLM2-135M-Instruct*")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    again = load_model("demo", cache_folder=model_cache)
    assert again.fingerprint == smollm.fingerprint
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("missing", ["gguf", "accelerate"])
def test_a_gguf_file_without_its_reader_names_the_extra(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == missing else find(name, *a))
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=rf"needs {missing}: pip install 'epic-rag\[demo\]'"):
        load_model(str(file), cache_folder=tmp_path / "cache")
