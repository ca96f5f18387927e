"""The package's face is complete, and loads only what is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import epic_rag.kvstore
from epic_rag.kvstore import errors

ROOT = Path(__file__).resolve().parents[2]


def test_every_public_name_is_there() -> None:
    for name in epic_rag.kvstore.__all__:
        value = getattr(epic_rag.kvstore, name)
        assert getattr(value, "__name__", name) == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        epic_rag.kvstore.Nothing  # noqa: B018


def test_every_error_is_a_store_error_and_drawn() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) == 9
    for kind in kinds:
        assert issubclass(kind, errors.StoreError)
        assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import epic_rag.kvstore", {"torch", "numpy", "langchain_core", "transformers", "sqlite3"}),
        (
            "from epic_rag.kvstore import KVStore, open_store",
            {"torch", "langchain_core", "transformers", "pytest", "redis"},
        ),
    ],
)
def test_importing_is_cheap(code: str, absent: set[str]) -> None:
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert absent & set(done.stdout.split()) == set()
