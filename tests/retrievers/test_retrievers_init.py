import subprocess
import sys

import pytest

import epic_rag.retrievers as retrievers


def test_every_exported_name_is_there():
    assert {name for name in retrievers.__all__ if not hasattr(retrievers, name)} == set()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = retrievers.Nonsense


def test_importing_loads_neither_langchain_nor_numpy():
    code = (
        "import sys, epic_rag.retrievers as r; r.PassageIndex(None).close();"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'langchain_core', 'numpy', 'bm25s', 'torch'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
